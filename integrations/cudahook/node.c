/* SPDX-License-Identifier: MIT */
#include "node.h"

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

/* Every program that is started with the hook comes here: nothing but reading. */
static __attribute__((constructor)) void read_settings(void) {
  const char *text = getenv("HAUL_CUDAHOOK_MINIMUM"), *wanted = getenv("HAUL_CUDAHOOK_RIGHTS");
  char *end;
  size_t bytes = text ? (size_t)strtoull(text, &end, 10) : MINIMUM;
  if (text && *text && !*end)
    minimum = bytes;
  else
    bad_minimum = text;
  prefix = getenv("HAUL_CUDAHOOK_PUBLISH");
  if (prefix && !*prefix)
    prefix = NULL;
  if (wanted && strcmp(wanted, "rw") == 0)
    rights = HAUL_READ | HAUL_WRITE;
  else if (wanted && strcmp(wanted, "r") != 0)
    bad_rights = wanted;
}

/* When the log is ready. */
static void tell_settings(void) {
  const struct record record = {.call = "settings", .device = -1};
  if (bad_minimum)
    log_record(&record, "HAUL_CUDAHOOK_MINIMUM=%s is no number of bytes: it is %zu", bad_minimum,
               minimum);
  if (bad_rights)
    log_record(&record, "HAUL_CUDAHOOK_RIGHTS=%s is neither r nor rw: it is r", bad_rights);
}

size_t node_minimum(void) {
  return minimum;
}

bool node_next_name(char *name, size_t size, unsigned *allowed) {
  static _Atomic unsigned number;
  if (!prefix)
    return false;
  *allowed = rights;
  return snprintf(name, size, "%s.%u", prefix, atomic_fetch_add(&number, 1)) < (int)size;
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

static void say_error(const char *what, const char *object) {
  const struct haul_error *error = haul_error_last();
  log_record(&(struct record){.call = what, .device = -1}, "failed: %s: %s (%s)", object,
             error->text, error->hint);
}

/* Memory is served also by a node that nobody can reach. */
static void listen_there(haul_node *made, const char *wanted) {
  char address[160];
  expand(wanted, address, sizeof address);
  if (haul_node_listen(made, address) != 0)
    say_error("haul_node_listen", address);
  else if (haul_node_address(made, 0, address, sizeof address) == 0)
    log_record(&(struct record){.call = "haul_node_listen", .device = -1}, "listening on %s",
               address);
}

/* A node that listens to nobody needs no thread. */
static haul_node *open_node(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  const char *wanted = getenv("HAUL_CUDAHOOK_LISTEN"), *insecure = getenv("HAUL_CUDAHOOK_INSECURE");
  haul_node *made = NULL;
  tell_settings();
  config.progress = wanted && *wanted ? HAUL_PROGRESS_THREAD : HAUL_PROGRESS_CALLER;
  config.insecure = insecure && strcmp(insecure, "1") == 0;
  if (haul_node_open(&config, &made) != 0) {
    snprintf(failure, sizeof failure, "haul's node does not open: %s", haul_error_last()->text);
    say_error("haul_node_open", "node");
    return NULL;
  }
  if (config.progress == HAUL_PROGRESS_THREAD)
    listen_there(made, wanted);
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
