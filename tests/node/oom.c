/* SPDX-License-Identifier: MIT
 * Without memory and without descriptors: two nodes from open to close, with the n-th allocation
 * refused, with all from the n-th on refused, and with fewer and fewer descriptors. Each failure is
 * reported at once by a matching error; nothing crashes, hangs, leaks or is lost. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "support/owner.h"
#include "support/seams.h"

#define LENGTH ((uint64_t)3 << 20)
/* No deadline and no liveness timeout may be reached: a failure is reported at once, at the latest
 * when a peer without memory drops the connection. */
#define PATIENCE (30 * S)
#define AT_ONCE  (5 * S)

struct life {
  struct haul_node *owner, *user;
  struct haul_region *regions[2], *local;
  struct haul_peer *peer;
  struct haul_remote *remotes[2];
  const char *address;
  int64_t patience;      /* of connects, and of transfers, which open connections */
  unsigned joined, left; /* events that the owner has read */
  int offered;           /* result of the offer */
  _Atomic bool offer_ended;
};

static int one_transfer(struct life *life, unsigned i, const char *only, bool write) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece pieces[2] = {{0, 1, LENGTH / 2}, {LENGTH / 2 + 5, LENGTH / 2 + 9, 1000}};
  struct haul_transfer *transfer;
  options.only = only;
  options.flags = HAUL_CHECKSUM;
  options.deadline = haul_deadline_in(life->patience);
  int code = write ? haul_write(life->remotes[i], life->local, pieces, 2, &options, &transfer)
                   : haul_read(life->local, life->remotes[i], pieces, 2, &options, &transfer);
  if (code)
    return code;
  code = haul_transfer_wait(transfer, HAUL_FOREVER);
  haul_transfer_release(transfer);
  return code;
}

static int one_atomic(struct life *life, struct haul_region *result, const char *only) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_transfer *transfer;
  options.only = only;
  options.deadline = haul_deadline_in(life->patience);
  int code = haul_fetch_add(result, 0, life->remotes[0], 8, 1, &options, &transfer);
  if (code)
    return code;
  code = haul_transfer_wait(transfer, HAUL_FOREVER);
  haul_transfer_release(transfer);
  return code;
}

/* What failed for want of memory has not taken place; what succeeded has, once. */
static int atomics(struct life *life) {
  const _Atomic uint64_t *number =
      (void *)((char *)haul_region_address(life->regions[0]) + sizeof *number);
  uint64_t before = atomic_load(number);
  struct haul_region *result;
  int code = haul_region_alloc(life->user, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &result);
  if (code)
    return code;
  code = one_atomic(life, result, "map");
  if (code == HAUL_ENOMEM)
    assert_true(atomic_load(number) == before);
  if (code == 0)
    code = one_atomic(life, life->local, "tcp");
  if (code == 0)
    assert_true(atomic_load(number) == before + 2);
  haul_region_release(result);
  return code;
}

static int transfers(struct life *life) {
  for (unsigned i = 0; i < 2; i++)
    for (unsigned way = 0; way < 4; way++) {
      int code = one_transfer(life, i, way % 2 ? "tcp" : "map", way / 2);
      if (code)
        return code;
    }
  return atomics(life);
}

/* Messages come from peers that joined and have not left. */
static bool all_left(const struct life *life) {
  return life->left > 0 && life->left >= life->joined;
}

/* The owner's next message, past its events. */
static int receive(struct life *life, haul_deadline until) {
  for (int kind = 0; kind != HAUL_MESSAGE;) {
    struct haul_message message;
    int code = haul_message_receive(life->owner, &message, all_left(life) ? HAUL_NO_WAIT : until);
    if (code)
      return code;
    kind = message.kind;
    life->joined += kind == HAUL_PEER_JOINED;
    life->left += kind == HAUL_PEER_LEFT;
    haul_message_release(&message);
  }
  return 0;
}

/* The second message needs the room that the first one took. */
static int talk(struct life *life) {
  static const char bytes[HAUL_MESSAGE_MAX];
  int code = 0;
  for (uint64_t i = 0; i < 2 && code == 0; i++) {
    code = haul_message_send(life->peer, i, bytes, sizeof bytes, haul_deadline_in(PATIENCE));
    if (code == 0)
      code = receive(life, haul_deadline_in(PATIENCE));
  }
  return code;
}

static void *offer(void *argument) {
  struct life *life = argument;
  life->offered =
      haul_message_offer(life->peer, 3, life->local, 0, LENGTH, haul_deadline_in(PATIENCE));
  atomic_store(&life->offer_ended, true);
  return NULL;
}

/* The user offers its region, unless it lacks memory for that; the owner reads it. */
static int take_offer(struct life *life) {
  struct haul_message message;
  pthread_t thread;
  int code = 0, kind = 0;
  assert_int_equal(pthread_create(&thread, NULL, offer, life), 0);
  while (!atomic_load(&life->offer_ended) && kind != HAUL_MESSAGE_OFFER && !all_left(life)) {
    if (haul_message_receive(life->owner, &message, haul_deadline_in(MS)) != 0)
      continue;
    kind = message.kind;
    life->joined += kind == HAUL_PEER_JOINED;
    life->left += kind == HAUL_PEER_LEFT;
    if (kind == HAUL_MESSAGE_OFFER)
      code = haul_message_read(&message, life->regions[1], 0, NULL, NULL);
    struct haul_error error = *haul_error_last();
    haul_message_release(&message);
    if (code)
      assert_int_equal(haul_error_last()->code, error.code);
  }
  pthread_join(thread, NULL);
  return code;
}

static int publish(struct life *life) {
  static const char *const names[] = {"host", "sim"};
  for (uint16_t i = 0; i < 2; i++) {
    struct haul_place place = {i ? HAUL_SIM : HAUL_HOST, 0};
    int code = haul_region_alloc(life->owner, place, LENGTH, 0, &life->regions[i]);
    if (code == 0)
      code = haul_region_publish(life->regions[i], names[i], HAUL_READ | HAUL_WRITE);
    if (code)
      return code;
  }
  return 0;
}

static int reach(struct life *life) {
  char address[160];
  int code = haul_node_address(life->owner, 0, address, sizeof address);
  if (code == 0)
    code = haul_peer_connect(life->user, address, haul_deadline_in(life->patience), &life->peer);
  if (code == 0)
    code = haul_peer_lookup(life->peer, "host", haul_deadline_in(PATIENCE), &life->remotes[0]);
  if (code == 0)
    code = haul_peer_lookup(life->peer, "sim", haul_deadline_in(PATIENCE), &life->remotes[1]);
  return code;
}

static int meet(struct life *life) {
  int code = haul_node_listen(life->owner, life->address);
  return code == 0 ? reach(life) : code;
}

static int live(struct life *life) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.pool_bytes = SIZE_MAX;
  config.liveness_ns = PATIENCE;
  config.peer_events = 1;
  int code = haul_node_open(&config, &life->owner);
  if (code == 0)
    code = publish(life);
  if (code == 0)
    code = haul_node_open(&config, &life->user);
  if (code == 0)
    code = meet(life);
  if (code == 0)
    code = haul_region_alloc(life->user, (struct haul_place){HAUL_SIM, 0}, LENGTH, 0, &life->local);
  if (code == 0)
    code = transfers(life);
  if (code == 0)
    code = talk(life);
  return code == 0 ? take_offer(life) : code;
}

static void whoever_joined_leaves(struct life *life) {
  if (!life->owner)
    return;
  while (receive(life, HAUL_NO_WAIT) == 0)
    ;
  while (life->joined > life->left && receive(life, haul_deadline_in(PATIENCE)) == 0)
    ;
  assert_int_equal(life->joined, life->left);
}

static void leave(struct life *life) {
  for (unsigned i = 0; i < 2; i++)
    haul_remote_release(life->remotes[i]);
  haul_region_release(life->local);
  haul_peer_close(life->peer);
  haul_node_close(life->user);
  life->remotes[0] = life->remotes[1] = NULL;
  life->local = NULL;
  life->peer = NULL;
  life->user = NULL;
}

static void end(struct life *life) {
  leave(life);
  whoever_joined_leaves(life);
  for (unsigned i = 0; i < 2; i++)
    haul_region_release(life->regions[i]);
  haul_node_close(life->owner);
}

static void check_failure_is_told(int code, unsigned n) {
  const struct haul_error *last = haul_error_last();
  if (code == 0)
    return; /* something did without */
  if (last->code != code || !last->text[0] || !last->hint[0])
    fail_msg("n = %u: %s, and the detail says %s: %s (%s)", n, haul_error_name(code),
             haul_error_name(last->code), last->text, last->hint);
}

static void check_it_was_told_at_once(haul_deadline from, unsigned n) {
  long long took = haul_deadline_in(0) - from;
  if (took > AT_ONCE)
    fail_msg("n = %u took %lld ms", n, took / MS);
}

/* A channel whose descriptors found no room is closed aside: soon. */
static void check_nothing_is_left(unsigned descriptors, unsigned n) {
  haul_deadline until = haul_deadline_in(2 * S);
  while (open_descriptors() != descriptors && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, MS}, NULL);
  if (open_descriptors() != descriptors)
    fail_msg("n = %u: %u descriptors, %u before", n, open_descriptors(), descriptors);
  if (haul_mappings() != 0)
    fail_msg("n = %u: %u mappings are left", n, haul_mappings());
}

/* One of eight, chance says which; tests/sim refuses any, at any time. */
#define STRIDE 8u

static void sweep(const char *address, void (*refuse)(unsigned n)) {
  unsigned descriptors = open_descriptors();
  bool refused;
  unsigned n = 1 + (unsigned)(test_seed() >> 8) % STRIDE;
  do {
    struct life life = {.address = address, .patience = PATIENCE};
    haul_deadline from = haul_deadline_in(0);
    refuse(n);
    int code = live(&life);
    refused = seams_restore();
    check_failure_is_told(code, n);
    end(&life);
    check_it_was_told_at_once(from, n);
    check_nothing_is_left(descriptors, n);
    if (!refused) {
      assert_works(code);
      assert_int_equal(life.offered, 0);
    }
    n += STRIDE;
  } while (refused);
  print_message("%u requests, one of %u refused\n", n - 1 - STRIDE, STRIDE);
}

static void every_refusal_of_memory_is_survived(void **state) {
  sweep(*state, seams_refuse);
}

static void memory_that_ends_for_good_is_survived(void **state) {
  sweep(*state, seams_refuse_from);
}

/* Memory is short for a moment only: no path stays closed for the life of a node. */
static void a_node_that_opens_has_its_paths(void **state) {
  struct life life = {.address = *state, .patience = PATIENCE};
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  bool refused = true;
  assert_works(haul_node_open(&config, &life.owner));
  assert_works(publish(&life));
  assert_works(haul_node_listen(life.owner, life.address));
  for (unsigned n = 1; refused; n++) {
    seams_refuse(n);
    int code = haul_node_open(&config, &life.user);
    refused = seams_restore();
    if (code == HAUL_ENOMEM)
      continue;
    assert_works(code);
    assert_works(reach(&life));
    assert_works(
        haul_region_alloc(life.user, (struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &life.local));
    assert_works(one_transfer(&life, 0, "map", true));
    leave(&life);
  }
  end(&life);
}

static int highest_descriptor(void) {
  int fd = dup(STDIN_FILENO);
  close(fd);
  return fd;
}

/* Who connects to a node without a descriptor waits in its queue until it has one. So do transfers,
 * whose data connections are opened by the first. */
static void every_lack_of_descriptors_is_survived(void **state) {
  struct rlimit before, limit;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  unsigned descriptors = open_descriptors();
  int code;
  rlim_t room = 0;
  do {
    struct life life = {.address = *state, .patience = 200 * MS};
    limit = before;
    limit.rlim_cur = (rlim_t)highest_descriptor() + room;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    haul_deadline from = haul_deadline_in(0);
    code = live(&life);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    check_failure_is_told(code, (unsigned)room);
    end(&life);
    check_it_was_told_at_once(from, (unsigned)room);
    check_nothing_is_left(descriptors, (unsigned)room);
    assert_true(++room < 200);
  } while (code != 0);
  print_message("%u descriptors are enough\n", (unsigned)room - 1);
}

static int64_t cpu_time(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec * S + used.tv_nsec;
}

/* A node that has none left serves those that it has, and others again once it has some. */
static void a_node_without_descriptors_lives_on(void **state) {
  struct life life = {.address = *state, .patience = PATIENCE};
  struct rlimit before, limit;
  char address[160];
  struct haul_peer *late;
  assert_works(live(&life));
  assert_works(haul_node_address(life.owner, 0, address, sizeof address));
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  limit = before;
  limit.rlim_cur = (rlim_t)highest_descriptor() + 1; /* for the one who connects */
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  int64_t used = cpu_time();
  assert_fails(HAUL_ETIMEDOUT,
               haul_peer_connect(life.user, address, haul_deadline_in(500 * MS), &late));
  assert_true(cpu_time() - used < 250 * MS); /* it slept meanwhile */
  assert_works(transfers(&life));
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_works(haul_peer_connect(life.user, address, haul_deadline_in(PATIENCE), &late));
  haul_peer_close(late);
  end(&life);
}

int main(void) {
  static char tcp[] = "tcp://127.0.0.1:0", local[64];
  snprintf(local, sizeof local, "unix://@haul-test-oom-%d", (int)getpid());
#define OVER_BOTH(test)                                                                            \
  {#test " over tcp", test, NULL, NULL, tcp}, {                                                    \
#test " over a Unix socket", test, NULL, NULL, local                                           \
  }
  const struct CMUnitTest tests[] = {
      OVER_BOTH(every_refusal_of_memory_is_survived),
      OVER_BOTH(memory_that_ends_for_good_is_survived),
      OVER_BOTH(a_node_that_opens_has_its_paths),
      OVER_BOTH(every_lack_of_descriptors_is_survived),
      OVER_BOTH(a_node_without_descriptors_lives_on),
  };
  return cmocka_run_group_tests_name("oom", tests, NULL, NULL);
}
