/* SPDX-License-Identifier: MIT
 * Interposes UDMABUF_CREATE, UDMABUF_CREATE_LIST of one item, and dlsym(3). */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inside.h"

typedef void *lookup_fn(void *handle, const char *name);

/* dlsym is interposed, so libc's is found by its version: the latest, then each platform's first.
 */
static lookup_fn *real_lookup(void) {
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  void *found = NULL;
  for (size_t i = 0; i < sizeof versions / sizeof versions[0] && !found; i++)
    found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  if (!found)
    abort();
  lookup_fn *lookup;
  memcpy(&lookup, &found, sizeof lookup);
  return lookup;
}

static void *ours(const char *name) {
  void *found = NULL;
  if (strcmp(name, "ibv_reg_dmabuf_mr") == 0)
    memcpy(&found, &(__typeof__(ibv_reg_dmabuf_mr) *){ibv_reg_dmabuf_mr}, sizeof found);
  else if (strcmp(name, "ibv_dereg_mr") == 0)
    memcpy(&found, &(__typeof__(ibv_dereg_mr) *){ibv_dereg_mr}, sizeof found);
  return found;
}

void *dlsym(void *restrict handle, const char *restrict name) {
  static _Atomic(lookup_fn *) lookup;
  void *found = ours(name);
  if (found)
    return found;
  if (!atomic_load(&lookup))
    atomic_store(&lookup, real_lookup());
  return atomic_load(&lookup)(handle, name); /* a jump: RTLD_NEXT is the caller's */
}

void *real_verb(const char *name) {
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *found = library ? real_lookup()(library, name) : NULL;
  if (!found) {
    fprintf(stderr, "dmabuf-nic: there is no %s\n", name);
    abort();
  }
  dlclose(library); /* the caller holds it */
  return found;
}

#define KNOWN 4096

/* Inodes of dma-bufs are not reused, so entries of closed ones may stay. The memfd is not
 * duplicated: tests count open descriptors. */
static struct {
  pthread_mutex_t lock; /* guards the rest */
  struct known {
    ino_t dmabuf, memory;
    dev_t device; /* of the memory */
    int memfd;
    uint64_t offset;
  } at[KNOWN];
  size_t count;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void learn(int dmabuf, int memfd, uint64_t offset) {
  struct stat buffer, memory;
  if (fstat(dmabuf, &buffer) != 0 || fstat(memfd, &memory) != 0)
    return;
  pthread_mutex_lock(&known.lock);
  known.at[known.count++ % KNOWN] = (struct known){.dmabuf = buffer.st_ino,
                                                   .memory = memory.st_ino,
                                                   .device = memory.st_dev,
                                                   .memfd = memfd,
                                                   .offset = offset};
  pthread_mutex_unlock(&known.lock);
}

int ioctl(int descriptor, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  int result = (int)syscall(SYS_ioctl, descriptor, request, argument);
  if (result >= 0 && request == UDMABUF_CREATE) {
    const struct udmabuf_create *create = argument;
    learn(result, (int)create->memfd, create->offset);
  } else if (result >= 0 && request == UDMABUF_CREATE_LIST) {
    const struct udmabuf_create_list *all = argument;
    if (all->count == 1)
      learn(result, (int)all->list[0].memfd, all->list[0].offset);
  }
  return result;
}

static bool is_memory(const struct known *one) {
  struct stat now;
  return fstat(one->memfd, &now) == 0 && now.st_ino == one->memory && now.st_dev == one->device;
}

bool find_behind(int dmabuf, struct behind *behind) {
  struct stat buffer;
  bool found = false;
  if (fstat(dmabuf, &buffer) != 0)
    return false;
  pthread_mutex_lock(&known.lock);
  size_t count = known.count < KNOWN ? known.count : KNOWN;
  for (size_t i = 0; i < count && !found; i++) {
    const struct known *one = &known.at[i];
    found = one->dmabuf == buffer.st_ino && is_memory(one);
    *behind = (struct behind){one->memfd, one->offset};
  }
  pthread_mutex_unlock(&known.lock);
  return found;
}
