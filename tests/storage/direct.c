/* SPDX-License-Identifier: MIT
 * O_DIRECT of a file that two threads begin to use at the same time, one for each direction. Only
 * the thread sanitizer sees a race here. */
#include "support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "storage/files.h"

#define ROUNDS 200

static pthread_barrier_t barrier;
static struct file *shared_file;

static void *read_directly(void *unused) {
  for (int i = 0; i < ROUNDS; i++) {
    pthread_barrier_wait(&barrier);
    if (file_direct(shared_file, FILE_READ) >= 0 &&
        (shared_file->memory_align == 0 || shared_file->offset_align == 0))
      abort();
    pthread_barrier_wait(&barrier);
  }
  return unused;
}

static void directions_open_at_the_same_time(void **state) {
  (void)state;
  char path[] = "/var/tmp/haul-direct-XXXXXX";
  int fd = mkstemp(path);
  pthread_t thread;
  struct file file = {.fd = {fd, fd}};
  assert_true(fd >= 0);
  shared_file = &file;
  pthread_barrier_init(&barrier, NULL, 2);
  file.direct[0] = file.direct[1] = DIRECT_UNKNOWN;
  assert_int_equal(pthread_create(&thread, NULL, read_directly, NULL), 0);
  for (int i = 0; i < ROUNDS; i++) {
    pthread_barrier_wait(&barrier);
    file_direct(&file, FILE_WRITE);
    pthread_barrier_wait(&barrier);
    for (int j = 0; j < FILE_DIRECTIONS; j++) {
      int direct = atomic_exchange(&file.direct[j], DIRECT_UNKNOWN);
      if (direct >= 0)
        close(direct);
    }
  }
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&barrier);
  close(fd);
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(directions_open_at_the_same_time)};
  return cmocka_run_group_tests_name("storage/direct", tests, NULL, NULL);
}
