/* SPDX-License-Identifier: MIT
 * haul as NCCL's network, on haul.h and NCCL's interface for plugins alone.
 *
 * One node for the process, whose thread moves the bytes; nothing that NCCL calls waits, but for
 * the end of memory and of connections. Towards each node that it sends to there are two peers: one
 * carries bytes, by haul_write into what the receiver has published, the other one messages. A
 * message waits for the writes before it to the same peer, and these must not wait for each other.
 *
 *   sender                                  receiver
 *   connect ------------- HELLO ----------> accept
 *           <------------ MEMORY ---------- register
 *           <------------ ASK ------------- receive: where, how much, which tags
 *   send    ------------- haul_write -----> the receiver's memory
 *           ------------- DONE -----------> test
 *
 * What is small goes with DONE itself. Locks: `plugin.lock`, then a comm's; both are held for
 * moments, and no call of haul's that waits is made with either. */
#ifndef HAUL_NCCL_PLUGIN_H
#define HAUL_NCCL_PLUGIN_H

#include <haul/haul.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "interface.h"

#define DEVICES_MAX  16
#define GROUP_MAX    8                 /* receives in one call */
#define GROUPS_MAX   NCCL_MAX_REQUESTS /* receives of a comm, under way */
#define SENDS_MAX    (GROUPS_MAX * GROUP_MAX)
#define ADDRESS_ROOM 72
#define NAME_ROOM    40 /* of published memory */
#define EAGER_MAX    8192u
#define SET_UP_NS    INT64_C(20000000000)

struct list {
  struct list *next, *previous;
};

struct device {
  char name[16], pci[64], address[64];
  int speed;
  uint64_t guid;
};

/* The two peers of a node that this one sends to; shared by all comms. */
struct route {
  struct list link; /* plugin.routes */
  char address[ADDRESS_ROOM];
  unsigned users;
  haul_peer *bytes, *messages;
};

struct listener {
  struct list link; /* plugin.listeners */
  uint8_t secret[16];
  struct list waiting; /* struct comm: HELLO came, accept has not been called */
};

enum comm_state { COMM_CONNECTING, COMM_READY, COMM_FAILED };

struct memory {
  struct list link; /* comm->memories */
  struct comm *comm;
  haul_region *region;
  char *address;
  size_t size;
  uint64_t id;
  char name[NAME_ROOM]; /* published: a receiver's */
  bool told;            /* the sender was told of it */
  bool host;
};

/* A receiver's memory, as its sender knows it. */
struct target {
  struct list link; /* comm->targets */
  uint64_t id;
  char name[NAME_ROOM];
  haul_remote *remote;
  bool failed;
};

struct entry {
  uint64_t memory, offset, size; /* of a sender's: memory is the target's id */
  char *data;                    /* a receiver's */
  int tag;
  bool eager, used;
  uint64_t moved;
};

/* What a receiver has asked for: on its side a request, on the sender's a place in a queue. */
struct group {
  uint64_t sequence;
  uint32_t slot; /* the receiver's */
  unsigned count, used;
  struct entry entries[GROUP_MAX];
};

enum request_state { REQUEST_FREE, REQUEST_UNDER_WAY, REQUEST_UNTOLD, REQUEST_DONE };

struct request {
  struct comm *comm;
  enum request_state state;
  int result;    /* of a DONE one, an enum nccl_result */
  uint64_t size; /* a send's, and the next three: what it answers */
  uint64_t sequence;
  uint32_t slot, index;
  struct group *group; /* a receive's own */
  haul_transfer *transfer;
};

struct comm {
  struct list link, waiting; /* plugin.comms; listener->waiting */
  pthread_mutex_t lock;      /* recursive; guards what follows */
  pthread_cond_t quiet;      /* a transfer has ended */
  uint64_t id, other;        /* ours, and what messages to the other side name */
  bool sends;
  enum comm_state state;
  int failed; /* enum nccl_result; the comm is of no use any more */
  bool closing;
  struct route *route; /* a sender's */
  haul_peer *messages; /* a receiver's own hold; a sender's is the route's */
  uint8_t secret[16];  /* a sender's, until HELLO */
  char address[ADDRESS_ROOM];
  struct list memories, targets;
  uint64_t next_memory, next_sequence;
  unsigned asked_first, asked_count; /* a sender's groups are a ring */
  unsigned under_way;                /* transfers whose end has not been told */
  unsigned jobs;                     /* of the clerks */
  char path[16];                     /* the last that was told */
  unsigned request_count;            /* SENDS_MAX, or GROUPS_MAX: each receive has a group */
  struct request *requests;
  struct group groups[GROUPS_MAX];
};

extern struct plugin {
  pthread_mutex_t lock; /* guards what follows */
  unsigned users;
  haul_node *node;
  struct device devices[DEVICES_MAX];
  unsigned device_count;
  struct list listeners, comms, routes;
  struct comm **table; /* comms by the upper half of their ids */
  size_t table_size;
  nccl_logger *logger;
  pthread_mutex_t pumping; /* one thread takes messages at a time */
} plugin;

/* ---- plugin.c ---- */

#define INFO(...)                                                                                  \
  plugin.logger(NCCL_LEVEL_INFO, NCCL_SUBSYSTEM_NET, __FILE__, __LINE__, __VA_ARGS__)
#define WARN(...)                                                                                  \
  plugin.logger(NCCL_LEVEL_WARN, NCCL_SUBSYSTEM_NET, __FILE__, __LINE__, __VA_ARGS__)
/* The calling thread's last failure of haul's, as a warning; what NCCL is to be told. */
int warn_of_library(const char *what);

int plugin_init(nccl_logger *logger);
int plugin_finalize(void);
int plugin_devices(int *count);
int plugin_properties(int device, struct nccl_properties_12 *properties);

/* devices.c: interfaces that can be listened on. */
unsigned devices_find(struct device *devices, unsigned room);

/* ---- clerks.c: what waits, done aside ---- */

/* Both hold the comm until it is done. */
void clerk_connect(struct comm *comm);
void clerk_look_up(struct comm *comm, uint64_t target);
int clerks_open(void);
void clerks_close(void);
/* route.c */
struct route *route_take(const char *address, int *result);
void route_give(struct route *route);

/* ---- comm.c ---- */

int comm_listen(int device, void *handle, void **listener);
int comm_connect(void *handle, void **comm);
int comm_accept(void *listener, void **comm);
int comm_close(void *comm);
int comm_close_listen(void *listener);
struct comm *comm_new(bool sends);
/* No more use: requests end with `result`. With the comm's lock. */
void comm_fail(struct comm *comm, int result);
/* By its id, locked; NULL. */
struct comm *comm_find(uint64_t id);
void comm_unlock(struct comm *comm);

/* ---- memory.c ---- */

int memory_register(void *comm, void *data, size_t size, int type, void **memory);
int memory_deregister(void *comm, void *memory);

/* ---- transfer.c ---- */

int transfer_send(void *comm, void *data, size_t size, int tag, void *memory, void **request);
int transfer_receive(void *comm, int count, void **data, const size_t *sizes, const int *tags,
                     void **memories, void **request);
int transfer_test(void *request, int *done, int *sizes);
/* Receives into memory that is taken back end; the comm's lock. */
void transfer_forget(struct comm *comm, uint64_t memory);

/* ---- messages.c ---- */

struct message_done {
  uint64_t sequence, size;
  uint32_t slot, index;
};
/* With the comm's lock; never wait. 0; 1: there is no room, later; below: it is of no use. */
int message_hello(struct comm *comm);
int message_memory(struct comm *comm, const struct memory *memory);
int message_forget(struct comm *comm, uint64_t memory);
int message_ask(struct comm *comm, const struct group *group, uint64_t self);
int message_done(struct comm *comm, const struct message_done *done, const void *bytes);
int message_bye(struct comm *comm);
/* Takes what came, for all comms. */
void messages_pump(void);
/* What they say, with the comm's lock. */
void on_memory(struct comm *comm, uint64_t id, const char *name);
void on_forget(struct comm *comm, uint64_t id);
void on_ask(struct comm *comm, const struct group *group);
void on_done(struct comm *comm, const struct message_done *done, const void *bytes, size_t length);

/* ---- Lists: as in core/list.h, which is not haul.h ---- */

#define list_entry(item, type, member) ((type *)(void *)((char *)(item)-offsetof(type, member)))
#define list_each(item, head)                                                                      \
  for (struct list *item = (head)->next, *item##_next = item->next; item != (head);                \
       item = item##_next, item##_next = item->next)

static inline void list_init(struct list *head) {
  head->next = head->previous = head;
}

static inline bool list_empty(const struct list *head) {
  return head->next == head;
}

static inline void list_append(struct list *head, struct list *item) {
  item->previous = head->previous;
  item->next = head;
  head->previous->next = item;
  head->previous = item;
}

static inline void list_remove(struct list *item) {
  item->previous->next = item->next;
  item->next->previous = item->previous;
  list_init(item);
}

#endif
