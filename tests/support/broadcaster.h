/* SPDX-License-Identifier: MIT
 * Processes that take part in a broadcast, for tests: a source or a receiver each, with two regions
 * of pattern bytes. Calls wait for the response and return its code; the test's main calls
 * broadcaster_main when its first argument is BROADCASTER_MODE. */
#ifndef HAUL_TESTS_BROADCASTER_H
#define HAUL_TESTS_BROADCASTER_H

#include <stdbool.h>
#include <sys/types.h>

#include "haul/broadcast.h"

#define BROADCASTER_MODE "broadcaster"
#define FEEDERS_ROOM     16

struct broadcaster {
  pid_t pid;
  int socket;
  char address[160]; /* of its node */
  uint64_t version;  /* that receiver_next found */
};

struct setup {
  size_t tcp_rate;         /* bytes a second that it sends, 0: no limit */
  const char *paths;       /* NULL: all */
  struct haul_place place; /* of its regions; kind 0: host */
  uint64_t chunk;          /* source */
};

/* What a receive reported. */
struct received {
  struct haul_broadcast_version version;
  struct haul_broadcast_report report;
  size_t feeder_count;
  struct haul_broadcast_feeder feeders[FEEDERS_ROOM];
  char text[192]; /* of the error */
};

int broadcaster_main(void);

/* Starts the process and its node, on loopback. */
void broadcaster_start(struct broadcaster *one, const struct setup *setup);
void broadcaster_kill(struct broadcaster *one);
/* Closes its node and ends it. */
void broadcaster_end(struct broadcaster *one);

int source_open(struct broadcaster *one);
/* Fills a region with the pattern, but for `different` bytes from its middle on, and publishes it.
 */
int source_publish(struct broadcaster *one, unsigned slot, uint64_t length, uint64_t seed,
                   uint64_t different);
int broadcaster_withdraw(struct broadcaster *one, uint64_t version);

int receiver_join(struct broadcaster *one, const char *source, const char *name);
/* Waits for a version newer than `after`. */
int receiver_next(struct broadcaster *one, uint64_t after);
/* Receives what receiver_next found. _begin does not wait: _end does. */
void receive_begin(struct broadcaster *one, unsigned slot, unsigned flags);
int receive_end(struct broadcaster *one, struct received *received);
int receive(struct broadcaster *one, unsigned slot, unsigned flags, struct received *received);
/* Whether the region has the pattern, for _publish's `different` 0. */
bool receiver_has(struct broadcaster *one, unsigned slot, uint64_t length, uint64_t seed);
/* Inverts a byte of its region. */
void receiver_spoil(struct broadcaster *one, unsigned slot, uint64_t offset);
void receiver_leave(struct broadcaster *one);

/* Bytes that came from this node; NULL: the source. */
uint64_t bytes_from(const struct received *received, const char *name);
/* The reason of the report why it was passed over, or "". */
const char *reason_of(const struct received *received, const char *name);

#endif
