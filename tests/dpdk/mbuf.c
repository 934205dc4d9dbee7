/* SPDX-License-Identifier: MIT
 * A DPDK application that uses haul: EAL is the application's, mbufs are in a region of haul, and
 * mbuf payloads are sent in place. */
#include "support/check.h"

#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <string.h>

#include "support/names.h"
#include "support/owner.h"

#define MIB   ((size_t)1 << 20)
#define MBUFS 255u
#define ROOM  2048u
#define BOUND (20 * S)

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
  assert_ptr_equal(rte_log_get_stream(), own_log); /* the application's EAL stays */
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

  /* DPDK sees the memory that haul registers. */
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

/* Writes these bytes to the peer's region and checks the report. */
static void goes_straight(struct owner *owner, struct haul_peer *peer, enum memory_kind kind,
                          const char *name, haul_region *packet) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  uint64_t length = haul_region_length(packet);
  struct haul_piece piece = {0, 64, length};
  struct haul_remote *remote;
  haul_transfer *transfer;
  unsigned slot = kind == KIND_PRIVATE;
  assert_works(owner_publish(owner, slot, kind, MIB, name, HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(peer, name, haul_deadline_in(BOUND), &remote));
  options.flags = HAUL_REQUIRE_ZERO_COPY;
  assert_works(haul_write(remote, packet, &piece, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  assert_string_equal(report.paths[0].name, "map");
  assert_string_equal(report.paths[0].detail,
                      kind == KIND_PRIVATE ? "cross-memory attach" : "mapped");
  assert_true(report.paths[0].chosen && report.paths[0].zero_copy);
  assert_int_equal(report.paths[0].copies_cpu, kind != KIND_PRIVATE);
  assert_int_equal(report.paths[0].copies_kernel, kind == KIND_PRIVATE);
  assert_int_equal(report.paths[0].copies_dma, 0);
  assert_int_equal(owner_sum(owner, slot, 64, length), region_sum(node, packet, 0, length));
  haul_remote_release(remote);
  assert_works(owner_release(owner, slot));
}

/* Sends in place, from EAL's own memory and from registered memory. */
static void mbufs_are_written_without_a_copy(void **state) {
  struct owner owner;
  struct haul_peer *peer;
  haul_region *region, *packet;
  (void)state;
  owner_start(&owner, own_socket(), NULL);
  assert_works(haul_peer_connect(node, owner.address, haul_deadline_in(BOUND), &peer));
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, MIB, 0, &region));
  assert_works(haul_region_dpdk_register(region));
  struct rte_pktmbuf_extmem memory = {.buf_ptr = haul_region_address(region),
                                      .buf_iova = RTE_BAD_IOVA,
                                      .buf_len = MIB,
                                      .elt_size = ROOM};
  struct rte_mempool *pools[] = {
      rte_pktmbuf_pool_create("sent", MBUFS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY),
      rte_pktmbuf_pool_create_extbuf("given", MBUFS, 0, 0, ROOM, SOCKET_ID_ANY, &memory, 1)};
  for (uint64_t i = 0; i < COUNT(pools); i++) {
    assert_non_null(pools[i]);
    struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pools[i]);
    assert_non_null(mbuf);
    char *data = rte_pktmbuf_append(mbuf, 1500);
    pattern_fill(data, 1500, 7 + i);
    assert_works(haul_region_wrap(node, data, 1500, &packet));
    assert_int_equal(haul_region_place(packet).kind, i == 0 ? HAUL_DPDK : HAUL_HOST);
    goes_straight(&owner, peer, KIND_HOST, "shared", packet);
    goes_straight(&owner, peer, KIND_PRIVATE, "private", packet);
    haul_region_release(packet);
    rte_pktmbuf_free(mbuf);
    rte_mempool_free(pools[i]);
  }
  haul_region_release(region);
  haul_peer_close(peer);
  assert_int_equal(owner_end(&owner), 0);
}

int main(int count, char **arguments) {
  if (count > 1 && strcmp(arguments[1], OWNER_MODE) == 0)
    return owner_main();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mbufs_lie_in_a_region),
      cmocka_unit_test(mbufs_of_eals_own_memory_are_wrapped),
      cmocka_unit_test(mbufs_are_written_without_a_copy),
  };
  return cmocka_run_group_tests_name("dpdk/mbuf", tests, set_up, tear_down);
}
