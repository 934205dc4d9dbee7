/* SPDX-License-Identifier: MIT */
#include "folder.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/check.h"

void folder_make(char path[FOLDER_ROOM]) {
  snprintf(path, FOLDER_ROOM, "/var/tmp/haul-folder-XXXXXX");
  assert_non_null(mkdtemp(path));
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *where) {
  (void)stat;
  (void)type;
  (void)where;
  return remove(path);
}

/* Stays on one file system, so that it does not empty a leftover mount. */
void folder_remove(const char *path) {
  nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

const char *folder_path(const char *folder, const char *name) {
  static _Thread_local char places[4][PATH_MAX];
  static _Thread_local unsigned next;
  char *path = places[next++ % 4];
  snprintf(path, PATH_MAX, "%s/%s", folder, name);
  return path;
}

void folder_put(const char *folder, const char *name, const char *text) {
  int fd = open(folder_path(folder, name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
}

bool folder_is_for_others(void) {
  struct stat stat_of_root;
  return stat("/", &stat_of_root) == 0 && (stat_of_root.st_mode & S_IXOTH);
}
