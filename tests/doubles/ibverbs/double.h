/* SPDX-License-Identifier: MIT
 * A mock of libibverbs over NICs that a test describes. It fails as the library and the kernel do,
 * with the same errno. Where the real behaviour is undefined it ends the process with a message: an
 * object used after its end, destroyed twice, or leaked.
 *
 * It moves no bytes (still.c). The emulator in ibverbs-moving shares its objects, and moves them.
 */
#ifndef HAUL_TESTS_IBVERBS_DOUBLE_H
#define HAUL_TESTS_IBVERBS_DOUBLE_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#define DOUBLE_DEVICES 20
#define DOUBLE_PORTS   2
#define DOUBLE_GIDS    8
#define DOUBLE_PKEYS   4

struct double_gid {
  uint8_t raw[16];    /* all zero: an empty index, unless `zero` */
  bool zero;          /* an entry of zeros */
  unsigned type;      /* enum ibv_gid_type */
  unsigned interface; /* index of its network interface */
};

struct double_port {
  int error; /* errno of each query */
  enum ibv_port_state state;
  uint8_t link_layer, speed, width;
  uint16_t lid;
  enum ibv_mtu mtu;
  struct double_gid gids[DOUBLE_GIDS];
  uint16_t pkeys[DOUBLE_PKEYS]; /* 0: an empty entry; the first is the default key unless set */
};

/* errno of each call; 0: it succeeds. */
struct double_errors {
  _Atomic int open, query, pd, registration, channel, cq, srq, qp;
};

struct double_device {
  char name[32];
  uint64_t guid;
  enum ibv_transport_type transport;
  bool short_context; /* as drivers before extended contexts: without query_port */
  unsigned ports;
  struct double_port port[DOUBLE_PORTS];
  struct ibv_device_attr limits;
  unsigned inline_bytes; /* the maximum of a queue pair */
  bool dmabuf;           /* it takes dma-bufs */
  struct double_errors errors;
  _Atomic uint64_t requests; /* work requests that were posted */
  struct ibv_ah_attr to;     /* of the queue pair that was the last to be able to send */
};

/* Live objects. */
struct double_live {
  _Atomic unsigned lists, contexts, pds, registrations, channels, cqs, srqs, qps;
};

struct ibverbs_double {
  int list_error; /* errno of ibv_get_device_list */
  bool fork_safe; /* as Linux since 5.12, which copies registered pages for a child */
  size_t count;
  struct double_device devices[DOUBLE_DEVICES];
  struct double_live live;
  unsigned forks;               /* calls of ibv_fork_init */
  struct ibv_qp_attr connected; /* of the queue pair that was the last to be able to send */
};

/* The test's controls, found by dlsym(3). */
extern struct ibverbs_double ibverbs_double;

#endif
