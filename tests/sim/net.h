/* SPDX-License-Identifier: MIT
 * Links between hosts: latency, jitter, bandwidth, cuts; and how often calls on sockets are cut
 * short or refused. Drawn by the seed. */
#ifndef HAUL_SIM_NET_H
#define HAUL_SIM_NET_H

#include "sim.h"

#define HOSTS 16384
#define CUTS  64 /* links that are cut at a time */

struct net {
  int64_t latency, jitter;             /* between hosts */
  int64_t picoseconds_a_byte;          /* of a link's direction */
  size_t window;                       /* bytes that a connection takes unread */
  unsigned short_calls, refused_calls; /* in a million */
  unsigned backoff;                    /* how often the time to the next retransmission doubles */
};
extern struct net net;

void net_draw(void);
void net_add_host(struct host *host);

/* When `bytes` that leave now arrive. */
int64_t net_arrival(const struct host *from, const struct host *to, size_t bytes);

/* Is the direction cut? TCP tries again and again meanwhile. */
bool net_is_cut(const struct host *from, const struct host *to);
void net_cut(unsigned from, unsigned to, int64_t until);
/* Hosts of different sides do not reach each other until then. */
void net_partition(int64_t until);
void net_heal(void);

/* A host that lost power runs again: it resets former connections that still send. */
void net_answers_again(const struct host *host);

/* Resets connections between two hosts, all or some, as a middlebox may. Returns their number. */
size_t net_reset(const struct host *one, const struct host *other);

#endif
