/* SPDX-License-Identifier: MIT
 * A node's log. Lines are made by any thread, with any locks held. The thread that drives the loop
 * passes them to the application, without locks. */
#ifndef HAUL_CORE_LOG_H
#define HAUL_CORE_LOG_H

#include <haul/log.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/loop.h"

/* log.c has their names, levels and texts. */
enum log_event {
  LOG_CONNECTED,
  LOG_SHARED,
  LOG_LEFT,
  LOG_SILENT,
  LOG_DROPPED,
  LOG_REFUSED,
  LOG_LIMIT,
  LOG_ACCEPT,
  LOG_PATH_CLOSED, /* unavailable for this peer */
  LOG_PATH_FAILED, /* opening it failed */
  LOG_PATH_LOST,   /* it failed after it was open */
  LOG_PATH_RESTORED,
  LOG_RAIL_LOST,
  LOG_UNREGISTERED,
  LOG_REGISTERED,
  LOG_TRANSFER_FAILED,
  LOG_EVENTS
};

struct log {
  struct loop *loop;
  const char *node;
  void (*take)(void *user, const struct haul_log_line *line); /* constant, like the next two */
  void *user;
  int level; /* 0: no lines */
  _Atomic bool ended;
  _Atomic bool arming;  /* `arm` is queued */
  struct deferred arm;  /* starts the timer */
  struct timer timer;   /* reports the suppressed lines */
  pthread_mutex_t lock; /* the rest; taken last */
  struct {
    int64_t since;                /* start of the current second */
    unsigned emitted, suppressed; /* lines in it */
  } events[LOG_EVENTS];
  unsigned waiting; /* lines made and not yet passed on */
};

/* With the settings of the last haul_log_set. */
void log_open(struct log *log, struct loop *loop, const char *node);
/* Makes the last lines, for loop_run_deferred. With the loop's lock. */
void log_flush(struct log *log);
/* From now on lines are not emitted any more. */
void log_end(struct log *log);
void log_close(struct log *log);

/* A field without a key ends `fields`; those with a NULL or empty value are skipped. */
void log_write(struct log *log, enum log_event event, const struct haul_log_field *fields);

#endif
