/* SPDX-License-Identifier: MIT
 * Operations: invalid arguments, full rings, wrapping, threads. */
#include "usrbio/world.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct pair {
  struct hf3fs_ior reading, writing;
};

static struct pair rings(struct world *world, int entries) {
  struct pair pair;
  assert_int_equal(hf3fs_iorcreate(&pair.reading, world->mount, entries, true, 0, -1), 0);
  assert_int_equal(hf3fs_iorcreate(&pair.writing, world->mount, entries, false, 0, -1), 0);
  return pair;
}

static void end_rings(struct pair *pair) {
  hf3fs_iordestroy(&pair->reading);
  hf3fs_iordestroy(&pair->writing);
}

static void invalid_arguments_are_rejected(void **state) {
  struct world *world = *state;
  struct pair pair = rings(world, 8);
  struct hf3fs_iov *iov = &world->iov, bare = {0};
  struct hf3fs_ior zeroed = {0};
  uint8_t *base = iov->base;
  const struct {
    const struct hf3fs_ior *ior;
    const struct hf3fs_iov *iov;
    bool read;
    void *at;
    size_t offset;
    uint64_t length;
  } wrong[] = {
      {NULL, iov, true, base, 0, 1},
      {&zeroed, iov, true, base, 0, 1},
      {&pair.reading, NULL, true, base, 0, 1},
      {&pair.reading, &bare, true, base, 0, 1},
      {&pair.reading, iov, false, base, 0, 1},
      {&pair.writing, iov, true, base, 0, 1},
      {&pair.reading, iov, true, base, 0, 0},
      {&pair.reading, iov, true, base - 1, 0, 1},
      {&pair.reading, iov, true, base - 1, 0, 2},
      {&pair.reading, iov, true, NULL, 0, 1},
      {&pair.reading, iov, true, base, 0, WORLD_BUFFER + 1},
      {&pair.reading, iov, true, base + 1, 0, WORLD_BUFFER},
      {&pair.reading, iov, true, base + WORLD_BUFFER, 0, 1},
      {&pair.reading, iov, true, base + WORLD_BUFFER + 1, 0, 1},
      {&pair.reading, iov, true, base + 1, 0, UINT64_MAX},
      {&pair.reading, iov, true, base + 1, 0, UINT64_MAX - (uintptr_t)base},
      {&pair.reading, iov, true, (void *)UINTPTR_MAX, 0, 2},
      {&pair.reading, iov, true, base, SIZE_MAX, 1},
      {&pair.reading, iov, true, base, INT64_MAX, 1},
      {&pair.reading, iov, true, base, (size_t)INT64_MAX + 1, 1},
  };
  for (size_t i = 0; i < COUNT(wrong); i++)
    assert_int_equal(hf3fs_prep_io(wrong[i].ior, wrong[i].iov, wrong[i].read, wrong[i].at,
                                   world->file, wrong[i].offset, wrong[i].length, NULL),
                     -EINVAL);
  assert_int_equal(hf3fs_submit_ios(NULL), -EINVAL);
  assert_int_equal(hf3fs_submit_ios(&zeroed), -EINVAL);
  end_rings(&pair);
}

static void destroyed_buffers_are_rejected(void **state) {
  struct world *world = *state;
  struct pair pair = rings(world, 8);
  struct hf3fs_iov iov;
  assert_int_equal(hf3fs_iovcreate(&iov, world->mount, 4096, 0, -1), 0);
  uint8_t *base = iov.base;
  hf3fs_iovdestroy(&iov);
  assert_int_equal(hf3fs_prep_io(&pair.reading, &iov, true, base, world->file, 0, 1, NULL),
                   -EINVAL);
  end_rings(&pair);
}

/* Records have the layout of 3FS. */
static void records_match_3fs(void **state) {
  struct world *world = *state;
  struct pair pair = rings(world, 4);
  struct ring_submission submission;
  int mark;
  daemon_hold(true);
  int index = hf3fs_prep_io(&pair.reading, &world->iov, true, world->iov.base + 512, world->file,
                            4096, 100, &mark);
  assert_int_equal(index, 0);
  struct ring_view *view = daemon_ring(&pair.reading);
  assert_true(daemon_next(view, &submission));
  assert_false(daemon_next(view, &submission));
  assert_int_equal(submission.index, index);
  assert_true(submission.userdata == (uintptr_t)&mark);
  const struct ring_record *record = &view->records[index];
  assert_memory_equal(record->buffer, world->iov.id, 16);
  assert_int_equal(record->buffer_offset, 512);
  assert_int_equal(record->offset, 4096);
  assert_int_equal(record->length, 100);
  assert_true(record->userdata == (uintptr_t)&mark);
  daemon_complete(view, index, -EBADMSG);
  struct hf3fs_cqe cqe;
  world_wait(&pair.reading, &cqe, 1);
  assert_int_equal(cqe.index, index);
  assert_int_equal(cqe.reserved, 0);
  assert_int_equal(cqe.result, -EBADMSG);
  assert_ptr_equal(cqe.userdata, &mark);
  end_rings(&pair);
}

static void written_data_is_read(void **state) {
  struct world *world = *state;
  struct pair pair = rings(world, 4);
  struct hf3fs_cqe cqe;
  pattern_fill(world->iov.base, 5000, 7);
  assert_int_equal(hf3fs_prep_io(&pair.writing, &world->iov, false, world->iov.base, world->file,
                                 123, 5000, NULL),
                   0);
  hf3fs_submit_ios(&pair.writing);
  world_wait(&pair.writing, &cqe, 1);
  assert_int_equal(cqe.result, 5000);
  uint8_t *other = world->iov.base + WORLD_BUFFER - 5000;
  assert_int_equal(
      hf3fs_prep_io(&pair.reading, &world->iov, true, other, world->file, 123, 5000, NULL), 0);
  hf3fs_submit_ios(&pair.reading);
  world_wait(&pair.reading, &cqe, 1);
  assert_int_equal(cqe.result, 5000);
  pattern_check(other, 5000, 7);
  /* A read at the end of the file is short. */
  assert_true(hf3fs_prep_io(&pair.reading, &world->iov, true, other, world->file, WORLD_FILE - 10,
                            5000, NULL) >= 0);
  hf3fs_submit_ios(&pair.reading);
  world_wait(&pair.reading, &cqe, 1);
  assert_int_equal(cqe.result, 10);
  end_rings(&pair);
}

static void a_full_ring_gives_eagain(void **state) {
  struct world *world = *state;
  const int sizes[] = {1, 2, 3, 64};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    struct pair pair = rings(world, sizes[i]);
    struct hf3fs_cqe cqes[64];
    daemon_hold(true);
    for (int round = 0; round < 5; round++) {
      bool seen[64] = {false};
      for (int k = 0; k < sizes[i]; k++) {
        int index = hf3fs_prep_io(&pair.reading, &world->iov, true, world->iov.base, world->file, 0,
                                  1, NULL);
        assert_in_range(index, 0, sizes[i] - 1);
        assert_false(seen[index]);
        seen[index] = true;
      }
      for (int k = 0; k < 3; k++)
        assert_int_equal(hf3fs_prep_io(&pair.reading, &world->iov, true, world->iov.base,
                                       world->file, 0, 1, NULL),
                         -EAGAIN);
      hf3fs_submit_ios(&pair.reading);
      daemon_hold(false);
      world_wait(&pair.reading, cqes, sizes[i]);
      daemon_hold(true);
    }
    daemon_hold(false);
    end_rings(&pair);
  }
}

/* An operation of the next test: a range of the file and of the buffer. */
struct operation {
  uint64_t offset, length;
};

#define LONGEST 512

static void begin(struct world *world, const struct hf3fs_ior *ior, struct operation *operations,
                  uint64_t *seed) {
  struct operation next = {.offset = world_random(seed) % (WORLD_FILE - LONGEST),
                           .length = 1 + world_random(seed) % LONGEST};
  /* The userdata names the entry, as the index is not known in advance. */
  for (int i = 0; i < hf3fs_io_entries(ior); i++) {
    if (operations[i].length > 0)
      continue;
    operations[i] = next;
    int index = hf3fs_prep_io(ior, &world->iov, true, world->iov.base + i * LONGEST, world->file,
                              next.offset, next.length, &operations[i]);
    assert_in_range(index, 0, hf3fs_io_entries(ior) - 1);
    return;
  }
  fail();
}

static void check(struct world *world, struct operation *operations, const struct hf3fs_cqe *cqe,
                  const uint8_t *file) {
  struct operation *operation = &operations[(const struct operation *)cqe->userdata - operations];
  assert_int_equal(cqe->result, operation->length);
  assert_memory_equal(world->iov.base + (operation - operations) * LONGEST,
                      file + operation->offset, operation->length);
  operation->length = 0;
}

static void a_ring_wraps_many_times(void **state) {
  struct world *world = *state;
  static uint8_t file[WORLD_FILE];
  const int sizes[] = {1, 2, 7, 33};
  uint64_t seed = 0x5eed;
  pattern_fill(file, sizeof file, 1);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    struct pair pair = rings(world, sizes[i]);
    struct operation operations[33] = {{0}};
    struct hf3fs_cqe cqes[33];
    int pending = 0;
    for (int done = 0; done < 10000;) {
      int more = (int)(world_random(&seed) % (unsigned)(sizes[i] - pending + 1));
      for (int k = 0; k < more; k++)
        begin(world, &pair.reading, operations, &seed);
      pending += more;
      hf3fs_submit_ios(&pair.reading);
      struct timespec deadline = world_in(AGES * 1000);
      int least = (int)(world_random(&seed) % (unsigned)(pending + 1));
      int got = hf3fs_wait_for_ios(&pair.reading, cqes, sizes[i], least, &deadline);
      assert_in_range(got, least, pending);
      for (int k = 0; k < got; k++)
        check(world, operations, &cqes[k], file);
      pending -= got;
      done += got;
    }
    if (pending > 0)
      world_wait(&pair.reading, cqes, pending);
    end_rings(&pair);
  }
}

#define MANY 20000

struct waiter {
  const struct hf3fs_ior *ior;
  _Atomic int *left;
  _Atomic uint8_t *times; /* userdata is an index here */
};

static void *wait_for_some(void *argument) {
  struct waiter *waiter = argument;
  struct hf3fs_cqe cqes[8];
  while (*waiter->left > 0) {
    struct timespec soon = world_in(20);
    int got = hf3fs_wait_for_ios(waiter->ior, cqes, 8, 1, &soon);
    assert_true(got >= 0);
    for (int i = 0; i < got; i++) {
      assert_int_equal(cqes[i].result, 1);
      waiter->times[(uintptr_t)cqes[i].userdata]++;
    }
    *waiter->left -= got;
  }
  return NULL;
}

/* One thread prepares and submits, three wait; each operation completes once. */
static void waiters_share_completions(void **state) {
  struct world *world = *state;
  struct pair pair = rings(world, 16);
  static _Atomic uint8_t times[MANY];
  _Atomic int left = MANY;
  struct waiter waiter = {&pair.reading, &left, times};
  pthread_t threads[3];
  memset(times, 0, sizeof times);
  for (int i = 0; i < 3; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, wait_for_some, &waiter), 0);
  for (uintptr_t i = 0; i < MANY;) {
    int index = hf3fs_prep_io(&pair.reading, &world->iov, true, world->iov.base + i % 4096,
                              world->file, 0, 1, (void *)i);
    if (index >= 0)
      i++;
    else
      assert_int_equal(index, -EAGAIN);
    if (index < 0 || i % 4 == 0)
      assert_int_equal(hf3fs_submit_ios(&pair.reading), 0);
    if (index < 0)
      usleep(10);
  }
  for (int i = 0; i < 3; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < MANY; i++)
    assert_int_equal(times[i], 1);
  end_rings(&pair);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(invalid_arguments_are_rejected),
      world_test(destroyed_buffers_are_rejected),
      world_test(records_match_3fs),
      world_test(written_data_is_read),
      world_test(a_full_ring_gives_eagain),
      world_test(a_ring_wraps_many_times),
      world_test(waiters_share_completions),
  };
  return cmocka_run_group_tests_name("usrbio/operations", tests, NULL, NULL);
}
