/* SPDX-License-Identifier: MIT */
#include "core/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

#define SECOND        1000000000LL
#define LINES_WAITING 1024u /* lines */
#define FIELDS_MAX    8

static const struct {
  const char *name, *text;
  enum haul_log_level level;
} events[LOG_EVENTS] = {
    [LOG_CONNECTED] = {"connected", "a peer is there", HAUL_LOG_INFO},
    [LOG_SHARED] = {"shared", "a peer uses this node's connection", HAUL_LOG_INFO},
    [LOG_LEFT] = {"left", "a peer is gone", HAUL_LOG_INFO},
    [LOG_SILENT] = {"silent", "a peer is silent", HAUL_LOG_WARNING},
    [LOG_DROPPED] = {"dropped", "a peer broke the protocol", HAUL_LOG_WARNING},
    [LOG_REFUSED] = {"refused", "a connection was refused", HAUL_LOG_WARNING},
    [LOG_LIMIT] = {"limit", "a limit is reached", HAUL_LOG_WARNING},
    [LOG_ACCEPT] = {"accept", "connections cannot be accepted", HAUL_LOG_ERROR},
    [LOG_PATH_CLOSED] = {"path_closed", "a path is unavailable for this peer", HAUL_LOG_DEBUG},
    [LOG_PATH_FAILED] = {"path_failed", "a path could not be opened", HAUL_LOG_WARNING},
    [LOG_PATH_LOST] = {"path_lost", "a path failed", HAUL_LOG_WARNING},
    [LOG_PATH_RESTORED] = {"path_restored", "a path works again", HAUL_LOG_INFO},
    [LOG_RAIL_LOST] = {"rail_lost", "a data connection ended", HAUL_LOG_WARNING},
    [LOG_UNREGISTERED] = {"unregistered", "the directory is not up to date", HAUL_LOG_WARNING},
    [LOG_REGISTERED] = {"registered", "the directory is up to date again", HAUL_LOG_INFO},
    [LOG_TRANSFER_FAILED] = {"transfer_failed", "a transfer failed", HAUL_LOG_DEBUG},
};

/* From haul_log_set; nodes copy it when they open. */
static struct {
  pthread_mutex_t lock;
  void (*take)(void *user, const struct haul_log_line *line);
  void *user;
  int level;
} settings = {.lock = PTHREAD_MUTEX_INITIALIZER};

HAUL_API int haul_log_set(enum haul_log_level level,
                          void (*take)(void *user, const struct haul_log_line *line), void *user) {
  int code = error_enter("haul_log_set");
  if (code)
    return code;
  if (take && (level < HAUL_LOG_ERROR || level > HAUL_LOG_DEBUG))
    return error_set(HAUL_EINVAL, 0, NULL, "use HAUL_LOG_ERROR to HAUL_LOG_DEBUG", "no such level");
  pthread_mutex_lock(&settings.lock);
  settings.take = take;
  settings.user = user;
  settings.level = take ? (int)level : 0;
  pthread_mutex_unlock(&settings.lock);
  return 0;
}

struct waiting_line {
  struct deferred deferred;
  struct log *log;
  struct haul_log_line line;
  struct haul_log_field fields[FIELDS_MAX];
  char values[]; /* with their zero bytes */
};

static void line_done(struct log *log) {
  pthread_mutex_lock(&log->lock);
  log->waiting--;
  pthread_mutex_unlock(&log->lock);
}

static void call_application(struct deferred *deferred) {
  struct waiting_line *line = list_entry(deferred, struct waiting_line, deferred);
  struct log *log = line->log;
  if (!atomic_load(&log->ended))
    log->take(log->user, &line->line);
  line_done(log);
  alloc_free(line);
}

static bool is_given(const struct haul_log_field *field) {
  return field->value && field->value[0];
}

/* log->waiting counts the line already. */
static void make_line(struct log *log, enum log_event event, const struct haul_log_field *fields) {
  size_t size = 0;
  for (const struct haul_log_field *field = fields; field->key; field++)
    size += is_given(field) ? strlen(field->value) + 1 : 0;
  struct waiting_line *line = alloc_zero(1, sizeof *line + size);
  if (!line) {
    line_done(log);
    return;
  }
  char *at = line->values;
  for (const struct haul_log_field *field = fields; field->key; field++) {
    if (!is_given(field) || line->line.count == FIELDS_MAX)
      continue;
    line->fields[line->line.count++] = (struct haul_log_field){field->key, at};
    size_t length = strlen(field->value) + 1;
    memcpy(at, field->value, length);
    at += length;
  }
  line->log = log;
  line->line.level = events[event].level;
  line->line.event = events[event].name;
  line->line.text = events[event].text;
  line->line.node = log->node;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  line->line.time_ns = (int64_t)now.tv_sec * SECOND + now.tv_nsec;
  line->line.fields = line->fields;
  line->deferred.run = call_application;
  loop_defer(log->loop, &line->deferred);
}

/* Makes a line for each event that was suppressed. */
static void report_suppressed(struct log *log) {
  for (int i = 0; i < LOG_EVENTS; i++) {
    pthread_mutex_lock(&log->lock);
    unsigned suppressed = log->events[i].suppressed;
    log->events[i].suppressed = 0;
    log->waiting += suppressed > 0;
    pthread_mutex_unlock(&log->lock);
    if (suppressed == 0)
      continue;
    char number[16], reason[48];
    snprintf(number, sizeof number, "%u", suppressed);
    snprintf(reason, sizeof reason, "%u more like this", suppressed);
    make_line(log, (enum log_event)i,
              (struct haul_log_field[]){{"reason", reason}, {"more", number}, {0}});
  }
}

static void start_timer(struct deferred *deferred) {
  struct log *log = list_entry(deferred, struct log, arm);
  loop_lock(log->loop);
  if (!loop_has_ended(log->loop))
    loop_timer_start(log->loop, &log->timer, clock_now() + SECOND);
  loop_unlock(log->loop);
}

static void log_on_timer(struct timer *timer) {
  struct log *log = list_entry(timer, struct log, timer);
  atomic_store(&log->arming, false);
  report_suppressed(log);
}

/* False: the event is over its rate; the suppressed lines are counted and reported later. */
static bool log_admit(struct log *log, enum log_event event) {
  static const unsigned lines_a_second[] = {
      [HAUL_LOG_ERROR] = 1, [HAUL_LOG_WARNING] = 10, [HAUL_LOG_INFO] = 100, [HAUL_LOG_DEBUG] = 100};
  unsigned most = lines_a_second[events[event].level]; /* of an event */
  int64_t now = clock_now();
  pthread_mutex_lock(&log->lock);
  if (now - log->events[event].since >= SECOND) {
    log->events[event].since = now;
    log->events[event].emitted = 0;
  }
  bool may = log->events[event].emitted < most && log->waiting < LINES_WAITING;
  log->events[event].emitted += may;
  log->events[event].suppressed += !may;
  log->waiting += may;
  pthread_mutex_unlock(&log->lock);
  if (!may && !atomic_exchange(&log->arming, true))
    loop_defer(log->loop, &log->arm);
  return may;
}

void log_write(struct log *log, enum log_event event, const struct haul_log_field *fields) {
  if (log->level < (int)events[event].level || atomic_load(&log->ended))
    return;
  if (log_admit(log, event))
    make_line(log, event, fields);
}

void log_open(struct log *log, struct loop *loop, const char *node) {
  pthread_mutex_lock(&settings.lock);
  log->take = settings.take;
  log->user = settings.user;
  log->level = settings.level;
  pthread_mutex_unlock(&settings.lock);
  log->loop = loop;
  log->node = node;
  log->arm.run = start_timer;
  timer_init(&log->timer, log_on_timer);
  pthread_mutex_init(&log->lock, NULL);
}

void log_flush(struct log *log) {
  loop_timer_stop(&log->timer);
  report_suppressed(log);
}

void log_end(struct log *log) {
  atomic_store(&log->ended, true);
}

void log_close(struct log *log) {
  pthread_mutex_destroy(&log->lock);
}
