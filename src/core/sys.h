/* SPDX-License-Identifier: MIT
 * System calls that tests replace, to make them fail or to set the time. All others are called
 * directly. */
#ifndef HAUL_CORE_SYS_H
#define HAUL_CORE_SYS_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/utsname.h>

struct sys_ops {
  int64_t (*monotonic)(void);
  int (*memfd_create)(const char *name, unsigned flags);
  void *(*mmap)(void *address, size_t length, int protection, int flags, int descriptor,
                off_t offset);
  int (*socket)(int domain, int type, int protocol);
  ssize_t (*sendmsg)(int socket, const struct msghdr *message, int flags);
  ssize_t (*recvmsg)(int socket, struct msghdr *message, int flags);
  ssize_t (*vm_read)(pid_t pid, const struct iovec *local, unsigned long locals,
                     const struct iovec *remote, unsigned long remotes, unsigned long flags);
  ssize_t (*vm_write)(pid_t pid, const struct iovec *local, unsigned long locals,
                      const struct iovec *remote, unsigned long remotes, unsigned long flags);
  int (*getaddrinfo)(const char *host, const char *port, const struct addrinfo *wanted,
                     struct addrinfo **found);
  int (*uname)(struct utsname *kernel);
  bool (*has_nodes)(void); /* does the host have several NUMA nodes? */
  long (*mbind)(void *address, size_t length, int mode, const unsigned long *nodes,
                unsigned long bits, unsigned flags);
};
extern struct sys_ops sys_ops;

/* CLOCK_MONOTONIC in nanoseconds. */
static inline int64_t clock_now(void) {
  return sys_ops.monotonic();
}

/* CPU time of the process, all its threads, in nanoseconds. */
int64_t clock_cpu(void);

/* `from` + `nanoseconds`, saturating at HAUL_FOREVER. */
int64_t clock_after(int64_t from, int64_t nanoseconds);

/* From getrandom(2), which cannot fail after boot. */
void random_bytes(void *bytes, size_t length);

/* Is the running kernel older than this version, as "5.12"? Fills *kernel. */
bool kernel_is_before(const char *version, struct utsname *kernel);

/* Reads a small file of the kernel's, at most `size` - 1 bytes, and ends them with a zero byte.
 * Returns their number; -1: it cannot be read. */
ssize_t file_read(const char *path, char *text, size_t size);

/* /proc/sys/kernel/random/boot_id, zero if it cannot be read. Equal for processes on one running
 * kernel. */
void boot_id(uint8_t id[16]);

#endif
