/* SPDX-License-Identifier: MIT
 * The threads that answer the kernel. */
#ifndef HAUL_STORAGE_MOUNT_LOOP_H
#define HAUL_STORAGE_MOUNT_LOOP_H

#include <pthread.h>
#include <signal.h>

struct fuse_session;

#define LOOP_THREADS 16

struct loop {
  struct fuse_session *session;
  int ended;               /* an eventfd: one of them has, since the file system is unmounted */
  struct sigaction before; /* of the signal that it uses, SIGUSR1 */
  pthread_t threads[LOOP_THREADS];
  unsigned count;
};

/* A negative errno value: nothing runs. */
int loop_start(struct loop *loop, struct fuse_session *session);
/* What is under way is ended first. -ETIMEDOUT: a thread does not come back from the disk; then
 * nothing that it uses may be freed. */
int loop_end(struct loop *loop);

#endif
