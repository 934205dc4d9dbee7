/* SPDX-License-Identifier: MIT
 * Memory that a framework allocates by libhl-thunk, with the hook preloaded: the module finds the
 * whole block, copies to and from it, and drops it when it is unmapped. */
#include "rig.h"

#include <stdlib.h>

/* From hlthunk.h of hl-thunk. */
int hlthunk_open(int kind, const char *bus);
int hlthunk_close(int fd);
uint64_t hlthunk_device_memory_alloc(int fd, uint64_t size, uint64_t page, bool contiguous,
                                     bool shared);
int hlthunk_device_memory_free(int fd, uint64_t handle);
uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint);
int hlthunk_memory_unmap(int fd, uint64_t address);

#define PAGE (24 * MIB) /* of the mocked devices */

static int fd;

static ucs_status_t query(struct rig *rig, uint64_t address, uct_md_mem_attr_t *found) {
  *found = (uct_md_mem_attr_t){.field_mask = UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS |
                                             UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH};
  return uct_md_mem_query(rig->md, (void *)(uintptr_t)address, 4096, found);
}

static void whole_blocks_are_found(void **state) {
  struct rig rig;
  uct_md_mem_attr_t found;
  uint8_t *bytes = malloc(MIB), *back = malloc(MIB);
  uint64_t handle = hlthunk_device_memory_alloc(fd, PAGE, 0, false, false);
  uint64_t address = hlthunk_device_memory_map(fd, handle, 0);
  (void)state;
  assert_true(address != 0);
  rig_open(&rig, "gaudi_cpy", "gaudi");
  assert_ok(rig_connect(&rig, NULL));
  assert_ok(query(&rig, address + 5 * MIB, &found));
  assert_int_equal((uintptr_t)found.base_address, address);
  assert_int_equal(found.alloc_length, PAGE);
  pattern_fill(bytes, MIB, 1);
  assert_ok(rig_put(&rig, bytes, MIB, address + 5 * MIB, UCT_INVALID_RKEY));
  assert_ok(rig_get(&rig, back, MIB, address + 5 * MIB, UCT_INVALID_RKEY));
  pattern_check(back, MIB, 1);
  assert_int_equal(hlthunk_memory_unmap(fd, address), 0);
  assert_int_equal(query(&rig, address + 5 * MIB, &found), UCS_ERR_INVALID_ADDR);
  assert_int_equal(hlthunk_device_memory_free(fd, handle), 0);
  rig_close(&rig);
  free(bytes);
  free(back);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(whole_blocks_are_found)};
  fd = hlthunk_open(4, NULL); /* before UCX, like a framework */
  int failed = fd < 0 ? 1 : cmocka_run_group_tests_name("ucx/framework", tests, NULL, NULL);
  hlthunk_close(fd);
  return failed;
}
