/* SPDX-License-Identifier: MIT
 * The `map` transport: the peer's region is mapped here, and the CPU or a device's engine copies.
 *
 *   channel.c  the Unix connection: greeting, requests for descriptors, answers
 *   copier.c   threads that copy what is too large for the call itself
 *   engine.c   copies that a device's engine makes
 *   attach.c   cross-memory attach, for wrapped private memory
 *   lent.c     device memory that the peer lends for the time of copies
 *   map.c      the table: estimates, small transfers, dispatch
 */
#ifndef HAUL_FABRIC_MAP_H
#define HAUL_FABRIC_MAP_H

#include <sys/types.h>

#include "fabric/transport.h"
#include "memory/shm.h"

#define MAP_RECORD 384 /* bytes of every record on the channel */
#define HAZARDS    64  /* cross-memory copies that one process has under way towards one peer */

/* Made and written by the side that copies, read by the side whose private memory it is: a cell
 * holds the handle of the region that a copy is touching, or 0. */
struct hazards {
  _Atomic uint64_t cell[HAZARDS];
};

struct map_endpoint {
  struct endpoint base;
  struct watch watch;        /* the channel; lock */
  int channel;               /* -1 when there is none; lock */
  uint8_t inbox[MAP_RECORD]; /* a record that is not whole yet; lock */
  size_t inbox_length;
  int inbox_descriptors[4];
  size_t inbox_count;
  struct list waiting;   /* struct attach_request; lock */
  uint32_t next_request; /* lock */

  /* From the peer's greeting, constant once `base.open`. */
  struct shm board_shm;
  const _Atomic uint32_t *board; /* stamps of its published regions */
  uint32_t board_slots;
  struct shm peer_hazards_shm;
  const struct hazards *peer_hazards; /* of its copies on our private memory */
  pid_t pid;               /* of the peer as this PID namespace sees it; 0: it does not */
  int process;             /* refers to that process, whoever gets its number later; -1: none */
  bool may_attach;         /* cross-memory attach was tried and works */
  char attach_reason[128]; /* why not */

  /* Ours. */
  struct shm hazards_shm;
  struct hazards *hazards;
  _Atomic uint64_t taken; /* a bit for each cell in use; what stands in the cells is not asked */
  uint64_t nonce;         /* what the peer reads to try cross-memory attach */

  unsigned lent;           /* that are open; the engines' lock */
  _Atomic uint32_t active; /* copies under way in copier threads */
};

struct map_ipc;

/* What the endpoint knows of one remote region. */
struct map_binding {
  bool attached;        /* cross-memory attach, else mapped */
  struct memory memory; /* mapped: the import; lent: what is known of it, and no address */
  struct map_ipc *lent; /* lent, else NULL */
  uint64_t address;     /* attached: in the peer's address space */
  uint64_t handle;
};

/* True while the remote region is published. Acquire: what is read or copied after it is not read
 * before it. A copy counts when this holds after it: stamps change with each use of a slot, so the
 * region was published when the copy was made. The copy's own stores may still be on their way to
 * the cache then; they are ordered before whatever tells anybody that the copy is complete. */
static inline bool map_alive(const struct map_endpoint *endpoint, uint64_t handle);

/* channel.c */
int channel_open(struct map_endpoint *endpoint); /* our hazards; before any channel */
int channel_start(struct map_endpoint *endpoint, int descriptor); /* lock; takes the descriptor */
/* False once the peer's end is closed, as it is when its process has died. */
bool channel_lives(const struct map_endpoint *endpoint);
void channel_stop(struct map_endpoint *endpoint, int code); /* lock */
void channel_release(struct map_endpoint *endpoint);        /* everything mapped and shared */
int channel_attach(struct map_endpoint *endpoint, const struct remote_key *key, haul_deadline until,
                   struct map_binding *binding);

/* attach.c */
void attach_try(struct map_endpoint *endpoint, uint64_t nonce_address, uint64_t nonce);
/* False for memory of this process that no other process can attach. */
bool attach_allows(const struct memory *memory);
/* One piece; 0 or a code with the detail. */
int attach_copy(struct map_endpoint *endpoint, const struct map_binding *binding, uint64_t remote,
                void *local, uint64_t length, enum haul_operation operation);
int attach_checksum(struct map_endpoint *endpoint, const struct map_binding *binding,
                    uint64_t remote, uint64_t length, uint64_t *sum);
void attach_release(struct map_endpoint *endpoint);
/* Whether a copy of the peer's touches the region behind `handle`. */
bool attach_touches(const struct map_endpoint *endpoint, uint64_t handle);
bool attach_touches_any(const struct map_endpoint *endpoint);
/* A cell that shows the handle to the peer, or -1: all are in use. */
int hazard_show(struct map_endpoint *endpoint, uint64_t handle);
void hazard_clear(struct map_endpoint *endpoint, unsigned cell);

/* lent.c. One caller at a time for a binding: the engines' lock, or before anybody has it. */
int ipc_open(struct map_binding *binding, const struct ticket *ticket,
             const uint8_t token[IPC_TOKEN]);
void ipc_close(struct map_binding *binding); /* nobody uses it */
/* 0: the memory is here until ipc_end; 1: not now, try again; or a code with the detail. */
int ipc_begin(struct map_endpoint *endpoint, struct map_binding *binding);
void ipc_end(struct map_endpoint *endpoint, struct map_binding *binding);
/* The binding's memory, as the engine copies it. */
struct memory *binding_memory(struct map_binding *binding);

/* map.c: the whole work, by the CPU; 0 or a code with the detail. */
int map_run(struct work *work);

/* copier.c */
struct copier;
int copier_open(struct fabric *fabric, struct copier **copier);
void copier_end(struct copier *copier); /* joins its threads; what is posted after it fails */
void copier_free(struct copier *copier);
void copier_post(struct copier *copier, struct work *work);
bool copier_help(struct copier *copier);
bool copier_cancel(struct copier *copier, struct work *work); /* true: it was taken back */
void copier_drain(struct copier *copier, struct map_endpoint *endpoint, int code);

/* map.c: whose engine copies it; NULL: none. */
const struct provider *map_engine_of(const struct work *work);

/* engine.c */
struct engines;
int map_engines_open(struct fabric *fabric, struct engines **engines);
void map_engines_end(struct engines *engines);
void map_engines_free(struct engines *engines);
void engine_post(struct engines *engines, const struct provider *by, struct work *work);
/* Whether what is lent can be had: then it was, for a moment. */
int engine_try(struct engines *engines, struct map_endpoint *endpoint, struct map_binding *binding);
void engine_cancel(struct engines *engines, struct work *work, int code);
void engine_drain(struct engines *engines, struct map_endpoint *endpoint, int code);

/* A node's share: fabric->shared[map]. */
struct map_node {
  struct copier *copier;
  struct engines *engines;
};

extern const struct transport map_transport;

static inline struct map_node *map_node_of(const struct endpoint *endpoint) {
  return endpoint->link->fabric->shared[0];
}

#include "fabric/exports.h"

static inline bool map_alive(const struct map_endpoint *endpoint, uint64_t handle) {
  return atomic_load_explicit(&endpoint->board[EXPORT_SLOT(handle)], memory_order_acquire) ==
         EXPORT_STAMP(handle);
}

/* The same for who has shown a hazard: the cell's store, this load, and the owner's store to the
 * word and loads of the cells are seq_cst, so that one of the two sees the other. */
static inline bool map_alive_behind_cell(const struct map_endpoint *endpoint, uint64_t handle) {
  return atomic_load(&endpoint->board[EXPORT_SLOT(handle)]) == EXPORT_STAMP(handle);
}

#endif
