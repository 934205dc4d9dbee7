/* SPDX-License-Identifier: MIT
 * Public calls on regions. */
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "memory/copy.h"
#include "memory/ticket.h"
#include "node/requests.h"

HAUL_API int haul_region_alloc(haul_node *node, struct haul_place place, size_t length,
                               unsigned flags, haul_region **region) {
  if (error_enter("haul_region_alloc") != 0) /* the hot path makes no further call */
    return HAUL_EFORK;
  if (__builtin_expect(!node || !region, 0))
    return node_enter("haul_region_alloc", false, "node or region is NULL");
  return heap_alloc(node->heap, place, length, flags, region);
}

HAUL_API int haul_region_wrap(haul_node *node, void *address, size_t length, haul_region **region) {
  int code = node_enter("haul_region_wrap", node && region, "node or region is NULL");
  return code ? code : heap_wrap(node->heap, address, length, region);
}

HAUL_API int haul_region_wrap_file(haul_node *node, int descriptor, uint64_t offset, size_t length,
                                   haul_region **region) {
  int code = node_enter("haul_region_wrap_file", node && region, "node or region is NULL");
  return code ? code : heap_wrap_file(node->heap, descriptor, offset, length, region);
}

HAUL_API int haul_region_import(haul_node *node, const struct haul_ticket *ticket, int descriptor,
                                haul_region **region) {
  int code =
      node_enter("haul_region_import", node && ticket && region, "node, ticket or region is NULL");
  return code ? code : heap_import(node->heap, ticket, descriptor, region);
}

HAUL_API int haul_region_export(haul_region *region, unsigned rights,
                                const struct haul_tensor *layout, struct haul_ticket *ticket,
                                int *descriptor) {
  int code = node_enter("haul_region_export", region && ticket, "region or ticket is NULL");
  if (code)
    return code;
  return region_export(region, rights, layout, ticket, descriptor);
}

HAUL_API int haul_ticket_layout(const struct haul_ticket *ticket, struct haul_tensor *layout) {
  struct ticket unpacked;
  int code = node_enter("haul_ticket_layout", ticket && layout, "ticket or layout is NULL");
  if (code)
    return code;
  code = ticket_unpack(ticket, &unpacked);
  if (code)
    return code;
  if (!unpacked.has_layout)
    return error_set(HAUL_ENAME, 0, NULL, "pass a layout to haul_region_export",
                     "the ticket carries no layout");
  *layout = unpacked.layout;
  return 0;
}

static int set_dpdk(const char *call, struct haul_region *region, bool wanted) {
  int code = node_enter(call, region, "region is NULL");
  return code ? code : region_enroll(region, HAUL_DPDK, wanted);
}

HAUL_API int haul_region_dpdk_register(haul_region *region) {
  return set_dpdk("haul_region_dpdk_register", region, true);
}

HAUL_API int haul_region_dpdk_unregister(haul_region *region) {
  return set_dpdk("haul_region_dpdk_unregister", region, false);
}

HAUL_API void *haul_region_address(const haul_region *region) {
  return region ? region->memory.address : NULL;
}

HAUL_API size_t haul_region_length(const haul_region *region) {
  return region ? region->memory.length : 0;
}

HAUL_API struct haul_place haul_region_place(const haul_region *region) {
  return region ? region->memory.place : (struct haul_place){0, 0};
}

HAUL_API unsigned haul_region_rights(const haul_region *region) {
  if (!region)
    return 0;
  return HAUL_READ | (region->memory.writable ? HAUL_WRITE : 0);
}

HAUL_API int haul_region_copy(haul_region *to, uint64_t to_offset, haul_region *from,
                              uint64_t from_offset, size_t length, haul_deadline until) {
  int code = node_enter("haul_region_copy", to && from, "region is NULL");
  if (code)
    return code;
  code = region_check(to, to_offset, length);
  if (code == 0)
    code = region_check(from, from_offset, length);
  if (code || length == 0)
    return code;
  if (!memory_alive(&to->memory) || !memory_alive(&from->memory))
    return error_released(NULL);
  code = copy_sync(heap_staging(to->heap), &to->memory, to_offset, &from->memory, from_offset,
                   length, until);
  if (code == 0 && !(memory_alive(&to->memory) && memory_alive(&from->memory)))
    code = error_released(NULL);
  return code;
}

struct release {
  struct haul_node *node;
  struct haul_region *region;
};

static bool is_unused(void *user) {
  struct release *release = user;
  return !transfers_use(&release->node->transfers, release->region);
}

/* In rounds, because another thread may be starting a transfer that one round does not see. */
static void abort_transfers(struct haul_node *node, struct haul_region *region) {
  struct release release = {node, region};
  int64_t until = clock_after(clock_now(), node->config.liveness_ns);
  while (!is_unused(&release) && clock_now() < until) {
    loop_lock(node->loop);
    transfers_abort(&node->transfers, region, NULL, HAUL_ECANCELED, "the region was released");
    loop_unlock(node->loop);
    loop_wait(node->loop, is_unused, NULL, &release, clock_after(clock_now(), 1000000));
  }
}

/* Another thread that closes the node holds the loop's lock until no peer touches the memory. */
static void await_close(struct haul_node *node) {
  if (!node_is_closed(node))
    return;
  loop_lock(node->loop);
  loop_unlock(node->loop);
}

static void withdraw_region(haul_region *region) {
  atomic_store(&region->released, true);
  struct haul_node *node = region_hold_node(region);
  if (!node)
    return;
  names_withdraw(node, region);
  await_close(node);
  abort_transfers(node, region);
  node_put(node);
}

/* A function of its own, so that the fast path below saves no registers for it. */
static __attribute__((noinline)) void release_published(haul_region *region) {
  if (error_enter("haul_region_release") == 0)
    withdraw_region(region);
  region_put(region);
}

HAUL_API void haul_region_release(haul_region *region) {
  if (!region)
    return;
  /* A region that was never published and is not in use only frees its memory. */
  bool plain = atomic_load_explicit(&region->refs, memory_order_acquire) == 1 &&
               !atomic_load_explicit(&region->was_published, memory_order_relaxed);
  if (__builtin_expect(plain, 1))
    region_put(region);
  else
    release_published(region);
}
