/* SPDX-License-Identifier: MIT
 * The checks of `haul doctor` for RDMA, with the remedy for each failure. */
#include "support/check.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/sys.h"
#include "fabric/rdma/checks.h"
#include "support/rdma_host.h"
#include "support/seams.h"

#define ALL 8

static struct haul_check check_of(const char *name) {
  struct haul_check checks[ALL];
  assert_int_equal(rdma_checks(checks, ALL), ALL);
  for (size_t i = 0; i < ALL; i++)
    if (strcmp(checks[i].name, name) == 0)
      return checks[i];
  fail_msg("there is no check %s", name);
  return checks[0];
}

/* Asserts the check's state, words of its text, and its remedy. */
static void expect(const char *name, int state, const char *words, const char *remedy) {
  struct haul_check check = check_of(name);
  if (check.state != state || !strstr(check.text, words) || strcmp(check.remedy, remedy) != 0)
    fail_msg("%s: state %d, '%s', '%s'", name, check.state, check.text, check.remedy);
}

#define PACKAGES "sudo apt-get install libibverbs1 ibverbs-providers"

static void the_list_is_always_the_same(void **state) {
  (void)state;
  static const char *const names[ALL] = {"rdma.library",     "rdma.device",    "rdma.port",
                                         "rdma.gid",         "rdma.memlock",   "rdma.dma-buf",
                                         "rdma.peer-memory", "rdma.encryption"};
  for (int round = 0; round < 3; round++) {
    struct haul_check checks[ALL];
    if (round == 1)
      rdma_add_roce("mlx5_0");
    if (round == 2)
      rdma_host_library(NULL);
    assert_int_equal(rdma_checks(checks, ALL), ALL);
    for (size_t i = 0; i < ALL; i++) {
      assert_string_equal(checks[i].backend, "rdma");
      assert_string_equal(checks[i].name, names[i]);
      assert_true(checks[i].text[0] != '\0');
      assert_true(checks[i].state != HAUL_CHECK_OK || checks[i].remedy[0] == '\0');
    }
  }
}

static void a_short_array_is_not_overrun(void **state) {
  (void)state;
  struct haul_check checks[ALL];
  assert_int_equal(rdma_checks(NULL, 0), ALL);
  for (size_t room = 1; room < ALL; room++) {
    memset(checks, 0, sizeof checks);
    assert_int_equal(rdma_checks(checks, room), ALL);
    assert_true(checks[room - 1].name[0] != '\0');
    assert_true(checks[room].name[0] == '\0');
  }
}

static void checks_leave_nothing_open(void **state) {
  (void)state;
  unsigned before = open_descriptors();
  rdma_add_roce("mlx5_0");
  check_of("rdma.library");
  assert_int_equal(open_descriptors(), before);
}

static void out_of_memory_is_reported_as_such(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  struct haul_check checks[ALL];
  seams_refuse_from(1);
  size_t count = rdma_checks(checks, ALL);
  assert_true(seams_restore());
  assert_int_equal(count, ALL);
  assert_int_equal(checks[1].state, HAUL_CHECK_MISSING);
  assert_non_null(strstr(checks[1].text, "no memory left"));
  assert_string_equal(checks[1].remedy, "");
}

static void a_missing_library_names_packages(void **state) {
  (void)state;
  rdma_host_library(NULL);
  expect("rdma.library", HAUL_CHECK_MISSING, "libibverbs", PACKAGES);
  sys_folder("class/infiniband/mlx5_0");
  expect("rdma.device", HAUL_CHECK_MISSING, "the kernel has mlx5_0", "");
}

static void an_old_library_names_packages(void **state) {
  (void)state;
  rdma_host_library("31");
  expect("rdma.library", HAUL_CHECK_MISSING, "older than rdma-core 32", PACKAGES);
}

static void a_recent_library_is_ok(void **state) {
  (void)state;
  expect("rdma.library", HAUL_CHECK_OK, "libibverbs", "");
}

static void without_a_card_soft_roce_is_offered(void **state) {
  (void)state;
  expect("rdma.device", HAUL_CHECK_MISSING, "Soft-RoCE",
         "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev lo");
  sys_file("class/net/lo/operstate", "unknown\n");
  sys_file("class/net/eth0/operstate", "down\n");
  sys_file("class/net/eth1/operstate", "up\n");
  sys_folder("module/rdma_rxe");
  expect("rdma.device", HAUL_CHECK_MISSING, "Soft-RoCE",
         "sudo rdma link add rxe0 type rxe netdev eth1");
}

static void a_card_without_driver_names_the_module(void **state) {
  (void)state;
  sys_file("bus/pci/drivers/mlx5_core/bind", "");
  expect("rdma.device", HAUL_CHECK_MISSING, "Soft-RoCE",
         "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev lo");
  sys_folder("bus/pci/drivers/mlx5_core/0000:17:00.0");
  expect("rdma.device", HAUL_CHECK_MISSING, "0000:17:00.0 (mlx5_core)", "sudo modprobe mlx5_ib");
}

static void a_device_without_uverbs_names_the_module(void **state) {
  (void)state;
  sys_folder("class/infiniband/mlx5_0");
  sys_file("class/infiniband_verbs/abi_version", "6\n");
  expect("rdma.device", HAUL_CHECK_MISSING, "programs have no access", "sudo modprobe ib_uverbs");
}

static void a_device_without_provider_names_the_package(void **state) {
  (void)state;
  sys_folder("class/infiniband/mlx5_0");
  sys_folder("class/infiniband_verbs/uverbs1");
  sys_file("dev/uverbs1", "");
  expect("rdma.device", HAUL_CHECK_MISSING, "no driver", "sudo apt-get install ibverbs-providers");
}

static void a_container_without_the_node_gets_the_option(void **state) {
  (void)state;
  sys_folder("class/infiniband/mlx5_0");
  sys_folder("class/infiniband_verbs/uverbs1");
  expect("rdma.device", HAUL_CHECK_MISSING, "/dev/infiniband/uverbs1 does not exist",
         "start the container with --device=/dev/infiniband");
}

static void an_open_failure_gives_the_reason(void **state) {
  (void)state;
  struct double_device *device = rdma_add_roce("mlx5_0");
  device->errors.open = EACCES;
  expect("rdma.device", HAUL_CHECK_MISSING, "mlx5_0: it cannot be opened: Permission denied",
         "sudo chmod a+rw /dev/infiniband/uverbs* (the package rdma-core makes it permanent)");
  device->errors.open = ENOENT;
  expect("rdma.device", HAUL_CHECK_MISSING, "mlx5_0: it cannot be opened",
         "start the container with --device=/dev/infiniband");
  rdma_add_roce("mlx5_1");
  expect("rdma.device", HAUL_CHECK_LIMITED, "usable: mlx5_1",
         "start the container with --device=/dev/infiniband");
}

static void usable_devices_are_listed(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  rdma_add_infiniband("mlx5_1");
  expect("rdma.device", HAUL_CHECK_OK, "mlx5_0, mlx5_1", "");
}

static void checks_of_a_device_refer_to_its_check(void **state) {
  (void)state;
  static const char *const names[] = {"rdma.port", "rdma.gid", "rdma.dma-buf"};
  for (size_t i = 0; i < COUNT(names); i++)
    expect(names[i], HAUL_CHECK_MISSING, "rdma.device", "");
  rdma_add_roce("mlx5_0")->errors.open = EIO;
  for (size_t i = 0; i < COUNT(names); i++)
    expect(names[i], HAUL_CHECK_MISSING, "rdma.device", "");
}

static void a_link_down_offers_ip_link(void **state) {
  (void)state;
  struct double_device *device = rdma_add_roce("mlx5_0");
  device->port[0].state = IBV_PORT_DOWN;
  expect("rdma.port", HAUL_CHECK_MISSING, "mlx5_0/1: its link is down",
         "sudo ip link set dev INTERFACE up");
  sys_folder("class/infiniband/mlx5_0/device/net/eth0");
  expect("rdma.port", HAUL_CHECK_MISSING, "0 of 1 ports", "sudo ip link set dev eth0 up");
  rdma_add_roce("mlx5_1");
  expect("rdma.port", HAUL_CHECK_LIMITED, "1 of 2 ports", "sudo ip link set dev eth0 up");
  device->port[0].link_layer = IBV_LINK_LAYER_INFINIBAND; /* no remedy: the cable is missing */
  expect("rdma.port", HAUL_CHECK_LIMITED, "1 of 2 ports", "");
}

static void a_missing_subnet_manager_offers_opensm(void **state) {
  (void)state;
  rdma_add_infiniband("mlx5_0")->port[0].state = IBV_PORT_INIT;
  expect("rdma.port", HAUL_CHECK_MISSING, "subnet manager",
         "sudo apt-get install opensm && sudo systemctl start opensm (on one host of the network)");
}

static void a_port_reports_its_speed(void **state) {
  (void)state;
  rdma_add_infiniband("mlx5_0");
  expect("rdma.port", HAUL_CHECK_OK, "1 port up; mlx5_0/1: 100 Gb/s", "");
  rdma_add_roce("mlx5_1");
  expect("rdma.port", HAUL_CHECK_OK, "2 ports up", "");
}

static void a_missing_gid_offers_ip_address(void **state) {
  (void)state;
  struct double_port *port = &rdma_add_roce("mlx5_0")->port[0];
  memset(port->gids, 0, sizeof port->gids);
  sys_folder("class/infiniband/mlx5_0/device/net/eth0");
  expect("rdma.port", HAUL_CHECK_OK, "1 port up", "");
  expect("rdma.gid", HAUL_CHECK_MISSING, "no IP address",
         "sudo ip address add ADDRESS/24 dev eth0");
  rdma_gid(port, 0, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1", 2);
  expect("rdma.gid", HAUL_CHECK_MISSING, "only RoCE v1", "");
  port->state = IBV_PORT_DOWN;
  expect("rdma.gid", HAUL_CHECK_MISSING, "rdma.port", "");
}

static void the_kind_of_address_is_reported(void **state) {
  (void)state;
  struct double_port *port = &rdma_add_roce("mlx5_0")->port[0];
  expect("rdma.gid", HAUL_CHECK_OK, "mlx5_0/1 is addressed by IPv4", "");
  memset(port->gids, 0, sizeof port->gids);
  rdma_gid(port, 0, IBV_GID_TYPE_ROCE_V2, "2001:db8::1", 2);
  expect("rdma.gid", HAUL_CHECK_OK, "by IPv6", "");
  memset(port->gids, 0, sizeof port->gids);
  rdma_gid(port, 0, IBV_GID_TYPE_ROCE_V2, "fe80::1", 2);
  sys_folder("class/infiniband/mlx5_0/device/net/eth0");
  expect("rdma.gid", HAUL_CHECK_LIMITED, "mlx5_0/1 is addressed by IPv6, link-local",
         "sudo ip address add ADDRESS/24 dev eth0");
  port->link_layer = IBV_LINK_LAYER_INFINIBAND;
  port->lid = 1;
  expect("rdma.gid", HAUL_CHECK_OK, "by LID", "");
}

/* Drops or restores CAP_IPC_LOCK, as root. False: the capability cannot be dropped. */
static bool set_lock_capability(bool wanted) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2];
  assert_int_equal(syscall(SYS_capget, &header, data), 0);
  data[0].effective &= ~(1u << CAP_IPC_LOCK);
  if (wanted)
    data[0].effective |= data[0].permitted & 1u << CAP_IPC_LOCK;
  assert_int_equal(syscall(SYS_capset, &header, data), 0);
  return data[0].effective >> CAP_IPC_LOCK & 1;
}

static void set_limit(rlim_t bytes) {
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  assert_true(bytes <= limit.rlim_max);
  limit.rlim_cur = bytes;
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

#define ULIMIT_OR_LIMITS(hard)                                                                     \
  ((hard) == RLIM_INFINITY                                                                         \
       ? "ulimit -l unlimited"                                                                     \
       : "echo \"$USER - memlock unlimited\" | sudo tee "                                          \
         "/etc/security/limits.d/haul.conf, then log in again (for a service: "                    \
         "LimitMEMLOCK=infinity)")

static void the_memlock_limit_is_reported(void **state) {
  (void)state;
  struct rlimit before;
  assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const char *remedy = ULIMIT_OR_LIMITS(before.rlim_max);
  set_lock_capability(false);
  set_limit(65536);
  expect("rdma.memlock", HAUL_CHECK_MISSING, "64 KiB", remedy);
  if (before.rlim_max >= 8 << 20) {
    set_limit(8 << 20);
    expect("rdma.memlock", HAUL_CHECK_LIMITED, "8192 KiB", remedy);
  }
  if (before.rlim_max == RLIM_INFINITY) {
    set_limit(RLIM_INFINITY);
    expect("rdma.memlock", HAUL_CHECK_OK, "any amount", "");
  }
  set_lock_capability(true);
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

/* In a user namespace the capability does not count. */
static void cap_ipc_lock_lifts_the_limit(void **state) {
  (void)state;
  struct stat users;
  struct rlimit before;
  assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  assert_int_equal(stat("/proc/self/ns/user", &users), 0);
  bool has = set_lock_capability(true) && users.st_ino == 0xEFFFFFFD;
  set_limit(65536);
  if (has)
    expect("rdma.memlock", HAUL_CHECK_OK, "CAP_IPC_LOCK", "");
  else
    expect("rdma.memlock", HAUL_CHECK_MISSING, "64 KiB", ULIMIT_OR_LIMITS(before.rlim_max));
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

static void dmabufs_need_nic_kernel_and_library(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  expect("rdma.dma-buf", HAUL_CHECK_OK, "dma-buf", "");
  rdma_add_roce("rxe0")->dmabuf = false;
  expect("rdma.dma-buf", HAUL_CHECK_LIMITED, "the software NIC rxe0 takes no dma-buf", "");
  sys_pci("devices/pci0000:00/0000:17:00.0", 0);
  sys_nic("rxe0", "devices/pci0000:00/0000:17:00.0");
  expect("rdma.dma-buf", HAUL_CHECK_LIMITED, "the driver of rxe0 takes no dma-buf", "");
  rdma_host_library("33");
  memset(rdma_double(), 0, sizeof *rdma_double());
  rdma_add_roce("mlx5_0");
  expect("rdma.dma-buf", HAUL_CHECK_LIMITED, "older than rdma-core 34", PACKAGES);
}

static const char *release;
static int made_up_uname(struct utsname *kernel) {
  *kernel = (struct utsname){0};
  snprintf(kernel->release, sizeof kernel->release, "%s", release);
  return 0;
}

static void an_old_kernel_offers_an_upgrade(void **state) {
  (void)state;
  static const struct {
    const char *release;
    bool old;
  } kernels[] = {{"5.11.22-generic", true},    {"4.18.0-513.el8", true}, {"5.12", false},
                 {"5.15.0-91-generic", false}, {"6.1.0", false},         {"", false}};
  struct sys_ops before = sys_ops;
  rdma_add_roce("mlx5_0")->dmabuf = false;
  for (size_t i = 0; i < COUNT(kernels); i++) {
    release = kernels[i].release;
    sys_ops.uname = made_up_uname;
    struct haul_check check = check_of("rdma.dma-buf");
    sys_ops.uname = before.uname;
    assert_int_equal(check.state, HAUL_CHECK_LIMITED);
    assert_int_equal(strstr(check.text, "registers no dma-buf, 5.12 does") != NULL, kernels[i].old);
    assert_string_equal(
        check.remedy,
        kernels[i].old ? "sudo apt-get update && sudo apt-get full-upgrade && sudo reboot" : "");
  }
}

static void peer_memory_is_needed_only_with_nvidia(void **state) {
  (void)state;
  expect("rdma.peer-memory", HAUL_CHECK_OK, "not needed", "");
  sys_folder("module/nvidia");
  expect("rdma.peer-memory", HAUL_CHECK_LIMITED, "cannot be registered by its address",
         "sudo modprobe nvidia_peermem");
  rdma_add_roce("mlx5_0");
  expect("rdma.peer-memory", HAUL_CHECK_LIMITED, "only through its dma-buf",
         "sudo modprobe nvidia_peermem");
}

static void all_peer_memory_modules_count(void **state) {
  (void)state;
  static const char *const places[] = {"kernel/mm/memory_peers/nv_mem_nc",
                                       "kernel/mm/memory_peers/nv_mem", "module/nv_peer_mem",
                                       "module/nvidia_peermem"};
  sys_folder("module/nvidia");
  for (size_t i = 0; i < COUNT(places); i++) {
    sys_folder(places[i]);
    expect("rdma.peer-memory", HAUL_CHECK_OK, strrchr(places[i], '/') + 1, "");
  }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, rdma_host_reset, rdma_host_check)
  const struct CMUnitTest tests[] = {
      TEST(the_list_is_always_the_same),
      TEST(a_short_array_is_not_overrun),
      TEST(checks_leave_nothing_open),
      TEST(out_of_memory_is_reported_as_such),
      TEST(a_missing_library_names_packages),
      TEST(an_old_library_names_packages),
      TEST(a_recent_library_is_ok),
      TEST(without_a_card_soft_roce_is_offered),
      TEST(a_card_without_driver_names_the_module),
      TEST(a_device_without_uverbs_names_the_module),
      TEST(a_device_without_provider_names_the_package),
      TEST(a_container_without_the_node_gets_the_option),
      TEST(an_open_failure_gives_the_reason),
      TEST(usable_devices_are_listed),
      TEST(checks_of_a_device_refer_to_its_check),
      TEST(a_link_down_offers_ip_link),
      TEST(a_missing_subnet_manager_offers_opensm),
      TEST(a_port_reports_its_speed),
      TEST(a_missing_gid_offers_ip_address),
      TEST(the_kind_of_address_is_reported),
      TEST(the_memlock_limit_is_reported),
      TEST(cap_ipc_lock_lifts_the_limit),
      TEST(dmabufs_need_nic_kernel_and_library),
      TEST(an_old_kernel_offers_an_upgrade),
      TEST(peer_memory_is_needed_only_with_nvidia),
      TEST(all_peer_memory_modules_count),
  };
  return cmocka_run_group_tests_name("rdma/checks", tests, rdma_host_open, rdma_host_close);
}
