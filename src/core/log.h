/* SPDX-License-Identifier: MIT
 * What a node tells who runs it. From any thread, with whatever locks: the line is made, and the
 * application is called by who drives the loop, without any. */
#ifndef HAUL_CORE_LOG_H
#define HAUL_CORE_LOG_H

#include <haul/log.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/loop.h"

/* The table in log.c says their names, levels and words. */
enum log_event {
  LOG_CONNECTED,
  LOG_LEFT,
  LOG_DROPPED,
  LOG_REFUSED,
  LOG_LIMIT,
  LOG_ACCEPT,
  LOG_PATH_CLOSED, /* for this peer it is none */
  LOG_PATH_FAILED, /* it could not be opened */
  LOG_PATH_LOST,   /* it was open */
  LOG_RAIL_LOST,
  LOG_UNREGISTERED,
  LOG_REGISTERED,
  LOG_TRANSFER_FAILED,
  LOG_EVENTS
};

struct log {
  struct loop *loop;
  const char *node;
  void (*take)(void *user, const struct haul_log_line *line); /* constant, as the next two */
  void *user;
  int level; /* 0: nobody is told */
  _Atomic bool ended;
  _Atomic bool arming;  /* `arm` is on its way */
  struct deferred arm;  /* sets the timer */
  struct timer timer;   /* tells how many more there were */
  pthread_mutex_t lock; /* the rest; taken last */
  struct {
    int64_t since;         /* a second from then on */
    unsigned told, beyond; /* in it */
  } events[LOG_EVENTS];
  unsigned waiting; /* lines that were made and not taken */
};

/* As haul_log_set said last. */
void log_open(struct log *log, struct loop *loop, const char *node);
/* The last lines are made, to be taken by loop_run_deferred; with the loop's lock. */
void log_flush(struct log *log);
/* From now on lines are not told any more. */
void log_end(struct log *log);
void log_close(struct log *log);

/* `fields` end with one without a key; those without a value, or an empty one, are left out. */
void log_write(struct log *log, enum log_event event, const struct haul_log_field *fields);

#endif
