/* SPDX-License-Identifier: MIT
 * Messages whose payload is in a region: every place to every place over every path, what both
 * sides learn of a failure, and sides that end. HAUL_TEST_PLACES names the places (default "host
 * sim:0"); the paths are the arguments (default "map tcp"). */
#include "support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "haul/stats.h"
#include "node/offer.h"
#include "support/child.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/raw.h"

#define BOUND  (60 * S)
#define MIB    ((uint64_t)1 << 20)
#define LENGTH (3 * MIB)
#define SENDER "sender" /* the argument of a child that sends */
#define PLACES 8u

static const char *paths[4] = {"map", "tcp"};
static struct haul_place places[PLACES];
static unsigned place_count;
static const char *addresses[] = {"tcp://127.0.0.1:0", NULL}; /* main: and its own socket */

static struct {
  struct haul_node *sender, *receiver;
  struct haul_peer *peer;
  struct haul_region *from, *to;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static struct haul_region *alloc(struct haul_node *node, struct haul_place place, uint64_t length) {
  struct haul_region *region;
  assert_works(haul_region_alloc(node, place, length, 0, &region));
  return region;
}

static int set_up_with(const char *address, int progress) {
  struct haul_node_config config = patient_config();
  char actual[160];
  assert_works(haul_node_open(&config, &t.receiver));
  config.progress = progress;
  assert_works(haul_node_open(&config, &t.sender));
  assert_works(haul_node_listen(t.receiver, address));
  assert_works(haul_node_address(t.receiver, 0, actual, sizeof actual));
  assert_works(haul_peer_connect(t.sender, actual, soon(), &t.peer));
  t.from = alloc(t.sender, places[0], LENGTH);
  t.to = alloc(t.receiver, places[0], LENGTH);
  return 0;
}

static int set_up(void **state) {
  return set_up_with(*state, HAUL_PROGRESS_THREAD);
}

/* The calls that wait drive the sender's node. */
static int set_up_driven(void **state) {
  return set_up_with(*state, HAUL_PROGRESS_CALLER);
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.from);
  haul_region_release(t.to);
  haul_peer_close(t.peer);
  if (t.sender)
    haul_node_close(t.sender);
  if (t.receiver)
    haul_node_close(t.receiver);
  memset(&t, 0, sizeof t);
  return 0;
}

/* A call of haul_message_offer in a thread of its own. */
struct offering {
  struct haul_region *region;
  uint64_t tag, offset, length;
  haul_deadline until;
  int code;
  struct haul_error error;
  pthread_t thread;
};

static void *offer(void *argument) {
  struct offering *offering = argument;
  offering->code = haul_message_offer(t.peer, offering->tag, offering->region, offering->offset,
                                      offering->length, offering->until);
  if (offering->code)
    offering->error = *haul_error_last();
  return NULL;
}

static void begin(struct offering *offering, struct haul_region *region, uint64_t tag,
                  uint64_t offset, uint64_t length, haul_deadline until) {
  *offering = (struct offering){region, tag, offset, length, until, 1, {0}, 0};
  assert_int_equal(pthread_create(&offering->thread, NULL, offer, offering), 0);
}

/* The call ends with this code; a failure has the text. */
static void end(struct offering *offering, int code, const char *text) {
  pthread_join(offering->thread, NULL);
  if (offering->code != code || (code && !strstr(offering->error.text, text)))
    fail_msg("%d: %s", offering->code, offering->error.text);
  if (code)
    assert_string_equal(offering->error.call, "haul_message_offer");
}

static struct haul_message receive(struct haul_node *node, int kind) {
  struct haul_message message;
  assert_works(haul_message_receive(node, &message, soon()));
  assert_int_equal(message.kind, kind);
  return message;
}

/* Names are gone, and remotes of them. */
static void check_nothing_lent(void) {
  struct haul_node_stats stats;
  assert_works(haul_node_stats(t.sender, &stats, NULL, &(size_t){0}));
  assert_int_equal(stats.published, 0);
}

static bool is_direct(struct haul_place place) {
  return place.kind == HAUL_HOST || place.kind == HAUL_CUDA;
}

static void move(struct haul_place from_place, struct haul_place to_place, const char *path,
                 uint64_t length) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_region *from = alloc(t.sender, from_place, LENGTH);
  struct haul_region *to = alloc(t.receiver, to_place, LENGTH);
  struct offering offering;
  region_fill(t.sender, from, 0, LENGTH, length);
  region_fill(t.receiver, to, 0, LENGTH, 7);
  uint64_t before = region_sum(t.receiver, to, 0, 3);
  begin(&offering, from, length, 11, length, soon());
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  assert_true(message.tag == length);
  assert_true(message.length == length);
  assert_null(message.bytes);
  options.only = path;
  assert_works(haul_message_read(&message, to, 3, &options, &report));
  haul_message_release(&message);
  end(&offering, 0, NULL);
  assert_true(region_sum(t.receiver, to, 3, length) == region_sum(t.sender, from, 11, length));
  assert_true(region_sum(t.receiver, to, 0, 3) == before);
  assert_int_equal(report.status, 0);
  assert_true(report.bytes == length);
  assert_string_equal(report.paths[0].name, path);
  if (strcmp(path, "rdma") == 0 && is_direct(from_place) && is_direct(to_place)) {
    assert_true(report.paths[0].zero_copy);
    assert_int_equal(report.paths[0].copies_cpu + report.paths[0].copies_kernel, 0);
    assert_int_equal(report.paths[0].copies_dma, 1); /* the NIC's */
  }
  check_nothing_lent();
  haul_region_release(from);
  haul_region_release(to);
}

static bool is_local(const char *address) {
  return strncmp(address, "unix", 4) == 0;
}

static void bytes_move_from_each_place_to_each(void **state) {
  static const uint64_t lengths[] = {1, 4097, LENGTH - 11};
  for (unsigned pair = 0; pair < place_count * place_count; pair++)
    for (size_t p = 0; p < COUNT(paths) && paths[p]; p++)
      for (size_t i = 0; i < COUNT(lengths); i++)
        if (strcmp(paths[p], "rdma") || !is_local(*state))
          move(places[pair / place_count], places[pair % place_count], paths[p], lengths[i]);
}

static void impossible_calls_are_refused(void **state) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_message message;
  struct offering offering;
  (void)state;
  assert_fails(HAUL_EINVAL, haul_message_offer(NULL, 0, t.from, 0, 1, soon()));
  assert_fails(HAUL_EINVAL, haul_message_offer(t.peer, 0, NULL, 0, 1, soon()));
  assert_fails(HAUL_EINVAL, haul_message_offer(t.peer, 0, t.from, 0, 0, soon()));
  assert_fails(HAUL_EINVAL, haul_message_offer(t.peer, 0, t.to, 0, 1, soon())); /* other node */
  assert_fails(HAUL_ERANGE, haul_message_offer(t.peer, 0, t.from, LENGTH, 1, soon()));
  assert_fails(HAUL_ERANGE, haul_message_offer(t.peer, 0, t.from, 1, UINT64_MAX, soon()));
  assert_fails(HAUL_EINVAL, haul_message_read(NULL, t.to, 0, NULL, NULL));
  assert_works(haul_message_send(t.peer, 1, "plain", 5, soon()));
  message = receive(t.receiver, HAUL_MESSAGE);
  assert_fails(HAUL_EINVAL, haul_message_read(&message, t.to, 0, NULL, NULL));
  haul_message_release(&message);
  /* Those leave the offer as it is. */
  begin(&offering, t.from, 2, 0, MIB, soon());
  message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  assert_fails(HAUL_EINVAL, haul_message_read(&message, NULL, 0, NULL, NULL));
  report.size = 0;
  assert_fails(HAUL_EINVAL, haul_message_read(&message, t.to, 0, NULL, &report));
  assert_works(haul_message_read(&message, t.to, 0, NULL, NULL));
  assert_fails(HAUL_EINVAL, haul_message_read(&message, t.to, 0, NULL, NULL)); /* twice */
  haul_message_release(&message);
  end(&offering, 0, NULL);
  options.done = (void (*)(void *, haul_transfer *))abort;
  begin(&offering, t.from, 3, 0, MIB, soon());
  message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  assert_fails(HAUL_EINVAL, haul_message_read(&message, t.to, 0, &options, NULL));
  haul_message_release(&message);
  end(&offering, HAUL_EINVAL, "the receiver did not read");
}

static void both_sides_learn_that_a_region_is_too_short(void **state) {
  struct offering offering;
  (void)state;
  for (uint64_t offset = 1; offset; offset = offset == 1 ? UINT64_MAX : 0) {
    begin(&offering, t.from, 0, 0, LENGTH, soon());
    struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
    assert_fails(HAUL_ERANGE, haul_message_read(&message, t.to, offset, NULL, NULL));
    assert_string_equal(haul_error_last()->call, "haul_message_read");
    haul_message_release(&message);
    end(&offering, HAUL_ERANGE, "the receiver did not read");
  }
  check_nothing_lent();
}

static void memory_that_is_read_only_takes_nothing(void **state) {
  struct haul_region *file;
  struct offering offering;
  int descriptor = open("/proc/self/exe", O_RDONLY);
  (void)state;
  assert_works(haul_region_wrap_file(t.receiver, descriptor, 0, 100, &file));
  close(descriptor);
  begin(&offering, t.from, 0, 0, 100, soon());
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  assert_fails(HAUL_EACCESS, haul_message_read(&message, file, 0, NULL, NULL));
  haul_message_release(&message);
  end(&offering, HAUL_EACCESS, "the receiver did not read");
  haul_region_release(file);
}

static void a_release_without_a_read_refuses(void **state) {
  struct offering offering;
  (void)state;
  begin(&offering, t.from, 0, 0, LENGTH, soon());
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  haul_message_release(&message);
  end(&offering, HAUL_ECANCELED, "the receiver did not read");
  check_nothing_lent();
}

/* The child has a copy of the message, and the parent's connection. */
static void a_release_in_a_forked_child_refuses_nothing(void **state) {
  struct offering offering;
  int status = 0;
  (void)state;
  begin(&offering, t.from, 1, 0, LENGTH, soon());
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  pid_t child = fork();
  if (child == 0) {
    haul_message_release(&message);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_works(haul_message_read(&message, t.to, 0, NULL, NULL));
  haul_message_release(&message);
  end(&offering, 0, "");
}

static void a_late_read_gets_nothing(void **state) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  (void)state;
  for (unsigned i = 0; i < 20; i++) { /* no room is lost */
    assert_fails(HAUL_ETIMEDOUT,
                 haul_message_offer(t.peer, i, t.from, 0, LENGTH, haul_deadline_in(10 * MS)));
    check_nothing_lent();
    struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
    assert_int_equal(message.tag, i);
    options.only = i % 2 ? "tcp" : NULL;
    options.deadline = soon();
    assert_fails(HAUL_ESTALE, haul_message_read(&message, t.to, 0, &options, NULL));
    haul_message_release(&message);
  }
}

static void no_name_leads_to_the_region(void **state) {
  struct haul_published entry;
  struct haul_peer *back;
  struct haul_remote *remote;
  struct offering offering;
  size_t count = 1;
  (void)state;
  begin(&offering, t.from, 0, 0, LENGTH, soon());
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  back = haul_peer_retain(message.peer);
  assert_works(haul_peer_list(back, soon(), &entry, &count));
  assert_int_equal(count, 0);
  assert_works(haul_peer_list(back, soon(), NULL, &count));
  assert_int_equal(count, 0);
  assert_works(haul_region_publish(t.from, "known", HAUL_READ));
  count = 1;
  assert_works(haul_peer_list(back, soon(), &entry, &count));
  assert_int_equal(count, 1);
  assert_string_equal(entry.name, "known");
  assert_works(haul_peer_lookup(back, "known", soon(), &remote));
  assert_works(haul_message_read(&message, t.to, 0, NULL, NULL));
  haul_message_release(&message);
  end(&offering, 0, NULL);
  /* The other name stays. */
  assert_works(haul_read(t.to, remote, &(struct haul_piece){0, 0, 8}, 1, NULL, NULL));
  haul_remote_release(remote);
  haul_peer_close(back);
}

static void offers_keep_their_place_among_messages(void **state) {
  struct offering offering;
  (void)state;
  for (uint64_t round = 0; round < 100; round++) {
    assert_works(haul_message_send(t.peer, 3 * round, "before", 6, soon()));
    begin(&offering, t.from, 3 * round + 1, round, 1 + round * 1000, soon());
    for (uint64_t i = 0; i < 2; i++) {
      struct haul_message message = receive(t.receiver, i ? HAUL_MESSAGE_OFFER : HAUL_MESSAGE);
      assert_true(message.tag == 3 * round + i);
      if (i)
        assert_works(haul_message_read(&message, t.to, 0, NULL, NULL));
      haul_message_release(&message);
    }
    end(&offering, 0, NULL);
  }
}

#define THREADS 6u
#define ROUNDS  20u

static void *offer_often(void *argument) {
  uint64_t at = *(uint64_t *)argument;
  for (uint64_t i = 0; i < ROUNDS; i++)
    if (haul_message_offer(t.peer, at, t.from, at * 65536, 65536, soon()) != 0)
      abort();
  return NULL;
}

static void *read_often(void *argument) {
  (void)argument;
  for (unsigned i = 0; i < THREADS * ROUNDS / 2; i++) {
    struct haul_message message;
    if (haul_message_receive(t.receiver, &message, soon()) != 0 ||
        haul_message_read(&message, t.to, message.tag * 65536, NULL, NULL) != 0)
      abort();
    haul_message_release(&message);
  }
  return NULL;
}

static void threads_offer_and_read_at_once(void **state) {
  pthread_t senders[THREADS], readers[2];
  uint64_t numbers[THREADS];
  (void)state;
  region_fill(t.sender, t.from, 0, LENGTH, 5);
  for (unsigned i = 0; i < THREADS; i++) {
    numbers[i] = i;
    pthread_create(&senders[i], NULL, offer_often, &numbers[i]);
  }
  for (unsigned i = 0; i < 2; i++)
    pthread_create(&readers[i], NULL, read_often, NULL);
  for (unsigned i = 0; i < 2; i++)
    pthread_join(readers[i], NULL);
  for (unsigned i = 0; i < THREADS; i++)
    pthread_join(senders[i], NULL);
  assert_true(region_sum(t.receiver, t.to, 0, THREADS * 65536) ==
              region_sum(t.sender, t.from, 0, THREADS * 65536));
  check_nothing_lent();
}

static void a_receiver_that_closes_ends_the_offer(void **state) {
  struct offering offering;
  struct haul_message message;
  (void)state;
  begin(&offering, t.from, 0, 0, LENGTH, HAUL_FOREVER);
  message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  haul_node_close(t.receiver);
  t.receiver = NULL;
  end(&offering, HAUL_EPEER, "");
  assert_int_not_equal(haul_message_read(&message, t.to, 0, NULL, NULL), 0);
  haul_message_release(&message);
}

static void a_sender_that_closes_ends_the_offer(void **state) {
  struct offering offering;
  struct haul_message message;
  (void)state;
  begin(&offering, t.from, 0, 0, LENGTH, HAUL_FOREVER);
  message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  haul_node_close(t.sender);
  t.sender = NULL;
  end(&offering, HAUL_ECLOSED, "");
  assert_int_not_equal(haul_message_read(&message, t.to, 0, NULL, NULL), 0);
  haul_message_release(&message);
}

static void a_killed_receiver_ends_the_offer(void **state) {
  struct owner owner;
  struct haul_peer *peer = t.peer;
  struct offering offering;
  char address[120];
  snprintf(address, sizeof address, "%s%s", (const char *)*state, is_local(*state) ? "-owner" : "");
  owner_start(&owner, address, NULL);
  assert_works(haul_peer_connect(t.sender, owner.address, soon(), &t.peer));
  begin(&offering, t.from, 0, 0, LENGTH, HAUL_FOREVER);
  nanosleep(&(struct timespec){0, 20 * MS}, NULL);
  owner_kill(&owner);
  end(&offering, HAUL_EPEER, "");
  check_nothing_lent();
  haul_peer_close(t.peer);
  t.peer = peer;
}

/* Offers until it is killed. */
static int send_for_ever(void) {
  char address[160] = "";
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *region;
  const struct haul_place host = {HAUL_HOST, 0};
  child_receive(3, address, sizeof address);
  if (haul_node_open(NULL, &node) || haul_peer_connect(node, address, soon(), &peer) ||
      haul_region_alloc(node, host, 64 * MIB, 0, &region))
    return 1;
  memset(haul_region_address(region), 7, 64 * MIB);
  while (haul_message_offer(peer, 0, region, 0, 64 * MIB, soon()) == 0)
    ;
  return 1;
}

static void a_killed_sender_ends_the_read(void **state) {
  struct haul_region *to = alloc(t.receiver, places[0], 64 * MIB);
  uint64_t seed = test_seed();
  char address[160];
  (void)state;
  assert_works(haul_node_address(t.receiver, 0, address, sizeof address));
  for (unsigned round = 0; round < 4; round++) {
    struct haul_message message;
    int socket, code = 0;
    pid_t child = child_start(SENDER, &socket);
    child_send(socket, address, sizeof address, -1);
    unsigned reads = 1 + (unsigned)(next_random(&seed) % 4);
    for (unsigned i = 0; i < reads || code == 0; i++) {
      if (i == reads)
        kill(child, SIGKILL);
      code = haul_message_receive(t.receiver, &message,
                                  haul_deadline_in(i < reads ? BOUND : 200 * MS));
      if (code)
        break; /* it died before it sent another */
      assert_int_equal(message.kind, HAUL_MESSAGE_OFFER);
      code = haul_message_read(&message, to, 0, NULL, NULL);
      haul_message_release(&message);
      if (i < reads)
        assert_works(code);
    }
    assert_int_equal(child_end(child, socket), 128 + SIGKILL);
  }
  haul_region_release(to);
}

/* A peer by hand that has sent a message, and so can be sent offers. */
static int raw_receiver(haul_peer **peer) {
  const uint8_t tag[8] = {0};
  struct welcome welcome;
  char address[160];
  assert_works(haul_node_address(t.receiver, 0, address, sizeof address));
  int fd = raw_peer(address, &welcome);
  assert_true(raw_control(fd, CONTROL_MESSAGE, 0, tag, sizeof tag));
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE);
  *peer = haul_peer_retain(message.peer);
  haul_message_release(&message);
  return fd;
}

static void peers_of_an_older_version_get_no_offer(void **state) {
  struct haul_peer *peer;
  (void)state;
  raw_highest = OFFER_VERSION - 1;
  int fd = raw_receiver(&peer);
  raw_highest = PROTOCOL_HIGHEST;
  assert_fails(HAUL_ENOTSUP, haul_message_offer(peer, 0, t.to, 0, 1, soon()));
  assert_works(haul_peer_status(peer));
  haul_peer_close(peer);
  close(fd);
}

static void malformed_responses_drop_the_peer(void **state) {
  static const struct {
    const char *body;
    size_t length;
  } cases[] = {{"\1\0\0", 4}, {"\0\0\0", 3}, {"\0\0\0\0", 5}, {"\0\0\0\x80", 4}};
  struct haul_peer *own = t.peer;
  uint8_t body[CONTROL_BODY_MAX];
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct offering offering;
    int fd = raw_receiver(&t.peer);
    begin(&offering, t.to, 0, 0, LENGTH, soon());
    assert_int_equal(raw_answer(fd, CONTROL_OFFER, body), 48);
    raw_control(fd, CONTROL_TAKEN, 1, cases[i].body, cases[i].length);
    end(&offering, HAUL_EPROTO, "malformed");
    haul_peer_close(t.peer);
    close(fd);
  }
  t.peer = own;
}

/* The lengths in the frame are the peer's: none reaches beyond the region that it names. */
static void malformed_offers_drop_the_peer(void **state) {
  struct body {
    uint64_t tag, handle, whole;
    uint16_t kind, device;
    uint32_t rights;
    uint64_t offset, length;
  };
  static const struct body bodies[] = {
      {0, 1, 100, HAUL_HOST, 0, 1, 0, 0},    {0, 1, 100, HAUL_HOST, 0, 1, 0, 101},
      {0, 1, 100, HAUL_HOST, 0, 1, 1, 100},  {0, 1, 0, HAUL_HOST, 0, 1, 0, 1},
      {0, 1, 100, HAUL_HOST, 0, 1, ~0ul, 2}, {0, 1, 100, HAUL_HOST, 0, 1, 2, ~0ul},
  };
  char address[160];
  struct welcome welcome;
  (void)state;
  assert_works(haul_node_address(t.receiver, 0, address, sizeof address));
  for (size_t i = 0; i < COUNT(bodies) + 2; i++) {
    int fd = raw_peer(address, &welcome);
    struct {
      struct body body;
      char more;
    } good = {{0, 1, 100, HAUL_HOST, 0, 1, 0, 100}, 0};
    if (i < COUNT(bodies))
      raw_control(fd, CONTROL_OFFER, 1, &bodies[i], sizeof bodies[i]);
    else
      raw_control(fd, CONTROL_OFFER, 1, &good, i % 2 ? sizeof good.body - 1 : sizeof good.body + 1);
    assert_true(raw_ended(fd, BOUND));
    close(fd);
  }
  /* A handle that exists nowhere, of memory of any kind, cannot be read. */
  struct body body = {5, 1, UINT64_MAX, 999, 7, 0xffffffff, UINT64_MAX - LENGTH, LENGTH};
  int fd = raw_peer(address, &welcome);
  raw_control(fd, CONTROL_OFFER, 77, &body, sizeof body);
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE_OFFER);
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.deadline = haul_deadline_in(200 * MS);
  assert_true(message.length == LENGTH);
  assert_int_not_equal(haul_message_read(&message, t.to, 0, &options, NULL), 0);
  haul_message_release(&message);
  uint8_t answer[CONTROL_BODY_MAX];
  assert_int_equal(raw_answer(fd, CONTROL_TAKEN, answer), 4);
  close(fd);
}

/* Offers count in the window, so that a peer cannot fill the memory with them. */
static void offers_beyond_the_window_drop_the_peer(void **state) {
  const uint64_t body[6] = {0, 1, 100, HAUL_HOST, 0, 100};
  struct welcome welcome;
  char address[160];
  unsigned sent = 0;
  (void)state;
  assert_works(haul_node_address(t.receiver, 0, address, sizeof address));
  int fd = raw_peer(address, &welcome);
  while (sent < 200000 && raw_control(fd, CONTROL_OFFER, ++sent, body, sizeof body))
    ;
  assert_true(raw_ended(fd, BOUND));
  assert_true(sent < 200000);
  close(fd);
}

int main(int argc, char **argv) {
  const char *named = getenv("HAUL_TEST_PLACES");
  char names[100], *rest = names;
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (argc > 1 && strcmp(argv[1], SENDER) == 0)
    return send_for_ever();
  for (int i = 1; i < argc && i < (int)COUNT(paths); i++) {
    paths[i - 1] = argv[i];
    paths[i] = NULL;
  }
  snprintf(names, sizeof names, "%s", named ? named : "host sim:0");
  for (const char *name; (name = strsep(&rest, " ")) && place_count < PLACES;)
    if (haul_place_parse(name, &places[place_count++]))
      return 1;
  addresses[1] = own_socket();
#define BETWEEN_TWO(test, i)                                                                       \
  { #test, test, set_up, tear_down, (void *)(uintptr_t)addresses[i] }
#define DRIVEN(test, i)                                                                            \
  { #test "_driven", test, set_up_driven, tear_down, (void *)(uintptr_t)addresses[i] }
#define OVER_BOTH(test) BETWEEN_TWO(test, 0), BETWEEN_TWO(test, 1)
  const struct CMUnitTest tests[] = {
      OVER_BOTH(bytes_move_from_each_place_to_each),
      DRIVEN(bytes_move_from_each_place_to_each, 0),
      DRIVEN(bytes_move_from_each_place_to_each, 1),
      OVER_BOTH(impossible_calls_are_refused),
      OVER_BOTH(both_sides_learn_that_a_region_is_too_short),
      OVER_BOTH(memory_that_is_read_only_takes_nothing),
      OVER_BOTH(a_release_without_a_read_refuses),
      OVER_BOTH(a_release_in_a_forked_child_refuses_nothing),
      OVER_BOTH(a_late_read_gets_nothing),
      OVER_BOTH(no_name_leads_to_the_region),
      OVER_BOTH(offers_keep_their_place_among_messages),
      OVER_BOTH(threads_offer_and_read_at_once),
      OVER_BOTH(a_receiver_that_closes_ends_the_offer),
      OVER_BOTH(a_sender_that_closes_ends_the_offer),
      OVER_BOTH(a_killed_receiver_ends_the_offer),
      OVER_BOTH(a_killed_sender_ends_the_read),
      BETWEEN_TWO(peers_of_an_older_version_get_no_offer, 1),
      BETWEEN_TWO(malformed_responses_drop_the_peer, 1),
      BETWEEN_TWO(malformed_offers_drop_the_peer, 1),
      BETWEEN_TWO(offers_beyond_the_window_drop_the_peer, 1),
  };
  return cmocka_run_group_tests_name("offers", tests, NULL, NULL);
}
