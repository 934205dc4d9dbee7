/* SPDX-License-Identifier: MIT */
#include "node.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"

/* Memory of a GPU that can be shared takes 2 MiB at least: programs with thousands of small
 * allocations would run out of it. */
#define MINIMUM ((size_t)1 << 20)

_Thread_local bool inside_haul;

/* Constant once main runs. */
static size_t minimum = MINIMUM;
static const char *bad_minimum, *bad_rights; /* what was set and is not understood */
static const char *prefix;
static unsigned rights = HAUL_READ;

/* 1 here and 0 in every child that is forked from then on, as the kernel wipes the page. */
static _Atomic(volatile unsigned char *) mark;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the opening, once there is a mark */
static _Atomic(haul_node *) node;
static char failure[256];
/* Why peers find nothing here; empty: they do. Constant once there is a node. */
static char unreachable[400];

/* ---- Settings ---- */

/* One that is empty is not set. */
static const char *setting(const char *variable) {
  const char *text = getenv(variable);
  return text && *text ? text : NULL;
}

static bool is_bytes(const char *text, size_t *bytes) {
  char *end;
  errno = 0;
  *bytes = (size_t)strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && !*end && errno == 0;
}

static void read_minimum(const char *text) {
  size_t bytes;
  if (text && is_bytes(text, &bytes))
    minimum = bytes;
  else
    bad_minimum = text;
}

static void read_rights(const char *text) {
  if (text && strcmp(text, "rw") == 0)
    rights = HAUL_READ | HAUL_WRITE;
  else if (text && strcmp(text, "r") != 0)
    bad_rights = text;
}

/* Every program that is started with the hook comes here: nothing but reading. */
static __attribute__((constructor)) void read_settings(void) {
  read_minimum(setting("HAUL_CUDAHOOK_MINIMUM"));
  read_rights(setting("HAUL_CUDAHOOK_RIGHTS"));
  prefix = setting("HAUL_CUDAHOOK_PUBLISH");
}

void node_tell_settings(void) {
  static atomic_flag told = ATOMIC_FLAG_INIT;
  const struct record record = {.call = "settings", .device = -1};
  if (atomic_flag_test_and_set(&told))
    return;
  if (bad_minimum)
    log_trouble(&record,
                "HAUL_CUDAHOOK_MINIMUM=%s is no number of bytes: it is %zu (hint: digits alone)",
                bad_minimum, minimum);
  if (bad_rights)
    log_trouble(&record,
                "HAUL_CUDAHOOK_RIGHTS=%s is neither r nor rw: it is r (hint: with rw peers may "
                "write)",
                bad_rights);
}

size_t node_minimum(void) {
  return minimum;
}

bool node_next_name(char *name, size_t size, unsigned *allowed) {
  static _Atomic unsigned number;
  if (!prefix)
    return false;
  *allowed = rights;
  snprintf(name, size, "%s.%u", prefix, atomic_fetch_add(&number, 1));
  return true;
}

const char *node_unreachable(void) {
  return *unreachable ? unreachable : NULL;
}

/* ---- Forks ---- */

bool is_forked_child(void) {
  const volatile unsigned char *page = atomic_load_explicit(&mark, memory_order_acquire);
  return page && *page == 0;
}

/* Before any lock is taken, so that a child of a process without a mark starts afresh. */
static bool make_mark(void) {
  volatile unsigned char *first = NULL;
  size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
  if (atomic_load(&mark))
    return true;
  unsigned char *page =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return false;
  *page = 1;
  if (madvise(page, bytes, MADV_WIPEONFORK) == 0 &&
      atomic_compare_exchange_strong(&mark, &first, page))
    return true;
  munmap(page, bytes);
  return first != NULL;
}

/* ---- Opening ---- */

/* The first "%p" becomes the process's number: all processes of a job have one environment. */
static void expand(const char *text, char *to, size_t size) {
  const char *at = strstr(text, "%p");
  if (at)
    snprintf(to, size, "%.*s%d%s", (int)(at - text), text, (int)getpid(), at + 2);
  else
    snprintf(to, size, "%s", text);
}

/* What mends it here; haul's own hint is for who opens a node himself. */
static const char *hint_of(const struct haul_error *error, const char *wanted) {
  if (error->code == HAUL_EINSECURE)
    return "HAUL_CUDAHOOK_INSECURE=1 on a network that you trust";
  if (error->system == EADDRINUSE && !strstr(wanted, "%p"))
    return "%p in HAUL_CUDAHOOK_LISTEN becomes the process's number; of tcp, port 0 is a free one";
  return error->hint;
}

/* Memory is served also by a node that nobody can reach. */
static void listen_there(haul_node *made, const char *wanted) {
  const struct record record = {.call = "haul_node_listen", .device = -1};
  char address[160];
  expand(wanted, address, sizeof address);
  if (haul_node_listen(made, address) != 0) {
    const struct haul_error *error = haul_error_last();
    snprintf(unreachable, sizeof unreachable, "not listening on %s: %s", address, error->text);
    log_trouble(&record, "%s (hint: %s)", unreachable, hint_of(error, wanted));
  } else if (haul_node_address(made, 0, address, sizeof address) == 0) {
    log_record(&record, "listening on %s", address);
  }
}

static void listen_nowhere(void) {
  const struct record record = {.call = "settings", .device = -1};
  snprintf(unreachable, sizeof unreachable, "HAUL_CUDAHOOK_LISTEN is not set");
  if (prefix)
    log_trouble(&record,
                "HAUL_CUDAHOOK_PUBLISH=%s: nobody can reach it, as %s (hint: "
                "HAUL_CUDAHOOK_LISTEN=unix:///tmp/haul.%%p)",
                prefix, unreachable);
}

static bool is_insecure(void) {
  const struct record record = {.call = "settings", .device = -1};
  const char *text = setting("HAUL_CUDAHOOK_INSECURE");
  if (!text || strcmp(text, "0") == 0)
    return false;
  if (strcmp(text, "1") == 0)
    return true;
  log_trouble(&record,
              "HAUL_CUDAHOOK_INSECURE=%s is neither 0 nor 1: it is 0 (hint: with 1 it listens "
              "beyond loopback)",
              text);
  return false;
}

/* A node that listens to nobody needs no thread. */
static haul_node *open_node(void) {
  const struct record record = {.call = "haul_node_open", .device = -1};
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  const char *wanted = setting("HAUL_CUDAHOOK_LISTEN");
  haul_node *made = NULL;
  config.progress = wanted ? HAUL_PROGRESS_THREAD : HAUL_PROGRESS_CALLER;
  config.insecure = is_insecure();
  if (haul_node_open(&config, &made) != 0) {
    const struct haul_error *error = haul_error_last();
    snprintf(failure, sizeof failure, "haul's node does not open: %s", error->text);
    log_trouble(&record, "%s (hint: %s)", failure, error->hint);
    return NULL;
  }
  if (wanted)
    listen_there(made, wanted);
  else
    listen_nowhere();
  return made;
}

/* It is never closed: threads may be in it until the process ends, and a driver that has ended
 * before it would be called. */
haul_node *node_get(const char **why) {
  haul_node *made = atomic_load_explicit(&node, memory_order_acquire);
  if (made)
    return made;
  *why = "no memory for the mark that tells forked children";
  if (!make_mark())
    return NULL;
  pthread_mutex_lock(&lock);
  made = atomic_load(&node);
  if (!made && !*failure) {
    inside_haul = true;
    made = open_node();
    inside_haul = false;
    atomic_store_explicit(&node, made, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  *why = failure;
  return made;
}
