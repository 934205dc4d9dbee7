/* SPDX-License-Identifier: MIT */
#include "support/tree.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/check.h"

static void path_of(char *text, size_t size, const char *root, const char *path) {
  assert_true((size_t)snprintf(text, size, "%s/%s", root, path) < size);
}

/* Creates the parent folders. */
static void make_folders(char *path) {
  for (char *at = path + 1; (at = strchr(at, '/')); at++) {
    *at = '\0';
    mkdir(path, 0700);
    *at = '/';
  }
}

void tree_folder(const char *root, const char *path) {
  char whole[512];
  path_of(whole, sizeof whole, root, path);
  make_folders(whole);
  mkdir(whole, 0700);
}

void tree_file(const char *root, const char *path, const char *text) {
  char whole[512];
  path_of(whole, sizeof whole, root, path);
  make_folders(whole);
  FILE *file = fopen(whole, "we");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

void tree_link(const char *root, const char *path, const char *to) {
  char whole[512], target[512];
  path_of(whole, sizeof whole, root, path);
  path_of(target, sizeof target, root, to);
  make_folders(whole);
  assert_int_equal(symlink(target, whole), 0);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk) {
  (void)status;
  (void)type;
  (void)walk;
  return remove(path);
}

void tree_remove(const char *root) {
  assert_int_equal(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}
