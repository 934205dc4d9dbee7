/* SPDX-License-Identifier: MIT
 * Shared declarations of worker.c (rings and turns), operation.c (reads and writes), offload.c
 * (threads for blocking calls) and submit.c (waking). Only the worker's own thread uses its
 * structs, unless a comment says otherwise. */
#ifndef HAUL_STORAGE_WORKER_INTERNAL_H
#define HAUL_STORAGE_WORKER_INTERNAL_H

#include <liburing.h>
#include <pthread.h>

#include "storage/source.h"
#include "storage/util.h"
#include "storage/worker.h"

#define OPERATIONS   1024u             /* of a worker, and as many parts */
#define BOUNCE_BYTES ((size_t)1 << 20) /* as libhaul's bounce buffers */
#define BOUNCES      32u               /* of a worker, for all operations on device memory */

/* Offloading. Threads for blocking calls of workers: copies between bounce buffers and devices,
 * reads past host memory, and I/O on remote files. */

struct offload;

enum offload_kind { OFFLOAD_COPY, OFFLOAD_FILE, OFFLOAD_READ, OFFLOAD_WRITE, OFFLOAD_RELEASE };

/* Stays the caller's, in place until `done`. */
struct offload_job {
  struct list link;
  enum offload_kind kind;
  size_t length;
  /* FILE: reads to `to` from `offset` on. */
  haul_file *reader;
  uint64_t direct; /* filled: bytes that passed no host memory */
  /* COPY: */
  haul_region *to, *from;
  uint64_t to_offset, from_offset;
  struct buffer *buffer; /* RELEASE, which puts the references to it and `remote`; NULL: none */
  /* READ, WRITE: */
  struct remote_file *remote;
  char *bytes;                  /* NULL: `memory` */
  struct source_memory *memory; /* device memory, with `move`, which is filled */
  struct source_move move;
  off_t offset;
  int flags;                  /* of a write: RWF_... */
  off_t hole_from, hole_end;  /* a read fails with ENODATA if there is a hole between; 0: it may */
  struct sigbus_watch *watch; /* over `bytes`; NULL: memory of this process */

  void (*done)(struct offload_job *job); /* in the offload thread */
  void *context;
  ssize_t result; /* bytes, of COPY 0; or a negative errno value */
};

/* 0 or a negative errno value. */
int offload_open(unsigned threads, struct offload **offload);
/* Before the first job: where the way into device memory is logged. */
void offload_log(struct offload *offload, storage_log *log, void *user);
/* After the last job. */
void offload_close(struct offload *offload);
void offload_post(struct offload *offload, struct offload_job *job);
/* What a RELEASE does. */
void offload_release(const struct offload_job *job);
/* Reads and writes that have not begun end with ECANCELED from now on: each could wait for its
 * whole deadline if the server does not respond. */
void offload_cancel_remote(struct offload *offload);

/* A read or write of a ring. It has one part for host memory, one per bounce buffer for device
 * memory, and parts of that size for a remote file, whose source needs no bounce buffer here, and
 * for reads into device memory past host memory. */
struct operation {
  struct list link; /* the free ones, or those that are not yet wholly in parts */
  struct client_ring *ring;
  struct file *file;
  struct remote_file *remote; /* NULL: the file is local */
  struct buffer *buffer;
  uint64_t userdata;
  uint64_t buffer_offset, offset; /* the latter in the file */
  uint64_t requested;             /* bytes */
  uint64_t length;                /* shorter once a part has ended early */
  uint64_t divided;               /* bytes that are in parts */
  uint64_t end;                   /* in the file, by the parts that have ended so far */
  int code;                       /* why it ends there; 0: end of the file, or complete */
  uint32_t parts;                 /* in flight */
  int32_t index;
};

struct bounce {
  struct list link;
  haul_region *region;
  char *address;
};

struct part {
  struct list link; /* the free ones */
  struct operation *operation;
  struct bounce *bounce; /* NULL: the client's memory itself */
  haul_file *reader;     /* of the file, for device memory without bounce buffers; else NULL */
  uint64_t buffer_offset, offset, left, done;
  bool direct;
  struct offload_job job;
};

/* A worker's I/O in flight of one priority. */
struct share {
  unsigned operations;
  uint64_t bytes;
};

struct worker {
  struct workers *workers;
  pthread_t thread;
  struct io_uring uring;
  struct pinned pinned;
  int wake_event; /* eventfd, any thread */
  _Atomic bool asleep, stopping;
  pthread_mutex_t lock;      /* guards the next two; no lock is taken after it */
  struct list new_rings;     /* struct client_ring */
  struct list finished_jobs; /* struct offload_job */
  _Atomic unsigned load;     /* the number of its rings */
  struct list rings[RING_PRIORITIES];
  struct list free_operations, free_parts, free_bounces;
  struct list dividing; /* operations that are not yet wholly in parts, by priority */
  struct share shares[RING_PRIORITIES];
  unsigned bounce_count, in_flight, turns;
  int64_t time;                              /* of this turn, CLOCK_MONOTONIC in nanoseconds */
  struct ring_poller for_clients, for_disks; /* waits without and with operations in flight */
  struct operation *operations;
  struct part *parts;
};

struct submit_semaphore;

struct workers {
  _Atomic int64_t last_used[RING_PRIORITIES]; /* when an operation of it began; 0: never */
  struct files *files;
  struct buffers *buffers;
  struct offload *offload;
  unsigned count;
  _Atomic uint32_t sleepers; /* a futex: woken when it becomes more than 0 */
  _Atomic(struct submit_semaphore *) semaphores[RING_PRIORITIES]; /* NULL: not open */
  struct workers_counters counters;
  struct worker each[];
};

static inline void counter_add(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* worker.c: a submission queue entry; submits the queue if it is full. */
struct io_uring_sqe *worker_get_sqe(struct worker *worker);
/* worker.c: a ring of a higher priority was used in the last second. */
bool worker_yields(const struct worker *worker, uint8_t priority);
/* worker.c, any thread: wakes the worker for what the caller has queued under its lock. */
void worker_wake(struct worker *worker);
/* worker.c, any thread: the sleeping workers poll their rings. False: none slept. */
bool workers_wake(struct workers *workers);

/* submit.c: takes all posts of the semaphores. False: there was none. */
bool submit_take_posts(struct workers *workers);

int operations_open(struct worker *worker);
void operations_close(struct worker *worker);
/* Takes a free operation, of which there is one. */
void operation_begin(struct worker *worker, struct client_ring *ring,
                     const struct ring_operation *request);
/* io_uring, or an offload thread, has ended a read or write of a part. */
void part_ended_io(struct worker *worker, struct part *part, int result);
/* Continues operations that waited for parts, bounce buffers or offload threads. True: it did
 * something. */
bool operations_turn(struct worker *worker);

#endif
