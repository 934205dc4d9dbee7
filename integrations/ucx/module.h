/* SPDX-License-Identifier: MIT
 * Intel Gaudi in UCX: two components with a memory domain and three transports. It uses haul.h,
 * haul/device.h and the headers of the UCX source tree that it is built against. Differences
 * between UCX versions are in version.h and in the tables of md.c and iface.c.
 *
 * Names are UCX's: memory domain (md), memory handle (memh), remote key (rkey), interface (iface)
 * of a transport, endpoint (ep). */
#ifndef HAUL_UCX_MODULE_H
#define HAUL_UCX_MODULE_H

#include "version.h"

#include <haul/device.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache.h"

/* node.c: the node of the process */

#define GAUDI_IMPORTS 256

/* The first call opens the node and the cache, whose size it sets; false with a log line. */
bool gaudi_open(unsigned imports);
/* The last call closes the node. */
void gaudi_close(void);
haul_node *gaudi_node(void);

/* The address of a process of this host. */
#define GAUDI_ADDRESS_ROOM 40
void gaudi_node_address(uint64_t process, char address[GAUDI_ADDRESS_ROOM]);
/* Starts to listen there, once. */
ucs_status_t gaudi_node_listen(void);

/* Id of this host and boot, the same in all namespaces. */
uint64_t gaudi_host(void);
/* Random id of this process. */
uint64_t gaudi_process(void);

/* Logs the calling thread's last error of haul with its hint; returns its status. */
ucs_status_t gaudi_failed(const char *what, ucs_log_level_t level);

/* Lists up to *count Gaudi devices. */
void gaudi_devices(struct haul_device *devices, size_t *count);

/* memory.c: blocks, registrations, and the hook */

#define GAUDI_DEVICES_MAX 16u

/* A block of device memory of this process: allocated here, or reported by the hook. */
struct gaudi_block {
  uint64_t start, end;
  uint16_t device;
  haul_region *region;
};

struct gaudi_memh {
  haul_region *region;
  uint64_t start, length;
  struct haul_place place;
  uint64_t id;    /* of its published name; 0: not published */
  bool allocated; /* a block; else registered */
};

/* A range of a region, with a reference to it. */
struct gaudi_part {
  haul_region *region;
  uint64_t offset;
  haul_region *own; /* NULL: the reference is held elsewhere */
};

/* Sets HAUL_GAUDI_FD, unless set, to the device of the framework, before haul opens devices. */
void hook_share_device(void);

void gaudi_memory_open(void);
void gaudi_memory_close(void);

ucs_status_t gaudi_memory_alloc(uint16_t device, size_t *length, void **address,
                                struct gaudi_memh **memh);
ucs_status_t gaudi_memory_register(void *address, size_t length, ucs_log_level_t level,
                                   struct gaudi_memh **memh);
void gaudi_memory_free(struct gaudi_memh *memh);

/* The block of Gaudi memory that contains the range; UCS_ERR_INVALID_ADDR: none. */
ucs_status_t gaudi_memory_find(const void *address, size_t length, struct gaudi_block *block);

/* By the handle, if there is one. Release it with gaudi_part_release. */
ucs_status_t gaudi_part_acquire(const void *address, size_t length, const struct gaudi_memh *memh,
                                struct gaudi_part *part);
void gaudi_part_release(struct gaudi_part *part);
/* The same for the remote address of an operation within this process, with or without a key. */
ucs_status_t gaudi_target_acquire(uint64_t address, uct_rkey_t rkey, size_t length,
                                  struct gaudi_part *part);

/* keys.c: remote keys and imports */

/* A packed key, used between processes of one host, so without byte order conversion. */
struct gaudi_key {
  uint32_t magic;
  uint16_t version, device;
  uint64_t host, process, id, start, length;
  uint64_t check; /* of the fields above, as UCX passes no length */
};

#define GAUDI_NAME_ROOM 32
const char *gaudi_name_of(uint64_t id, char name[GAUDI_NAME_ROOM]);

ucs_status_t gaudi_key_pack(struct gaudi_memh *memh, void *buffer);
/* The key is the caller's to free. */
ucs_status_t gaudi_key_unpack(const void *buffer, struct gaudi_key **key);
/* Whether the key covers the range. */
bool gaudi_key_covers(const struct gaudi_key *key, uint64_t address, size_t length);

/* LRU cache of other processes' memory. */
void gaudi_imports_open(unsigned imports);
void gaudi_imports_close(void);
/* The entry's value is the haul_remote. */
ucs_status_t gaudi_import(haul_peer *peer, uint64_t connection, const struct gaudi_key *key,
                          haul_deadline until, struct cache_entry **entry);
/* An invalid import is not used again. */
void gaudi_import_release(struct cache_entry *entry, bool invalid);

/* Logs all counters. */
void gaudi_counters_log(void);
void gaudi_imports_counters(struct cache_counters *counters);

struct gaudi_performance {
  double bandwidth, latency; /* bytes per second, seconds */
};

struct gaudi_md_config {
  uct_md_config_t super;
  double timeout;
  unsigned imports;
  int measure;
  size_t device; /* to allocate on; UCS_ULUNITS_AUTO: the first available one */
};

/* One for all devices, as UCP uses at most two transports per memory type within a process. */
struct gaudi_md {
  uct_md_t super;
  struct {
    uint16_t number;
    ucs_sys_device_t system;
  } devices[GAUDI_DEVICES_MAX];
  size_t count;
  uint64_t memory;       /* of the largest device, in bytes; SIZE_MAX: unknown */
  _Atomic size_t chosen; /* index of the device to allocate on; `count`: not chosen yet */
  double timeout;
  bool ipc; /* gaudi_ipc's */
  /* Measured copies; bandwidth 0: not measured. */
  struct gaudi_performance measured;
};

extern uct_component_t gaudi_component, gaudi_ipc_component;

int64_t gaudi_nanoseconds(double seconds);

/* iface.c: base of the transports */

enum gaudi_kind { GAUDI_COPY, GAUDI_IPC, GAUDI_DMA, GAUDI_KINDS };

struct gaudi_iface_config {
  uct_iface_config_t super;
  double bandwidth, latency;
  size_t max_zcopy;
};

struct gaudi_copy_config {
  struct gaudi_iface_config super;
  size_t max_fast, max_bcopy;
};

typedef struct gaudi_iface {
  uct_base_iface_t super;
  enum gaudi_kind kind;
  uint64_t number; /* within the process */
  struct gaudi_performance performance;
  size_t max_zcopy;
  /* gaudi_copy */
  size_t max_fast, max_bcopy;
  haul_region *bounce; /* of short and buffered operations up to max_bcopy, pinned */
  /* gaudi_dma and gaudi_ipc: jobs in order of their start */
  ucs_queue_head_t queue;
  int timer;       /* gaudi_dma: readable when the next poll is due */
  int64_t poll_ns; /* delay of the next poll */
} gaudi_iface_t;

struct gaudi_iface_address {
  uint64_t host, process, number;
};

typedef struct gaudi_ep {
  uct_base_ep_t super;
  struct gaudi_iface_address remote;
  /* gaudi_ipc to another process; NULL: within this process */
  haul_peer *peer;
  uint64_t connection; /* number of this connection */
} gaudi_ep_t;

struct gaudi_md *gaudi_md_of(const gaudi_iface_t *iface);
haul_deadline gaudi_until(const gaudi_iface_t *iface);
ucs_status_t gaudi_ep_new(const uct_ep_params_t *params, uct_ep_h *ep);
void gaudi_ep_delete(uct_ep_h ep);
void gaudi_iface_delete(uct_iface_h iface);
ucs_status_t gaudi_iface_new(enum gaudi_kind kind, const uct_iface_ops_t *ops, uct_md_h md,
                             uct_worker_h worker, const uct_iface_params_t *params,
                             const uct_iface_config_t *config, uct_iface_h *out);
ucs_status_t gaudi_query_devices(uct_md_h md, uct_tl_device_resource_t **devices, unsigned *count);
/* Default operations; each transport overrides its own. */
extern const uct_iface_ops_t gaudi_iface_ops;
/* Log and reject operations beyond the limit. gaudi_check_iov returns the length of zero or one
 * segment. */
ucs_status_t gaudi_check_length(const char *what, size_t length, size_t most);
ucs_status_t gaudi_check_iov(const gaudi_iface_t *iface, const uct_iov_t *iov, size_t count,
                             size_t *length);

/* Logs an operation as UCX's transports do, at UCX_LOG_LEVEL=data. */
void gaudi_trace(const char *what, const void *buffer, size_t length, uint64_t address);

extern ucs_config_field_t gaudi_iface_config_table[];

extern uct_tl_t gaudi_copy_tl, gaudi_ipc_tl, gaudi_dma_tl;
/* Initialize the operations of the transports, before their registration. */
void gaudi_copy_init(void);
void gaudi_jobs_init(void);
/* Cancels all jobs of an interface, without completions. */
void gaudi_jobs_close(gaudi_iface_t *iface);

#endif
