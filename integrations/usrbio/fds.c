/* SPDX-License-Identifier: MIT
 * Registered files, in a table by descriptor. While a file is registered, the duplicate keeps it
 * open, so that no other file of its mount gets its inode number. Its pages are never freed, so
 * readers need no lock. Each entry has a version, which is odd while the entry is written: a reader
 * that finds an odd version, or a change of it, reads again. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "client.h"

#define PAGE_ENTRIES 1024
#define PAGES        4096 /* 4,194,304 descriptors; the kernel allows 1,048,576 by default */

enum { REGISTERED = 1, READS = 2, WRITES = 4 };

struct entry {
  _Atomic uint32_t version;
  _Atomic uint32_t state;
  _Atomic uint64_t mount, inode;
  int other; /* the other descriptor of the registration; under LOCK_FILES */
  bool duplicate;
};

static struct entry *_Atomic pages[PAGES];

/* NULL: no file with this number was ever registered. */
static struct entry *entry_of(int fd) {
  if (fd < 0 || fd / PAGE_ENTRIES >= PAGES)
    return NULL;
  /* Pairs with make_entry: the page is zeroed. */
  struct entry *page = atomic_load_explicit(&pages[fd / PAGE_ENTRIES], memory_order_acquire);
  return page ? &page[fd % PAGE_ENTRIES] : NULL;
}

/* With the lock. NULL, and errno is ENOMEM or EMFILE. */
static struct entry *make_entry(int fd) {
  if (fd < 0 || fd / PAGE_ENTRIES >= PAGES) {
    errno = EMFILE;
    return NULL;
  }
  if (!entry_of(fd))
    atomic_store_explicit(&pages[fd / PAGE_ENTRIES], calloc(PAGE_ENTRIES, sizeof(struct entry)),
                          memory_order_release);
  return entry_of(fd);
}

static bool is_registered(struct entry *entry) {
  return entry && atomic_load_explicit(&entry->state, memory_order_relaxed) & REGISTERED;
}

/* With the lock. Each release keeps earlier stores before it: a reader that sees a new value also
 * sees that the version has changed. */
static void write_entry(struct entry *entry, const struct file *file, uint32_t state) {
  uint32_t version = atomic_load_explicit(&entry->version, memory_order_relaxed);
  atomic_store_explicit(&entry->version, version + 1, memory_order_relaxed);
  atomic_store_explicit(&entry->mount, file->mount, memory_order_release);
  atomic_store_explicit(&entry->inode, file->inode, memory_order_release);
  atomic_store_explicit(&entry->state, state, memory_order_release);
  atomic_store_explicit(&entry->version, version + 2, memory_order_release);
}

/* False: it is being written. Each acquire keeps later loads behind it. */
static bool read_entry(struct entry *entry, struct file *file, uint32_t *state) {
  uint32_t version = atomic_load_explicit(&entry->version, memory_order_acquire);
  file->mount = atomic_load_explicit(&entry->mount, memory_order_acquire);
  file->inode = atomic_load_explicit(&entry->inode, memory_order_acquire);
  *state = atomic_load_explicit(&entry->state, memory_order_acquire);
  return version % 2 == 0 && version == atomic_load_explicit(&entry->version, memory_order_relaxed);
}

/* Users may pass the negative of a descriptor. -1: it is none. */
static int descriptor_of(int fd) {
  return fd >= 0 ? fd : fd > -PAGE_ENTRIES * PAGES ? -fd : -1;
}

bool fds_find(int fd, struct file *file) {
  uint32_t state;
  struct entry *entry = entry_of(descriptor_of(fd));
  if (!entry)
    return false;
  while (!read_entry(entry, file, &state))
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

/* With the lock. A duplicate whose number is not registered, or a negative errno value. A
 * registered number can be free: its file was closed without hf3fs_dereg_fd. */
static int duplicate(int fd) {
  int least = 0;
  for (;;) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, least);
    if (copy < 0)
      return -errno;
    struct entry *entry = make_entry(copy);
    int code = entry ? 0 : -errno;
    if (entry && !is_registered(entry))
      return copy;
    close(copy);
    if (code)
      return code;
    least = copy + 1;
  }
}

/* With the lock. The duplicate, or a negative errno value. */
static int register_file(int fd, const struct file *file, uint32_t state) {
  struct entry *entry = make_entry(fd);
  if (!entry)
    return -errno;
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
  write_entry(entry, file, state);
  write_entry(other, file, state);
  return copy;
}

/* From the kernel's cache, without the daemon. */
static int inode_of(int fd, uint64_t *inode) {
  struct statx found;
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &found) != 0)
    return errno;
  *inode = found.stx_ino;
  return 0;
}

int hf3fs_reg_fd(int fd, uint64_t flags) {
  struct file file = {.mount = mount_id_of(fd)};
  (void)flags;
  if (!file.mount)
    return errno == ENOTCONN || errno == ECONNABORTED ? ENOTCONN : EBADF;
  int code = inode_of(fd, &file.inode);
  int mode = fcntl(fd, F_GETFL);
  if (code || mode < 0)
    return code ? code : errno;
  pthread_mutex_lock(&client_locks[LOCK_FILES]);
  int copy = register_file(fd, &file, state_of(mode));
  pthread_mutex_unlock(&client_locks[LOCK_FILES]);
  return -copy;
}

/* With the lock. The duplicate; -1: it is not registered. */
static int deregister_file(int fd) {
  struct entry *entry = entry_of(fd);
  if (!is_registered(entry))
    return -1;
  struct entry *other = entry_of(entry->other);
  const struct file none = {0};
  write_entry(entry, &none, 0);
  if (other) /* always: registration made it, which the compiler does not see */
    write_entry(other, &none, 0);
  return entry->duplicate ? fd : entry->other;
}

/* Closes the duplicate, unless the program has closed descriptors that it does not know, and the
 * number means another file now. */
void hf3fs_dereg_fd(int fd) {
  struct file file = {0};
  uint64_t inode = 0;
  pthread_mutex_lock(&client_locks[LOCK_FILES]);
  int copy = fds_find(fd, &file) ? deregister_file(descriptor_of(fd)) : -1;
  pthread_mutex_unlock(&client_locks[LOCK_FILES]);
  if (copy >= 0 && inode_of(copy, &inode) == 0 && inode == file.inode)
    close(copy);
}
