/* SPDX-License-Identifier: MIT */
#include "storage/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/list.h"

#define BUCKETS         1024u
#define READER_RETRY_NS INT64_C(1000000000) /* as libhaul's, for memory that a NIC refused */

struct opening {
  struct list link; /* entry->openings */
  struct entry *entry;
  struct remote_file *remote; /* NULL: the entry has a descriptor */
  uid_t uid;
  bool may[FILE_DIRECTIONS];
};

struct entry {
  struct file file;
  struct list link;            /* in a bucket, while there are openings; the files' lock */
  struct list openings;        /* the files' lock */
  _Atomic unsigned references; /* one for each opening and each use */
};

struct files {
  pthread_rwlock_t lock; /* guards the buckets and their openings; no lock is taken after it */
  struct list buckets[BUCKETS];
};

struct remote_file *remote_file_new(struct source *source, struct source_file *file) {
  struct remote_file *remote = malloc(sizeof *remote);
  if (!remote)
    return NULL;
  *remote = (struct remote_file){.source = source, .file = file, .references = 1};
  return remote;
}

void remote_file_put(struct remote_file *remote) {
  if (!remote || atomic_fetch_sub_explicit(&remote->references, 1, memory_order_acq_rel) != 1)
    return;
  remote->source->ops->release(remote->source, remote->file);
  free(remote);
}

bool remote_file_put_unless_last(struct remote_file *remote) {
  unsigned references = atomic_load_explicit(&remote->references, memory_order_relaxed);
  while (references > 1)
    if (atomic_compare_exchange_weak_explicit(&remote->references, &references, references - 1,
                                              memory_order_acq_rel, memory_order_relaxed))
      return true;
  return false;
}

static struct list *entry_bucket(struct files *files, uint64_t inode) {
  return &files->buckets[(inode * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

/* With the lock. */
static struct entry *find_entry(struct files *files, uint64_t inode) {
  list_each(item, entry_bucket(files, inode)) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (entry->file.inode == inode)
      return entry;
  }
  return NULL;
}

void file_put(struct file *file) {
  struct entry *entry = list_entry(file, struct entry, file);
  if (atomic_fetch_sub_explicit(&entry->references, 1, memory_order_acq_rel) != 1)
    return;
  for (unsigned i = 0; i < FILE_DIRECTIONS; i++) {
    int direct = atomic_load(&file->direct[i]);
    if (file->fd[i] >= 0)
      close(file->fd[i]);
    if (direct >= 0)
      close(direct);
  }
  haul_file_close(atomic_load(&file->reader));
  free(entry);
}

static struct entry *new_entry(uint64_t inode) {
  struct entry *entry = calloc(1, sizeof *entry);
  if (!entry)
    return NULL;
  entry->file.inode = inode;
  for (unsigned i = 0; i < FILE_DIRECTIONS; i++) {
    entry->file.fd[i] = -1;
    atomic_init(&entry->file.direct[i], DIRECT_UNKNOWN);
  }
  list_init(&entry->link);
  list_init(&entry->openings);
  return entry;
}

/* With the lock. Duplicates the descriptor for the directions that the file lacks. */
static int add_descriptors(struct file *file, const struct file_open *open) {
  for (unsigned i = 0; i < FILE_DIRECTIONS; i++) {
    if (open->fd < 0 || !open->may[i] || file->fd[i] >= 0)
      continue;
    file->fd[i] = fcntl(open->fd, F_DUPFD_CLOEXEC, 3);
    if (file->fd[i] < 0)
      return -errno;
  }
  return 0;
}

/* With the lock. */
static int add_opening(struct files *files, struct opening *opening, const struct file_open *open) {
  struct entry *entry = find_entry(files, open->inode);
  bool known = entry != NULL;
  if (!known)
    entry = new_entry(open->inode);
  if (!entry)
    return -ENOMEM;
  atomic_fetch_add_explicit(&entry->references, 1, memory_order_relaxed);
  int code = add_descriptors(&entry->file, open);
  if (code) {
    file_put(&entry->file);
    return code;
  }
  if (!known)
    list_append(entry_bucket(files, open->inode), &entry->link);
  opening->entry = entry;
  /* The newest first: earlier remote ones may have lost their server. */
  list_prepend(&entry->openings, &opening->link);
  return 0;
}

int files_add(struct files *files, const struct file_open *open, uint64_t *handle) {
  struct opening *opening = malloc(sizeof *opening);
  if (!opening)
    return -ENOMEM;
  *opening = (struct opening){.remote = open->remote,
                              .uid = open->uid,
                              .may = {open->may[FILE_READ], open->may[FILE_WRITE]}};
  pthread_rwlock_wrlock(&files->lock);
  int code = add_opening(files, opening, open);
  pthread_rwlock_unlock(&files->lock);
  if (code) {
    free(opening);
    return code;
  }
  if (opening->remote)
    remote_file_get(opening->remote);
  *handle = (uintptr_t)opening;
  return 0;
}

void files_remove(struct files *files, uint64_t handle) {
  struct opening *opening = (struct opening *)(uintptr_t)handle;
  struct entry *entry = opening->entry;
  pthread_rwlock_wrlock(&files->lock);
  list_remove(&opening->link);
  if (list_empty(&entry->openings))
    list_remove(&entry->link);
  pthread_rwlock_unlock(&files->lock);
  remote_file_put(opening->remote);
  free(opening);
  file_put(&entry->file);
}

/* With the lock. */
static int check_openings(const struct entry *entry, uid_t uid, enum file_direction direction,
                          struct remote_file **remote) {
  bool opened = false;
  list_each(item, &entry->openings) {
    const struct opening *opening = list_entry(item, struct opening, link);
    if (opening->uid != uid)
      continue;
    opened = true;
    if (opening->may[direction]) {
      *remote = opening->remote;
      return 0;
    }
  }
  return opened ? -EACCES : -EBADF;
}

int files_get(struct files *files, uint64_t inode, uid_t uid, enum file_direction direction,
              struct file **file, struct remote_file **remote) {
  pthread_rwlock_rdlock(&files->lock);
  struct entry *entry = find_entry(files, inode);
  int code = entry ? check_openings(entry, uid, direction, remote) : -EBADF;
  if (code == 0) {
    atomic_fetch_add_explicit(&entry->references, 1, memory_order_relaxed);
    if (*remote)
      remote_file_get(*remote);
    *file = &entry->file;
  }
  pthread_rwlock_unlock(&files->lock);
  return code;
}

/* From the file system (statx, since Linux 6.1), else a page. False: it has no O_DIRECT. */
static bool read_alignment(struct file *file, int fd) {
  struct statx stx = {0};
  uint32_t memory_align = 4096, offset_align = 4096;
#ifdef STATX_DIOALIGN
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN)) {
    memory_align = stx.stx_dio_mem_align;
    offset_align = stx.stx_dio_offset_align;
  }
#else
  (void)stx;
  (void)fd;
#endif
  if (memory_align == 0 || offset_align == 0)
    return false;
  atomic_store_explicit(&file->memory_align, memory_align, memory_order_relaxed);
  atomic_store_explicit(&file->offset_align, offset_align, memory_order_relaxed);
  return true;
}

static int open_direct(struct file *file, enum file_direction direction) {
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd[direction]);
  int flags = (direction == FILE_READ ? O_RDONLY : O_WRONLY) | O_DIRECT | O_CLOEXEC | O_NOCTTY;
  int fd = open(path, flags);
  if (fd >= 0 && read_alignment(file, fd))
    return fd;
  if (fd >= 0)
    close(fd);
  return DIRECT_UNSUPPORTED;
}

int file_direct(struct file *file, enum file_direction direction) {
  int known = atomic_load_explicit(&file->direct[direction], memory_order_acquire);
  if (known != DIRECT_UNKNOWN)
    return known;
  int opened = open_direct(file, direction);
  if (atomic_compare_exchange_strong(&file->direct[direction], &known, opened))
    return opened;
  if (opened >= 0)
    close(opened);
  return known; /* another thread's, which found the same alignment */
}

haul_file *file_reader(struct file *file, int64_t now) {
  haul_file *reader = atomic_load_explicit(&file->reader, memory_order_acquire), *opened;
  if (now < atomic_load_explicit(&file->reader_at, memory_order_relaxed))
    return NULL;
  if (reader)
    return reader;
  if (file->fd[FILE_READ] < 0 || haul_file_open(file->fd[FILE_READ], &opened) != 0) {
    file_reader_staged(file, now);
    return NULL;
  }
  if (atomic_compare_exchange_strong(&file->reader, &reader, opened))
    return opened;
  haul_file_close(opened);
  return reader; /* another thread's */
}

void file_reader_staged(struct file *file, int64_t now) {
  atomic_store_explicit(&file->reader_at, now + READER_RETRY_NS, memory_order_relaxed);
}

int files_open(struct files **out) {
  struct files *files = malloc(sizeof *files);
  if (!files)
    return -ENOMEM;
  pthread_rwlock_init(&files->lock, NULL);
  for (unsigned i = 0; i < BUCKETS; i++)
    list_init(&files->buckets[i]);
  *out = files;
  return 0;
}

/* The file system has released its handles, except those that a forced unmount left. */
void files_close(struct files *files) {
  if (!files)
    return;
  for (unsigned i = 0; i < BUCKETS; i++)
    while (!list_empty(&files->buckets[i])) {
      struct entry *entry = list_entry(files->buckets[i].next, struct entry, link);
      struct opening *opening = list_entry(entry->openings.next, struct opening, link);
      files_remove(files, (uintptr_t)opening);
    }
  pthread_rwlock_destroy(&files->lock);
  free(files);
}
