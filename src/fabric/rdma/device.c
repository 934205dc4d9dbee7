/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/checks.h"
#include "fabric/rdma/endpoint.h"
#include "fabric/rdma/receives.h"
#include "memory/pages.h"
#include "memory/region.h"

/* Limits of unused registrations kept in a cache. RLIMIT_MEMLOCK bounds pinned memory as well. */
#define KEPT_BYTES   ((uint64_t)64 << 30)
#define KEPT_ENTRIES 65536
#define MERGE        ((uint64_t)1 << 30)

/* A range's kind in the cache: whether the NIC may write to it, and the place of device memory, as
 * an address means something else on each device. No cached registration is open to peers: it
 * covers whole pages and neighbours, which are published to no peer. */
#define KIND_TARGET 1u
#define KIND_DEVICE 2u
#define KIND_PLACES 2 /* bits below the place */

/* A refusal may be for lack of something that others free. It is tried again after RDMA_RETRY_NS,
 * and after this many times as long as it took. */
#define RETRY_SHARE 64

static int pin_error(const struct rdma_device *device, int system) {
  if (system == ENOMEM)
    return error_set(
        HAUL_ELIMIT, system, device->nic->name,
        "raise the limit: ulimit -l unlimited (haul doctor rdma shows it)",
        "the memory cannot be pinned: a limit of locked memory or of registrations is reached");
  if (system == EFAULT)
    return error_set(
        HAUL_EINVAL, system, device->nic->name, "register the memory behind the mapping",
        "the memory cannot be pinned: it is a mapping of a device or a dma-buf, or was "
        "unmapped or protected");
  return error_set(HAUL_ENOTSUP, system, device->nic->name, NULL,
                   "the memory cannot be registered: %s", strerror(system));
}

static int pin_address(const struct rdma_device *device, uint64_t address, uint64_t length,
                       unsigned access, struct ibv_mr **mr) {
  *mr = device->nic->verbs->reg_mr_iova2(device->nic->pd, (void *)(uintptr_t)address, length,
                                         address, access | IBV_ACCESS_RELAXED_ORDERING);
  return *mr ? 0 : pin_error(device, errno);
}

static int pin(const struct rdma_device *device, uint64_t address, uint64_t length, unsigned access,
               struct ibv_mr **mr) {
  /* Pinning would populate address space that is reserved without memory behind it. */
  if (length / page_size() > (uint64_t)sysconf(_SC_PHYS_PAGES))
    return error_set(HAUL_ELIMIT, 0, device->nic->name, "publish a part of it",
                     "the memory cannot be pinned: it is larger than this host's");
  return pin_address(device, address, length, access, mr);
}

static int pin_dmabuf(const struct rdma_device *device, struct memory *memory, uint64_t length,
                      unsigned access, struct ibv_mr **mr) {
  const struct nic *nic = device->nic;
  uint64_t offset;
  int descriptor;
  if (nic->dmabuf)
    return error_set(HAUL_ENOTSUP, nic->dmabuf, nic->name, "haul doctor rdma",
                     "%s takes no dma-buf and the kernel has no peer memory for it", nic->name);
  int code = memory_dmabuf(memory, &descriptor, &offset);
  if (code)
    return code;
  *mr = nic->verbs->reg_dmabuf_mr(nic->pd, offset, length, (uintptr_t)memory->address, descriptor,
                                  (int)(access | IBV_ACCESS_RELAXED_ORDERING));
  int system = errno;
  close(descriptor); /* the registration holds the buffer */
  return *mr ? 0 : pin_error(device, system);
}

/* Through the dma-buf, else by address, where the kernel has peer memory for the device. Memory for
 * which both fail is staged. */
static int pin_device_memory(const struct rdma_device *device, struct memory *memory,
                             uint64_t length, unsigned access, struct ibv_mr **mr) {
  struct haul_error refusal;
  int code = pin_dmabuf(device, memory, length, access, mr);
  if (code == 0 || !checks_peer_memory())
    return code;
  error_save(&refusal);
  code = pin_address(device, (uintptr_t)memory->address, length, access, mr);
  return code == 0 || code == HAUL_ELIMIT ? code : error_restore(&refusal);
}

static int add_device_memory(const struct rdma_device *device, const struct regcache_range *pages,
                             unsigned access, struct ibv_mr **mr) {
  struct memory memory;
  int code = memory_wrap((void *)(uintptr_t)pages->address, pages->length, &memory);
  if (code)
    return code;
  code = memory.view
             ? error_set(HAUL_ESTALE, 0, device->nic->name, NULL, "the device memory was freed")
             : pin_device_memory(device, &memory, pages->length, access, mr);
  memory_free(&memory);
  return code;
}

static int add_registration(void *user, const struct regcache_range *pages, void **handle) {
  struct rdma_device *device = user;
  struct ibv_mr *mr = NULL;
  unsigned access = pages->kind & KIND_TARGET ? IBV_ACCESS_LOCAL_WRITE : 0;
  int code = pages->kind & KIND_DEVICE ? add_device_memory(device, pages, access, &mr)
                                       : pin(device, pages->address, pages->length, access, &mr);
  *handle = mr;
  return code;
}

static void drop_registration(void *user, void *handle) {
  rdma_device_unexport(user, handle);
}

static const struct regcache_ops registrar = {add_registration, drop_registration};

/* Some kernel drivers cannot remove a NIC while a process has it open: this node keeps open only
 * the NICs that it uses. */
static void close_unused(struct rdma_node *node) {
  for (size_t i = 0; i < node->nics->count; i++) {
    bool used = false;
    for (unsigned j = 0; j < node->count; j++)
      used |= node->devices[j].nic == &node->nics->list[i];
    if (!used)
      nic_close(&node->nics->list[i]);
  }
}

static int make_devices(struct rdma_node *node, const struct nic_rail *rails, size_t count) {
  const struct regcache_limits limits = {KEPT_BYTES, KEPT_ENTRIES, MERGE, KIND_DEVICE};
  int code = 0;
  node->devices = alloc_zero(count, sizeof *node->devices);
  if (!node->devices)
    return error_memory("RDMA devices");
  for (unsigned i = 0; i < count && code == 0; i++) {
    struct rdma_device *device = &node->devices[i];
    *device =
        (struct rdma_device){.node = node, .number = i, .nic = rails[i].nic, .port = rails[i].port};
    code = regcache_open(&registrar, device, &limits, &device->cache);
    node->count += code == 0;
  }
  return code;
}

static int open_devices(struct rdma_node *node) {
  struct nic_rail rails[RDMA_RAILS_MAX];
  size_t count = RDMA_RAILS_MAX;
  struct nics *nics;
  int code = nics_open(node->fabric->rdma, &nics);
  if (code)
    return code;
  node->nics = nics;
  code = nics_rank(nics, NULL, true, rails, &count); /* a port may come up later */
  if (code == 0)
    code = make_devices(node, rails, count < RDMA_RAILS_MAX ? count : RDMA_RAILS_MAX);
  if (code)
    rdma_devices_close(node);
  else
    close_unused(node);
  return code;
}

/* Announces memory that was wrapped before there were devices, without the lock: it comes back
 * through rdma_devices_announce. */
int rdma_devices_open(struct rdma_node *node) {
  pthread_mutex_lock(&node->lock);
  bool first = !node->nics;
  int code = first ? open_devices(node) : 0;
  pthread_mutex_unlock(&node->lock);
  if (first && code == 0)
    heap_report_wrapped(node->fabric->heap);
  return code;
}

void rdma_devices_close(struct rdma_node *node) {
  for (unsigned i = 0; i < node->count; i++)
    regcache_close(node->devices[i].cache);
  node->count = 0;
  alloc_free(node->devices);
  node->devices = NULL;
  nics_close(node->nics);
  node->nics = NULL;
}

static struct haul_device describe(struct haul_place place) {
  const struct provider *provider = provider_of(place.kind);
  struct haul_device device = {.place = place, .numa = -1};
  if (provider && provider->describe)
    provider->describe(place.device, &device);
  return device;
}

const char *rdma_devices_compare(const struct rdma_device *near, const struct rdma_device *far,
                                 struct haul_place place) {
  struct haul_device device = describe(place);
  return nic_is_near_by(nic_distance(near->nic, &device), nic_distance(far->nic, &device));
}

/* The rank counts those that are nearer; four bits tell 15 ranks apart. */
static uint64_t find_ranks(const struct rdma_node *node, struct haul_place place) {
  struct haul_device device = describe(place);
  struct nic_distance distances[RDMA_RAILS_MAX];
  uint64_t ranks = 0;
  for (unsigned i = 0; i < node->count; i++)
    distances[i] = nic_distance(node->devices[i].nic, &device);
  for (unsigned i = 0; i < node->count; i++) {
    uint64_t rank = 1;
    for (unsigned j = 0; j < node->count && rank < 15; j++)
      rank += nic_is_nearer(distances[j], distances[i]);
    ranks |= rank << 4 * i;
  }
  return ranks;
}

uint64_t rdma_devices_rank(struct rdma_node *node, struct haul_place place) {
  bool keeps = place.kind < RDMA_KINDS && place.device < RDMA_PLACES;
  _Atomic uint64_t *kept = &node->ranks[place.kind % RDMA_KINDS][place.device % RDMA_PLACES];
  uint64_t ranks = keeps ? atomic_load_explicit(kept, memory_order_relaxed) : 0;
  if (ranks == 0)
    ranks = find_ranks(node, place);
  if (keeps)
    atomic_store_explicit(kept, ranks, memory_order_relaxed);
  return ranks;
}

static struct regcache_range range_of(const struct memory *memory, uint32_t target) {
  uint32_t place = (uint32_t)memory->place.kind << 16 | memory->place.device;
  return (struct regcache_range){.address = (uintptr_t)memory->address,
                                 .length = memory->length,
                                 .buffer = memory->identity, /* registrations outlive a region */
                                 .kind = target |
                                         (memory->view ? 0 : KIND_DEVICE | place << KIND_PLACES)};
}

int rdma_device_register(struct rdma_device *device, const struct memory *memory,
                         struct registration **registration, struct ibv_mr **mr) {
  struct regcache_range range = range_of(memory, memory->writable ? KIND_TARGET : 0);
  int code = regcache_get(device->cache, &range, registration);
  if (code == 0)
    *mr = (*registration)->handle;
  return code;
}

/* The text's number, from 1. */
static uint32_t refusal_number(struct rdma_node *node, const char *text) {
  uint32_t i = 0;
  char wanted[sizeof node->refusals[0]];
  snprintf(wanted, sizeof wanted, "%s", text);
  pthread_mutex_lock(&node->lock);
  while (i < RDMA_REFUSALS - 1 && node->refusals[i][0] && strcmp(node->refusals[i], wanted) != 0)
    i++;
  if (!node->refusals[i][0])
    memcpy(node->refusals[i], wanted, sizeof wanted);
  pthread_mutex_unlock(&node->lock);
  return i + 1;
}

int64_t rdma_retry_at(int64_t began) {
  int64_t now = clock_now();
  return clock_after(now, RDMA_RETRY_NS + RETRY_SHARE * (now - began));
}

#define DEVICES ((1u << RDMA_RAILS_MAX) - 1)

void rdma_devices_try(struct rdma_node *node, unsigned devices, struct haul_region *region) {
  int64_t retry_at = atomic_load(&region->retry_at), began;
  uint64_t was = atomic_load(&region->refused), tried = was >> RDMA_RAILS_MAX & DEVICES;
  struct registration *registration;
  struct ibv_mr *mr;
  uint64_t refused = 0, others = was & DEVICES & ~devices;
  bool any = devices & ~tried;
  if (!any && retry_at == HAUL_FOREVER)
    return;
  began = clock_now();
  if (!any && retry_at > began)
    return;
  for (unsigned i = 0; i < node->count; i++) {
    if (!(devices & 1u << i))
      continue;
    if (rdma_device_register(&node->devices[i], &region->memory, &registration, &mr) == 0)
      regcache_put(node->devices[i].cache, registration);
    else
      refused |= UINT64_C(1) << i;
  }
  uint64_t number = refused  ? refusal_number(node, haul_error_last()->text)
                    : others ? was >> RDMA_REFUSAL_AT
                             : 0;
  refused |= others;
  atomic_store(&region->refused,
               refused | (tried | devices) << RDMA_RAILS_MAX | number << RDMA_REFUSAL_AT);
  atomic_store(&region->retry_at, refused ? rdma_retry_at(began) : HAUL_FOREVER);
}

bool rdma_device_allows_atomics(const struct rdma_device *device, const struct memory *memory,
                                unsigned rights) {
  return rights == (HAUL_READ | HAUL_WRITE) && memory->view &&
         device->nic->limits.atomics != IBV_ATOMIC_NONE;
}

int rdma_device_export(struct rdma_device *device, const struct memory *memory, unsigned rights,
                       struct ibv_mr **mr) {
  unsigned access =
      (rights & HAUL_READ ? (unsigned)IBV_ACCESS_REMOTE_READ : 0) |
      (rights & HAUL_WRITE ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE : 0) |
      (rdma_device_allows_atomics(device, memory, rights) ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  struct memory copy = *memory;
  return memory->view ? pin(device, (uintptr_t)memory->address, memory->length, access, mr)
                      : pin_device_memory(device, &copy, memory->length, access, mr);
}

int rdma_device_pin(struct rdma_device *device, const struct memory *memory, struct ibv_mr **mr) {
  return pin(device, (uintptr_t)memory->address, memory->length, IBV_ACCESS_LOCAL_WRITE, mr);
}

void rdma_device_unexport(struct rdma_device *device, struct ibv_mr *mr) {
  if (mr)
    device->nic->verbs->dereg_mr(mr);
}

/* Device memory is registered block by block instead. A failure is ignored: the first use tries
 * again. */
void rdma_devices_announce(struct fabric *fabric, const struct memory *memory) {
  struct rdma_node *node = fabric->shared[rdma_transport.index];
  struct regcache_range range = range_of(memory, memory->writable ? KIND_TARGET : 0);
  pthread_mutex_lock(&node->lock);
  for (unsigned i = 0; memory->view && i < node->count; i++)
    regcache_announce(node->devices[i].cache, &range);
  pthread_mutex_unlock(&node->lock);
}

void rdma_devices_invalidate(struct fabric *fabric, const struct memory *memory) {
  struct rdma_node *node = fabric->shared[rdma_transport.index];
  pthread_mutex_lock(&node->lock);
  for (uint32_t target = 0; target <= KIND_TARGET; target++) {
    struct regcache_range range = range_of(memory, target);
    for (unsigned i = 0; i < node->count; i++)
      regcache_invalidate(node->devices[i].cache, &range);
  }
  pthread_mutex_unlock(&node->lock);
}

void rdma_devices_count(struct rdma_node *node, struct regcache_counters *sum) {
  *sum = (struct regcache_counters){0};
  pthread_mutex_lock(&node->lock);
  for (unsigned i = 0; i < node->count; i++) {
    struct regcache_counters own;
    regcache_counters(node->devices[i].cache, &own);
    sum->hits += own.hits;
    sum->misses += own.misses;
    sum->registrations += own.registrations;
    sum->evictions += own.evictions;
    sum->invalidations += own.invalidations;
    sum->bytes += own.bytes;
    sum->entries += own.entries;
  }
  pthread_mutex_unlock(&node->lock);
}

/* Completions do not show these failures: a removed device and an overrun completion queue deliver
 * none, and an idle queue pair has no work request that could fail. */
static bool concerns_rail(const struct rdma_rail *rail, const struct ibv_async_event *event) {
  switch (event->event_type) {
  case IBV_EVENT_DEVICE_FATAL:
    return true;
  case IBV_EVENT_CQ_ERR:
    return rail->cq == event->element.cq;
  case IBV_EVENT_SRQ_ERR:
    return rail->receives && rail->receives->queue == event->element.srq;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    return rail->qp && rail->qp == event->element.qp;
  default:
    return false; /* retries cover a link that is down for a moment */
  }
}

static const char *event_reason(enum ibv_event_type type) {
  switch (type) {
  case IBV_EVENT_DEVICE_FATAL:
    return "the NIC failed or was removed";
  case IBV_EVENT_CQ_ERR:
    return "the completion queue overran";
  case IBV_EVENT_SRQ_ERR:
    return "the shared receive queue failed";
  default:
    return "the queue pair failed: the peer sent a work request that is not allowed";
  }
}

static void break_rails(struct rdma_endpoint *endpoint, const struct nic *nic,
                        const struct ibv_async_event *event) {
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    const struct rdma_rail *rail = endpoint->rails[i];
    if (rail->device->nic != nic || !concerns_rail(rail, event))
      continue;
    error_set(HAUL_EPATH, 0, nic->name, NULL, "%s: %s", nic->name, event_reason(event->event_type));
    rdma_break(endpoint, haul_error_last()->text);
    return;
  }
}

/* A queue pair failed whose receives are shared, and therefore not flushed. Completions that came
 * before may name the cause. */
static bool poll_failed(struct rdma_endpoint *endpoint, const struct ibv_qp *qp) {
  bool found = false;
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count && !endpoint->broken; i++)
    if (endpoint->rails[i]->qp == qp)
      endpoint->rails[i]->flushed = found = true;
  combiner_unlock(&endpoint->combiner);
  if (found)
    rdma_poll(endpoint);
  return found;
}

static void on_event(struct watch *watch, uint32_t events) {
  struct rdma_device *device = list_entry(watch, struct rdma_device, watch);
  const struct verbs *verbs = device->nic->verbs;
  struct ibv_async_event event;
  (void)events;
  if (verbs->get_async_event(device->nic->context, &event) != 0)
    return;
  verbs->ack_async_event(&event); /* first: destroying its object waits for this */
  if (event.event_type == IBV_EVENT_SRQ_ERR)
    rdma_receives_retire(device, event.element.srq);
  list_each_safe(item, &device->node->endpoints) {
    struct rdma_endpoint *endpoint = list_entry(item, struct rdma_endpoint, peer);
    if (event.event_type != IBV_EVENT_QP_LAST_WQE_REACHED)
      break_rails(endpoint, device->nic, &event);
    else if (poll_failed(endpoint, event.element.qp))
      return;
  }
}

int rdma_events_watch(struct rdma_node *node) {
  int code = 0;
  for (unsigned i = 0; i < node->count && code == 0; i++) {
    struct rdma_device *device = &node->devices[i];
    unsigned first = 0; /* of the NIC */
    while (node->devices[first].nic != device->nic)
      first++;
    if (device->watch.slot || first < i)
      continue;
    int fd = device->nic->context->async_fd;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    code = loop_watch(node->fabric->loop, &device->watch, fd, EPOLLIN, on_event);
  }
  return code;
}

void rdma_events_unwatch(struct rdma_node *node) {
  for (unsigned i = 0; i < node->count; i++)
    if (node->devices[i].watch.slot)
      loop_unwatch(node->fabric->loop, &node->devices[i].watch);
}
