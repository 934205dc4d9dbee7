/* SPDX-License-Identifier: MIT
 * A cluster of etcd's members, each a process on a host of its own, and its faults. The members
 * share one store (store.h): only what a client sees of a member is modelled.
 *
 *   etcd.c     members, leaders, faults
 *   gateway.c  the HTTP gateway: requests, responses, watches */
#ifndef HAUL_SIM_ETCD_H
#define HAUL_SIM_ETCD_H

#include "store.h"

#define MEMBERS   3
#define ETCD_PORT 2379

struct etcd_plan {
  unsigned members;
  int64_t service;               /* the longest time for one request */
  unsigned slow, errors, broken; /* requests in a million: slower, refused, response cut off */
  int64_t progress;              /* between notifications of an idle watch */
  bool compacts;
};
extern struct etcd_plan etcd_plan;

enum etcd_fault {
  MEMBER_KILL,
  MEMBER_POWER,
  MEMBER_HANG,
  MEMBER_ISOLATED, /* from the other members, not from its clients */
  LEADER_LOST,
  ALL_MEMBERS, /* they end */
  STREAMS_CUT,
  COMPACTION,
  ETCD_FAULTS
};
extern const char *const etcd_fault_names[ETCD_FAULTS];

void etcd_draw(void);
/* Members lie on hosts with numbers from `host` on. */
void etcd_start(unsigned host);
void etcd_inject(enum etcd_fault fault);
/* All members end until then; `silent` as of process_kill. */
void etcd_outage(int64_t until, bool silent);
void etcd_heal(void); /* all members are up, and no request fails, from now on */
/* "etcd://MEMBER,MEMBER/sim" */
const char *etcd_directory(void);

/* The last change of a leader, or of the members that work, and the time at which the last outage
 * ended. */
extern int64_t etcd_trouble_at, etcd_back_at;
/* Since when most members have been up, with a leader; NEVER: they are not. */
int64_t etcd_serves_since(void);

/* Requests of one client process, by what they are for, and its attempts to connect for others than
 * lookups. */
enum purpose { REGISTERS, LOOKS_UP, WATCHES, CONNECTS, PURPOSES };
struct client {
  int64_t second;
  unsigned count[PURPOSES]; /* in that second */
};
extern unsigned etcd_client_peak[PURPOSES]; /* of one client in one second */
/* Requests of all clients: the most in one second, and in the second after an outage. */
extern unsigned etcd_peak, etcd_peak_after_outage;
extern uint64_t etcd_requests, etcd_connects, etcd_refused;

/* For gateway.c */

struct member {
  unsigned number;
  struct host *host;
  struct process *process; /* NULL: dead */
  bool isolated;
  unsigned cuts; /* of its streams so far */
  struct event back, end_of_hang, end_of_isolation;
};

bool member_works(const struct member *member);
/* Waits until the member can serve a linearizable request; false: not by then. */
bool member_await(const struct member *member, int64_t until);
void *gateway_main(void *member);
/* Ends the run if a client makes too many requests. */
void count_request(pid_t pid, enum purpose purpose);

#endif
