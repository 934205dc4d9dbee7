/* SPDX-License-Identifier: MIT
 * Data from a canceled write never overwrites a later write, over any path: the owner is stopped,
 * so that the first write stays in the sockets, and continues once the second one was posted. */
#include "support/check.h"

#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "support/names.h"
#include "support/owner.h"
#include "support/rails.h"

#define LENGTH ((size_t)256 << 10)

static struct {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *first, *second;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(60 * S);
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.liveness_ns = 60 * S;
  config.transfer_ns = 100 * MS; /* of writes without options only */
  owner_start(&t.owner, own_socket(), &config);
  assert_int_equal(owner_publish(&t.owner, 0, KIND_HOST, LENGTH, "memory", HAUL_READ | HAUL_WRITE),
                   0);
  assert_int_equal(owner_fill(&t.owner, 0, 0, LENGTH, 0), 0);
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, soon(), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", soon(), &t.remote));
  t.first = region_make(t.node, KIND_WRAPPED, LENGTH);
  open_rails(t.remote, t.first);
  t.second = region_make(t.node, KIND_HOST, LENGTH);
  region_fill(t.node, t.first, 0, LENGTH, 1);
  region_fill(t.node, t.second, 0, LENGTH, 2);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  region_drop(t.first, KIND_WRAPPED);
  region_drop(t.second, KIND_HOST);
  haul_node_close(t.node);
  owner_end(&t.owner);
  return 0;
}

static struct haul_transfer_options over(const char *path) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = path;
  options.deadline = soon();
  return options;
}

static uint64_t counter(const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(t.node, name, &value));
  return value;
}

/* Cancels a write over tcp that is in the sockets as a whole, and that the owner does not read. */
static void cancel_unread_write(void) {
  struct haul_transfer_options options = over("tcp");
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_transfer *transfer;
  owner_stop(&t.owner);
  assert_works(haul_write(t.remote, t.first, &piece, 1, &options, &transfer));
  while (report.queued_ns == 0) { /* it is pending */
    haul_node_progress(t.node, haul_deadline_in(MS));
    assert_works(haul_transfer_report(transfer, &report));
  }
  haul_node_progress(t.node, haul_deadline_in(50 * MS)); /* it is handed to the kernel */
  assert_works(haul_transfer_cancel(transfer));
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_ECANCELED);
  haul_transfer_release(transfer);
}

static uint64_t sum_of_second(void) {
  return region_sum(t.node, t.second, 0, LENGTH);
}

static void a_later_write_over_another_path_is_not_overwritten(void **state) {
  (void)state;
  struct haul_transfer_options options = over("map");
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  cancel_unread_write();
  assert_works(haul_write(t.remote, t.second, &piece, 1, &options, &transfer));
  assert_int_equal(haul_transfer_test(transfer), 1);
  assert_int_equal(counter("node.slices_held"), 1);
  owner_go_on(&t.owner);
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == sum_of_second());
  assert_int_equal(counter("node.slices_retried"), 0);
}

static void later_small_writes_and_atomics_are_not_overwritten(void **state) {
  (void)state;
  struct haul_transfer_options options = over("map");
  struct haul_transfer *transfers[2];
  cancel_unread_write();
  for (uint64_t i = 0; i < 2; i++)
    assert_works(haul_write(t.remote, t.second, &(struct haul_piece){i * 8 + 8, i * 8 + 8, 8}, 1,
                            &options, &transfers[i]));
  struct haul_transfer *atomic;
  struct haul_region *result = region_make(t.node, KIND_HOST, 8);
  assert_works(haul_fetch_add(result, 0, t.remote, 0, 1, &options, &atomic));
  assert_int_equal(haul_transfer_test(transfers[0]), 1);
  assert_int_equal(haul_transfer_test(atomic), 1);
  owner_go_on(&t.owner);
  assert_works(haul_transfer_wait(transfers[0], soon()));
  assert_works(haul_transfer_wait(transfers[1], soon()));
  assert_works(haul_transfer_wait(atomic, soon()));
  haul_transfer_release(transfers[0]);
  haul_transfer_release(transfers[1]);
  haul_transfer_release(atomic);
  region_drop(result, KIND_HOST);
  assert_true(owner_sum(&t.owner, 0, 8, 16) == region_sum(t.node, t.second, 8, 16));
}

/* The receiver of the message may reuse the memory. */
static void a_message_waits_for_the_canceled_write(void **state) {
  (void)state;
  uint64_t tag, length, sum;
  cancel_unread_write();
  assert_fails(HAUL_ETIMEDOUT, haul_message_send(t.peer, 1, NULL, 0, haul_deadline_in(50 * MS)));
  owner_go_on(&t.owner);
  assert_works(haul_message_send(t.peer, 2, NULL, 0, soon()));
  assert_int_equal(owner_receive(&t.owner, 0, LENGTH, &tag, &length, &sum), 0);
  assert_int_equal(tag, 2);
  assert_true(sum == owner_sum(&t.owner, 0, 0, LENGTH));
}

/* Without options and handle the write completes within the call. */
static void a_write_within_the_call_waits_too(void **state) {
  (void)state;
  struct haul_piece piece = {8, 8, 8};
  cancel_unread_write();
  assert_fails(HAUL_ETIMEDOUT, haul_write(t.remote, t.second, &piece, 1, NULL, NULL));
  owner_go_on(&t.owner);
  struct haul_transfer_options options = over("map");
  assert_works(haul_write(t.remote, t.second, &piece, 1, &options, NULL));
  assert_true(owner_sum(&t.owner, 0, 8, 8) == region_sum(t.node, t.second, 8, 8));
}

static void reads_do_not_wait(void **state) {
  (void)state;
  struct haul_transfer_options options = over("map");
  struct haul_piece piece = {0, 0, LENGTH};
  cancel_unread_write();
  assert_works(haul_read(t.second, t.remote, &piece, 1, &options, NULL));
  owner_go_on(&t.owner);
}

static void a_waiting_write_times_out_or_is_canceled(void **state) {
  (void)state;
  struct haul_transfer_options options = over("map");
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  cancel_unread_write();
  options.deadline = haul_deadline_in(20 * MS);
  assert_fails(HAUL_ETIMEDOUT, haul_write(t.remote, t.second, &piece, 1, &options, NULL));
  options.deadline = soon();
  assert_works(haul_write(t.remote, t.second, &piece, 1, &options, &transfer));
  assert_works(haul_transfer_cancel(transfer));
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_ECANCELED);
  haul_transfer_release(transfer);
  owner_go_on(&t.owner);
}

static void a_waiting_write_ends_with_its_peer(void **state) {
  (void)state;
  struct haul_transfer_options options = over("map");
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  cancel_unread_write();
  assert_works(haul_write(t.remote, t.second, &piece, 1, &options, &transfer));
  assert_int_equal(haul_transfer_test(transfer), 1);
  haul_peer_close(t.peer);
  t.peer = NULL;
  owner_go_on(&t.owner);
  haul_transfer_wait(transfer, soon());
  assert_int_not_equal(haul_transfer_test(transfer), 1);
  haul_transfer_release(transfer);
}

/* Ends, for this side, the connection whose bytes the owner has not read. */
static void end_unread_connection(void) {
  bool found = false;
  for (int fd = 3; fd < 256; fd++) {
    int unread = 0;
    if (ioctl(fd, SIOCOUTQ, &unread) != 0 || unread < (int)LENGTH / 2)
      continue;
    assert_int_equal(shutdown(fd, SHUT_RD), 0);
    found = true;
  }
  assert_true(found);
}

/* The owner still reads the canceled write, so no later work may have been reported as complete. */
static void a_waiting_atomic_does_not_begin_when_the_rail_ends(void **state) {
  (void)state;
  struct haul_transfer_options options = over("map");
  struct haul_region *result = region_make(t.node, KIND_HOST, 8);
  struct haul_transfer *atomic;
  cancel_unread_write();
  assert_works(haul_fetch_add(result, 0, t.remote, 0, 1, &options, &atomic));
  assert_int_equal(haul_transfer_test(atomic), 1);
  end_unread_connection();
  assert_fails(HAUL_EPEER, haul_transfer_wait(atomic, soon()));
  haul_transfer_release(atomic);
  region_drop(result, KIND_HOST);
  owner_go_on(&t.owner);
}

int main(int count, char **arguments) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_later_write_over_another_path_is_not_overwritten),
      TEST(later_small_writes_and_atomics_are_not_overwritten),
      TEST(a_message_waits_for_the_canceled_write),
      TEST(a_write_within_the_call_waits_too),
      TEST(reads_do_not_wait),
      TEST(a_waiting_write_times_out_or_is_canceled),
      TEST(a_waiting_write_ends_with_its_peer),
      TEST(a_waiting_atomic_does_not_begin_when_the_rail_ends),
  };
  if (count > 1 && strcmp(arguments[1], OWNER_MODE) == 0)
    return owner_main();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
