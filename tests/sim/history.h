/* SPDX-License-Identifier: MIT
 * Histories of atomic operations on words that all programs share. A history is linearizable if
 * some order of its operations explains every result, with each one between its begin and its end
 * (Wing and Gong, 1993). An operation that may have taken place may stand anywhere after its begin,
 * or nowhere. */
#ifndef HAUL_SIM_HISTORY_H
#define HAUL_SIM_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define HISTORY_WORDS 16

enum outcome { MAY_HAVE, TOOK_PLACE, DID_NOT };

struct history_operation {
  bool swaps;
  uint64_t operand, expected; /* to add, or to store in place of `expected` */
  uint64_t result;
  int64_t begin, end;
  enum outcome outcome;
};

struct histories; /* of one program's words */

/* All words are 0 from now on. Checks and forgets what was. *histories: NULL at first. */
void histories_reset(struct histories **histories, unsigned program);
/* The next operation on a word, or NULL: all words have operations that may still take place.
 * `words`: where they are. */
struct history_operation *history_begin(struct histories *histories, const uint64_t *words,
                                        unsigned *word);
/* `histories` may have been reset since; the operation remains valid until this call. */
void history_end(struct history_operation *operation, enum outcome outcome, uint64_t result);

#endif
