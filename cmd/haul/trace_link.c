/* SPDX-License-Identifier: MIT
 * A request has an id that its connection uses once. The nodes do not say which of their peers are
 * the two ends of a connection, so each peer of the initiator belongs to the peer of the responder
 * with which it shares the most requests, and the names must not contradict. */
#include "trace_link.h"

#include <stdlib.h>
#include <string.h>

#include "common/text.h"

#define TRIES 64 /* servings compared with a slice: a hostile node may repeat an id */

uint32_t links_add(struct link_list *list, const struct link_side *side) {
  list->list = must_grow(list->list, list->count, &list->room, sizeof *list->list);
  list->list[list->count] = *side;
  return (uint32_t)list->count++;
}

void links_free(struct links *links) {
  free(links->sent.list);
  free(links->served.list);
}

/* Whether the node may know this one as its peer `number`: a peer that left has no name any more.
 */
static bool may_be(const struct links *node, uint64_t number, const char *name) {
  for (size_t i = 0; i < node->peer_count; i++)
    if (node->peers[i].number == number)
      return strcmp(node->peers[i].name, name) == 0;
  return true;
}

static int compare_sides(const void *one, const void *other) {
  const struct link_side *a = *(const struct link_side *const *)one,
                         *b = *(const struct link_side *const *)other;
  if (a->request != b->request)
    return a->request < b->request ? -1 : 1;
  return a->from < b->from ? -1 : a->from > b->from;
}

static const struct link_side **sorted(const struct link_list *served) {
  const struct link_side **list = must_realloc(NULL, served->count * sizeof *list);
  for (size_t i = 0; i < served->count; i++)
    list[i] = &served->list[i];
  if (served->count > 0)
    qsort(list, served->count, sizeof *list, compare_sides);
  return list;
}

/* The first serving of a request. */
static size_t find_first(const struct link_side *const *served, size_t count, uint64_t request) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (served[middle]->request < request)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Also bounds the differences, for links_narrow: a hostile node may claim any time. */
static bool agree(const struct link_side *sent, const struct link_side *served, int64_t error) {
  int64_t begin = (int64_t)(served->from - sent->from), end = (int64_t)(served->to - sent->to);
  return sent->bytes == served->bytes && sent->operation == served->operation && begin >= -error &&
         begin < INT64_MAX / 2 && end <= error && end > INT64_MIN / 2;
}

static void add_pair(struct link_pairs *pairs, const struct link *pair) {
  pairs->list = must_grow(pairs->list, pairs->count, &pairs->room, sizeof *pairs->list);
  pairs->list[pairs->count++] = *pair;
}

/* All pairs that are possible for themselves. */
static struct link_pairs find_possible(const struct links *initiator, const struct links *responder,
                                       int64_t error) {
  struct link_pairs pairs = {0};
  const struct link_side **served = sorted(&responder->served);
  for (size_t i = 0; i < initiator->sent.count; i++) {
    const struct link_side *sent = &initiator->sent.list[i];
    size_t at = find_first(served, responder->served.count, sent->request);
    for (size_t end = at + TRIES; at < end && at < responder->served.count; at++) {
      if (served[at]->request != sent->request)
        break;
      if (agree(sent, served[at], error))
        add_pair(&pairs, &(struct link){sent->peer, served[at]->peer, (uint32_t)i,
                                        (uint32_t)(served[at] - responder->served.list)});
    }
  }
  free(served);
  return pairs;
}

static int compare_pairs(const void *one, const void *other) {
  const struct link *a = one, *b = other;
  if (a->peer != b->peer)
    return a->peer < b->peer ? -1 : 1;
  if (a->other != b->other)
    return a->other < b->other ? -1 : 1;
  return a->sent < b->sent ? -1 : a->sent > b->sent;
}

/* The end of the run of pairs that `pairs` begins with, of the same peer and the same other. */
static size_t run_length(const struct link *pairs, size_t count) {
  size_t length = 1;
  while (length < count && pairs[length].peer == pairs[0].peer &&
         pairs[length].other == pairs[0].other)
    length++;
  return length;
}

/* A peer of the initiator, and the responder's peer with the most pairs. */
struct best_run {
  const struct link *pairs;
  size_t count; /* 0: the names allow none */
};

/* Chooses among the pairs of one peer; returns their number. */
static size_t choose_run(const struct links *initiator, const struct links *responder,
                         const struct link *pairs, size_t count, struct best_run *best) {
  uint64_t peer = pairs->peer;
  size_t at = 0;
  *best = (struct best_run){pairs, 0};
  while (at < count && pairs[at].peer == peer) {
    size_t length = run_length(&pairs[at], count - at);
    if (length > best->count && may_be(initiator, peer, responder->name) &&
        may_be(responder, pairs[at].other, initiator->name))
      *best = (struct best_run){&pairs[at], length};
    at += length;
  }
  return at;
}

struct link_pairs links_find(const struct links *initiator, const struct links *responder,
                             int64_t error) {
  struct link_pairs found = find_possible(initiator, responder, error), kept = {0};
  struct best_run best;
  if (found.count > 0)
    qsort(found.list, found.count, sizeof *found.list, compare_pairs);
  for (size_t i = 0; i < found.count;) {
    i += choose_run(initiator, responder, &found.list[i], found.count - i, &best);
    for (size_t j = 0; j < best.count; j++) /* an id may be found twice: its first serving counts */
      if (j == 0 || best.pairs[j].sent != best.pairs[j - 1].sent)
        add_pair(&kept, &best.pairs[j]);
  }
  free(found.list);
  return kept;
}

void links_narrow(struct link_shift *shift, const struct links *initiator,
                  const struct links *responder, const struct link_pairs *pairs, bool second) {
  for (size_t i = 0; i < pairs->count; i++) {
    const struct link_side *sent = &initiator->sent.list[pairs->list[i].sent];
    const struct link_side *served = &responder->served.list[pairs->list[i].served];
    int64_t least = (int64_t)(sent->from - served->from), most = (int64_t)(sent->to - served->to);
    if (second) { /* the initiator moves, and the other way */
      int64_t swapped = -most;
      most = -least;
      least = swapped;
    }
    shift->least = least > shift->least ? least : shift->least;
    shift->most = most < shift->most ? most : shift->most;
  }
}
