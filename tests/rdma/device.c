/* SPDX-License-Identifier: MIT
 * Device memory over rdma: direct where the NIC takes its dma-buf, else staged. A complete transfer
 * is visible to the device. Both nodes are in this process, so that the test can count the fences
 * of the owner's device. */
#include "support/check.h"

#include <string.h>
#include <time.h>

#include "memory/region.h"
#include "memory/sim/sim.h"
#include "support/owner.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (12 * MIB)
#define BOUND  (20 * S)

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *there, *host, *device;
  struct haul_remote *remote;
  bool direct; /* the NIC takes dma-bufs */
} t;

static int set_up(void **state) {
  char address[160];
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_peer_connect(t.user, address, haul_deadline_in(BOUND), &t.peer));
  t.there = region_make(t.owner, KIND_SIM, LENGTH);
  assert_works(haul_region_publish(t.there, "device", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(t.peer, "device", haul_deadline_in(BOUND), &t.remote));
  t.host = region_make(t.user, KIND_HOST, LENGTH);
  t.device = region_make(t.user, KIND_SIM, LENGTH);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_region_release(t.host);
  haul_region_release(t.device);
  haul_region_release(t.there);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  memset(&t, 0, sizeof t);
  return 0;
}

static struct haul_path path_from(struct haul_region *local) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_path path;
  options.only = "rdma";
  assert_works(haul_explain(local, t.remote, HAUL_OP_WRITE, MIB, &options, &path, &(size_t){1}));
  assert_string_equal(path.name, "rdma");
  assert_true(path.open);
  return path;
}

static bool is_direct(void) {
  return !strstr(path_from(t.host).detail, "staged");
}

static void move(struct haul_region *local, enum haul_operation operation, uint64_t length,
                 unsigned flags) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {3, 5, length};
  options.only = "rdma";
  options.flags = flags;
  assert_works(operation == HAUL_OP_WRITE ? haul_write(t.remote, local, &piece, 1, &options, NULL)
                                          : haul_read(local, t.remote, &piece, 1, &options, NULL));
}

static void the_path_reports_staging(void **state) {
  (void)state;
  struct haul_path from_host = path_from(t.host), from_device = path_from(t.device);
  bool direct = is_direct();
  print_message("device memory goes %s\n", direct ? "straight" : "through stages");
  assert_int_equal(from_host.zero_copy, direct);
  assert_int_equal(from_device.zero_copy, direct);
  assert_int_equal(from_host.copies_dma, direct ? 1 : 2);
  assert_int_equal(from_device.copies_dma, direct ? 1 : 3);
  if (direct)
    return;
  assert_non_null(strstr(from_host.detail, "staged remotely"));
  assert_non_null(strstr(from_device.detail, "staged on both sides"));
}

/* One fence a work; a transfer of 1 MiB + 1 has two works. */
static void the_owner_fences_complete_writes(void **state) {
  (void)state;
  if (!is_direct()) {
    print_message("skipped: the NIC takes no dma-buf, so the device's own engine writes\n");
    skip();
  }
  static const uint64_t lengths[] = {1, 100, 4096, MIB, MIB + 1};
  for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    uint64_t before = sim_fences(0);
    move(t.host, HAUL_OP_WRITE, lengths[i], 0);
    assert_int_equal(sim_fences(0) - before, lengths[i] > MIB ? 2 : 1);
  }
}

static void the_client_fences_complete_reads(void **state) {
  (void)state;
  if (!is_direct()) {
    print_message("skipped: the NIC takes no dma-buf, so the device's own engine writes\n");
    skip();
  }
  uint64_t before = sim_fences(0);
  move(t.device, HAUL_OP_READ, 3 * MIB, 0);
  assert_int_equal(sim_fences(0) - before, 3);
}

/* More works than receives of a rail, and than bounce buffers. */
static void many_concurrent_writes_complete(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_transfer *transfers[600];
  uint64_t before = sim_fences(0);
  options.only = "rdma";
  region_fill(t.user, t.host, 0, LENGTH, 7);
  for (unsigned i = 0; i < 600; i++) {
    struct haul_piece piece = {i * 1000, i * 1000, 1000};
    assert_works(haul_write(t.remote, t.host, &piece, 1, &options, &transfers[i]));
  }
  for (unsigned i = 0; i < 600; i++) {
    assert_works(haul_transfer_wait(transfers[i], HAUL_FOREVER));
    haul_transfer_release(transfers[i]);
  }
  if (is_direct())
    assert_int_equal(sim_fences(0) - before, 600);
  assert_true(region_sum(t.owner, t.there, 0, 600000) == region_sum(t.user, t.host, 0, 600000));
}

static void checksums_are_compared_on_the_devices(void **state) {
  (void)state;
  region_fill(t.user, t.device, 0, LENGTH, 9);
  move(t.device, HAUL_OP_WRITE, LENGTH - 8, HAUL_CHECKSUM);
  move(t.host, HAUL_OP_READ, LENGTH - 8, HAUL_CHECKSUM);
  assert_true(region_sum(t.user, t.host, 3, LENGTH - 8) ==
              region_sum(t.owner, t.there, 5, LENGTH - 8));
}

static void canceled_transfers_free_buffers_and_slots(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, LENGTH};
  options.only = "rdma";
  for (unsigned round = 0; round < 30; round++) {
    struct haul_transfer *transfer;
    assert_works(round % 2 ? haul_write(t.remote, t.device, &piece, 1, &options, &transfer)
                           : haul_read(t.device, t.remote, &piece, 1, &options, &transfer));
    haul_node_progress(t.user, haul_deadline_in(round * 100000));
    assert_works(haul_transfer_cancel(transfer));
    int code = haul_transfer_wait(transfer, haul_deadline_in(BOUND));
    assert_true(code == 0 || code == HAUL_ECANCELED);
    haul_transfer_release(transfer);
  }
  checksums_are_compared_on_the_devices(NULL);
}

/* Mapping takes fewer copies and no network bandwidth. */
static void mapped_memory_does_not_use_the_nic(void **state) {
  struct haul_region *const locals[] = {t.host, t.device};
  (void)state;
  for (size_t i = 0; i < COUNT(locals); i++)
    for (uint64_t length = 8; length <= LENGTH; length *= 8) {
      struct haul_path path;
      assert_works(
          haul_explain(locals[i], t.remote, HAUL_OP_WRITE, length, NULL, &path, &(size_t){1}));
      assert_string_equal(path.name, "map");
    }
}

static struct provider late;
static _Atomic unsigned wakes_running, wakes_started;
static struct late_wake {
  void (*wake)(void *user);
  void *user;
} late_wakes[1024];

static void wake_late(void *user) {
  const struct late_wake *entry = user;
  atomic_fetch_add(&wakes_running, 1);
  entry->wake(entry->user); /* as if something else made the loop look at the status */
  nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
  entry->wake(entry->user);
  atomic_fetch_sub(&wakes_running, 1);
}

static int start_with_late_wake(struct copy *copy) {
  struct late_wake *entry = &late_wakes[atomic_fetch_add(&wakes_started, 1) % COUNT(late_wakes)];
  *entry = (struct late_wake){copy->wake, copy->user};
  copy->wake = wake_late;
  copy->user = entry;
  return provider_sim.copy_start(copy);
}

/* The loop of `wake` is freed with its node. */
static void no_engine_wakes_a_closed_node(void **state) {
  static const char *const paths[] = {"rdma", "tcp", "map"};
  struct haul_node *keeper; /* keeps the process's engines running */
  assert_works(haul_node_open(NULL, &keeper));
  for (unsigned round = 0; round < 2 * COUNT(paths); round++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    struct haul_piece piece = {0, 0, 1000};
    assert_int_equal(set_up(state), 0);
    late = provider_sim;
    late.copy_start = start_with_late_wake;
    t.there->memory.provider = &late;
    t.device->memory.provider = &late;
    options.only = paths[round / 2];
    struct haul_region *local = strcmp(options.only, "map") == 0 ? t.host : t.device;
    assert_works(round % 2 ? haul_write(t.remote, local, &piece, 1, &options, NULL)
                           : haul_read(local, t.remote, &piece, 1, &options, NULL));
    t.there->memory.provider = &provider_sim;
    t.device->memory.provider = &provider_sim;
    assert_int_equal(tear_down(state), 0);
    assert_int_equal(atomic_load(&wakes_running), 0);
  }
  assert_true(atomic_load(&wakes_started) > 0); /* over tcp at least */
  haul_node_close(keeper);
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(the_path_reports_staging),
      TEST(the_owner_fences_complete_writes),
      TEST(the_client_fences_complete_reads),
      TEST(many_concurrent_writes_complete),
      TEST(checksums_are_compared_on_the_devices),
      TEST(mapped_memory_does_not_use_the_nic),
      TEST(canceled_transfers_free_buffers_and_slots),
      cmocka_unit_test(no_engine_wakes_a_closed_node),
  };
  return cmocka_run_group_tests_name("device memory over rdma", tests, NULL, NULL);
}
