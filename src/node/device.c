/* SPDX-License-Identifier: MIT
 * Devices: their list, ports and checks, and copies by their engines (haul/device.h). */
#include <haul/device.h>
#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "memory/copy.h"
#include "node/node.h"

static void describe_device(const struct provider *provider, unsigned device,
                            struct haul_device *info) {
  memset(info, 0, sizeof *info);
  info->place = (struct haul_place){provider->kind, (uint16_t)device};
  info->emulated = provider->emulated;
  info->numa = -1;
  if (provider->describe)
    provider->describe(device, info);
}

HAUL_API int haul_device_list(haul_node *node, struct haul_device *devices, size_t *count) {
  int code = node_enter("haul_device_list", node && count && (*count == 0 || devices),
                        "node, devices or count is NULL");
  if (code)
    return code;
  size_t all = 0;
  const struct provider *provider;
  for (size_t i = 0; (provider = provider_at(i)); i++) {
    for (unsigned device = 0; device < provider_devices(provider); device++, all++) {
      if (all < *count)
        describe_device(provider, device, &devices[all]);
    }
  }
  *count = all;
  return 0;
}

HAUL_API int haul_port_list(haul_node *node, struct haul_place from, struct haul_port *ports,
                            size_t *count) {
  int code = node_enter("haul_port_list", node && count && (*count == 0 || ports),
                        "node, ports or count is NULL");
  if (code)
    return code;
  const struct provider *provider = provider_of(from.kind);
  if (!provider || from.device >= provider_devices(provider)) {
    char place[32];
    return error_set(HAUL_EPLACE, 0, haul_place_format(from, place, sizeof place),
                     "list the devices: haul info", "there is no such device");
  }
  struct haul_device device;
  size_t all = 0;
  describe_device(provider, from.device, &device);
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->ports)
      all += transport_at(i)->ports(&node->fabric, &device, all < *count ? ports + all : NULL,
                                    all < *count ? *count - all : 0);
  *count = all;
  return 0;
}

typedef size_t checks_fn(struct haul_check *checks, size_t room);

static size_t add_checks(checks_fn *fill, struct haul_check *checks, size_t room, size_t all) {
  if (!fill)
    return all;
  return all + fill(all < room ? checks + all : NULL, all < room ? room - all : 0);
}

HAUL_API int haul_check_list(haul_node *node, struct haul_check *checks, size_t *count) {
  int code = node_enter("haul_check_list", node && count && (*count == 0 || checks),
                        "node, checks or count is NULL");
  if (code)
    return code;
  size_t all = 0;
  for (size_t i = 0; provider_at(i); i++)
    all = add_checks(provider_at(i)->checks, checks, *count, all);
  for (size_t i = 0; transport_at(i); i++)
    all = add_checks(transport_at(i)->checks, checks, *count, all);
  *count = all;
  return 0;
}

struct haul_copy {
  pthread_mutex_t lock; /* guards the last three */
  haul_region *to, *from;
  struct copy_pending pending;
  int status;            /* 1: under way */
  struct haul_error why; /* of a failure, for each thread that tests the copy */
};

static int no_engine(void) {
  return error_set(HAUL_ENOTSUP, 0, NULL, "use haul_region_copy, which goes through bounce buffers",
                   "no engine copies directly between the two places");
}

static int copy_begin(haul_copy *copy, uint64_t to_offset, uint64_t from_offset, size_t length) {
  struct memory *to = &copy->to->memory, *from = &copy->from->memory;
  int code = copy_check(to, to_offset, from, from_offset, length);
  if (code)
    return code;
  switch (copy_method(to, from, &copy->pending.engine)) {
  case COPY_CPU:
    copy->status = 0;
    return copy_sync(NULL, to, to_offset, from, from_offset, length, HAUL_FOREVER);
  case COPY_ENGINE:
    copy->status = 1;
    code = copy_pending_start(&copy->pending, to, to_offset, from, from_offset, length);
    return code == 1 ? no_engine() : code;
  case COPY_STAGED:
    break;
  }
  return no_engine();
}

static int check_copy(haul_region *to, uint64_t to_offset, haul_region *from, uint64_t from_offset,
                      size_t length) {
  if (length == 0)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "length is 0");
  int code = region_check(to, to_offset, length);
  if (code == 0)
    code = region_check(from, from_offset, length);
  if (code == 0 && !(memory_alive(&to->memory) && memory_alive(&from->memory)))
    code = error_released(NULL);
  return code;
}

HAUL_API int haul_copy_start(haul_region *to, uint64_t to_offset, haul_region *from,
                             uint64_t from_offset, size_t length, haul_copy **copy) {
  int code = node_enter("haul_copy_start", to && from && copy, "a region or copy is NULL");
  if (code == 0)
    code = check_copy(to, to_offset, from, from_offset, length);
  if (code)
    return code;
  haul_copy *made = alloc_zero(1, sizeof *made);
  if (!made)
    return error_memory("copy");
  made->to = to;
  made->from = from;
  code = copy_begin(made, to_offset, from_offset, length);
  if (code) {
    alloc_free(made);
    return code;
  }
  pthread_mutex_init(&made->lock, NULL);
  region_retain(to);
  region_retain(from);
  *copy = made;
  return 0;
}

HAUL_API int haul_copy_test(haul_copy *copy) {
  int code = node_enter("haul_copy_test", copy, "copy is NULL");
  if (code)
    return code;
  pthread_mutex_lock(&copy->lock);
  if (copy->status == 1) {
    copy->status = copy_pending_look(&copy->pending);
    if (copy->status == 0 &&
        !(memory_alive(&copy->to->memory) && memory_alive(&copy->from->memory)))
      copy->status = error_released(NULL);
    if (copy->status < 0)
      error_save(&copy->why);
  }
  int status = copy->status;
  pthread_mutex_unlock(&copy->lock);
  return status < 0 ? error_restore(&copy->why) : status;
}

/* In a forked child the engine and the lock are the parent's. */
HAUL_API void haul_copy_release(haul_copy *copy) {
  if (!copy)
    return;
  if (!fork_is_child()) {
    if (copy->status == 1)
      copy_pending_cancel(&copy->pending);
    pthread_mutex_destroy(&copy->lock);
    region_put(copy->to);
    region_put(copy->from);
  }
  alloc_free(copy);
}

HAUL_API int haul_region_dmabuf(haul_region *region, int *descriptor, uint64_t *offset) {
  int code = node_enter("haul_region_dmabuf", region && descriptor && offset,
                        "region, descriptor or offset is NULL");
  if (code)
    return code;
  if (!memory_alive(&region->memory))
    return error_released(NULL);
  return memory_dmabuf(&region->memory, descriptor, offset);
}
