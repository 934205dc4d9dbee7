/* SPDX-License-Identifier: MIT
 * A cache of blocks by key in the memories of several nodes. Stores hold the blocks; clients place
 * each key on stores and move the bytes from and to regions of their own. docs/cache.md has the
 * design, haul-cache(1) the command. In the library libhaul-services.so.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_CACHE_H
#define HAUL_CACHE_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAUL_CACHE_KEY_MAX     192 /* bytes of a key, of any value */
#define HAUL_CACHE_MEMBERS_MAX 256 /* stores of a client */

/* ---- Store -------------------------------------------------------------------------------- */

typedef struct haul_cache_store haul_cache_store;

/* Start from HAUL_CACHE_STORE_INIT. */
struct haul_cache_store_config {
  size_t size;       /* sizeof(struct haul_cache_store_config), set by the initializer */
  const char *path;  /* the file that holds the blocks, for example in /dev/shm */
  uint64_t capacity; /* bytes for blocks, each rounded up to 4096; 0: that of the existing file */
  uint64_t blocks;   /* about the number of blocks that fit; 0: one for each 64 KiB */
  /* NULL, or the file tier: a second file, for example on an NVMe drive, to which evicted blocks
   * move. */
  const char *file_path;
  uint64_t file_capacity, file_blocks;
  /* The device tier, for example {HAUL_CUDA, 0}; kind 0: none. Puts go to memory of this device,
   * and blocks that are evicted from there move to that of `path`. */
  struct haul_place device;
  uint64_t device_capacity, device_blocks;
};
#define HAUL_CACHE_STORE_INIT                                                                      \
  { sizeof(struct haul_cache_store_config), NULL, 0, 0, NULL, 0, 0, {0, 0}, 0, 0 }

/* What a store has in one tier. */
struct haul_cache_tier_stats {
  uint64_t capacity, used, pinned; /* bytes; capacity 0: the store has no such tier */
  uint64_t blocks;
  uint64_t room;      /* entries of the index */
  uint64_t restored;  /* blocks found in the file at the start */
  uint64_t dropped;   /* of these, damaged ones */
  uint64_t puts;      /* blocks that came, also from the tier above */
  uint64_t evictions; /* blocks that left for want of room: to the tier below, or, without one, or
                         where that had no room either, lost */
};

/* Start from HAUL_CACHE_STATS_INIT. Blocks move from the device to memory, and from there to the
 * file; puts of clients go to the first of them that the store has. */
struct haul_cache_stats {
  size_t size; /* sizeof(struct haul_cache_stats), set by the initializer */
  struct haul_cache_tier_stats device, memory, file;
};
#define HAUL_CACHE_STATS_INIT                                                                      \
  {                                                                                                \
    sizeof(struct haul_cache_stats), {0, 0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 0}, {   \
      0, 0, 0, 0, 0, 0, 0, 0, 0                                                                    \
    }                                                                                              \
  }

/* Opens a store: maps its file, creating it if it does not exist, drops damaged blocks, and
 * publishes it to the peers of `node` as the region "haul-cache", for reading only. From now on the
 * store receives the messages of the node, and the caller must not; the caller makes it
 * listen, and opens it with HAUL_PROGRESS_THREAD. Release with haul_cache_store_close, before the
 * node.
 *
 * The memory is allocated at once. Blocks survive the end of the process, also by SIGKILL, but for
 * those of the device tier; pins and the order of use do not. Blocks until all blocks in the file
 * are verified, some 0.1 s a GiB in memory, for a file tier the time to read it, and a second for a
 * file that is in use. HAUL_EINVAL (no file and no capacity, or the file has another capacity or is
 * no store; a device without a capacity, or the reverse, or the host as device; the capacity of a
 * file tier without its path), HAUL_EPLACE (there is no such device), HAUL_EINSECURE (others than
 * its owner can write the file), HAUL_EBUSY (another process has it), HAUL_ESYSTEM, and those of
 * haul_region_alloc and haul_region_publish. */
HAUL_API int haul_cache_store_open(haul_node *node, const struct haul_cache_store_config *config,
                                   haul_cache_store **store);
/* HAUL_EINVAL: an argument is NULL, or the stats have an unknown size. */
HAUL_API int haul_cache_store_stats(haul_cache_store *store, struct haul_cache_stats *stats);
/* Blocks for puts in progress, and then for the blocks of the device tier, which move to memory as
 * if they were evicted: each at most a minute. The files stay. */
HAUL_API void haul_cache_store_close(haul_cache_store *store);

/* ---- Client ------------------------------------------------------------------------------- */

typedef struct haul_cache haul_cache;

/* Start from HAUL_CACHE_INIT. */
struct haul_cache_config {
  size_t size; /* sizeof(struct haul_cache_config), set by the initializer */
  /* Addresses of the nodes with stores. The text of the address places the keys: all clients need
   * the same texts, in any order. Copied. */
  const char *const *members;
  size_t member_count;
  const char *directory; /* or, without members, the nodes with stores in etcd://HOST/PREFIX
                            (directory.h), placed by their names. Copied. */
  unsigned replicas;     /* stores that get each block; 0: 1 */
  int64_t connect_ns; /* longest time to connect to a store; one that cannot be reached is skipped
                      for ten times as long as that took; 0: 1 s */
  const char *only;   /* use only this path ("tcp"); NULL: the best one */
};
#define HAUL_CACHE_INIT                                                                            \
  { sizeof(struct haul_cache_config), NULL, 0, NULL, 0, 0, NULL }

/* Opens a client, which connects at first use. From now on it receives the messages of the node,
 * and the caller must not. The node has no store. All regions given to it belong to the
 * node; memory of another node is wrapped again. Blocks for the directory alone, which a thread
 * follows from then on: stores that come are members once the directory has them, and those that
 * left are used as long as they are connected, up to 256 different names. Release with
 * haul_cache_close, before the node.
 * HAUL_EADDRESS: no member, too many, or the same one twice. HAUL_ENAME: the directory has none.
 * Others as of haul_directory_next. */
HAUL_API int haul_cache_open(haul_node *node, const struct haul_cache_config *config,
                             haul_deadline until, haul_cache **cache);
/* With a directory it may block, but no longer than the client was open, and at most a second. */
HAUL_API void haul_cache_close(haul_cache *cache);

/* The address of a member by its number, as configured; NULL: there is none. Members keep their
 * numbers, also when they leave the directory and return. */
HAUL_API const char *haul_cache_member(haul_cache *cache, unsigned member);

/* Lets stores read the region, as put needs it, until it is detached, before its release. It is
 * published under an unguessable name, one for each thread that puts from it at the same time.
 * HAUL_EEXIST, or as haul_region_publish. */
HAUL_API int haul_cache_attach(haul_cache *cache, haul_region *region);
HAUL_API int haul_cache_detach(haul_cache *cache, haul_region *region);

#define HAUL_CACHE_NO_MEMBER UINT32_MAX

/* Where a store has a block. */
enum haul_cache_tier { HAUL_CACHE_MEMORY, HAUL_CACHE_FILE, HAUL_CACHE_DEVICE };

/* One key of a call. */
struct haul_cache_item {
  const void *key;
  size_t key_length; /* 1 to HAUL_CACHE_KEY_MAX */
  uint64_t offset;   /* in the region (put, get) */
  uint64_t length;   /* put: of the block, at least 1. get: the room; then the length of the block,
                        which may be larger. exists: set */
  int code;          /* set: the result of this key */
  unsigned member;   /* set: the number of the store that has it, or HAUL_CACHE_NO_MEMBER */
  unsigned replicas; /* put: set: the number of stores that have it */
  unsigned tier;     /* get, exists: set: enum haul_cache_tier */
};

/* All calls below take several keys, set `code` of each, and return 0, or the code of the first key
 * that failed, which haul_error_last() describes: the object is the key. Keys of one call may fail
 * while others do not. A call blocks until `until`. Its requests to different stores run at the
 * same time.
 *
 * Codes of a key: HAUL_ENAME (no store has it), HAUL_EINVAL (length of the key or of the block),
 * HAUL_ETIMEDOUT; HAUL_EPEER, HAUL_ECONNECT and others of haul_read: no store that may have the key
 * can be reached, and the text says which one failed last. */

#define HAUL_CACHE_IF_ABSENT 1u /* HAUL_EEXIST if the key exists; its first store decides */

/* Stores blocks from an attached region: the stores read the bytes. A block replaces that of the
 * same key, and readers get one or the other. If room is short, the store evicts blocks: of the
 * lowest priority first (enum haul_priority), then the least recently used; never pinned ones. The
 * result is 0 if at least one store has the block; `replicas` counts them. No store reads the bytes
 * after the call, even if one has not answered: to stop a copy it may block as
 * haul_region_unpublish. HAUL_EINVAL: the region is not attached. HAUL_ELIMIT: the first store of
 * the key that can be reached has no room; all is pinned, or the block exceeds the capacity of the
 * tier that puts go to. HAUL_ERANGE: beyond the region. */
HAUL_API int haul_cache_put(haul_cache *cache, haul_region *region, struct haul_cache_item *items,
                            size_t count, unsigned flags, int priority, haul_deadline until);

/* Reads blocks straight into a region, of any place, which need not be attached. The bytes are
 * those of one put of this key; after a failure they are undefined. HAUL_ERANGE: the block is
 * longer than the room. HAUL_EBUSY: it was replaced during each of several reads. */
HAUL_API int haul_cache_get(haul_cache *cache, haul_region *region, struct haul_cache_item *items,
                            size_t count, haul_deadline until);

/* Looks keys up without moving blocks or involving the stores' processors over map and rdma. */
HAUL_API int haul_cache_exists(haul_cache *cache, struct haul_cache_item *items, size_t count,
                               haul_deadline until);

HAUL_API int haul_cache_remove(haul_cache *cache, struct haul_cache_item *items, size_t count,
                               haul_deadline until);

/* Keeps blocks from eviction for `seconds`, at most 86,400, from now, or longer if an earlier pin
 * does; 0 ends all pins of the key. Puts and removes still replace and remove it. HAUL_ELIMIT: over
 * half of the capacity would be pinned. */
HAUL_API int haul_cache_pin(haul_cache *cache, struct haul_cache_item *items, size_t count,
                            unsigned seconds, haul_deadline until);

struct haul_cache_entry {
  char key[HAUL_CACHE_KEY_MAX + 1]; /* terminated */
  size_t key_length;
  uint64_t length;
  uint64_t checksum; /* XXH3, 64 bits */
  uint64_t version;  /* increases with each put; about nanoseconds since 1970 by the clock of the
                        store, so that stores' clocks have to agree */
  int priority;      /* enum haul_priority */
  unsigned tier;     /* enum haul_cache_tier */
};

/* Calls `each`, within the call, for the blocks of a member. Blocks that come or leave meanwhile
 * may be missing. HAUL_ERANGE: there is no such member. */
HAUL_API int haul_cache_list(haul_cache *cache, unsigned member, haul_deadline until,
                             void (*each)(void *user, const struct haul_cache_entry *entry),
                             void *user);
HAUL_API int haul_cache_stat(haul_cache *cache, unsigned member, haul_deadline until,
                             struct haul_cache_stats *stats);

#define HAUL_CACHE_DRY_RUN 1u /* copy nothing */

/* Start from HAUL_CACHE_REPAIR_INIT. */
struct haul_cache_repair {
  size_t size;            /* sizeof(struct haul_cache_repair), set by the initializer */
  uint64_t blocks;        /* different keys */
  uint64_t copies, bytes; /* made */
  uint64_t missing;       /* replicas that blocks lack at the end, where a get looks */
  uint64_t changed;       /* blocks that were replaced or removed meanwhile, and left to that */
  int code;               /* of the last copy that failed: HAUL_ELIMIT if the store had no room */
  unsigned away;          /* stores that could not be read: what they have is not counted */
};
#define HAUL_CACHE_REPAIR_INIT                                                                     \
  { sizeof(struct haul_cache_repair), 0, 0, 0, 0, 0, 0, 0 }

/* Copies blocks to those of their first stores that lack them, or have an older block of the key,
 * as after a store was lost, came back or was added. The bytes pass through memory of the client,
 * 64 MiB at a time, or one block. No block is lost to it: one for which a store has no free room,
 * also not in its file, stays as it is. A key that is removed meanwhile may come back. Stores that
 * cannot be reached are skipped and counted. `each`, if not NULL, is called within the call for
 * blocks that have fewer replicas than configured, or were copied: `stores` had it, and `copies`
 * got it. Several clients may repair at the same time; one is enough. Blocks until `until`.
 * HAUL_ETIMEDOUT; HAUL_EPEER and others of haul_read: no store can be reached; HAUL_ENOMEM. */
HAUL_API int haul_cache_repair(haul_cache *cache, unsigned flags, haul_deadline until,
                               void (*each)(void *user, const struct haul_cache_entry *entry,
                                            unsigned stores, unsigned copies),
                               void *user, struct haul_cache_repair *result);

#ifdef __cplusplus
}
#endif

#endif
