/* SPDX-License-Identifier: MIT
 * A receiver: its connection to the source, its place on the board, and the members that it knows.
 */
#ifndef HAUL_SERVICES_BROADCAST_JOIN_H
#define HAUL_SERVICES_BROADCAST_JOIN_H

#include "broadcast/state.h"

#define CONTROL_NS     (5 * HAUL_SECOND) /* bound of each exchange with the source */
#define CARDS_BATCH    UINT64_C(64)
#define IN_FLIGHT_MOST 64u

/* Local memory of the exchanges, a region of its own. */
struct exchange {
  struct head head;
  struct board board, board_later; /* board_later: of the read that join_poll has in flight */
  uint64_t word;
  struct card card; /* this node's */
  struct progress progress, progress_later;
  struct card cards[CARDS_BATCH];
};

struct join {
  haul_broadcast *broadcast;
  char source[256];           /* address */
  char name[64], address[96]; /* of this node, "" if it does not listen */
  haul_region *exchange;
  haul_peer *peer; /* NULL: not connected */
  haul_remote *head, *board;
  uint64_t capacity, id, place, generation, source_host;
  uint64_t host;      /* as in a card */
  bool entered;       /* the board has our card at `place` */
  bool listed;        /* it had it before */
  bool ended;         /* the last attempt to connect found that the source has ended */
  bool renewed;       /* all cards are to be read: the connection is new, or the list is outdated */
  bool seen;          /* the source's head was read over this connection */
  int64_t retry_at;   /* no attempt to connect before */
  int64_t retry_wait; /* doubles with each failure */

  struct card *cards; /* known members, this node too */
  uint64_t card_count;
  uint32_t *order; /* of the chain */
  uint64_t order_count;
  uint64_t revision; /* grows with each change of the list */

  struct head known;            /* as haul_broadcast_next returned it last */
  struct progress progress;     /* to report */
  haul_transfer *report, *look; /* of join_poll, in flight */
  int64_t reported_at, looked_at;
  int64_t all_at; /* join_poll reads all cards no sooner */

  struct haul_broadcast_feeder *feeders; /* of the last receive */
  size_t feeder_count;
  const struct feeders *running; /* of the receive in progress, or NULL */
};

static inline struct exchange *exchange_of(const struct join *join) {
  return haul_region_address(join->exchange);
}

/* Connects, unless it is connected, and enters the board. */
int join_connect(struct join *join, haul_deadline until);
/* The connection or the source failed: closes it. The known members stay. */
void join_lost(struct join *join);

/* Reads and checks the head. */
int join_head(struct join *join, haul_deadline until, struct head *head);

/* Reads the cards if they changed, and enters again if another member took our card away. */
int join_refresh(struct join *join, haul_deadline until);

/* Reports progress and looks for changes twice a second, without waiting for the source: call it
 * often. Reconnects after a loss, for which it blocks for at most 1 s and until `until`. */
void join_poll(struct join *join, haul_deadline until);
/* Reports now. Failures are ignored: the report is for the source's list alone. */
void join_report(struct join *join, haul_deadline until);

/* Takes the card of a member that is gone off the board. */
void join_remove(struct join *join, const struct card *card, haul_deadline until);

#endif
