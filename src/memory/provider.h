/* SPDX-License-Identifier: MIT
 * The first of haul's two tables: where bytes live. A provider is one const table for one kind of
 * memory, in a folder of its own whose one global symbol is that table; providers.c lists it.
 * Everything above asks the table, nobody asks the kind. An empty slot means "not supported". */
#ifndef HAUL_MEMORY_PROVIDER_H
#define HAUL_MEMORY_PROVIDER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "haul/haul.h"
#include "memory/ticket.h"

struct provider;

/* One block of bytes at a place, as its provider made, found or imported it. */
struct memory {
  const struct provider *provider;
  struct haul_place place;
  void *address;  /* in the place's own terms; to be touched through `view` alone */
  void *view;     /* the same bytes for the CPU, or NULL: most device memory has none */
  size_t length;  /* bytes that may be used */
  size_t held;    /* bytes that it takes where it lies, when these are more; else 0 */
  bool wrapped;   /* somebody else's memory: free leaves it alone */
  bool private;   /* asked for with HAUL_REGION_PRIVATE */
  bool shareable; /* export works */
  bool imported;  /* another process's memory */
  bool writable;  /* false for an import without HAUL_WRITE */
  bool may_pin;   /* asked for with HAUL_REGION_PINNED: an engine may pin it while it lives */
  bool may_wait;  /* asked for by memory_alloc_wait */
  /* Whose engine has pinned it, for which device; NULL: nobody's. */
  const struct provider *pinned_by;
  uint16_t pinned_for;
  /* Whose library knows it from `enroll`; NULL: nobody's. */
  const struct provider *enrolled_by;
  /* 1 until the owner frees it; shared with the owner's process. NULL where that cannot be told. */
  const _Atomic uint32_t *alive;
  void *state; /* the provider's own */
};

/* A copy that a provider's engine makes. The caller owns it and keeps it in place until it is done
 * or canceled; what stands above the status is the caller's, the rest the engine's. */
struct copy {
  struct memory *to, *from;
  uint64_t to_offset, from_offset, length;
  /* Two staging buffers (staging.h) for an engine that asks for them (copy_start); else NULL. */
  struct memory *through[2];
  /* Called from the engine's thread once status is final; may be NULL. It may come a moment after
   * status was seen to be final, so `user` stays in place until it came, or copy_cancel returned:
   * after that it does not come any more. */
  void (*wake)(void *user);
  void *user;
  _Atomic int status; /* 1: under way, 0: done, or a negative code */
  uint64_t engine[6];
};

enum fence {
  FENCE_BEFORE_READ, /* the device's writes become visible to others, before a NIC or CPU reads */
  FENCE_AFTER_WRITE  /* others' writes become visible to the device, after a NIC or CPU wrote */
};

struct provider {
  const char *name; /* "host"; also how its places are written */
  uint16_t kind;    /* enum haul_kind */
  bool emulated;
  /* Its tickets name the memory by what only the kernel gives, and imports compare it. */
  bool proven;
  bool numbered; /* its places carry a device number: "sim:0" */
  /* Freed memory is not unmapped but given to who asks next, so nobody may refer to its pages
   * behind the back of their owner. */
  bool recycles;

  /* For estimates: bytes a nanosecond and nanoseconds of the engine's copies (of the CPU's where
   * there is a view). */
  double copy_bytes_per_ns, copy_latency_ns;

  /* Why no memory of this kind can be given to another process of this host; NULL: it can. */
  const char *unshareable;

  /* Before the first use in this process and after the last one, under a lock of the caller's.
   * start may fail: the provider then has no devices, and the thread's error detail says why. */
  int (*start)(void);
  void (*stop)(void);

  /* How many devices there are now; 0 where the kind is not usable here. May look for them on the
   * first call after start, where that takes long. No slot: 1. */
  unsigned (*devices)(void);
  /* Why there are none now, where that is not known before somebody asks: a code with the detail.
   * No slot: what start said. */
  int (*why_none)(void);
  /* Fills everything but `place`. */
  void (*describe)(unsigned device, struct haul_device *info);
  /* Writes what this kind needs and whether it is there, at most `room` entries; returns how many
   * it has. Works also when start failed. */
  size_t (*checks)(struct haul_check *checks, size_t room);

  /* Tells what it counts, each under a name that begins with the kind's; any thread. */
  void (*counters)(void (*each)(void *user, const char *name, uint64_t value), void *user);

  /* `length` bytes, page-aligned at least; content undefined. `flags` are HAUL_REGION_…. May block
   * for the system's page allocation. Sets every field of *memory but provider,
   * place, private, may_pin, may_wait and held, which the caller has set, held to 0. On failure
   * *memory is undefined and nothing is held. With may_wait, a provider that has only so much waits
   * a while for some to come back. */
  int (*alloc)(unsigned device, size_t length, unsigned flags, struct memory *memory);
  /* Ends what alloc, wrap or import gave. Marks shared memory as no longer alive first. Imports
   * keep the bytes until they too are freed. No engine copy uses it any more. */
  void (*free)(struct memory *memory);

  /* Asked whether there are devices or not. Does [address, address + length) lie in this kind's
   * memory? 1 and the place: all of it; 0: none
   * of it; HAUL_EINVAL with the detail: some of it, or it is not mapped. host is asked last and
   * claims what no device claims. */
  int (*owns)(const void *address, size_t length, struct haul_place *place);
  /* A block over memory that `owns` claimed. */
  int (*wrap)(void *address, size_t length, struct memory *memory);

  /* A block over a range of a file, to be read; the descriptor is not believed, and stays the
   * caller's. Host's alone. */
  int (*wrap_file)(int descriptor, uint64_t offset, size_t length, struct memory *memory);

  /* Makes another kind's memory, which the CPU reaches, known to this kind's own library, and
   * unknown again; what is enrolled is not enrolled once more. EINVAL, EACCESS, ELIMIT, ENOTSUP. */
  int (*enroll)(const struct memory *memory);
  int (*dismiss)(const struct memory *memory);

  /* Is the block still there? Asked before one that was kept is used again; HAUL_ESTALE where it
   * went with something of the application's, as a GPU's context. May block. No slot: it is. */
  int (*check)(const struct memory *memory);

  /* A descriptor for the whole block, which the caller closes; it allows no more than `rights`
   * (HAUL_READ always): HAUL_ENOTSUP where it cannot be held to them. Fills the parts of the ticket
   * that are the provider's: capability, extra. `descriptor` NULL: those alone. */
  int (*export)(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor);
  /* The number that the ticket's device has in this process; the ticket is foreign. No slot: the
   * one in its place. HAUL_EPLACE when it is not here. */
  int (*locate)(const struct ticket *ticket, uint16_t *device);
  /* The block behind a descriptor of another process, on memory->place; ticket and descriptor are
   * foreign and not believed. Maps without touching pages. The descriptor stays the caller's.
   * HAUL_ETICKET, HAUL_ESTALE. */
  int (*import)(const struct ticket *ticket, int descriptor, struct memory *memory);

  /* The driver's number for what lies there now, never used again for anything else: another one
   * means that wrapped memory was freed and allocated again behind our back. 0, or no slot: it has
   * none. */
  uint64_t (*buffer)(const struct memory *memory);

  /* Memory that is neither shareable nor in the CPU's reach, as a GPU's that the application
   * allocated: what another process needs besides the ticket to reach it for a while. Whoever lends
   * it waits, before the owner lets go of it, until nobody has borrowed it. HAUL_ENOTSUP with the
   * detail. Borrowed memory may be written, whatever the ticket says. */
  int (*ipc_export)(const struct memory *memory, struct ticket *ticket, uint8_t token[IPC_TOKEN]);
  /* The memory until it is freed, on memory->place; ticket and token are foreign and not believed.
   * May block. */
  int (*ipc_import)(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                    struct memory *memory);

  /* A dma-buf for a device that reads and writes the block (a NIC); the caller closes it. The block
   * begins at *offset in it, and it ends no sooner than the block's last page. It may pin the pages
   * for as long as it is open. Wrapped blocks have one too. Not what `export` gives: a dma-buf
   * cannot be opened for reading alone and has a system limit on its size. HAUL_ENOTSUP: this
   * memory has none. */
  int (*dmabuf)(struct memory *memory, int *descriptor, uint64_t *offset);

  /* Can the engine copy between its own memory and `other`? */
  bool (*reaches)(const struct memory *other);
  /* Starts a copy between two blocks of which one is this kind's and the other reached. Does not
   * block. 1: nothing is started, it takes `through`. Status becomes 0 or an error once the bytes
   * are visible at `to` and the engine touches neither block any more; `wake` is called after that,
   * from any thread. */
  int (*copy_start)(struct copy *copy);
  /* Returns the status, looking at the engine where it needs to be looked at. An engine that does
   * not wake may do a part of the copy here, and leaves the detail of a failure that it finds with
   * the thread. One caller at a time, copy_cancel included. */
  int (*copy_poll)(struct copy *copy);
  /* Returns when the engine touches neither block any more and `wake` is not running; bounded by
   * one engine operation. The status is then final. Call it without locks that `wake` takes. */
  void (*copy_cancel)(struct copy *copy);
  /* Is this host memory copied by the CPU to or from staging buffers, as the engine does not reach
   * it? Not where it may be pinned. No slot: never. */
  bool (*needs_cpu)(const struct memory *host);
  /* Ends what the engine did to it, before it is freed. */
  void (*unpin)(struct memory *host);
  /* Does the engine call `wake`? If not, copy_poll is called every few microseconds. */
  bool wakes;

  /* Returns when it holds. No slot: nothing to do. */
  int (*fence)(struct memory *memory, enum fence direction);
  /* XXH3-64 over the bytes, computed where they are. No slot: `view`, or a staged copy. */
  int (*checksum)(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum);
};

/* ---- providers.c: the list ---- */

#define PROVIDERS_MAX 8

/* Starts every provider on the first call and counts; the matching stop ends them on the last. One
 * that does not start is left without devices; that is not an error. */
int providers_start(void);
void providers_stop(void);

/* The i-th provider, NULL past the last. Devices come first, host last. */
const struct provider *provider_at(size_t index);
/* NULL for an unknown kind. */
const struct provider *provider_of(uint16_t kind);
/* Number of usable devices, 0 where start failed. */
unsigned provider_devices(const struct provider *provider);

/* Allocation at a place that is not believed: HAUL_EPLACE with the detail for one that is not
 * there. */
int memory_alloc(struct haul_place place, size_t length, unsigned flags, struct memory *memory);
/* The same, waiting for memory that others give back where the provider's comes back so. */
int memory_alloc_wait(struct haul_place place, size_t length, unsigned flags,
                      struct memory *memory);
int memory_wrap(void *address, size_t length, struct memory *memory);
int memory_wrap_file(int descriptor, uint64_t offset, size_t length, struct memory *memory);
int memory_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor);
int memory_import(const struct ticket *ticket, int descriptor, struct memory *memory);
int memory_ipc_export(const struct memory *memory, struct ticket *ticket, uint8_t token[IPC_TOKEN]);
int memory_ipc_import(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                      struct memory *memory);
/* The place of a foreign ticket in this process. */
int memory_locate(const struct ticket *ticket, struct haul_place *place,
                  const struct provider **provider);
int memory_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset);
void memory_free(struct memory *memory);

/* Has the kind's own library know the memory, until memory_dismiss or its end. */
int memory_enroll(struct memory *memory, uint16_t kind);
int memory_dismiss(struct memory *memory);

/* False once the owner of an import freed it. Acquire: what was copied before a true answer was
 * copied while the memory lived. */
static inline __attribute__((always_inline)) bool memory_alive(const struct memory *memory) {
  return !memory->alive || atomic_load_explicit(memory->alive, memory_order_acquire) == 1;
}

/* HAUL_ESTALE with the words for memory that is not: the same ticket imports it no more. */
int error_released(const char *object);

/* Defaults for empty slots. */
int memory_check(const struct memory *memory);
int memory_fence(struct memory *memory, enum fence direction);

#endif
