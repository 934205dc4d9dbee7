/* SPDX-License-Identifier: MIT */
#include "seams.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

struct seams seams;

#pragma GCC visibility push(default) /* before the C library's, for the module */

static ssize_t fail(int code) {
  errno = code;
  return -1;
}

static bool is_direct(int fd) {
  int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && flags & O_DIRECT;
}

ssize_t pread(int fd, void *to, size_t length, off_t offset) {
  bool direct = is_direct(fd);
  if (seams.refusal && (direct || seams.all)) {
    if (seams.refuse_after == 0)
      return fail(seams.refusal);
    seams.refuse_after--;
  }
  if (seams.most && length > seams.most)
    length = seams.most;
  ssize_t got = syscall(SYS_pread64, fd, to, length, offset);
  *(direct ? &seams.direct : &seams.cached) += got > 0 ? (size_t)got : 0;
  return got;
}

int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (seams.no_open && flags & O_DIRECT)
    return (int)fail(seams.no_open);
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int statx(int fd, const char *restrict path, int flags, unsigned mask, struct statx *restrict out) {
  int status = (int)syscall(SYS_statx, fd, path, flags, mask, out);
#ifdef STATX_DIOALIGN
  bool changes = seams.no_direct || seams.memory_align;
  if (status == 0 && mask & STATX_DIOALIGN && changes) {
    out->stx_mask |= STATX_DIOALIGN;
    out->stx_dio_mem_align = seams.no_direct ? 0 : seams.memory_align;
    out->stx_dio_offset_align = seams.no_direct ? 0 : seams.offset_align;
  }
#endif
  return status;
}

int fstatfs(int fd, struct statfs *out) {
  int status = (int)syscall(SYS_fstatfs, fd, out);
  if (status == 0 && seams.file_system && is_direct(fd))
    out->f_type = seams.file_system;
  return status;
}

#pragma GCC visibility pop

bool seams_direct_works(const char *folder) {
  int fd = open(folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0)
    return false;
  close(fd);
  return true;
}
