/* SPDX-License-Identifier: MIT
 * A DPDK application with haul in it: EAL is its own, mbufs lie in a region of haul's, and what
 * lies in mbufs is sent from there. */
#include "support/check.h"

#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <string.h>

#define MIB   ((size_t)1 << 20)
#define MBUFS 255u
#define ROOM  2048u

static haul_node *node;
static FILE *own_log;

static void *start_eal(void *unused) {
  static char words[][20] = {"app", "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry",
                             "-m",  "64"};
  static char *arguments[COUNT(words) + 1];
  (void)unused;
  for (size_t i = 0; i < COUNT(words); i++)
    arguments[i] = words[i];
  own_log = tmpfile();
  rte_openlog_stream(own_log);
  return rte_eal_init((int)COUNT(words), arguments) < 0 ? NULL : node;
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &node));
  return start_eal(NULL) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  haul_node_close(node);
  return 0;
}

static void mbufs_lie_in_a_region(void **state) {
  haul_region *region, *from, *packet;
  (void)state;
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, MIB, 0, &region));
  assert_works(haul_region_dpdk_register(region));
  assert_ptr_equal(rte_log_get_stream(), own_log); /* the application's stays */
  struct rte_pktmbuf_extmem memory = {.buf_ptr = haul_region_address(region),
                                      .buf_iova = RTE_BAD_IOVA,
                                      .buf_len = MIB,
                                      .elt_size = ROOM};
  struct rte_mempool *pool =
      rte_pktmbuf_pool_create_extbuf("mbufs", MBUFS, 0, 0, ROOM, SOCKET_ID_ANY, &memory, 1);
  assert_non_null(pool);
  struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
  assert_non_null(mbuf);
  char *data = rte_pktmbuf_append(mbuf, 1000);
  char *begin = haul_region_address(region);
  assert_true(data >= begin && data + 1000 <= begin + MIB);

  /* What haul brings is there for DPDK. */
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_DPDK, 0}, 1000, 0, &from));
  pattern_fill(haul_region_address(from), 1000, 4);
  assert_works(haul_region_copy(region, (uint64_t)(data - begin), from, 0, 1000, HAUL_FOREVER));
  pattern_check(rte_pktmbuf_mtod(mbuf, void *), 1000, 4);
  assert_works(haul_region_wrap(node, data, 1000, &packet));
  assert_int_equal(haul_region_place(packet).kind, HAUL_HOST);
  haul_region_release(packet);
  haul_region_release(from);
  rte_pktmbuf_free(mbuf);
  rte_mempool_free(pool);
  haul_region_release(region);
}

static void mbufs_of_eals_own_memory_are_wrapped(void **state) {
  haul_region *packet, *copy;
  (void)state;
  struct rte_mempool *pool =
      rte_pktmbuf_pool_create("own", MBUFS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
  assert_non_null(pool);
  struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
  assert_non_null(mbuf);
  char *data = rte_pktmbuf_append(mbuf, 1500);
  assert_works(haul_region_wrap(node, data, 1500, &packet));
  assert_int_equal(haul_region_place(packet).kind, HAUL_DPDK);
  assert_ptr_equal(haul_region_address(packet), data);
  pattern_fill(data, 1500, 5);
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, 1500, 0, &copy));
  assert_works(haul_region_copy(copy, 0, packet, 0, 1500, HAUL_FOREVER));
  pattern_check(haul_region_address(copy), 1500, 5);
  haul_region_release(copy);
  haul_region_release(packet);
  rte_pktmbuf_free(mbuf);
  rte_mempool_free(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mbufs_lie_in_a_region),
      cmocka_unit_test(mbufs_of_eals_own_memory_are_wrapped),
  };
  return cmocka_run_group_tests_name("dpdk/mbuf", tests, set_up, tear_down);
}
