/* SPDX-License-Identifier: MIT
 * A fuzz target without a fuzzer: runs every file of the folders and files given as arguments. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

static unsigned count;

static void replay_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    perror(path);
    exit(1);
  }
  fseek(file, 0, SEEK_END);
  size_t length = (size_t)ftell(file);
  rewind(file);
  uint8_t *bytes = malloc(length ? length : 1);
  RIG_ASSERT(bytes && fread(bytes, 1, length, file) == length);
  fclose(file);
  LLVMFuzzerTestOneInput(bytes, length);
  free(bytes);
  count++;
}

static void replay(const char *path) {
  DIR *folder = opendir(path);
  if (!folder) {
    replay_file(path);
    return;
  }
  for (struct dirent *entry; (entry = readdir(folder));) {
    char name[4096];
    if (entry->d_name[0] == '.')
      continue;
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    replay_file(name);
  }
  closedir(folder);
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    replay(argv[i]);
  printf("%u inputs\n", count);
  return count == 0;
}
