/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hook.h"

/* Shareable GPU memory takes at least 2 MiB: programs with thousands of small allocations would run
 * out of memory. */
#define MINIMUM ((size_t)1 << 20)

_Thread_local bool inside_haul;

/* Settings; constant after the constructor. */
static size_t minimum = MINIMUM;
static const char *bad_minimum, *bad_rights; /* invalid values, or NULL */
static const char *prefix;
static unsigned rights = HAUL_READ;
static const struct record settings = {.call = "settings", .device = -1};

/* A page with 1 here, and 0 in every child forked later, as the kernel wipes it. */
static _Atomic(volatile unsigned char *) mark;

/* For opening a node; taken only once there is a mark. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct slot {
  _Atomic(haul_node *) node;
  char failure[256]; /* under the lock; constant once it is set */
} serving, importing;

/* Why peers cannot connect, or empty. Constant once the node is open. */
static char unreachable[400];

/* An empty variable counts as unset. */
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

/* Runs in every program that is started with the hook, so it only reads. */
static __attribute__((constructor)) void read_settings(void) {
  const char *text = setting("HAUL_CUDAHOOK_MINIMUM");
  size_t bytes;
  if (text && is_bytes(text, &bytes))
    minimum = bytes;
  else
    bad_minimum = text;
  text = setting("HAUL_CUDAHOOK_RIGHTS");
  if (text && strcmp(text, "rw") == 0)
    rights = HAUL_READ | HAUL_WRITE;
  else if (text && strcmp(text, "r") != 0)
    bad_rights = text;
  prefix = setting("HAUL_CUDAHOOK_PUBLISH");
}

void node_check_settings(void) {
  static atomic_flag done = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&done))
    return;
  if (bad_minimum)
    log_warning(&settings,
                "invalid HAUL_CUDAHOOK_MINIMUM=%s: expected a number of bytes, %zu is used (hint: "
                "use digits only)",
                bad_minimum, minimum);
  if (bad_rights)
    log_warning(&settings,
                "invalid HAUL_CUDAHOOK_RIGHTS=%s: expected r or rw, r is used (hint: set rw to let "
                "peers write)",
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

bool is_forked_child(void) {
  const volatile unsigned char *page = atomic_load_explicit(&mark, memory_order_acquire);
  return page && *page == 0;
}

/* Before any lock, so that a child of a process without a mark can open its own node. */
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

/* Replaces the first "%p" by the pid, as all processes of a job have the same environment. */
static void expand(const char *text, char *to, size_t size) {
  const char *at = strstr(text, "%p");
  if (at)
    snprintf(to, size, "%.*s%d%s", (int)(at - text), text, (int)getpid(), at + 2);
  else
    snprintf(to, size, "%s", text);
}

/* haul's own hints name its API; these name the hook's settings. */
static const char *hint_of(const struct haul_error *error, const char *wanted) {
  if (error->code == HAUL_EINSECURE)
    return "set HAUL_CUDAHOOK_INSECURE=1 on a trusted network";
  if (error->system == EADDRINUSE && !strstr(wanted, "%p"))
    return "use %p in HAUL_CUDAHOOK_LISTEN, which becomes the pid, or port 0 with tcp";
  return error->hint;
}

/* A failure is no error: memory is served without peers too. */
static void node_listen(haul_node *made, const char *wanted) {
  const struct record record = {.call = "haul_node_listen", .device = -1};
  char address[160];
  expand(wanted, address, sizeof address);
  if (haul_node_listen(made, address) != 0) {
    const struct haul_error *error = haul_error_last();
    snprintf(unreachable, sizeof unreachable, "cannot listen on %s: %s", address, error->text);
    log_warning(&record, "%s (hint: %s)", unreachable, hint_of(error, wanted));
  } else if (haul_node_address(made, 0, address, sizeof address) == 0) {
    log_record(&record, "listening on %s", address);
  }
}

static void warn_unreachable(void) {
  snprintf(unreachable, sizeof unreachable, "HAUL_CUDAHOOK_LISTEN is not set");
  if (prefix)
    log_warning(&settings,
                "HAUL_CUDAHOOK_PUBLISH=%s: peers cannot connect, as %s (hint: set "
                "HAUL_CUDAHOOK_LISTEN=unix:///tmp/haul.%%p)",
                prefix, unreachable);
}

static bool is_insecure(void) {
  const char *text = setting("HAUL_CUDAHOOK_INSECURE");
  if (!text || strcmp(text, "0") == 0)
    return false;
  if (strcmp(text, "1") == 0)
    return true;
  log_warning(
      &settings,
      "invalid HAUL_CUDAHOOK_INSECURE=%s: expected 0 or 1, 0 is used (hint: set 1 to listen "
      "beyond loopback)",
      text);
  return false;
}

static haul_node *node_open(struct slot *slot, const struct haul_node_config *config) {
  const struct record record = {.call = "haul_node_open", .device = -1};
  haul_node *made = NULL;
  if (haul_node_open(config, &made) == 0)
    return made;
  const struct haul_error *error = haul_error_last();
  snprintf(slot->failure, sizeof slot->failure, "cannot open a haul node: %s", error->text);
  log_warning(&record, "%s (hint: %s)", slot->failure, error->hint);
  return NULL;
}

/* Without a listener the node needs no thread. */
static haul_node *open_serving(struct slot *slot) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  const char *wanted = setting("HAUL_CUDAHOOK_LISTEN");
  config.progress = wanted ? HAUL_PROGRESS_THREAD : HAUL_PROGRESS_CALLER;
  config.insecure = is_insecure();
  haul_node *made = node_open(slot, &config);
  if (made && wanted)
    node_listen(made, wanted);
  else if (made)
    warn_unreachable();
  return made;
}

/* Without a pool, so that memory ends with its last close. It transfers nothing. */
static haul_node *open_importing(struct slot *slot) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER;
  config.pool_bytes = SIZE_MAX;
  config.staging_bytes = (size_t)8 << 20;
  return node_open(slot, &config);
}

static haul_node *slot_node(struct slot *slot) {
  return atomic_load_explicit(&slot->node, memory_order_acquire);
}

/* The nodes are never closed: threads may use them until the process ends, and a close could call a
 * driver that has already shut down. */
static haul_node *slot_get(struct slot *slot, haul_node *(*open)(struct slot *slot),
                           const char **why) {
  haul_node *made = slot_node(slot);
  if (made)
    return made;
  *why = "out of memory";
  if (!make_mark())
    return NULL;
  pthread_mutex_lock(&lock);
  made = atomic_load(&slot->node);
  if (!made && !*slot->failure) {
    inside_haul = true;
    made = open(slot);
    inside_haul = false;
    atomic_store_explicit(&slot->node, made, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  *why = slot->failure;
  return made;
}

haul_node *node_opened(void) {
  return slot_node(&serving);
}

haul_node *node_get(const char **why) {
  return slot_get(&serving, open_serving, why);
}

haul_node *node_of_imports(const char **why) {
  return slot_get(&importing, open_importing, why);
}
