/* SPDX-License-Identifier: MIT
 * Which file systems speak USRBIO, and where they are mounted. */
#include <haul/usrbio.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"

#define FOLDER "3fs-virt"

bool hf3fs_is_hf3fs(int fd) {
  uint32_t magic = 0;
  return ioctl(fd, IOCTL_GET_MAGIC, &magic) == 0 && magic == HF3FS_SUPER_MAGIC;
}

static bool any_type_will_do(void) {
  const char *setting = getenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP");
  return setting && strcmp(setting, "yes") == 0;
}

/* proc(5): space, tab, newline and backslash are three octal digits behind a backslash. */
static void decode(char *text) {
  char *to = text;
  while (*text) {
    if (text[0] == '\\' && strspn(text + 1, "01234567") >= 3) {
      *to++ = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
      text += 4;
    } else {
      *to++ = *text++;
    }
  }
  *to = '\0';
}

/* The next word of a line, ended by a zero byte; NULL: there is none. */
static char *word(char **line) {
  char *found;
  do
    found = strsep(line, " \n");
  while (found && !*found);
  return found;
}

/* Where a line of mountinfo mounts what may speak USRBIO; NULL: nowhere. The place is the fifth
 * word, and the type follows a hyphen that ends a list of any length. */
static char *mounted_at(char *line, bool any_type) {
  char *place = NULL, *type;
  for (int i = 0; i < 5; i++)
    place = word(&line);
  do
    type = word(&line);
  while (type && strcmp(type, "-") != 0);
  type = word(&line);
  if (!place || !type || (!any_type && strcmp(type, "fuse.hf3fs") != 0))
    return NULL;
  decode(place);
  return place;
}

/* The folder 3fs-virt may be mounted by itself: then its parent counts. */
static void leave_folder(char *place) {
  char *last = strrchr(place, '/');
  if (last && strcmp(last + 1, FOLDER) == 0)
    last[last == place] = '\0';
}

static bool is_below(const char *path, const char *place) {
  size_t length = strlen(place);
  if (length == 1) /* the root */
    return true;
  return strncmp(path, place, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

static bool has_folder(const char *place) {
  char folder[PATH_MAX];
  int length = snprintf(folder, sizeof folder, "%s/" FOLDER, place);
  return length < (int)sizeof folder && access(folder, F_OK) == 0;
}

/* The innermost such mount above the path, in `best`; its length, 0: none. Only mounts above the
 * path are looked at: others may be dead, and keep who looks waiting. */
static size_t search(FILE *mounts, const char *path, char best[PATH_MAX]) {
  char *line = NULL;
  size_t room = 0, length = 0;
  bool any_type = any_type_will_do();
  while (getline(&line, &room, mounts) > 0) {
    char *place = mounted_at(line, any_type);
    if (!place)
      continue;
    leave_folder(place);
    size_t candidate = strlen(place);
    if (candidate <= length || candidate >= PATH_MAX || !is_below(path, place) ||
        !has_folder(place))
      continue;
    memcpy(best, place, candidate + 1);
    length = candidate;
  }
  free(line);
  return length;
}

int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path) {
  char whole[PATH_MAX], best[PATH_MAX];
  if (!path || !realpath(path, whole))
    return -1;
  FILE *mounts = fopen("/proc/self/mountinfo", "re");
  if (!mounts)
    return -1;
  size_t length = search(mounts, whole, best);
  fclose(mounts);
  if (length == 0)
    return -1;
  if (hf3fs_mount_point && (int)length < size)
    memcpy(hf3fs_mount_point, best, length + 1);
  return (int)length + 1;
}
