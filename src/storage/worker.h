/* SPDX-License-Identifier: MIT
 * Workers: threads with an io_uring each, which do the operations of clients' rings; and the
 * semaphores by which clients wake them.
 *
 * A worker with work polls its rings in every turn, and for a while afterwards (haul/usrbio.h).
 * Then it announces that it sleeps, polls its rings once more, and sleeps in io_uring until an I/O
 * ends or it is woken (workers_wake). Both sides change `sleepers` with an atomic
 * read-modify-write, which has one total order: either the waker comes second and finds the
 * sleeper, or it comes first and the worker, whose change reads the waker's, sees the submissions
 * that the waker knew of. */
#ifndef HAUL_STORAGE_WORKER_H
#define HAUL_STORAGE_WORKER_H

#include "storage/buffers.h"
#include "storage/files.h"
#include "storage/ring.h"
#include "storage/util.h"

struct workers;
struct worker;

/* A ring and its owner. From workers_add on the ring is its worker's alone. */
struct client_ring {
  struct ring ring;
  uid_t uid;
  enum file_direction direction;
  uint8_t priority; /* enum ring_priority */
  bool no_holes, durable;
  struct worker *worker;
  struct list link;            /* the worker's */
  _Atomic bool removed;        /* nothing is fetched from it any more */
  _Atomic unsigned references; /* the owner's, and the worker's */
};

/* Creates a ring with one reference; on success takes the mapping. 0 or a negative errno value. */
int client_ring_new(const struct iov_name *name, uid_t uid, const struct client_memory *memory,
                    struct client_ring **ring);
void client_ring_put(struct client_ring *ring);

struct workers_counters {
  _Atomic uint64_t operations, direct, failed;
  _Atomic uint64_t bytes, staged, remote; /* in all; through bounce buffers; of remote files */
  /* Operations through the page cache: the file system has no O_DIRECT, or the range is not aligned
   * for it. */
  _Atomic uint64_t buffered_file, buffered_alignment;
  _Atomic uint64_t unpinned; /* operations on buffers that the kernel did not pin */
  /* Remote files and device memory: bytes that passed no host memory of this host; registrations
   * of buffers, and moves that found one. */
  _Atomic uint64_t device_direct, registrations, registration_hits;
};

/* `count` threads, and `offload_threads` for blocking calls. 0 or a negative errno value. */
int workers_open(struct files *files, struct buffers *buffers, unsigned count,
                 unsigned offload_threads, struct workers **workers);
/* Before the first ring: where the way into device memory is logged. */
void workers_log(struct workers *workers, storage_log *log, void *user);
/* Blocks until the operations in flight have ended. The rings stay their owners'. */
void workers_close(struct workers *workers);

/* Takes a reference. */
void workers_add(struct workers *workers, struct client_ring *ring);
/* Ends fetching. The worker drops its reference after the operations in flight. */
void workers_remove(struct client_ring *ring);

/* Buffers were removed: the workers unpin them. */
void workers_unpin_removed(struct workers *workers);
const struct workers_counters *workers_counters(const struct workers *workers);

/* Submit semaphores. One for each priority, in /dev/shm, where clients post it after they have
 * submitted; and a thread that waits for it while a worker sleeps. */

struct submit_semaphore;

/* `others`: every user may post it, else only the daemon's. 0 or a negative errno value. */
int submit_semaphore_open(struct workers *workers, enum ring_priority priority, bool others,
                          struct submit_semaphore **semaphore);
/* Ends its thread. To be called before workers_close, and close after it, as workers read
 * the semaphore. */
void submit_semaphore_stop(struct submit_semaphore *semaphore);
void submit_semaphore_close(struct submit_semaphore *semaphore);
/* Removes the files that killed daemons of this user left behind. */
void submit_semaphore_sweep(void);
const char *submit_semaphore_path(const struct submit_semaphore *semaphore);

#endif
