/* SPDX-License-Identifier: MIT */
#include "outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../command.h"
#include "fail.h"
#include "process.h"
#include "text.h"

#define LINKS_MAX       40       /* path_resolution(7) */
#define READER_SLICE_NS 50000000 /* between two attempts to open a FIFO */

/* Follows a symlink whose target does not exist, as the target of others is replaced, too. */
static int follow(const char *label, char path[PATH_MAX]) {
  char target[PATH_MAX];
  ssize_t length;
  for (int i = 0; i < LINKS_MAX && (length = readlink(path, target, PATH_MAX)) >= 0; i++) {
    const char *slash = *target == '/' ? NULL : strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    if (folder + (size_t)length >= PATH_MAX)
      return fail_system(ENAMETOOLONG, "cannot create %s", label);
    memcpy(path + folder, target, (size_t)length);
    path[folder + (size_t)length] = '\0';
  }
  return EXIT_DONE;
}

/* The mode that open(2) would set. */
static mode_t default_mode(void) {
  mode_t mask = umask(0);
  umask(mask);
  return S_IFREG | (0666 & ~mask);
}

int outfile_resolve(const char *path, char resolved[PATH_MAX], mode_t *mode) {
  struct stat old;
  bool exists = stat(path, &old) == 0;
  if (!*path) /* a temporary file could be created all the same */
    return fail_because("check for an empty shell variable",
                        "the name of the output file is empty");
  if (!exists && errno != ENOENT)
    return fail_system(errno, "cannot create %s", path);
  if (exists && S_ISDIR(old.st_mode))
    return fail_because("name a file in this folder", "cannot create %s: %s", path,
                        strerror(EISDIR));
  if (!exists && strlen(path) >= PATH_MAX)
    return fail_system(ENAMETOOLONG, "cannot create %s", path);
  if (exists && !realpath(path, resolved))
    return fail_system(errno, "cannot create %s", path);
  if (!exists)
    snprintf(resolved, PATH_MAX, "%s", path);
  *mode = exists ? old.st_mode : default_mode();
  return exists ? EXIT_DONE : follow(path, resolved);
}

static int fail_open(const struct outfile *file) {
  return fail_system(errno, "cannot create %s", file->label);
}

static int open_temporary(struct outfile *file, mode_t mode) {
  const char *slash = strrchr(file->path, '/');
  int folder = slash ? (int)(slash - file->path) + 1 : 0;
  int length = snprintf(file->temporary, sizeof(file->temporary), "%.*s.%s.XXXXXX", folder,
                        file->path, file->path + folder);
  if (length >= (int)sizeof(file->temporary)) {
    file->temporary[0] = '\0';
    return fail_system(ENAMETOOLONG, "cannot create %s", file->label);
  }
  file->descriptor = mkostemp(file->temporary, O_CLOEXEC);
  if (file->descriptor < 0) {
    file->temporary[0] = '\0';
    return fail_open(file);
  }
  if (fchmod(file->descriptor, mode & 0777))
    return fail_open(file);
  return EXIT_DONE;
}

/* Fails before any transfer if the disk is too small. */
static int reserve(const struct outfile *file, uint64_t length) {
  if (length == 0 || length > INT64_MAX || !*file->temporary)
    return EXIT_DONE;
  if (fallocate(file->descriptor, 0, 0, (off_t)length) == 0 || errno == EOPNOTSUPP)
    return EXIT_DONE;
  if (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)
    return fail_because("free some space; no byte was moved", "cannot write %s: %s", file->label,
                        strerror(errno));
  return EXIT_DONE;
}

/* A FIFO without a reader gives ENXIO, where a blocking open would wait without a limit. */
static int open_device(struct outfile *file, bool fifo, int64_t timeout_ns) {
  int64_t until = now_ns() + timeout_ns;
  while ((file->descriptor = open(file->path, O_WRONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
    if (errno != ENXIO || !fifo)
      return fail_open(file);
    nanosleep(&(struct timespec){0, READER_SLICE_NS}, NULL);
    if (interrupted())
      return fail_because(NULL, "interrupted");
    if (timeout_ns && now_ns() >= until)
      return fail_because(NULL, "timed out waiting for a reader of %s", file->label);
  }
  fcntl(file->descriptor, F_SETFL, O_WRONLY);
  return EXIT_DONE;
}

int outfile_open(struct outfile *file, const char *path, uint64_t length, int64_t timeout_ns) {
  mode_t mode = 0;
  *file = (struct outfile){.descriptor = STDOUT_FILENO, .label = path};
  if (strcmp(path, "-") == 0) {
    file->label = "standard output";
    return EXIT_DONE;
  }
  file->descriptor = -1;
  int status = outfile_resolve(path, file->path, &mode);
  if (status)
    return status;
  if (!S_ISREG(mode))
    return open_device(file, S_ISFIFO(mode), timeout_ns);
  status = open_temporary(file, mode);
  return status ? status : reserve(file, length);
}

int outfile_write(struct outfile *file, const void *bytes, size_t length) {
  const char *at = bytes;
  while (length > 0) {
    ssize_t written = TEMP_FAILURE_RETRY(write(file->descriptor, at, length));
    if (written < 0)
      return fail_because(*file->temporary ? "free some space; the file was not changed" : NULL,
                          "cannot write %s: %s", file->label, strerror(errno));
    at += written;
    length -= (size_t)written;
  }
  return EXIT_DONE;
}

int outfile_commit(struct outfile *file) {
  /* close(2) may report a write that failed late (NFS, quotas). */
  int descriptor = file->descriptor;
  if (descriptor != STDOUT_FILENO) {
    file->descriptor = -1;
    if (close(descriptor))
      return fail_system(errno, "cannot write %s", file->label);
  }
  if (*file->temporary && rename(file->temporary, file->path))
    return fail_open(file);
  file->temporary[0] = '\0';
  return EXIT_DONE;
}

void outfile_discard(struct outfile *file) {
  if (file->descriptor >= 0 && file->descriptor != STDOUT_FILENO)
    close(file->descriptor);
  file->descriptor = -1;
  if (*file->temporary)
    unlink(file->temporary);
  file->temporary[0] = '\0';
}
