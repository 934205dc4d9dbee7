/* SPDX-License-Identifier: MIT
 * Shared by the files of the hook: the table of blocks, the node, the log, allocation and release.
 */
#ifndef HAUL_CUDAHOOK_HOOK_H
#define HAUL_CUDAHOOK_HOOK_H

#include <stdbool.h>
#include <stddef.h>

#include <haul/haul.h>

#include "runtime.h"

/* blocks.c: allocations of the hook, by address.
 * Not for a forked child, where another thread's lock may be held forever. */

#define BLOCK_STREAMS 4u

struct block {
  struct block *next; /* in its chain, or among the pending frees */
  const char *address;
  size_t bytes;
  int device; /* number of the runtime, equal to the driver's */
  haul_region *region;
  struct export *export;                 /* NULL: not exported */
  cudaStream_t streams[BLOCK_STREAMS];   /* haul_cudahook_record_stream */
  unsigned stream_count;                 /* over BLOCK_STREAMS: also others */
  cudaEvent_t events[BLOCK_STREAMS + 1]; /* a pending free: when they are done, the block is free */
  unsigned event_count;
};

/* Takes the block. Returns a stale block at the same address, or NULL: a device reset frees memory
 * without a call to the hook. */
struct block *blocks_insert(struct block *block);

/* Returns the block that starts at the address to the caller, or NULL. */
struct block *blocks_remove(const void *address);

/* Returns all blocks of the device to the caller, as a list. */
struct block *blocks_remove_all(int device);

/* Calls `use` with the block that contains the address, with its lock held; returns its result, or
 * HAUL_EINVAL without such a block. `use` must not call this file. */
int blocks_use(const void *address, int (*use)(void *user, struct block *block), void *user);

/* node.c: settings, and the node */

/* Whether this process is a fork of the one that opened the node. Takes no lock, so it is called
 * before any that does. */
bool is_forked_child(void);

/* Whether the thread is in a call of haul, or of the driver that haul makes: its allocations are
 * not the application's. */
extern _Thread_local bool inside_haul;

/* Logs invalid settings, once. */
void node_check_settings(void);

/* The node. The first call opens it, which includes the driver's initialization. NULL with *why. */
haul_node *node_get(const char **why);

/* The same, but NULL until it is open. */
haul_node *node_opened(void);

/* A node for memory of other processes: likewise. It does not keep what was released. */
haul_node *node_of_imports(const char **why);

/* HAUL_CUDAHOOK_MINIMUM: smaller allocations are passed on. */
size_t node_minimum(void);

/* The name and rights of the next allocation (HAUL_CUDAHOOK_PUBLISH, _RIGHTS); false without. */
bool node_next_name(char *name, size_t size, unsigned *rights);

/* Once the node is open: why peers cannot connect, or NULL. */
const char *node_unreachable(void);

/* log.c: HAUL_CUDAHOOK_LOG, "1" for stderr or a file */

/* One call of the application. */
struct record {
  const char *call;
  size_t bytes;
  const void *address;
  int device;    /* -1: unknown */
  bool again;    /* it was tried again */
  char why[224]; /* it was passed on */
};

/* Writes one line by one write(2), without a lock: pid, call, size, address, device, outcome. */
__attribute__((format(printf, 2, 3))) void log_record(const struct record *record,
                                                      const char *format, ...);

/* A warning: logs the record, and writes the text to stderr unless the log is there. */
__attribute__((format(printf, 2, 3))) void log_warning(const struct record *record,
                                                       const char *format, ...);

/* Sets record->why. Returns NULL, for the caller to return. */
__attribute__((format(printf, 2, 3))) void *pass_on(struct record *record, const char *format, ...);

/* serve.c: memory from haul for calls of the runtime */

/* Result of a call that is passed on without a runtime. */
#define NO_RUNTIME cudaErrorSharedObjectSymbolNotFound

/* Whether the hook acts on calls of this thread; false: pass the call on, for the reason in
 * record->why. */
bool serve_may_act(struct record *record);

/* Allocates record->bytes on the current device, for work of the stream. NULL: pass the call on,
 * for the reason in record->why. */
void *serve_alloc(struct record *record, cudaStream_t stream);

/* The block at this address, for one of the two calls below. NULL: pass the call on. */
struct block *serve_remove(struct record *record, const void *address);
/* Waits for the device of the block, like cudaFree. After an error the memory remains allocated. */
cudaError_t serve_free(struct record *record, struct block *block);
/* Frees it after the work in the stream and its recorded ones, without a wait. Likewise. */
cudaError_t serve_free_async(struct record *record, struct block *block, cudaStream_t stream);
/* Before a reset of the current device: waits for pending frees and releases all its blocks. */
void serve_reset(void);

/* After an allocation was passed on: whether to call the runtime once more, as it had no memory,
 * and haul has now freed what it keeps. */
bool serve_again(struct record *record, cudaError_t result);
/* After an allocation was passed on: drops a stale block at `*address`, which counts only after a
 * success; `address` may be NULL. Logs and returns `result`. */
cudaError_t serve_passed_on(const struct record *record, void *const *address, cudaError_t result);

/* export.c, import.c: memory in other processes. They log each call. False: pass the call on, for
 * the reason in record->why; else *error is its result. */

/* Makes a handle of the block that contains the address. */
bool export_address(struct record *record, const void *address, cudaIpcMemHandle_t *handle,
                    cudaError_t *error);
/* No process can open the memory any more; those that have keep it. */
void export_end(struct export *export);
/* Waits some seconds for the exporting process. */
bool import_open(struct record *record, const cudaIpcMemHandle_t *given, unsigned flags,
                 void **address, cudaError_t *error);
/* The last one of an address waits for the device. After an error the memory remains open. */
bool import_close(struct record *record, const void *address, cudaError_t *error);
/* Before a reset of the device: releases what was opened there. */
void import_reset(int device);

#endif
