/* SPDX-License-Identifier: MIT
 * The hook, if it was preloaded. */
#include "hook.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

bool hook_find(uint64_t address, uint64_t length, uint64_t *start, uint64_t *end) {
  bool (*find)(uint64_t, uint64_t, uint64_t *, uint64_t *);
  *(void **)&find = dlsym(RTLD_DEFAULT, "haul_gaudihook_find");
  return find && find(address, length, start, end);
}

void hook_watch(void (*changed)(uint64_t start, uint64_t end, bool mapped)) {
  void (*watch)(void (*)(uint64_t, uint64_t, bool));
  *(void **)&watch = dlsym(RTLD_DEFAULT, "haul_gaudihook_watch");
  if (watch)
    watch(changed);
}

void hook_lend_device(void) {
  int (*descriptor)(void);
  char text[16];
  *(void **)&descriptor = dlsym(RTLD_DEFAULT, "haul_gaudihook_descriptor");
  int fd = descriptor ? descriptor() : -1;
  if (fd < 0 || getenv("HAUL_GAUDI_FD"))
    return;
  snprintf(text, sizeof text, "%d", fd);
  setenv("HAUL_GAUDI_FD", text, 0);
}
