/* SPDX-License-Identifier: MIT
 * A table of pages that are never freed, so a reader may look at any time. Each entry has a
 * version, odd while it is being written: a reader that finds it odd, or another one than before,
 * looks again. */
#include "fds.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"

#define PAGE  1024 /* entries */
#define PAGES 4096 /* kernels allow a million descriptors, unless they are told otherwise */

enum { REGISTERED = 1, READS = 2, WRITES = 4 };

struct entry {
  _Atomic uint32_t version;
  _Atomic uint32_t state;
  _Atomic uint64_t inode;
  int other; /* descriptor of the same registration; under `lock` */
  bool duplicate;
};

static struct entry *_Atomic pages[PAGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for writing */

static void before_fork(void) {
  pthread_mutex_lock(&lock);
}

static void after_fork(void) {
  pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork, after_fork);
}

/* NULL: no file of this number was ever registered. */
static struct entry *entry_of(int fd) {
  if (fd < 0 || fd / PAGE >= PAGES)
    return NULL;
  /* Pairs with make_entry: the page is full of zeros. */
  struct entry *page = atomic_load_explicit(&pages[fd / PAGE], memory_order_acquire);
  return page ? &page[fd % PAGE] : NULL;
}

/* Under `lock`. */
static struct entry *make_entry(int fd) {
  if (!entry_of(fd) && fd >= 0 && fd / PAGE < PAGES)
    atomic_store_explicit(&pages[fd / PAGE], calloc(PAGE, sizeof(struct entry)),
                          memory_order_release);
  return entry_of(fd);
}

static bool is_registered(struct entry *entry) {
  return entry && atomic_load_explicit(&entry->state, memory_order_relaxed) & REGISTERED;
}

/* Under `lock`. Each release keeps the stores before it where they are, so who sees one of the two
 * values also sees that the version is not what it was. */
static void write_entry(struct entry *entry, uint64_t inode, uint32_t state) {
  uint32_t version = atomic_load_explicit(&entry->version, memory_order_relaxed);
  atomic_store_explicit(&entry->version, version + 1, memory_order_relaxed);
  atomic_store_explicit(&entry->inode, inode, memory_order_release);
  atomic_store_explicit(&entry->state, state, memory_order_release);
  atomic_store_explicit(&entry->version, version + 2, memory_order_release);
}

/* False: it was being written. Each acquire keeps the loads behind it where they are. */
static bool read_entry(struct entry *entry, uint64_t *inode, uint32_t *state) {
  uint32_t version = atomic_load_explicit(&entry->version, memory_order_acquire);
  *inode = atomic_load_explicit(&entry->inode, memory_order_acquire);
  *state = atomic_load_explicit(&entry->state, memory_order_acquire);
  return version % 2 == 0 && version == atomic_load_explicit(&entry->version, memory_order_relaxed);
}

/* -1: there is no such descriptor. */
static int number_of(int fd) {
  return fd >= 0 ? fd : fd > -PAGE * PAGES ? -fd : -1;
}

bool fds_find(int fd, struct file *file) {
  uint32_t state;
  struct entry *entry = entry_of(number_of(fd));
  if (!entry)
    return false;
  while (!read_entry(entry, &file->inode, &state))
    ;
  file->reads = state & READS;
  file->writes = state & WRITES;
  return state & REGISTERED;
}

static uint32_t state_of(int flags) {
  switch (flags & O_ACCMODE) {
  case O_RDONLY:
    return REGISTERED | READS;
  case O_WRONLY:
    return REGISTERED | WRITES;
  default:
    return REGISTERED | READS | WRITES;
  }
}

/* Under `lock`. A duplicate whose number is not registered: such a one was closed without being
 * deregistered. A negative errno value: there is
 * none. */
static int duplicate(int fd) {
  int least = 0;
  for (;;) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, least);
    if (copy < 0)
      return -errno;
    struct entry *entry = make_entry(copy);
    if (entry && !is_registered(entry))
      return copy;
    close(copy);
    if (!entry)
      return copy / PAGE >= PAGES ? -EMFILE : -ENOMEM;
    least = copy + 1;
  }
}

/* Under `lock`. The duplicate, or a negative errno value. */
static int enter(int fd, uint64_t inode, uint32_t state) {
  struct entry *entry = make_entry(fd);
  if (!entry)
    return fd / PAGE >= PAGES ? -EMFILE : -ENOMEM;
  if (is_registered(entry))
    return -EINVAL;
  int copy = duplicate(fd);
  if (copy < 0)
    return copy;
  struct entry *other = entry_of(copy);
  entry->other = copy;
  entry->duplicate = false;
  other->other = fd;
  other->duplicate = true;
  write_entry(entry, inode, state);
  write_entry(other, inode, state);
  return copy;
}

int hf3fs_reg_fd(int fd, uint64_t flags) {
  struct statx found;
  (void)flags;
  if (!hf3fs_is_hf3fs(fd))
    return EBADF;
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &found) != 0)
    return errno;
  int mode = fcntl(fd, F_GETFL);
  if (mode < 0)
    return errno;
  pthread_mutex_lock(&lock);
  int copy = enter(fd, found.stx_ino, state_of(mode));
  pthread_mutex_unlock(&lock);
  return -copy;
}

/* Under `lock`. The duplicate; -1: not registered. */
static int leave(int fd) {
  struct entry *entry = entry_of(fd);
  if (!is_registered(entry))
    return -1;
  int other = entry->other;
  write_entry(entry, 0, 0);
  write_entry(entry_of(other), 0, 0);
  return entry->duplicate ? fd : other;
}

/* A program that closes descriptors it does not know may have made something else of it. */
static bool is_still(int fd, uint64_t inode) {
  struct statx found;
  return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &found) == 0 &&
         found.stx_ino == inode;
}

void hf3fs_dereg_fd(int fd) {
  struct file file = {.inode = 0};
  pthread_mutex_lock(&lock);
  fd = number_of(fd);
  fds_find(fd, &file);
  int copy = leave(fd);
  pthread_mutex_unlock(&lock);
  if (copy >= 0 && is_still(copy, file.inode))
    close(copy);
}
