/* SPDX-License-Identifier: MIT */
#include "gaudi_memory.h"

#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "test_helpers.h"

extern "C" {
#include <ucs/async/async.h>
#include <uct/api/uct.h>
}

namespace {

const char name[] = "gaudi";
const size_t chunk = 64 << 20; /* less than the limit of gaudi_cpy */

/* An interface with an endpoint to itself, open until the process ends. */
struct copier {
  uct_md_h md = nullptr;
  ucs_async_context_t *async = nullptr;
  uct_worker_h worker = nullptr;
  uct_iface_h iface = nullptr;
  uct_ep_h ep = nullptr;
  std::map<void *, uct_allocated_memory_t> blocks;

  copier() {
    uct_component_h component = find_component();
    if (!component)
      return;
    open_md(component);
    open_ep();
    warm_up();
  }

  static uct_component_h find_component() {
    uct_component_h *all, found = nullptr;
    unsigned count;
    ASSERT_UCS_OK(uct_query_components(&all, &count));
    for (unsigned i = 0; i < count; i++) {
      uct_component_attr_t attributes = {};
      attributes.field_mask =
          UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
      ASSERT_UCS_OK(uct_component_query(all[i], &attributes));
      if (strcmp(attributes.name, name) == 0 && attributes.md_resource_count > 0)
        found = all[i];
    }
    uct_release_component_list(all);
    return found;
  }

  void open_md(uct_component_h component) {
    uct_md_config_t *config;
    ASSERT_UCS_OK(uct_md_config_read(component, NULL, NULL, &config));
    ASSERT_UCS_OK(uct_md_open(component, name, config, &md));
    uct_config_release(config);
  }

  void open_ep() {
    uct_iface_config_t *config;
    uct_iface_params_t params = {};
    params.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE;
    params.open_mode = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name = "gaudi_cpy";
    params.mode.device.dev_name = name;
    ASSERT_UCS_OK(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async));
    ASSERT_UCS_OK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker));
    ASSERT_UCS_OK(uct_md_iface_config_read(md, "gaudi_cpy", NULL, NULL, &config));
    ASSERT_UCS_OK(uct_iface_open(md, worker, &params, config, &iface));
    uct_config_release(config);
    connect();
  }

  void connect() {
    char device[64] = "", address[64];
    ASSERT_UCS_OK(uct_iface_get_address(iface, (uct_iface_addr_t *)address));
    uct_ep_params_t params = {};
    params.field_mask =
        UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface = iface;
    params.dev_addr = (const uct_device_addr_t *)device;
    params.iface_addr = (const uct_iface_addr_t *)address;
    ASSERT_UCS_OK(uct_ep_create(&params, &ep));
  }

  /* The module opens the device and a socket when it needs them, and UCX's tests count descriptors.
   */
  void warm_up() {
    std::vector<char> key(1024);
    uct_allocated_memory_t block = alloc(1);
    ASSERT_UCS_OK(uct_md_mkey_pack(md, block.memh, key.data()));
    uct_mem_free(&block);
  }

  uct_allocated_memory_t alloc(size_t length) {
    uct_alloc_method_t method = UCT_ALLOC_METHOD_MD;
    uct_allocated_memory_t block;
    uct_mem_alloc_params_t params = {};
    params.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS | UCT_MEM_ALLOC_PARAM_FIELD_MDS |
                        UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE | UCT_MEM_ALLOC_PARAM_FIELD_NAME;
    params.flags = UCT_MD_MEM_ACCESS_ALL;
    params.mem_type = UCS_MEMORY_TYPE_GAUDI;
    params.mds.mds = &md;
    params.mds.count = 1;
    params.name = "gtest";
    ASSERT_UCS_OK(uct_mem_alloc(length, &method, 1, &params, &block), << " length=" << length);
    return block;
  }

  void put(void *to, const void *from, size_t length) {
    for (size_t at = 0; at < length; at += chunk)
      ASSERT_UCS_OK(uct_ep_put_short(ep, (const char *)from + at,
                                     (unsigned)std::min(chunk, length - at), (uintptr_t)to + at,
                                     UCT_INVALID_RKEY));
  }

  void get(void *to, const void *from, size_t length) {
    for (size_t at = 0; at < length; at += chunk)
      ASSERT_UCS_OK(uct_ep_get_short(ep, (char *)to + at, (unsigned)std::min(chunk, length - at),
                                     (uintptr_t)from + at, UCT_INVALID_RKEY));
  }
};

std::mutex lock;

/* With the lock. */
copier &the_copier() {
  static copier *one = new copier; /* never freed: tests free memory until the process exits */
  return *one;
}

} // namespace

bool gaudi_memory_is_there() {
  std::lock_guard<std::mutex> guard(lock);
  return the_copier().ep != nullptr;
}

void *gaudi_memory_alloc(size_t length) {
  std::lock_guard<std::mutex> guard(lock);
  copier &own = the_copier();
  uct_allocated_memory_t block = own.alloc(length);
  own.blocks[block.address] = block;
  return block.address;
}

void gaudi_memory_free(void *address) {
  if (!address)
    return;
  std::lock_guard<std::mutex> guard(lock);
  auto block = the_copier().blocks.find(address);
  if (block == the_copier().blocks.end())
    UCS_TEST_ABORT("no block of Gaudi memory at " << address);
  uct_mem_free(&block->second);
  the_copier().blocks.erase(block);
}

void gaudi_memory_set(void *address, size_t length, int value) {
  std::lock_guard<std::mutex> guard(lock);
  std::vector<char> bytes(length, (char)value);
  the_copier().put(address, bytes.data(), length);
}

bool gaudi_memory_copy(void *to, const void *from, size_t length, ucs_memory_type_t to_type,
                       ucs_memory_type_t from_type) {
  const bool put = to_type == UCS_MEMORY_TYPE_GAUDI, get = from_type == UCS_MEMORY_TYPE_GAUDI;
  std::lock_guard<std::mutex> guard(lock);
  if (put && get) {
    std::vector<char> bytes(length);
    the_copier().get(bytes.data(), from, length);
    the_copier().put(to, bytes.data(), length);
  } else if (put) {
    the_copier().put(to, from, length);
  } else if (get) {
    the_copier().get(to, from, length);
  }
  return put || get;
}
