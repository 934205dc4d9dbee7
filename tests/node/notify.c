/* SPDX-License-Identifier: MIT
 * Notifications: the message of a transfer arrives once the bytes are in place, and never if the
 * transfer fails. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

#define BOUND (20 * S)
#define MIB   ((size_t)1 << 20)
#define LATER 99u /* tag of a message that is sent last */

/* Two nodes of this process. */
static struct {
  struct haul_node *sender, *receiver;
  struct haul_peer *peer;
  struct haul_region *from, *to;
  struct haul_remote *remote;
  unsigned filled; /* messages that take the room at the receiver */
  unsigned descriptors;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static int set_up(void **state) {
  char address[160];
  t.descriptors = open_descriptors();
  assert_works(haul_node_open(NULL, &t.receiver));
  assert_works(haul_node_open(NULL, &t.sender));
  assert_works(haul_node_listen(t.receiver, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.receiver, 0, address, sizeof address));
  assert_works(haul_peer_connect(t.sender, address, soon(), &t.peer));
  t.from = region_make(t.sender, KIND_HOST, MIB);
  t.to = region_make(t.receiver, KIND_HOST, MIB);
  assert_works(haul_region_publish(t.to, "memory", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(t.peer, "memory", soon(), &t.remote));
  (void)state;
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_region_release(t.from);
  if (t.sender)
    haul_node_close(t.sender);
  haul_region_release(t.to);
  if (t.receiver)
    haul_node_close(t.receiver);
  assert_int_equal(open_descriptors(), t.descriptors);
  assert_int_equal(haul_mappings(), 0);
  memset(&t, 0, sizeof t);
  return 0;
}

static struct haul_transfer_options notifying(const char *only,
                                              const struct haul_notification *notify) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = only;
  options.notify = notify;
  return options;
}

/* A write of 8 bytes, at a place of its own for tags below 8, whose message, of `length` bytes, has
 * this tag. */
static struct haul_transfer *start(const char *only, uint64_t tag, size_t length,
                                   haul_deadline deadline) {
  char *bytes = calloc(1, length + 1);
  const struct haul_notification notify = {tag, bytes, length};
  struct haul_transfer_options options = notifying(only, &notify);
  struct haul_piece piece = {0, 8 * (tag % 8), 8};
  struct haul_transfer *transfer;
  options.deadline = deadline;
  assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfer));
  memset(bytes, 1, length + 1); /* the call has copied them */
  free(bytes);
  return transfer;
}

static void expect(uint64_t tag, const void *bytes, size_t length) {
  struct haul_message message;
  assert_works(haul_message_receive(t.receiver, &message, soon()));
  assert_int_equal(message.kind, HAUL_MESSAGE);
  assert_int_equal(message.tag, tag);
  assert_int_equal(message.length, length);
  if (bytes)
    assert_memory_equal(message.bytes, bytes, length);
  haul_message_release(&message);
}

/* The tag of the next message, which has only zeros. */
static uint64_t tag_of_next(size_t length) {
  static const char zeros[65536];
  struct haul_message message;
  assert_works(haul_message_receive(t.receiver, &message, soon()));
  assert_int_equal(message.length, length);
  assert_memory_equal(message.bytes, zeros, length);
  uint64_t tag = message.tag;
  haul_message_release(&message);
  return tag;
}

/* Takes the receiver's room, but for less than 64 KiB. Room that comes back for earlier messages is
 * there before the response. */
static void fill_window(void) {
  static const char bytes[65536];
  size_t count = 0;
  assert_works(haul_peer_list(t.peer, soon(), NULL, &count));
  while (haul_message_send(t.peer, LATER, bytes, sizeof bytes, HAUL_NO_WAIT) == 0)
    t.filled++;
  assert_int_equal(haul_error_last()->code, HAUL_ETIMEDOUT);
}

static void empty_window(void) {
  for (; t.filled > 0; t.filled--)
    expect(LATER, NULL, 65536);
}

/* Nothing else was sent before this message. */
static void expect_nothing_else(void) {
  assert_works(haul_message_send(t.peer, LATER + 1, NULL, 0, soon()));
  expect(LATER + 1, NULL, 0);
}

static const char *const ways[] = {"map", "tcp"};

static void every_operation_notifies(void **state) {
  (void)state;
  const struct haul_piece piece = {0, 8, MIB - 8};
  for (unsigned i = 0; i < COUNT(ways); i++)
    for (unsigned handle = 0; handle < 2; handle++) {
      const struct haul_notification notify = {7 + i, "here", 4};
      const struct haul_transfer_options options = notifying(ways[i], &notify);
      struct haul_transfer *transfers[4] = {0};
      assert_works(
          haul_write(t.remote, t.from, &piece, 1, &options, handle ? &transfers[0] : NULL));
      expect(7 + i, "here", 4);
      assert_works(haul_read(t.from, t.remote, &piece, 1, &options, handle ? &transfers[1] : NULL));
      expect(7 + i, "here", 4);
      assert_works(
          haul_fetch_add(t.from, 0, t.remote, 8, 1, &options, handle ? &transfers[2] : NULL));
      expect(7 + i, "here", 4);
      assert_works(
          haul_compare_swap(t.from, 0, t.remote, 8, 1, 2, &options, handle ? &transfers[3] : NULL));
      expect(7 + i, "here", 4);
      for (unsigned k = 0; k < 4 && handle; k++) {
        assert_works(haul_transfer_wait(transfers[k], soon()));
        haul_transfer_release(transfers[k]);
      }
    }
  expect_nothing_else();
}

/* A tag alone; the largest message; and what cannot be sent, before anything moves. */
static void messages_of_every_length(void **state) {
  (void)state;
  char *large = calloc(1, HAUL_MESSAGE_MAX + 1);
  const struct haul_notification none = {1, NULL, 0}, largest = {2, large, HAUL_MESSAGE_MAX};
  const struct haul_notification longer = {3, large, HAUL_MESSAGE_MAX + 1}, null = {4, NULL, 1};
  struct haul_piece piece = {0, 0, 8};
  struct haul_transfer_options options = notifying(NULL, &none);
  assert_works(haul_write(t.remote, t.from, &piece, 1, &options, NULL));
  expect(1, NULL, 0);
  options.notify = &largest;
  assert_works(haul_write(t.remote, t.from, &piece, 1, &options, NULL));
  expect(2, large, HAUL_MESSAGE_MAX);
  memset(haul_region_address(t.to), 5, 8);
  options.notify = &longer;
  assert_fails(HAUL_ELIMIT, haul_write(t.remote, t.from, &piece, 1, &options, NULL));
  options.notify = &null;
  assert_fails(HAUL_EINVAL, haul_write(t.remote, t.from, &piece, 1, &options, NULL));
  assert_memory_equal(haul_region_address(t.to), "\5\5\5\5\5\5\5\5", 8);
  /* Options of a program that was built before there were notifications. */
  options.size = offsetof(struct haul_transfer_options, notify);
  assert_works(haul_write(t.remote, t.from, &piece, 1, &options, NULL));
  expect_nothing_else();
  free(large);
}

static void a_transfer_is_in_flight_until_there_is_room(void **state) {
  (void)state;
  for (unsigned i = 0; i < COUNT(ways); i++) {
    fill_window();
    struct haul_transfer *transfers[3];
    for (unsigned k = 0; k < 3; k++)
      transfers[k] = start(ways[i], k, 65536, 0);
    assert_fails(HAUL_ETIMEDOUT,
                 haul_transfer_wait_any(transfers, 3, haul_deadline_in(20 * MS), NULL));
    empty_window();
    unsigned arrived = 0;
    for (unsigned k = 0; k < 3; k++)
      arrived |= 1u << tag_of_next(65536);
    assert_int_equal(arrived, 7); /* in any order */
    assert_works(haul_transfer_wait_all(transfers, 3, soon(), NULL));
    for (unsigned k = 0; k < 3; k++)
      haul_transfer_release(transfers[k]);
  }
  expect_nothing_else();
}

/* The room is not used up either: the largest message fits afterwards. */
static void a_transfer_that_ends_early_sends_no_message(void **state) {
  (void)state;
  char *large = calloc(1, HAUL_MESSAGE_MAX);
  for (unsigned i = 0; i < COUNT(ways); i++) {
    fill_window();
    struct haul_transfer *canceled = start(ways[i], 1, 65536, 0);
    struct haul_transfer *late = start(ways[i], 2, 65536, haul_deadline_in(1000 * MS));
    assert_int_equal(haul_transfer_test(canceled), 1);
    assert_works(haul_transfer_cancel(canceled));
    assert_fails(HAUL_ECANCELED, haul_transfer_wait(canceled, soon()));
    assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(late, soon()));
    assert_fails(HAUL_ETIMEDOUT, haul_transfer_test(late));
    haul_transfer_release(canceled);
    haul_transfer_release(late);
    empty_window();
    assert_works(haul_message_send(t.peer, 3, large, HAUL_MESSAGE_MAX, soon()));
    expect(3, large, HAUL_MESSAGE_MAX);
  }
  /* A write that fails at once, and one that the owner refuses. */
  const struct haul_notification notify = {4, NULL, 0};
  const struct haul_transfer_options options = notifying("tcp", &notify);
  struct haul_piece piece = {0, MIB, 8};
  assert_fails(HAUL_ERANGE, haul_write(t.remote, t.from, &piece, 1, &options, NULL));
  assert_works(haul_region_unpublish(t.to, "memory"));
  piece.remote = 0;
  assert_fails(HAUL_ESTALE, haul_write(t.remote, t.from, &piece, 1, &options, NULL));
  expect_nothing_else();
  free(large);
}

static void a_release_of_the_region_ends_the_wait_for_room(void **state) {
  (void)state;
  fill_window();
  struct haul_transfer *transfer = start(NULL, 1, 65536, 0);
  haul_region_release(t.from);
  t.from = NULL;
  assert_fails(HAUL_ECANCELED, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  empty_window();
  expect_nothing_else();
}

static void the_ends_of_peer_and_node_end_the_wait_for_room(void **state) {
  (void)state;
  fill_window();
  struct haul_transfer *transfer = start("tcp", 1, 65536, 0);
  haul_node_close(t.receiver);
  t.receiver = NULL;
  assert_fails(HAUL_EPEER, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

static void a_close_of_the_node_ends_the_wait_for_room(void **state) {
  (void)state;
  fill_window();
  struct haul_transfer *transfer = start("map", 1, 65536, 0);
  haul_node_close(t.sender);
  t.sender = NULL;
  assert_fails(HAUL_ECLOSED, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

static void a_later_message_follows_the_notification(void **state) {
  (void)state;
  for (unsigned round = 0; round < 200; round++) {
    struct haul_transfer *transfer = start(ways[round % 2], 2 * round, round % 7, 0);
    assert_works(haul_message_send(t.peer, 2 * round + 1, NULL, 0, soon()));
    expect(2 * round, NULL, round % 7);
    expect(2 * round + 1, NULL, 0);
    assert_works(haul_transfer_wait(transfer, soon()));
    haul_transfer_release(transfer);
  }
}

/* Sets the flag, after the message was sent. */
static void on_done(void *user, haul_transfer *transfer) {
  assert_works(haul_transfer_test(transfer));
  *(_Atomic int *)user = 1;
}

static void done_is_called_after_the_notification(void **state) {
  (void)state;
  const struct haul_notification notify = {1, "x", 1};
  struct haul_transfer_options options = notifying(NULL, &notify);
  struct haul_transfer *transfer;
  struct haul_piece piece = {0, 0, MIB};
  _Atomic int called = 0;
  options.done = on_done;
  options.user = &called;
  assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, soon()));
  expect(1, "x", 1);
  haul_transfer_release(transfer);
  haul_node_close(t.sender); /* calls what is due */
  t.sender = NULL;
  assert_int_equal(called, 1);
}

/* The other process sums the bytes the moment that the message arrives, while other writes to other
 * bytes are under way. */
static void write_and_notify(const char *only, enum memory_kind kind, unsigned rounds) {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  uint64_t seed = test_seed();
  owner_start(&owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&owner, 0, kind, 8 * MIB, "memory", HAUL_WRITE | HAUL_READ), 0);
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_peer_connect(node, owner.address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "memory", soon(), &remote));
  struct haul_region *region = region_make(node, KIND_HOST, 8 * MIB);
  for (unsigned round = 0; round < rounds; round++) {
    size_t size = 4 + next_random(&seed) % (round % 16 ? 20000 : 4 * MIB - 4);
    const struct haul_notification notify = {round, &size, sizeof size};
    const struct haul_transfer_options options = notifying(only, &notify);
    const struct haul_transfer_options other = notifying(only, NULL);
    const struct haul_piece halves[] = {{0, 0, size / 2}, {size / 2, size / 2, size - size / 2}};
    const struct haul_piece elsewhere = {4 * MIB, 4 * MIB, 1 + next_random(&seed) % MIB};
    struct haul_transfer *transfers[3];
    uint64_t tag, length, sum;
    region_fill(node, region, 0, size, round);
    assert_works(haul_write(remote, region, &elsewhere, 1, &other, &transfers[0]));
    assert_works(haul_write(remote, region, halves, 2, &options, &transfers[1]));
    assert_works(haul_write(remote, region, &elsewhere, 1, &other, &transfers[2]));
    assert_int_equal(owner_receive(&owner, 0, size, &tag, &length, &sum), 0);
    assert_int_equal(tag, round);
    assert_int_equal(length, sizeof size);
    assert_true(sum == region_sum(node, region, 0, size));
    assert_works(haul_transfer_wait_all(transfers, 3, soon(), NULL));
    for (unsigned i = 0; i < 3; i++)
      haul_transfer_release(transfers[i]);
  }
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  assert_int_equal(owner_end(&owner), 0);
}

static void the_message_arrives_after_the_bytes(void **state) {
  (void)state;
  unsigned rounds = SANITIZED ? 60 : 600;
  write_and_notify("map", KIND_HOST, rounds);
  write_and_notify("tcp", KIND_HOST, rounds);
  write_and_notify("map", KIND_WRAPPED, rounds / 4);
  write_and_notify("map", KIND_SIM, rounds / 4);
  write_and_notify("tcp", KIND_SIM, rounds / 4);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define BETWEEN_TWO(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      BETWEEN_TWO(every_operation_notifies),
      BETWEEN_TWO(messages_of_every_length),
      BETWEEN_TWO(a_transfer_is_in_flight_until_there_is_room),
      BETWEEN_TWO(a_transfer_that_ends_early_sends_no_message),
      BETWEEN_TWO(a_release_of_the_region_ends_the_wait_for_room),
      BETWEEN_TWO(the_ends_of_peer_and_node_end_the_wait_for_room),
      BETWEEN_TWO(a_close_of_the_node_ends_the_wait_for_room),
      BETWEEN_TWO(a_later_message_follows_the_notification),
      BETWEEN_TWO(done_is_called_after_the_notification),
      cmocka_unit_test(the_message_arrives_after_the_bytes),
  };
  return cmocka_run_group_tests_name("notify", tests, NULL, NULL);
}
