/* SPDX-License-Identifier: MIT
 * Intel Gaudi in UCX, inside: a component with a memory domain for each device and three
 * transports. It stands on haul.h and haul/device.h, and on the headers of the UCX source tree that
 * it is built against; what differs between UCX's versions is in version.h and md.c's and iface.c's
 * tables.
 *
 * What a name means here is what it means in UCX: a memory domain (md), a memory handle (memh), a
 * remote key (rkey), an interface (iface) of a transport, an endpoint (ep) of it. */
#ifndef HAUL_UCX_MODULE_H
#define HAUL_UCX_MODULE_H

#include "version.h"

#include <haul/device.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache.h"

/* ---- node.c: haul, one node a process ---- */

#define GAUDI_REGISTRATIONS 1024
#define GAUDI_IMPORTS       256

/* Opens the node and what is kept beside it, at the first call; false: there can be none, which is
 * logged. The sizes of the caches are the first caller's. */
bool gaudi_begin(unsigned registrations, unsigned imports);
/* Closes it all with the last one who began. */
void gaudi_end(void);
haul_node *gaudi_node(void);

/* Where a process of this host listens, once it does. */
#define GAUDI_ADDRESS_ROOM 40
void gaudi_node_address(uint64_t process, char address[GAUDI_ADDRESS_ROOM]);
/* This one answers others from now on. */
ucs_status_t gaudi_node_listen(void);

/* The same number for all processes of this host, whatever namespaces they are in, until it boots
 * anew. */
uint64_t gaudi_host(void);
/* Another number for each process. */
uint64_t gaudi_process(void);

/* UCX's word for one of haul's codes. */
ucs_status_t gaudi_status(int code);
/* The same for the calling thread's last failure, which is logged with its hint. */
ucs_status_t gaudi_failed(const char *what, ucs_log_level_t level);

/* Fills up to *count of haul's Gaudi devices. */
void gaudi_devices(struct haul_device *devices, size_t *count);

/* ---- memory.c: what is known of memory ---- */

#define GAUDI_DEVICES_MAX 16u

/* A block of device memory that this process has: allocated here, or told of by the hook. */
struct gaudi_block {
  uint64_t start, end;
  uint16_t device;
  haul_region *region;
};

struct gaudi_memh {
  haul_region *region;
  uint64_t start, length;
  struct haul_place place;
  uint64_t id;               /* under which name it is published; 0: under none */
  struct cache_entry *entry; /* of the registration cache; NULL: allocated */
};

/* A part of a region that is held meanwhile. */
struct gaudi_part {
  haul_region *region;
  uint64_t offset;
  struct cache_entry *entry; /* NULL: somebody else holds it */
};

void gaudi_memory_open(unsigned registrations);
void gaudi_memory_close(void);

ucs_status_t gaudi_memory_alloc(uint16_t device, size_t *length, void **address,
                                struct gaudi_memh **memh);
ucs_status_t gaudi_memory_register(void *address, size_t length, ucs_log_level_t level,
                                   struct gaudi_memh **memh);
void gaudi_memory_free(struct gaudi_memh *memh);

/* The block of Gaudi memory that the whole range lies in; UCS_ERR_INVALID_ADDR: it does not. */
ucs_status_t gaudi_memory_find(const void *address, size_t length, struct gaudi_block *block);

/* The range's memory, by the handle where there is one. Given back with gaudi_part_give. */
ucs_status_t gaudi_part_take(const void *address, size_t length, const struct gaudi_memh *memh,
                             struct gaudi_part *part);
void gaudi_part_give(struct gaudi_part *part);
/* The same of this process's memory that an operation names by a remote address, and by a key, if
 * there is one. */
ucs_status_t gaudi_target_take(uint64_t address, uct_rkey_t rkey, size_t length,
                               struct gaudi_part *part);

/* ---- keys.c: remote keys, and what others' are imported as ---- */

/* What travels. Plain bytes between processes of one host, so of one byte order. */
struct gaudi_key {
  uint32_t magic;
  uint16_t version, device;
  uint64_t host, process, id, start, length;
  uint64_t check; /* of what stands above: such keys come without their length */
};

#define GAUDI_NAME_ROOM 32
const char *gaudi_name_of(uint64_t id, char name[GAUDI_NAME_ROOM]);

ucs_status_t gaudi_key_pack(struct gaudi_memh *memh, void *buffer);
/* The key is the caller's to free. */
ucs_status_t gaudi_key_unpack(const void *buffer, struct gaudi_key **key);
/* Does the range lie in what the key is for? */
bool gaudi_key_covers(const struct gaudi_key *key, uint64_t address, size_t length);

/* Imports of other processes' memory, bounded, the least used one is dropped. */
void gaudi_imports_open(unsigned imports);
void gaudi_imports_close(void);
/* The entry's value is the haul_remote. */
ucs_status_t gaudi_import(haul_peer *peer, uint64_t connection, const struct gaudi_key *key,
                          haul_deadline until, struct cache_entry **entry);
/* Spoiled: nobody gets it again. */
void gaudi_import_give(struct cache_entry *entry, bool spoiled);

/* Logs all counters, at the end of the last memory domain. */
void gaudi_counters_log(void);
void gaudi_imports_counters(struct cache_counters *counters);
void gaudi_registrations_counters(struct cache_counters *counters);

/* ---- md.c ---- */

struct gaudi_performance {
  double bandwidth, latency; /* bytes a second, seconds */
};

struct gaudi_md_config {
  uct_md_config_t super;
  double timeout;
  unsigned registrations, imports;
  int measure;
  size_t device; /* to allocate on; UCS_ULUNITS_AUTO: the first that this process gets */
};

/* Of all devices: UCP takes at most two transports to a type of memory within a process. */
struct gaudi_md {
  uct_md_t super;
  struct {
    uint16_t number;
    ucs_sys_device_t system;
  } devices[GAUDI_DEVICES_MAX];
  size_t count;
  _Atomic size_t chosen; /* of devices: where memory is allocated; `count`: that is not known yet */
  double timeout;
  bool ipc; /* gaudi_ipc's */
  /* What copies were measured to take; a bandwidth of 0: they were not. */
  struct gaudi_performance measured;
};

extern uct_component_t gaudi_component, gaudi_ipc_component;

int64_t gaudi_nanoseconds(double seconds);
/* Tries to allocate on the chosen device, or on one after the other. */
ucs_status_t gaudi_md_alloc(struct gaudi_md *md, size_t *length, void **address,
                            struct gaudi_memh **memh);

/* ---- measure.c ---- */

void gaudi_measure(struct gaudi_md *md);

/* ---- iface.c: what the transports have in common ---- */

enum gaudi_kind { GAUDI_COPY, GAUDI_IPC, GAUDI_DMA, GAUDI_KINDS };

struct gaudi_iface_config {
  uct_iface_config_t super;
  double bandwidth, latency;
  size_t max_zcopy;
};

struct gaudi_copy_config {
  struct gaudi_iface_config super;
  size_t max_fast, max_short, max_bcopy;
};

/* A copy or a transfer under way, of gaudi_dma and gaudi_ipc. */
struct gaudi_job {
  ucs_queue_elem_t link;
  uct_completion_t *completion; /* NULL: nobody is told */
  struct gaudi_part local, device;
  haul_copy *copy;
  haul_transfer *transfer;
  struct cache_entry *import;
  bool spoiled; /* the import is not to be used again */
  bool late;    /* it was told to end */
  unsigned looks;
  haul_deadline until; /* 0: its turn has not come */
};

typedef struct gaudi_iface {
  uct_base_iface_t super;
  enum gaudi_kind kind;
  struct gaudi_performance performance;
  size_t max_zcopy;
  /* gaudi_copy */
  size_t max_fast, max_short, max_bcopy, bounce_length;
  haul_region *bounce; /* for what is short or buffered, pinned */
  /* gaudi_dma and gaudi_ipc: jobs in the order in which they were started */
  ucs_queue_head_t queue;
  int timer;       /* gaudi_dma: what becomes readable when it is time to look */
  int64_t look_ns; /* the time to the next look */
} gaudi_iface_t;

typedef struct gaudi_ep {
  uct_base_ep_t super;
  /* gaudi_ipc */
  haul_peer *peer;
  uint64_t process, connection; /* whose, and which, of all that there were */
} gaudi_ep_t;

struct gaudi_iface_address {
  uint64_t host, process;
};

struct gaudi_md *gaudi_md_of(const gaudi_iface_t *iface);
haul_deadline gaudi_until(const gaudi_iface_t *iface);
ucs_status_t gaudi_ep_new(const uct_ep_params_t *params, uct_ep_h *ep);
void gaudi_ep_delete(uct_ep_h ep);
void gaudi_iface_delete(uct_iface_h iface);
ucs_status_t gaudi_iface_new(enum gaudi_kind kind, const uct_iface_ops_t *ops, uct_md_h md,
                             uct_worker_h worker, const uct_iface_params_t *params,
                             const uct_iface_config_t *config, gaudi_iface_t **iface);
ucs_status_t gaudi_query_devices(uct_md_h md, uct_tl_device_resource_t **devices, unsigned *count);
/* What all transports answer, over which each lays its own. */
extern const uct_iface_ops_t gaudi_iface_ops;
/* Logs and refuses an operation that the limits do not allow. */
ucs_status_t gaudi_check_length(const char *what, size_t length, size_t most);

extern const struct gaudi_performance gaudi_table[GAUDI_KINDS];
extern ucs_config_field_t gaudi_iface_config_table[];

/* ---- copy.c, dma.c, ipc.c, jobs.c ---- */

extern uct_tl_t gaudi_copy_tl, gaudi_ipc_tl, gaudi_dma_tl;
/* Fill the transports' tables, before they are registered. */
void gaudi_copy_init(void);
void gaudi_ipc_init(void);
void gaudi_dma_init(void);

void gaudi_job_free(struct gaudi_job *job);
/* It has its copy or transfer: queues it, or ends it at once. What is returned is the operation's.
 */
ucs_status_t gaudi_job_started(gaudi_iface_t *iface, struct gaudi_job *job,
                               uct_completion_t *completion);
/* What interfaces with jobs answer. */
void gaudi_jobs_lay(uct_iface_ops_t *ops);
ucs_status_t gaudi_jobs_iface_new(enum gaudi_kind kind, const uct_iface_ops_t *ops, uct_md_h md,
                                  uct_worker_h worker, const uct_iface_params_t *params,
                                  const uct_iface_config_t *config, uct_iface_h *out);
void gaudi_jobs_end(gaudi_iface_t *iface);
ucs_status_t gaudi_jobs_event_fd(uct_iface_h iface, int *fd);
ucs_status_t gaudi_jobs_arm(uct_iface_h iface, unsigned events);

#endif
