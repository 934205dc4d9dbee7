/* SPDX-License-Identifier: MIT
 * A daemon that corrupts a ring: the client's calls return an error, and stay within the ring. */
#include "usrbio/world.h"

#include <unistd.h>

struct scene {
  struct world *world;
  struct hf3fs_ior ior;
  struct ring_view *view;
};

#define ENTRIES 8

static struct scene held_ring(void **state) {
  struct scene scene = {.world = *state};
  assert_int_equal(hf3fs_iorcreate(&scene.ior, scene.world->mount, ENTRIES, true, 0, -1), 0);
  daemon_hold(true);
  scene.view = daemon_ring(&scene.ior);
  return scene;
}

static int prepare(struct scene *scene) {
  return hf3fs_prep_io(&scene->ior, &scene->world->iov, true, scene->world->iov.base,
                       scene->world->file, 0, 1, scene);
}

static int wait_a_little(struct scene *scene, struct hf3fs_cqe cqes[ENTRIES]) {
  struct timespec deadline = world_in(20);
  return hf3fs_wait_for_ios(&scene->ior, cqes, ENTRIES, ENTRIES, &deadline);
}

/* Every prepared operation completes once, with the ring's error. */
static void check_dead(struct scene *scene, int pending) {
  struct hf3fs_cqe cqes[ENTRIES];
  bool seen[ENTRIES] = {false};
  int got = wait_a_little(scene, cqes);
  assert_int_equal(got, pending == 0 ? -EPROTO : pending);
  for (int i = 0; i < got; i++) {
    assert_in_range(cqes[i].index, 0, ENTRIES - 1);
    assert_false(seen[cqes[i].index]);
    seen[cqes[i].index] = true;
    assert_int_equal(cqes[i].result, -EPROTO);
    assert_ptr_equal(cqes[i].userdata, scene);
  }
  assert_int_equal(wait_a_little(scene, cqes), -EPROTO);
  assert_int_equal(prepare(scene), -EPROTO);
  assert_int_equal(hf3fs_submit_ios(&scene->ior), -EPROTO);
  hf3fs_iordestroy(&scene->ior);
}

static void invalid_indices_fail_the_ring(void **state) {
  const int32_t numbers[] = {-1, ENTRIES, ENTRIES + 1, INT32_MAX, INT32_MIN, 5};
  for (size_t i = 0; i < COUNT(numbers); i++) {
    struct scene scene = held_ring(state);
    for (int k = 0; k < 3; k++)
      assert_in_range(prepare(&scene), 0, 2); /* index 5 is valid, but not in flight */
    daemon_complete(scene.view, numbers[i], 1);
    check_dead(&scene, 3);
  }
}

static void duplicate_completions_fail_the_ring(void **state) {
  struct scene scene = held_ring(state);
  struct hf3fs_cqe cqes[ENTRIES];
  for (int k = 0; k < 3; k++)
    prepare(&scene);
  daemon_complete(scene.view, 1, 7);
  daemon_complete(scene.view, 1, 8);
  assert_int_equal(wait_a_little(&scene, cqes), 3);
  assert_int_equal(cqes[0].index, 1);
  assert_int_equal(cqes[0].result, 7);
  assert_int_equal(cqes[1].result, -EPROTO);
  assert_int_equal(cqes[2].result, -EPROTO);
  check_dead(&scene, 0);
}

static void invalid_heads_fail_the_ring(void **state) {
  const int32_t heads[] = {-1, ENTRIES + 1, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < COUNT(heads); i++) {
    struct scene scene = held_ring(state);
    prepare(&scene);
    atomic_store(&scene.view->indices->complete_head, heads[i]);
    check_dead(&scene, 1);
  }
}

/* The head announces completions that were not written. */
static void a_jumping_head_fails_the_ring(void **state) {
  struct scene scene = held_ring(state);
  prepare(&scene);
  memset(scene.view->completions, 0xff, sizeof *scene.view->completions * ENTRIES);
  atomic_store(&scene.view->indices->complete_head, ENTRIES);
  check_dead(&scene, 1);
}

/* The client keeps its own copies of its indices. */
static void tails_are_not_read_back(void **state) {
  struct scene scene = held_ring(state);
  struct hf3fs_cqe cqes[ENTRIES];
  struct ring_submission submission;
  const int32_t values[] = {-1, INT32_MAX, ENTRIES, 3, INT32_MIN};
  for (size_t i = 0; i < COUNT(values); i++) {
    atomic_store(&scene.view->indices->submit_head, values[i]);
    atomic_store(&scene.view->indices->complete_tail, values[i]);
    int index = prepare(&scene);
    assert_in_range(index, 0, ENTRIES - 1);
    assert_true(daemon_next(scene.view, &submission));
    assert_int_equal(submission.index, index);
    daemon_complete(scene.view, index, 1);
    assert_int_equal(wait_a_little(&scene, cqes), 1);
    assert_int_equal(cqes[0].index, index);
  }
  hf3fs_iordestroy(&scene.ior);
}

static void an_invalid_tail_fails_the_ring(void **state) {
  const int32_t values[] = {-1, INT32_MAX, ENTRIES + 1, INT32_MIN};
  for (size_t i = 0; i < COUNT(values); i++) {
    struct scene scene = held_ring(state);
    atomic_store(&scene.view->indices->submit_tail, values[i]);
    for (int k = 0; k < ENTRIES; k++)
      assert_in_range(prepare(&scene), 0, ENTRIES - 1);
    assert_int_equal(prepare(&scene), -EAGAIN);
    hf3fs_iordestroy(&scene.ior);
  }
  struct scene scene = held_ring(state);
  atomic_store(&scene.view->indices->submit_tail, 1); /* the index after the client's */
  assert_int_equal(prepare(&scene), -EAGAIN);
  hf3fs_iordestroy(&scene.ior);
}

static void userdata_is_not_read_back(void **state) {
  struct scene scene = held_ring(state);
  struct hf3fs_cqe cqes[ENTRIES];
  int index = prepare(&scene);
  memset(scene.view->records, 0xff, sizeof *scene.view->records * ENTRIES);
  memset(scene.view->submissions, 0xff, sizeof *scene.view->submissions * ENTRIES);
  memset(scene.view->completions, 0xff, sizeof *scene.view->completions * ENTRIES);
  daemon_complete(scene.view, index, -1);
  assert_int_equal(wait_a_little(&scene, cqes), 1);
  assert_ptr_equal(cqes[0].userdata, &scene);
  hf3fs_iordestroy(&scene.ior);
}

/* Fills the ring with random bytes repeatedly. */
static void random_bytes_fail_the_ring(void **state) {
  uint64_t seed = 0xbadc0de;
  for (int round = 0; round < 300; round++) {
    struct scene scene = held_ring(state);
    struct hf3fs_cqe cqes[ENTRIES];
    uint32_t *words = (uint32_t *)scene.view->indices;
    size_t count = ((size_t)((uint8_t *)scene.view->semaphore - (uint8_t *)words)) / 4;
    int prepared = 0, got = 0;
    for (int step = 0; step < 40; step++) {
      uint64_t chance = world_random(&seed);
      if (chance % 3 == 0)
        words[world_random(&seed) % 4] = (uint32_t)(world_random(&seed) % 12) - 1;
      if (chance % 5 == 0)
        words[world_random(&seed) % count] = (uint32_t)world_random(&seed) % 9;
      if (prepare(&scene) >= 0)
        prepared++;
      struct timespec past = {0};
      int taken = hf3fs_wait_for_ios(&scene.ior, cqes, ENTRIES, 1, &past);
      assert_true(taken >= 0 || taken == -EPROTO);
      got += taken > 0 ? taken : 0;
      assert_in_range(got, 0, prepared);
      assert_in_range(prepared - got, 0, ENTRIES);
    }
    hf3fs_iordestroy(&scene.ior);
  }
}

static void posts_without_completions_are_harmless(void **state) {
  struct scene scene = held_ring(state);
  struct hf3fs_cqe cqes[ENTRIES];
  prepare(&scene);
  for (int i = 0; i < 100000; i++)
    sem_post(scene.view->semaphore);
  assert_int_equal(wait_a_little(&scene, cqes), 0);
  hf3fs_iordestroy(&scene.ior);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(invalid_indices_fail_the_ring),
      world_test(duplicate_completions_fail_the_ring),
      world_test(invalid_heads_fail_the_ring),
      world_test(a_jumping_head_fails_the_ring),
      world_test(tails_are_not_read_back),
      world_test(an_invalid_tail_fails_the_ring),
      world_test(userdata_is_not_read_back),
      world_test(random_bytes_fail_the_ring),
      world_test(posts_without_completions_are_harmless),
  };
  return cmocka_run_group_tests_name("usrbio/hostile", tests, NULL, NULL);
}
