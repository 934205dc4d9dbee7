/* SPDX-License-Identifier: MIT */
#include "cache/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/fail.h"

#define OPEN    "haul_cache_store_open"
#define LOCK_NS HAUL_SECOND

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

static int open_file(struct tier *tier, const char *path, bool *created, struct stat *status) {
  tier->file = open_or_create(path, created);
  if (tier->file < 0)
    return fail_file(path, "open",
                     errno == ELOOP ? "name the file itself; symbolic links are not followed"
                                    : "name a file that this user may create and write");
  if (!lock_file(tier->file))
    return fail(HAUL_EBUSY, OPEN, path, "give each store a file of its own",
                "another process has this store open");
  if (fstat(tier->file, status))
    return fail_file(path, "examine", "name a file on another file system");
  if (!is_in_place(path, status))
    return fail(HAUL_EBUSY, OPEN, path, "try it again", "another process replaced the file");
  return check_owner(path, status);
}

static int map(struct tier *tier, const char *path) {
  void *memory = mmap(NULL, tier->length, PROT_READ | PROT_WRITE, MAP_SHARED, tier->file, 0);
  if (memory == MAP_FAILED)
    return fail_file(path, "map", "name a file in /dev/shm, or a smaller capacity");
  tier->memory = memory;
  return 0;
}

/* Empties the file, marks it as being made, and allocates it: memory that is missing later would
 * raise SIGBUS. */
static int allocate(struct tier *tier, const char *path) {
  const uint64_t mark = STORE_BEING_MADE;
  if (ftruncate(tier->file, 0))
    return fail_file(path, "truncate", "remove the file");
  errno = 0;
  if (pwrite(tier->file, &mark, sizeof mark, 0) == (ssize_t)sizeof mark)
    errno = posix_fallocate(tier->file, 0, (off_t)tier->length);
  else if (errno == 0)
    errno = ENOSPC;
  if (errno == 0)
    return 0;
  int code = fail_file(path, "allocate", "set a smaller capacity, or free space there");
  if (ftruncate(tier->file, 0)) /* so that the next try finds a new file */
    return code;
  return code;
}

static int create(struct tier *tier, const struct tier_config *config) {
  tier->length = index_length(config->capacity, config->blocks);
  if (tier->length == 0)
    return fail(HAUL_EINVAL, OPEN, config->path, "set a capacity of 4096 bytes to 8 TiB",
                config->capacity ? "capacity or number of blocks is too large"
                                 : "there is no store in this file, and no capacity for a new one");
  int code = allocate(tier, config->path);
  if (code)
    return code;
  code = map(tier, config->path);
  if (code)
    return code;
  code = index_create(&tier->index, tier->memory, config->capacity, config->blocks);
  return code ? fail_memory(OPEN) : 0;
}

static int fail_no_store(int code, const char *path) {
  return fail(code, OPEN, path, "name another file, or remove this one", "the file is no store");
}

static bool has_header(int file, uint64_t length) {
  struct header header;
  return pread(file, &header, sizeof header, 0) == (ssize_t)sizeof header &&
         header_is_sound(&header, length, 0);
}

static int restore(struct tier *tier, const struct tier_config *config, uint64_t length) {
  if (!has_header(tier->file, length))
    return fail_no_store(HAUL_EINVAL, config->path);
  tier->length = length;
  errno = posix_fallocate(tier->file, 0, (off_t)length); /* a copy may have holes */
  if (errno)
    return fail_file(config->path, "allocate", "free space there");
  int code = map(tier, config->path);
  if (code)
    return code;
  code = index_restore(&tier->index, tier->memory, length);
  if (code == HAUL_ENOMEM)
    return fail_memory(OPEN);
  if (code)
    return fail_no_store(code, config->path);
  if (config->capacity == 0 || (config->capacity + UNIT - 1) / UNIT == tier->index.units)
    return 0;
  uint64_t capacity = tier->index.units * UNIT;
  index_close(&tier->index);
  return fail(HAUL_EINVAL, OPEN, config->path, "set that capacity or none, or remove the file",
              "the store in this file has a capacity of %llu bytes", (unsigned long long)capacity);
}

/* Whether the file is empty, or a store whose making was interrupted: its magic number is stored
 * last. */
static bool is_unfinished(const struct tier *tier, const struct stat *status) {
  uint64_t magic = 0;
  return status->st_size == 0 ||
         (pread(tier->file, &magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
          magic == STORE_BEING_MADE);
}

int tier_open(struct tier *tier, const struct tier_config *config) {
  struct stat status = {0};
  bool created;
  int code = open_file(tier, config->path, &created, &status);
  if (code)
    return code;
  tier->created = created;
  if (!is_unfinished(tier, &status))
    return restore(tier, config, (uint64_t)status.st_size);
  return create(tier, config);
}

int tier_publish(struct tier *tier, haul_node *node, const char *name) {
  int code = tier->blocks ? haul_region_publish(tier->blocks, DEVICE_BLOCKS_NAME, HAUL_READ)
                          : haul_region_wrap(node, tier->memory, tier->length, &tier->region);
  return code ? code : haul_region_publish(tier->region, name, HAUL_READ);
}

void tier_close(struct tier *tier) {
  haul_region_release(tier->region);
  haul_region_release(tier->blocks);
  index_close(&tier->index);
  if (tier->memory)
    munmap(tier->memory, tier->length);
  if (tier->file >= 0)
    close(tier->file);
}
