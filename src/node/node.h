/* SPDX-License-Identifier: MIT
 * A node: one process's end of its connections.
 *
 *   node.c      open, close and progress
 *   config.h    settings and where their values come from
 *   listen.h    listeners, and accepted connections until their handshake is complete
 *   dial.h      connections that this node makes until their handshake is complete
 *   peer.h      peers: connecting, liveness, dropping
 *   control.h   frames and requests on a peer's control connection, handlers of peers' requests
 *   message.h   messages and peer events
 *   offer.h     messages whose payload is in a region
 *   directory.h finding nodes in etcd, and keeping a node's own entries there
 *
 * Locks, in the order in which they are taken: the loop's lock, a peer's `send_lock`, the node's
 * `inbox_lock`. The loop's lock guards every field that names no other lock. */
#ifndef HAUL_NODE_NODE_H
#define HAUL_NODE_NODE_H

#include <pthread.h>

#include "core/error.h"
#include "core/shrinkable.h"
#include "core/tls/tls.h"
#include "fabric/exports.h"
#include "transfer/transfer.h"

#define TOKEN_LISTS 64

struct haul_node {
  _Atomic uint32_t refs; /* of the opener, of peers and of calls that wait */
  _Atomic bool closing;
  struct rdma_settings rdma;
  struct haul_node_config config; /* completed; names of files are NULL once they are read */
  char name[64];
  struct tls_context *tls; /* NULL: the node has neither a key nor a certificate */
  struct loop *loop;
  struct heap *heap;
  struct exports *exports;
  struct fabric fabric;
  struct transfers transfers;
  bool has_transfers; /* `fabric` and `transfers` are open */
  pthread_t thread;
  bool has_thread;
  char companion[64]; /* name of the abstract socket that takes channels only; "": none */
  struct list listeners, handshakes, dials, peers;
  struct list tokens[TOKEN_LISTS]; /* peers that connected here, by their tokens (peer.c) */
  unsigned handshake_count;        /* in `handshakes` */
  unsigned tls_count;              /* of those, TLS sessions that await the peer's proof */
  unsigned peer_count;
  uint64_t last_number; /* of a peer */
  int64_t opened_at;
  struct poller poller;              /* drops failed and unused peers */
  bool has_deferred_frames;          /* some peer's `frames_deferred` is set */
  _Atomic bool has_unused_imports;   /* import_expiry has to be started */
  _Atomic bool sweep_due;            /* a peer failed or became unused */
  struct timer import_expiry;        /* frees imports that stayed unused */
  struct timer trace_expiry;         /* stops a recording that is not read any more */
  pthread_mutex_t inbox_lock;        /* guards the next two */
  struct list inbox;                 /* of struct incoming */
  unsigned ended_peers;              /* that have something in the inbox */
  char *login;                       /* text of the file `directory_login`; NULL: none */
  pthread_mutex_t directory_lock;    /* guards the rest; innermost */
  struct list directories;           /* idle connections to directories (directory.c) */
  unsigned directory_count;          /* of them */
  struct registration *registration; /* established */
  struct registration *registering;  /* being established by a call */
};

void node_retain(struct haul_node *node);
void node_put(struct haul_node *node);
/* Fires 3 s after the last read of trace events (stats.c): stops the recording. */
void trace_expire(struct timer *timer);
bool node_is_closed(struct haul_node *node);
/* Begins a public call: error_enter, then HAUL_EINVAL with the text `mistake` unless the arguments
 * are `valid`. */
static inline int node_enter(const char *call, bool valid, const char *mistake) {
  int code = error_enter(call);
  if (code || valid)
    return code;
  error_set(HAUL_EINVAL, 0, NULL, NULL, "%s", mistake);
  return HAUL_EINVAL;
}

/* Removes the name, NULL: any name of the region, and waits without locks until no peer touches the
 * region. HAUL_ENAME. */
int regions_withdraw(struct haul_node *node, struct haul_region *region, const char *name);

/* The number of requests of up to 1 MiB that a peer may have outstanding here: `peer_bytes`. */
static inline uint16_t node_window(const struct haul_node *node) {
  size_t requests = node->config.peer_bytes >> 20;
  size_t most = shrinkable(REQUESTS_MAX, 1);
  return (uint16_t)(requests < most ? requests : most);
}

#endif
