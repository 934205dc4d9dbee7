/* SPDX-License-Identifier: MIT
 * What may wait for a peer, connecting and looking up, is done by a few threads, so that nothing
 * that NCCL calls does. */
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define CLERKS 4

struct job {
  struct list link;
  struct comm *comm;
  uint64_t target; /* 0: connect */
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t more;
  struct list jobs;
  pthread_t threads[CLERKS];
  unsigned count;
  bool ending;
} clerks = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

/* ---- Routes ---- */

/* plugin.lock. */
static struct route *find_route(const char *address) {
  list_each(item, &plugin.routes) {
    struct route *route = list_entry(item, struct route, link);
    if (strcmp(route->address, address) == 0 && haul_peer_status(route->bytes) == 0 &&
        haul_peer_status(route->messages) == 0)
      return route;
  }
  return NULL;
}

static struct route *hold_route(const char *address) {
  pthread_mutex_lock(&plugin.lock);
  struct route *route = find_route(address);
  if (route)
    route->users++;
  pthread_mutex_unlock(&plugin.lock);
  return route;
}

static void free_route(struct route *route) {
  haul_peer_close(route->bytes);
  haul_peer_close(route->messages);
  free(route);
}

static int dial(struct route *route) {
  haul_deadline until = haul_deadline_in(SET_UP_NS);
  int code = haul_peer_connect(plugin.node, route->address, until, &route->messages);
  if (code == 0)
    code = haul_peer_connect(plugin.node, route->address, until, &route->bytes);
  return code;
}

struct route *route_take(const char *address, int *result) {
  struct route *route = hold_route(address);
  if (route)
    return route;
  route = calloc(1, sizeof *route);
  if (!route) {
    *result = NCCL_SYSTEM_ERROR;
    return NULL;
  }
  memcpy(route->address, address, sizeof route->address);
  if (dial(route)) {
    warn_of_library("cannot connect");
    *result = NCCL_REMOTE_ERROR;
    free_route(route);
    return NULL;
  }
  pthread_mutex_lock(&plugin.lock);
  struct route *other = find_route(address); /* somebody was quicker */
  struct route *taken = other ? other : route;
  taken->users++;
  if (!other)
    list_append(&plugin.routes, &route->link);
  pthread_mutex_unlock(&plugin.lock);
  if (other)
    free_route(route);
  return taken;
}

void route_give(struct route *route) {
  pthread_mutex_lock(&plugin.lock);
  bool last = --route->users == 0;
  if (last)
    list_remove(&route->link);
  pthread_mutex_unlock(&plugin.lock);
  if (last)
    free_route(route);
}

/* ---- Jobs ---- */

static int say_hello(struct comm *comm) {
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
  struct route *route = route_take(comm->address, &result);
  comm->route = route; /* nobody looks at it before the state says so */
  if (route)
    result = say_hello(comm);
  pthread_mutex_lock(&comm->lock);
  comm->failed = result;
  comm->state = result ? COMM_FAILED : COMM_READY;
  pthread_mutex_unlock(&comm->lock);
}

/* Its name, copied; false: it is forgotten meanwhile. */
static bool name_of(struct comm *comm, uint64_t id, char name[NAME_ROOM]) {
  bool found = false;
  pthread_mutex_lock(&comm->lock);
  list_each(item, &comm->targets) {
    const struct target *target = list_entry(item, struct target, link);
    if (target->id == id) {
      memcpy(name, target->name, NAME_ROOM);
      found = true;
    }
  }
  pthread_mutex_unlock(&comm->lock);
  return found;
}

static void look_up(struct comm *comm, uint64_t id) {
  char name[NAME_ROOM];
  haul_remote *remote = NULL;
  if (!name_of(comm, id, name))
    return;
  int code = haul_peer_lookup(comm->route->bytes, name, haul_deadline_in(SET_UP_NS), &remote);
  if (code && code != HAUL_ENAME) /* that it is gone is no failure by itself */
    warn_of_library("cannot reach the receiver's memory");
  pthread_mutex_lock(&comm->lock);
  list_each(item, &comm->targets) {
    struct target *target = list_entry(item, struct target, link);
    if (target->id == id && !target->remote) {
      target->remote = remote;
      target->failed = code != 0;
      remote = NULL;
    }
  }
  pthread_mutex_unlock(&comm->lock);
  haul_remote_release(remote);
}

static void run(struct job *job) {
  struct comm *comm = job->comm;
  if (job->target)
    look_up(comm, job->target);
  else
    connect_comm(comm);
  free(job);
  pthread_mutex_lock(&comm->lock);
  comm->jobs--;
  pthread_cond_broadcast(&comm->quiet);
  pthread_mutex_unlock(&comm->lock);
}

static void *work(void *unused) {
  (void)unused;
  pthread_mutex_lock(&clerks.lock);
  for (;;) {
    while (list_empty(&clerks.jobs) && !clerks.ending)
      pthread_cond_wait(&clerks.more, &clerks.lock);
    if (list_empty(&clerks.jobs))
      break;
    struct job *job = list_entry(clerks.jobs.next, struct job, link);
    list_remove(&job->link);
    pthread_mutex_unlock(&clerks.lock);
    run(job);
    pthread_mutex_lock(&clerks.lock);
  }
  pthread_mutex_unlock(&clerks.lock);
  return NULL;
}

static bool give(struct comm *comm, uint64_t target) {
  struct job *job = calloc(1, sizeof *job);
  if (!job)
    return false;
  *job = (struct job){.comm = comm, .target = target};
  pthread_mutex_lock(&comm->lock);
  comm->jobs++;
  pthread_mutex_unlock(&comm->lock);
  pthread_mutex_lock(&clerks.lock);
  list_append(&clerks.jobs, &job->link);
  pthread_cond_signal(&clerks.more);
  pthread_mutex_unlock(&clerks.lock);
  return true;
}

void clerk_connect(struct comm *comm) {
  if (give(comm, 0))
    return;
  pthread_mutex_lock(&comm->lock);
  comm->failed = NCCL_SYSTEM_ERROR;
  comm->state = COMM_FAILED;
  pthread_mutex_unlock(&comm->lock);
}

void clerk_look_up(struct comm *comm, uint64_t target) {
  if (!give(comm, target))
    comm_fail(comm, NCCL_SYSTEM_ERROR);
}

int clerks_open(void) {
  list_init(&clerks.jobs);
  clerks.ending = false;
  for (clerks.count = 0; clerks.count < CLERKS; clerks.count++)
    if (pthread_create(&clerks.threads[clerks.count], NULL, work, NULL) != 0)
      break;
  return clerks.count > 0 ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

/* No comm is left, so no job either. */
void clerks_close(void) {
  pthread_mutex_lock(&clerks.lock);
  clerks.ending = true;
  pthread_cond_broadcast(&clerks.more);
  pthread_mutex_unlock(&clerks.lock);
  for (unsigned i = 0; i < clerks.count; i++)
    pthread_join(clerks.threads[i], NULL);
  clerks.count = 0;
}
