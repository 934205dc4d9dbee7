/* SPDX-License-Identifier: MIT */
#include "fabric/map/map.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/error.h"
#include "core/shrinkable.h"
#include "memory/copy.h"
#include "memory/pages.h"

#define NOW_MAPPED     1048576u /* bytes copied within the call */
#define NOW_ATTACHED   65536u
#define POPULATE_LEAST 65536u  /* contiguous bytes */
#define CHECKED        131072u /* bytes copied and then compared while the CPU caches hold them */

struct map_node { /* fabric->shared[map] */
  struct copier *copier;
  struct engines *engines;
};

static struct map_node *map_node_of(const struct endpoint *endpoint) {
  return endpoint->link->fabric->shared[map_transport.index];
}

__attribute__((cold)) int map_stale(void) {
  return error_set(HAUL_ESTALE, 0, NULL, NULL, "the peer withdrew the region");
}

/* The first write to a page of a new mapping is a fault, which takes longer than to copy the page.
 * Faults of many pages at once take half as long. For pages that exist the call costs a tenth of
 * the copy, so the calls end once they have covered the region's length in bytes. */
static void populate(struct map_binding *binding, const struct haul_piece *piece) {
  uint64_t done = atomic_load_explicit(&binding->populated, memory_order_relaxed);
  if (done >= binding->memory.length)
    return;
  atomic_store_explicit(&binding->populated, done + piece->length, memory_order_relaxed);
  size_t page = page_size();
  uintptr_t start = (uintptr_t)binding->memory.view + piece->remote, first = start & ~(page - 1);
  /* A failure changes nothing: each page faults on its write. */
  madvise((void *)first, start + piece->length - first, MADV_POPULATE_WRITE);
}

static inline void copy_piece(char *view, char *local, const struct haul_piece *piece, bool write,
                              uint64_t whole) {
  char *to = write ? view + piece->remote : local + piece->local;
  const char *from = write ? local + piece->local : view + piece->remote;
  if (piece->length < COPY_PART_LEAST || whole <= COPY_SMALL)
    copy_small(to, from, piece->length);
  else
    copy_part(to, from, piece->length, whole);
}

static inline int copy_mapped(struct map_endpoint *endpoint, struct map_binding *binding,
                              struct haul_region *region, const struct haul_piece *pieces,
                              size_t count, bool write, uint64_t whole) {
  if (!map_alive(endpoint, binding->handle))
    return map_stale();
  char *view = binding->memory.view;
  char *local = region->memory.view;
  for (size_t i = 0; i < count; i++) {
    if (write && pieces[i].length >= POPULATE_LEAST)
      populate(binding, &pieces[i]);
    copy_piece(view, local, &pieces[i], write, whole);
  }
  if (whole > COPY_SMALL)
    copy_parts_end(whole);
  /* The copy is valid only if the region is still published after it. */
  order_copy();
  return map_alive(endpoint, binding->handle) ? 0 : map_stale();
}

/* Both sums are computed here, so a part that the CPU caches still hold is enough. */
static int verify_part(struct map_endpoint *endpoint, struct map_binding *binding,
                       struct haul_region *region, const struct haul_piece *part) {
  uint64_t here = 0, there = 0;
  int code = memory_checksum(&region->memory, part->local, part->length, &here);
  if (code == 0 && binding->attached)
    code = attach_checksum(endpoint, binding, part->remote, part->length, &there);
  else if (code == 0)
    code = memory_checksum(&binding->memory, part->remote, part->length, &there);
  if (code || here == there)
    return code;
  if (!map_alive(endpoint, binding->handle)) /* the memory may have other contents already */
    return map_stale();
  return error_set(HAUL_ECHECKSUM, 0, NULL, "do not change the source during a transfer",
                   "the copy differs from its source");
}

static inline int copy_pieces(struct map_endpoint *endpoint, struct map_binding *binding,
                              struct haul_region *region, const struct haul_piece *pieces,
                              size_t count, enum haul_operation operation, uint64_t whole) {
  if (__builtin_expect(!binding->attached, 1))
    return copy_mapped(endpoint, binding, region, pieces, count, operation == HAUL_OP_WRITE, whole);
  return attach_copy(endpoint, binding, region->memory.view, pieces, count, operation);
}

static int copy_checked(struct map_endpoint *endpoint, const struct work *work,
                        const struct haul_piece *piece) {
  int code = 0;
  for (uint64_t at = 0; at < piece->length && code == 0; at += CHECKED) {
    uint64_t left = piece->length - at;
    const struct haul_piece part = {piece->local + at, piece->remote + at,
                                    left < CHECKED ? left : CHECKED};
    code = copy_pieces(endpoint, work->binding, work->region, &part, 1, work->operation, CHECKED);
    if (code == 0)
      code = verify_part(endpoint, work->binding, work->region, &part);
  }
  return code;
}

int map_run(struct work *work) {
  struct map_endpoint *endpoint = (struct map_endpoint *)work->endpoint;
  int code = work->checksum ? 0
                            : copy_pieces(endpoint, work->binding, work->region, work->pieces,
                                          work->count, work->operation, work->whole);
  for (uint32_t i = 0; i < work->count && work->checksum && code == 0; i++)
    code = copy_checked(endpoint, work, &work->pieces[i]);
  endpoint_count(&endpoint->base, work->operation, work->bytes, code);
  return code;
}

/* Checks the validity word before and after, as for a copy. */
static int operate_mapped(struct map_endpoint *endpoint, const struct work *work) {
  const struct map_binding *binding = work->binding;
  char *place = (char *)binding->memory.view + work->pieces->remote;
  if ((uintptr_t)place % 8)
    return error_set(HAUL_EINVAL, 0, NULL, NULL,
                     "the remote region does not begin at a multiple of 8 bytes");
  if (!map_alive(endpoint, binding->handle))
    return map_stale();
  uint64_t old = operate(place, work->operation, &work->operands);
  if (!map_alive(endpoint, binding->handle))
    return map_stale();
  memcpy((char *)work->region->memory.view + work->pieces->local, &old, sizeof old);
  return 0;
}

static int operate_now(struct endpoint *base, const struct work *work) {
  int code = operate_mapped((struct map_endpoint *)base, work);
  endpoint_count(base, work->operation, work->bytes, code);
  return code;
}

/* NULL: the two memories allow them. */
static const char *no_atomics(const struct map_binding *binding, const struct memory *local) {
  if (binding->attached)
    return "the peer's memory is private, and cross-memory attach has no atomics";
  if (!binding->memory.view)
    return "the peer's memory is a device's, which the CPU cannot access";
  return local->view ? NULL : "the old value would go to memory that the CPU cannot access";
}

static void estimate_atomic(const struct map_binding *binding, const struct memory *local,
                            struct estimate *estimate) {
  const char *why_not = no_atomics(binding, local);
  *estimate = (struct estimate){.open = !why_not,
                                .zero_copy = true,
                                .rails = 1,
                                .copies_cpu = 1,
                                .lines[SEND_SHORT] = {UINT64_MAX, 100, 1 / 10.0}};
  snprintf(estimate->detail, sizeof estimate->detail, "mapped");
  snprintf(estimate->reason, sizeof estimate->reason, "%s", why_not ? why_not : "");
}

static enum copy_method method_of(const struct map_binding *binding, const struct memory *local,
                                  bool write, const struct provider **engine) {
  if (binding->attached)
    return local->view ? COPY_CPU : COPY_STAGED;
  return write ? copy_method(&binding->memory, local, engine)
               : copy_method(local, &binding->memory, engine);
}

const struct provider *map_engine_of(const struct work *work) {
  const struct provider *engine = NULL;
  bool write = work->operation == HAUL_OP_WRITE;
  enum copy_method by = method_of(work->binding, &work->region->memory, write, &engine);
  return by == COPY_ENGINE ? engine : NULL;
}

static uint32_t now_most(bool attached) {
  return attached ? shrinkable(NOW_ATTACHED, 1) : shrinkable(NOW_MAPPED, 1);
}

static int map_now(struct endpoint *base, const struct remote_key *key, void *bound,
                   struct haul_region *region, const struct haul_piece *pieces, size_t count,
                   uint64_t bytes, enum haul_operation operation) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  struct map_binding *binding = bound;
  (void)key;
  bool by_cpu = region->memory.view && (binding->attached || binding->memory.view);
  if (!by_cpu || bytes > now_most(binding->attached))
    return 1;
  int code = copy_pieces(endpoint, binding, region, pieces, count, operation, bytes);
  endpoint_count(base, operation, bytes, code);
  return code == HAUL_EPATH ? 1 : code; /* a post retries it on another path */
}

static void map_post(struct endpoint *base, struct work *work) {
  struct map_node *node = map_node_of(base);
  const struct provider *engine = map_engine_of(work);
  work->state = NULL;
  if (!atomic_load(&base->open))
    work->done(work, error_set(HAUL_EPATH, 0, NULL, NULL, "%s", endpoint_reason(base)));
  else if (operation_is_atomic(work->operation))
    work->done(work, operate_now(base, work));
  else if (engine)
    engine_post(node->engines, work);
  else
    copier_post(node->copier, work);
}

__attribute__((cold)) static void map_cancel(struct endpoint *base, struct work *work, int code) {
  struct map_node *node = map_node_of(base);
  if (operation_is_atomic(work->operation))
    return; /* it ended in the post */
  if (map_engine_of(work))
    engine_cancel(node->engines, work, code);
  else if (copier_cancel(node->copier, work))
    work->done(work, code);
}

static bool map_help(struct fabric *fabric, uint64_t least) {
  struct map_node *node = fabric->shared[map_transport.index];
  return node && copier_help(node->copier, least);
}

static void estimate_engine(const struct provider *engine, const struct memory *local,
                            const struct memory *remote, const char *how,
                            struct estimate *estimate) {
  const struct memory *host = local->view ? local : remote;
  bool by_cpu = host->view && engine->needs_cpu && engine->needs_cpu(host);
  estimate->zero_copy = !by_cpu;
  estimate->copies_dma = 1;
  estimate->copies_cpu = by_cpu;
  estimate->lines[by_cpu ? SEND_BUFFERED : SEND_DIRECT] =
      (struct line){UINT64_MAX, 2000 + engine->copy_latency_ns,
                    1 / engine->copy_bytes_per_ns + (by_cpu ? 1 / 10.0 : 0)};
  snprintf(estimate->detail, sizeof estimate->detail, "%s, copied by the device%s", how,
           by_cpu ? ", through pinned memory" : "");
}

/* Starting values: copies of 64 MiB on two 2023 server cores (bench/run map-write), and the
 * hand-off to the copy threads. */
static void estimate_cpu(const struct map_binding *binding, struct estimate *estimate) {
  bool attached = binding->attached;
  double latency_ns = attached ? 1500 : 100;
  estimate->copies_cpu = !attached;
  estimate->copies_kernel = attached;
  estimate->lines[SEND_SHORT] = (struct line){now_most(attached), latency_ns, 1 / 10.0};
  estimate->lines[SEND_DIRECT] = (struct line){UINT64_MAX, latency_ns + 3000, 1 / 10.0};
  snprintf(estimate->detail, sizeof estimate->detail, "%s",
           attached ? "cross-memory attach" : "mapped");
}

__attribute__((cold)) static void map_estimate(struct endpoint *base, const struct remote_key *key,
                                               void *bound, const struct memory *local,
                                               enum haul_operation operation,
                                               struct estimate *estimate) {
  struct map_binding *binding = bound;
  const struct provider *engine = NULL;
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  (void)key;
  if (operation_is_atomic(operation)) {
    estimate_atomic(binding, local, estimate);
    return;
  }
  *estimate = (struct estimate){.open = true, .zero_copy = true, .rails = 1};
  enum copy_method by = method_of(binding, local, operation == HAUL_OP_WRITE, &engine);
  if (by == COPY_ENGINE) {
    estimate_engine(engine, local, &binding->memory, binding->ipc ? "IPC mapping" : "mapped",
                    estimate);
  } else if (by == COPY_CPU) {
    estimate_cpu(binding, estimate);
    if (!binding->attached)
      estimate->direct = (struct direct){.view = binding->memory.view,
                                         .word = &endpoint->validity[EXPORT_SLOT(binding->handle)],
                                         .stamp = EXPORT_STAMP(binding->handle),
                                         .limit = shrinkable(COPY_SMALL, 8),
                                         .endpoint = base};
  } else {
    estimate->open = false;
    snprintf(estimate->reason, sizeof estimate->reason, "%s",
             binding->attached ? "the peer's memory is private and this side's is a device's"
                               : "the two devices cannot access each other's memory");
  }
}

__attribute__((cold)) static int map_create(struct link *link, struct endpoint **out) {
  struct map_endpoint *endpoint = alloc_zero(1, sizeof *endpoint);
  if (!endpoint)
    return error_memory("map endpoint");
  endpoint->base.transport = &map_transport;
  endpoint->base.link = link;
  endpoint->channel = endpoint->process = -1;
  list_init(&endpoint->requests);
  if (!link->boot_known)
    endpoint_close(&endpoint->base,
                   "one of the nodes cannot read its boot id: mount /proc on both hosts");
  else if (!link->same_host)
    endpoint_close(&endpoint->base, "the peer is on another host (boot id differs)");
  else if (channel_open(endpoint) != 0)
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
  *out = &endpoint->base;
  return 0;
}

__attribute__((cold)) static void map_connect(struct endpoint *base, haul_deadline until) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  struct link *link = base->link;
  struct stream stream; /* a Unix socket: without TLS */
  if (endpoint_is_closed(base))
    return;
  if (link->open_channel(link, &map_transport, true, 0, until, &stream) != 0) {
    endpoint_close_unless_open(
        base, "same host, but no Unix socket reaches the peer: ", haul_error_last()->text);
    return;
  }
  loop_lock(link->fabric->loop);
  channel_start(endpoint, stream.fd);
  loop_unlock(link->fabric->loop);
  if (!endpoint_wait_settled(base, until))
    endpoint_close_unless_open(base, "the peer did not answer on the map channel in time", "");
}

__attribute__((cold)) static void map_adopt(struct endpoint *base, unsigned index,
                                            struct stream stream) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  if (index != 0 || endpoint_is_closed(base) || endpoint->page == NULL || stream.tls) {
    stream_close(&stream);
    return;
  }
  channel_start(endpoint, stream.fd);
}

__attribute__((cold)) static void map_stop(struct endpoint *base, int code) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  struct map_node *node = map_node_of(base);
  atomic_store(&base->open, false);
  channel_collect(base);
  channel_stop(endpoint, code);
  if (node) {
    engine_drain(node->engines, endpoint, code);
    copier_drain(node->copier, endpoint, code);
  }
}

__attribute__((cold)) static void map_forked(struct endpoint *base) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  if (endpoint->channel >= 0)
    close(endpoint->channel);
  if (endpoint->process >= 0)
    close(endpoint->process);
  if (endpoint->page)
    close(endpoint->page_shm.fd);
  for (size_t i = 0; i < endpoint->inbox_count; i++)
    close(endpoint->inbox_descriptors[i]);
}

static __attribute__((cold)) void map_destroy(struct endpoint *base) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  channel_release(endpoint);
  attach_release(endpoint);
  alloc_free(endpoint);
}

__attribute__((cold)) static int map_bind(struct endpoint *base, const struct remote_key *key,
                                          haul_deadline until, void **out) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  if (EXPORT_SLOT(key->handle) >= endpoint->validity_slots)
    return error_set(HAUL_EPROTO, 0, NULL, NULL,
                     "the peer's handle lies outside its validity page");
  struct map_binding *binding = alloc_zero(1, sizeof *binding);
  if (!binding)
    return error_memory("remote region");
  binding->handle = key->handle;
  int code = channel_bind(endpoint, key, until, binding);
  if (code == 0 && binding->ipc)
    code = engine_try(map_node_of(base)->engines, endpoint, binding);
  if (code) {
    ipc_unbind(binding);
    alloc_free(binding);
    return code;
  }
  *out = binding;
  return 0;
}

static void map_unbind(struct endpoint *base, void *bound) {
  struct map_binding *binding = bound;
  (void)base;
  if (binding && binding->ipc)
    ipc_unbind(binding);
  else if (binding && !binding->attached)
    memory_free(&binding->memory);
  alloc_free(binding);
}

/* Shareable memory: the peer keeps its mapping, and this node never reuses those pages. */
static bool map_touches(struct endpoint *base, uint64_t handle, const struct haul_region *region) {
  return !region->memory.shareable && attach_touches((struct map_endpoint *)base, handle);
}

static bool map_touches_any(struct endpoint *base) {
  return channel_lives((struct map_endpoint *)base) &&
         attach_touches((struct map_endpoint *)base, 0);
}

__attribute__((cold)) static int map_open(struct fabric *fabric) {
  struct map_node *node = alloc_zero(1, sizeof *node);
  if (!node)
    return error_memory("map transport");
  int code = copier_open(fabric, &node->copier);
  if (code == 0)
    code = map_engines_open(fabric, &node->engines);
  if (code) {
    if (node->copier)
      copier_end(node->copier);
    copier_free(node->copier);
    alloc_free(node);
    return code;
  }
  fabric->shared[map_transport.index] = node;
  return 0;
}

static __attribute__((cold)) void map_close(struct fabric *fabric) {
  struct map_node *node = fabric->shared[map_transport.index];
  if (!node)
    return;
  copier_end(node->copier);
  map_engines_end(node->engines);
}

static void map_release(struct fabric *fabric) {
  struct map_node *node = fabric->shared[map_transport.index];
  if (!node)
    return;
  copier_free(node->copier);
  map_engines_free(node->engines);
  alloc_free(node);
}

__attribute__((cold)) static size_t map_checks(struct haul_check *checks, size_t room) {
  if (room < 1)
    return 1;
  char text[8] = "0";
  int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t got = read(fd, text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    close(fd);
  }
  int scope = atoi(text);
  bool root = geteuid() == 0;
  check_begin(checks, "map", "cross-memory-attach");
  if (scope == 0 || (scope < 3 && root)) {
    check_set(checks, HAUL_CHECK_OK, "permitted towards processes of the same user%s",
              root ? " and, as root, others" : "");
    return 1;
  }
  check_set(checks, HAUL_CHECK_LIMITED,
            "kernel.yama.ptrace_scope is %d: memory that a peer wrapped cannot be attached; "
            "allocated memory is still mapped",
            scope);
  check_hint(checks, "sysctl -w kernel.yama.ptrace_scope=0");
  return 1;
}

const struct transport map_transport = {
    .name = "map",
    .within_host = true,
    .index = 0,
    .descriptors = true,
    .open = map_open,
    .close = map_close,
    .release = map_release,
    .checks = map_checks,
    .create = map_create,
    .connect = map_connect,
    .adopt = map_adopt,
    .stop = map_stop,
    .forked = map_forked,
    .destroy = map_destroy,
    .bind = map_bind,
    .unbind = map_unbind,
    .estimate = map_estimate,
    .now = map_now,
    .atomic = operate_now,
    .post = map_post,
    .cancel = map_cancel,
    .help = map_help,
    .touches = map_touches,
    .touches_any = map_touches_any,
    .collect = channel_collect,
};
