/* SPDX-License-Identifier: MIT
 * Allocation from EAL's memory. Objects of four size classes are cut from larger pieces and
 * never freed to EAL, as rte_free clears memory (26 ms for 256 MiB). Free objects are kept here for
 * all haul nodes of the process, behind memory/pool.c, which keeps freed regions of one node. Other
 * sizes are freed to EAL. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/futex.h"
#include "core/sys.h"
#include "memory/dpdk/dpdk.h"
#include "memory/pages.h"
#include "memory/region.h"
#include "memory/settings.h"

#define MIB   ((size_t)1 << 20)
#define PIECE (64 * MIB) /* size of a piece, for smaller objects */

static const size_t class_bytes[DPDK_CLASSES] = {64u << 10, 1u << 20, 16u << 20, 256u << 20};

struct object {
  struct object *next; /* in a list of free objects */
  void *address;
  uint8_t size_class; /* or REGION_EXACT */
  bool bound;         /* by mbind to its NUMA node */
};

struct node_pool {
  bool opened;
  uint32_t wanted[DPDK_CLASSES], limit[DPDK_CLASSES], made[DPDK_CLASSES], unused[DPDK_CLASSES];
  struct object *objects[DPDK_CLASSES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `nodes` */
static struct node_pool nodes[DPDK_NODES];
static _Atomic uint32_t returns; /* futex word: incremented at each free */
static _Atomic uint64_t waits;

/* Without huge pages EAL has one node, 0; see place_object. */
static int socket_of(unsigned node) {
  return dpdk_eal_state() == DPDK_SMALL ? 0 : (int)node;
}

/* Zeros if EAL has no such node. */
static struct rte_malloc_socket_stats stats_of(const struct dpdk_eal *eal, unsigned node) {
  struct rte_malloc_socket_stats stats;
  memset(&stats, 0, sizeof stats);
  eal->stats(socket_of(node), &stats);
  return stats;
}

/* The pool's share of a node's memory: three quarters of haul's own EAL, as other sizes and
 * alignment need some; half of the free memory of an application's EAL. */
static uint64_t share_of(const struct dpdk_eal *eal, unsigned node) {
  struct rte_malloc_socket_stats stats = stats_of(eal, node);
  uint64_t own = stats.heap_totalsz_bytes / 4 * 3;
  switch (dpdk_eal_state()) {
  case DPDK_FOREIGN:
    return stats.heap_freesz_bytes / 2;
  case DPDK_SMALL: /* one heap for all nodes */
    return own / dpdk_nodes();
  default:
    return own;
  }
}

/* With the lock. Cuts each class by the same factor. */
static void pool_open_node(const struct dpdk_eal *eal, unsigned number) {
  struct node_pool *node = &nodes[number];
  struct memory_settings settings;
  uint64_t all = 0, share = share_of(eal, number);
  memory_settings_get(&settings);
  for (uint8_t i = 0; i < DPDK_CLASSES; i++)
    all += (uint64_t)settings.dpdk_pool[i] * class_bytes[i];
  for (uint8_t i = 0; i < DPDK_CLASSES; i++) {
    node->wanted[i] = node->limit[i] = settings.dpdk_pool[i];
    if (all > share)
      node->limit[i] = (uint32_t)((double)node->wanted[i] * (double)share / (double)all);
  }
  node->opened = true;
}

const char *dpdk_counts(const uint32_t counts[DPDK_CLASSES], char *text, size_t size) {
  snprintf(text, size, "%u,%u,%u,%u", counts[0], counts[1], counts[2], counts[3]);
  return text;
}

bool dpdk_pool_figures(unsigned number, struct dpdk_figures *figures) {
  enum dpdk_state state = dpdk_eal_state();
  if (number >= DPDK_NODES || state == DPDK_IDLE || state == DPDK_FAILED || fork_is_child())
    return false;
  pthread_mutex_lock(&lock);
  struct node_pool *node = &nodes[number];
  if (!node->opened)
    pool_open_node(dpdk_eal_start(), number);
  memcpy(figures->wanted, node->wanted, sizeof node->wanted);
  memcpy(figures->limit, node->limit, sizeof node->limit);
  memcpy(figures->made, node->made, sizeof node->made);
  memcpy(figures->unused, node->unused, sizeof node->unused);
  pthread_mutex_unlock(&lock);
  return true;
}

uint64_t dpdk_pool_waits(void) {
  return atomic_load_explicit(&waits, memory_order_relaxed);
}

bool dpdk_pool_is_cut(const struct dpdk_figures *figures) {
  return memcmp(figures->wanted, figures->limit, sizeof figures->wanted) != 0;
}

static struct object *new_object(void *address, uint8_t size_class) {
  struct object *object = alloc_zero(1, sizeof *object);
  if (object)
    *object = (struct object){.address = address, .size_class = size_class};
  return object;
}

static void *from_eal(const struct dpdk_eal *eal, unsigned node, size_t bytes) {
  size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : page_size();
  return eal->alloc("haul", bytes, (unsigned)alignment, socket_of(node));
}

/* With the lock. Cuts up to `count` objects out of one piece; returns their number. Objects without
 * bookkeeping memory are lost to the class. */
static uint32_t cut(const struct dpdk_eal *eal, unsigned number, uint8_t size_class,
                    uint32_t count) {
  struct node_pool *node = &nodes[number];
  size_t bytes = class_bytes[size_class];
  char *piece = from_eal(eal, number, bytes * count);
  if (!piece)
    return 0;
  uint32_t made = 0;
  for (; made < count; made++) {
    struct object *object = new_object(piece + (count - 1 - made) * bytes, size_class);
    if (!object)
      break;
    object->next = node->objects[size_class];
    node->objects[size_class] = object;
  }
  if (made == 0)
    eal->free(piece);
  node->made[size_class] += made;
  node->unused[size_class] += made;
  return made;
}

/* With the lock. Adds a piece, as large as possible. If not even one object fits, the class has its
 * final size. */
static bool grow(const struct dpdk_eal *eal, unsigned number, uint8_t size_class) {
  struct node_pool *node = &nodes[number];
  size_t bytes = class_bytes[size_class];
  uint32_t count = bytes < PIECE ? (uint32_t)(PIECE / bytes) : 1;
  uint32_t left = node->limit[size_class] - node->made[size_class];
  for (count = count < left ? count : left; count > 0; count /= 2)
    if (cut(eal, number, size_class, count) > 0)
      return true;
  if (left > 0)
    node->limit[size_class] = node->made[size_class];
  return false;
}

/* With the lock. */
static struct object *take_pooled(const struct dpdk_eal *eal, unsigned number, uint8_t size_class) {
  struct node_pool *node = &nodes[number];
  if (!node->objects[size_class] && !grow(eal, number, size_class))
    return NULL;
  struct object *object = node->objects[size_class];
  node->objects[size_class] = object->next;
  node->unused[size_class]--;
  return object;
}

static struct object *take_exact(const struct dpdk_eal *eal, unsigned number, size_t length) {
  size_t bytes;
  if (!page_round(length, &bytes))
    return NULL;
  struct object *object = new_object(NULL, REGION_EXACT);
  if (object && !(object->address = from_eal(eal, number, bytes))) {
    alloc_free(object);
    object = NULL;
  }
  return object;
}

/* The smallest class that holds the length, if the node has objects of it and at least a quarter of
 * the object is used, or REGION_EXACT. */
static uint8_t class_at(unsigned number, size_t length) {
  uint8_t i = 0;
  while (i < DPDK_CLASSES && length > class_bytes[i])
    i++;
  bool fits = i == 0 || (i < DPDK_CLASSES && length > class_bytes[i] / 4);
  return fits && nodes[number].limit[i] > 0 ? i : REGION_EXACT;
}

static struct object *pool_take_object(const struct dpdk_eal *eal, unsigned number, size_t length) {
  pthread_mutex_lock(&lock);
  if (!nodes[number].opened)
    pool_open_node(eal, number);
  uint8_t size_class = class_at(number, length);
  struct object *object = size_class == REGION_EXACT ? take_exact(eal, number, length)
                                                     : take_pooled(eal, number, size_class);
  pthread_mutex_unlock(&lock);
  return object;
}

static int exhausted(const struct dpdk_eal *eal, unsigned number, size_t length) {
  const char *object = error_object("dpdk:%u", number);
  pthread_mutex_lock(&lock);
  uint8_t size_class = class_at(number, length);
  uint32_t made = size_class == REGION_EXACT ? 0 : nodes[number].made[size_class];
  pthread_mutex_unlock(&lock);
  if (made > 0)
    return error_set(
        HAUL_ELIMIT, 0, object,
        "release some, or allow more: dpdk_pool, dpdk_hugepages and dpdk_wait in haul.conf",
        "all %u objects of %zu KiB are in use", made, class_bytes[size_class] >> 10);
  struct rte_malloc_socket_stats stats = stats_of(eal, number);
  return error_set(HAUL_ENOMEM, 0, object,
                   "release some, or give EAL more memory: dpdk_hugepages or dpdk_eal in haul.conf",
                   "EAL has no %zu bytes in one piece: %zu of %zu MiB are free", length,
                   stats.heap_freesz_bytes / MIB, stats.heap_totalsz_bytes / MIB);
}

/* `returns` is read before the attempt, so that no later free is missed. */
static struct object *take_patiently(const struct dpdk_eal *eal, unsigned node, size_t length,
                                     bool patient) {
  struct memory_settings settings;
  memory_settings_get(&settings);
  int64_t until = clock_after(clock_now(), settings.dpdk_wait_ns);
  for (bool waited = false;; waited = true) {
    uint32_t before = atomic_load_explicit(&returns, memory_order_acquire);
    struct object *object = pool_take_object(eal, node, length);
    if (object || !patient || clock_now() >= until ||
        length > stats_of(eal, node).heap_totalsz_bytes)
      return object;
    if (!waited)
      atomic_fetch_add_explicit(&waits, 1, memory_order_relaxed);
    futex_wait(&returns, before, until);
  }
}

static void give_back(unsigned number, struct object *object) {
  if (object->size_class == REGION_EXACT) {
    dpdk_eal_start()->free(object->address);
    alloc_free(object);
  } else {
    pthread_mutex_lock(&lock);
    struct node_pool *node = &nodes[number];
    object->next = node->objects[object->size_class];
    node->objects[object->size_class] = object;
    node->unused[object->size_class]++;
    pthread_mutex_unlock(&lock);
  }
  atomic_fetch_add_explicit(&returns, 1, memory_order_release);
  futex_wake(&returns);
}

static int elsewhere(unsigned number, int system) {
  return error_set(
      HAUL_ENOTSUP, system, error_object("dpdk:%u", number),
      "reserve huge pages (haul doctor dpdk), give the process CAP_SYS_NICE (mbind), or use dpdk:0",
      "without huge pages EAL's memory is at its node 0, and haul may not bind it to this node");
}

/* Without huge pages EAL serves all nodes from its node 0, wherever the kernel puts the pages. haul
 * binds objects of its own EAL, if a sandbox permits it, and leaves an application's EAL alone. */
static int place_object(const struct dpdk_eal *eal, unsigned number, struct object *object,
                        size_t length) {
  size_t bytes = length;
  if (dpdk_eal_state() == DPDK_FOREIGN) {
    const struct rte_memseg_list *list = eal->list_of(object->address);
    return list && list->socket_id != (int)number ? elsewhere(number, 0) : 0;
  }
  if (object->bound || !dpdk_eal_has_all_at_0())
    return 0;
  if (object->size_class != REGION_EXACT)
    bytes = class_bytes[object->size_class];
  else
    page_round(length, &bytes);
  object->bound = pages_prefer(object->address, bytes, number, true) == 0;
  return object->bound || number == 0 ? 0 : elsewhere(number, errno);
}

int dpdk_pool_get(unsigned node, size_t length, bool patient, struct memory *memory) {
  if (fork_is_child())
    return error_set(HAUL_EFORK, 0, "dpdk", NULL, "EAL's memory is the parent's");
  const struct dpdk_eal *eal = dpdk_eal_start();
  if (!eal)
    return haul_error_last()->code;
  struct object *object = take_patiently(eal, node, length, patient);
  if (!object)
    return exhausted(eal, node, length);
  int status = place_object(eal, node, object, length);
  if (status != 0) {
    give_back(node, object);
    return status;
  }
  memory->address = memory->view = object->address;
  if (object->size_class != REGION_EXACT)
    memory->footprint = class_bytes[object->size_class];
  memory->state = object;
  return 0;
}

void dpdk_pool_put(struct memory *memory) {
  if (!fork_is_child()) /* the lock may stay locked */
    give_back(memory->place.device, memory->state);
}
