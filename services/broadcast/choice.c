/* SPDX-License-Identifier: MIT
 * Which feeder sends the next chunk: the nearest that has some which are missing here.
 *
 * A member before this one in the chain that has nothing new is waited for, also if it has fewer
 * chunks: as it gains them from its own link, no member is complete later, while two members that
 * share a link would delay all that read from them. It is passed over if its connection fails, if
 * it makes no progress for its `patience`, until it gains a chunk, or if a chunk from the next
 * feeder takes less than half the time that one takes here. A member behind this one is passed over
 * if it has far fewer chunks, too. */
#include "broadcast/receive.h"

#define BEGIN_NS     (1 * HAUL_SECOND) /* how long members may begin later */
#define PROBE_NS     (1 * HAUL_SECOND) /* between looks for a faster feeder */
#define STALLED_NS   (1 * HAUL_SECOND) /* between two polls of a member that is stalled */
#define SLOW_PROBES  3u
#define CONNECT_LATE (20 * HAUL_MILLISECOND)
#define POLL_LEAST   (500 * HAUL_MICROSECOND)
#define POLL_MOST    (20 * HAUL_MILLISECOND)

/* The chunks of word `i` that the feeder has and that were not requested. */
static uint64_t wanted_word(const struct receive *receive, const struct feeder *feeder, size_t i) {
  uint64_t rest = receive->chunks - i * 64;
  uint64_t all = rest < 64 ? (UINT64_C(1) << rest) - 1 : UINT64_MAX;
  return (feeder->source ? all : feeder->bits[i]) & ~receive->taken[i] & all;
}

static bool first_wanted(const struct receive *receive, const struct feeder *feeder,
                         uint64_t *chunk) {
  for (size_t i = 0; i < bit_words(receive->chunks); i++) {
    uint64_t word = wanted_word(receive, feeder, i);
    if (word) {
      *chunk = i * 64 + (uint64_t)__builtin_ctzll(word);
      return true;
    }
  }
  return false;
}

static uint64_t count_wanted(const struct receive *receive, const struct feeder *feeder) {
  uint64_t count = 0;
  for (size_t i = 0; i < bit_words(receive->chunks); i++)
    count += (uint64_t)__builtin_popcountll(wanted_word(receive, feeder, i));
  return count;
}

static bool is_blocked(const struct feeder *feeder) {
  return now_ns() < feeder->blocked_until;
}

/* Whether to wait for a member that does not receive this version yet: all may just be starting. */
static bool may_begin(const struct receive *receive, const struct feeder *feeder) {
  return feeder->failed == HAUL_ENAME && !feeder->source && receive->got == 0 &&
         now_ns() - receive->started < BEGIN_NS;
}

/* Opens a feeder. Attempts block, so those that fail late take a tenth of the time at most: the
 * chunks go on from the feeders that are open. */
static bool open_feeder(struct receive *receive, struct feeder *feeder) {
  int64_t began = now_ns();
  if (feeder->open)
    return true;
  if (!feeder->source && began < receive->connect_at)
    return false;
  if (!feeder_connect(&receive->feeders, feeder))
    return true;
  int64_t now = now_ns();
  if (now - began > CONNECT_LATE)
    receive->connect_at = now + 10 * (now - began);
  if (may_begin(receive, feeder))
    feeder_retry_in(feeder, POLL_MOST);
  return false;
}

static bool is_far_behind(const struct receive *receive, const struct feeder *feeder) {
  return !feeder->source && feeder->count + receive->margin < receive->got;
}

/* Asks at times, while others feed this node. */
static void ask_stalled(struct receive *receive, struct feeder *feeder) {
  if (now_ns() - feeder->polled_at >= STALLED_NS)
    feeder_poll(&receive->feeders, feeder);
}

enum choice { CHOICE_NEXT, CHOICE_WAIT, CHOICE_READ };

static enum choice consider(struct receive *receive, struct feeder *feeder, uint64_t *chunk) {
  if (is_blocked(feeder) || !open_feeder(receive, feeder))
    return may_begin(receive, feeder) ? CHOICE_WAIT : CHOICE_NEXT;
  if (!feeder->source && !feeder->polled)
    return CHOICE_WAIT; /* until its patience ends the first poll */
  if (first_wanted(receive, feeder, chunk))
    return feeder->flying < feeder->allowed ? CHOICE_READ : CHOICE_WAIT;
  if (feeder->source)
    return CHOICE_WAIT; /* all is in flight */
  if (is_far_behind(receive, feeder) && !feeder->before)
    return CHOICE_NEXT;
  if (feeder->stalled)
    ask_stalled(receive, feeder);
  else if (!feeder_is_late(feeder))
    return CHOICE_WAIT;
  else
    feeder_block_late(feeder);
  return CHOICE_NEXT;
}

struct feeder *choose_feeder(struct receive *receive, uint64_t *chunk) {
  if (receive->got + receive->flying >= receive->chunks)
    return NULL;
  for (size_t i = 0; i < receive->feeders.order_count; i++) {
    struct feeder *feeder = receive->feeders.order[i];
    enum choice choice = consider(receive, feeder, chunk);
    if (choice == CHOICE_NEXT)
      continue;
    receive->current = feeder;
    return choice == CHOICE_READ ? feeder : NULL;
  }
  receive->current = NULL;
  return NULL;
}

bool member_may_send(const struct receive *receive) {
  uint64_t chunk;
  for (size_t i = 0; i < receive->feeders.order_count; i++) {
    const struct feeder *feeder = receive->feeders.order[i];
    if (!feeder->source && feeder->open && !feeder->failed && is_blocked(feeder) &&
        first_wanted(receive, feeder, &chunk))
      return true;
  }
  return false;
}

static int64_t poll_interval(const struct receive *receive, const struct feeder *feeder) {
  int64_t interval =
      is_far_behind(receive, feeder) ? POLL_MOST : (now_ns() - feeder->progress_at) / 8;
  if (interval < receive->pace / 2)
    interval = receive->pace / 2;
  return interval < POLL_LEAST ? POLL_LEAST : interval > POLL_MOST ? POLL_MOST : interval;
}

/* The current feeder is asked before all that it is known to have is in flight. */
int64_t poll_feeders(struct receive *receive) {
  struct feeder *feeder = receive->current;
  int64_t now = now_ns();
  for (size_t i = 0; i < receive->feeders.count; i++)
    if (receive->feeders.all[i]->poll)
      feeder_polled(&receive->feeders, receive->feeders.all[i]);
  if (!feeder || !feeder->open)
    return now + POLL_MOST;
  if (feeder->source || feeder->poll || feeder->count == receive->chunks)
    return now + POLL_MOST;
  int64_t due = feeder->polled ? feeder->polled_at + poll_interval(receive, feeder) : now;
  if (due > now)
    return due;
  if (!feeder->polled || count_wanted(receive, feeder) < receive->window)
    feeder_poll(&receive->feeders, feeder);
  return now + POLL_MOST;
}

/* The feeder that would be used instead of the current one. */
static struct feeder *alternative(const struct receive *receive) {
  bool behind = false;
  for (size_t i = 0; i < receive->feeders.order_count; i++) {
    struct feeder *feeder = receive->feeders.order[i];
    if (behind && !is_blocked(feeder))
      return feeder;
    behind = behind || feeder == receive->current;
  }
  return NULL;
}

struct feeder *choose_probe(struct receive *receive, uint64_t *chunk) {
  struct feeder *feeder = alternative(receive);
  uint64_t much = 4 * receive->window;
  if (now_ns() - receive->probe_at < PROBE_NS || !receive->current || receive->current->source)
    return NULL;
  receive->probe_at = now_ns();
  if (much < receive->chunks / 16)
    much = receive->chunks / 16;
  if (is_far_behind(receive, receive->current))
    much = 0; /* nothing comes meanwhile */
  if (!feeder || !open_feeder(receive, feeder))
    return NULL;
  if (!feeder->source)
    feeder_poll(&receive->feeders, feeder); /* for the next time */
  uint64_t there = feeder->source ? receive->chunks : feeder->count;
  bool known = (feeder->source || feeder->polled) && feeder->open;
  return known && there > receive->got + much && receive->flying <= receive->window &&
                 first_wanted(receive, feeder, chunk)
             ? feeder
             : NULL;
}

/* The current feeder is blocked after SLOW_PROBES in a row that took less than half the time of a
 * chunk from it: one alone may just have found an idle moment. */
void judge_feeder(struct receive *receive, const struct flight *probe) {
  struct feeder *current = receive->current;
  if (!current || current == probe->feeder || current->source)
    return;
  int64_t took = now_ns() - probe->since;
  int64_t pace = is_far_behind(receive, current) ? current->pace : receive->pace;
  current->slow = took * 2 < pace ? current->slow + 1 : 0;
  if (current->slow < SLOW_PROBES)
    return;
  current->slow = 0;
  feeder_block(current, "slow: %.1f ms a chunk, and %.1f from %s", (double)pace / 1e6,
               (double)took / 1e6, probe->feeder->told.name);
}
