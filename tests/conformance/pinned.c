/* SPDX-License-Identifier: MIT
 * Pinned host memory is copied directly to a GPU, other memory through bounce buffers. Each
 * transfer reports its own region's way, whichever region came first. */
#include "support/check.h"

#include <unistd.h>

#include "doubles/cuda/door.h"
#include "memory/staging.h"
#include "support/gpu.h"
#include "support/names.h"
#include "support/owner.h"

#define LENGTH ((uint64_t)4 << 20)
#define BOUND  (30 * S)
#define MANY   8u /* more pairs of bounce buffers than the limit */

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *there, *pinned, *plain;
  struct haul_remote *remote;
} t;

static struct haul_region *host(unsigned flags) {
  struct haul_region *region;
  assert_works(
      haul_region_alloc(t.user, (struct haul_place){HAUL_HOST, 0}, LENGTH, flags, &region));
  return region;
}

static int set_up(void **state) {
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.staging_bytes = STAGING_LEAST;
  assert_works(haul_node_open(&config, &t.user));
  assert_works(haul_node_listen(t.owner, own_socket()));
  assert_works(haul_region_alloc(t.owner, (struct haul_place){HAUL_CUDA, 0}, LENGTH, 0, &t.there));
  assert_works(haul_region_publish(t.there, "gpu", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_connect(t.user, own_socket(), haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "gpu", haul_deadline_in(BOUND), &t.remote));
  t.pinned = host(HAUL_REGION_PINNED);
  t.plain = host(0);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.plain);
  haul_region_release(t.pinned);
  haul_region_release(t.there);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  return 0;
}

/* A write over a path and its report; returns the code if it is rejected or fails. */
static int write_over(const char *only, struct haul_region *from, unsigned flags,
                      struct haul_path *path) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_transfer *transfer;
  struct haul_piece piece = {0, 0, LENGTH};
  options.flags = flags;
  options.only = only;
  options.deadline = haul_deadline_in(BOUND);
  int code = haul_write(t.remote, from, &piece, 1, &options, &transfer);
  if (code)
    return code;
  code = haul_transfer_wait(transfer, HAUL_FOREVER);
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  *path = report.paths[0];
  return code;
}

static int write_all(struct haul_region *from, unsigned flags, struct haul_path *path) {
  return write_over("map", from, flags, path);
}

static void goes_straight(void) {
  struct haul_path path = {.open = 0};
  assert_works(write_all(t.pinned, HAUL_REQUIRE_ZERO_COPY, &path));
  assert_int_equal(path.copies_cpu, 0);
  assert_int_equal(path.zero_copy, 1);
}

static void goes_through_a_buffer(void) {
  struct haul_path path = {.open = 0};
  assert_works(write_all(t.plain, 0, &path));
  assert_int_equal(path.copies_cpu, 1);
  assert_int_equal(path.zero_copy, 0);
  assert_fails(HAUL_ENOPATH, write_all(t.plain, HAUL_REQUIRE_ZERO_COPY, &path));
}

static void pinned_memory_first(void **state) {
  (void)state;
  goes_straight();
  goes_through_a_buffer();
  goes_straight();
}

static void plain_memory_first(void **state) {
  (void)state;
  goes_through_a_buffer();
  goes_straight();
  goes_through_a_buffer();
}

static void explain_is_about_its_region(void **state) {
  struct haul_region *const both[] = {t.plain, t.pinned, t.plain};
  (void)state;
  for (size_t i = 0; i < COUNT(both); i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    struct haul_path path;
    options.only = "map";
    assert_works(
        haul_explain(both[i], t.remote, HAUL_OP_READ, LENGTH, &options, &path, &(size_t){1}));
    assert_int_equal(path.zero_copy, both[i] == t.pinned);
  }
}

/* The report is read after the region's release. */
static void a_report_outlives_its_region(void **state) {
  (void)state;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_transfer *transfer;
  struct haul_piece piece = {0, 0, LENGTH};
  assert_works(haul_write(t.remote, t.pinned, &piece, 1, NULL, &transfer));
  assert_works(haul_transfer_wait(transfer, HAUL_FOREVER));
  haul_region_release(t.pinned);
  t.pinned = NULL;
  assert_works(haul_transfer_report(transfer, &report));
  assert_int_equal(report.paths[0].zero_copy, 1);
  haul_transfer_release(transfer);
}

static struct haul_transfer *start_part(enum haul_operation operation, struct haul_region *region,
                                        unsigned part) {
  const uint64_t length = LENGTH / MANY, at = part * length;
  const struct haul_piece pieces[] = {{at, at, length / 2 - 1},
                                      {at + length / 2 - 1, at + length / 2 - 1, length / 2 + 1}};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_transfer *transfer;
  options.only = "map";
  options.deadline = haul_deadline_in(BOUND);
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(t.remote, region, pieces, 2, &options, &transfer)
                   : haul_read(region, t.remote, pieces, 2, &options, &transfer));
  return transfer;
}

static void all_parts(enum haul_operation operation, struct haul_region *region) {
  struct haul_transfer *transfers[MANY];
  uint64_t bytes;
  for (unsigned i = 0; i < MANY; i++)
    transfers[i] = start_part(operation, region, i);
  for (unsigned i = 0; i < MANY; i++) {
    assert_works(haul_transfer_wait(transfers[i], HAUL_FOREVER));
    haul_transfer_release(transfers[i]);
    assert_works(haul_counter_read(t.user, "staging.bytes", &bytes));
    assert_in_range(bytes, 2 * BOUNCE_BYTES, STAGING_LEAST);
  }
}

/* A round trip with the same bytes. */
static void all_arrive(void) {
  struct haul_region *back = host(0);
  region_fill(t.user, t.plain, 0, LENGTH, 3);
  all_parts(HAUL_OP_WRITE, t.plain);
  all_parts(HAUL_OP_READ, back);
  assert_true(region_sum(t.user, back, 0, LENGTH) == region_sum(t.user, t.plain, 0, LENGTH));
  haul_region_release(back);
}

static void plain_memory_shares_the_bounce_buffers(void **state) {
  (void)state;
  all_arrive();
}

static void canceled_transfers_free_their_buffers(void **state) {
  (void)state;
  for (unsigned round = 0; round < 20; round++) {
    struct haul_transfer *transfers[MANY];
    for (unsigned i = 0; i < MANY; i++)
      transfers[i] = start_part(HAUL_OP_WRITE, t.plain, i);
    for (unsigned i = 0; i < MANY; i += 2)
      haul_transfer_cancel(transfers[(i + round) % MANY]);
    for (unsigned i = 0; i < MANY; i++) {
      int code = haul_transfer_wait(transfers[i], HAUL_FOREVER);
      assert_true(code == 0 || (code == HAUL_ECANCELED && (i + round) % 2 == 0));
      haul_transfer_release(transfers[i]);
    }
  }
  all_arrive();
}

/* A kernel may wait for what a transfer brings. Unpinning waits for the kernel, and with a strict
 * driver so does pinning. */
static void transfers_complete_while_a_kernel_runs(void **state) {
  struct cuda_double *door = gpu_double();
  struct haul_region *const regions[] = {t.plain, t.pinned};
  struct haul_path path;
  (void)state;
  if (!door)
    skip();
  door->kernel = 1;
  alarm(60);
  for (size_t i = 0; i < 2 * COUNT(regions); i++) {
    door->strict = i % 2;
    assert_works(write_over("tcp", regions[i / 2], 0, &path));
    assert_works(write_over("map", regions[i / 2], 0, &path));
  }
  door->kernel = door->strict = 0;
  alarm(0);
}

static void a_node_closes_while_transfers_wait_for_buffers(void **state) {
  (void)state;
  struct haul_transfer *transfers[MANY];
  for (unsigned i = 0; i < MANY; i++)
    transfers[i] = start_part(HAUL_OP_WRITE, t.plain, i);
  haul_node_close(t.user);
  t.user = NULL;
  for (unsigned i = 0; i < MANY; i++) {
    int code = haul_transfer_wait(transfers[i], HAUL_FOREVER);
    assert_true(code == 0 || code == HAUL_ECLOSED);
    haul_transfer_release(transfers[i]);
  }
}

int main(void) {
  if (!gpu_is_there())
    return 77;
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(pinned_memory_first),
      TEST(plain_memory_first),
      TEST(explain_is_about_its_region),
      TEST(a_report_outlives_its_region),
      TEST(plain_memory_shares_the_bounce_buffers),
      TEST(canceled_transfers_free_their_buffers),
      TEST(transfers_complete_while_a_kernel_runs),
      TEST(a_node_closes_while_transfers_wait_for_buffers),
  };
  return cmocka_run_group_tests_name("pinned memory and a GPU", tests, NULL, NULL);
}
