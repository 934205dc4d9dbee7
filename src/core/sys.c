/* SPDX-License-Identifier: MIT */
#include "core/sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"

static int64_t read_clock(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t monotonic(void) {
  return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_cpu(void) {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

/* process_vm_writev(2) by number: the address sanitizer's wrapper reads the local side first, and
 * callers use the call to find out whether that side is readable. */
static ssize_t vm_write(pid_t pid, const struct iovec *local, unsigned long locals,
                        const struct iovec *remote, unsigned long remotes, unsigned long flags) {
  return syscall(SYS_process_vm_writev, pid, local, locals, remote, remotes, flags);
}

/* mbind(2) by number, as its C wrapper is in libnuma. */
static long bind_memory(void *address, size_t length, int mode, const unsigned long *nodes,
                        unsigned long bits, unsigned flags) {
  return syscall(SYS_mbind, address, length, mode, nodes, bits, flags);
}

ssize_t file_read(const char *path, char *text, size_t size) {
  ssize_t got = -1;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    got = read(fd, text, size - 1);
    close(fd);
  }
  text[got > 0 ? got : 0] = '\0';
  return got;
}

/* The file holds "0", or a list such as "0-1" or "0,2". */
static bool has_nodes(void) {
  static _Atomic int known;
  if (known == 0) {
    char text[64];
    file_read("/sys/devices/system/node/online", text, sizeof text);
    known = text[strcspn(text, ",-")] ? 2 : 1;
  }
  return known == 2;
}

struct sys_ops sys_ops = {
    .monotonic = monotonic,
    .memfd_create = memfd_create,
    .mmap = mmap,
    .socket = socket,
    .sendmsg = sendmsg,
    .recvmsg = recvmsg,
    .vm_read = process_vm_readv,
    .vm_write = vm_write,
    .getaddrinfo = getaddrinfo,
    .uname = uname,
    .has_nodes = has_nodes,
    .mbind = bind_memory,
};

bool kernel_is_before(const char *version, struct utsname *kernel) {
  return sys_ops.uname(kernel) == 0 && kernel->release[0] &&
         strverscmp(kernel->release, version) < 0;
}

int64_t clock_after(int64_t from, int64_t nanoseconds) {
  int64_t at;
  if (__builtin_add_overflow(from, nanoseconds, &at))
    return HAUL_FOREVER;
  return at;
}

HAUL_API haul_deadline haul_deadline_in(int64_t nanoseconds) {
  return clock_after(clock_now(), nanoseconds);
}

void random_bytes(void *bytes, size_t length) {
  uint8_t *at = bytes;
  while (length > 0) {
    ssize_t got = getrandom(at, length < 256 ? length : 256, 0);
    if (got <= 0)
      continue;
    at += got;
    length -= (size_t)got;
  }
}

void boot_id(uint8_t id[16]) {
  static const char hex[] = "0123456789abcdef";
  char text[40];
  size_t digits = 0;
  memset(id, 0, 16);
  file_read("/proc/sys/kernel/random/boot_id", text, sizeof text);
  for (const char *at = text; *at && digits < 32; at++) {
    const char *digit = strchr(hex, *at);
    if (!digit)
      continue;
    id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | (digit - hex));
    digits++;
  }
}
