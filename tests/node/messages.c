/* SPDX-License-Identifier: MIT
 * Messages: what is refused, windows, order among themselves and after writes, and the news that a
 * peer has come or gone. */
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

#define BOUND (20 * S)
#define MIB   ((size_t)1 << 20)

static const char *addresses[] = {"tcp://127.0.0.1:0", NULL}; /* main: and its own socket */

/* Two nodes of this process. */
static struct {
  struct haul_node *sender, *receiver;
  struct haul_peer *peer;
  unsigned descriptors;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char address[160];
  t.descriptors = open_descriptors();
  config.name = "receiver";
  config.peer_events = 1;
  assert_works(haul_node_open(&config, &t.receiver));
  config.name = "sender";
  config.peer_events = 0;
  assert_works(haul_node_open(&config, &t.sender));
  assert_works(haul_node_listen(t.receiver, *state));
  assert_works(haul_node_address(t.receiver, 0, address, sizeof address));
  assert_works(haul_peer_connect(t.sender, address, soon(), &t.peer));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_peer_close(t.peer);
  if (t.sender)
    haul_node_close(t.sender);
  if (t.receiver)
    haul_node_close(t.receiver);
  assert_int_equal(open_descriptors(), t.descriptors);
  assert_int_equal(haul_mappings(), 0);
  memset(&t, 0, sizeof t);
  return 0;
}

static struct haul_message receive(struct haul_node *node, int kind) {
  struct haul_message message;
  assert_works(haul_message_receive(node, &message, soon()));
  assert_int_equal(message.kind, kind);
  return message;
}

static void expect_event(struct haul_node *node, int kind, const char *name) {
  struct haul_message message = receive(node, kind);
  assert_string_equal(haul_peer_name(message.peer), name);
  assert_int_equal(message.length, 0);
  haul_message_release(&message);
}

static void impossible_messages_are_refused(void **state) {
  (void)state;
  char *large = calloc(1, HAUL_MESSAGE_MAX + 1);
  assert_fails(HAUL_ELIMIT, haul_message_send(t.peer, 0, large, HAUL_MESSAGE_MAX + 1, soon()));
  assert_fails(HAUL_EINVAL, haul_message_send(NULL, 0, large, 1, soon()));
  assert_fails(HAUL_EINVAL, haul_message_send(t.peer, 0, NULL, 1, soon()));
  assert_fails(HAUL_EINVAL, haul_message_receive(t.receiver, NULL, HAUL_NO_WAIT));
  free(large);
}

static void receiving_ends_at_its_deadline(void **state) {
  (void)state;
  struct haul_message message;
  expect_event(t.receiver, HAUL_PEER_JOINED, "sender");
  assert_fails(HAUL_ETIMEDOUT, haul_message_receive(t.receiver, &message, HAUL_NO_WAIT));
  assert_fails(HAUL_ETIMEDOUT,
               haul_message_receive(t.receiver, &message, haul_deadline_in(10 * MS)));
  assert_fails(HAUL_ETIMEDOUT, haul_message_receive(t.sender, &message, HAUL_NO_WAIT));
}

static void a_full_window_holds_the_sender_back(void **state) {
  (void)state;
  char *bytes = calloc(1, HAUL_MESSAGE_MAX);
  unsigned sent = 0;
  int code;
  expect_event(t.receiver, HAUL_PEER_JOINED, "sender");
  while ((code = haul_message_send(t.peer, sent, bytes, 65536, haul_deadline_in(50 * MS))) == 0)
    assert_true(++sent < 100);
  assert_fails(HAUL_ETIMEDOUT, code);
  assert_true(sent >= HAUL_MESSAGE_MAX / 65536 - 1);
  for (unsigned i = 0; i < sent; i++) { /* nothing of the refused one was sent */
    struct haul_message message = receive(t.receiver, HAUL_MESSAGE);
    assert_int_equal(message.tag, i);
    haul_message_release(&message);
  }
  /* Room comes back, also for the largest after small ones, and however often. */
  for (unsigned i = 0; i < 50; i++) {
    size_t length = i % 3 ? HAUL_MESSAGE_MAX : i;
    assert_works(haul_message_send(t.peer, i, bytes, length, soon()));
    struct haul_message message = receive(t.receiver, HAUL_MESSAGE);
    assert_int_equal(message.tag, i);
    assert_int_equal(message.length, length);
    haul_message_release(&message);
  }
  free(bytes);
}

static void *send_all_sizes(void *argument) {
  uint64_t *seed = argument;
  char *bytes = malloc(HAUL_MESSAGE_MAX);
  for (uint64_t tag = 0; tag < 400; tag++) {
    size_t length = tag % 50 == 49 ? HAUL_MESSAGE_MAX : next_random(seed) % (tag % 7 ? 300 : 70000);
    pattern_fill(bytes, length, tag);
    if (haul_message_send(t.peer, tag | tag << 40, bytes, length, soon()) != 0)
      abort();
  }
  free(bytes);
  return NULL;
}

static void messages_arrive_whole_and_in_order(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  pthread_t thread;
  expect_event(t.receiver, HAUL_PEER_JOINED, "sender");
  pthread_create(&thread, NULL, send_all_sizes, &seed);
  for (uint64_t tag = 0; tag < 400; tag++) {
    struct haul_message message = receive(t.receiver, HAUL_MESSAGE);
    assert_true(message.tag == (tag | tag << 40));
    assert_string_equal(haul_peer_name(message.peer), "sender");
    pattern_check(message.bytes, message.length, tag);
    haul_message_release(&message);
  }
  pthread_join(thread, NULL);
}

static void an_accepted_peer_can_be_written_to(void **state) {
  (void)state;
  expect_event(t.receiver, HAUL_PEER_JOINED, "sender");
  assert_works(haul_message_send(t.peer, 1, "ask", 3, soon()));
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE);
  struct haul_peer *back = haul_peer_retain(message.peer);
  haul_message_release(&message);
  haul_message_release(&message);
  assert_works(haul_message_send(back, 2, "answer", 6, soon()));
  message = receive(t.sender, HAUL_MESSAGE);
  assert_int_equal(message.tag, 2);
  assert_memory_equal(message.bytes, "answer", 6);
  haul_message_release(&message);
  /* And used in both directions: the listener's side looks up, writes and reads too. */
  struct haul_region *region = region_make(t.sender, KIND_HOST, MIB);
  struct haul_region *mine = region_make(t.receiver, KIND_HOST, MIB);
  struct haul_remote *remote;
  struct haul_piece piece = {0, 0, MIB};
  static const char *const ways[] = {"map", "tcp"};
  assert_works(haul_region_publish(region, "senders", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(back, "senders", soon(), &remote));
  for (unsigned i = 0; i < 2; i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    options.only = ways[i];
    region_fill(t.receiver, mine, 0, MIB, i);
    assert_works(haul_write(remote, mine, &piece, 1, &options, NULL));
    pattern_check(haul_region_address(region), MIB, i);
  }
  haul_remote_release(remote);
  haul_region_release(region);
  haul_region_release(mine);
  haul_peer_close(back);
}

struct ordered {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *region;
  struct haul_remote *remote;
};

/* The other process sums the bytes the moment that the message arrives. */
static void write_then_tell(const char *only, enum memory_kind kind, unsigned rounds) {
  struct ordered o;
  uint64_t seed = test_seed();
  owner_start(&o.owner, addresses[0], NULL);
  assert_int_equal(owner_publish(&o.owner, 0, kind, 4 * MIB, "memory", HAUL_WRITE | HAUL_READ), 0);
  assert_works(haul_node_open(NULL, &o.node));
  assert_works(haul_peer_connect(o.node, o.owner.address, soon(), &o.peer));
  assert_works(haul_peer_lookup(o.peer, "memory", soon(), &o.remote));
  o.region = region_make(o.node, KIND_HOST, 4 * MIB);
  for (unsigned round = 0; round < rounds; round++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    struct haul_transfer *transfers[4];
    size_t size = 4 + next_random(&seed) % (round % 16 ? 20000 : 4 * MIB - 4);
    uint64_t tag, length, sum;
    options.only = only;
    region_fill(o.node, o.region, 0, size, round);
    for (unsigned i = 0; i < 4; i++) {
      uint64_t from = size / 4 * i, to = i == 3 ? size : size / 4 * (i + 1);
      struct haul_piece piece = {from, from, to - from};
      assert_works(haul_write(o.remote, o.region, &piece, 1, &options, &transfers[i]));
    }
    assert_works(haul_message_send(o.peer, round, &size, sizeof size, soon()));
    assert_int_equal(owner_receive(&o.owner, 0, size, &tag, &length, &sum), 0);
    assert_int_equal(tag, round);
    assert_true(sum == region_sum(o.node, o.region, 0, size));
    for (unsigned i = 0; i < 4; i++) {
      assert_works(haul_transfer_wait(transfers[i], soon()));
      haul_transfer_release(transfers[i]);
    }
  }
  haul_region_release(o.region);
  haul_remote_release(o.remote);
  haul_peer_close(o.peer);
  haul_node_close(o.node);
  assert_int_equal(owner_end(&o.owner), 0);
}

static void a_message_arrives_after_the_writes_before_it(void **state) {
  (void)state;
  unsigned rounds = SANITIZED ? 100 : 1000;
  write_then_tell("map", KIND_HOST, rounds);
  write_then_tell("tcp", KIND_HOST, rounds);
  write_then_tell("map", KIND_WRAPPED, rounds / 4);
  write_then_tell("map", KIND_SIM, rounds / 4);
  write_then_tell("tcp", KIND_SIM, rounds / 4);
}

static void a_message_is_not_lost_when_its_sender_closes(void **state) {
  (void)state;
  char *bytes = malloc(HAUL_MESSAGE_MAX);
  pattern_fill(bytes, HAUL_MESSAGE_MAX, 3);
  expect_event(t.receiver, HAUL_PEER_JOINED, "sender");
  assert_works(haul_message_send(t.peer, 9, bytes, HAUL_MESSAGE_MAX, soon()));
  haul_peer_close(t.peer);
  t.peer = NULL;
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE);
  assert_int_equal(message.length, HAUL_MESSAGE_MAX);
  pattern_check(message.bytes, message.length, 3);
  haul_message_release(&message);
  expect_event(t.receiver, HAUL_PEER_LEFT, "sender");
  free(bytes);
}

static void peers_come_and_go_in_order(void **state) {
  (void)state;
  expect_event(t.receiver, HAUL_PEER_JOINED, "sender");
  assert_works(haul_message_send(t.peer, 5, "last", 4, soon()));
  haul_peer_close(t.peer);
  t.peer = NULL;
  struct haul_message message = receive(t.receiver, HAUL_MESSAGE);
  haul_message_release(&message);
  message = receive(t.receiver, HAUL_PEER_LEFT);
  assert_fails(HAUL_EPEER, haul_peer_status(message.peer));
  assert_fails(HAUL_EPEER, haul_message_send(message.peer, 0, NULL, 0, soon()));
  haul_message_release(&message);
}

static void a_reference_keeps_the_connection(void **state) {
  (void)state;
  struct haul_peer *second = haul_peer_retain(t.peer);
  expect_event(t.receiver, HAUL_PEER_JOINED, "sender");
  haul_peer_close(t.peer);
  t.peer = second;
  nanosleep(&(struct timespec){0, 20 * MS}, NULL);
  assert_works(haul_peer_status(t.peer));
  assert_works(haul_message_send(t.peer, 0, NULL, 0, soon()));
}

/* Waits until the peer is gone; returns how long that took. */
static int64_t wait_gone(struct haul_peer *peer) {
  int64_t from = haul_deadline_in(0);
  while (haul_peer_status(peer) == 0) {
    assert_true(haul_deadline_in(0) - from < BOUND);
    nanosleep(&(struct timespec){0, MS}, NULL);
  }
  assert_fails(HAUL_EPEER, haul_peer_status(peer));
  return haul_deadline_in(0) - from;
}

static void a_killed_peer_is_detected_before_the_liveness_timeout(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(addresses); i++) {
    struct owner owner;
    struct haul_node *node;
    struct haul_peer *peer;
    struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
    config.liveness_ns = 60 * S;
    owner_start(&owner, addresses[i], &config);
    assert_works(haul_node_open(&config, &node));
    assert_works(haul_peer_connect(node, owner.address, soon(), &peer));
    owner_kill(&owner);
    assert_true(wait_gone(peer) < 30 * S);
    haul_peer_close(peer);
    haul_node_close(node);
  }
}

static void a_stopped_peer_is_dropped_after_the_liveness_timeout(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(addresses); i++) {
    struct owner owner;
    struct haul_node *node;
    struct haul_peer *peer;
    struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
    owner_start(&owner, addresses[i], NULL); /* its own bound is 5 s */
    config.liveness_ns = 300 * MS;
    assert_works(haul_node_open(&config, &node));
    assert_works(haul_peer_connect(node, owner.address, soon(), &peer));
    nanosleep(&(struct timespec){1, 200 * MS}, NULL); /* silence is no death */
    assert_works(haul_peer_status(peer));
    owner_stop(&owner);
    int64_t took = wait_gone(peer);
    assert_true(took > 100 * MS);
    owner_go_on(&owner);
    haul_peer_close(peer);
    haul_node_close(node);
    assert_int_equal(owner_end(&owner), 0);
  }
}

/* What peers leave behind is bounded too: they count until their messages are taken out. */
static void peers_that_leave_messages_unread_count_as_peers(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *small;
  struct haul_peer *peer;
  struct haul_message message;
  char address[160];
  char own[100];
  int code = 0;
  snprintf(own, sizeof own, "%s%s", (const char *)*state,
           strncmp(*state, "unix", 4) == 0 ? "-small" : "");
  config.max_peers = 4;
  assert_works(haul_node_open(&config, &small));
  assert_works(haul_node_listen(small, own));
  assert_works(haul_node_address(small, 0, address, sizeof address));
  for (unsigned i = 0; i < 20 && code == 0; i++) {
    code = haul_peer_connect(t.sender, address, soon(), &peer);
    if (code)
      break;
    assert_works(haul_message_send(peer, i, "left", 4, soon()));
    haul_peer_close(peer);
    nanosleep(&(struct timespec){0, 50 * MS}, NULL);
  }
  assert_fails(HAUL_ELIMIT, code);
  for (unsigned i = 0; i < 4; i++) {
    assert_works(haul_message_receive(small, &message, soon()));
    assert_int_equal(message.tag, i);
    haul_message_release(&message);
  }
  assert_works(haul_peer_connect(t.sender, address, soon(), &peer));
  haul_peer_close(peer);
  haul_node_close(small);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  addresses[1] = own_socket();
#define BETWEEN_TWO(test, i)                                                                       \
  { #test, test, set_up, tear_down, (void *)(uintptr_t)addresses[i] }
#define OVER_BOTH(test) BETWEEN_TWO(test, 0), BETWEEN_TWO(test, 1)
  const struct CMUnitTest tests[] = {
      OVER_BOTH(impossible_messages_are_refused),
      OVER_BOTH(receiving_ends_at_its_deadline),
      OVER_BOTH(a_full_window_holds_the_sender_back),
      OVER_BOTH(messages_arrive_whole_and_in_order),
      OVER_BOTH(an_accepted_peer_can_be_written_to),
      OVER_BOTH(a_message_is_not_lost_when_its_sender_closes),
      OVER_BOTH(peers_come_and_go_in_order),
      OVER_BOTH(a_reference_keeps_the_connection),
      OVER_BOTH(peers_that_leave_messages_unread_count_as_peers),
      cmocka_unit_test(a_message_arrives_after_the_writes_before_it),
      cmocka_unit_test(a_killed_peer_is_detected_before_the_liveness_timeout),
      cmocka_unit_test(a_stopped_peer_is_dropped_after_the_liveness_timeout),
  };
  return cmocka_run_group_tests_name("messages", tests, NULL, NULL);
}
