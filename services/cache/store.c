/* SPDX-License-Identifier: MIT */
#include "cache/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/cond.h"
#include "common/fail.h"

#define OPEN  "haul_cache_store_open"
#define STATS "haul_cache_store_stats"

#define LOCK_NS HAUL_SECOND

int64_t cache_now(void) {
  return haul_deadline_in(0);
}

/* ---- Messages ---- */

static void receive(struct haul_cache_store *store) {
  struct haul_message message;
  while (haul_message_receive(store->node, &message, HAUL_NO_WAIT) == 0) {
    bool valid = message.kind == HAUL_MESSAGE && request_is_valid(&message);
    if (valid && ((const struct request *)message.bytes)->kind == REQUEST_PUT) {
      session_submit(store, &message);
      continue;
    }
    if (valid)
      request_execute(store, &message);
    haul_message_release(&message);
  }
}

/* Ends when the node is closed or `wake` is readable. */
static void *run(void *argument) {
  struct haul_cache_store *store = argument;
  struct pollfd entries[] = {{store->wake, POLLIN, 0}, {haul_node_fd(store->node), POLLIN, 0}};
  for (;;) {
    if (poll(entries, 2, -1) < 0 && errno != EINTR)
      return NULL;
    if (entries[0].revents || haul_node_progress(store->node, HAUL_NO_WAIT) < 0)
      return NULL;
    receive(store);
  }
}

/* ---- File ---- */

static int fail_file(const char *path, const char *what, const char *hint) {
  struct haul_error error = {.code = HAUL_ESYSTEM, .system = errno};
  snprintf(error.call, sizeof error.call, OPEN);
  snprintf(error.object, sizeof error.object, "%s", path);
  snprintf(error.text, sizeof error.text, "cannot %s the file of the store: %s", what,
           strerror(error.system));
  snprintf(error.hint, sizeof error.hint, "%s", hint);
  return haul_error_set(&error);
}

static int check_owner(const char *path, const struct stat *status) {
  if (!S_ISREG(status->st_mode))
    return fail(HAUL_EINVAL, OPEN, path, "name a regular file", "it is not a regular file");
  if ((status->st_uid != geteuid() && status->st_uid != 0) || status->st_mode & (S_IWGRP | S_IWOTH))
    return fail(HAUL_EINSECURE, OPEN, path, "chown it to this user, and chmod 600",
                "other users can change the file of the store");
  return 0;
}

/* Peers that are reading a process which was killed keep its memory, and with it the lock, for a
 * moment. */
static bool lock_file(int file) {
  const struct timespec pause = {0, 10 * HAUL_MILLISECOND};
  haul_deadline until = haul_deadline_in(LOCK_NS);
  while (flock(file, LOCK_EX | LOCK_NB)) {
    if (haul_deadline_in(0) >= until)
      return false;
    nanosleep(&pause, NULL);
  }
  return true;
}

/* Opens the file, or creates it; `*created` tells which. */
static int open_or_create(const char *path, bool *created) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int file = open(path, flags | O_CREAT | O_EXCL, 0600);
  *created = file >= 0;
  return file >= 0 || errno != EEXIST ? file : open(path, flags);
}

/* Whether the path still leads to the locked file: another process may have removed it before. */
static bool is_in_place(const char *path, const struct stat *locked) {
  struct stat status;
  return lstat(path, &status) == 0 && status.st_dev == locked->st_dev &&
         status.st_ino == locked->st_ino;
}

static int open_file(struct haul_cache_store *store, const char *path, bool *created,
                     struct stat *status) {
  store->file = open_or_create(path, created);
  if (store->file < 0)
    return fail_file(path, "open", "name a file that this user may create and write");
  if (!lock_file(store->file))
    return fail(HAUL_EBUSY, OPEN, path, "give each store a file of its own",
                "another process has this store open");
  if (fstat(store->file, status))
    return fail_file(path, "examine", "name a file on another file system");
  if (!is_in_place(path, status))
    return fail(HAUL_EBUSY, OPEN, path, "try it again", "another process replaced the file");
  return check_owner(path, status);
}

static int map(struct haul_cache_store *store, const char *path) {
  void *memory = mmap(NULL, store->length, PROT_READ | PROT_WRITE, MAP_SHARED, store->file, 0);
  if (memory == MAP_FAILED)
    return fail_file(path, "map", "name a file in /dev/shm, or a smaller capacity");
  store->memory = memory;
  return 0;
}

/* Empties the file, marks it as being made, and allocates it: memory that is missing later would
 * raise SIGBUS. */
static int allocate(struct haul_cache_store *store, const char *path) {
  const uint64_t mark = STORE_BEING_MADE;
  if (ftruncate(store->file, 0))
    return fail_file(path, "truncate", "remove the file");
  errno = 0;
  if (pwrite(store->file, &mark, sizeof mark, 0) == (ssize_t)sizeof mark)
    errno = posix_fallocate(store->file, 0, (off_t)store->length);
  else if (errno == 0)
    errno = ENOSPC;
  if (errno == 0)
    return 0;
  int code = fail_file(path, "allocate", "set a smaller capacity, or free space there");
  if (ftruncate(store->file, 0)) /* so that the next try finds a new file */
    return code;
  return code;
}

static int create(struct haul_cache_store *store, const struct haul_cache_store_config *config) {
  store->length = index_length(config->capacity, config->blocks);
  if (store->length == 0)
    return fail(HAUL_EINVAL, OPEN, config->path, "set a capacity of 4096 bytes to 8 TiB",
                config->capacity ? "capacity or number of blocks is too large"
                                 : "there is no store in this file, and no capacity for a new one");
  int code = allocate(store, config->path);
  if (code)
    return code;
  code = map(store, config->path);
  if (code)
    return code;
  code = index_create(&store->index, store->memory, config->capacity, config->blocks);
  return code ? fail_memory(OPEN) : 0;
}

static int fail_no_store(int code, const char *path) {
  return fail(code, OPEN, path, "name another file, or remove this one", "the file is no store");
}

static bool has_header(int file, uint64_t length) {
  struct header header;
  return pread(file, &header, sizeof header, 0) == (ssize_t)sizeof header &&
         header_is_sound(&header, length);
}

static int restore(struct haul_cache_store *store, const struct haul_cache_store_config *config,
                   uint64_t length) {
  if (!has_header(store->file, length))
    return fail_no_store(HAUL_EINVAL, config->path);
  store->length = length;
  errno = posix_fallocate(store->file, 0, (off_t)length); /* a copy may have holes */
  if (errno)
    return fail_file(config->path, "allocate", "free space there");
  int code = map(store, config->path);
  if (code)
    return code;
  code = index_restore(&store->index, store->memory, length);
  if (code == HAUL_ENOMEM)
    return fail_memory(OPEN);
  if (code)
    return fail_no_store(code, config->path);
  if (config->capacity == 0 || (config->capacity + UNIT - 1) / UNIT == store->index.units)
    return 0;
  uint64_t capacity = store->index.units * UNIT;
  index_close(&store->index);
  return fail(HAUL_EINVAL, OPEN, config->path, "set that capacity or 0, or remove the file",
              "the store in this file has a capacity of %llu bytes", (unsigned long long)capacity);
}

/* Whether the file is empty, or a store whose making was interrupted: its magic number is stored
 * last. */
static bool is_unfinished(const struct haul_cache_store *store, const struct stat *status) {
  uint64_t magic = 0;
  return status->st_size == 0 ||
         (pread(store->file, &magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
          magic == STORE_BEING_MADE);
}

static int open_memory(struct haul_cache_store *store,
                       const struct haul_cache_store_config *config) {
  struct stat status = {0};
  bool created;
  int code = open_file(store, config->path, &created, &status);
  if (code)
    return code;
  if (!is_unfinished(store, &status))
    return restore(store, config, (uint64_t)status.st_size);
  code = create(store, config);
  if (code && created && status.st_size == 0) /* leave nothing behind */
    unlink(config->path);
  return code;
}

static void close_memory(struct haul_cache_store *store) {
  if (store->memory)
    munmap(store->memory, store->length);
  if (store->file >= 0)
    close(store->file);
}

/* ---- Life ---- */

static int publish(struct haul_cache_store *store) {
  int code = haul_region_wrap(store->node, store->memory, store->length, &store->region);
  if (code)
    return code;
  code = haul_region_publish(store->region, REGION_NAME, HAUL_READ);
  if (code)
    haul_region_release(store->region);
  return code;
}

static int start(struct haul_cache_store *store) {
  store->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (store->wake < 0)
    return fail(HAUL_ELIMIT, OPEN, NULL, "raise the limit of open files (ulimit -n)",
                "cannot open an eventfd: %s", strerror(errno));
  int error = pthread_create(&store->thread, NULL, run, store);
  if (error == 0)
    return 0;
  close(store->wake);
  return fail(HAUL_ELIMIT, OPEN, NULL, "raise the limit of threads (ulimit -u)",
              "cannot start a thread: %s", strerror(error));
}

int haul_cache_store_open(haul_node *node, const struct haul_cache_store_config *config,
                          haul_cache_store **out) {
  if (!node || !config || config->size != sizeof *config || !config->path || !out)
    return fail(HAUL_EINVAL, OPEN, NULL, "start from HAUL_CACHE_STORE_INIT and set path",
                "node, config, its path or store is NULL, or its size is wrong");
  struct haul_cache_store *store = calloc(1, sizeof *store);
  if (!store)
    return fail_memory(OPEN);
  store->node = node;
  store->file = -1;
  pthread_mutex_init(&store->lock, NULL);
  monotonic_cond(&store->session_ended);
  int code = open_memory(store, config);
  if (code)
    goto no_memory;
  code = publish(store);
  if (code)
    goto not_published;
  code = start(store);
  if (code)
    goto not_started;
  *out = store;
  return 0;

not_started:
  haul_region_release(store->region);
not_published:
  index_close(&store->index);
no_memory:
  close_memory(store);
  free(store);
  return code;
}

int haul_cache_store_stats(haul_cache_store *store, struct haul_cache_stats *stats) {
  if (!store || !stats)
    return fail(HAUL_EINVAL, STATS, NULL, "pass both", "store or stats is NULL");
  header_stats(store->index.header, stats);
  return 0;
}

void haul_cache_store_close(haul_cache_store *store) {
  if (!store)
    return;
  while (write(store->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR)
    ;
  pthread_join(store->thread, NULL);
  close(store->wake);
  pthread_mutex_lock(&store->lock);
  store->closing = true;
  pthread_mutex_unlock(&store->lock);
  sessions_end(store);
  haul_region_release(store->region);
  index_close(&store->index);
  close_memory(store);
  pthread_cond_destroy(&store->session_ended);
  pthread_mutex_destroy(&store->lock);
  free(store);
}
