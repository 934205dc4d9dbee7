/* SPDX-License-Identifier: MIT
 * A rail: one data connection of an endpoint. */
#ifndef HAUL_FABRIC_TCP_RAILS_H
#define HAUL_FABRIC_TCP_RAILS_H

#include "fabric/tcp/receive.h"
#include "fabric/tcp/send.h"
#include "fabric/tcp/tcp.h"

struct tcp_rail {
  struct tcp_endpoint *endpoint;
  unsigned index;
  struct stream stream; /* fd -1: closed */
  _Atomic bool broken;  /* the socket failed; the loop will close the rail */
  struct watch watch;
  struct rail_tx tx; /* the endpoint's lock */
  struct rail_rx rx; /* the loop's lock */
};

/* The one after `rail`, the first one for NULL; NULL past the last. */
static inline struct tcp_rail *rail_after(const struct tcp_endpoint *endpoint,
                                          const struct tcp_rail *rail) {
  for (unsigned i = rail ? rail->index + 1 : 0; i < TCP_RAILS; i++)
    if (endpoint->rails[i])
      return endpoint->rails[i];
  return NULL;
}

#define each_rail(rail, endpoint)                                                                  \
  for (struct tcp_rail *rail = NULL; (rail = rail_after((endpoint), rail));)

static inline bool rail_is_open(const struct tcp_rail *rail) {
  return rail->stream.fd >= 0 && !rail->broken;
}

/* All with the loop's lock unless they say otherwise. */

/* Initiator: dials the configured rails, then the express rail. Blocks until `until`, without
 * locks; the transport's `connect`. */
void tcp_connect_rails(struct endpoint *base, haul_deadline until);
/* The stream is the endpoint's from now on, also on failure. */
int rail_open(struct tcp_endpoint *endpoint, unsigned index, struct stream stream);
/* The rail's works end with `code`, its responses are dropped. When a request that modifies memory
 * was begun on it and not answered, the peer fails: it may still read those bytes, and they must
 * not land on what another path wrote in the meantime. */
void rail_close(struct tcp_rail *rail, int code);
void rail_free(struct tcp_rail *rail); /* closed, or NULL */
/* In a forked child: closes the descriptors and touches nothing else. */
void rail_forked(struct tcp_rail *rail);

/* Tells the loop which events the rail waits for. With the endpoint's lock. */
void rail_watch(struct tcp_rail *rail);
/* Sends unsent frames, in a bounded number of turns. */
void rail_flush(struct tcp_rail *rail);
/* In the middle of this rail's turn: serves the express rail, which must not wait for its end. */
void rail_serve_express(const struct tcp_rail *rail);
/* A poller's round; true when something came. */
bool rail_poll(struct tcp_rail *rail, int64_t spin_ns);
/* The peer fails when it stopped within a frame for `bound` ns, or does not read for as long. */
void rail_check_stall(struct tcp_rail *rail, int64_t now, int64_t bound);

#endif
