/* SPDX-License-Identifier: MIT
 * The provider table. A provider is a const table for one kind of memory, the only global symbol of
 * its folder; providers.c lists it. Layers above use the table and do not check the kind. A NULL
 * callback means "not supported". */
#ifndef HAUL_MEMORY_PROVIDER_H
#define HAUL_MEMORY_PROVIDER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "haul/haul.h"
#include "memory/ticket.h"

struct provider;

/* A block of bytes at a place: allocated, wrapped or imported by its provider. */
struct memory {
  const struct provider *provider;
  struct haul_place place;
  void *address;    /* the device's address; access only through `view` */
  void *view;       /* CPU address of the bytes; NULL for most device memory */
  size_t length;    /* bytes that may be used */
  size_t footprint; /* bytes that it takes of the device, when more than `length`; else 0 */
  bool wrapped;     /* the application's memory, which free leaves alone */
  bool private;     /* allocated with HAUL_REGION_PRIVATE */
  bool shareable;   /* export works */
  bool imported;    /* another process's memory */
  bool writable;    /* false for an import without HAUL_WRITE */
  bool may_pin;     /* HAUL_REGION_PINNED: an engine may pin it until it is freed */
  bool may_wait;    /* allocated by memory_alloc_wait */
  /* The provider whose engine has pinned it, stored last; NULL: not pinned. The device, and which
   * of its contexts. */
  const struct provider *_Atomic pinned_by;
  uint16_t pinned_for;
  uint32_t pinned_generation;
  /* The provider whose library has registered it (`enroll`); NULL: none. */
  const struct provider *enrolled_by;
  /* Wrapped device memory: of the allocations behind its addresses, never reused. Equal addresses
   * with another identity are other memory. 0: unknown. */
  uint64_t identity;
  /* 1 until the owner frees it; in memory shared with the owner. NULL: unknown. */
  const _Atomic uint32_t *alive;
  void *state; /* of the provider */
};

#define COPY_GROUP_BYTES ((uint64_t)8 << 20) /* a cancel waits for them: 320 us at 25 GB/s */

struct copy_segment {
  uint64_t to_offset, from_offset, length; /* bytes */
};

/* A copy by a provider's engine. The caller owns it and keeps it in place until it is done or
 * canceled. The fields above `status` belong to the caller, the others to the engine. */
struct copy {
  struct memory *to, *from;
  uint64_t to_offset, from_offset, length;
  /* Further segments between the two memories, with the first at most COPY_GROUP_BYTES. copy_start
   * sets `gathers` if the engine copies them, too; else the copy is of the first alone. */
  const struct copy_segment *more;
  uint32_t more_count;
  bool gathers;
  /* Two bounce buffers (staging.h) for an engine that needs them (copy_start); else NULL. */
  struct memory *through[2];
  /* Called from a thread of the engine when copy_poll has something to do, at the latest when the
   * status is final. It may come once too often, also after a poll saw the final status. After
   * copy_cancel it does not come. */
  void (*wake)(void *user);
  void *user;
  bool wakes;         /* does it come? Set before copy_start, or later before a poll */
  _Atomic int status; /* 1: in progress, 0: done, or a negative code */
  uint64_t engine[9];
};

enum fence {
  FENCE_BEFORE_READ, /* makes device writes visible, before a NIC or the CPU reads */
  FENCE_AFTER_WRITE  /* makes writes of a NIC or the CPU visible to the device */
};

struct provider {
  const char *name; /* "host"; also the name of its places */
  uint16_t kind;    /* enum haul_kind */
  bool emulated;
  /* Tickets name the memory by kernel-assigned numbers, which imports verify. */
  bool proven;
  bool numbered; /* its places have a device number: "sim:0" */
  /* Freed memory is not unmapped but reused, so pages must not be referenced after the owner's
   * free. */
  bool recycles;

  /* For cost estimates: bandwidth and latency of engine copies (CPU copies where there is a view).
   */
  double copy_bytes_per_ns, copy_latency_ns;

  /* Why this kind cannot be shared with another process of the host; NULL: it can. */
  const char *unshareable;

  /* Before the first use in this process and after the last one, under the caller's lock. If start
   * fails, the provider has no devices and the thread's detail says why. */
  int (*start)(void);
  void (*stop)(void);

  /* The number of devices; 0 if the kind is not usable here. The first call after start may probe,
   * where that is slow. NULL: 1. */
  unsigned (*devices)(void);
  /* The code and detail of why there are none, if only probing finds out. NULL: start's detail. */
  int (*why_none)(void);
  /* Fills everything but `place`. */
  void (*describe)(unsigned device, struct haul_device *info);
  /* The state of the kind's prerequisites: fills at most `room` entries and returns their total
   * number. Works also after start failed. */
  size_t (*checks)(struct haul_check *checks, size_t room);

  /* Reports counters, each name prefixed with the kind's; any thread. */
  void (*counters)(void (*each)(void *user, const char *name, uint64_t value), void *user);

  /* `length` bytes, at least page-aligned; content undefined. `flags` are HAUL_REGION_…. May block
   * in the system's page allocation. The caller has set provider, place, private, may_pin and
   * may_wait, and zeroed the rest of *memory. On failure *memory is undefined and nothing is
   * allocated. With may_wait a provider of bounded memory waits a while for some to be freed. */
  int (*alloc)(unsigned device, size_t length, unsigned flags, struct memory *memory);
  /* Frees what alloc, wrap or import made. Clears `alive` of shared memory first. Imports keep the
   * bytes until they are freed. No engine copy uses the block any more. */
  void (*free)(struct memory *memory);

  /* Does [address, address + length) lie in this kind's memory? 1 and the place: all of it; 0:
   * none; HAUL_EINVAL with the detail: only a part, or it is not mapped. Called even without
   * devices. host is asked last and claims what no device does. */
  int (*owns)(const void *address, size_t length, struct haul_place *place);
  /* A block over memory that `owns` claimed. */
  int (*wrap)(void *address, size_t length, struct memory *memory);

  /* A read-only block over a range of a file. The descriptor is untrusted and stays the caller's.
   * Only host. */
  int (*wrap_file)(int descriptor, uint64_t offset, size_t length, struct memory *memory);

  /* Register memory of another kind, which has a CPU view, with this kind's own library, and
   * unregister it. Not called twice for one block. EINVAL, EACCESS, ELIMIT, ENOTSUP. */
  int (*enroll)(const struct memory *memory);
  int (*dismiss)(const struct memory *memory);

  /* Does the block still exist? Asked before a pooled or cached block is reused. HAUL_ESTALE if it
   * was destroyed by the application, as with a GPU's context. May block. NULL: it exists. */
  int (*check)(const struct memory *memory);

  /* A descriptor of the whole block, which the caller closes. It permits no more than `rights`
   * (always HAUL_READ), or HAUL_ENOTSUP. Fills the provider's fields of the ticket: capability,
   * extra. `descriptor` NULL: only those. */
  int (*export)(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor);
  /* This process's number of the ticket's device; the ticket is untrusted. NULL: the number
   * in its place. HAUL_EPLACE if the device is not here. */
  int (*locate)(const struct ticket *ticket, uint16_t *device);
  /* Imports the block behind a descriptor, on memory->place. Ticket and descriptor are untrusted;
   * the descriptor stays the caller's. Maps without touching pages. HAUL_ETICKET, HAUL_ESTALE. */
  int (*import)(const struct ticket *ticket, int descriptor, struct memory *memory);

  /* IPC mapping, for memory that is neither shareable nor CPU-accessible, such as the application's
   * GPU memory: exports a token by which another process maps it for a while. The exporter must
   * wait for all importers before the owner frees it. HAUL_ENOTSUP with the detail. Importers may
   * always write. */
  int (*ipc_export)(const struct memory *memory, struct ticket *ticket, uint8_t token[IPC_TOKEN]);
  /* Maps the memory until it is freed, on memory->place; ticket and token are untrusted. May block.
   */
  int (*ipc_import)(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                    struct memory *memory);

  /* A dma-buf for a NIC, which may read and write; the caller closes it. The block begins at
   * *offset; the dma-buf ends at or after the block's last page and may pin its pages while it is
   * open. Also for wrapped blocks. It differs from `export`: a dma-buf cannot be opened read-only,
   * and the system limits its size. HAUL_ENOTSUP: none for this memory; HAUL_ELIMIT. */
  int (*dmabuf)(struct memory *memory, int *descriptor, uint64_t *offset);

  /* An event of the application's on the device: 1: its work is under way, 0: complete, or a code
   * with the detail. `again`: not the first look, so the device is in use. NULL: there are no
   * events. */
  int (*event_look)(unsigned device, void *event, bool again);

  /* Can the engine copy between `own`, of this kind, and `other`? An engine may first find out by a
   * copy that it cannot: the copy fails with HAUL_ENOTSUP, and this returns false from then on. */
  bool (*reaches)(const struct memory *own, const struct memory *other);
  bool gathers; /* the engine looks at copy->more */
  /* Starts a copy between a block of this kind and one that it reaches. Does not block. 1: not
   * started, as it needs `through`. Status becomes 0 or an error once the bytes are visible at `to`
   * and the engine touches neither block. */
  int (*copy_start)(struct copy *copy);
  /* Returns the status, polling the engine if necessary: the engine may advance the copy here. It
   * leaves the detail of a failure with the thread. One caller at a time, copy_cancel included. */
  int (*copy_poll)(struct copy *copy);
  /* Returns when the engine touches neither block and `wake` is not running; takes at most one
   * engine operation. The status is then final. Call it without locks that `wake` takes. */
  void (*copy_cancel)(struct copy *copy);
  /* Must the CPU copy this host memory to and from bounce buffers, as the engine does not reach it?
   * Not if it may be pinned. NULL: never. */
  bool (*needs_cpu)(const struct memory *host);
  /* Pins memory with `may_pin`, unless it is pinned. May block until all that runs on the device
   * has ended, and kernels may wait for transfers: so not where a transfer waits. NULL: the engine
   * pins nothing for longer than a copy. */
  int (*pin)(unsigned device, struct memory *host);
  /* Unpins it before it is freed. Blocks likewise. */
  void (*unpin)(struct memory *host);
  /* Host memory is about to end: drops what the engine keeps of its pages. NULL: nothing. */
  void (*forget)(const struct memory *host);
  /* Can the engine call `wake`? If not, poll with copy_poll every few microseconds. A driver may
   * forget the call if it destroys a device's context, so a deadline still matters. */
  bool wakes;

  /* Returns when the fence holds. NULL: nothing to do. */
  int (*fence)(struct memory *memory, enum fence direction);
  /* XXH3-64 over the bytes in place. NULL: by `view`, or a staged copy. */
  int (*checksum)(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum);
};

/* providers.c: the list */

#define PROVIDERS_MAX 8

/* Starts all providers on the first call; the last matching stop stops them. A provider that fails
 * to start has no devices; that is no error. */
int providers_start(void);
void providers_stop(void);

/* The i-th provider, NULL past the last. Devices come first, host last. */
const struct provider *provider_at(size_t index);
/* NULL for an unknown kind. */
const struct provider *provider_of(uint16_t kind);
/* The number of usable devices; 0 if start failed. */
unsigned provider_devices(const struct provider *provider);

/* Allocates at an untrusted place. HAUL_EPLACE with the detail if it does not exist. */
int memory_alloc(struct haul_place place, size_t length, unsigned flags, struct memory *memory);
/* The same, but a provider of bounded memory waits for frees. */
int memory_alloc_wait(struct haul_place place, size_t length, unsigned flags,
                      struct memory *memory);
int memory_wrap(void *address, size_t length, struct memory *memory);
int memory_wrap_file(int descriptor, uint64_t offset, size_t length, struct memory *memory);
int memory_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor);
int memory_import(const struct ticket *ticket, int descriptor, struct memory *memory);
int memory_ipc_export(const struct memory *memory, struct ticket *ticket, uint8_t token[IPC_TOKEN]);
int memory_ipc_import(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                      struct memory *memory);
/* The place, in this process, of an untrusted ticket. */
int memory_locate(const struct ticket *ticket, struct haul_place *place,
                  const struct provider **provider);
int memory_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset);
void memory_free(struct memory *memory);

/* Registers the memory with the kind's library until memory_dismiss or memory_free. */
int memory_enroll(struct memory *memory, uint16_t kind);
int memory_dismiss(struct memory *memory);

/* False once the owner of an import freed it. Acquire: bytes copied before a true result were
 * valid. */
static inline __attribute__((always_inline)) bool memory_alive(const struct memory *memory) {
  return !memory->alive || atomic_load_explicit(memory->alive, memory_order_acquire) == 1;
}

/* HAUL_ESTALE: the owner released the memory, so the same ticket imports it no more. */
int error_released(const char *object);
/* HAUL_EINVAL for a range of addresses that cannot be wrapped. */
int error_range(const void *address, size_t length, const char *hint, const char *text);
/* HAUL_ETICKET for a descriptor that is not what its ticket says. */
int error_descriptor(int system, const char *why);
/* HAUL_ENOMEM for a length that overflows when it is rounded up. */
int error_length(size_t length);

/* Wrappers with the defaults of NULL callbacks. */
int memory_check(const struct memory *memory);
int memory_fence(struct memory *memory, enum fence direction);

/* provider.event_look, at a place that may not exist: HAUL_EPLACE, HAUL_ENOTSUP. */
int memory_event(struct haul_place place, void *event, bool again);

#endif
