/* SPDX-License-Identifier: MIT
 * haul as a network plugin of NCCL, on haul.h, and core/list.h.
 *
 * The process has one node, for which NCCL's own threads make progress. Of NCCL's calls only
 * deregistration and close block. Each remote node has two peers: one for haul_write into memory
 * that the receiver publishes, one for messages. A message waits for earlier writes to the same
 * peer, so that with one peer the messages of one comm would wait for the writes of others.
 *
 *   sender                                  receiver
 *   connect ------------- HELLO ----------> accept
 *           <------------ MEMORY ---------- register
 *           <------------ POST ------------ receive: ranges and tags
 *   send    ------------- haul_write -----> the receiver's memory
 *           ------------- DONE -----------> test
 *
 * Small data is sent within DONE. Lock order: `plugin.lock`, then a comm's lock; no blocking call
 * of haul is made with either. */
#ifndef HAUL_NCCL_PLUGIN_H
#define HAUL_NCCL_PLUGIN_H

#include <haul/haul.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/list.h"
#include "interface.h"

#define DEVICES_MAX  16
#define GROUP_MAX    8                 /* receives in one call */
#define GROUPS_MAX   NCCL_MAX_REQUESTS /* of a comm, in flight */
#define SENDS_MAX    (GROUPS_MAX * GROUP_MAX)
#define ADDRESS_ROOM 72
#define NAME_ROOM    40 /* of published memory */
#define EAGER_MAX    8192u
#define SET_UP_NS    INT64_C(20000000000)

struct device {
  char name[64], address[64];
  char pci[PATH_MAX]; /* the folder of its PCI device in sysfs, or "" */
  int speed, port;    /* port 0: a network interface */
  uint64_t guid;
};

/* The two peers of a remote node, shared by all comms. */
struct route {
  struct list link; /* plugin.routes */
  char address[ADDRESS_ROOM];
  unsigned users;
  haul_peer *bytes, *messages;
};

struct listener {
  struct list link; /* plugin.listeners */
  uint8_t secret[16];
  struct list waiting; /* comms with a HELLO and without an accept */
};

enum comm_state { COMM_CONNECTING, COMM_READY, COMM_FAILED };

struct memory {
  struct list link; /* comm->memories */
  struct comm *comm;
  haul_region *region;
  char *address;
  size_t size;
  uint64_t id;
  char name[NAME_ROOM]; /* published, by a receiver */
  bool sent;            /* to the sender, by MEMORY */
  bool host;
};

/* A receiver's memory, at the sender. */
struct target {
  struct list link; /* comm->targets */
  uint64_t id;
  char name[NAME_ROOM];
  haul_remote *remote;
  bool failed;
};

struct entry {
  uint64_t memory, offset, size; /* at a sender `memory` is the target's id */
  char *data;                    /* at a receiver */
  int tag;
  bool eager, used;
  uint64_t moved;
};

/* Receives posted by one call: a request at the receiver, a queue entry at the sender. */
struct group {
  uint64_t sequence;
  uint32_t slot; /* of the receiver's requests */
  unsigned count, used;
  struct entry entries[GROUP_MAX];
};

enum request_state {
  REQUEST_FREE,
  REQUEST_IN_FLIGHT,
  REQUEST_NOTIFY /* DONE is to be sent */,
  REQUEST_DONE
};

/* The size of a send, and the receive that it ends. */
struct message_done {
  uint64_t sequence, size;
  uint32_t slot, index;
};

struct request {
  struct comm *comm;
  enum request_state state;
  int result;               /* when done: enum nccl_result */
  struct message_done done; /* of a send */
  struct group *group;      /* of a receive */
  haul_transfer *transfer;
};

struct comm {
  struct list link, waiting; /* plugin.comms; listener->waiting */
  pthread_mutex_t lock;      /* recursive; guards the fields below */
  pthread_cond_t idle;       /* a transfer or a job has ended */
  uint64_t id, other;        /* `other` is the remote comm's id */
  bool sends;
  enum comm_state state;
  int failed; /* enum nccl_result, for all further calls */
  bool closing;
  struct route *route; /* of a sender */
  haul_peer *messages; /* of a receiver, retained; a sender uses the route's */
  uint8_t secret[16];  /* of a sender, for HELLO */
  char address[ADDRESS_ROOM];
  struct list memories, targets;
  uint64_t next_memory, next_sequence;
  unsigned posted_first, posted_count; /* at a sender the groups are a ring */
  unsigned in_flight;                  /* transfers without a completion yet */
  unsigned jobs;                       /* of the workers, in progress */
  char path[16];                       /* that was logged last */
  unsigned request_count;              /* SENDS_MAX, or GROUPS_MAX: each receive has a group */
  struct request *requests;
  struct group groups[GROUPS_MAX];
};

extern struct plugin {
  pthread_mutex_t lock; /* guards the fields below */
  unsigned users;
  haul_node *node;
  struct device devices[DEVICES_MAX];
  unsigned device_count;
  struct list listeners, comms, routes;
  struct comm **table; /* comms by the upper half of their ids */
  size_t table_size;
  nccl_logger *logger;
  pthread_mutex_t pumping; /* held by the thread that makes progress for NCCL */
  atomic_bool polled;      /* NCCL has called since the keeper looked */
} plugin;

#define INFO(...)                                                                                  \
  plugin.logger(NCCL_LEVEL_INFO, NCCL_SUBSYSTEM_NET, __FILE__, __LINE__, __VA_ARGS__)
#define WARN(...)                                                                                  \
  plugin.logger(NCCL_LEVEL_WARN, NCCL_SUBSYSTEM_NET, __FILE__, __LINE__, __VA_ARGS__)
/* Logs the calling thread's last error of haul as a warning; returns NCCL's code for it. */
int warn_library(const char *what);

int plugin_init(nccl_logger *logger);
int plugin_finalize(void);
int plugin_devices(int *count);
int plugin_properties(int device, struct nccl_properties_12 *properties);

/* The interfaces to listen on. */
unsigned devices_find(struct device *devices, unsigned room);
/* Whether the rule of NCCL's variables selects something with these two names. */
bool is_chosen(const char *name, const char *other, const char *rule);

/* hcas.c */

extern const char *devices_sysfs; /* a seam for tests: "/sys" */
/* The first line of a file of the network interface; false and "" where it cannot be read. */
bool read_interface(const char *name, const char *file, char text[64]);
/* The folder of the PCI device of an entry of a class, "net" or "infiniband", or "". */
void write_pci(const char *class_name, const char *name, char pci[PATH_MAX]);
/* Puts HCAs in the place of their interfaces and adds others; returns the number of devices. */
unsigned hcas_add(struct device *devices, unsigned count, unsigned room);

/* workers.c: blocking calls */

/* Both keep the comm until they are done. */
void worker_connect(struct comm *comm);
void worker_look_up(struct comm *comm, uint64_t target);
int workers_open(void);
void workers_close(void);
void route_release(struct route *route);

int comm_listen(int device, void *handle, void **listener);
int comm_connect(void *handle, void **comm);
int comm_accept(void *listener, void **comm);
int comm_close(void *comm);
int comm_close_listen(void *listener);
struct comm *comm_new(bool sends);
/* All its requests fail with `result` from now on. With the comm's lock. */
void comm_fail(struct comm *comm, int result);
/* By its id, locked; or NULL. */
struct comm *comm_find(uint64_t id);

int memory_register(void *comm, void *data, size_t size, int type, void **memory);
int memory_deregister(void *comm, void *memory);

int transfer_send(void *comm, void *data, size_t size, int tag, void *memory, void **request);
int transfer_receive(void *comm, int count, void **data, size_t *sizes, int *tags, void **memories,
                     void **request);
int transfer_test(void *request, int *done, int *sizes);
/* Ends receives into deregistered memory. With the comm's lock. */
void transfer_forget(struct comm *comm, uint64_t memory);

/* With the comm's lock; never block. 0: sent; 1: no room, retry later; negative: failed. */
int message_hello(struct comm *comm);
int message_memory(struct comm *comm, const struct memory *memory);
int message_forget(struct comm *comm, uint64_t memory);
int message_post(struct comm *comm, const struct group *group, uint64_t self);
int message_done(struct comm *comm, const struct message_done *done, const void *bytes);
int message_bye(struct comm *comm);
/* Makes progress, and receives messages, for all comms. */
void messages_pump(void);
/* Handlers, with the comm's lock. */
void on_memory(struct comm *comm, uint64_t id, const char *name);
void on_forget(struct comm *comm, uint64_t id);
void on_post(struct comm *comm, const struct group *group);
void on_done(struct comm *comm, const struct message_done *done, const void *bytes, size_t length);

/* With the comm's lock; or NULL. */
static inline struct target *target_find(struct comm *comm, uint64_t id) {
  list_each(item, &comm->targets) {
    struct target *target = list_entry(item, struct target, link);
    if (target->id == id)
      return target;
  }
  return NULL;
}

#endif
