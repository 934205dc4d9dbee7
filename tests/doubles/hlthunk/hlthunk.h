/* SPDX-License-Identifier: MIT
 * A mock of libhl-thunk.so: Gaudi2 devices in memfds, for tests. It accepts and rejects what the
 * library and the kernel driver do, with their numbers, and is stricter where they differ. Its
 * devices are called "double".
 *
 * Settings, read from the environment at each call:
 *   HAUL_DOUBLE_GAUDI          a folder in the place of /dev/accel: processes that use it share the
 *                              devices; without one each process has its own
 *   HAUL_DOUBLE_GAUDI_DEVICES  number of devices, default 2
 *   HAUL_DOUBLE_GAUDI_PAGE     bytes of a device page, default 24 MiB: not a power of two, as with
 *                              6 HBMs
 *   HAUL_DOUBLE_GAUDI_MEMORY   bytes of a device, default 960 MiB
 *   HAUL_DOUBLE_GAUDI_ID       PCI device id, default 4128 (0x1020, Gaudi2)
 *   HAUL_DOUBLE_GAUDI_EDMA     mask of the enabled DMA engines of HBM, default 0xff
 *   HAUL_DOUBLE_GAUDI_EARLIER  1: hlthunk_get_hw_ip_info fills the structure of an earlier release
 *   HAUL_DOUBLE_GAUDI_PIN_NS   time to pin and map a page of the host, and to undo it, default 50
 *   HAUL_DOUBLE_GAUDI_PINNED   bytes of the host that can be mapped for a device, default: all
 *   HAUL_DOUBLE_GAUDI_SLOW_US  additional time of a submission, default 0
 *   HAUL_DOUBLE_GAUDI_FAIL     "CALL:N:ERRNO …": from now on the N-th call fails, with N = 0 each.
 *                              CALL is open, control, alloc, map, host_map, export, submit, edma,
 *                              abort or timeout; the last two end the N-th submission and reset
 *                              the device
 */
#ifndef HAUL_DOUBLE_HLTHUNK_H
#define HAUL_DOUBLE_HLTHUNK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/gaudi/api.h"

#define PROTOTYPE(slot, result, arguments) result hlthunk_##slot arguments;
GAUDI_CALLS(PROTOTYPE)
GAUDI_OPTIONAL_CALLS(PROTOTYPE)
#undef PROTOTYPE

#define DEVICES 16
#define STEP    4096u

/* One allocation, and its mapping. */
struct page {
  struct page *next;
  uint64_t handle, size, base; /* base 0: not mapped */
  char *bytes;
  int memory; /* memfd, or -1 without dma-buf support */
};

struct host_mapping {
  struct host_mapping *next;
  uint64_t base, size;
  char *bytes;
};

/* A dma-buf. The substitute for a real one is the write end of a pipe: the read end reports a
 * hang-up when its last copy is closed in any process. */
struct dma_buf {
  struct dma_buf *next;
  uint64_t base;
  int watch; /* read end; -1: a real one, with its inode below */
  ino_t file;
  dev_t device;
};

struct submission {
  struct submission *next;
  uint64_t seq;
  struct gaudi_chunk chunk;
};

#define REMEMBERED 4096u /* results of submissions */

/* One open device. */
struct context {
  int fd;
  bool reset; /* after an abort or a timeout */
  struct page *pages;
  struct host_mapping *hosts;
  struct dma_buf *exports;
  uint64_t used, pinned, next_handle, next_device, next_host;
  struct submission *first, **last;
  uint64_t submitted;
  uint8_t results[REMEMBERED]; /* enum gaudi_cs_status */
  pthread_t engine;
  bool stopping;
};

extern pthread_mutex_t double_lock;   /* guards everything */
extern pthread_cond_t double_changed; /* a submission was queued or has ended */

/* For tests, by dlsym(3): the mappings of host memory made so far, and the bytes mapped now. */
void hlthunk_double_hosts(int fd, uint64_t *calls, uint64_t *bytes);

uint64_t double_setting(const char *name, uint64_t missing);
/* Whether this call is to fail; sets errno. */
bool double_fails(const char *call);

/* With the lock: the context of a descriptor; NULL with errno if invalid or reset. */
struct context *double_context(int fd);
/* The same, but also after a reset. */
struct context *double_open_context(int fd);

int context_start(struct context *context);
/* With the lock, which is dropped for the join. */
void context_stop(struct context *context);
void context_free_memory(struct context *context);
/* Takes the page's memfd. */
void keep_for_dmabufs(struct page *page, int memory);
/* Whether dma-bufs are open; drops closed ones. */
bool context_exports(struct context *context, uint64_t base);

/* With the lock: the bytes of a range of addresses; NULL unless all of it is mapped. */
char *device_bytes(const struct context *context, uint64_t address, uint64_t size);
char *host_bytes(const struct context *context, uint64_t address, uint64_t size);

#endif
