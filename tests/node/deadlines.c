/* SPDX-License-Identifier: MIT
 * Deadlines that have passed before the call: it fails at once, and nothing is moved or sent, over
 * every path. Calls that may find what they wait for look once. */
#include "support/check.h"

#include <pthread.h>
#include <string.h>

#include "haul/directory.h"
#include "haul/stats.h"
#include "haul/world.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

#define BOUND (20 * S)
#define MIB   ((size_t)1 << 20)

static struct {
  struct haul_node *node, *owner;
  struct haul_peer *peer;
  struct haul_region *here, *there;
  struct haul_remote *remote;
  char address[160];
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static int set_up(void **state) {
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_open(NULL, &t.node));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, t.address, sizeof t.address));
  assert_works(haul_peer_connect(t.node, t.address, soon(), &t.peer));
  t.here = region_make(t.node, KIND_HOST, MIB);
  t.there = region_make(t.owner, KIND_HOST, MIB);
  assert_works(haul_region_publish(t.there, "memory", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(t.peer, "memory", soon(), &t.remote));
  memset(haul_region_address(t.here), 1, MIB);
  memset(haul_region_address(t.there), 2, MIB);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_region_release(t.here);
  haul_region_release(t.there);
  haul_node_close(t.node);
  haul_node_close(t.owner);
  assert_int_equal(haul_mappings(), 0);
  return 0;
}

/* Long ago; just now; and before the clock's start. */
static haul_deadline passed(unsigned i) {
  return i == 0 ? 1 : i == 1 ? haul_deadline_in(0) - 1 : -5;
}

static void check_untouched(void) {
  const unsigned char *here = haul_region_address(t.here), *there = haul_region_address(t.there);
  for (size_t i = 0; i < MIB; i++)
    assert_true(here[i] == 1 && there[i] == 2);
}

static void transfers_move_nothing(void **state) {
  (void)state;
  static const char *const ways[] = {"map", "tcp", NULL};
  static const uint64_t lengths[] = {8, 100, 4096, MIB};
  for (unsigned i = 0; i < 3 * COUNT(ways) * COUNT(lengths); i++)
    for (unsigned handle = 0; handle < 2; handle++) {
      struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
      struct haul_piece piece = {0, 0, lengths[i / 9]};
      struct haul_transfer *transfer = NULL, **out = handle ? &transfer : NULL;
      options.only = ways[i / 3 % 3];
      options.deadline = passed(i % 3);
      assert_fails(HAUL_ETIMEDOUT, haul_write(t.remote, t.here, &piece, 1, &options, out));
      assert_string_equal(haul_error_last()->text, "the deadline had passed before the call");
      assert_fails(HAUL_ETIMEDOUT, haul_read(t.here, t.remote, &piece, 1, &options, out));
      assert_fails(HAUL_ETIMEDOUT, haul_fetch_add(t.here, 0, t.remote, 0, 1, &options, out));
      assert_fails(HAUL_ETIMEDOUT,
                   haul_compare_swap(t.here, 0, t.remote, 0, 0x0202020202020202, 1, &options, out));
      assert_null(transfer);
    }
  check_untouched();
}

static void copies_move_nothing(void **state) {
  (void)state;
  struct haul_region *other = region_make(t.node, KIND_HOST, MIB);
  memset(haul_region_address(other), 7, MIB);
  for (unsigned i = 0; i < 3; i++)
    assert_fails(HAUL_ETIMEDOUT, haul_region_copy(t.here, 0, other, 0, MIB, passed(i)));
  assert_fails(HAUL_ETIMEDOUT, haul_region_copy(t.here, 0, other, 0, 8, HAUL_NO_WAIT));
  check_untouched();
  haul_region_release(other);
}

static void nothing_is_asked_of_peers(void **state) {
  (void)state;
  const haul_deadline deadlines[] = {HAUL_NO_WAIT, passed(0), passed(1), passed(2)};
  for (unsigned i = 0; i < COUNT(deadlines); i++) {
    haul_deadline until = deadlines[i];
    struct haul_node_stats stats = {0};
    struct haul_trace trace = {0};
    haul_directory *walk;
    haul_world *world;
    size_t count = 0;
    assert_fails(HAUL_ETIMEDOUT, haul_peer_lookup(t.peer, "memory", until, &t.remote));
    assert_fails(HAUL_ETIMEDOUT, haul_peer_list(t.peer, until, NULL, &count));
    assert_fails(HAUL_ETIMEDOUT, haul_peer_connect(t.node, t.address, until, &t.peer));
    assert_fails(HAUL_ETIMEDOUT, haul_peer_stats_of(t.peer, until, &stats, NULL, &count));
    assert_fails(HAUL_ETIMEDOUT, haul_peer_trace_of(t.peer, until, &trace, NULL, &count));
    assert_fails(HAUL_ETIMEDOUT, haul_message_offer(t.peer, 1, t.here, 0, 8, until));
    assert_string_equal(haul_error_last()->text, "the deadline had passed before the call");
    /* Nobody listens there: a connection would be refused. */
    assert_fails(HAUL_ETIMEDOUT,
                 haul_directory_find(t.node, "etcd://127.0.0.1:1/x", until, NULL, &count));
    assert_fails(HAUL_ETIMEDOUT, haul_directory_open(t.node, "etcd://127.0.0.1:1/x", until, &walk));
    assert_fails(HAUL_ETIMEDOUT, haul_node_register(t.owner, "etcd://127.0.0.1:1/x", NULL, until));
    assert_fails(HAUL_ETIMEDOUT, haul_world_join(t.node, until, &world));
  }
}

static void *offer(void *code) {
  *(int *)code = haul_message_offer(t.peer, 1, t.here, 0, MIB, soon());
  return NULL;
}

static void an_offer_that_is_read_too_late_moves_nothing(void **state) {
  (void)state;
  for (unsigned i = 0; i < 3; i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    struct haul_message message;
    pthread_t thread;
    int code;
    pthread_create(&thread, NULL, offer, &code);
    assert_works(haul_message_receive(t.owner, &message, soon()));
    assert_int_equal(message.kind, HAUL_MESSAGE_OFFER);
    options.deadline = passed(i);
    assert_fails(HAUL_ETIMEDOUT, haul_message_read(&message, t.there, 0, &options, NULL));
    haul_message_release(&message);
    pthread_join(thread, NULL);
    assert_int_equal(code, HAUL_ETIMEDOUT);
  }
  check_untouched();
}

/* A message that has arrived is found, and one that there is room for is sent. */
static void calls_that_wait_look_once(void **state) {
  (void)state;
  for (unsigned i = 0; i < 3; i++) {
    struct haul_transfer *transfer;
    struct haul_piece piece = {0, 0, 8};
    struct haul_message message;
    assert_fails(HAUL_ETIMEDOUT, haul_message_receive(t.owner, &message, passed(i)));
    assert_works(haul_message_send(t.peer, i, "here", 4, passed(i)));
    assert_works(haul_message_receive(t.owner, &message, soon()));
    assert_int_equal(message.tag, i);
    haul_message_release(&message);
    assert_works(haul_write(t.remote, t.here, &piece, 1, NULL, &transfer));
    assert_works(haul_transfer_wait(transfer, soon()));
    assert_works(haul_transfer_wait(transfer, passed(i)));
    assert_works(haul_transfer_wait_all(&transfer, 1, passed(i), NULL));
    assert_works(haul_transfer_wait_any(&transfer, 1, passed(i), NULL));
    haul_transfer_release(transfer);
    assert_true(haul_node_progress(t.node, passed(i)) >= 0);
  }
}

/* 0 is the default of a transfer, not a deadline. */
static void zero_is_the_default_in_options(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, MIB};
  options.deadline = HAUL_NO_WAIT;
  assert_works(haul_write(t.remote, t.here, &piece, 1, &options, NULL));
}

int main(void) {
#define BETWEEN_TWO(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      BETWEEN_TWO(transfers_move_nothing),
      BETWEEN_TWO(copies_move_nothing),
      BETWEEN_TWO(nothing_is_asked_of_peers),
      BETWEEN_TWO(an_offer_that_is_read_too_late_moves_nothing),
      BETWEEN_TWO(calls_that_wait_look_once),
      BETWEEN_TWO(zero_is_the_default_in_options),
  };
  return cmocka_run_group_tests_name("deadlines", tests, NULL, NULL);
}
