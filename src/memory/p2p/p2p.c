/* SPDX-License-Identifier: MIT
 * Memory that PCI devices publish for peer-to-peer DMA, such as the controller memory buffer of an
 * NVMe disk. Each mapping of a device's sysfs file `allocate` takes new bytes of it (Linux 6.2,
 * p2pmem_alloc_mmap). They are struct pages: O_DIRECT reads and writes of an NVMe disk go straight
 * to and from them. The kernel pins them for nothing else. */
#include "memory/p2p/p2p.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/list.h"
#include "core/ranges.h"
#include "core/sys.h"
#include "memory/pages.h"
#include "memory/pci.h"
#include "memory/provider.h"

#define DEVICES_MAX 16
#define PATH_ROOM   384
#define FOLDER      "%s/bus/pci/devices"

const char *p2p_sys = "/sys";

static char names[DEVICES_MAX][PCI_NAME];
static unsigned count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `blocks` */
static struct ranges blocks;

struct block {
  struct range range; /* of addresses */
  uint16_t device;
};

/* "0": the memory is there, but no other driver may use it. */
static bool is_published(const char *name) {
  char path[PATH_ROOM], text[2] = "";
  snprintf(path, sizeof path, FOLDER "/%s/p2pmem/published", p2p_sys, name);
  return file_read(path, text, sizeof text) > 0 && text[0] == '1';
}

/* Into the order of names. */
static void add_device(const char *name) {
  unsigned at = count++;
  for (; at > 0 && strcmp(names[at - 1], name) > 0; at--)
    memcpy(names[at], names[at - 1], PCI_NAME);
  snprintf(names[at], PCI_NAME, "%.15s", name);
}

static int p2p_start(void) {
  char path[PATH_ROOM];
  struct dirent *entry;
  count = 0;
  snprintf(path, sizeof path, FOLDER, p2p_sys);
  DIR *folder = opendir(path);
  while (folder && count < DEVICES_MAX && (entry = readdir(folder)))
    if (is_published(entry->d_name))
      add_device(entry->d_name);
  if (folder)
    closedir(folder);
  return 0;
}

static unsigned p2p_devices(void) {
  return count;
}

static void p2p_describe(unsigned device, struct haul_device *info) {
  char path[PATH_ROOM], size[24] = "";
  snprintf(path, sizeof path, FOLDER "/%s/p2pmem/size", p2p_sys, names[device]);
  file_read(path, size, sizeof size);
  info->memory = strtoull(size, NULL, 10);
  info->numa = pci_numa(p2p_sys, names[device]);
  snprintf(info->name, sizeof info->name, "peer-to-peer memory");
  snprintf(info->pci, sizeof info->pci, "%s", names[device]);
  snprintf(info->exports, sizeof info->exports, "nothing");
}

/* Never MISSING: few hosts have such a device. */
static void check_device(struct haul_check *check) {
  check_set(check, HAUL_CHECK_OK, "PCI devices that publish memory: %u", count);
}

static size_t p2p_checks(struct haul_check *checks, size_t room) {
  static const struct check_entry device = {"device", check_device};
  return check_run("p2p", &device, 1, checks, room);
}

static int map_new(const char *path, size_t length, char **address) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return error_system(errno, path, "open");
  *address = sys_ops.mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int system = errno;
  close(fd);
  if (*address != MAP_FAILED)
    return 0;
  if (system != ENOMEM)
    return error_system(system, path, "mmap");
  return error_set(HAUL_ENOMEM, system, path, "release regions, or ask for less",
                   "the device has no %zu bytes free in one piece", length);
}

static int p2p_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory) {
  char path[PATH_ROOM], *address = NULL;
  size_t mapped;
  (void)flags;
  if (!page_round(length, &mapped))
    return error_length(length);
  struct block *block = alloc_zero(1, sizeof *block);
  if (!block)
    return error_memory("peer-to-peer memory");
  snprintf(path, sizeof path, FOLDER "/%s/p2pmem/allocate", p2p_sys, names[device]);
  int status = map_new(path, mapped, &address);
  if (status != 0) {
    alloc_free(block);
    return status;
  }
  block->range.start = (uintptr_t)address;
  block->range.end = block->range.start + mapped;
  block->device = (uint16_t)device;
  pthread_mutex_lock(&lock);
  ranges_add(&blocks, &block->range);
  pthread_mutex_unlock(&lock);
  memory->address = memory->view = address;
  memory->length = length;
  memory->writable = true;
  memory->state = block;
  return 0;
}

static void p2p_free(struct memory *memory) {
  struct block *block = memory->state;
  if (!block) /* wrapped */
    return;
  if (!fork_is_child()) { /* where the lock may stay locked */
    pthread_mutex_lock(&lock);
    ranges_remove(&blocks, &block->range);
    pthread_mutex_unlock(&lock);
  }
  munmap(memory->address, range_length(&block->range));
  alloc_free(block);
}

static int p2p_owns(const void *address, size_t length, struct haul_place *place) {
  uint64_t start = (uintptr_t)address;
  pthread_mutex_lock(&lock);
  const struct range *range = ranges_first_beyond(&blocks, 0, start);
  bool touches = range && range->start < start + length;
  bool whole = touches && range->start <= start && start + length <= range->end;
  if (whole)
    *place = (struct haul_place){HAUL_P2P, list_entry(range, struct block, range)->device};
  pthread_mutex_unlock(&lock);
  return whole || !touches ? whole
                           : error_range(address, length, "wrap a range within one allocation",
                                         "the range lies only partly in peer-to-peer memory");
}

static int p2p_wrap(void *address, size_t length, struct memory *memory) {
  memory->address = memory->view = address;
  memory->length = length;
  memory->wrapped = memory->writable = true;
  return 0;
}

const struct provider provider_p2p = {
    .name = "p2p",
    .kind = HAUL_P2P,
    .numbered = true,
    .recycles = true, /* its pages cannot be pinned for a pipe */
    /* CPU copies over PCIe, uncached: initial estimates, not measured. */
    .copy_bytes_per_ns = 0.1,
    .copy_latency_ns = 1000,
    .unshareable = "each mapping of peer-to-peer memory is new memory",
    .start = p2p_start,
    .devices = p2p_devices,
    .describe = p2p_describe,
    .checks = p2p_checks,
    .alloc = p2p_alloc,
    .free = p2p_free,
    .owns = p2p_owns,
    .wrap = p2p_wrap,
};
