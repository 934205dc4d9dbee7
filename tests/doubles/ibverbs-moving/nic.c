/* SPDX-License-Identifier: MIT
 * The devices, and faults on request. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "moving.h"

_Atomic int64_t ibverbs_double_doorbell;
_Atomic uint64_t ibverbs_double_doorbells;
_Atomic uint64_t ibverbs_double_not_ready;

static bool null;
static _Atomic int gone;         /* enum removal */
static struct double_port first; /* port of the first device, without faults */

/* RoCE v2 at 10.0.0.1, 100 Gb/s. The limits are those of the file where it has some, else a
 * ConnectX-7's. */
static const struct double_device device = {
    .name = "double0",
    .guid = UINT64_C(0x0002c9030000d0b1),
    .transport = IBV_TRANSPORT_IB,
    .ports = 1,
    .port = {{.state = IBV_PORT_ACTIVE,
              .link_layer = IBV_LINK_LAYER_ETHERNET,
              .speed = 32,
              .width = 2,
              .mtu = IBV_MTU_4096,
              .gids = {[1] = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 1},
                              .type = IBV_GID_TYPE_ROCE_V2,
                              .interface = 1}}}},
    .limits = {.max_mr_size = UINT64_MAX,
               .max_mr = FABRIC_MRS,
               .max_qp_wr = FABRIC_DEPTH,
               .max_sge = 1,
               .max_sge_rd = 1,
               .max_cqe = 4194303,
               .max_srq = FABRIC_SRQS,
               .max_srq_wr = FABRIC_SHARED,
               .max_srq_sge = 1,
               .max_qp_rd_atom = 16,
               .max_qp_init_rd_atom = 16,
               .atomic_cap = IBV_ATOMIC_HCA},
    .inline_bytes = FABRIC_INLINED,
};

enum fault {
  RETRY,
  CUT,
  RNR,
  ACCESS,
  REFUSE,
  REMOVE,
  VANISH,
  OVERRUN,
  MEMLOCK,
  NOMEM,
  PIN,
  SLOW,
  LATE,
  NOGID,
  SUBNET,
  SECOND,
  NOATOMICS,
  GLOBAL,
  SRQ,
  DMABUF,
  PEERMEM,
  ROUTED,
  ALLGLOBAL,
  DROPS,
  FAULTS
};

static const char *const names[FAULTS] = {
    "retry",     "cut",    "rnr", "access", "refuse",  "remove", "vanish",    "overrun",
    "memlock",   "nomem",  "pin", "slow",   "late",    "nogid",  "subnet",    "second",
    "noatomics", "global", "srq", "dmabuf", "peermem", "routed", "allglobal", "drops"};
static _Atomic int64_t left[FAULTS]; /* counts down to the one that is meant; 0: none is */

static bool comes_due(enum fault fault) {
  return atomic_load(&left[fault]) > 0 && atomic_fetch_sub(&left[fault], 1) == 1;
}

static void take_away(enum removal how) {
  atomic_store(&gone, (int)how);
  fabric_ring_all();
  raise_everywhere(IBV_EVENT_DEVICE_FATAL);
}

int fault_of_request(void) {
  if (comes_due(REMOVE))
    take_away(REMOVED);
  if (comes_due(VANISH))
    take_away(VANISHED);
  if (comes_due(RETRY))
    return IBV_WC_RETRY_EXC_ERR;
  if (comes_due(RNR))
    return IBV_WC_RNR_RETRY_EXC_ERR;
  return comes_due(ACCESS) ? IBV_WC_REM_ACCESS_ERR : 0;
}

bool fault_cut(void) {
  return atomic_load(&left[CUT]) > 0;
}

/* IPv4 subnets have 24 bits, others 64. */
static bool is_subnet_of_both(const uint8_t from[16], const uint8_t to[16]) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  size_t bytes = memcmp(from, mapped, sizeof mapped) == 0 ? 15 : 8;
  return memcmp(from, to, bytes) == 0;
}

bool is_route(const uint8_t from[16], const uint8_t to[16]) {
  return atomic_load(&left[ROUTED]) > 0 || is_subnet_of_both(from, to);
}

bool is_delivered(const uint8_t from[16], const uint8_t to[16]) {
  return is_route(from, to) && (atomic_load(&left[DROPS]) == 0 || is_subnet_of_both(from, to));
}

bool fault_of_post(void) {
  return comes_due(REFUSE);
}

static void sleep_us(int64_t us) {
  if (us > 0)
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* Once it is reached it stays at 1. */
bool fault_of_registration(void) {
  sleep_us(atomic_load(&left[PIN]));
  if (comes_due(MEMLOCK))
    atomic_store(&left[MEMLOCK], 1);
  return comes_due(NOMEM) || atomic_load(&left[MEMLOCK]) == 1;
}

bool has_peer_memory(void) {
  return atomic_load(&left[PEERMEM]) > 0;
}

bool fault_of_completion(void) {
  return comes_due(OVERRUN);
}

int64_t fault_slow(void) {
  return (int64_t)atomic_load(&left[SLOW]) * 1000;
}

void fault_late(void) {
  sleep_us(atomic_load(&left[LATE]));
}

enum removal removal(void) {
  return (enum removal)atomic_load(&gone);
}

/* One word; false: there is no such fault. */
static bool read_word(const char *word, int64_t wanted[FAULTS]) {
  size_t length = strcspn(word, ":");
  for (unsigned i = 0; i < FAULTS; i++) {
    if (strlen(names[i]) != length || strncmp(names[i], word, length) != 0)
      continue;
    wanted[i] = word[length] ? strtoll(word + length + 1, NULL, 10) : 1;
    return wanted[i] > 0;
  }
  return false;
}

int ibverbs_double_fault(const char *words) {
  int64_t wanted[FAULTS] = {0};
  char copy[256], *rest = copy;
  if (snprintf(copy, sizeof copy, "%s", words) >= (int)sizeof copy)
    return EINVAL;
  for (char *word; (word = strsep(&rest, ","));)
    if (*word && !read_word(word, wanted))
      return EINVAL;
  for (unsigned i = 0; i < FAULTS; i++)
    atomic_store(&left[i], wanted[i]);
  struct double_port *port = &ibverbs_double.devices[0].port[0];
  ibverbs_double.devices[0].limits.atomic_cap = wanted[NOATOMICS] ? IBV_ATOMIC_NONE
                                                : wanted[GLOBAL]  ? IBV_ATOMIC_GLOB
                                                                  : IBV_ATOMIC_HCA;
  for (size_t i = 0; i < ibverbs_double.count && wanted[ALLGLOBAL]; i++)
    ibverbs_double.devices[i].limits.atomic_cap = IBV_ATOMIC_GLOB;
  ibverbs_double.devices[0].dmabuf = wanted[DMABUF];
  int receives = (int)(wanted[SRQ] ? wanted[SRQ] : FABRIC_SHARED);
  if (ibverbs_double.devices[0].limits.max_srq_wr != receives) /* threads read it */
    ibverbs_double.devices[0].limits.max_srq_wr = receives;
  if (!*words) {
    atomic_store(&gone, PRESENT);
    if (memcmp(port, &first, sizeof *port) != 0) /* requests under way read it */
      *port = first;
  }
  if (wanted[SECOND]) {
    port->gids[2] = port->gids[1];
    port->pkeys[2] = 0x8002;
  }
  if (wanted[SUBNET]) {
    port->link_layer = IBV_LINK_LAYER_INFINIBAND;
    port->lid = 1;
    port->gids[0] = (struct double_gid){.raw = {[7] = (uint8_t)wanted[SUBNET], [15] = 1},
                                        .type = IBV_GID_TYPE_IB};
  }
  if (wanted[NOGID])
    memset(port->gids, 0, sizeof port->gids);
  return 0;
}

/* One word; false: it names no NIC. */
static bool make_nic(const char *word, unsigned number, struct double_device *made) {
  struct double_port *port = &made->port[0];
  char address[64];
  *made = device;
  snprintf(made->name, sizeof made->name, "double%u", number);
  made->guid += number;
  port->lid = (uint16_t)(number + 1);
  if (strncmp(word, "ib:", 3) == 0) {
    uint8_t prefix = (uint8_t)atoi(word + 3);
    port->link_layer = IBV_LINK_LAYER_INFINIBAND;
    port->gids[0] = (struct double_gid){.raw = {[7] = prefix, [15] = (uint8_t)(number + 1)},
                                        .type = IBV_GID_TYPE_IB};
    if (prefix == 0)
      memcpy(port->gids[0].raw, "\xfe\x80", 2);
    return true;
  }
  snprintf(address, sizeof address, "%s%s", strchr(word, ':') ? "" : "::ffff:", word);
  return inet_pton(AF_INET6, address, port->gids[1].raw) == 1;
}

int ibverbs_double_nics(const char *words) {
  static struct double_device made[DOUBLE_DEVICES];
  char copy[512], *rest = copy;
  unsigned count = 0;
  if (snprintf(copy, sizeof copy, "%s", words) >= (int)sizeof copy)
    return EINVAL;
  for (char *word; (word = strsep(&rest, ",")); count++)
    if (count == DOUBLE_DEVICES || !make_nic(word, count, &made[count]))
      return EINVAL;
  memcpy(ibverbs_double.devices, made, count * sizeof made[0]);
  ibverbs_double.count = count;
  first = made[0].port[0];
  return 0;
}

int64_t now_in_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void note_doorbell(void) {
  atomic_store_explicit(&ibverbs_double_doorbell, now_in_ns(), memory_order_relaxed);
  atomic_fetch_add_explicit(&ibverbs_double_doorbells, 1, memory_order_relaxed);
}

bool is_null(void) {
  return null;
}

/* Yama allows access to another process's memory only with this permission. */
static __attribute__((constructor)) void begin(void) {
  const char *motion = getenv("HAUL_DOUBLE_MOTION"), *faults = getenv("HAUL_DOUBLE_FAULT");
  const char *nics = getenv("HAUL_DOUBLE_NICS");
  null = motion && strcmp(motion, "none") == 0;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  if (!fabric_open())
    return;
  if (ibverbs_double_nics(nics ? nics : "10.0.0.1") != 0)
    mock_abort("HAUL_DOUBLE_NICS", nics);
  if (faults && ibverbs_double_fault(faults) != 0)
    mock_abort("HAUL_DOUBLE_FAULT", faults);
}
