/* SPDX-License-Identifier: MIT
 * Intel Gaudi, inside: its devices, its memory, its DMA. Gaudi2 is what is supported. */
#ifndef HAUL_MEMORY_GAUDI_GAUDI_H
#define HAUL_MEMORY_GAUDI_GAUDI_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/list.h"
#include "memory/gaudi/driver.h"
#include "memory/provider.h"

#define GAUDI_DEVICES_MAX 16

extern const struct provider provider_gaudi;

struct gaudi_page;

/* Copies under way, and the packets that the device reads: a page of slots, pinned. */
struct gaudi_engine {
  pthread_mutex_t lock; /* guards the rest; nothing is taken after it */
  struct list jobs;
  char *packets;       /* NULL until the first copy */
  uint64_t packets_at; /* the same for the device */
  uint64_t busy;       /* a bit a slot */
  /* Not 0: the driver reset the device for this, and its memory and this context are gone. */
  enum gaudi_cs_status lost;
};

struct gaudi_device {
  uint16_t number;
  int control; /* index of its control node, -1 where it came as a descriptor alone */
  int numa;
  uint32_t pci_id;
  uint64_t memory, page; /* bytes: in all, and of one allocation */
  char bus[16], card[20];
  int given;                /* a framework's descriptor, -1: none */
  _Atomic int fd;           /* -1 until the first use */
  struct gaudi_page *pages; /* under gaudi_lock */
  uint64_t hints;           /* bytes of address space asked for so far */
  struct gaudi_engine engine;
  pthread_mutex_t sum_lock; /* guards the buffer, and is held while it is used */
  struct memory sum_buffer; /* host memory that bytes are summed in; no provider: not yet */
};

/* Guards what comes and goes with devices and memory of all devices; taken before engines' locks.
 */
extern pthread_mutex_t gaudi_lock;

/* ---- device.c: which there are, and opening them ---- */

/* HAUL_GAUDI_FD; looks at nothing else. HAUL_EINVAL with the detail. */
int gaudi_settings_read(void);
/* The same, and keeps nothing. */
int gaudi_settings_check(void);
/* How many there are. The first call opens the library and asks the control nodes; the answer is
 * kept until gaudi_devices_close. */
unsigned gaudi_devices(void);
/* Why there are none: a code with the detail. */
int gaudi_why_none(void);
/* The device, without opening it; NULL past the last. */
struct gaudi_device *gaudi_device_at(unsigned number);
/* The same, open. With gaudi_lock. HAUL_EBUSY: another process has it. HAUL_EACCESS. */
int gaudi_device_open(unsigned number, struct gaudi_device **device);
void gaudi_devices_close(void);
/* The one whose descriptor came from a framework, or NULL. */
struct gaudi_device *gaudi_device_given(void);
extern const struct gaudi_driver *gaudi_driver; /* NULL until there are devices */

/* ---- memory.c: pages of the device, and blocks in them ---- */

int gaudi_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory);
void gaudi_free(struct memory *memory);
int gaudi_owns(const void *address, size_t length, struct haul_place *place);
int gaudi_wrap(void *address, size_t length, struct memory *memory);
int gaudi_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset);
struct gaudi_device *gaudi_device_of(const struct memory *memory);
/* With gaudi_lock: gives back all pages of a device that is about to be closed. */
void gaudi_pages_close(struct gaudi_device *device);
/* Pages that the device has, and how many of them are empty and could not be unmapped, as a dma-buf
 * of them was open. */
void gaudi_pages_count(unsigned device, unsigned *pages, unsigned *kept);

/* ---- engine.c: linear DMA ---- */

void gaudi_engine_open(struct gaudi_engine *engine);
/* Ends what is under way with HAUL_ECLOSED. */
void gaudi_engine_close(struct gaudi_device *device);
bool gaudi_reaches(const struct memory *other);
int gaudi_copy_start(struct copy *copy);
int gaudi_copy_poll(struct copy *copy);
void gaudi_copy_cancel(struct copy *copy);

/* ---- checks.c ---- */

extern const char *gaudi_sys; /* "/sys"; another one in tests */

size_t gaudi_checks(struct haul_check *checks, size_t room);

#endif
