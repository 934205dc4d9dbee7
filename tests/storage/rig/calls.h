/* SPDX-License-Identifier: MIT
 * The ioctls of 3FS, defined independently of haul's header, by their numbers. */
#ifndef HAUL_TESTS_STORAGE_CALLS_H
#define HAUL_TESTS_STORAGE_CALLS_H

#include <stddef.h>
#include <stdint.h>

#define CALL_NAME    0x80206800ul
#define CALL_MAGIC   0x80046802ul
#define CALL_VERSION 0x80046803ul
#define CALL_SYNC    0x8004680bul
#define CALL_LINK    0x4108680cul
#define CALL_HOLES   0x7e90680dul

#define CALL_MOVE   0x4218680eul
#define CALL_REMOVE 0x4110680ful

struct call_link {
  uint64_t folder;
  char name[255];
};

struct call_holes {
  int count;
  size_t flags;
  size_t start[1000], end[1000];
};

struct call_move {
  uint64_t folder;
  char name[256];
  uint64_t new_folder;
  char new_name[256];
  uint8_t to_trash;
};

struct call_remove {
  uint64_t folder;
  char name[256];
  uint8_t recursive;
};

#endif
