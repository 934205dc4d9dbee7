/* SPDX-License-Identifier: MIT */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "fabric/rdma/channel.h"
#include "fabric/rdma/checks.h"
#include "fabric/rdma/endpoint.h"
#include "memory/copy.h"

static bool poll_endpoint(struct poller *poller) {
  struct rdma_endpoint *endpoint = list_entry(poller, struct rdma_endpoint, poller);
  bool any = rdma_poll(endpoint);
  rdma_release_bindings(endpoint);
  return any;
}

static void on_completion_event(struct watch *watch, uint32_t events) {
  struct rdma_rail *rail = list_entry(watch, struct rdma_rail, watch);
  struct ibv_cq *queue;
  void *context;
  (void)events;
  if (rail->device->nic->verbs->get_cq_event(rail->events, &queue, &context) != 0)
    return;
  rail->device->nic->verbs->ack_cq_events(queue, 1);
  combiner_lock(&rail->endpoint->combiner);
  rail->armed = false;
  combiner_unlock(&rail->endpoint->combiner);
  poll_endpoint(&rail->endpoint->poller);
}

int rdma_open_rail(struct rdma_rail *rail) {
  int code = rdma_rail_open(rail);
  if (code == 0)
    code = rdma_rail_open_messages(rail);
  return code ? code
              : loop_watch(rail->endpoint->node->fabric->loop, &rail->watch, rail->events->fd,
                           EPOLLIN, on_completion_event);
}

void rdma_close_rail(struct rdma_rail *rail) {
  loop_unwatch(rail->endpoint->node->fabric->loop, &rail->watch);
  rdma_rail_close(rail);
}

static int create(struct link *link, struct endpoint **out) {
  struct rdma_endpoint *endpoint = alloc_zero(1, sizeof *endpoint);
  if (!endpoint)
    return error_memory("rdma endpoint");
  endpoint->base.transport = &rdma_transport;
  endpoint->base.link = link;
  endpoint->node = link->fabric->shared[rdma_transport.index];
  endpoint->channel = STREAM_NONE;
  list_init(&endpoint->peer);
  timer_init(&endpoint->timer, rdma_check_stuck);
  timer_init(&endpoint->attach_timer, rdma_attach_again);
  rdma_restore_init(endpoint);
  list_init(&endpoint->attach_requests);
  list_init(&endpoint->bindings);
  list_init(&endpoint->attachments);
  list_init(&endpoint->attach_queue);
  list_init(&endpoint->stranded);
  list_init(&endpoint->rejected);
  list_init(&endpoint->acquiring);
  list_init(&endpoint->stepping);
  list_init(&endpoint->staged_copies);
  combiner_init(&endpoint->combiner, rdma_enqueue_jobs);
  staging_user_init(heap_staging(link->fabric->heap), &endpoint->staging, STAGING_RECEIVE,
                    RDMA_SLOTS, loop_wake_callback, link->fabric->loop);
  *out = &endpoint->base;
  if (rdma_devices_open(endpoint->node) != 0 || rdma_events_watch(endpoint->node) != 0)
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
  return 0;
}

/* With the loop's lock. If the peer left meanwhile, rdma_stop may already have run: this function
 * closes the stream, as no later call would. */
static void start_endpoint(struct rdma_endpoint *endpoint, struct stream stream) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  if (atomic_load(&endpoint->base.link->ended)) {
    stream_close(&stream);
    return;
  }
  if (endpoint->base.link->initiator && rdma_rails_offer(endpoint) != 0) {
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
    rdma_rails_close(endpoint);
    rdma_rails_free(endpoint);
    rdma_reject(endpoint, stream);
    return;
  }
  list_append(&endpoint->node->endpoints, &endpoint->peer);
  loop_poller_start(loop, &endpoint->poller, poll_endpoint);
  endpoint->poller.arm = rdma_arm;
  rdma_channel_start(endpoint, stream);
}

static void connect_channel(struct endpoint *base, haul_deadline until) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  struct link *link = base->link;
  struct stream stream;
  if (endpoint_is_closed(base))
    return;
  if (link->open_channel(link, &rdma_transport, false, 0, until, &stream) != 0) {
    endpoint_close_unless_open(base, "cannot open the rdma channel: ", haul_error_last()->text);
    return;
  }
  loop_lock(link->fabric->loop);
  start_endpoint(endpoint, stream);
  loop_unlock(link->fabric->loop);
  if (!endpoint_wait_settled(base, until))
    endpoint_close_unless_open(base, "the peer did not respond on the rdma channel in time", "");
}

static void adopt(struct endpoint *base, unsigned index, struct stream stream) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  if (index != 0 || endpoint->channel.fd >= 0)
    stream_close(&stream);
  else if (endpoint_is_closed(base))
    rdma_reject(endpoint, stream);
  else
    start_endpoint(endpoint, stream);
}

static void rdma_stop(struct endpoint *base, int code) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  atomic_store(&base->open, false);
  list_remove(&endpoint->peer);
  rdma_channel_stop(endpoint, code);
  staging_cancel_wait(&endpoint->staging);
  loop_timer_stop(&endpoint->timer);
  if (endpoint->poller.arm) /* it was started */
    loop_poller_stop(base->link->fabric->loop, &endpoint->poller);
  rdma_rails_close(endpoint);
  /* Deferred jobs are rejected here; rdma_post rejects those that are deferred later. */
  combiner_drain(&endpoint->combiner);
  rdma_end_rejected(endpoint);
}

static void forked(struct endpoint *base) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  if (endpoint->channel.fd >= 0)
    close(endpoint->channel.fd);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    if (endpoint->rails[i]->events)
      close(endpoint->rails[i]->events->fd);
}

static void rdma_destroy(struct endpoint *base) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  for (struct list *item; (item = list_take(&endpoint->bindings));)
    alloc_free(list_entry(item, struct rdma_binding, link));
  combiner_destroy(&endpoint->combiner);
  rdma_rails_free(endpoint);
  alloc_free(endpoint->greeting);
  alloc_free(endpoint);
}

static int bind_remote(struct endpoint *base, const struct remote_key *key, haul_deadline until,
                       void **out) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  struct rdma_binding *binding = rdma_make_binding(endpoint, key->handle, key->length);
  int code = binding ? rdma_attach(endpoint, until, binding) : error_memory("remote region");
  if (code) {
    alloc_free(binding);
    return code;
  }
  *out = binding;
  return 0;
}

/* Takes no lock, because the last work may end with any lock held: the loop frees the binding. In a
 * forked child a lock may stay held for ever, and the loop belongs to the parent. */
static void unbind(struct endpoint *base, void *bound) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  struct rdma_binding *binding = bound;
  if (!binding || fork_is_child())
    return;
  atomic_store(&binding->released, true);
  atomic_store(&endpoint->bindings_changed, true);
  loop_wake(base->link->fabric->loop);
}

unsigned rdma_near(const struct rdma_endpoint *endpoint, struct haul_place place, unsigned rails) {
  uint64_t ranks = rdma_devices_rank(endpoint->node, place);
  unsigned near = 0, best = UINT_MAX;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    const struct rdma_device *device = endpoint->rails[i]->device;
    unsigned rank = rdma_rank_of(ranks, device);
    if (!(rails & 1u << i) || rank > best || !rdma_rail_is_usable(endpoint->rails[i]))
      continue;
    near = (rank < best ? 0 : near) | 1u << device->number;
    best = rank;
  }
  return near;
}

/* The number of a reason in node->refusals. */
static unsigned refusal(struct endpoint *base, struct haul_region *local) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  unsigned near = rdma_near(endpoint, local->memory.place, UINT_MAX);
  rdma_devices_try(endpoint->node, near, local);
  uint64_t refused = atomic_load(&local->refused);
  return near & ~refused ? 0 : (unsigned)(refused >> RDMA_REFUSAL_AT);
}

/* Returns the reason why atomics are unavailable, or NULL. `staged` means that the local memory
 * uses a bounce buffer. */
static const char *atomics_obstacle(const struct rdma_endpoint *endpoint,
                                    const struct rdma_binding *binding, bool staged) {
  const struct rdma_rail *rail = endpoint->rails[binding->atomic_rail];
  if (!rdma_rail_is_usable(rail))
    return RDMA_SILENT;
  if (rail->device->nic->limits.atomics == IBV_ATOMIC_NONE)
    return "this side's NIC has no atomics";
  if (rail->peer_atomics == IBV_ATOMIC_NONE)
    return "the peer's NIC has no atomics";
  if (!binding->atomic)
    return "the peer's CPU cannot access the memory, or its NIC for atomics has no rail";
  if (staged)
    return "the old value would go to local memory that no NIC can register";
  return binding->address % 8 ? "the peer's region does not begin at a multiple of 8 bytes" : NULL;
}

/* A NIC without IBV_ATOMIC_GLOB is atomic only among its own operations: that is for callers who
 * know that no other NIC or CPU takes part. */
static void estimate_atomic(const struct rdma_endpoint *endpoint,
                            const struct rdma_binding *binding, bool staged,
                            struct estimate *estimate) {
  const char *obstacle = atomics_obstacle(endpoint, binding, staged);
  estimate->open = !obstacle;
  const struct rdma_rail *rail = endpoint->rails[binding->atomic_rail];
  estimate->explicit_only = rail->peer_atomics != IBV_ATOMIC_GLOB;
  snprintf(estimate->reason, sizeof estimate->reason, "%s",
           obstacle ? obstacle
           : !estimate->explicit_only
               ? ""
               : "the peer's NIC is atomic only among its own operations (IBV_ATOMIC_HCA); "
                 "set only = \"rdma\" to use it anyway");
  if (estimate->explicit_only)
    snprintf(estimate->detail, sizeof estimate->detail, "%.16s, NIC-atomic only", rail->end.nic);
}

/* The rails that carry the transfers of a place: its nearest. */
struct choice {
  unsigned devices;                      /* their bits */
  const struct rdma_rail *first, *other; /* other: one that is farther; NULL: none */
  unsigned count, by_order, silent;
  double bytes_per_ns;
};

static struct choice choose(const struct rdma_endpoint *endpoint,
                            const struct rdma_binding *binding, struct haul_place place) {
  struct choice choice = {.devices = rdma_near(endpoint, place, binding->rails),
                          .first = endpoint->rails[0]};
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    const struct rdma_rail *rail = endpoint->rails[i];
    if (!rdma_rail_is_usable(rail)) {
      choice.silent++;
      continue;
    }
    if (!(choice.devices & 1u << rail->device->number)) {
      choice.other = rail;
      continue;
    }
    choice.first = choice.count > 0 ? choice.first : rail;
    choice.count++;
    choice.by_order += rail->by_order;
    choice.bytes_per_ns += rail->device->port.bytes_per_ns;
  }
  return choice;
}

/* Where there were others. */
static void explain_choice(const struct rdma_endpoint *endpoint, const struct rdma_binding *binding,
                           struct haul_place place, const struct choice *choice, char text[112]) {
  const struct rdma_rail *other = choice->other;
  size_t at = 0;
  text[0] = '\0';
  if (other)
    at = (size_t)snprintf(text, 112, "%s",
                          binding->rails & 1u << other->number
                              ? rdma_devices_compare(choice->first->device, other->device, place)
                              : "the peer's other NICs cannot register the memory");
  unsigned by_order = endpoint->rail_count > 1 ? choice->by_order : 0;
  if (by_order + choice->silent > 0)
    snprintf(text + at, 112 - at, "%s%u %s", at ? "; " : "",
             choice->silent ? choice->silent : by_order,
             choice->silent ? "left out: " RDMA_SILENT : "paired by order, not by subnet");
}

/* With the endpoint's lock, as rails may be renewed. */
static void estimate_rails(const struct rdma_endpoint *endpoint, const struct rdma_binding *binding,
                           const struct choice *choice, bool local_staged, bool inlines,
                           struct estimate *estimate) {
  bool remote_staged = binding->staged;
  /* Starting values, corrected by measurement: twice the latency that NICs since 2020 show
   * (perftest's ib_write_lat), and a device engine's copy for each staged side. The peer's copy
   * also costs a request and a response. */
  double latency_ns = 3000 + (local_staged ? 20000 : 0) + (remote_staged ? 60000 : 0);
  double ns_per_byte = choice->bytes_per_ns > 0 ? 1 / choice->bytes_per_ns : 1;
  estimate->lines[local_staged ? SEND_BUFFERED : SEND_DIRECT] =
      (struct line){UINT64_MAX, latency_ns, ns_per_byte};
  if (inlines)
    estimate->lines[SEND_SHORT] = (struct line){choice->first->inlined, latency_ns, ns_per_byte};
  static const char *const staged[2][2] = {{"", ", staged remotely"},
                                           {", staged locally", ", staged on both sides"}};
  char of[16] = "";
  if (choice->other)
    snprintf(of, sizeof of, " of %u", endpoint->rail_count);
  snprintf(estimate->detail, sizeof estimate->detail, "%.24s, %u%s rail%s%s",
           choice->first->end.nic, choice->count, of,
           choice->count == 1 && !choice->other ? "" : "s", staged[local_staged][remote_staged]);
}

static void estimate(struct endpoint *base, const struct remote_key *key, void *bound,
                     const struct memory *local, enum haul_operation operation,
                     struct estimate *estimate) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  struct rdma_binding *binding = rdma_latest(bound);
  (void)key;
  unsigned refused = estimate->refusal;
  bool local_staged = refused;
  bool inlines = operation == HAUL_OP_WRITE && !local_staged && local->view;
  struct choice choice = choose(endpoint, binding, local->place);
  const char *refusal = local_staged ? endpoint->node->refusals[refused - 1] : binding->reason;
  char why[112];
  *estimate = (struct estimate){.open = choice.count > 0 && (!local_staged || copy_stages(local)),
                                .zero_copy = !local_staged && !binding->staged,
                                .outdated = binding->staged ? &binding->renewed : NULL,
                                .rails = operation_is_atomic(operation) ? 1 : choice.count,
                                .copies_dma = 1u + local_staged + binding->staged};
  explain_choice(endpoint, binding, local->place, &choice, why);
  char reason[sizeof why + 2 + sizeof estimate->reason];
  const char *told = estimate->open || choice.count == 0 ? why : "";
  snprintf(reason, sizeof reason, "%s%s%.191s", told, *told && *refusal ? "; " : "", refusal);
  snprintf(estimate->reason, sizeof estimate->reason, "%.191s", reason);
  combiner_lock(&endpoint->combiner);
  if (estimate->open)
    estimate_rails(endpoint, binding, &choice, local_staged, inlines, estimate);
  if (estimate->open && operation_is_atomic(operation))
    estimate_atomic(endpoint, binding, local_staged, estimate);
  combiner_unlock(&endpoint->combiner);
}

static int rdma_open_node(struct fabric *fabric) {
  struct rdma_node *node = alloc_zero(1, sizeof *node);
  if (!node)
    return error_memory("rdma transport");
  node->fabric = fabric;
  list_init(&node->endpoints);
  pthread_mutex_init(&node->lock, NULL);
  fabric->shared[rdma_transport.index] = node;
  /* Other hosts may have opened it by the same file: without a NIC it has no effect. */
  int code = rdma_settings_need_nic(fabric->rdma) ? rdma_devices_open(node) : 0;
  return code == HAUL_EINVAL || code == HAUL_ENOMEM ? code : 0;
}

static void prepare(struct fabric *fabric) {
  rdma_devices_open(fabric->shared[rdma_transport.index]);
}

static void close_node(struct fabric *fabric) {
  struct rdma_node *node = fabric->shared[rdma_transport.index];
  if (node)
    rdma_await_attach_threads(node);
}

static void release_node(struct fabric *fabric) {
  struct rdma_node *node = fabric->shared[rdma_transport.index];
  if (!node)
    return;
  loop_lock(fabric->loop);
  rdma_events_unwatch(node);
  loop_unlock(fabric->loop);
  rdma_devices_close(node);
  pthread_mutex_destroy(&node->lock);
  alloc_free(node);
}

/* Reports receives, and the registration caches. Exported memory is registered outside of them. */
static void counters(struct fabric *fabric,
                     void (*each)(void *user, const char *name, uint64_t value), void *user) {
  struct rdma_node *node = fabric->shared[rdma_transport.index];
  struct regcache_counters sum;
  rdma_devices_count(node, &sum);
  each(user, "rdma.receives.bytes", atomic_load(&node->receive_bytes));
  each(user, "rdma.receives.unshared", atomic_load(&node->own_receives));
  each(user, "rdma.cache.hits", sum.hits);
  each(user, "rdma.cache.misses", sum.misses);
  each(user, "rdma.cache.registrations", sum.registrations);
  each(user, "rdma.cache.evictions", sum.evictions);
  each(user, "rdma.cache.invalidations", sum.invalidations);
  each(user, "rdma.cache.bytes", sum.bytes);
  each(user, "rdma.cache.entries", sum.entries);
}

static void abandon(struct fabric *fabric) {
  nics_forked(((struct rdma_node *)fabric->shared[rdma_transport.index])->nics);
}

const struct transport rdma_transport = {
    .name = "rdma",
    .index = 1,
    .open = rdma_open_node,
    .prepare = prepare,
    .close = close_node,
    .release = release_node,
    .abandon = abandon,
    .counters = counters,
    .checks = rdma_checks,
    .ports = rdma_ports,
    .create = create,
    .connect = connect_channel,
    .adopt = adopt,
    .stop = rdma_stop,
    .forked = forked,
    .destroy = rdma_destroy,
    .announce = rdma_devices_announce,
    .invalidate = rdma_devices_invalidate,
    .bind = bind_remote,
    .unbind = unbind,
    .refusal = refusal,
    .estimate = estimate,
    .post = rdma_post,
    .cancel = rdma_cancel,
    .revoke = rdma_revoke,
    .touches = rdma_uses_handle,
};
