/* SPDX-License-Identifier: MIT
 * A double of libhl-thunk.so, inside: Gaudi2 devices made of memfds, for tests. It takes what the
 * library and the kernel's driver take, refuses what they refuse, and its numbers are theirs; where
 * it had to be one or the other it is stricter. Its devices are called "double".
 *
 * The environment sets it, read at each call:
 *   HAUL_DOUBLE_GAUDI          a folder that stands for /dev/accel: processes that share it share
 *                              the devices; without one each process has its own
 *   HAUL_DOUBLE_GAUDI_DEVICES  how many, default 2
 *   HAUL_DOUBLE_GAUDI_PAGE     bytes of a device page, default 24 MiB: no power of two, as 6 HBMs
 *   HAUL_DOUBLE_GAUDI_MEMORY   bytes of a device, default 960 MiB
 *   HAUL_DOUBLE_GAUDI_ID       PCI device id, default 4128 (0x1020, Gaudi2)
 *   HAUL_DOUBLE_GAUDI_SLOW_US  what a submission takes besides, default 0
 *   HAUL_DOUBLE_GAUDI_FAIL     "CALL:N:ERRNO CALL:N:ERRNO …": the N-th call from then on fails so;
 *                              N 0: each. CALL is open, control, alloc, map, host_map, export,
 *                              submit, abort or timeout; the last two are ends of the N-th
 *                              submission, which reset the device */
#ifndef HAUL_DOUBLE_HLTHUNK_H
#define HAUL_DOUBLE_HLTHUNK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/gaudi/driver.h"

#define DEVICES 16
#define STEP    4096u

/* One allocation, and its mapping. */
struct page {
  struct page *next;
  uint64_t handle, size, base; /* base 0: not mapped */
  char *bytes;
  int memory; /* its memfd, -1 where nobody makes dma-bufs of it */
};

struct host_mapping {
  struct host_mapping *next;
  uint64_t base, size;
  char *bytes;
};

/* A dma-buf. In place of a real one a pipe's writing end is given away: the reading end reports a
 * hang-up when the last copy of it is closed, wherever that is. */
struct dma_buf {
  struct dma_buf *next;
  uint64_t base;
  int watch; /* the reading end, -1: a real one, and its inode */
  ino_t file;
  dev_t device;
};

struct submission {
  struct submission *next;
  uint64_t seq;
  struct gaudi_chunk chunk;
};

#define REMEMBERED 4096u /* results of submissions */

/* What one open gives. */
struct context {
  int fd;
  bool reset; /* after an abort or a timeout */
  struct page *pages;
  struct host_mapping *hosts;
  struct dma_buf *exports;
  uint64_t used, next_handle, next_device, next_host;
  struct submission *first, **last;
  uint64_t submitted;
  uint8_t results[REMEMBERED]; /* enum gaudi_cs_status */
  pthread_t engine;
  bool stopping;
};

extern pthread_mutex_t double_lock; /* guards all of it */
extern pthread_cond_t double_news;  /* a submission came or ended */

uint64_t double_setting(const char *name, uint64_t missing);
/* Is this call to fail? Then errno is set. */
bool double_fails(const char *call);

/* With the lock: of a descriptor; NULL with errno where it is none, or its device was reset. */
struct context *double_context(int fd);
/* The same, reset or not. */
struct context *double_open_context(int fd);

int context_start(struct context *context);
/* With the lock, which is dropped while the engine ends. */
void context_stop(struct context *context);
void context_free_memory(struct context *context);
/* Takes the page's memfd. */
void keep_for_dmabufs(struct page *page, int memory);
/* Are dma-bufs open? Forgets those that are not. */
bool context_exports(struct context *context, uint64_t base);

/* With the lock: the bytes behind a range of device addresses, NULL where it is not mapped whole.
 */
char *device_bytes(const struct context *context, uint64_t address, uint64_t size);
char *host_bytes(const struct context *context, uint64_t address, uint64_t size);

#endif
