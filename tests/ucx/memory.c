/* SPDX-License-Identifier: MIT
 * Memory queries, registrations, and keys: valid, truncated, damaged, foreign. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../integrations/ucx/module.h"

#if UCX_HAS_GAUDI
#define INVALIDATE (UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA | UCT_MD_MKEY_PACK_FLAG_INVALIDATE_AMO)
#else
#define INVALIDATE UCT_MD_MKEY_PACK_FLAG_INVALIDATE
#endif

static struct rig rig;

static int open_copy(void **state) {
  (void)state;
  rig_open(&rig, "gaudi_cpy", "gaudi");
  assert_ok(rig_connect(&rig, NULL));
  return 0;
}

static int close_copy(void **state) {
  (void)state;
  rig_quiet(false);
  rig_close(&rig);
  return 0;
}

static ucs_status_t query(const void *address, size_t length, uct_md_mem_attr_t *attributes) {
  *attributes = (uct_md_mem_attr_t){
      .field_mask = UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS | UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH |
                    UCT_MD_MEM_ATTR_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_FIELD_SYS_DEV};
  return uct_md_mem_query(rig.md, address, length, attributes);
}

static void whole_blocks_are_found(void **state) {
  struct target blocks[20];
  uct_md_mem_attr_t found;
  (void)state;
  for (unsigned i = 0; i < COUNT(blocks); i++)
    rig_alloc(&rig, (i + 1) * 4096, &blocks[i]);
  for (unsigned i = 0; i < COUNT(blocks); i++) {
    char *address = blocks[i].address;
    assert_ok(query(address + 4095 * (size_t)i, 100, &found));
    assert_ptr_equal(found.base_address, address);
    assert_int_equal(found.alloc_length, blocks[i].length);
    assert_int_equal(found.mem_type, GAUDI_MEMORY_TYPE);
    assert_int_not_equal(found.sys_dev, UCS_SYS_DEVICE_ID_UNKNOWN);
    assert_int_equal(query(address + blocks[i].length - 1, 2, &found), UCS_ERR_INVALID_ADDR);
  }
  for (unsigned i = 0; i < COUNT(blocks); i++) {
    rig_free(&rig, &blocks[i]);
    assert_int_equal(query(blocks[i].address, 1, &found), UCS_ERR_INVALID_ADDR);
  }
}

static void other_memory_is_not_found(void **state) {
  uct_md_mem_attr_t found;
  ucs_memory_type_t type;
  char here = 0;
  (void)state;
  assert_int_equal(query(&here, 1, &found), UCS_ERR_INVALID_ADDR);
  assert_int_equal(query((void *)(uintptr_t)0x1001000000000000, 4096, &found),
                   UCS_ERR_INVALID_ADDR);
  assert_int_equal(query((void *)UINTPTR_MAX, 1, &found), UCS_ERR_INVALID_ADDR);
  if (UCX_HAS_GAUDI)
    assert_true(UCS_STATUS_IS_ERR(uct_md_detect_memory_type(rig.md, &here, 1, &type)));
}

static void the_allocation_device_is_configurable(void **state) {
  struct rig other;
  struct target first, second;
  uct_md_mem_attr_t of_first, of_second;
  (void)state;
  setenv("UCX_GAUDI_DEVICE", "1", 1);
  rig_open(&other, "gaudi_cpy", "gaudi");
  unsetenv("UCX_GAUDI_DEVICE");
  rig_alloc(&other, 4096, &second);
  rig_alloc(&rig, 4096, &first);
  assert_ok(query(first.address, 4096, &of_first));
  assert_ok(query(second.address, 4096, &of_second));
  assert_int_not_equal(of_first.sys_dev, of_second.sys_dev);
  rig_free(&rig, &first);
  rig_free(&other, &second);
  rig_close(&other);
}

static void missing_devices_are_refused(void **state) {
  uct_md_config_t *config;
  uct_md_h md;
  (void)state;
  rig_quiet(true);
  setenv("UCX_GAUDI_DEVICE", "7", 1);
  assert_ok(uct_md_config_read(rig.component, NULL, NULL, &config));
  unsetenv("UCX_GAUDI_DEVICE");
  assert_int_equal(uct_md_open(rig.component, "gaudi", config, &md), UCS_ERR_NO_DEVICE);
  uct_config_release(config);
}

#if UCX_HAS_GAUDI

static void a_block_has_a_dma_buf(void **state) {
  struct target block;
  uct_md_mem_attr_v2_t found = {.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD |
                                              UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET};
  (void)state;
  rig_alloc(&rig, 65536, &block);
  assert_ok(uct_md_mem_query_v2(rig.md, (char *)block.address + 4096, 4096, &found));
  assert_true(found.dmabuf_fd >= 0);
  assert_int_equal(found.dmabuf_offset % 4096, 0);
  assert_true(found.dmabuf_offset >= 4096);
  close(found.dmabuf_fd);
  rig_free(&rig, &block);
}

#endif

static ucs_status_t unpack(const struct gaudi_key *key) {
  uct_rkey_bundle_t bundle;
  ucs_status_t status = uct_rkey_unpack(rig.component, key, &bundle);
  if (status == UCS_OK)
    uct_rkey_release(rig.component, &bundle);
  return status;
}

/* As in UCX's other domains, a key may be asked to be one that can be invalidated; the domain's
 * flags say that it cannot be, and so does the deregistration. */
static void keys_are_not_invalidated(void **state) {
  const uct_md_mkey_pack_params_t flags = {.field_mask = UCT_MD_MKEY_PACK_FIELD_FLAGS,
                                           .flags = INVALIDATE};
  struct target block;
  struct gaudi_key key;
  uct_mem_h memh;
  (void)state;
  rig_alloc(&rig, 4096, &block);
#if UCX_HAS_GAUDI
  assert_ok(uct_md_mkey_pack_v2(rig.md, block.memh, block.address, 4096, &flags, &key));
#else
  assert_ok(uct_md_mkey_pack_v2(rig.md, block.memh, &flags, &key));
#endif
  assert_ok(unpack(&key));
  assert_ok(uct_md_mem_reg(rig.md, block.address, 4096, UCT_MD_MEM_ACCESS_ALL, &memh));
  const uct_md_mem_dereg_params_t end = {.field_mask = UCT_MD_MEM_DEREG_FIELD_MEMH |
                                                       UCT_MD_MEM_DEREG_FIELD_FLAGS,
                                         .flags = UCT_MD_MEM_DEREG_FLAG_INVALIDATE,
                                         .memh = memh};
  rig_quiet(true);
  assert_true(UCS_STATUS_IS_ERR(uct_md_mem_dereg_v2(rig.md, &end)));
  rig_quiet(false);
  assert_ok(uct_md_mem_dereg(rig.md, memh));
  rig_free(&rig, &block);
}

/* UCP aligns registrations to its cache lines. */
static void blocks_are_whole_pages(void **state) {
  struct target block;
  (void)state;
  rig_alloc(&rig, 1, &block);
  assert_int_equal(block.length, 4096);
  assert_ok(
      uct_md_detect_memory_type(rig.md, (char *)block.address + 4095, 1, &(ucs_memory_type_t){0}));
  rig_free(&rig, &block);
}

static void too_large_allocations_fail(void **state) {
  void *address;
  uct_mem_h memh;
  size_t length = (size_t)1 << 40;
  (void)state;
  rig_quiet(true);
#if UCX_HAS_GAUDI
  assert_int_equal(uct_md_mem_alloc(rig.md, &length, &address, GAUDI_MEMORY_TYPE,
                                    UCS_SYS_DEVICE_ID_UNKNOWN, 0, "test", &memh),
                   UCS_ERR_NO_MEMORY);
  assert_int_equal(uct_md_mem_alloc(rig.md, &length, &address, UCS_MEMORY_TYPE_HOST,
                                    UCS_SYS_DEVICE_ID_UNKNOWN, 0, "test", &memh),
                   UCS_ERR_UNSUPPORTED);
#else
  assert_int_equal(uct_md_mem_alloc(rig.md, &length, &address, GAUDI_MEMORY_TYPE, 0, "test", &memh),
                   UCS_ERR_NO_MEMORY);
  assert_int_equal(
      uct_md_mem_alloc(rig.md, &length, &address, UCS_MEMORY_TYPE_HOST, 0, "test", &memh),
      UCS_ERR_UNSUPPORTED);
#endif
}

static void invalid_registrations_fail(void **state) {
  struct target block;
  uct_mem_h memh;
  (void)state;
  rig_alloc(&rig, 4096, &block);
  rig_quiet(true);
  assert_int_equal(uct_md_mem_reg(rig.md, (void *)4096, 4096, UCT_MD_MEM_ACCESS_ALL, &memh),
                   UCS_ERR_INVALID_PARAM);
  assert_int_equal(
      uct_md_mem_reg(rig.md, block.address, (size_t)1 << 30, UCT_MD_MEM_ACCESS_ALL, &memh),
      UCS_ERR_INVALID_PARAM);
  assert_int_equal(
      uct_md_mem_reg(rig.md, (char *)block.address - 1, 2, UCT_MD_MEM_ACCESS_ALL, &memh),
      UCS_ERR_INVALID_PARAM);
  rig_free(&rig, &block);
}

static void device_registrations_are_not_cached(void **state) {
  struct target first, second;
  uct_mem_h memh;
  (void)state;
  rig_alloc(&rig, 4096, &first);
  assert_ok(uct_md_mem_reg(rig.md, first.address, 4096, UCT_MD_MEM_ACCESS_ALL, &memh));
  assert_ok(uct_md_mem_dereg(rig.md, memh));
  rig_free(&rig, &first);
  rig_alloc(&rig, 4096, &second); /* the same address */
  assert_ptr_equal(second.address, first.address);
  assert_ok(uct_md_mem_reg(rig.md, second.address, 4096, UCT_MD_MEM_ACCESS_ALL, &memh));
  assert_ok(uct_md_mem_dereg(rig.md, memh));
  char bytes[8] = "bytes", back[8];
  assert_ok(rig_put(&rig, bytes, 8, (uintptr_t)second.address, UCT_INVALID_RKEY));
  assert_ok(rig_get(&rig, back, 8, (uintptr_t)second.address, UCT_INVALID_RKEY));
  assert_memory_equal(back, bytes, 8);
  rig_free(&rig, &second);
}

/* The checksum of keys.c. */
static void sum_up(struct gaudi_key *key) {
  key->check = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < offsetof(struct gaudi_key, check); i++)
    key->check = (key->check ^ ((const uint8_t *)key)[i]) * UINT64_C(0x100000001b3);
}

static void damaged_keys_are_refused(void **state) {
  struct gaudi_key whole, key;
  struct target block;
  (void)state;
  rig_alloc(&rig, 4096, &block);
  assert_ok(uct_md_mkey_pack(rig.md, block.memh, &whole));
  assert_ok(unpack(&whole));
  rig_quiet(true);
  for (size_t cut = 0; cut < sizeof whole; cut++) { /* truncated, with other bytes after that */
    for (size_t i = 0; i < sizeof key; i++)
      ((uint8_t *)&key)[i] = (uint8_t) ~((const uint8_t *)&whole)[i];
    memcpy(&key, &whole, cut);
    assert_int_equal(unpack(&key), UCS_ERR_INVALID_PARAM);
  }
  for (size_t bit = 0; bit < 8 * sizeof whole; bit++) {
    key = whole;
    ((uint8_t *)&key)[bit / 8] ^= (uint8_t)(1 << bit % 8);
    assert_int_equal(unpack(&key), UCS_ERR_INVALID_PARAM);
  }
  rig_free(&rig, &block);
}

static void foreign_keys_are_refused(void **state) {
  struct gaudi_key whole, key;
  struct target block;
  uct_rkey_bundle_t bundle;
  char byte = 1;
  (void)state;
  rig_alloc(&rig, 4096, &block);
  assert_ok(uct_md_mkey_pack(rig.md, block.memh, &whole));
  rig_quiet(true);
  key = whole;
  key.host++;
  sum_up(&key);
  assert_int_equal(unpack(&key), UCS_ERR_INVALID_PARAM); /* another host */
  key = whole;
  key.version++;
  sum_up(&key);
  assert_int_equal(unpack(&key), UCS_ERR_INVALID_PARAM); /* another version of the module */
  key = whole;
  key.length = UINT64_MAX;
  sum_up(&key);
  assert_int_equal(unpack(&key), UCS_ERR_INVALID_PARAM); /* wraps around */
  key = whole;
  key.process++;
  sum_up(&key);
  assert_ok(uct_rkey_unpack(rig.component, &key, &bundle));
  assert_int_equal(rig_put(&rig, &byte, 1, (uintptr_t)block.address, bundle.rkey),
                   UCS_ERR_INVALID_ADDR); /* memory of another process */
  uct_rkey_release(rig.component, &bundle);
  rig_free(&rig, &block);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(whole_blocks_are_found, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(other_memory_is_not_found, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(the_allocation_device_is_configurable, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(keys_are_not_invalidated, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(blocks_are_whole_pages, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(missing_devices_are_refused, open_copy, close_copy),
#if UCX_HAS_GAUDI
    cmocka_unit_test_setup_teardown(a_block_has_a_dma_buf, open_copy, close_copy),
#endif
    cmocka_unit_test_setup_teardown(too_large_allocations_fail, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(invalid_registrations_fail, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(device_registrations_are_not_cached, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(damaged_keys_are_refused, open_copy, close_copy),
    cmocka_unit_test_setup_teardown(foreign_keys_are_refused, open_copy, close_copy),
  };
  return cmocka_run_group_tests_name("ucx/memory", tests, NULL, NULL);
}
