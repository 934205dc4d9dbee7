/* SPDX-License-Identifier: MIT
 * What store and client share: the layout of the store's region, and the messages. Neither side
 * trusts the other's numbers.
 *
 * The region is a page with the header, the index, and the blocks, each of whole units. A key may
 * be in each slot of its two buckets. The blocks of the device tier are in a region of their own,
 * in the memory of the device, as processors and clients change and read slots in host memory.
 *
 * Slots change under a sequence number, which is odd meanwhile and never repeats:
 *  - the store makes it odd, then changes the slot or reuses the block's units, then makes it even;
 *  - a reader copies the slot, tests its check word, reads the block, and then reads `sequence`
 *    again. If it is the same, nothing of the block had been overwritten when it was read. */
#ifndef HAUL_CACHE_FORMAT_H
#define HAUL_CACHE_FORMAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <haul/cache.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "region and messages are little-endian");

#define REGION_NAME        "haul-cache"
#define FILE_REGION_NAME   "haul-cache-file"
#define DEVICE_REGION_NAME "haul-cache-device"
#define DEVICE_BLOCKS_NAME "haul-cache-device-blocks"
#define STORE_MAGIC        UINT64_C(0x31656863616c7561) /* "aulache1" */
#define STORE_BEING_MADE   UINT64_C(0x30656863616c7561) /* "aulache0": the file is not complete */
#define HEADER_BYTES       4096
#define UNIT               4096
#define BUCKET_SLOTS       4
#define SLOTS_MAX          (UINT64_C(1) << 28)
#define UNITS_MAX          (UINT64_C(1) << 31)

/* Orders all earlier accesses before all later ones, as other processes and devices see them. The
 * thread sanitizer does not model fences, nor see other processes' accesses. */
static inline void full_fence(void) {
#ifdef __SANITIZE_THREAD__
  atomic_signal_fence(memory_order_seq_cst);
#else
  atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* The counters change without a sequence number: each is one word. */
struct header {
  _Atomic uint64_t magic; /* stored last; STORE_BEING_MADE before */
  uint64_t buckets;       /* a power of two */
  uint64_t units;
  uint64_t data; /* offset of the first unit; 0: in the region of the blocks */
  uint64_t check;
  _Atomic uint64_t used, pinned; /* units */
  _Atomic uint64_t blocks, restored, dropped, puts, evictions;
  _Atomic uint64_t tiers; /* of the store, in the header of its memory tier: TIER_BIT of each */
};
_Static_assert(sizeof(struct header) <= HEADER_BYTES, "the header is a page");

struct slot {
  _Atomic uint64_t sequence;
  uint64_t check;    /* slot_check() */
  uint64_t offset;   /* of the block, from the start of its region */
  uint64_t length;   /* bytes */
  uint64_t checksum; /* XXH3 of the block */
  uint64_t version;
  uint32_t key_length; /* 0: empty */
  int32_t priority;
  uint64_t unused;
  uint8_t key[HAUL_CACHE_KEY_MAX];
};
_Static_assert(sizeof(struct slot) == 256, "four slots take a kilobyte");
#define BUCKET_BYTES (BUCKET_SLOTS * sizeof(struct slot))

static inline bool priority_is_valid(int priority) {
  return priority >= HAUL_PRIORITY_LOW && priority <= HAUL_PRIORITY_HIGH;
}

uint64_t key_hash(const void *key, size_t length);
/* The two buckets of a key, which may be the same. */
void key_buckets(uint64_t hash, uint64_t buckets, uint64_t numbers[2]);

/* Of all fields but the check word. The slot is a private copy, or cannot change. */
uint64_t slot_check(const struct slot *slot);
/* Whether a copy of a slot is whole: not torn, not changing. */
bool slot_is_whole(const struct slot *copy);
bool slot_has_key(const struct slot *copy, const void *key, size_t length);
/* Whether the numbers of a whole slot make sense in this region. */
bool slot_is_sound(const struct slot *copy, const struct header *header);

/* The tiers of a store, each a region of this layout. A key is in one of them. Puts go to the top
 * one, and remove the key from the others afterwards. A block that leaves a tier is put into the
 * next one before it is removed. */
enum {
  MEMORY_TIER = HAUL_CACHE_MEMORY,
  FILE_TIER = HAUL_CACHE_FILE,
  DEVICE_TIER = HAUL_CACHE_DEVICE,
  TIERS
};
#define TIER_BIT(tier) (UINT64_C(1) << (tier))

/* From the top to the bottom. */
extern const unsigned tier_order[TIERS];

/* The name of the region with the slots. */
const char *tier_region(unsigned tier);

/* Offsets in the region. */
static inline uint64_t bucket_offset(uint64_t bucket) {
  return HEADER_BYTES + bucket * BUCKET_BYTES;
}
/* The check word, and whether the numbers fit a region of `length` bytes, with the blocks in a
 * region of their own of `apart` bytes, unless that is 0. */
uint64_t header_check(const struct header *header);
bool header_is_sound(const struct header *header, uint64_t length, uint64_t apart);
/* Sets the numbers of a tier. */
void header_stats(const struct header *header, unsigned tier, struct haul_cache_stats *stats);

/* ---- Messages: the upper 16 bits of the tag mark them, the others are the request's number ----
 */

#define CACHE_TAG        UINT64_C(0xcac4)
#define REQUEST_KEYS_MAX 128
#define LEASE_MAX        86400 /* seconds */

enum request_kind {
  REQUEST_PUT = 1,
  REQUEST_REMOVE = 2,
  REQUEST_PIN = 3,
  REQUEST_USED = 4 /* struct used follow; no response */
};

#define REQUEST_SPARE 0x100u /* put: lose no other block */

struct request {
  uint32_t kind, count;
  uint32_t flags;        /* put: HAUL_CACHE_IF_ABSENT, for keys with version 0; REQUEST_SPARE */
  uint32_t milliseconds; /* put: the client waits this long */
  uint64_t source;       /* put: names the region to read */
};
struct request_key {
  uint64_t offset, length; /* put: in the region to read */
  uint64_t version;        /* put: 0, or that of the first replica */
  uint32_t seconds;        /* pin */
  int16_t priority;
  uint16_t key_length;
  uint8_t key[HAUL_CACHE_KEY_MAX];
};
struct used {
  uint32_t slot, tier;
  uint64_t sequence;
};
struct response_key {
  int32_t code;
  uint32_t unused;
  uint64_t version; /* put */
};

#define SOURCE_NAME_MAX 40
/* The name of a region of the client. */
void source_name(uint64_t source, char name[SOURCE_NAME_MAX]);

#endif
