/* SPDX-License-Identifier: MIT
 * The `map` transport: the peer's region is mapped here, and the CPU or a device's engine copies.
 *
 *   channel.c  the Unix connection: greeting, requests for regions, responses
 *   copier.c   threads that copy works too large for the call itself
 *   engine.c   copies by a device's engine
 *   attach.c   cross-memory attach, for wrapped private memory
 *   ipc.c      IPC mappings, for wrapped device memory
 *   map.c      the table: estimates, small transfers, dispatch
 */
#ifndef HAUL_FABRIC_MAP_H
#define HAUL_FABRIC_MAP_H

#include <sys/types.h>

#include "fabric/exports.h"
#include "fabric/transport.h"
#include "memory/shm.h"

#define MAP_RECORD 384 /* bytes of every record on the channel */
#define HAZARDS    64  /* hazard cells of one process towards one peer */

/* Written by the copying side, read by the owner of the private memory: each cell holds the handle
 * of the region that a copy is accessing, or 0. */
struct hazards {
  _Atomic uint64_t cell[HAZARDS];
};

/* The page of the copying side, which its peer maps read-only. A peer of an earlier version shares
 * the hazards only; its counters read as 0. */
struct map_page {
  struct hazards hazards;            /* first */
  struct endpoint_counters counters; /* of the copying side: base.counters */
};

struct map_endpoint {
  struct endpoint base;

  /* The lock. */
  struct watch watch; /* the channel */
  int channel;        /* -1: none */
  uint8_t inbox[MAP_RECORD];
  size_t inbox_length;
  int inbox_descriptors[4];
  size_t inbox_count;
  struct list requests; /* struct bind_request */
  uint32_t next_request;

  /* From the peer's greeting, constant once `base.open`. */
  struct shm validity_shm;
  const _Atomic uint32_t *validity; /* its validity page (fabric/exports.h) */
  uint32_t validity_slots;
  struct shm peer_page_shm;
  const struct map_page *peer_page; /* its copies on this side's memory */
  int64_t collected_at;             /* the last channel_collect; the lock */
  pid_t pid;                        /* in this PID namespace; 0: not visible */
  int process;                      /* its pidfd, -1: none */
  bool may_attach;                  /* cross-memory attach was tried and works */
  char attach_reason[128];          /* why not */

  struct shm page_shm;
  struct map_page *page;         /* of this side's copies */
  _Atomic uint64_t cells_in_use; /* a bit for each cell; the cells' content is never trusted */
  uint64_t nonce;                /* the peer reads it to try cross-memory attach */

  unsigned ipc_open;       /* open IPC mappings; the engines' lock */
  _Atomic uint32_t active; /* copies in progress in copier threads */
};

/* An endpoint's state of one remote region. */
struct map_binding {
  bool attached;              /* by cross-memory attach, else mapped */
  struct memory memory;       /* the mapping; for IPC its description without an address */
  struct map_ipc *ipc;        /* NULL: no IPC mapping */
  uint64_t address;           /* attached: in the peer's address space */
  _Atomic uint64_t populated; /* bytes that copies populated, of any offset */
  uint64_t handle;
};

extern const struct transport map_transport;

struct copier;
struct engines;

/* Whether the remote region is published. Acquire: later reads and copies are not reordered before
 * it. A copy is valid when this holds after it: stamps change with each use of a slot, so the
 * region was published during the copy. The copy's own stores may not be visible yet; they are
 * ordered before the store that reports completion. */
static inline bool map_alive(const struct map_endpoint *endpoint, uint64_t handle) {
  return atomic_load_explicit(&endpoint->validity[EXPORT_SLOT(handle)], memory_order_acquire) ==
         EXPORT_STAMP(handle);
}

/* The same after hazard_set. The cell's store, this load, and the owner's store to the word and
 * loads of the cells are seq_cst: of copier and owner, one sees the other. */
static inline bool map_alive_after_hazard(const struct map_endpoint *endpoint, uint64_t handle) {
  return atomic_load(&endpoint->validity[EXPORT_SLOT(handle)]) == EXPORT_STAMP(handle);
}

/* HAUL_ESTALE, with the detail. */
int map_stale(void);
/* Runs the whole work by the CPU; 0 or a code with the detail. */
int map_run(struct work *work);
/* The provider whose engine copies the work; NULL: none. */
const struct provider *map_engine_of(const struct work *work);

int channel_open(struct map_endpoint *endpoint); /* the hazards; before any channel */
int channel_start(struct map_endpoint *endpoint, int descriptor); /* lock; takes the descriptor */
/* False once the peer's end is closed, as after its process died. */
bool channel_lives(const struct map_endpoint *endpoint);
void channel_stop(struct map_endpoint *endpoint, int code); /* lock */
void channel_release(struct map_endpoint *endpoint);        /* unmaps and closes everything */
/* Counts the peer's copies as served. The lock. */
void channel_collect(struct endpoint *base);
int channel_bind(struct map_endpoint *endpoint, const struct remote_key *key, haul_deadline until,
                 struct map_binding *binding);

void attach_try(struct map_endpoint *endpoint, uint64_t nonce_address, uint64_t nonce);
/* False for memory of this process that other processes cannot attach. */
bool attach_allows(const struct memory *memory);
/* Copies the pieces, of WORK_BYTES_MAX in all, between a region and `local`; 0 or a code with the
 * detail. */
int attach_copy(struct map_endpoint *endpoint, const struct map_binding *binding, void *local,
                const struct haul_piece *pieces, size_t count, enum haul_operation operation);
int attach_checksum(struct map_endpoint *endpoint, const struct map_binding *binding,
                    uint64_t remote, uint64_t length, uint64_t *sum);
void attach_release(struct map_endpoint *endpoint);
/* Whether a copy of the peer accesses the region behind `handle`, or any for 0. */
bool attach_touches(const struct map_endpoint *endpoint, uint64_t handle);
/* A cell that shows the handle to the peer, or -1: all are in use. */
int hazard_set(struct map_endpoint *endpoint, uint64_t handle);
void hazard_clear(struct map_endpoint *endpoint, unsigned cell);

/* ipc.c: with the engines' lock, or before other threads know the binding */

int ipc_bind(struct map_binding *binding, const struct ticket *ticket,
             const uint8_t token[IPC_TOKEN]);
void ipc_unbind(struct map_binding *binding);
/* 0: the memory is mapped until ipc_end; 1: not now, try again; or a code with the detail. */
int ipc_begin(struct map_endpoint *endpoint, struct map_binding *binding);
void ipc_end(struct map_endpoint *endpoint, struct map_binding *binding);
/* The binding's memory, as the engine copies it. */
struct memory *binding_memory(struct map_binding *binding);

int copier_open(struct fabric *fabric, struct copier **copier);
void copier_end(struct copier *copier); /* joins its threads; later posts fail */
void copier_free(struct copier *copier);
void copier_post(struct copier *copier, struct work *work);
bool copier_help(struct copier *copier, uint64_t least);
bool copier_cancel(struct copier *copier, struct work *work); /* true: it was still queued */
void copier_drain(struct copier *copier, struct map_endpoint *endpoint, int code);

int map_engines_open(struct fabric *fabric, struct engines **engines);
void map_engines_end(struct engines *engines);
void map_engines_free(struct engines *engines);
void engine_post(struct engines *engines, struct work *work);
/* Opens the binding's IPC mapping and closes it again, to learn of a failure early. */
int engine_try(struct engines *engines, struct map_endpoint *endpoint, struct map_binding *binding);
void engine_cancel(struct engines *engines, struct work *work, int code);
void engine_drain(struct engines *engines, struct map_endpoint *endpoint, int code);

#endif
