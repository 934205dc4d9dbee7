/* SPDX-License-Identifier: MIT
 * What the operations of a link share (link.c, async.c). */
#ifndef HAUL_SIM_OPERATIONS_H
#define HAUL_SIM_OPERATIONS_H

#include "load.h"

/* An operation on a range of one lane: all bytes, or the first of each `stride`. */
struct span {
  unsigned lane;
  size_t from, length, stride;
  int64_t until;          /* deadline, by the own clock */
  uint64_t generation;    /* of a write */
  unsigned publication;   /* when the operation began */
  const uint8_t *written; /* where the bytes of a write are, as in link->bytes */
};

/* Is the link's remote memory that of the present process, and not withdrawn? */
bool is_current(const struct link *link);
/* The deadline of a call, by the own clock; in calm, long after its end. */
int64_t draw_deadline(int64_t low, int64_t high);
/* False: each lane waits for data of a dead program. */
bool draw_span(struct link *link, struct span *span);
bool draw_span_in(struct link *link, unsigned lane, struct span *span);
struct haul_piece piece_of(const struct link *link, const struct span *span);
size_t split(const struct link *link, const struct span *span, struct haul_piece *pieces);
struct haul_transfer_options draw_options(const struct span *span);
void fill(struct link *link, const struct span *span);
/* The write is in flight: its bytes are undefined. */
void write_begins(struct link *link, struct span *span);
/* Complete: the bytes are there now, and stay. Failed: they are undefined until a later write. */
void write_ended(struct link *link, const struct span *span, int code);
/* A mismatch is allowed where a NIC may still write. */
void check_read_code(struct link *link, const struct span *span, int code);
void read_ended(struct link *link, const struct span *span, const uint8_t *to, int code);
int await_end(haul_transfer *transfer, const struct limit *limit);
void check_code(const char *call, int code);
void count(struct link *link, enum operation operation, int code);

/* async.c */
void do_batch(struct link *link);
void do_scatter(struct link *link);
void do_cancel_read(struct link *link);
void do_release(struct link *link);
void do_silent(struct link *link);
/* offer.c */
void do_offer(struct link *link);

#define BATCH_MOST   LANES
#define SCATTER_MOST 700 /* segments; a slice has up to 256 */

#endif
