/* SPDX-License-Identifier: MIT
 * The simulated NICs, for the rest of the simulator. */
#ifndef HAUL_SIM_CARDS_H
#define HAUL_SIM_CARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct process;
struct file;
struct ifaddrs;

/* What the seed draws about NICs. */
struct cards {
  unsigned per_host; /* at most; 0: no libibverbs */
  bool uneven;       /* hosts have different numbers of them */
  bool shuffled;     /* hosts list them in different orders */
  bool shared;       /* they have shared receive queues */
  bool atomics;      /* they have some */
  bool global;       /* which are atomic with processors too (IBV_ATOMIC_GLOB) */
  bool gid;          /* the ports have an address */
  unsigned faults;   /* in a million, of requests and calls */
  unsigned losses;   /* in a million, of packets */
  unsigned slowness; /* times 4.096 us * 2^timeout until a packet is sent again */
  int64_t late;      /* a completion comes so much after its cause, at most */
  int64_t registers; /* a registration takes so long, at most */
};
extern struct cards cards;

/* `only`: rdma is the only path, so nothing is drawn that ends it for a node's life. */
void cards_draw(bool only);
/* NICs are there from now on, and their faults begin. */
void cards_start(void);
/* Requests that a NIC has cannot be withdrawn: how much later their end may come. */
int64_t cards_slack(void);

/* libibverbs for dlopen and dlsym. */
bool verbs_is(const char *name);
void *verbs_handle(void);
void *verbs_symbol(const char *name);
bool verbs_text(const char *path, char *text, size_t size); /* of sysfs */
/* The addresses of the current host's NICs, as getifaddrs(3); false: it has none. */
bool verbs_addresses(struct ifaddrs **addresses);

uint32_t event_queue_ready(struct file *file);
/* The process's objects that it has not released. */
size_t verbs_objects(const struct process *process);
void verbs_process_died(struct process *process);
/* The process's memory there is not mapped any more. */
void verbs_unmapped(const struct process *process, const char *from, const char *to);
/* Has the fault of a refused access happened lately? */
bool verbs_refused_lately(void);
void verbs_note_refusal(void);

#endif
