/* SPDX-License-Identifier: MIT
 * Intel Gaudi: internal declarations for devices, memory and DMA. Only Gaudi2 is supported. */
#ifndef HAUL_MEMORY_GAUDI_GAUDI_H
#define HAUL_MEMORY_GAUDI_GAUDI_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/list.h"
#include "core/ranges.h"
#include "memory/gaudi/driver.h"
#include "memory/provider.h"

#define GAUDI_DEVICES_MAX 16

extern const struct provider provider_gaudi;

struct gaudi_page;

#define GAUDI_SLICE      ((uint64_t)4 << 20)   /* pinning takes about 100 µs, as does the copy */
#define GAUDI_KEPT_BYTES ((uint64_t)256 << 20) /* of host memory that a device keeps mapped */

/* Pinned host pages within one aligned slice. */
struct gaudi_mapping {
  struct range range; /* in engine->mapped while it is kept */
  struct list link;   /* engine->kept */
  uint64_t at;        /* the device's address */
  unsigned users;     /* slices in flight */
  bool kept;
};

/* Copies in progress, and a pinned page of packet slots that the device reads. */
struct gaudi_engine {
  pthread_mutex_t lock; /* guards the rest; no lock is taken after it */
  struct list jobs;
  char *packets;       /* NULL until the first copy */
  uint64_t packets_at; /* the device's address of `packets` */
  uint64_t busy;       /* bit mask of slots in use */
  struct ranges mapped;
  struct list kept; /* mappings, the longest unused first */
  _Atomic uint64_t mapped_bytes;
  /* Not 0: why the driver reset the device, which destroyed its memory and this context. */
  enum gaudi_cs_status lost;
};

struct gaudi_device {
  uint16_t number;
  int control; /* index of its control node; -1: only a descriptor */
  int numa;
  uint32_t pci_id;
  bool readable;         /* its description is plausible */
  uint64_t memory, page; /* bytes: total, and of one allocation */
  /* The engines that copy within the device: bit mask of the first two. */
  _Atomic uint32_t inside;
  char bus[16], card[20];
  int given;                /* the framework's descriptor; -1: none */
  _Atomic int fd;           /* -1 until the first use */
  struct gaudi_page *pages; /* under gaudi_lock */
  uint64_t hints;           /* address space requested so far */
  struct gaudi_engine engine;
  pthread_mutex_t sum_lock; /* guards sum_buffer; held while summing */
  struct memory sum_buffer; /* host buffer for sums; no provider: not allocated */
};

/* Guards device state and memory of all devices; taken before the engines' locks. */
extern pthread_mutex_t gaudi_lock;

/* device.c: the library, finding and opening devices */

/* Reads HAUL_GAUDI_FD. HAUL_EINVAL with the detail. */
int gaudi_settings_read(void);
/* Only checks it. */
int gaudi_settings_check(void);
/* The number of devices. The first call opens the library and queries the control nodes; the result
 * is cached until gaudi_devices_close. */
unsigned gaudi_devices(void);
/* Why there are none: the code, with the detail. */
int gaudi_why_none(void);
/* The device, unopened; NULL past the last. */
struct gaudi_device *gaudi_device_at(unsigned number);
/* The same, without probing: NULL for all before that. */
struct gaudi_device *gaudi_device_known(unsigned number);
/* Opens the device. With gaudi_lock. HAUL_EBUSY: another process has it. HAUL_EACCESS. */
int gaudi_device_open(unsigned number, struct gaudi_device **device);
void gaudi_devices_close(void);
/* The device with a framework's descriptor, or NULL. */
struct gaudi_device *gaudi_device_given(void);
extern const struct gaudi_driver *gaudi_driver; /* NULL until there are devices */

/* memory.c: pages of the device, and blocks in them */

int gaudi_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory);
void gaudi_free(struct memory *memory);
int gaudi_owns(const void *address, size_t length, struct haul_place *place);
int gaudi_wrap(void *address, size_t length, struct memory *memory);
int gaudi_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset);
struct gaudi_device *gaudi_device_of(const struct memory *memory);
/* With gaudi_lock: frees all pages of a device that will be closed. */
void gaudi_pages_close(struct gaudi_device *device);
/* Number of pages of a device, and of empty ones that an open dma-buf keeps mapped. */
void gaudi_pages_count(unsigned device, unsigned *pages, unsigned *kept);

/* engine.c: linear DMA */

void gaudi_engine_open(struct gaudi_engine *engine);
/* Ends copies in progress with HAUL_ECLOSED. */
void gaudi_engine_close(struct gaudi_device *device);
bool gaudi_reaches(const struct memory *own, const struct memory *other);
int gaudi_copy_start(struct copy *copy);
int gaudi_copy_poll(struct copy *copy);
void gaudi_copy_cancel(struct copy *copy);

/* mapping.c: host pages that a device has mapped; with the engine's lock */

/* A mapping of the range, which lies in one slice of the memory; 0 or an errno. */
int gaudi_mapping_get(struct gaudi_device *device, const struct memory *host, uint64_t address,
                      uint64_t bytes, struct gaudi_mapping **mapping);
void gaudi_mapping_put(struct gaudi_device *device, struct gaudi_mapping *mapping);
void gaudi_mappings_close(struct gaudi_device *device);
/* Without the lock. */
void gaudi_forget(const struct memory *host);

extern const char *gaudi_sys; /* "/sys"; another one in tests */

size_t gaudi_checks(struct haul_check *checks, size_t room);

#endif
