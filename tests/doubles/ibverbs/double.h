/* SPDX-License-Identifier: MIT
 * A double of libibverbs: its symbols, over NICs that a test describes. It refuses what the library
 * and the kernel would refuse, with the same errno, and ends the process with a word where the real
 * one would be undefined: an object used after its end, destroyed twice, or left behind.
 *
 * It moves no bytes: what a context's own table holds besides query_port is empty (still.c). The
 * double in ibverbs-moving is made of the same objects, and does. */
#ifndef HAUL_TESTS_IBVERBS_DOUBLE_H
#define HAUL_TESTS_IBVERBS_DOUBLE_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#define DOUBLE_DEVICES 4
#define DOUBLE_PORTS   2
#define DOUBLE_GIDS    8

struct double_gid {
  uint8_t raw[16];    /* all zero: there is none at this index, unless `zero` */
  bool zero;          /* an entry that is there and holds nothing */
  unsigned type;      /* enum ibv_gid_type */
  unsigned interface; /* index of its network interface */
};

struct double_port {
  int error; /* errno of every question about it */
  enum ibv_port_state state;
  uint8_t link_layer, speed, width;
  uint16_t lid;
  enum ibv_mtu mtu;
  struct double_gid gids[DOUBLE_GIDS];
};

/* Its calls fail with these where they are not 0. */
struct double_errors {
  int open, query, pd, registration, channel, cq, qp;
};

struct double_device {
  char name[32];
  uint64_t guid;
  enum ibv_transport_type transport;
  bool short_context; /* as a driver from before extended contexts: no query_port of its own */
  unsigned ports;
  struct double_port port[DOUBLE_PORTS];
  struct ibv_device_attr limits;
  unsigned inline_bytes; /* a queue pair takes at most this much */
  bool dmabuf;           /* it takes dma-bufs */
  struct double_errors errors;
};

/* What is there now. */
struct double_living {
  _Atomic unsigned lists, contexts, pds, registrations, channels, cqs, qps;
};

struct ibverbs_double {
  int list_error; /* errno: there is no list of devices */
  bool fork_safe; /* as Linux from 5.12 on: the kernel copies registered pages for a child */
  size_t count;
  struct double_device devices[DOUBLE_DEVICES];
  struct double_living living;
  unsigned forks; /* calls of ibv_fork_init */
};

/* The test's door: found by dlsym(3) under this name. */
extern struct ibverbs_double ibverbs_double;

#endif
