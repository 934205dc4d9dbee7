/* SPDX-License-Identifier: MIT */
#include "node/node.h"

#include <haul/access.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/deferred_close.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/sys.h"
#include "core/thread.h"
#include "core/tls/keys.h"
#include "memory/staging.h"
#include "node/config.h"
#include "node/dial.h"
#include "node/directory.h"
#include "node/listen.h"
#include "node/message.h"
#include "node/share.h"

HAUL_API const char *haul_version(void) {
#define TEXT_OF(x)            #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)
  return VERSION_TEXT(HAUL_VERSION_MAJOR, HAUL_VERSION_MINOR, HAUL_VERSION_PATCH);
}

/* And the files that the settings name. The names are forgotten then: they point into `config`. */
static int read_config(struct haul_node *node, const struct haul_node_config *given) {
  struct config config;
  int code = config_read(given, &config);
  if (code)
    return code;
  node->config = config.values;
  snprintf(node->name, sizeof node->name, "%s", config.name);
  node->config.name = node->name;
  node->transfers.rules = config.rules;
  memory_settings_set(&config.memory);
  node->rdma = config.rdma;
  struct haul_node_config *values = &node->config;
  const struct tls_settings settings = {.key = values->key,
                                        .certificate = values->certificate,
                                        .private_key = values->private_key,
                                        .authority = values->authority,
                                        .user = values->process_tls};
  code = tls_is_wanted(&settings) ? tls_context_open(&settings, &node->tls) : 0;
  if (code == 0 && values->directory_login && *values->directory_login)
    code = keys_text(values->directory_login, "login for directories", &node->login);
  values->key = values->certificate = values->private_key = values->authority = NULL;
  values->directory_login = NULL;
  return code;
}

static void *progress_thread(void *argument) {
  struct haul_node *node = argument;
  while (!atomic_load(&node->closing))
    loop_run(node->loop, HAUL_FOREVER);
  return NULL;
}

static void expire_imports(struct timer *timer) {
  struct haul_node *node = list_entry(timer, struct haul_node, import_expiry);
  int64_t next = heap_expire(node->heap, clock_now());
  if (next != HAUL_FOREVER)
    loop_timer_start(node->loop, timer, next);
}

/* Gives peers that sent more frames than one turn handles their next turn. */
static bool receive_deferred(struct haul_node *node) {
  bool any = false;
  if (!node->has_deferred_frames)
    return false;
  node->has_deferred_frames = false;
  list_each_safe(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    if (!peer->frames_deferred)
      continue;
    any = true;
    peer_ref(peer);
    control_receive(peer);
    peer_unref(peer);
  }
  return any;
}

/* Drops a peer that failed, or that this side initiated or holds and does not use any more. */
static bool sweep_peer(struct haul_peer *peer) {
  bool unused = share_sweep(peer);
  int failure = atomic_load(&peer->failure);
  if (unused && control_close(peer)) {
    peer_drop(peer, HAUL_ECLOSED, CLOSED_HERE);
    return true;
  }
  if (failure)
    peer_drop(peer, failure, peer->failure_reason);
  else if (unused) /* its output is draining */
    atomic_store(&peer->node->sweep_due, true);
  return failure;
}

static bool sweep_peers(struct poller *poller) {
  struct haul_node *node = list_entry(poller, struct haul_node, poller);
  bool worked = receive_deferred(node);
  if (atomic_load_explicit(&node->has_unused_imports, memory_order_relaxed) &&
      atomic_exchange(&node->has_unused_imports, false))
    expire_imports(&node->import_expiry);
  if (!atomic_load(&node->sweep_due) || !atomic_exchange(&node->sweep_due, false))
    return worked;
  list_each_safe(item, &node->peers) worked |= sweep_peer(list_entry(item, struct haul_peer, list));
  return worked;
}

static void on_memory_wrapped(void *user, const struct memory *memory) {
  struct haul_node *node = user;
  fabric_announce(&node->fabric, memory);
}

static void on_memory_end(void *user, const struct memory *memory) {
  struct haul_node *node = user;
  fabric_invalidate(&node->fabric, memory);
}

static void on_unused_import(void *user) {
  struct haul_node *node = user;
  atomic_store(&node->has_unused_imports, true);
  loop_wake(node->loop);
}

/* Without references the node is being freed, and ends the watch first. */
static bool retain_if_alive(void *user) {
  struct haul_node *node = user;
  uint32_t refs = atomic_load(&node->refs);
  while (refs > 0 && !atomic_compare_exchange_weak(&node->refs, &refs, refs + 1))
    ;
  return refs > 0;
}

static const struct heap_watcher watcher = {on_memory_wrapped, on_memory_end, on_unused_import,
                                            retain_if_alive};

static int open_heap(struct haul_node *node) {
  const struct haul_node_config *config = &node->config;
  size_t pool = config->pool_bytes == SIZE_MAX ? 0 : config->pool_bytes;
  size_t warm = pool > 0 ? config->warm_bytes : 0;
  if (warm > pool)
    return error_set(HAUL_EINVAL, 0, "pool_warm", "raise pool",
                     "it is more than the pool's %zu bytes", pool);
  int code = heap_open(node, pool, &node->heap);
  return code ? code : heap_warm(node->heap, warm);
}

static int open_parts(struct haul_node *node) {
  bool thread = node->config.progress == HAUL_PROGRESS_THREAD;
  int code = loop_open(thread, node->config.spin_ns, &node->loop);
  if (code == 0)
    code = open_heap(node);
  if (code == 0)
    code = exports_open(node->config.max_regions, &node->exports);
  if (code)
    return code;
  staging_limit(heap_staging(node->heap), node->config.staging_bytes);
  log_open(&node->fabric.log, node->loop, node->name);
  node->fabric.loop = node->loop;
  node->fabric.heap = node->heap;
  node->fabric.exports = node->exports;
  node->fabric.config = &node->config;
  node->fabric.rdma = &node->rdma;
  random_bytes(node->fabric.node_id, sizeof node->fabric.node_id);
  boot_id(node->fabric.boot);
  transfers_open(&node->fabric, &node->transfers);
  node->has_transfers = true;
  code = fabric_open(&node->fabric);
  if (code)
    return code;
  heap_watch(node->heap, &watcher);
  loop_lock(node->loop);
  loop_poller_start(node->loop, &node->poller, sweep_peers);
  loop_unlock(node->loop);
  int failed = thread ? thread_start(&node->thread, progress_thread, node) : 0;
  if (failed)
    return error_set(HAUL_ELIMIT, failed, NULL,
                     "raise the limit (ulimit -u), or set progress to HAUL_PROGRESS_CALLER",
                     "cannot start the progress thread: %s", strerror(failed));
  node->has_thread = thread;
  return 0;
}

HAUL_API int haul_node_open(const struct haul_node_config *config, haul_node **out) {
  int code = node_enter("haul_node_open", out, "node is NULL");
  if (code)
    return code;
  int failed = fork_watch();
  if (failed)
    return error_system(failed, NULL, "madvise");
  struct haul_node *node = alloc_zero(1, sizeof *node);
  if (!node)
    return error_memory("node");
  atomic_store(&node->refs, 1);
  node->opened_at = clock_now();
  list_init(&node->listeners);
  list_init(&node->handshakes);
  list_init(&node->dials);
  list_init(&node->peers);
  for (size_t i = 0; i < TOKEN_LISTS; i++)
    list_init(&node->tokens[i]);
  list_init(&node->inbox);
  list_init(&node->poller.link);
  timer_init(&node->import_expiry, expire_imports);
  timer_init(&node->trace_expiry, trace_expire);
  list_init(&node->directories);
  pthread_mutex_init(&node->inbox_lock, NULL);
  pthread_mutex_init(&node->directory_lock, NULL);
  code = read_config(node, config);
  if (code == 0)
    code = open_parts(node);
  if (code) {
    struct haul_error error;
    error_save(&error);
    haul_node_close(node);
    return error_restore(&error);
  }
  *out = node;
  return 0;
}

void node_retain(struct haul_node *node) {
  atomic_fetch_add(&node->refs, 1);
}

void node_put(struct haul_node *node) {
  if (atomic_fetch_sub(&node->refs, 1) != 1)
    return;
  message_clear(node);
  if (node->has_transfers) {
    heap_watch(node->heap, NULL); /* regions may outlive the node */
    transfers_close(&node->transfers);
    fabric_release(&node->fabric);
    trace_stop(&node->fabric.trace);
    loop_run_deferred(node->loop); /* frees log lines that were not delivered */
    log_close(&node->fabric.log);
  }
  exports_close(node->exports);
  tls_context_close(node->tls);
  keys_text_free(node->login);
  if (node->heap)
    heap_close(node->heap);
  loop_close(node->loop);
  pthread_mutex_destroy(&node->inbox_lock);
  pthread_mutex_destroy(&node->directory_lock);
  alloc_free(node);
}

bool node_is_closed(struct haul_node *node) {
  return atomic_load(&node->closing);
}

/* The child has none of the threads, a lock may be held for ever, and sockets and event descriptors
 * refer to the parent's objects: only descriptors are closed. */
static void close_in_child(struct haul_node *node) {
  listen_forked(node);
  dials_forked(node);
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    close(peer->stream.fd);
    for (size_t i = 0; transport_at(i); i++)
      if (transport_at(i)->forked && peer->base.endpoints[i])
        transport_at(i)->forked(peer->base.endpoints[i]);
  }
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->abandon)
      transport_at(i)->abandon(&node->fabric);
  exports_forked(node->exports);
  loop_forked(node->loop);
}

static bool is_memory_touched(struct haul_node *node) {
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    for (size_t i = 0; transport_at(i); i++)
      if (transport_at(i)->touches_any && transport_at(i)->touches_any(peer->base.endpoints[i]))
        return true;
  }
  return false;
}

/* With the loop's lock. Once the node is closed the caller may free memory that it wrapped. So
 * copies that peers of this host are making end first; they begin no further ones. */
static void withdraw_all(struct haul_node *node) {
  int64_t until = clock_after(clock_now(), node->config.liveness_ns);
  exports_clear(node->exports);
  while (is_memory_touched(node) && clock_now() < until)
    nanosleep(&(struct timespec){0, 20000}, NULL);
}

static void drop_all(struct haul_node *node) {
  list_each_safe(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    control_send(peer, CONTROL_GOODBYE, 0, NULL, 0);
    peer_drop(peer, HAUL_ECLOSED, "this node was closed");
  }
}

HAUL_API void haul_node_close(haul_node *node) {
  if (!node)
    return;
  if (fork_is_child()) {
    close_in_child(node);
    return;
  }
  if (node->loop && loop_in_deferred(node->loop)) {
    error_enter("haul_node_close");
    error_set(HAUL_EBUSY, 0, NULL, "close the node outside of callbacks",
              "the `done` callback of a transfer cannot close its node");
    return;
  }
  atomic_store(&node->closing, true);
  directory_stop(node); /* first, so that no new peers find the node */
  if (node->loop)
    loop_end(node->loop);
  if (node->has_thread)
    pthread_join(node->thread, NULL);
  if (node->has_transfers) {
    loop_lock(node->loop);
    listen_stop(node);
    withdraw_all(node);
    drop_all(node);
    dials_stop(node);
    loop_poller_stop(node->loop, &node->poller);
    loop_timer_stop(&node->import_expiry);
    loop_timer_stop(&node->trace_expiry);
    log_flush(&node->fabric.log);
    loop_unlock(node->loop);
    fabric_close(&node->fabric);
    transfers_end(&node->transfers);
    loop_run_deferred(node->loop);
    log_end(&node->fabric.log);
  }
  message_clear(node);
  close_waiting();
  node_put(node);
}

HAUL_API int haul_node_fd(haul_node *node) {
  int code = node_enter("haul_node_fd", node, "node is NULL");
  return code ? code : loop_descriptor(node->loop);
}

static bool is_notified(void *user) {
  struct haul_node *node = user;
  return loop_clear_notification(node->loop);
}

HAUL_API int haul_node_progress(haul_node *node, haul_deadline until) {
  int code = node_enter("haul_node_progress", node, "node is NULL");
  if (code)
    return code;
  if (node_is_closed(node))
    return error_code(HAUL_ECLOSED, NULL);
  node_retain(node);
  int events;
  if (node->has_thread) {
    loop_descriptor(node->loop); /* makes the loop keep notifications */
    events = loop_wait(node->loop, is_notified, NULL, node, until) ? 1 : 0;
  } else { /* a part of a large copy is progress, too */
    events = fabric_help(&node->fabric, HELP_POLLED);
    events += loop_run(node->loop, events ? HAUL_NO_WAIT : until);
  }
  if (events == 0 && node_is_closed(node))
    events = error_code(HAUL_ECLOSED, NULL);
  node_put(node);
  return events;
}

HAUL_API int haul_key_new(const char *path, const char *name) {
  struct key key = {.name = ""};
  int code = node_enter("haul_key_new", path && name, "path or name is NULL");
  if (code)
    return code;
  if (!key_name_is_valid(name))
    return key_name_refused(name);
  memcpy(key.name, name, strlen(name) + 1);
  random_bytes(key.secret, sizeof key.secret);
  code = keys_create(path, &key);
  explicit_bzero(&key, sizeof key);
  return code;
}

HAUL_API int haul_key_list(const char *path, struct haul_key *listed, size_t *count) {
  struct keys keys;
  int code = node_enter("haul_key_list", path && count && (*count == 0 || listed),
                        "path, keys or count is NULL");
  if (code)
    return code;
  code = keys_read(path, &keys);
  if (code)
    return code;
  for (size_t i = 0; i < keys.count && i < *count; i++) {
    memcpy(listed[i].name, keys.list[i].name, sizeof listed[i].name);
    key_fingerprint(&keys.list[i], listed[i].fingerprint);
  }
  *count = keys.count;
  keys_free(&keys);
  return 0;
}
