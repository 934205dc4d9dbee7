/* SPDX-License-Identifier: MIT */
#include "pull_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/outfile.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"

#define COPY_SLICE (UINT64_C(64) << 20)

void output_close(struct output *output) {
  haul_region_release(output->region);
  if (output->bytes)
    munmap(output->bytes, output->length);
  if (output->descriptor >= 0)
    close(output->descriptor);
  *output = (struct output){.descriptor = -1};
}

/* What the file has under its name may be right still, or again. */
static void copy_present(const struct output *output, haul_deadline until) {
  struct stat found;
  int from = open(output->final, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (from >= 0 && fstat(from, &found) == 0 && S_ISREG(found.st_mode))
    for (uint64_t left = output->length; left > 0 && !interrupted() && now_ns() < until;) {
      size_t slice = left < COPY_SLICE ? left : COPY_SLICE;
      ssize_t copied = copy_file_range(from, NULL, output->descriptor, NULL, slice, 0);
      if (copied <= 0)
        break; /* the rest is received */
      left -= (uint64_t)copied;
    }
  if (from >= 0)
    close(from);
}

/* A page without space would raise SIGBUS. */
static int output_reserve(const struct output *output) {
  if (ftruncate(output->descriptor, (off_t)output->length))
    return fail_system(errno, "cannot write %s", output->path);
  int error = output->length ? posix_fallocate(output->descriptor, 0, (off_t)output->length) : 0;
  if (error)
    return fail_system(error, "cannot reserve %s for %s", size_text(output->length).text,
                       output->path);
  return EXIT_DONE;
}

static int output_map(struct output *output, haul_deadline until) {
  struct stat found;
  if (fstat(output->descriptor, &found))
    return fail_system(errno, "cannot write %s", output->path);
  int status = output_reserve(output);
  if (status && found.st_size == 0)
    unlink(output->path); /* it has no chunk of an earlier run */
  if (status || output->length == 0)
    return status;
  if (found.st_size == 0)
    copy_present(output, until);
  void *bytes =
      mmap(NULL, output->length, PROT_READ | PROT_WRITE, MAP_SHARED, output->descriptor, 0);
  if (bytes == MAP_FAILED)
    return fail_system(errno, "cannot map %s", output->path);
  output->bytes = bytes;
  return EXIT_DONE;
}

int output_resolve(struct output *output, const char *file) {
  int status = outfile_resolve(file, output->final, &output->mode);
  if (status)
    return status;
  if (!S_ISREG(output->mode))
    return fail_because("name a regular file", "cannot create %s: it is not a regular file", file);
  if (snprintf(output->path, PATH_MAX, "%s.part", output->final) >= PATH_MAX)
    return fail_system(ENAMETOOLONG, "cannot create %s", file);
  return EXIT_DONE;
}

/* Locks the file. It may have been renamed since it was opened. */
static int output_lock(const struct output *output, const struct stat *opened) {
  struct stat named;
  bool locked = flock(output->descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  if (locked && lstat(output->path, &named) == 0 && named.st_dev == opened->st_dev &&
      named.st_ino == opened->st_ino)
    return EXIT_DONE;
  return fail_because("run it again when that one has ended, or name another file",
                      "cannot write %s: another pull writes it", output->path);
}

/* Opens the file that an earlier run left, or a new one. Another user of the folder may have put
 * something else there. */
static int output_claim(struct output *output) {
  struct stat found;
  int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  output->descriptor = open(output->path, flags, 0600);
  if (output->descriptor < 0 && errno != ELOOP)
    return fail_system(errno, "cannot create %s", output->path);
  if (output->descriptor < 0 || fstat(output->descriptor, &found) || !S_ISREG(found.st_mode) ||
      found.st_uid != geteuid() || found.st_nlink != 1)
    return fail_because(
        "remove it, or name another file",
        "cannot write %s: it is not a regular file of this user, with no other name", output->path);
  int status = output_lock(output, &found);
  if (!status && fchmod(output->descriptor, 0600))
    status = fail_system(errno, "cannot write %s", output->path);
  return status;
}

int output_open(struct output *output, const char *file, uint64_t length, haul_node *node,
                haul_deadline until) {
  output->length = length;
  int status = output_resolve(output, file);
  if (!status)
    status = output_claim(output);
  if (!status)
    status = output_map(output, until);
  if (!status && length && haul_region_wrap(node, output->bytes, length, &output->region))
    status = fail_library("cannot use %s", output->path);
  return status;
}

/* The bytes are on the disk before the file has its name. */
int output_commit(const struct output *output) {
  if (fchmod(output->descriptor, output->mode & 0777) || fdatasync(output->descriptor))
    return fail_system(errno, "cannot write %s", output->path);
  if (rename(output->path, output->final))
    return fail_system(errno, "cannot create %s", output->final);
  return EXIT_DONE;
}
