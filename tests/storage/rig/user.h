/* SPDX-License-Identifier: MIT
 * A USRBIO program: a file of a mount, a ring, and a buffer of 8 MiB. For tests that link the
 * client library. */
#ifndef HAUL_TESTS_STORAGE_USER_H
#define HAUL_TESTS_STORAGE_USER_H

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "mounted.h"
#include "support/check.h"

#define USER_BYTES ((size_t)8 << 20)

struct user {
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  int fd;
};

/* `flags`: of open(2). The ring reads for O_RDONLY, else it writes. */
static inline void user_begin(struct user *user, const struct mounted *mounted, const char *name,
                              int flags, uint64_t ring_flags) {
  bool reads = (flags & O_ACCMODE) == O_RDONLY;
  *user = (struct user){.fd = open(at_point(mounted, name), flags | O_CLOEXEC, 0600)};
  assert_true(user->fd >= 0);
  assert_true(hf3fs_reg_fd(user->fd, 0) <= 0);
  assert_int_equal(hf3fs_iovcreate(&user->iov, mounted->point, USER_BYTES, 0, -1), 0);
  assert_int_equal(hf3fs_iorcreate4(&user->ior, mounted->point, 64, reads, 0, 0, -1, ring_flags),
                   0);
}

static inline void user_end(struct user *user) {
  hf3fs_iordestroy(&user->ior);
  hf3fs_iovdestroy(&user->iov);
  hf3fs_dereg_fd(user->fd);
  close(user->fd);
}

static inline int user_prepare(struct user *user, uint64_t at, uint64_t offset, uint64_t length) {
  return hf3fs_prep_io(&user->ior, &user->iov, user->ior.for_read, user->iov.base + at, user->fd,
                       offset, length, NULL);
}

static inline int64_t user_wait(struct user *user, int seconds) {
  struct timespec until;
  struct hf3fs_cqe done;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += seconds;
  return hf3fs_wait_for_ios(&user->ior, &done, 1, 1, &until) == 1 ? done.result : -ETIME;
}

/* Uses the start of the buffer. */
static inline int64_t user_do(struct user *user, uint64_t offset, uint64_t length) {
  int slot = user_prepare(user, 0, offset, length);
  if (slot < 0)
    return slot;
  assert_int_equal(hf3fs_submit_ios(&user->ior), 0);
  return user_wait(user, 30);
}

#endif
