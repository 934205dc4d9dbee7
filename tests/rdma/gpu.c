/* SPDX-License-Identifier: MIT
 * Memory of GPUs at NICs, as it is registered on drivers and kernels that lack a part of what that
 * takes. Both nodes are in this process. */
#include "support/check.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doubles/cuda/door.h"
#include "fabric/rdma/sysfs.h"
#include "memory/provider.h"
#include "support/gpu.h"
#include "support/nic.h"
#include "support/owner.h"
#include "support/tree.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (2 * MIB)
#define BOUND  (60 * S)

static struct cuda_double *door;
static char folder[64];

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *there;
  struct haul_remote *remote;
} t;

static const struct haul_place gpu = {HAUL_CUDA, 0}, host = {HAUL_HOST, 0};

static struct haul_region *alloc(struct haul_node *node, struct haul_place place, uint64_t length) {
  struct haul_region *region;
  assert_works(haul_region_alloc(node, place, length, 0, &region));
  return region;
}

/* With the faults of the NIC, which stay until the test ends, and an owner's region. */
static void open_nodes(const char *nic, struct haul_place place) {
  char address[160];
  nic_fault(nic);
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_peer_connect(t.user, address, haul_deadline_in(BOUND), &t.peer));
  t.there = alloc(t.owner, place, LENGTH);
  assert_works(haul_region_publish(t.there, "memory", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
}

static int set_up(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/haul-gpu-XXXXXX");
  assert_non_null(mkdtemp(folder));
  sysfs_root = folder;
  door->dmabuf = 0;
  door->bar1 = 0;
  door->strict = 0;
  return 0;
}

static void close_nodes(void) {
  haul_remote_release(t.remote);
  haul_region_release(t.there);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  memset(&t, 0, sizeof t);
}

static void remove_nics(void) {
  addresses_get = getifaddrs;
  nic_set("10.0.0.1");
}

static int tear_down(void **state) {
  (void)state;
  close_nodes();
  remove_nics();
  nic_fault("");
  nic_check_empty();
  tree_remove(folder);
  return 0;
}

static struct haul_path path_from(struct haul_region *local) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_path path;
  options.only = "rdma";
  assert_works(haul_explain(local, t.remote, HAUL_OP_WRITE, MIB, &options, &path, &(size_t){1}));
  assert_true(path.open);
  return path;
}

static void check_bytes(struct haul_region *local, uint64_t at, uint64_t length) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {at, 5, length};
  options.only = "rdma";
  region_fill(t.user, local, at, length, length + at);
  uint64_t sum = region_sum(t.user, local, at, length);
  assert_works(haul_write(t.remote, local, &piece, 1, &options, NULL));
  assert_true(region_sum(t.owner, t.there, 5, length) == sum);
  region_fill(t.owner, t.there, 5, length, 77);
  assert_works(haul_read(local, t.remote, &piece, 1, &options, NULL));
  assert_true(region_sum(t.user, local, at, length) == region_sum(t.owner, t.there, 5, length));
}

static void check_direct(struct haul_region *local) {
  struct haul_path path = path_from(local);
  if (strstr(path.detail, "staged"))
    fail_msg("rdma, %s, %s", path.detail, path.reason);
  assert_true(path.zero_copy);
  check_bytes(local, 3, MIB + 7);
}

static void check_staged(struct haul_region *local, const char *how) {
  assert_non_null(strstr(path_from(local).detail, how));
  check_bytes(local, 3, MIB + 7);
}

/* The NIC takes dma-bufs, and this driver makes none: nvidia_peermem serves plain addresses. */
static void without_dmabufs_peer_memory_is_registered_by_address(void **state) {
  (void)state;
  tree_folder(folder, "module/nvidia_peermem");
  open_nodes("dmabuf,peermem", gpu);
  struct haul_region *local = alloc(t.user, gpu, LENGTH);
  check_direct(local);
  haul_region_release(local);
}

static void without_both_it_is_staged(void **state) {
  (void)state;
  open_nodes("dmabuf", gpu);
  struct haul_region *local = alloc(t.user, gpu, LENGTH);
  check_staged(local, "staged on both sides");
  haul_region_release(local);
}

/* The pages of a GPU are not the host's. */
static void it_may_be_larger_than_the_hosts_memory(void **state) {
  (void)state;
  uint64_t length = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) + LENGTH;
  unsigned long long memory = door->memory;
  door->memory = 2 * length;
  tree_folder(folder, "module/nvidia_peermem");
  open_nodes("dmabuf,peermem", host);
  struct haul_region *local = alloc(t.user, gpu, length);
  check_direct(local);
  haul_region_release(local);
  door->memory = memory;
}

/* Fails where the reason of staging is another. */
static void check_reason(const struct haul_path *path, const char *how, const char *reason) {
  if (!strstr(path->detail, how) || !strstr(path->reason, reason))
    fail_msg("%s, %s, %s", path->name, path->detail, path->reason);
}

static void report_of_write(struct haul_region *local, struct haul_path *path) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_piece piece = {0, 0, MIB};
  struct haul_transfer *transfer;
  options.only = "rdma";
  assert_works(haul_write(t.remote, local, &piece, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  *path = report.paths[0];
}

/* A refusal counts the longer, the longer it took: no time is too long on a busy machine. */
static void await_direct(struct haul_region *local) {
  haul_deadline until = haul_deadline_in(BOUND);
  while (strstr(path_from(local).detail, "staged")) {
    assert_true(haul_deadline_in(0) < until);
    check_bytes(local, 3, MIB + 7);
    usleep(20000);
  }
  check_direct(local);
}

/* Longer than a quick refusal of a NIC counts. */
static void wait_for_the_next_try(void) {
  usleep(1200000);
}

static void a_shortage_stages_until_the_next_try(void **state) {
  (void)state;
  struct haul_path path;
  door->dmabuf = 2;
  open_nodes("dmabuf", host);
  struct haul_region *local = alloc(t.user, gpu, LENGTH);
  nic_fault("dmabuf,nomem:1");
  report_of_write(local, &path);
  check_reason(&path, "staged locally", "a limit of locked memory or of registrations");
  check_staged(local, "staged locally");
  await_direct(local);
  report_of_write(local, &path);
  assert_null(strstr(path.detail, "staged"));
  assert_string_equal(path.reason, "");
  check_direct(local);
  haul_region_release(local);
}

/* The owner has to stage each of its regions, until the peer's node has asked again for all. No
 * region is looked up again meanwhile. */
static void a_shortage_of_the_owner_stages_until_the_next_try(void **state) {
  (void)state;
  struct haul_region *published[3];
  struct haul_remote *remotes[3], *first;
  char name[16];
  door->dmabuf = 2;
  open_nodes("dmabuf", host);
  first = t.remote;
  struct haul_region *local = alloc(t.user, host, LENGTH), *there = t.there;
  for (unsigned i = 0; i < 3; i++) {
    snprintf(name, sizeof name, "short%u", i);
    published[i] = alloc(t.owner, gpu, LENGTH);
    assert_works(haul_region_publish(published[i], name, HAUL_READ | HAUL_WRITE));
    nic_fault("dmabuf,nomem:1");
    assert_works(haul_peer_lookup(t.peer, name, haul_deadline_in(BOUND), &remotes[i]));
    t.remote = remotes[i];
    t.there = published[i];
    check_staged(local, "staged remotely");
  }
  for (unsigned i = 0; i < 3; i++) {
    t.remote = remotes[i];
    t.there = published[i];
    await_direct(local);
  }
  for (unsigned i = 0; i < 3; i++) {
    haul_remote_release(remotes[i]);
    haul_region_release(published[i]); /* waits for the peer's keys */
  }
  t.remote = first;
  t.there = there;
  haul_region_release(local);
}

/* It is larger than the BAR1, which is no shortage that ends. */
static void a_shortage_that_lasts_leaves_it_staged(void **state) {
  (void)state;
  door->dmabuf = 2;
  door->bar1 = LENGTH / 2;
  open_nodes("dmabuf", gpu);
  struct haul_region *local = alloc(t.user, host, LENGTH);
  check_staged(local, "staged remotely");
  wait_for_the_next_try();
  wait_for_the_next_try();
  check_staged(local, "staged remotely");
  door->bar1 = 0;
  await_direct(local);
  haul_region_release(local);
}

static void a_refused_region_stages_no_other(void **state) {
  (void)state;
  door->dmabuf = 2;
  open_nodes("dmabuf", host);
  struct haul_region *refused = alloc(t.user, gpu, LENGTH), *other = alloc(t.user, gpu, LENGTH);
  nic_fault("dmabuf,nomem:1");
  check_staged(refused, "staged locally");
  check_direct(other);
  haul_region_release(refused);
  haul_region_release(other);
}

/* Two ports of the NIC are two rails, each with registrations of its own. */
static void a_rail_that_refuses_leaves_the_others(void **state) {
  (void)state;
  struct double_device *nic = &nic_double()->devices[0];
  struct haul_region *local;
  door->dmabuf = 2;
  nic->ports = 2;
  nic->port[1] = nic->port[0];
  for (unsigned rail = 1; rail <= 2; rail++) {
    char fault[32];
    open_nodes("dmabuf", host);
    local = alloc(t.user, gpu, LENGTH);
    snprintf(fault, sizeof fault, "dmabuf,nomem:%u", rail);
    nic_fault(fault);
    assert_non_null(strstr(path_from(local).detail, "2 rails"));
    check_direct(local);
    haul_region_release(local);
    close_nodes();
  }
  nic->ports = 1;
}

/* Four NICs, of which the last two are below the GPU's bridge, and all take dma-bufs. */
static void add_nics(void) {
  static const char *const bridges[] = {"0000:00:02.0", "0000:00:02.0", "0000:00:01.0",
                                        "0000:00:01.0"};
  struct haul_device device = {.place = gpu};
  char path[96], name[64];
  provider_of(HAUL_CUDA)->describe(0, &device);
  snprintf(path, sizeof path, "devices/pci0000:00/%s/%s", bridges[2], device.pci);
  snprintf(name, sizeof name, "bus/pci/devices/%s", device.pci);
  tree_folder(folder, path);
  tree_link(folder, name, path);
  nic_set("10.0.1.1,10.0.2.1,10.0.3.1,10.0.4.1");
  for (unsigned i = 0; i < COUNT(bridges); i++) {
    nic_double()->devices[i].dmabuf = true;
    snprintf(path, sizeof path, "devices/pci0000:00/%s/0000:1%u:00.0", bridges[i], i);
    snprintf(name, sizeof name, "bus/pci/devices/0000:1%u:00.0", i);
    tree_folder(folder, path);
    tree_link(folder, name, path);
    snprintf(name, sizeof name, "class/infiniband/double%u/device", i);
    tree_link(folder, name, path);
  }
  addresses_get = nic_addresses;
}

/* Copies from the region go over all wanted NICs and over no others than the allowed ones. On a
 * busy machine some rails are done before the others get a work, so it takes several. */
static void check_carried(struct haul_region *local, unsigned wanted, unsigned allowed) {
  struct double_device *nics = nic_double()->devices;
  uint64_t before[4];
  unsigned used = 0;
  for (unsigned i = 0; i < 4; i++)
    before[i] = atomic_load(&nics[i].requests);
  for (unsigned round = 0; round < 100 && wanted & ~used; round++) {
    check_direct(local);
    for (unsigned i = 0; i < 4; i++)
      used |= (unsigned)(atomic_load(&nics[i].requests) > before[i]) << i;
  }
  assert_int_equal(wanted & ~used, 0);
  assert_int_equal(used & ~allowed, 0);
}

static void the_nearest_nics_carry_it(void **state) {
  (void)state;
  door->dmabuf = 2;
  add_nics();
  open_nodes("dmabuf", host);
  struct haul_region *local = alloc(t.user, gpu, LENGTH), *other = alloc(t.user, host, LENGTH);
  struct haul_path path = path_from(local);
  assert_string_equal(path.detail, "double2, 2 of 4 rails");
  assert_non_null(strstr(path.reason, "nearest by PCI"));
  check_carried(local, 0xc, 0xc);
  path = path_from(other);
  assert_string_equal(path.detail, "double0, 4 rails");
  assert_null(strstr(path.reason, "nearest"));
  check_carried(other, 0x1, 0xf);
  haul_region_release(local);
  haul_region_release(other);
}

/* The owner's other NICs take no dma-buf: they have no key, and the region is not staged. */
static void nics_that_can_reach_a_region_carry_it(void **state) {
  (void)state;
  door->dmabuf = 2;
  add_nics();
  for (unsigned i = 1; i < 4; i++)
    nic_double()->devices[i].dmabuf = i == 2;
  open_nodes("dmabuf", gpu);
  struct haul_region *local = alloc(t.user, host, LENGTH);
  struct haul_path path = path_from(local);
  assert_string_equal(path.detail, "double0, 2 of 4 rails");
  assert_non_null(strstr(path.reason, "the peer's other NICs cannot register the memory"));
  check_carried(local, 0x5, 0x5);
  haul_region_release(local);
}

static struct haul_region *wrap(void *address, uint64_t length) {
  struct haul_region *region;
  assert_works(haul_region_wrap(t.user, address, length, &region));
  return region;
}

/* As a cudaMalloc of any size: the last page of the host has bytes of others. */
#define ODD (LENGTH + 1001)

static void all_memory_of_an_allocation_is_direct(void **state) {
  (void)state;
  char *memory = gpu_alloc(ODD), *small = gpu_alloc(1000), *next = gpu_alloc(1000);
  door->dmabuf = 2;
  open_nodes("dmabuf", host);
  struct haul_region *whole = wrap(memory, ODD), *part = wrap(memory + 100, LENGTH);
  struct haul_region *shares = wrap(next, 1000); /* its page with `small` */
  check_direct(whole);
  check_direct(part);
  assert_null(strstr(path_from(shares).detail, "staged"));
  check_bytes(shares, 1, 999);
  haul_region_release(whole);
  haul_region_release(part);
  haul_region_release(shares);
  gpu_free(memory);
  gpu_free(small);
  gpu_free(next);
}

/* As of PyTorch's expandable segments, and of pools; whether it is GPUDirect-RDMA capable or not. A
 * strict driver makes no dma-buf of mappings that differ. */
static void memory_of_mappings_and_pools_is_direct(void **state) {
  (void)state;
  char *mapped = gpu_alloc_mapped(2 * LENGTH), *pool = gpu_alloc_of_pool(ODD);
  door->dmabuf = 2;
  open_nodes("dmabuf", host);
  struct haul_region *segment = wrap(mapped + MIB + 5, LENGTH), *of_pool = wrap(pool, ODD);
  check_direct(segment);
  check_direct(of_pool);
  door->strict = 1;
  struct haul_region *refused = wrap(mapped + MIB, LENGTH);
  const struct haul_path path = path_from(refused);
  check_reason(&path, "staged locally", "different properties");
  check_staged(refused, "staged locally");
  haul_region_release(segment);
  haul_region_release(of_pool);
  haul_region_release(refused);
  gpu_free(mapped);
  gpu_free(pool);
}

/* By its documentation a driver may refuse it. */
static void a_shared_page_is_staged_with_the_reason(void **state) {
  (void)state;
  char *memory = gpu_alloc(ODD);
  door->dmabuf = 2;
  door->strict = 1;
  open_nodes("dmabuf", host);
  struct haul_region *whole = wrap(memory, ODD), *pages = wrap(memory, LENGTH);
  const struct haul_path path = path_from(whole);
  check_reason(&path, "staged locally", "shares a page");
  check_staged(whole, "staged locally");
  check_direct(pages);
  haul_region_release(whole);
  haul_region_release(pages);
  gpu_free(memory);
}

static void peer_memory_needs_no_whole_pages(void **state) {
  (void)state;
  char *memory = gpu_alloc(ODD), *other = gpu_alloc(1000);
  door->dmabuf = 2;
  door->strict = 1;
  tree_folder(folder, "module/nvidia_peermem");
  open_nodes("dmabuf,peermem", host);
  struct haul_region *whole = wrap(memory, ODD), *small = wrap(other, 1000);
  check_direct(whole);
  assert_null(strstr(path_from(small).detail, "staged"));
  check_bytes(small, 1, 999);
  haul_region_release(whole);
  haul_region_release(small);
  gpu_free(memory);
  gpu_free(other);
}

/* The window through which NICs reach the GPU's memory. */
static void memory_beyond_the_bar1_is_staged_with_the_reason(void **state) {
  (void)state;
  door->dmabuf = 2;
  door->bar1 = LENGTH + MIB;
  open_nodes("dmabuf", host);
  struct haul_region *large = alloc(t.user, gpu, 2 * LENGTH), *small = alloc(t.user, gpu, LENGTH);
  const struct haul_path path = path_from(large);
  check_reason(&path, "staged locally", "BAR1");
  check_direct(small);
  check_staged(large, "staged locally");
  haul_region_release(large);
  haul_region_release(small);
}

/* Registrations that no transfer uses make room. */
static void regions_take_turns_in_the_bar1(void **state) {
  (void)state;
  door->dmabuf = 2;
  door->bar1 = LENGTH + MIB;
  open_nodes("dmabuf", host);
  struct haul_region *one = alloc(t.user, gpu, LENGTH), *other = alloc(t.user, gpu, LENGTH);
  for (unsigned round = 0; round < 3; round++) {
    check_direct(one);
    check_direct(other);
  }
  haul_region_release(one);
  haul_region_release(other);
}

static void a_published_region_beyond_the_bar1_is_staged(void **state) {
  (void)state;
  door->dmabuf = 2;
  door->bar1 = MIB;
  open_nodes("dmabuf", gpu);
  struct haul_region *local = alloc(t.user, host, LENGTH);
  check_staged(local, "staged remotely");
  haul_region_release(local);
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(without_dmabufs_peer_memory_is_registered_by_address),
      TEST(without_both_it_is_staged),
      TEST(it_may_be_larger_than_the_hosts_memory),
      TEST(a_shortage_stages_until_the_next_try),
      TEST(a_shortage_of_the_owner_stages_until_the_next_try),
      TEST(a_shortage_that_lasts_leaves_it_staged),
      TEST(a_refused_region_stages_no_other),
      TEST(a_rail_that_refuses_leaves_the_others),
      TEST(the_nearest_nics_carry_it),
      TEST(nics_that_can_reach_a_region_carry_it),
      TEST(all_memory_of_an_allocation_is_direct),
      TEST(memory_of_mappings_and_pools_is_direct),
      TEST(a_shared_page_is_staged_with_the_reason),
      TEST(peer_memory_needs_no_whole_pages),
      TEST(memory_beyond_the_bar1_is_staged_with_the_reason),
      TEST(regions_take_turns_in_the_bar1),
      TEST(a_published_region_beyond_the_bar1_is_staged),
  };
  if (!nic_is_there() || !gpu_is_there())
    return 77;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  door = driver ? dlsym(driver, "cuda_double") : NULL;
  if (!door) {
    printf("skipped all: the GPU is no mock\n");
    return 77;
  }
  return cmocka_run_group_tests_name("memory of GPUs at NICs", tests, NULL, NULL);
}
