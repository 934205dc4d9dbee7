/* SPDX-License-Identifier: MIT
 * Fails each allocation and each descriptor of a call in turn, until the call succeeds. Each
 * failure returns its error and leaves nothing behind. */
#include "usrbio/world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* Mock allocator; sanitizers have their own */

static _Thread_local int left = -1; /* allocations until one fails; -1: none fails */
static _Thread_local bool was_refused;

#ifndef SANITIZED
#define DOUBLE __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
DOUBLE void *malloc(size_t size);
DOUBLE void *calloc(size_t count, size_t size);
DOUBLE void *aligned_alloc(size_t alignment, size_t size);

static bool refuse(void) {
  if (left < 0 || left-- > 0)
    return false;
  was_refused = true;
  errno = ENOMEM;
  return true;
}

void *malloc(size_t size) {
  return refuse() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  return refuse() ? NULL : __libc_calloc(count, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  return refuse() ? NULL : __libc_memalign(alignment, size);
}
#endif

/* The calls; each undoes itself after success */

static int make_buffer(struct world *world) {
  struct hf3fs_iov iov;
  int status = hf3fs_iovcreate(&iov, world->mount, 4096, 0, -1);
  hf3fs_iovdestroy(&iov);
  return status;
}

static int open_buffer(struct world *world) {
  struct hf3fs_iov iov;
  const uint8_t *id = (const uint8_t *)world->iov.id;
  int status = hf3fs_iovopen(&iov, id, world->mount, 4096, 0, -1);
  hf3fs_iovdestroy(&iov);
  return status;
}

static int make_ring(struct world *world) {
  struct hf3fs_ior ior;
  int status = hf3fs_iorcreate(&ior, world->mount, 8, true, 0, -1);
  hf3fs_iordestroy(&ior);
  return status;
}

static int register_file(struct world *world) {
  hf3fs_dereg_fd(world->file);
  int status = hf3fs_reg_fd(world->file, 0);
  return status <= 0 ? 0 : -status;
}

static int link_file(struct world *world) {
  char path[PATH_MAX + 8];
  snprintf(path, sizeof path, "%s/link", world->mount);
  int status = hf3fs_hardlink(world->path, path);
  if (status == 0)
    unlinkat(AT_FDCWD, path, 0);
  return -status;
}

static int (*const calls[])(struct world *) = {make_buffer, open_buffer, make_ring, register_file,
                                               link_file};

static int descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++)
    count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

static void every_allocation_may_fail(void **state) {
  struct world *world = *state;
#ifdef SANITIZED
  skip();
#endif
  for (size_t i = 0; i < COUNT(calls); i++) {
    assert_int_equal(calls[i](world), 0);
    hf3fs_dereg_fd(world->file);
    int before = descriptors(), status;
    for (int n = 0;; n++) {
      was_refused = false;
      left = n;
      status = calls[i](world);
      left = -1;
      assert_true(was_refused || n > 0 || i >= 3); /* the first three allocate memory */
      if (!was_refused)
        break;
      assert_true(status == -ENOMEM || status == 0); /* a call without allocations succeeds */
      hf3fs_dereg_fd(world->file);
      assert_int_equal(descriptors(), before);
      assert_int_equal(daemon_registered(), 1);
    }
    assert_int_equal(status, 0);
  }
}

/* Sets the limit to the lowest free number, then to the next one, and so on. */
static void every_descriptor_may_fail(void **state) {
  struct world *world = *state;
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  for (size_t i = 0; i < COUNT(calls); i++) {
    assert_int_equal(calls[i](world), 0);
    hf3fs_dereg_fd(world->file);
    int before = descriptors(), status = -1;
    int lowest = fcntl(world->file, F_DUPFD_CLOEXEC, 0);
    close(lowest);
    for (int n = 0; status != 0; n++) {
      struct rlimit lower = {.rlim_cur = (rlim_t)(lowest + n), .rlim_max = limit.rlim_max};
      setrlimit(RLIMIT_NOFILE, &lower);
      status = calls[i](world);
      setrlimit(RLIMIT_NOFILE, &limit);
      assert_in_range(n, 0, 64);
      assert_true(status == -EMFILE || status == 0);
      hf3fs_dereg_fd(world->file);
      assert_int_equal(descriptors(), before);
      assert_int_equal(daemon_registered(), 1);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(every_allocation_may_fail),
      world_test(every_descriptor_may_fail),
  };
  return cmocka_run_group_tests_name("usrbio/shortage", tests, NULL, NULL);
}
