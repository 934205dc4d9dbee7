/* SPDX-License-Identifier: MIT
 * What the simulated programs do, what happens to them, and what must hold. A seed draws a plan:
 * how many programs, their settings, their operations, the faults. */
#ifndef HAUL_SIM_LOAD_H
#define HAUL_SIM_LOAD_H

#include <haul/haul.h>
#include <stdio.h>

#include "history.h"
#include "sim.h"

#define PROGRAMS   8
#define LANES      6 /* parts of a slot */
#define GUARD      64
#define GUARD_BYTE 0x5c

enum operation {
  WRITE,
  READ,
  ADD,
  MESSAGE,
  ORDERED,
  CANCEL,
  DROP,
  LIST,
  BATCH,       /* several transfers at once that end by callbacks */
  SCATTER,     /* a write of many segments with gaps */
  CANCEL_READ, /* after its end nothing comes any more */
  RELEASE,     /* of the local region of reads in flight */
  SILENT,      /* a connection that says nothing */
  SHARE,       /* atomics on words that all use */
  OFFER,       /* a message with a part of the local region as its payload */
  OPERATIONS
};
enum fault {
  KILL,
  POWER,
  FREEZE,
  CUT,
  CUT_ONE_WAY,
  RESET,
  MEMORY,
  DESCRIPTORS,
  CLOSE,
  SILENCE, /* a freeze, and after it a peer that loses power */
  FAULTS
};
extern const char *const fault_names[FAULTS], *const operation_names[OPERATIONS];

/* How the last program differs from all others, which have the same keys. OTHER_FIRST: it has them,
 * too, and uses the second one to connect, as while keys are replaced. */
enum stranger { NO_STRANGER, OTHER_SECRET, OTHER_NAME, NO_KEY, OTHER_FIRST, STRANGERS };

enum phase { FAULTY, QUIET, STOPPING };

/* What a client does. Some faults wait until one of the program, or of its clients, does it. */
enum amid { AMID_CONNECT, AMID_LOOKUP, AMID_OPERATION, AMIDS };

struct plan {
  unsigned programs, hosts;
  size_t lane;                 /* bytes */
  unsigned operations, faults; /* bits by enum */
  int64_t faulty_for, fault_interval;
  int64_t liveness;
  int64_t idle_rails; /* 0: the default */
  int64_t silent;     /* until a silent peer is noticed; 0: none falls silent */
  bool private_memory, wraps, caller_progress;
  bool device_memory, device_local;     /* at the emulated accelerator: what is served; buffers */
  uint64_t device_rate, device_latency; /* its bytes per second, 0: unlimited; nanoseconds */
  unsigned pause_share;                 /* of operations with a pause behind them, in a million */
  int64_t pause;                        /* the longest */
  unsigned rails, copy_threads, checksum_share;
  size_t pool;
  const char *paths;
  bool tls, plain_data, process_tls;
  enum stranger stranger;
  uint64_t key_lasts;    /* bytes until a session changes its key */
  bool withdraws;        /* programs withdraw their memory, and publish the same or new memory */
  size_t peer_bytes;     /* bounds the requests in flight; 0: the default */
  size_t message_most;   /* bytes of a message */
  size_t message_window; /* unread bytes of a peer; the largest message fits at any time */
  int64_t calm_for;      /* span without any failure at the end; 0: none */
  bool solo;             /* in calm one client acts at a time, and its node has no other events */
  unsigned shrinks;      /* of the library's bounds, in a million: core/shrinkable.h */
  size_t zero_copy;      /* bytes from which on pages are spliced; 0: the default */
};
extern struct plan plan;

/* A part of one program's memory that one other program writes to. */
struct lane {
  uint8_t *content;    /* what completed writes made of it */
  uint8_t *undefined;  /* 1: a failed write touched the byte since */
  int64_t loose_until; /* data of a dead program may still arrive until then */
  uint64_t missed;     /* an ordered message came before this write's data */
};

struct counter {
  uint64_t low;    /* additions that took place */
  uint64_t unsure; /* additions that may */
};

/* What a program has received over a connection. Messages of an earlier one may come later. */
struct inbox {
  uint64_t connection, sequence;
  uint64_t replies; /* sent back over the connection */
};
#define INBOXES 512 /* connections of one program that are remembered */

/* One program as a client of another. */
struct link {
  struct program *from, *to;
  unsigned life; /* of `to` that is connected */
  haul_peer *peer;
  haul_remote *remote;
  haul_region *local;
  uint8_t *bytes; /* of `local`: the source of writes, then as many for reads, then a result */
  uint64_t connection, sequence, generation;
  bool proven[OPERATIONS]; /* completed in the quiet phase */
  bool pathless, stale, ended;
  unsigned publication; /* of `to` that `remote` was looked up under */
  bool busy;            /* in a call with the node, which must not be closed meanwhile */
  /* When the connection ended, and when a call said so (watch.c); the process's pauses until then.
   */
  int64_t down_at, down_frozen, epeer_at, epeer_frozen;
  int64_t gone_at, gone_frozen; /* the same since the connected life of `to` has ended */
  int code;                     /* of the last operation */
  /* The last connection, if it was closed in calm: each of its messages has to come. */
  uint64_t closed_connection, closed_sequence;
};

struct program {
  unsigned number, life;
  struct host *host;
  struct process *process; /* NULL: dead */
  struct event restart;
  char addresses[2][64]; /* TCP, Unix */
  bool serves, ended;
  int64_t undriven;  /* ns in calm without its receiver, which drives a node of its caller */
  unsigned offering; /* calls of its clients */
  bool leaves;       /* closes its node amid the others' work, and opens another */
  haul_node *node;
  haul_region *region;
  uint8_t *memory;
  struct lane lanes[PROGRAMS][LANES]; /* by writer */
  struct counter counters[PROGRAMS];
  struct histories *histories; /* of shared words */
  struct inbox inboxes[PROGRAMS][INBOXES];
  unsigned next_inbox[PROGRAMS];
  struct link links[PROGRAMS];
  /* Increased once the memory is withdrawn. What it held then; NULL: never withdrawn. */
  unsigned publication;
  bool withdrawing;
  int64_t hot_until;      /* its clients hardly pause: the memory is about to be withdrawn */
  struct list withdrawal; /* waits until a client does what `amid` says */
  enum amid amid;
  uint8_t *withdrawn;
  uint64_t written, read; /* bytes of completed transfers of this node */
  uint64_t seen_out, seen_in;
};

struct load {
  struct program programs[PROGRAMS];
  enum phase phase;
  int64_t quiet_at, calm_at, stop_at;
  uint64_t done[OPERATIONS], failed[OPERATIONS], codes[64], injected[FAULTS];
  uint64_t rejections; /* of programs with another key, as must be */
};
extern struct load load;

/* Within it a node notices that a peer's life has ended; without its own pauses (watch.c). */
#define GONE_LIMIT (plan.liveness * 5 / 2 + 2 * S)

void load_draw(bool may_have_tls);
bool plan_set(const char *text); /* "programs=2"; false: no such field, or value */
void plan_print(FILE *to);       /* the fields that plan_set knows */
void load_start(void);
bool load_is_over(void);
void faults_start(void);
void faults_stop(void);
/* Some lives begin short of memory or descriptors. */
void shortage_at_start(struct program *program);

void call_begins(const struct link *link, enum amid what);
/* Up to some milliseconds, mostly much shorter: the length of a call. */
int64_t draw_moment(void);

/* The lanes that failed writes of a program that died have touched may change for a while. */
void loosen_lanes(struct program *target, unsigned writer);

void program_start(struct program *program);
void *program_main(void *program);
void *link_main(void *link);
/* Reads the payload of an offer to the program, or not. */
void on_offer(struct program *program, const struct haul_message *message);

/* The processor's address of a region's bytes, also of the emulated accelerator's. */
uint8_t *region_bytes(haul_region *region);
/* A program's key file; NULL: none. Does it lack the others' keys? */
const char *key_path(const struct program *program);
bool is_stranger(const struct program *program);
/* Do they accept each other over TCP? */
bool share_keys(const struct program *one, const struct program *other);
/* Since `calm_at` nothing disturbs: each call must succeed, and soon. */
bool is_calm(void);
/* The client that acts alone now; NULL: all do. Until when. */
const struct link *solo_link(void);
int64_t solo_until(void);
/* Have all programs' clients ended? */
bool all_links_ended(void);

/* watch.c: what must hold of a node and of connections */

void watch_start(void);
void watch_log(struct program *program);
/* The node's figures agree with each other and with what was done. */
void check_stats(struct program *program);
/* All clients of all programs have ended: nothing of their connections is left. */
void check_settled(struct program *program, size_t descriptors);
void check_leaks(const struct program *program);

/* As haul_peer_status, from outside of its process (inside.c). */
bool peer_has_ended(const haul_peer *peer);

/* Is the operation possible with this plan? */
bool operation_works(enum operation operation);

/* Where lane `index` of `writer` lies in a program's memory. */
size_t lane_offset(unsigned writer, unsigned index);
size_t counter_offset(unsigned adder);
size_t shared_offset(unsigned word);
size_t memory_size(void);
#define MESSAGE_HEAD 64
size_t draw_message(void);
/* Everything that completed writes made is there, and nothing else. */
void check_memory(const struct program *program, const char *when);
void check_lane(const struct program *program, unsigned writer, unsigned index, const char *when);

/* The time limit of a call, by the process's clock; pauses of the process do not count. */
struct limit {
  const char *call;
  int64_t until, frozen_before;
};
struct limit limit_begin(const char *call, int64_t until);
void limit_end(const struct limit *limit);

/* Calls of the world for the programs themselves. */
void *world_mmap(void *address, size_t length, int protection, int flags, int descriptor,
                 off_t offset);
int world_munmap(void *address, size_t length);
void pause_for(int64_t span);
int64_t own_clock(void);

#endif
