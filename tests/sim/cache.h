/* SPDX-License-Identifier: MIT
 * A load of its own: stores and clients of a cache, by libhaul-services.
 *
 *   cache.c   the plan, faults, phases
 *   keeper.c  the lives of stores
 *   reader.c  the lives of clients, and their calls
 *   blocks.c  what gets may return, and what stores must have */
#ifndef HAUL_SIM_CACHE_H
#define HAUL_SIM_CACHE_H

#include <haul/cache.h>
#include <stdio.h>

#include "scene.h"

#define KEEPERS 6
#define READERS 5
#define WORKERS 3 /* fibers of a client */
#define KEYS    32
#define ITEMS   6 /* keys of a call */

/* Keys of three kinds: with one content, with another content at each put, and some of these are
 * removed, too. */
#define CONSTANT_KEYS 12
#define LASTING_KEYS  24

enum keep_fault {
  KEEPER_KILL,
  KEEPER_POWER, /* its memory is lost, too */
  KEEPER_FREEZE,
  KEEPER_LEAVES,
  READER_KILL,
  READER_FREEZE,
  KEEP_CUT,
  KEEP_CUT_ONE_WAY,
  KEEP_RESET,
  KEEP_MEMORY,
  KEEP_FAULTS
};

struct keep_plan {
  unsigned stores, clients, workers, hosts, replicas;
  struct fault_plan faults;
  uint64_t block; /* bytes, at most */
  uint64_t capacity, file_capacity;
  bool files;   /* stores have file tiers, and memory for few blocks */
  bool evicts;  /* the capacity does not suffice */
  bool hasty;   /* deadlines are short */
  bool repairs; /* a client does amid faults */
  bool by_unix; /* stores listen on Unix sockets */
  bool device;  /* clients have their blocks in the memory of the emulated accelerator */
  const char *only;
  int64_t liveness, pause;
};
extern struct keep_plan keep_plan;
/* Pins may fill the memory. */
bool keep_is_small(void);

/* A process of the load: a store or a client. */
struct keeper {
  struct participant base;
  bool is_store;
  bool serves, leaves;
  char path[32], file_path[32]; /* of a store */
  unsigned deaths;              /* each may lose a block that changes */
  unsigned working;             /* fibers of a client */
};

struct keep {
  struct keeper stores[KEEPERS], clients[READERS];
  uint64_t done;
};
extern struct keep keep;

extern const struct scene cache_scene;

void *keeper_main(void *participant);
void *reader_main(void *participant);

/* Opens a node; NULL: the run ends before memory suffices. */
haul_node *keep_open(struct keeper *keeper);
/* Counts a result, and fails for codes that only a defect gives. */
void keep_count(const char *call, int code);

/* ---- blocks.c ---- */

/* A put of one key. */
struct put {
  unsigned key;
  uint64_t id, length;
  int64_t began, ended; /* NEVER: it goes on, or its client died */
  bool everywhere;      /* at its end, all stores of the key had it */
};

/* One key of a get or exists. */
struct look {
  unsigned key;
  int64_t began;
  struct seen {
    const void *slot; /* in a mapping of that file */
    bool there;
    int file; /* of the store's tier: after a loss of power it has another */
    unsigned deaths;
    uint64_t sequence, id;
  } seen[KEEPERS],   /* in the stores' tiers when it began */
      last[KEEPERS]; /* in their last tiers, from which a put that is under way has yet to remove it
                      */
};

void blocks_start(void);
/* Bytes of a key, for haul_cache_item. */
size_t key_text(unsigned key, char text[16]);
uint64_t key_length(unsigned key); /* of one with one content */

struct put *put_begin(unsigned key);
void put_fill(const struct put *put, uint8_t *bytes);
void put_end(struct put *put, int code, unsigned replicas);
/* A removal that has ended at all stores, or not. */
void remove_end(unsigned key, int64_t began, int code);

void look_begin(struct look *look, unsigned key);
/* A get returned a block. */
void look_found(const struct look *look, const uint8_t *bytes, uint64_t length);
/* HAUL_ENAME: no store that the call asked may have the key all the time. */
void look_absent(const struct look *look);

/* From `from` on until `until`, a store may seem away to a client. */
void trouble(int64_t from, int64_t until);
/* Until then, a client may put blocks back that are removed or evicted meanwhile. */
void repair_begin(int64_t until);

/* A store dies, amid puts; or with its memory. */
void store_died(const struct keeper *store, bool lost);
/* It has opened its file: all blocks that must be there are. */
void store_restored(const struct keeper *store);
/* Is the key at one of the stores that gets ask, so that they must find it? */
bool block_must_be_found(unsigned key);
/* Each key is at all its first stores, or at none, and the same. For repaired stores. */
void replicas_check(void);
/* All stores run and no call does: replicas agree if no store was ever away. */
void blocks_check(void);

#endif
