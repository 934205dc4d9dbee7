/* SPDX-License-Identifier: MIT
 * Writes between two regions of a mocked GPU, over map: many works, or many pieces, make few
 * operations of the driver's, and a short one asks for no callback. */
#include "support/check.h"

#include <stdio.h>
#include <unistd.h>

#include "doubles/cuda/door.h"
#include "support/gpu.h"
#include "support/names.h"
#include "support/owner.h"

#define LENGTH ((uint64_t)64 << 20)
#define PIECE  ((uint64_t)64 << 10)
#define BOUND  (60 * S)

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *there, *here;
  struct haul_remote *remote;
  struct cuda_double *door;
} t;

static struct haul_region *make(struct haul_node *node) {
  struct haul_region *region;
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_CUDA, 0}, LENGTH, 0, &region));
  return region;
}

static int set_up(void **state) {
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER; /* else its thread may begin what the call still posts */
  assert_works(haul_node_open(&config, &t.user));
  assert_works(haul_node_listen(t.owner, own_socket()));
  t.there = make(t.owner);
  t.here = make(t.user);
  assert_works(haul_region_publish(t.there, "gpu", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_connect(t.user, own_socket(), haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "gpu", haul_deadline_in(BOUND), &t.remote));
  region_fill(t.user, t.here, 0, LENGTH, 1);
  region_fill(t.owner, t.there, 0, LENGTH, 2);
  t.door = gpu_double();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  t.door->hold = 0;
  haul_region_release(t.here);
  haul_region_release(t.there);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  return 0;
}

static struct haul_transfer *start(const struct haul_piece *pieces, size_t count) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_transfer *transfer;
  options.only = "map";
  options.deadline = haul_deadline_in(BOUND);
  assert_works(haul_write(t.remote, t.here, pieces, count, &options, &transfer));
  return transfer;
}

static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, HAUL_FOREVER);
  haul_transfer_release(transfer);
  return code;
}

static struct haul_transfer *start_whole(void) {
  return start(&(struct haul_piece){0, 0, LENGTH}, 1);
}

/* Every second piece, so that none are neighbours. */
static size_t scatter(struct haul_piece *pieces) {
  size_t count = LENGTH / PIECE / 2;
  for (size_t i = 0; i < count; i++)
    pieces[i] = (struct haul_piece){2 * i * PIECE, 2 * (count - 1 - i) * PIECE, PIECE};
  return count;
}

static void works_behind_one_another_are_one_operation(void **state) {
  (void)state;
  t.door->hold = 1;
  unsigned before = t.door->records;
  struct haul_transfer *transfer = start_whole();
  t.door->hold = 0;
  assert_works(finish(transfer));
  assert_in_range(t.door->records - before, 1,
                  32); /* 64 works; few, if the call is not interrupted */
  assert_true(region_sum(t.owner, t.there, 0, LENGTH) == region_sum(t.user, t.here, 0, LENGTH));
}

static void scattered_pieces_are_few_operations(void **state) {
  static struct haul_piece pieces[LENGTH / PIECE];
  (void)state;
  size_t count = scatter(pieces);
  t.door->hold = 1;
  unsigned before = t.door->records;
  struct haul_transfer *transfer = start(pieces, count);
  t.door->hold = 0;
  assert_works(finish(transfer));
  assert_in_range(t.door->records - before, 1, 64); /* 512 pieces */
  for (size_t i = 0; i < count; i++)
    assert_true(region_sum(t.owner, t.there, pieces[i].remote, PIECE) ==
                region_sum(t.user, t.here, pieces[i].local, PIECE));
}

static void a_long_operation_asks_for_a_callback(void **state) {
  (void)state;
  t.door->hold = 1;
  unsigned before = t.door->callbacks;
  struct haul_transfer *transfer = start_whole();
  while (t.door->callbacks == before)
    haul_node_progress(t.user, haul_deadline_in(MS));
  t.door->hold = 0;
  assert_works(finish(transfer));
}

static void one_cancel_ends_all_works(void **state) {
  (void)state;
  t.door->hold = 1;
  struct haul_transfer *transfer = start_whole();
  t.door->hold = 0;
  assert_works(haul_transfer_cancel(transfer));
  int code = finish(transfer);
  assert_true(code == 0 || code == HAUL_ECANCELED);
  assert_works(finish(start_whole()));
  assert_true(region_sum(t.owner, t.there, 0, LENGTH) == region_sum(t.user, t.here, 0, LENGTH));
}

static void a_failed_operation_fails_the_transfer(void **state) {
  (void)state;
  t.door->copy = 2;
  assert_fails(HAUL_ESYSTEM, finish(start_whole()));
}

int main(void) {
  if (!gpu_is_there())
    return 77;
  if (!gpu_double()) {
    printf("skipped all: the driver is not the mock, which counts operations\n");
    return 77;
  }
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(works_behind_one_another_are_one_operation), TEST(scattered_pieces_are_few_operations),
      TEST(a_long_operation_asks_for_a_callback),       TEST(one_cancel_ends_all_works),
      TEST(a_failed_operation_fails_the_transfer), /* the last: it breaks the context */
  };
  return cmocka_run_group_tests_name("grouped", tests, NULL, NULL);
}
