/* SPDX-License-Identifier: MIT */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES 1024 /* what a kernel may be configured for, at the most */

int memory_id(uint8_t id[16]) {
  ssize_t got;
  do
    got = getrandom(id, 16, 0);
  while (got < 0 && errno == EINTR);
  if (got != 16)
    return got < 0 ? -errno : -EIO;
  id[6] = (uint8_t)((id[6] & 0x0f) | 0x40); /* RFC 9562: version 4, random */
  id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
  return 0;
}

void memory_prefer(void *base, size_t size, int numa) {
  unsigned long nodes[NODES / (8 * sizeof(unsigned long))] = {0};
  const unsigned bits = 8 * sizeof *nodes;
  if (numa < 0 || numa >= NODES)
    return;
  nodes[(unsigned)numa / bits] = 1ul << (unsigned)numa % bits;
  /* The kernel takes whole pages, and one bit less than it is told. */
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uintptr_t first = (uintptr_t)base & ~(page - 1);
  syscall(SYS_mbind, first, (uintptr_t)base + size - first, MPOL_PREFERRED, nodes, NODES + 1ul, 0);
}

static int map(int file, size_t size, struct memory *memory) {
  void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED)
    return -errno;
  memory->base = base;
  memory->size = size;
  return 0;
}

/* Without it a program would end by SIGBUS at the page that /dev/shm has no room for. */
static int check_room(int file, size_t size) {
  struct statvfs shm;
  if (fstatvfs(file, &shm) != 0)
    return -errno;
  bool bounded = shm.f_blocks > 0;
  size_t blocks = size / shm.f_frsize + (size % shm.f_frsize > 0);
  return bounded && blocks > shm.f_bavail ? -ENOSPC : 0;
}

static int size_and_map(int file, size_t size, int numa, struct memory *memory) {
  int status = check_room(file, size);
  if (status == 0 && ftruncate(file, (off_t)size) != 0)
    status = -errno;
  if (status == 0)
    status = map(file, size, memory);
  if (status == 0)
    memory_prefer(memory->base, size, numa);
  return status;
}

int memory_make(const uint8_t id[16], size_t size, int numa, struct memory *memory) {
  struct iov_name name = {0};
  char text[IOV_NAME_ROOM];
  if (size > INT64_MAX)
    return -EINVAL;
  memcpy(name.id, id, sizeof name.id);
  iov_name_format(&name, text);
  snprintf(memory->path, sizeof memory->path, "/dev/shm/hf3fs-iov-%.36s", text);
  int file = open(memory->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0)
    return -errno;
  int status = size_and_map(file, size, numa, memory);
  close(file);
  if (status != 0)
    unlink(memory->path);
  return status;
}

int memory_open(const char *path, size_t size, struct memory *memory) {
  struct stat found;
  int file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return -errno;
  int status = fstat(file, &found) == 0 ? 0 : -errno;
  if (status == 0 && (!S_ISREG(found.st_mode) || found.st_size < 0 || size > (size_t)found.st_size))
    status = -EINVAL;
  if (status == 0)
    status = map(file, size, memory);
  close(file);
  memory->path[0] = '\0';
  return status;
}

void memory_unlink(struct memory *memory) {
  if (memory->path[0])
    unlink(memory->path);
  memory->path[0] = '\0';
}

void memory_end(struct memory *memory) {
  memory_unlink(memory);
  munmap(memory->base, memory->size);
}
