/* SPDX-License-Identifier: MIT */
#include "history.h"

#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define LENGTH  40u /* operations of a history; at most 64 */
#define VISITED (1u << 16)

struct history {
  uint64_t initial;
  unsigned count, in_flight;
  bool forgotten; /* freed by the last operation in flight */
  struct entry {
    struct history_operation operation;
    struct history *history;
  } entries[LENGTH];
};

struct histories {
  unsigned program, word;
  uint64_t guess; /* a value that a word had */
  struct history *words[HISTORY_WORDS];
};

struct search {
  const struct history *history;
  uint64_t done;  /* bits of the operations that the order must have */
  uint64_t final; /* the word's value after all, if `knows_final` */
  bool knows_final;
  unsigned visited;
};

/* States that lead to no order: the operations that stand in it so far, and the word's value. */
static struct state {
  uint64_t mask, value;
  uint64_t search;
} states[VISITED];
static uint64_t searches;

/* True: it is new. */
static bool visit(struct search *search, uint64_t mask, uint64_t value) {
  uint64_t at = (mask * 0x9e3779b97f4a7c15u ^ value * 0xc2b2ae3d27d4eb4fu) >> 40;
  for (;; at++) {
    struct state *state = &states[at % VISITED];
    if (state->search != searches) {
      *state = (struct state){mask, value, searches};
      search->visited++;
      return true;
    }
    if (state->mask == mask && state->value == value)
      return false;
  }
}

/* The next one of the order ends no later than any other that still must follow. */
static int64_t first_end(const struct search *search, uint64_t mask) {
  int64_t first = INT64_MAX;
  for (unsigned i = 0; i < search->history->count; i++) {
    const struct history_operation *operation = &search->history->entries[i].operation;
    if ((search->done & ~mask) >> i & 1 && operation->end < first)
      first = operation->end;
  }
  return first;
}

static uint64_t effect(const struct history_operation *operation, uint64_t value) {
  if (!operation->swaps)
    return value + operation->operand;
  return value == operation->expected ? operation->operand : value;
}

static bool explain(struct search *search, uint64_t mask, uint64_t value) {
  if ((search->done & ~mask) == 0)
    return !search->knows_final || value == search->final;
  if (search->visited > VISITED / 2)
    return true; /* too many orders to try: not a proof of a defect */
  int64_t bound = first_end(search, mask);
  for (unsigned i = 0; i < search->history->count; i++) {
    const struct history_operation *operation = &search->history->entries[i].operation;
    if (mask >> i & 1 || operation->outcome == DID_NOT || operation->begin > bound)
      continue;
    uint64_t next = effect(operation, value);
    bool fits = operation->outcome == TOOK_PLACE ? operation->result == value : next != value;
    if (fits && visit(search, mask | UINT64_C(1) << i, next) &&
        explain(search, mask | UINT64_C(1) << i, next))
      return true;
  }
  return false;
}

static void check(const struct history *history, unsigned program, const uint64_t *final) {
  struct search search = {.history = history, .knows_final = final, .final = final ? *final : 0};
  for (unsigned i = 0; i < history->count; i++)
    search.done |= (uint64_t)(history->entries[i].operation.outcome == TOOK_PLACE) << i;
  searches++;
  if (!explain(&search, 0, history->initial))
    sim_fail("atomics", "no order explains the results of %u operations on a word of program %u",
             history->count, program);
}

static bool is_settled(const struct history *history) {
  for (unsigned i = 0; i < history->count; i++)
    if (history->entries[i].operation.outcome == MAY_HAVE)
      return false;
  return true;
}

static struct history *history_new(uint64_t initial) {
  struct history *history = calloc(1, sizeof *history);
  history->initial = initial;
  return history;
}

static void history_forget(struct history *history) {
  history->forgotten = true;
  if (history->in_flight == 0)
    free(history);
}

void histories_reset(struct histories **all, unsigned program) {
  if (!*all)
    *all = calloc(1, sizeof **all);
  struct histories *histories = *all;
  for (unsigned i = 0; i < HISTORY_WORDS; i++) {
    if (histories->words[i]) {
      check(histories->words[i], program, NULL);
      history_forget(histories->words[i]);
    }
    histories->words[i] = history_new(0);
  }
  histories->program = program;
  histories->guess = 0;
}

/* Once a history is long and its word's value is known, the word begins another one. */
static struct history *open_history(struct histories *histories, const uint64_t *words) {
  for (unsigned tried = 0; tried < HISTORY_WORDS; tried++) {
    struct history **history = &histories->words[histories->word];
    if ((*history)->count == LENGTH && is_settled(*history)) {
      check(*history, histories->program, &words[histories->word]);
      history_forget(*history);
      *history = history_new(words[histories->word]);
    }
    if ((*history)->count < LENGTH)
      return *history;
    histories->word = (histories->word + 1) % HISTORY_WORDS;
  }
  return NULL;
}

struct history_operation *history_begin(struct histories *histories, const uint64_t *words,
                                        unsigned *word) {
  struct history *history = open_history(histories, words);
  if (!history)
    return NULL;
  struct entry *entry = &history->entries[history->count++];
  entry->history = history;
  entry->operation = (struct history_operation){
      .swaps = sim_chance(500000), .operand = sim_random(), .begin = sim_now, .end = INT64_MAX};
  entry->operation.expected = words[histories->word];
  if (sim_chance(200000))
    entry->operation.expected = histories->guess;
  histories->guess = words[histories->word];
  history->in_flight++;
  *word = histories->word;
  return &entry->operation;
}

void history_end(struct history_operation *operation, enum outcome outcome, uint64_t result) {
  struct entry *entry = list_entry(operation, struct entry, operation);
  operation->outcome = outcome;
  operation->result = result;
  operation->end = outcome == TOOK_PLACE ? sim_now : INT64_MAX;
  if (--entry->history->in_flight == 0 && entry->history->forgotten)
    free(entry->history);
}
