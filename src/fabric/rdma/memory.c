/* SPDX-License-Identifier: MIT
 * The ports that this node uses, and what is registered at them. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "fabric/rdma/checks.h"
#include "fabric/rdma/rdma.h"
#include "memory/pages.h"

/* What stays registered after its last use. Pinned memory is bounded by RLIMIT_MEMLOCK as well. */
#define KEPT_BYTES   ((uint64_t)64 << 30)
#define KEPT_ENTRIES 65536
#define MERGE        ((uint64_t)1 << 30)

/* A range's kind: whether the NIC may write there, and for device memory the place: addresses mean
 * something else on each. Nothing in the cache is open to peers: its registrations cover whole
 * pages and neighbours, which were published to nobody. */
#define KIND_TARGET 1u
#define KIND_DEVICE 2u
#define KIND_PLACES 2 /* bits before the place */

/* ---- The registrar ---- */

static int refused(const struct rdma_card *card, int system) {
  if (system == ENOMEM)
    return error_set(
        HAUL_ELIMIT, system, card->nic->name,
        "raise the limit: ulimit -l unlimited; haul doctor looks at it",
        "the memory cannot be pinned: a limit of locked memory or of registrations is reached");
  if (system == EFAULT)
    return error_set(HAUL_EINVAL, system, card->nic->name, "register what is behind the mapping",
                     "the memory cannot be pinned: it is a mapping of a device, as a dma-buf's, or "
                     "was unmapped or protected");
  return error_set(HAUL_ENOTSUP, system, card->nic->name, NULL,
                   "the memory cannot be registered: %s", strerror(system));
}

/* Address space that was reserved without memory behind it would be filled while it is pinned. */
static bool is_vast(uint64_t length) {
  return length / page_size() > (uint64_t)sysconf(_SC_PHYS_PAGES);
}

static int pin(const struct rdma_card *card, uint64_t address, uint64_t length, unsigned access,
               struct ibv_mr **mr) {
  if (is_vast(length))
    return error_set(HAUL_ELIMIT, 0, card->nic->name, "publish a part",
                     "the memory cannot be pinned: it is larger than this host's");
  *mr = card->nic->verbs->reg_mr_iova2(card->nic->pd, (void *)(uintptr_t)address, length, address,
                                       access | IBV_ACCESS_RELAXED_ORDERING);
  return *mr ? 0 : refused(card, errno);
}

/* The descriptor is not needed any more once the memory is registered: the kernel holds the buffer.
 */
static int pin_dmabuf(const struct rdma_card *card, struct memory *memory, uint64_t length,
                      unsigned access, struct ibv_mr **mr) {
  uint64_t offset;
  int descriptor;
  int code = memory_dmabuf(memory, &descriptor, &offset);
  if (code)
    return code;
  *mr = card->nic->verbs->reg_dmabuf_mr(card->nic->pd, offset, length, (uintptr_t)memory->address,
                                        descriptor, (int)(access | IBV_ACCESS_RELAXED_ORDERING));
  int system = errno;
  close(descriptor);
  return *mr ? 0 : refused(card, system);
}

/* Device memory through its dma-buf, else by its address, which works where the kernel has peer
 * memory for the device. Whoever gets a no goes through a stage. */
static int pin_device(const struct rdma_card *card, struct memory *memory, uint64_t length,
                      unsigned access, struct ibv_mr **mr) {
  if (card->nic->dmabuf == 0)
    return pin_dmabuf(card, memory, length, access, mr);
  if (checks_peer_memory())
    return pin(card, (uintptr_t)memory->address, length, access, mr);
  return error_set(HAUL_ENOTSUP, card->nic->dmabuf, card->nic->name, "haul doctor rdma",
                   "%s takes no dma-buf and the kernel has no peer memory", card->nic->name);
}

static int add_device(const struct rdma_card *card, const struct regcache_range *pages,
                      unsigned access, struct ibv_mr **mr) {
  struct memory memory;
  int code = memory_wrap((void *)(uintptr_t)pages->address, pages->length, &memory);
  if (code)
    return code;
  code = memory.view
             ? error_set(HAUL_ESTALE, 0, card->nic->name, NULL, "the device memory was freed")
             : pin_device(card, &memory, pages->length, access, mr);
  memory_free(&memory);
  return code;
}

static int add(void *user, const struct regcache_range *pages, void **handle) {
  struct rdma_card *card = user;
  struct ibv_mr *mr = NULL;
  unsigned access = pages->kind & KIND_TARGET ? IBV_ACCESS_LOCAL_WRITE : 0;
  int code = pages->kind & KIND_DEVICE ? add_device(card, pages, access, &mr)
                                       : pin(card, pages->address, pages->length, access, &mr);
  *handle = mr;
  return code;
}

static void drop(void *user, void *handle) {
  struct rdma_card *card = user;
  card->nic->verbs->dereg_mr(handle);
}

static const struct regcache_ops registrar = {add, drop};

/* ---- Cards ---- */

static int open_card(struct rdma_node *node, const struct nic_rail *rail) {
  const struct regcache_limits limits = {KEPT_BYTES, KEPT_ENTRIES, MERGE};
  struct rdma_card *card = &node->cards[node->count];
  *card = (struct rdma_card){.node = node, .nic = rail->nic, .port = rail->port};
  int code = regcache_open(&registrar, card, &limits, &card->cache);
  node->count += code == 0;
  return code;
}

/* A kernel whose driver cannot take a NIC from who has it open waits for them all when it is to be
 * removed: this node keeps open what it uses. */
static void close_others(struct rdma_node *node) {
  for (size_t i = 0; i < node->nics->count; i++) {
    bool used = false;
    for (unsigned j = 0; j < node->count; j++)
      used |= node->cards[j].nic == &node->nics->list[i];
    if (!used)
      nic_close(&node->nics->list[i]);
  }
}

static int open_cards(struct rdma_node *node) {
  struct nic_rail rails[RDMA_RAILS_MAX];
  size_t count = RDMA_RAILS_MAX;
  struct nics *nics;
  int code = nics_open(&nics);
  if (code)
    return code;
  node->nics = nics;
  code = nics_rank(nics, NULL, rails, &count);
  for (size_t i = 0; i < count && i < RDMA_RAILS_MAX && code == 0; i++)
    code = open_card(node, &rails[i]);
  if (code)
    cards_close(node);
  else
    close_others(node);
  return code;
}

/* What was wrapped before there were cards is told last: it comes back through cards_learn. */
int cards_open(struct rdma_node *node) {
  pthread_mutex_lock(&node->lock);
  bool first = !node->nics;
  int code = first ? open_cards(node) : 0;
  pthread_mutex_unlock(&node->lock);
  if (first && code == 0)
    heap_report_wrapped(node->fabric->heap);
  return code;
}

void cards_close(struct rdma_node *node) {
  for (unsigned i = 0; i < node->count; i++)
    regcache_close(node->cards[i].cache);
  node->count = 0;
  nics_put(node->nics);
  node->nics = NULL;
}

static bool is_nearer(struct nic_distance a, struct nic_distance b) {
  return a.shared != b.shared ? a.shared > b.shared : a.numa < b.numa;
}

static unsigned find_near(struct rdma_node *node, struct haul_place place) {
  const struct provider *provider = provider_of(place.kind);
  struct haul_device device = {.place = place, .numa = -1};
  struct nic_distance best = {0};
  unsigned near = 0;
  if (provider && provider->describe)
    provider->describe(place.device, &device);
  for (unsigned i = 0; i < node->count; i++) {
    struct nic_distance distance = nic_distance(node->cards[i].nic, &device);
    if (near == 0 || is_nearer(distance, best)) {
      best = distance;
      near = 0;
    }
    if (!is_nearer(best, distance))
      near |= 1u << i;
  }
  return near;
}

unsigned cards_near(struct rdma_node *node, struct haul_place place) {
  _Atomic uint8_t *kept = &node->near[place.kind % 32][place.device % 16];
  bool keeps = place.kind < 32 && place.device < 16;
  unsigned near = keeps ? atomic_load_explicit(kept, memory_order_relaxed) : 0;
  if (near == 0)
    near = find_near(node, place);
  if (keeps)
    atomic_store_explicit(kept, (uint8_t)near, memory_order_relaxed);
  return near;
}

/* ---- Memory ---- */

static struct regcache_range range_of(const struct memory *memory, uint32_t target) {
  uint32_t place = (uint32_t)memory->place.kind << 16 | memory->place.device;
  return (struct regcache_range){.address = (uintptr_t)memory->address,
                                 .length = memory->length,
                                 .kind = target |
                                         (memory->view ? 0 : KIND_DEVICE | place << KIND_PLACES)};
}

/* Of what the application may free and allocate anew behind our back; haul's own tells its end. */
static uint64_t buffer_of(const struct memory *memory) {
  bool asks = memory->wrapped && memory->provider->buffer;
  return asks ? memory->provider->buffer(memory) : 0;
}

int card_register(struct rdma_card *card, const struct memory *memory,
                  struct registration **registration, struct ibv_mr **mr) {
  struct regcache_range range = range_of(memory, memory->writable ? KIND_TARGET : 0);
  range.buffer = buffer_of(memory);
  int code = regcache_get(card->cache, &range, registration);
  if (code == 0)
    *mr = (*registration)->handle;
  return code;
}

bool card_operates(const struct rdma_card *card, const struct memory *memory, unsigned rights) {
  return rights == (HAUL_READ | HAUL_WRITE) && memory->view &&
         card->nic->limits.atomics != IBV_ATOMIC_NONE;
}

int card_export(struct rdma_card *card, const struct memory *memory, unsigned rights,
                struct ibv_mr **mr) {
  unsigned access = (rights & HAUL_READ ? (unsigned)IBV_ACCESS_REMOTE_READ : 0) |
                    (rights & HAUL_WRITE ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE : 0) |
                    (card_operates(card, memory, rights) ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  struct memory device = *memory;
  return memory->view ? pin(card, (uintptr_t)memory->address, memory->length, access, mr)
                      : pin_device(card, &device, memory->length, access, mr);
}

int card_pin(struct rdma_card *card, const struct memory *memory, struct ibv_mr **mr) {
  return pin(card, (uintptr_t)memory->address, memory->length, IBV_ACCESS_LOCAL_WRITE, mr);
}

void card_unexport(struct rdma_card *card, struct ibv_mr *mr) {
  if (mr)
    card->nic->verbs->dereg_mr(mr);
}

/* Device memory is registered block by block. Announcing is an offer, so its failure is none. */
void cards_learn(struct rdma_node *node, const struct memory *memory) {
  struct regcache_range range = range_of(memory, memory->writable ? KIND_TARGET : 0);
  pthread_mutex_lock(&node->lock);
  for (unsigned i = 0; memory->view && i < node->count; i++)
    regcache_announce(node->cards[i].cache, &range);
  pthread_mutex_unlock(&node->lock);
}

void cards_forget(struct rdma_node *node, const struct memory *memory) {
  pthread_mutex_lock(&node->lock);
  for (uint32_t target = 0; target <= KIND_TARGET; target++) {
    struct regcache_range range = range_of(memory, target);
    for (unsigned i = 0; i < node->count; i++)
      regcache_invalidate(node->cards[i].cache, &range);
  }
  pthread_mutex_unlock(&node->lock);
}

void cards_count(struct rdma_node *node, struct regcache_counters *sum) {
  *sum = (struct regcache_counters){0};
  pthread_mutex_lock(&node->lock);
  for (unsigned i = 0; i < node->count; i++) {
    struct regcache_counters own;
    regcache_counters(node->cards[i].cache, &own);
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
