/* SPDX-License-Identifier: MIT */
#include "broadcast/feeder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_NS  (1 * HAUL_SECOND)
#define PATIENCE_NS (3 * HAUL_SECOND)
#define HOLD_NS     (250 * HAUL_MILLISECOND)
#define HOLD_MOST   (16 * HAUL_SECOND)

#define FLYING_LEAST 2u
#define QUEUE_NS     (20 * HAUL_MILLISECOND) /* so long chunks may queue in any case */

/* ---- The list ---- */

static void close_remotes(struct feeder *feeder, haul_deadline until) {
  if (feeder->poll) {
    haul_transfer_cancel(feeder->poll);
    haul_transfer_wait(feeder->poll, until);
    haul_transfer_release(feeder->poll);
  }
  haul_remote_release(feeder->data);
  haul_remote_release(feeder->have);
  feeder->poll = NULL;
  feeder->data = feeder->have = NULL;
  feeder->open = feeder->polled = false;
}

static void disconnect(struct feeder *feeder, haul_deadline until) {
  close_remotes(feeder, until);
  haul_peer_close(feeder->peer);
  feeder->peer = NULL;
}

static struct feeder *feeder_new(struct feeders *feeders, const struct card *card) {
  struct feeder **all = realloc(feeders->all, (feeders->count + 1) * sizeof(struct feeder *));
  if (!all)
    return NULL;
  feeders->all = all;
  struct feeder *feeder = calloc(1, sizeof *feeder);
  if (!feeder)
    return NULL;
  feeder->source = !card;
  feeder->patience = PATIENCE_NS;
  feeder->hold = HOLD_NS;
  if (card)
    feeder->card = *card;
  feeder->told.source = !card;
  snprintf(feeder->told.name, sizeof feeder->told.name, "%s", card ? card->name : "source");
  feeders->all[feeders->count++] = feeder;
  return feeder;
}

static struct feeder *feeder_find(struct feeders *feeders, const struct card *card) {
  for (size_t i = 0; i < feeders->count; i++)
    if (feeders->all[i]->card.owner == card->owner)
      return feeders->all[i];
  return feeder_new(feeders, card);
}

int feeders_open(struct feeders *feeders, haul_broadcast *broadcast,
                 const struct haul_broadcast_version *version, haul_deadline until) {
  *feeders = (struct feeders){.broadcast = broadcast, .until = until, .version = version->number};
  feeders->chunks = chunk_count(version->length, version->chunk);
  if (!feeder_new(feeders, NULL))
    return fail_memory("haul_broadcast_receive");
  return feeders_update(feeders);
}

void feeders_close(struct feeders *feeders) {
  haul_deadline until = haul_deadline_in(HAUL_SECOND);
  for (size_t i = 0; i < feeders->count; i++) {
    struct feeder *feeder = feeders->all[i];
    disconnect(feeder, until);
    haul_region_release(feeder->copy);
    free(feeder->bits);
    free(feeder);
  }
  free(feeders->all);
  free(feeders->order);
}

/* Its position in the order of the chain; the end if it is not on the board. */
static uint64_t own_position(const struct join *join) {
  uint64_t at = 0;
  while (at < join->order_count && join->cards[join->order[at]].owner != join->id)
    at++;
  return at;
}

static int take(struct feeders *feeders, const struct card *card, bool before) {
  if (!card->address[0])
    return 0; /* it serves no one */
  struct feeder *feeder = feeder_find(feeders, card);
  if (!feeder)
    return fail_memory("haul_broadcast_receive");
  feeder->before = before;
  feeders->order[feeders->order_count++] = feeder;
  return 0;
}

int feeders_update(struct feeders *feeders) {
  struct join *join = feeders->broadcast->join;
  if (feeders->order && feeders->revision == join->revision)
    return 0;
  struct feeder **order = calloc(join->order_count + 1, sizeof *order);
  if (!order)
    return fail_memory("haul_broadcast_receive");
  free(feeders->order);
  feeders->order = order;
  feeders->order_count = 0;
  uint64_t own = own_position(join);
  int code = 0;
  for (uint64_t i = own; !code && i > 0; i--)
    code = take(feeders, &join->cards[join->order[i - 1]], true);
  feeders->order[feeders->order_count++] = feeders->all[0];
  for (uint64_t i = own + 1; !code && i < join->order_count; i++)
    code = take(feeders, &join->cards[join->order[i]], false);
  feeders->revision = join->revision;
  return code;
}

/* ---- One feeder ---- */

void feeder_block(struct feeder *feeder, const char *reason, ...) {
  va_list arguments;
  va_start(arguments, reason);
  vsnprintf(feeder->told.reason, sizeof feeder->told.reason, reason, arguments);
  va_end(arguments);
  feeder->blocked_until = now_ns() + feeder->hold;
  if (feeder->hold < HOLD_MOST)
    feeder->hold *= 2;
}

bool feeder_is_late(const struct feeder *feeder) {
  return now_ns() - feeder->progress_at >= feeder->patience;
}

void feeder_block_late(struct feeder *feeder) {
  feeder_block(feeder, "no progress for %.1f s", (double)feeder->patience / 1e9);
  if (feeder->patience < HAUL_SECOND * 60)
    feeder->patience *= 2;
  feeder->stalled = true;
}

void feeder_retry_in(struct feeder *feeder, int64_t nanoseconds) {
  feeder->blocked_until = now_ns() + nanoseconds;
  feeder->hold = HOLD_NS;
}

/* Once may be a restart. */
static void count_lost(struct feeders *feeders, struct feeder *feeder) {
  if (!feeder->source && ++feeder->lost > 1)
    join_remove(feeders->broadcast->join, &feeder->card, feeders->until);
}

void feeder_fail(struct feeders *feeders, struct feeder *feeder, int code) {
  haul_deadline until = haul_deadline_in(HAUL_SECOND);
  feeder_block(feeder, "%s", haul_error_text(code));
  feeder->failed = code;
  if (code == HAUL_ENAME) /* it is to be asked again */
    close_remotes(feeder, until);
  else
    disconnect(feeder, until);
  if (code == HAUL_ECONNECT || code == HAUL_EPEER)
    count_lost(feeders, feeder);
}

static int find(struct feeders *feeders, struct feeder *feeder, const char *what,
                haul_deadline until, haul_remote **remote) {
  char name[MEMBER_NAME_ROOM];
  member_name(feeders->broadcast, feeders->version, what, name);
  return haul_peer_lookup(feeder->peer, name, until, remote);
}

static int reach(struct feeders *feeders, struct feeder *feeder, haul_deadline until) {
  struct join *join = feeders->broadcast->join;
  if (feeder->peer && haul_peer_status(feeder->peer) == 0)
    return 0;
  haul_peer_close(feeder->peer);
  feeder->peer = NULL;
  if (!feeder->source)
    return haul_peer_connect(feeders->broadcast->node, feeder->card.address, until, &feeder->peer);
  if (!join->peer)
    return HAUL_EPEER;
  feeder->peer = haul_peer_retain(join->peer);
  return 0;
}

/* Room for what it has. */
static int have_room(struct feeders *feeders, struct feeder *feeder) {
  struct haul_place host = {HAUL_HOST, 0};
  size_t words = bit_words(feeders->chunks);
  if (!feeder->bits)
    feeder->bits = calloc(words, sizeof(uint64_t));
  if (!feeder->bits)
    return fail_memory("haul_broadcast_receive");
  if (feeder->copy)
    return 0;
  return haul_region_alloc(feeders->broadcast->node, host,
                           sizeof(struct have) + words * sizeof(uint64_t), HAUL_REGION_PRIVATE,
                           &feeder->copy);
}

int feeder_connect(struct feeders *feeders, struct feeder *feeder) {
  int64_t began = now_ns();
  haul_deadline until = sooner(feeders->until, CONNECT_NS);
  int code = reach(feeders, feeder, until);
  if (code)
    feeder->peer = NULL;
  if (!code)
    code = find(feeders, feeder, "data", until, &feeder->data);
  if (!code && !feeder->source)
    code = find(feeders, feeder, "have", until, &feeder->have);
  if (!code && !feeder->source)
    code = have_room(feeders, feeder);
  if (!code && feeder->have && haul_remote_length(feeder->have) < haul_region_length(feeder->copy))
    code = HAUL_EPROTO;
  if (code) {
    int64_t took = now_ns() - began;
    if (feeder->hold < took * 10)
      feeder->hold = took * 10;
    feeder_fail(feeders, feeder, code);
    if (code == HAUL_ETIMEDOUT && took >= CONNECT_NS)
      count_lost(feeders, feeder);
    return code;
  }
  feeder->open = true;
  feeder->allowed = FLYING_LEAST;
  feeder->progress_at = now_ns();
  return 0;
}

void feeder_landed(struct feeder *feeder, int64_t took) {
  if (!feeder->best || took < feeder->best)
    feeder->best = took;
  if (took < 2 * feeder->best || took < QUEUE_NS)
    feeder->allowed += feeder->allowed < IN_FLIGHT_MOST;
  else
    feeder->allowed -= feeder->allowed > FLYING_LEAST;
}

void feeder_poll(struct feeders *feeders, struct feeder *feeder) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, haul_region_length(feeder->copy)};
  if (feeder->poll)
    return;
  options.priority = HAUL_PRIORITY_HIGH;
  options.deadline = sooner(feeders->until, feeder->patience);
  feeder->polled_at = now_ns();
  int code = haul_read(feeder->copy, feeder->have, &piece, 1, &options, &feeder->poll);
  if (code) {
    feeder->poll = NULL;
    feeder_fail(feeders, feeder, code);
  }
}

/* Bits behind the last chunk do not count. */
static uint64_t take_bits(struct feeders *feeders, struct feeder *feeder) {
  const struct have *have = haul_region_address(feeder->copy);
  const uint64_t *bits = (const uint64_t *)(have + 1);
  size_t words = bit_words(feeders->chunks);
  uint64_t count = 0;
  memcpy(feeder->bits, bits, words * sizeof *bits);
  if (feeders->chunks % 64)
    feeder->bits[words - 1] &= (UINT64_C(1) << feeders->chunks % 64) - 1;
  for (size_t i = 0; i < words; i++)
    count += (uint64_t)__builtin_popcountll(feeder->bits[i]);
  return count;
}

static void note_gain(struct feeder *feeder, uint64_t count) {
  int64_t now = now_ns(), pace = (now - feeder->gained_at) / (int64_t)(count - feeder->most);
  if (feeder->polled)
    feeder->pace += feeder->pace ? (pace - feeder->pace) / 8 : pace;
  feeder->progress_at = feeder->gained_at = now;
  feeder->most = count;
  feeder->stalled = false;
}

void feeder_polled(struct feeders *feeders, struct feeder *feeder) {
  int code = feeder->poll ? haul_transfer_test(feeder->poll) : 1;
  if (code == 1)
    return;
  haul_transfer_release(feeder->poll);
  feeder->poll = NULL;
  const struct have *have = haul_region_address(feeder->copy);
  if (!code && (have->magic != HAVE_MAGIC || have->version != feeders->version))
    code = HAUL_EPROTO;
  if (code) {
    feeder_fail(feeders, feeder, code);
    return;
  }
  uint64_t count = take_bits(feeders, feeder);
  if (feeder->polled && count < feeder->count) {
    feeder->hold = 60 * HAUL_SECOND; /* as after wrong bytes: no member loses chunks */
    feeder_fail(feeders, feeder, HAUL_EPROTO);
    return;
  }
  if (count > feeder->most)
    note_gain(feeder, count);
  feeder->count = count;
  feeder->polled = true;
}
