/* SPDX-License-Identifier: MIT
 * The devices that NCCL sees, on hosts that are made up: interfaces by getifaddrs(3), and sysfs. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"
#include "support/check.h"
#include "support/tree.h"

#define ROOM 8

static char root[64];
static struct ifaddrs interfaces[ROOM];
static struct sockaddr_in addresses[ROOM];
static unsigned interface_count;
static struct device devices[ROOM];

int getifaddrs(struct ifaddrs **all) {
  *all = interface_count > 0 ? interfaces : NULL;
  return 0;
}

void freeifaddrs(struct ifaddrs *all) {
  (void)all;
}

static void add_interface(const char *name, const char *address) {
  unsigned i = interface_count++;
  addresses[i].sin_family = AF_INET;
  assert_int_equal(inet_pton(AF_INET, address, &addresses[i].sin_addr), 1);
  interfaces[i] = (struct ifaddrs){
      .ifa_name = (char *)(uintptr_t)name,
      .ifa_addr = (struct sockaddr *)&addresses[i],
      .ifa_flags = IFF_UP | (address[0] == '1' && address[1] == '2' ? IFF_LOOPBACK : 0u)};
  if (i > 0)
    interfaces[i - 1].ifa_next = &interfaces[i];
}

/* The text is formatted with the name. */
static void add_file(const char *format, const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, format, name);
  tree_file(root, path, text);
}

#define PCI_FOLDER "devices/pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:00.0"

/* An active port of 400 Gb/s; its PCI device is below PCI_FOLDER. */
static void add_hca(const char *name, const char *layer, const char *guid) {
  char path[256], to[256];
  snprintf(to, sizeof to, PCI_FOLDER "/%s", name);
  tree_folder(root, to);
  snprintf(path, sizeof path, "class/infiniband/%s/device", name);
  tree_link(root, path, to);
  add_file("class/infiniband/%s/node_guid", name, guid);
  add_file("class/infiniband/%s/ports/1/state", name, "4: ACTIVE\n");
  add_file("class/infiniband/%s/ports/1/rate", name, "400 Gb/sec (4X NDR)\n");
  add_file("class/infiniband/%s/ports/1/link_layer", name, layer);
}

static void add_infiniband(const char *name) {
  add_hca(name, "InfiniBand\n", "0c42:a103:00b4:8e6c\n");
}

static void add_roce(const char *name, const char *interface) {
  add_hca(name, "Ethernet\n", "0c42:a103:00b4:8e6d\n");
  add_file("class/infiniband/%s/ports/1/gid_attrs/ndevs/0", name, "\n");
  char line[32];
  snprintf(line, sizeof line, "%s\n", interface);
  add_file("class/infiniband/%s/ports/1/gid_attrs/ndevs/1", name, line);
}

static void assert_devices(unsigned count, const char *const names[]) {
  assert_int_equal(devices_find(devices, ROOM), count);
  for (unsigned i = 0; i < count; i++)
    assert_string_equal(devices[i].name, names[i]);
}
#define ASSERT_DEVICES(count, ...) assert_devices(count, (const char *const[]){__VA_ARGS__})

static int set_up(void **state) {
  (void)state;
  unsetenv("NCCL_SOCKET_IFNAME");
  unsetenv("NCCL_IB_HCA");
  snprintf(root, sizeof root, "/tmp/haul-devices-XXXXXX");
  memset(interfaces, 0, sizeof interfaces);
  interface_count = 0;
  devices_sysfs = root;
  return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  tree_remove(root);
  return 0;
}

static void interfaces_without_an_hca_are_devices(void **state) {
  (void)state;
  add_interface("lo", "127.0.0.1");
  add_interface("eth0", "10.0.0.1");
  tree_file(root, "class/net/eth0/speed", "25000\n");
  ASSERT_DEVICES(1, "eth0");
  assert_string_equal(devices[0].address, "tcp://10.0.0.1:0");
  assert_int_equal(devices[0].speed, 25000);
  assert_int_equal(devices[0].port, 0);
  assert_string_equal(devices[0].pci, "");
}

static void a_long_pci_path_is_whole(void **state) {
  (void)state;
  char whole[256];
  add_interface("eth0", "10.0.0.1");
  tree_folder(root, PCI_FOLDER "/0000:19:00.0");
  tree_link(root, "class/net/eth0/device", PCI_FOLDER "/0000:19:00.0");
  snprintf(whole, sizeof whole, "%s/" PCI_FOLDER "/0000:19:00.0", root);
  assert_true(strlen(whole) >= 64);
  ASSERT_DEVICES(1, "eth0");
  assert_string_equal(devices[0].pci, whole);
}

static void an_infiniband_port_without_ip_is_a_device(void **state) {
  (void)state;
  char pci[256];
  add_interface("eth0", "10.0.0.1");
  add_infiniband("mlx5_10");
  add_infiniband("mlx5_9");
  ASSERT_DEVICES(3, "eth0", "mlx5_9", "mlx5_10");
  assert_string_equal(devices[1].address, "tcp://10.0.0.1:0");
  assert_int_equal(devices[1].speed, 400000);
  assert_int_equal(devices[1].port, 1);
  assert_true(devices[1].guid == UINT64_C(0x0c42a10300b48e6c));
  snprintf(pci, sizeof pci, "%s/" PCI_FOLDER "/mlx5_9", root);
  assert_string_equal(devices[1].pci, pci);
}

static void an_hca_takes_the_place_of_its_interfaces(void **state) {
  (void)state;
  add_interface("eth0", "10.0.0.1");
  add_interface("eth2", "10.0.2.1");
  add_interface("ib0", "10.0.3.1");
  add_interface("eth2.7", "10.0.7.1");
  add_roce("mlx5_0", "eth2");
  tree_file(root, "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/5", "eth2.7\n");
  add_infiniband("mlx5_1");
  tree_file(root, PCI_FOLDER "/mlx5_1/net/ib0/dev_port", "0\n");
  ASSERT_DEVICES(3, "eth0", "mlx5_0", "mlx5_1");
  assert_string_equal(devices[1].address, "tcp://10.0.2.1:0");
  assert_string_equal(devices[2].address, "tcp://10.0.3.1:0");
}

static void a_roce_port_without_ip_is_no_device(void **state) {
  (void)state;
  add_interface("eth0", "10.0.0.1");
  add_roce("mlx5_0", "eth2");
  ASSERT_DEVICES(1, "eth0");
}

static void software_leaves_its_interface(void **state) {
  (void)state;
  add_interface("eth0", "10.0.0.1");
  tree_file(root, "class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
  tree_file(root, "class/infiniband/rxe0/ports/1/gid_attrs/ndevs/1", "eth0\n");
  ASSERT_DEVICES(1, "eth0");
}

static void ports_are_active_and_chosen(void **state) {
  (void)state;
  add_interface("eth0", "10.0.0.1");
  add_infiniband("mlx5_0");
  add_infiniband("mlx5_1");
  add_infiniband("mlx5_2");
  tree_file(root, "class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  ASSERT_DEVICES(3, "eth0", "mlx5_0", "mlx5_2");
  setenv("NCCL_IB_HCA", "mlx5_2", 1);
  ASSERT_DEVICES(2, "eth0", "mlx5_2");
  setenv("NCCL_IB_HCA", "=mlx5_0:1", 1);
  ASSERT_DEVICES(2, "eth0", "mlx5_0");
  setenv("NCCL_IB_HCA", "^mlx5_0", 1);
  ASSERT_DEVICES(2, "eth0", "mlx5_2");
  setenv("NCCL_IB_HCA", "^mlx5", 1);
  ASSERT_DEVICES(1, "eth0");
}

static void both_ports_of_an_hca_are_devices(void **state) {
  (void)state;
  add_interface("eth0", "10.0.0.1");
  add_infiniband("mlx4_0");
  tree_file(root, "class/infiniband/mlx4_0/ports/2/state", "4: ACTIVE\n");
  tree_file(root, "class/infiniband/mlx4_0/ports/2/rate", "2.5 Gb/sec (1X SDR)\n");
  tree_file(root, "class/infiniband/mlx4_0/ports/2/link_layer", "InfiniBand\n");
  ASSERT_DEVICES(3, "eth0", "mlx4_0", "mlx4_0");
  assert_int_equal(devices[2].port, 2);
  assert_int_equal(devices[2].speed, 2500);
}

/* No other host would reach their address. */
static void with_loopback_alone_hcas_are_left_out(void **state) {
  (void)state;
  add_interface("lo", "127.0.0.1");
  add_infiniband("mlx5_0");
  ASSERT_DEVICES(1, "lo");
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(interfaces_without_an_hca_are_devices),
      TEST(a_long_pci_path_is_whole),
      TEST(an_infiniband_port_without_ip_is_a_device),
      TEST(an_hca_takes_the_place_of_its_interfaces),
      TEST(a_roce_port_without_ip_is_no_device),
      TEST(software_leaves_its_interface),
      TEST(ports_are_active_and_chosen),
      TEST(both_ports_of_an_hca_are_devices),
      TEST(with_loopback_alone_hcas_are_left_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
