/* SPDX-License-Identifier: MIT
 * Worker threads for calls that block, connect and lookup, so that NCCL's calls never do; and the
 * connections to nodes (routes) that they open. */
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define WORKERS 4

struct job {
  struct list link;
  struct comm *comm;
  uint64_t target; /* 0: connect */
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t more;
  struct list jobs;
  pthread_t threads[WORKERS];
  unsigned count;
  bool ending;
} workers = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

/* With plugin.lock. A route whose peers are gone does not count. */
static struct route *route_find(const char *address) {
  list_each(item, &plugin.routes) {
    struct route *route = list_entry(item, struct route, link);
    if (strcmp(route->address, address) == 0 && haul_peer_status(route->bytes) == 0 &&
        haul_peer_status(route->messages) == 0)
      return route;
  }
  return NULL;
}

static struct route *route_reuse(const char *address) {
  pthread_mutex_lock(&plugin.lock);
  struct route *route = route_find(address);
  if (route)
    route->users++;
  pthread_mutex_unlock(&plugin.lock);
  return route;
}

static void route_free(struct route *route) {
  haul_peer_close(route->bytes);
  haul_peer_close(route->messages);
  free(route);
}

static struct route *route_acquire(const char *address, int *result) {
  struct route *route = route_reuse(address);
  if (route)
    return route;
  route = calloc(1, sizeof *route);
  if (!route) {
    *result = NCCL_SYSTEM_ERROR;
    return NULL;
  }
  memcpy(route->address, address, sizeof route->address);
  haul_deadline until = haul_deadline_in(SET_UP_NS);
  if (haul_peer_connect(plugin.node, address, until, &route->messages) ||
      haul_peer_connect(plugin.node, address, until, &route->bytes)) {
    warn_library("cannot connect");
    *result = NCCL_REMOTE_ERROR;
    route_free(route);
    return NULL;
  }
  pthread_mutex_lock(&plugin.lock);
  struct route *other = route_find(address); /* opened by another thread meanwhile */
  struct route *taken = other ? other : route;
  taken->users++;
  if (!other)
    list_append(&plugin.routes, &route->link);
  pthread_mutex_unlock(&plugin.lock);
  if (other)
    route_free(route);
  return taken;
}

void route_release(struct route *route) {
  pthread_mutex_lock(&plugin.lock);
  bool last = --route->users == 0;
  if (last)
    list_remove(&route->link);
  pthread_mutex_unlock(&plugin.lock);
  if (last)
    route_free(route);
}

static int send_hello(struct comm *comm) {
  haul_deadline until = haul_deadline_in(SET_UP_NS);
  int code;
  do
    code = message_hello(comm);
  while (code == 1 && haul_deadline_in(0) < until &&
         haul_node_progress(plugin.node, haul_deadline_in(1000000)) >= 0);
  return code ? NCCL_REMOTE_ERROR : NCCL_SUCCESS;
}

static void connect_comm(struct comm *comm) {
  int result = NCCL_SUCCESS;
  struct route *route = route_acquire(comm->address, &result);
  comm->route = route; /* published by the state below */
  if (route)
    result = send_hello(comm);
  pthread_mutex_lock(&comm->lock);
  comm->failed = result;
  comm->state = result ? COMM_FAILED : COMM_READY;
  pthread_mutex_unlock(&comm->lock);
}

/* Copies the name of a target; false if the receiver has deregistered it. */
static bool target_name(struct comm *comm, uint64_t id, char name[NAME_ROOM]) {
  pthread_mutex_lock(&comm->lock);
  const struct target *target = target_find(comm, id);
  if (target)
    memcpy(name, target->name, NAME_ROOM);
  pthread_mutex_unlock(&comm->lock);
  return target;
}

static void run_lookup(struct comm *comm, uint64_t id) {
  char name[NAME_ROOM];
  haul_remote *remote = NULL;
  if (!target_name(comm, id, name))
    return;
  int code = haul_peer_lookup(comm->route->bytes, name, haul_deadline_in(SET_UP_NS), &remote);
  if (code && code != HAUL_ENAME) /* deregistered meanwhile: no failure yet */
    warn_library("cannot reach the receiver's memory");
  pthread_mutex_lock(&comm->lock);
  struct target *target = target_find(comm, id);
  if (target && !target->remote) {
    target->remote = remote;
    target->failed = code != 0;
    remote = NULL;
  }
  pthread_mutex_unlock(&comm->lock);
  haul_remote_release(remote);
}

static void worker_run(struct job *job) {
  struct comm *comm = job->comm;
  if (job->target)
    run_lookup(comm, job->target);
  else
    connect_comm(comm);
  free(job);
  pthread_mutex_lock(&comm->lock);
  comm->jobs--;
  pthread_cond_broadcast(&comm->idle);
  pthread_mutex_unlock(&comm->lock);
}

static void *worker_main(void *unused) {
  (void)unused;
  pthread_mutex_lock(&workers.lock);
  for (;;) {
    while (list_empty(&workers.jobs) && !workers.ending)
      pthread_cond_wait(&workers.more, &workers.lock);
    if (list_empty(&workers.jobs))
      break;
    struct job *job = list_entry(workers.jobs.next, struct job, link);
    list_remove(&job->link);
    pthread_mutex_unlock(&workers.lock);
    worker_run(job);
    pthread_mutex_lock(&workers.lock);
  }
  pthread_mutex_unlock(&workers.lock);
  return NULL;
}

static bool worker_submit(struct comm *comm, uint64_t target) {
  struct job *job = calloc(1, sizeof *job);
  if (!job)
    return false;
  *job = (struct job){.comm = comm, .target = target};
  pthread_mutex_lock(&comm->lock);
  comm->jobs++;
  pthread_mutex_unlock(&comm->lock);
  pthread_mutex_lock(&workers.lock);
  list_append(&workers.jobs, &job->link);
  pthread_cond_signal(&workers.more);
  pthread_mutex_unlock(&workers.lock);
  return true;
}

void worker_connect(struct comm *comm) {
  if (worker_submit(comm, 0))
    return;
  pthread_mutex_lock(&comm->lock);
  comm->failed = NCCL_SYSTEM_ERROR;
  comm->state = COMM_FAILED;
  pthread_mutex_unlock(&comm->lock);
}

void worker_look_up(struct comm *comm, uint64_t target) {
  if (!worker_submit(comm, target))
    comm_fail(comm, NCCL_SYSTEM_ERROR);
}

int workers_open(void) {
  list_init(&workers.jobs);
  workers.ending = false;
  for (workers.count = 0; workers.count < WORKERS; workers.count++)
    if (pthread_create(&workers.threads[workers.count], NULL, worker_main, NULL) != 0)
      break;
  return workers.count > 0 ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

/* After the last comm, so without jobs. */
void workers_close(void) {
  pthread_mutex_lock(&workers.lock);
  workers.ending = true;
  pthread_cond_broadcast(&workers.more);
  pthread_mutex_unlock(&workers.lock);
  for (unsigned i = 0; i < workers.count; i++)
    pthread_join(workers.threads[i], NULL);
  workers.count = 0;
}
