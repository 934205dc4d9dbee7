/* SPDX-License-Identifier: MIT
 * The regions that members of a broadcast publish, in the byte order of the processor: the magic
 * numbers differ on a host with another one. Readers check everything that they read. */
#ifndef HAUL_SERVICES_BROADCAST_LAYOUT_H
#define HAUL_SERVICES_BROADCAST_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#define HEAD_MAGIC  UINT64_C(0x6861756c68656164)
#define BOARD_MAGIC UINT64_C(0x6861756c6c697374)
#define HAVE_MAGIC  UINT64_C(0x6861756c68617665)

#define CHUNK_LEAST  (UINT64_C(4) << 10)
#define CHUNK_MOST   (UINT64_C(1) << 30)
#define CHUNKS_MOST  (UINT64_C(1) << 20)
#define MEMBERS_MOST 65536u
#define NAME_MOST    200
#define CHANGES_KEPT 16u

/* NAME.head, read-only: the latest version. It is changed in place: `hash` tells a torn copy. */
struct head {
  uint64_t magic;
  uint64_t version; /* 0: none */
  uint64_t length, chunk;
  uint64_t sums; /* XXH3 of the checksums of all chunks, which are in NAME.V.sums */
  uint64_t host; /* of the source, as in a card */
  uint64_t reserved;
  uint64_t hash; /* XXH3 of the fields before */
};

/* NAME.members, which receivers write: this, then a card and then a progress for each place. */
struct board {
  uint64_t magic;
  uint64_t capacity;   /* places */
  uint64_t generation; /* grows by one after each change of a card */
  uint64_t used;       /* no card from this place on */
  /* For generation g at g modulo their number: its low 32 bits, then the place. Written after the
   * generation, so that another number is there for a moment. */
  uint64_t changes[CHANGES_KEPT];
};

static inline uint64_t change_word(uint64_t generation, uint64_t place) {
  return generation << 32 | place;
}

/* A receiver. */
struct card {
  uint64_t owner; /* random, 0: the place is free; changed by compare-swap only */
  uint64_t host;  /* equal for nodes of one host and network */
  uint64_t hash;  /* XXH3 of owner, host, name and address: tells a half-written card */
  char name[64], address[96];
};

/* Its state, for the source's list alone. */
struct progress {
  uint64_t version, bytes, retries;
  int64_t duration_ns;
  uint32_t state, beat;
  char feeder[64], path[16];
};

/* NAME.V.have: this, then a bit for each chunk. */
struct have {
  uint64_t magic;
  uint64_t version;
  uint64_t count; /* of bits that are set */
};

static inline uint64_t card_offset(uint64_t place) {
  return sizeof(struct board) + place * sizeof(struct card);
}

static inline uint64_t progress_offset(uint64_t capacity, uint64_t place) {
  return card_offset(capacity) + place * sizeof(struct progress);
}

uint64_t head_hash(const struct head *head);
bool head_is_valid(const struct head *head);

uint64_t card_hash(const struct card *card);
/* Whether it is complete and its texts are printable; then they are terminated. */
bool card_is_valid(const struct card *card);
/* Whether the text is terminated within `room` bytes and has printable ASCII alone. */
bool text_is_valid(const char *text, uint64_t room);

static inline uint64_t chunk_count(uint64_t length, uint64_t chunk) {
  return length / chunk + (length % chunk != 0);
}
static inline uint64_t chunk_length(uint64_t length, uint64_t chunk, uint64_t at) {
  uint64_t rest = length - at * chunk;
  return rest < chunk ? rest : chunk;
}

/* A number that nodes of this host and network namespace share. */
uint64_t host_number(void);

/* Fills order[0..count) with the places of the valid cards, in the order of the chain: the source's
 * host first, and members of one host together, else by place. Returns their number. */
uint64_t chain_order(const struct card *cards, uint64_t count, uint64_t source_host,
                     uint32_t *order);

#endif
