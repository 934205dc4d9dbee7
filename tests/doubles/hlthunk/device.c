/* SPDX-License-Identifier: MIT
 * Mock of libhl-thunk.so: devices, contexts, and injected failures. */
#include "hlthunk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t double_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t double_changed = PTHREAD_COND_INITIALIZER;

static struct context *contexts[DEVICES]; /* open, or closed with dma-bufs still open */

uint64_t double_setting(const char *name, uint64_t missing) {
  char variable[64];
  snprintf(variable, sizeof variable, "HAUL_DOUBLE_GAUDI_%s", name);
  const char *text = getenv(variable);
  return text ? strtoull(text, NULL, 0) : missing;
}

static unsigned device_count(void) {
  uint64_t count = double_setting("DEVICES", 2);
  return count < DEVICES ? (unsigned)count : DEVICES;
}

/* The counts restart when the variable changes. */
bool double_fails(const char *call) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static char seen[256];
  static unsigned counts[64]; /* by the index of the word */
  const char *text = getenv("HAUL_DOUBLE_GAUDI_FAIL");
  bool fails = false;
  size_t length = strlen(call);
  if (!text)
    text = "";
  pthread_mutex_lock(&lock);
  if (strncmp(seen, text, sizeof seen - 1) != 0) {
    snprintf(seen, sizeof seen, "%s", text);
    memset(counts, 0, sizeof counts);
  }
  const char *at = text;
  for (unsigned word = 0; at && word < 64; word++) {
    unsigned wanted;
    int error;
    if (strncmp(at, call, length) == 0 && sscanf(at + length, ":%u:%d", &wanted, &error) == 2 &&
        (++counts[word] == wanted || wanted == 0)) {
      fails = true;
      errno = error;
    }
    at = strchr(at, ' ');
    at = at ? at + 1 : NULL;
  }
  pthread_mutex_unlock(&lock);
  return fails;
}

/* A node: a file of the folder, or a memfd; /proc has the name of both. */
static int open_node(const char *kind, unsigned number) {
  char name[300];
  const char *folder = getenv("HAUL_DOUBLE_GAUDI");
  snprintf(name, sizeof name, "%s%s%s%u", folder ? folder : "", folder ? "/" : "", kind, number);
  if (folder)
    return open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  return memfd_create(name, MFD_CLOEXEC);
}

/* The device number of a descriptor, or -1. */
static int device_of(int fd) {
  char link[32], path[320] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof path - 1) < 0)
    return -1;
  const char *file = strrchr(path, '/'), *digits = file ? strpbrk(file, "0123456789") : NULL;
  return file && digits && strstr(file, "accel") ? atoi(digits) : -1;
}

struct context *double_open_context(int fd) {
  int number = device_of(fd);
  struct context *context = number >= 0 && number < DEVICES ? contexts[number] : NULL;
  if (context && context->fd == fd)
    return context;
  errno = EBADF;
  return NULL;
}

struct context *double_context(int fd) {
  struct context *context = double_open_context(fd);
  if (!context || !context->reset)
    return context;
  errno = EIO;
  return NULL;
}

static void bus_of(unsigned number, char *bus, size_t size) {
  snprintf(bus, size, "0000:%02x:00.0", 0x33 + number);
}

/* The lock belongs to the open file description: duplicates and inherited descriptors keep it. */
static int lock_device(unsigned number) {
  if (contexts[number] && contexts[number]->fd < 0 && !context_exports(contexts[number], 0)) {
    context_free_memory(contexts[number]);
    free(contexts[number]);
    contexts[number] = NULL;
  }
  if (contexts[number])
    return -EBUSY;
  int fd = open_node("accel", number);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return -EBUSY;
  }
  return fd < 0 ? -errno : fd;
}

static int open_device(unsigned number) {
  int fd = lock_device(number);
  if (fd < 0)
    return fd;
  struct context *context = calloc(1, sizeof *context);
  if (!context)
    abort();
  context->fd = fd;
  contexts[number] = context;
  if (context_start(context) != 0)
    abort();
  return fd;
}

static int open_first_free(void) {
  int fd = -ENOENT;
  for (unsigned i = 0; i < device_count() && fd < 0; i++)
    fd = open_device(i);
  if (fd >= 0)
    return fd;
  errno = -fd;
  return -1;
}

static int open_by_bus(const char *bus) {
  char own[16];
  for (unsigned i = 0; i < device_count(); i++) {
    bus_of(i, own, sizeof own);
    if (strcmp(own, bus) == 0)
      return open_device(i);
  }
  return -EINVAL;
}

int hlthunk_open(int kind, const char *bus) {
  if (kind != GAUDI_KIND_ANY && kind != 5)
    return errno = ENOENT, -1;
  if (double_fails("open"))
    return bus ? -errno : -1;
  pthread_mutex_lock(&double_lock);
  int fd = bus ? open_by_bus(bus) : open_first_free();
  int system = errno;
  pthread_mutex_unlock(&double_lock);
  errno = fd < -1 ? -fd : system;
  return fd;
}

int hlthunk_open_control(int number, const char *bus) {
  if (bus || number < 0 || (unsigned)number >= device_count())
    return errno = ENOENT, -ENOENT;
  if (double_fails("control"))
    return -errno;
  int fd = open_node("accel_controlD", (unsigned)number);
  return fd < 0 ? -errno : fd;
}

int hlthunk_close(int fd) {
  pthread_mutex_lock(&double_lock);
  int number = device_of(fd);
  struct context *context = double_open_context(fd);
  if (context) {
    context_stop(context);
    context->fd = -1;
    if (!context_exports(context, 0)) {
      context_free_memory(context);
      free(context);
      contexts[number] = NULL;
    }
  }
  pthread_mutex_unlock(&double_lock);
  return close(fd);
}

int hlthunk_get_pci_bus_id_from_fd(int fd, char *bus, int size) {
  int number = device_of(fd);
  if (number < 0 || !bus)
    return -1;
  bus_of((unsigned)number, bus, (size_t)size);
  return 0;
}

/* Of an earlier release: a field of one byte is now two, and the page size came last. */
struct earlier_info {
  uint64_t sram_base, dram_base, dram_size;
  uint32_t sram_size, events, device_id, cpld_version;
  uint32_t pll[4];
  uint8_t tpc_mask, dram_enabled;
  uint8_t cpucp_version[128];
  uint32_t module_id;
  uint8_t card_name[16];
  uint64_t dram_page_size;
};

int hlthunk_get_hw_ip_info(int fd, struct gaudi_ip_info *info) {
  if (!info || device_of(fd) < 0)
    return errno = EINVAL, -EINVAL;
  *info = (struct gaudi_ip_info){.dram_size = double_setting("MEMORY", UINT64_C(960) << 20),
                                 .device_id = (uint32_t)double_setting("ID", GAUDI_PCI_GAUDI2),
                                 .dram_enabled = 1,
                                 .dram_page_size = double_setting("PAGE", UINT64_C(24) << 20),
                                 .edma_mask = (uint32_t)double_setting("EDMA", 0xff)};
  memcpy(info->card_name, "double", sizeof "double");
  if (double_setting("EARLIER", 0)) {
    struct earlier_info earlier = {.dram_size = info->dram_size,
                                   .device_id = info->device_id,
                                   .tpc_mask = 0xff,
                                   .dram_enabled = 1,
                                   .card_name = "double",
                                   .dram_page_size = info->dram_page_size};
    memset(info, 0, sizeof *info);
    memcpy(info, &earlier, sizeof earlier);
  }
  return 0;
}

int hlthunk_get_open_stats(int fd, struct gaudi_open_stats *stats) {
  int number = device_of(fd);
  if (number < 0)
    return -EINVAL;
  *stats = (struct gaudi_open_stats){.opened = 1};
  int other = open_node("accel", (unsigned)number);
  stats->active = other >= 0 && flock(other, LOCK_EX | LOCK_NB) != 0;
  close(other);
  return 0;
}
