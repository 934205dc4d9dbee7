/* SPDX-License-Identifier: MIT */
#include "support/seams.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "core/alloc.h"
#include "core/sys.h"
#include "support/check.h"

static atomic_uint requests;
static atomic_uint refused;    /* 0: none */
static atomic_bool refuses_on; /* and all later ones */
static struct alloc_ops alloc_before;
static struct sys_ops sys_before;

static bool refuse(void) {
  unsigned first = atomic_load(&refused);
  if (first == 0)
    return false;
  unsigned number = atomic_fetch_add(&requests, 1) + 1;
  return number == first || (number > first && atomic_load(&refuses_on));
}

static void *refusing_calloc(size_t count, size_t size) {
  return refuse() ? NULL : alloc_before.calloc(count, size);
}

static void *refusing_realloc(void *old, size_t size) {
  return refuse() ? NULL : alloc_before.realloc(old, size);
}

static int refusing_memfd_create(const char *name, unsigned flags) {
  if (!refuse())
    return sys_before.memfd_create(name, flags);
  errno = EMFILE;
  return -1;
}

static void *refusing_mmap(void *address, size_t length, int protection, int flags, int descriptor,
                           off_t offset) {
  if (!refuse())
    return sys_before.mmap(address, length, protection, flags, descriptor, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}

/* Installed before any thread starts, for good: threads of nodes call these during tests. */
static __attribute__((constructor)) void install(void) {
  alloc_before = alloc_ops;
  sys_before = sys_ops;
  alloc_ops.calloc = refusing_calloc;
  alloc_ops.realloc = refusing_realloc;
  sys_ops.memfd_create = refusing_memfd_create;
  sys_ops.mmap = refusing_mmap;
}

static void start(unsigned n, bool on) {
  atomic_store(&requests, 0);
  atomic_store(&refuses_on, on);
  atomic_store(&refused, n);
}

void seams_refuse(unsigned n) {
  start(n, false);
}

void seams_refuse_from(unsigned n) {
  start(n, true);
}

bool seams_restore(void) {
  unsigned first = atomic_exchange(&refused, 0);
  return atomic_load(&requests) >= first;
}

unsigned open_descriptors(void) {
  unsigned count = 0;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder)
    abort();
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

unsigned haul_mappings(void) {
  unsigned count = 0;
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps)
    abort();
  while (fgets(line, sizeof line, maps))
    count += strstr(line, "/memfd:haul") != NULL;
  fclose(maps);
  return count;
}

unsigned counted_descriptors;

int count_before(void **state) {
  (void)state;
  counted_descriptors = open_descriptors();
  return 0;
}

int count_after(void **state) {
  (void)state;
  assert_int_equal(open_descriptors(), counted_descriptors);
  assert_int_equal(haul_mappings(), 0);
  return 0;
}

static int (*socket_before)(int domain, int type, int protocol);

static int socket_of_the_net(int domain, int type, int protocol) {
  if (domain != AF_UNIX)
    return socket_before(domain, type, protocol);
  errno = EAFNOSUPPORT;
  return -1;
}

void seams_no_unix_sockets(void) {
  socket_before = sys_ops.socket;
  sys_ops.socket = socket_of_the_net;
}
