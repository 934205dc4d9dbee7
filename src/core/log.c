/* SPDX-License-Identifier: MIT */
#include "core/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

#define SECOND     1000000000LL
#define WARNINGS   10u /* of an event, a second */
#define OTHERS     100u
#define WAITING    1024u /* lines */
#define FIELDS_MAX 8

static const struct {
  const char *name, *text;
  enum haul_log_level level;
} events[LOG_EVENTS] = {
    [LOG_CONNECTED] = {"connected", "a peer is there", HAUL_LOG_INFO},
    [LOG_LEFT] = {"left", "a peer is gone", HAUL_LOG_INFO},
    [LOG_DROPPED] = {"dropped", "a peer broke the protocol", HAUL_LOG_WARNING},
    [LOG_REFUSED] = {"refused", "a connection was refused", HAUL_LOG_WARNING},
    [LOG_LIMIT] = {"limit", "a limit is reached", HAUL_LOG_WARNING},
    [LOG_ACCEPT] = {"accept", "connections cannot be accepted", HAUL_LOG_ERROR},
    [LOG_PATH_CLOSED] = {"path_closed", "a path is not there for this peer", HAUL_LOG_DEBUG},
    [LOG_PATH_FAILED] = {"path_failed", "a path could not be opened", HAUL_LOG_WARNING},
    [LOG_PATH_LOST] = {"path_lost", "a path was given up", HAUL_LOG_WARNING},
    [LOG_RAIL_LOST] = {"rail_lost", "a data connection ended", HAUL_LOG_WARNING},
    [LOG_UNREGISTERED] = {"unregistered", "the directory is not up to date", HAUL_LOG_WARNING},
    [LOG_REGISTERED] = {"registered", "the directory is up to date again", HAUL_LOG_INFO},
    [LOG_TRANSFER_FAILED] = {"transfer_failed", "a transfer failed", HAUL_LOG_DEBUG},
};

/* What nodes are opened with. */
static struct {
  pthread_mutex_t lock;
  void (*take)(void *user, const struct haul_log_line *line);
  void *user;
  int level;
} wanted = {.lock = PTHREAD_MUTEX_INITIALIZER};

HAUL_API int haul_log_set(enum haul_log_level level,
                          void (*take)(void *user, const struct haul_log_line *line), void *user) {
  int code = error_enter("haul_log_set");
  if (code)
    return code;
  if (take && (level < HAUL_LOG_ERROR || level > HAUL_LOG_DEBUG))
    return error_set(HAUL_EINVAL, 0, NULL, "HAUL_LOG_ERROR to HAUL_LOG_DEBUG", "no such level");
  pthread_mutex_lock(&wanted.lock);
  wanted.take = take;
  wanted.user = user;
  wanted.level = take ? (int)level : 0;
  pthread_mutex_unlock(&wanted.lock);
  return 0;
}

/* ---- Lines ---- */

struct waiting_line {
  struct deferred deferred;
  struct log *log;
  struct haul_log_line line;
  struct haul_log_field fields[FIELDS_MAX];
  char values[]; /* with their zero bytes */
};

static void told(struct log *log) {
  pthread_mutex_lock(&log->lock);
  log->waiting--;
  pthread_mutex_unlock(&log->lock);
}

static void call_taker(struct deferred *deferred) {
  struct waiting_line *line = list_entry(deferred, struct waiting_line, deferred);
  struct log *log = line->log;
  if (!atomic_load(&log->ended))
    log->take(log->user, &line->line);
  told(log);
  alloc_free(line);
}

static int64_t wall_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

static bool is_given(const struct haul_log_field *field) {
  return field->value && field->value[0];
}

/* It counts in `waiting` already. */
static void make_line(struct log *log, enum log_event event, const struct haul_log_field *fields) {
  size_t size = 0;
  for (const struct haul_log_field *field = fields; field->key; field++)
    size += is_given(field) ? strlen(field->value) + 1 : 0;
  struct waiting_line *line = alloc_zero(1, sizeof *line + size);
  if (!line) {
    told(log);
    return;
  }
  char *at = line->values;
  for (const struct haul_log_field *field = fields; field->key; field++) {
    if (!is_given(field) || line->line.count == FIELDS_MAX)
      continue;
    line->fields[line->line.count++] = (struct haul_log_field){field->key, at};
    at = stpcpy(at, field->value) + 1;
  }
  line->log = log;
  line->line.level = events[event].level;
  line->line.event = events[event].name;
  line->line.text = events[event].text;
  line->line.node = log->node;
  line->line.time_ns = wall_clock();
  line->line.fields = line->fields;
  line->deferred.run = call_taker;
  loop_defer(log->loop, &line->deferred);
}

/* ---- No more than anybody reads ---- */

static void make_more(struct log *log, enum log_event event, unsigned count) {
  char number[16], reason[48];
  snprintf(number, sizeof number, "%u", count);
  snprintf(reason, sizeof reason, "%u more like this", count);
  make_line(log, event, (struct haul_log_field[]){{"reason", reason}, {"more", number}, {0}});
}

/* Of each event how many went beyond what is told. */
static void tell_more(struct log *log) {
  for (int i = 0; i < LOG_EVENTS; i++) {
    pthread_mutex_lock(&log->lock);
    unsigned beyond = log->events[i].beyond;
    log->events[i].beyond = 0;
    log->waiting += beyond > 0;
    pthread_mutex_unlock(&log->lock);
    if (beyond > 0)
      make_more(log, (enum log_event)i, beyond);
  }
}

static void set_timer(struct deferred *deferred) {
  struct log *log = list_entry(deferred, struct log, arm);
  loop_lock(log->loop);
  if (!loop_has_ended(log->loop))
    loop_timer_start(log->loop, &log->timer, clock_now() + SECOND);
  loop_unlock(log->loop);
}

static void on_timer(struct timer *timer) {
  struct log *log = list_entry(timer, struct log, timer);
  atomic_store(&log->arming, false);
  tell_more(log);
}

/* False: enough was said of it, and what was beyond is told when the second is over. */
static bool may_tell(struct log *log, enum log_event event) {
  unsigned most = events[event].level <= HAUL_LOG_WARNING ? WARNINGS : OTHERS;
  int64_t now = clock_now();
  pthread_mutex_lock(&log->lock);
  if (now - log->events[event].since >= SECOND) {
    log->events[event].since = now;
    log->events[event].told = 0;
  }
  bool may = log->events[event].told < most && log->waiting < WAITING;
  log->events[event].told += may;
  log->events[event].beyond += !may;
  log->waiting += may;
  pthread_mutex_unlock(&log->lock);
  if (!may && !atomic_exchange(&log->arming, true))
    loop_defer(log->loop, &log->arm);
  return may;
}

void log_write(struct log *log, enum log_event event, const struct haul_log_field *fields) {
  if (log->level < (int)events[event].level || atomic_load(&log->ended))
    return;
  if (may_tell(log, event))
    make_line(log, event, fields);
}

/* ---- Its life ---- */

void log_open(struct log *log, struct loop *loop, const char *node) {
  pthread_mutex_lock(&wanted.lock);
  log->take = wanted.take;
  log->user = wanted.user;
  log->level = wanted.level;
  pthread_mutex_unlock(&wanted.lock);
  log->loop = loop;
  log->node = node;
  log->arm.run = set_timer;
  timer_init(&log->timer, on_timer);
  pthread_mutex_init(&log->lock, NULL);
}

void log_flush(struct log *log) {
  loop_timer_stop(&log->timer);
  tell_more(log);
}

void log_end(struct log *log) {
  atomic_store(&log->ended, true);
}

void log_close(struct log *log) {
  pthread_mutex_destroy(&log->lock);
}
