/* SPDX-License-Identifier: MIT */
#include "storage/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/list.h"
#include "storage/far.h"

#define BUCKETS 1024u

/* One open of one user's. */
struct opening {
  struct list link; /* entry->openings */
  struct entry *entry;
  struct far *far; /* NULL: the entry has a descriptor */
  uid_t uid;
  bool may[FILE_WAYS];
};

/* A file with the count of its openings and uses; whoever takes it to 0 ends it. */
struct entry {
  struct file file;
  struct list link;     /* the bucket, while there are openings; the files' lock */
  struct list openings; /* the files' lock */
  _Atomic unsigned holds;
};

struct files {
  pthread_rwlock_t lock; /* the buckets and the openings in them; nothing is taken after it */
  struct list buckets[BUCKETS];
};

static struct list *bucket_of(struct files *files, uint64_t inode) {
  return &files->buckets[(inode * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

static struct entry *find(struct files *files, uint64_t inode) {
  list_each(item, bucket_of(files, inode)) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (entry->file.inode == inode)
      return entry;
  }
  return NULL;
}

static void put(struct entry *entry) {
  if (atomic_fetch_sub_explicit(&entry->holds, 1, memory_order_acq_rel) != 1)
    return;
  for (unsigned way = 0; way < FILE_WAYS; way++) {
    if (entry->file.fd[way] >= 0)
      close(entry->file.fd[way]);
    if (atomic_load(&entry->file.direct[way]) >= 0)
      close(atomic_load(&entry->file.direct[way]));
  }
  free(entry);
}

static struct entry *new_entry(uint64_t inode) {
  struct entry *entry = calloc(1, sizeof *entry);
  if (!entry)
    return NULL;
  entry->file.inode = inode;
  for (unsigned way = 0; way < FILE_WAYS; way++) {
    entry->file.fd[way] = -1;
    atomic_init(&entry->file.direct[way], DIRECT_UNKNOWN);
  }
  list_init(&entry->link);
  list_init(&entry->openings);
  return entry;
}

/* With the lock: the descriptors that the entry lacks. */
static int take_descriptors(struct entry *entry, int fd, const bool may[FILE_WAYS]) {
  for (unsigned way = 0; way < FILE_WAYS; way++) {
    if (fd < 0 || !may[way] || entry->file.fd[way] >= 0)
      continue;
    entry->file.fd[way] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (entry->file.fd[way] < 0)
      return -errno;
  }
  return 0;
}

/* With the lock. */
static int add(struct files *files, struct opening *opening, uint64_t inode, int fd) {
  struct entry *entry = find(files, inode), *made = NULL;
  if (!entry)
    entry = made = new_entry(inode);
  if (!entry)
    return -ENOMEM;
  atomic_fetch_add_explicit(&entry->holds, 1, memory_order_relaxed);
  int code = take_descriptors(entry, fd, opening->may);
  if (code) {
    put(entry);
    return code;
  }
  if (made)
    list_append(bucket_of(files, inode), &entry->link);
  opening->entry = entry;
  /* The newest first: far ones of before may have lost their server. */
  list_prepend(&entry->openings, &opening->link);
  return 0;
}

int files_opened(struct files *files, const struct files_open_file *file, uid_t uid, bool reads,
                 bool writes, uint64_t *handle) {
  struct opening *opening = malloc(sizeof *opening);
  if (!opening)
    return -ENOMEM;
  *opening = (struct opening){.far = file->far, .uid = uid, .may = {reads, writes}};
  pthread_rwlock_wrlock(&files->lock);
  int code = add(files, opening, file->inode, file->fd);
  pthread_rwlock_unlock(&files->lock);
  if (code) {
    free(opening);
    return code;
  }
  if (opening->far)
    far_hold(opening->far);
  *handle = (uintptr_t)opening;
  return 0;
}

void files_closed(struct files *files, uint64_t handle) {
  struct opening *opening = (struct opening *)(uintptr_t)handle;
  struct entry *entry = opening->entry;
  pthread_rwlock_wrlock(&files->lock);
  list_remove(&opening->link);
  if (list_empty(&entry->openings))
    list_remove(&entry->link);
  pthread_rwlock_unlock(&files->lock);
  far_put(opening->far);
  free(opening);
  put(entry);
}

/* With the lock. */
static int check(const struct entry *entry, uid_t uid, enum file_way way, struct far **far) {
  bool known = false;
  list_each(item, &entry->openings) {
    const struct opening *opening = list_entry(item, struct opening, link);
    if (opening->uid == uid && opening->may[way]) {
      *far = opening->far;
      return 0;
    }
    known |= opening->uid == uid;
  }
  return known ? -EACCES : -EBADF;
}

int files_get(struct files *files, uint64_t inode, uid_t uid, enum file_way way, struct file **file,
              struct far **far) {
  pthread_rwlock_rdlock(&files->lock);
  struct entry *entry = find(files, inode);
  int code = entry ? check(entry, uid, way, far) : -EBADF;
  if (code == 0)
    atomic_fetch_add_explicit(&entry->holds, 1, memory_order_relaxed);
  if (code == 0 && *far)
    far_hold(*far);
  pthread_rwlock_unlock(&files->lock);
  if (code == 0)
    *file = &entry->file;
  return code;
}

void files_put(struct file *file) {
  put(list_entry(file, struct entry, file));
}

/* ---- O_DIRECT ---- */

/* What the file system says it wants (statx, from Linux 6.1 on), or a page. False: it has none. */
static bool ask_alignment(struct file *file, int fd) {
  struct statx stx = {0};
  file->memory_align = file->offset_align = 4096;
#ifdef STATX_DIOALIGN
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN)) {
    file->memory_align = stx.stx_dio_mem_align;
    file->offset_align = stx.stx_dio_offset_align;
  }
#else
  (void)stx;
  (void)fd;
#endif
  return file->memory_align > 0 && file->offset_align > 0;
}

static int open_direct(struct file *file, enum file_way way) {
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd[way]);
  int flags = (way == FILE_READS ? O_RDONLY : O_WRONLY) | O_DIRECT | O_CLOEXEC | O_NOCTTY;
  int fd = open(path, flags);
  if (fd >= 0 && ask_alignment(file, fd))
    return fd;
  if (fd >= 0)
    close(fd);
  return DIRECT_REFUSED;
}

int file_direct(struct file *file, enum file_way way) {
  int known = atomic_load_explicit(&file->direct[way], memory_order_acquire);
  if (known != DIRECT_UNKNOWN)
    return known;
  int found = open_direct(file, way);
  if (atomic_compare_exchange_strong(&file->direct[way], &known, found))
    return found;
  if (found >= 0)
    close(found);
  return known; /* another thread's, who found the same alignment */
}

/* ---- Life ---- */

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

/* The file system has released what it had opened, but for what a killed one left. */
void files_close(struct files *files) {
  if (!files)
    return;
  for (unsigned i = 0; i < BUCKETS; i++)
    while (!list_empty(&files->buckets[i])) {
      struct entry *entry = list_entry(files->buckets[i].next, struct entry, link);
      struct opening *opening = list_entry(entry->openings.next, struct opening, link);
      files_closed(files, (uintptr_t)opening);
    }
  pthread_rwlock_destroy(&files->lock);
  free(files);
}
