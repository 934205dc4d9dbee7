/* SPDX-License-Identifier: MIT
 * The public calls on regions. */
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "memory/copy.h"
#include "memory/ticket.h"
#include "node/node.h"

static __attribute__((noinline)) int nowhere(void) {
  return error_set(HAUL_EINVAL, 0, NULL, NULL, "no node, or no place for the region");
}

static int enter(const char *call, const struct haul_node *node, struct haul_region **region) {
  int code = error_enter(call);
  return code == 0 && (!node || !region) ? nowhere() : code;
}

HAUL_API int haul_region_alloc(haul_node *node, struct haul_place place, size_t length,
                               unsigned flags, haul_region **region) {
  if (error_enter("haul_region_alloc") != 0)
    return HAUL_EFORK;
  if (__builtin_expect(!node || !region, 0))
    return nowhere();
  return heap_alloc(node->heap, place, length, flags, region);
}

HAUL_API int haul_region_wrap(haul_node *node, void *address, size_t length, haul_region **region) {
  int code = enter("haul_region_wrap", node, region);
  return code ? code : heap_wrap(node->heap, address, length, region);
}

HAUL_API int haul_region_wrap_file(haul_node *node, int descriptor, uint64_t offset, size_t length,
                                   haul_region **region) {
  int code = enter("haul_region_wrap_file", node, region);
  return code ? code : heap_wrap_file(node->heap, descriptor, offset, length, region);
}

HAUL_API int haul_region_import(haul_node *node, const struct haul_ticket *ticket, int descriptor,
                                haul_region **region) {
  int code = enter("haul_region_import", node, region);
  if (code == 0 && !ticket)
    code = error_set(HAUL_EINVAL, 0, NULL, NULL, "no ticket");
  return code ? code : heap_import(node->heap, ticket, descriptor, region);
}

HAUL_API int haul_region_export(haul_region *region, unsigned rights,
                                const struct haul_tensor *layout, struct haul_ticket *ticket,
                                int *descriptor) {
  int code = error_enter("haul_region_export");
  if (code)
    return code;
  if (!region || !ticket)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no region, or no place for the ticket");
  return region_export(region, rights, layout, ticket, descriptor);
}

HAUL_API int haul_ticket_layout(const struct haul_ticket *ticket, struct haul_tensor *layout) {
  struct ticket unpacked;
  int code = error_enter("haul_ticket_layout");
  if (code)
    return code;
  if (!ticket || !layout)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no ticket, or no place for its layout");
  code = ticket_unpack(ticket, &unpacked);
  if (code)
    return code;
  if (!unpacked.has_layout)
    return error_set(HAUL_ENAME, 0, NULL, "give one to haul_region_export",
                     "the ticket carries no layout");
  *layout = unpacked.layout;
  return 0;
}

static int enroll(const char *call, struct haul_region *region, bool wanted) {
  int code = error_enter(call);
  if (code == 0 && !region)
    code = error_set(HAUL_EINVAL, 0, NULL, NULL, "no region");
  return code ? code : region_enroll(region, HAUL_DPDK, wanted);
}

HAUL_API int haul_region_dpdk_register(haul_region *region) {
  return enroll("haul_region_dpdk_register", region, true);
}

HAUL_API int haul_region_dpdk_unregister(haul_region *region) {
  return enroll("haul_region_dpdk_unregister", region, false);
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
  int code = error_enter("haul_region_copy");
  if (code)
    return code;
  if (!to || !from)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no region");
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

struct leaving {
  struct haul_node *node;
  struct haul_region *region;
};

static bool is_unused(void *user) {
  struct leaving *leaving = user;
  return !transfers_use(&leaving->node->transfers, leaving->region);
}

/* A transfer that was being started by another thread may slip past one round: hence the rounds. */
static void end_transfers(struct haul_node *node, struct haul_region *region) {
  struct leaving leaving = {node, region};
  int64_t bound = clock_after(clock_now(), node->config.liveness_ns);
  while (!is_unused(&leaving) && clock_now() < bound) {
    loop_lock(node->loop);
    transfers_abort(&node->transfers, region, NULL, HAUL_ECANCELED, "its region was released");
    loop_unlock(node->loop);
    loop_wait(node->loop, is_unused, NULL, &leaving, clock_after(clock_now(), 1000000));
  }
}

/* A close in another thread has taken the names, and waits with the loop's lock until no peer is at
 * the memory any more. */
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
  end_transfers(node, region);
  node_put(node);
}

/* Apart, so that the path without it saves no registers for it. */
static __attribute__((noinline)) void release_slowly(haul_region *region) {
  if (error_enter("haul_region_release") == 0)
    withdraw_region(region);
  region_put(region);
}

HAUL_API void haul_region_release(haul_region *region) {
  if (!region)
    return;
  /* What was never published and is not in use needs nothing but its memory back. */
  bool plain = atomic_load_explicit(&region->refs, memory_order_acquire) == 1 &&
               !atomic_load_explicit(&region->shown, memory_order_relaxed);
  if (__builtin_expect(plain, 1))
    region_put(region);
  else
    release_slowly(region);
}
