/* SPDX-License-Identifier: MIT
 * The client: what its calls share.
 *
 * A call works on batches of keys. A batch holds the connections that it uses, and scratch memory
 * for small reads. */
#ifndef HAUL_CACHE_CLIENT_H
#define HAUL_CACHE_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache/format.h"

#define NO_MEMBER   HAUL_CACHE_NO_MEMBER
#define BATCH_KEYS  REQUEST_KEYS_MAX
#define ADDRESS_MAX 256
#define USED_MAX    64 /* uses that are reported in one message */
#define LOCATIONS   4096
#define TRIES       16 /* reads of a block, or of the slots of a key, that change meanwhile */

/* A connection to a store. */
struct link {
  unsigned users;  /* cache->lock; the member is one */
  uint64_t number; /* unique in the client */
  haul_peer *peer;
  double look_ns;        /* estimated time of a small read */
  unsigned tiers;        /* of the store */
  unsigned order[TIERS]; /* these, from the top */
  haul_remote *remotes[TIERS];
  haul_remote *device_blocks;
  struct header headers[TIERS]; /* their numbers, checked */
  struct used used[USED_MAX];   /* not reported yet; cache->lock */
  unsigned used_count;
  int64_t used_since;
};

struct member {
  char address[ADDRESS_MAX];
  uint64_t hash;
  /* cache->lock */
  struct link *link;
  bool connecting;
  int64_t retry_at;
  bool named; /* by the present walk of the directory */
  bool left;  /* the directory: it is used as long as it is connected */
  int code;   /* of the last failure to connect */
  char reason[192], hint[192];
};

/* Where a block was last found. */
struct location {
  struct slot slot; /* key_length 0: none */
  uint64_t slot_number, link;
  unsigned member, tier;
  int64_t reported;
};

/* A request that waits for its response. */
struct call {
  struct call *next;
  uint64_t number;
  haul_peer *peer;
  struct response_key *responses;
  uint32_t count;
  bool answered;
  int code;
};

/* A name of an attached region. Each put in progress has one to itself. */
struct source_region {
  struct source_region *next;
  haul_region *region;
  uint64_t number; /* 0: not published */
  bool used;
};

struct batch;

struct haul_cache {
  haul_node *node;
  pid_t owner;
  unsigned replicas;
  int64_t connect_ns;
  char *only;
  struct member *members;
  unsigned member_room;
  _Atomic unsigned member_count; /* grows only: members keep their numbers */
  struct watch *watch;           /* NULL: no directory */

  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t next_link, next_call;
  struct call *calls;
  bool receiving; /* a thread is in haul_message_receive */
  struct location *locations;
  struct source_region *sources;
  struct batch *batches; /* unused ones */
};

/* ---- client.c ---- */

/* A name of the region for one put. HAUL_EINVAL: it is not attached. */
int source_take(struct haul_cache *cache, haul_region *region, uint64_t *number);
/* Gives it back. `withdraw`: a store may still have a request with it, and must not read what the
 * memory becomes; blocks as haul_region_unpublish. */
void source_return(struct haul_cache *cache, uint64_t number, bool withdraw);

/* A directory told of a store. For one thread at a time. */
void member_join(struct haul_cache *cache, const char *address);
void member_leave(struct haul_cache *cache, const char *address);
/* At the begin of a walk, and when it has told all entries: the others have left. */
void members_forget(struct haul_cache *cache);
void members_settle(struct haul_cache *cache);

/* ---- directory.c ---- */

/* Adds the members in the directory, and follows its changes. HAUL_ENAME: there is none. */
int watch_begin(struct haul_cache *cache, const char *directory, haul_deadline until);
/* Blocks as long as the client has been open, at most a second. */
void watch_end(struct haul_cache *cache);
void watch_free(struct watch *watch); /* in a child of fork(2), without its thread */

/* ---- link.c ---- */

/* Connects the member, unless it is or it failed a moment ago. Release with link_put. */
int link_get(struct haul_cache *cache, unsigned member, haul_deadline until, struct link **link);
void link_put(struct haul_cache *cache, struct link *link);
void link_free(struct link *link); /* the last user's */
/* The connection failed with `code` after `waited` nanoseconds, and later calls need another one.
 * After HAUL_ETIMEDOUT in less than connect_ns they keep it: the caller's deadline was short. */
void link_failed(struct haul_cache *cache, unsigned member, struct link *link, int code,
                 int64_t waited);
/* What has the blocks of a tier. */
haul_remote *link_blocks(const struct link *link, unsigned tier);
/* Whether the code tells about the connection or the store rather than about the request. */
bool is_link_failure(int code);

/* ---- call.c ---- */

/* Sends a request; then call_wait is due. Any thread that waits receives for all. */
int call_send(struct haul_cache *cache, struct call *call, const void *request, size_t length,
              haul_deadline until);
int call_wait(struct haul_cache *cache, struct call *call, haul_deadline until);

/* ---- location.c ---- */

bool location_find(struct haul_cache *cache, const void *key, size_t length,
                   struct location *location);
void location_store(struct haul_cache *cache, const struct location *location);
void location_forget(struct haul_cache *cache, const void *key, size_t length);
/* Notes the use of a block, and sends notes to the store from time to time. */
void location_used(struct haul_cache *cache, struct link *link, struct location *location);

/* ---- batch.c ---- */

enum stage { FIND, READ, VERIFY, ASK, IDLE, DONE }; /* IDLE: no step works on the key */

/* A key of a batch. */
struct want {
  struct haul_cache_item *item;
  uint64_t hash;
  enum stage stage;
  unsigned rank;    /* of the store to use next, in the order of this key */
  unsigned member;  /* that store */
  unsigned step;    /* FIND: looks at tiers of the store, from the top; then at the top again */
  uint64_t looked;  /* FIND: the link of the first of these */
  uint64_t seen;    /* FIND: the slots of the first */
  unsigned lacking; /* stores that do not have the key */
  unsigned placed;  /* stores that did as requested */
  unsigned tries;
  unsigned group;
  int away; /* code of a store that should have the key and failed */
  unsigned away_member;
  int other; /* of one after these, which has it if it was put while those were away */
  unsigned other_member;
  bool cached; /* the location is an old one */
  bool busy;   /* a slot that may be the key's was changing in each read */
  uint64_t version;
  int priority;
  uint64_t staged; /* place of a small block in the scratch memory */
  struct location location;
};

struct batch {
  struct batch *next;
  struct haul_cache *cache;
  const char *call;
  haul_deadline until;
  haul_region *scratch; /* 2 * BUCKET_BYTES for each key */
  unsigned count, members;
  struct want wants[BATCH_KEYS];
  struct link *links[HAUL_CACHE_MEMBERS_MAX];
  unsigned failures[HAUL_CACHE_MEMBERS_MAX];
  unsigned first_failed;
  bool unanswered;         /* a store may have a request whose answer is no longer waited for */
  struct haul_error error; /* of wants[first_failed] */
};

/* A step of a call on one batch. */
typedef void batch_work(struct batch *batch, void *context);

/* Divides the items into batches, works on each, and returns the first failure. */
int batch_run(struct haul_cache *cache, const char *call, struct haul_cache_item *items,
              size_t count, haul_deadline until, batch_work *work, void *context);

/* The stores of a key, best first (rendezvous hashing); `rank` below batch->members. */
unsigned batch_member(const struct batch *batch, const struct want *want, unsigned rank);
/* Sets want->member to the first store from its rank on that is connected; false: there is none. */
bool batch_choose(struct batch *batch, struct want *want);
/* Ends work on a key. want_fail also keeps the detail: of haul_error_last() if `code` came from a
 * call of haul. */
void want_done(struct want *want, int code);
void want_fail(struct batch *batch, struct want *want, int code, const char *hint,
               const char *format, ...) __attribute__((format(printf, 5, 6)));
void want_fail_library(struct batch *batch, struct want *want, int code);
/* No store has the key; if one that should have it cannot be read or reached, that is the reason.
 * If one that might have it cannot, the text says so. */
void want_fail_absent(struct batch *batch, struct want *want);
/* The connection to a member failed in what began at `began`: batch_lost once, then want_lost for
 * each key that used it. They connect again, or use the next store. */
void batch_lost(struct batch *batch, unsigned member, int code, haul_deadline began);
void want_lost(struct batch *batch, struct want *want, int code);
/* Fails all keys that are not done with HAUL_ETIMEDOUT. */
void batch_expire(struct batch *batch);
/* The deadline for one store: half of the time is left if there are `others`. */
haul_deadline share_of(haul_deadline until, bool others);
haul_deadline batch_share(const struct batch *batch);
const char *batch_address(const struct batch *batch, unsigned member);

/* ---- get.c ---- */

enum look {
  LOOK_NONE, /* the key was not in stage FIND, its store could not be read (want_lost), or has to be
                looked at again */
  LOOK_ABSENT,
  LOOK_CHANGING, /* a slot that may be the key's was changing */
  LOOK_FOUND     /* want->location is set */
};

/* Looks up the keys in stage FIND, each at want->member, to which the batch has a link. */
void batch_look(struct batch *batch, enum look looks[BATCH_KEYS]);
/* Reads the blocks of the keys in stage READ into the region, and then their sequence numbers. */
void batch_read(struct batch *batch, haul_region *to);
/* Whether batch_read has read the block of the key whole. */
bool batch_has_read(const struct batch *batch, unsigned number);

/* ---- put.c ---- */

/* A request that is the same for all its keys. */
struct ask {
  enum request_kind kind;
  uint32_t flags;
  uint64_t source; /* put */
  bool unanswered; /* put: by a store */
  int priority;
  unsigned seconds; /* pin */
};

/* What the response to a key means for it. */
typedef void answer_handler(struct batch *batch, struct want *want, int code, uint64_t version);

/* Asks for all keys in stage ASK, each at want->member, at the same time. `handle` is called for
 * keys whose store responded; for the others after want_lost. */
void batch_ask(struct batch *batch, const struct ask *ask, answer_handler *handle);

/* ---- list.c ---- */

/* Calls `each` with the locations of all whole and sound slots of a store. */
typedef int slot_visitor(void *context, const struct location *location);
int slots_visit(struct haul_cache *cache, unsigned member, haul_deadline until, slot_visitor *each,
                void *context);
void entry_of_slot(const struct location *location, struct haul_cache_entry *entry);

#endif
