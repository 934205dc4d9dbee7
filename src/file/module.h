/* SPDX-License-Identifier: MIT
 * The interface between the library and the module that reads files. The module calls the library
 * only through struct file_library, so that it also works with a statically linked library. Every
 * call that fails sets the detail. */
#ifndef HAUL_FILE_MODULE_H
#define HAUL_FILE_MODULE_H

#include "haul/file.h"

#define FILE_MODULE "libhaul-file.so"

struct file_library {
  size_t size; /* of the struct: the module refuses another one; `error` stays behind it */
  int (*error)(int code, int system, const char *object, const char *hint, const char *format, ...)
      __attribute__((format(printf, 5, 6)));
  int (*error_system)(int system, const char *object, const char *call);
  struct haul_place (*place)(const haul_region *region);
  unsigned (*rights)(const haul_region *region);
  void *(*address)(const haul_region *region);
  void (*release)(haul_region *region);
  /* Host memory of the node of `like`. */
  int (*host)(haul_region *like, size_t length, haul_region **region);
  /* From the start of `from`. Waits, at most 30 seconds. */
  int (*copy)(haul_region *to, uint64_t at, haul_region *from, size_t length);
};

struct file_module {
  size_t size; /* of the struct: the library refuses another one */
  int (*open)(const struct file_library *library, int descriptor, haul_file **file);
  /* The region has the range. */
  int (*read)(haul_file *file, uint64_t offset, haul_region *to, uint64_t at, size_t length,
              unsigned flags, struct haul_file_report *report);
  void (*close)(haul_file *file);
};

#endif
