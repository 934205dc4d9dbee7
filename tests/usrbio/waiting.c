/* SPDX-License-Identifier: MIT
 * Waiting: CLOCK_REALTIME deadlines, minimum and maximum numbers. */
#include "usrbio/world.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

struct scene {
  struct world *world;
  struct hf3fs_ior ior;
  struct ring_view *view;
};

static struct scene held_ring(void **state) {
  struct scene scene = {.world = *state};
  assert_int_equal(hf3fs_iorcreate(&scene.ior, scene.world->mount, 8, true, 0, -1), 0);
  daemon_hold(true);
  scene.view = daemon_ring(&scene.ior);
  return scene;
}

static void prepare(struct scene *scene, int count) {
  for (int i = 0; i < count; i++)
    assert_true(hf3fs_prep_io(&scene->ior, &scene->world->iov, true, scene->world->iov.base,
                              scene->world->file, 0, 1, NULL) >= 0);
}

static void complete(struct scene *scene, int count) {
  struct ring_submission submission;
  for (int i = 0; i < count; i++) {
    assert_true(daemon_next(scene->view, &submission));
    daemon_complete(scene->view, submission.index, 1);
  }
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int wait_ms(struct scene *scene, int room, int least, long milliseconds) {
  struct hf3fs_cqe cqes[8];
  struct timespec deadline = world_in(milliseconds);
  return hf3fs_wait_for_ios(&scene->ior, cqes, room, least, &deadline);
}

static void invalid_arguments_are_rejected(void **state) {
  struct scene scene = held_ring(state);
  struct hf3fs_cqe cqe;
  struct hf3fs_ior zeroed = {0};
  const struct timespec below = {.tv_nsec = -1}, above = {.tv_nsec = 1000000000};
  assert_int_equal(hf3fs_wait_for_ios(NULL, &cqe, 1, 0, NULL), -EINVAL);
  assert_int_equal(hf3fs_wait_for_ios(&zeroed, &cqe, 1, 0, NULL), -EINVAL);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, NULL, 1, 0, NULL), -EINVAL);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 0, 0, NULL), -EINVAL);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, -1, 0, NULL), -EINVAL);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 1, &below), -EINVAL);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 1, &above), -EINVAL);
  hf3fs_iordestroy(&scene.ior);
}

static void an_expired_deadline_returns_at_once(void **state) {
  struct scene scene = held_ring(state);
  struct hf3fs_cqe cqe;
  struct timespec monotonic, ancient = {.tv_sec = INT64_MIN}, never = {.tv_sec = INT64_MAX};
  clock_gettime(CLOCK_MONOTONIC, &monotonic); /* as programs do by mistake */
  prepare(&scene, 4);
  assert_int_equal(wait_ms(&scene, 8, 1, -1000), 0);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 1, &monotonic), 0);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 1, &ancient), 0);
  complete(&scene, 4);
  assert_int_equal(wait_ms(&scene, 1, 1, -1000), 1);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 1, &monotonic), 1);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 1, &ancient), 1);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 1, &never), 1);
  hf3fs_iordestroy(&scene.ior);
}

static void a_deadline_ends_the_wait(void **state) {
  struct scene scene = held_ring(state);
  const long times[] = {1, 30, 300, 1100};
  for (size_t i = 0; i < COUNT(times); i++) {
    int64_t before = now_ms();
    assert_int_equal(wait_ms(&scene, 8, 1, times[i]), 0);
    assert_in_range(now_ms() - before, times[i] - 1, AGES * 1000);
  }
  prepare(&scene, 2);
  complete(&scene, 1);
  assert_int_equal(wait_ms(&scene, 8, 2, 50), 1); /* the completions so far, and no error */
  hf3fs_iordestroy(&scene.ior);
}

static void a_wait_returns_complete_requests(void **state) {
  struct scene scene = held_ring(state);
  prepare(&scene, 8);
  complete(&scene, 8);
  assert_int_equal(wait_ms(&scene, 3, 1, AGES * 1000), 3);
  assert_int_equal(wait_ms(&scene, 2, 100, AGES * 1000), 2);
  assert_int_equal(wait_ms(&scene, 1, -5, AGES * 1000), 1);
  assert_int_equal(wait_ms(&scene, 8, 0, AGES * 1000), 2);
  assert_int_equal(wait_ms(&scene, 8, 0, AGES * 1000), 0);
  struct hf3fs_cqe cqe;
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, &cqe, 1, 0, NULL), 0);
  hf3fs_iordestroy(&scene.ior);
}

static void *complete_late(void *argument) {
  struct scene *scene = argument;
  for (int i = 0; i < 3; i++) {
    usleep(20000);
    complete(scene, 1);
  }
  return NULL;
}

static void a_wait_without_deadline_ends_with_a_completion(void **state) {
  struct scene scene = held_ring(state);
  struct hf3fs_cqe cqes[8];
  pthread_t thread;
  prepare(&scene, 3);
  assert_int_equal(pthread_create(&thread, NULL, complete_late, &scene), 0);
  assert_int_equal(hf3fs_wait_for_ios(&scene.ior, cqes, 8, 3, NULL), 3);
  pthread_join(thread, NULL);
  hf3fs_iordestroy(&scene.ior);
}

/* Posts of completions that were already returned do not end a later wait. */
static void stale_posts_are_drained(void **state) {
  struct scene scene = held_ring(state);
  for (int i = 0; i < 10000; i++) {
    prepare(&scene, 1);
    complete(&scene, 1);
    assert_int_equal(wait_ms(&scene, 1, 1, -1), 1);
  }
  int posts;
  sem_getvalue(scene.view->semaphore, &posts);
  assert_in_range(posts, 0, 1);
  int64_t before = now_ms();
  assert_int_equal(wait_ms(&scene, 8, 1, 100), 0);
  assert_in_range(now_ms() - before, 99, AGES * 1000);
  hf3fs_iordestroy(&scene.ior);
}

static int64_t used_ms(void) {
  struct rusage used;
  getrusage(RUSAGE_THREAD, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
         (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

static void waiting_uses_no_cpu_time(void **state) {
  struct scene scene = held_ring(state);
  prepare(&scene, 1);
  int64_t before = used_ms();
  assert_int_equal(wait_ms(&scene, 1, 1, 1500), 0);
  assert_in_range(used_ms() - before, 0, 500);
  hf3fs_iordestroy(&scene.ior);
}

static void nothing(int signal) {
  (void)signal;
}

/* The handler runs, and the wait continues. */
static void signals_do_not_end_a_wait(void **state) {
  struct scene scene = held_ring(state);
  struct sigaction action = {.sa_handler = nothing}, old;
  const struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
  sigaction(SIGALRM, &action, &old);
  setitimer(ITIMER_REAL, &often, NULL);
  int64_t before = now_ms();
  assert_int_equal(wait_ms(&scene, 8, 1, 100), 0);
  assert_in_range(now_ms() - before, 99, AGES * 1000);
  setitimer(ITIMER_REAL, &never, NULL);
  sigaction(SIGALRM, &old, NULL);
  hf3fs_iordestroy(&scene.ior);
}

static void *wait_long(void *argument) {
  struct scene *scene = argument;
  struct hf3fs_cqe cqe;
  assert_int_equal(hf3fs_wait_for_ios(&scene->ior, &cqe, 1, 1, NULL), 1);
  return NULL;
}

/* A deadline holds while another thread waits without one. */
static void every_waiter_has_its_own_deadline(void **state) {
  struct scene scene = held_ring(state);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, wait_long, &scene), 0);
  usleep(20000);
  assert_int_equal(wait_ms(&scene, 8, 1, 100), 0);
  assert_int_equal(wait_ms(&scene, 8, 1, -100), 0);
  assert_int_equal(wait_ms(&scene, 8, 0, 100), 0);
  prepare(&scene, 2);
  complete(&scene,
           2); /* together: the thread that takes the first must not keep the other from waking */
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  hf3fs_iordestroy(&scene.ior);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(invalid_arguments_are_rejected),
      world_test(an_expired_deadline_returns_at_once),
      world_test(a_deadline_ends_the_wait),
      world_test(a_wait_returns_complete_requests),
      world_test(a_wait_without_deadline_ends_with_a_completion),
      world_test(stale_posts_are_drained),
      world_test(waiting_uses_no_cpu_time),
      world_test(signals_do_not_end_a_wait),
      world_test(every_waiter_has_its_own_deadline),
  };
  return cmocka_run_group_tests_name("usrbio/waiting", tests, NULL, NULL);
}
