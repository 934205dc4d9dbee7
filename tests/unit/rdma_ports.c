/* SPDX-License-Identifier: MIT
 * haul_port_list for the ports of RDMA devices. */
#include "support/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fabric/rdma/checks.h"
#include "fabric/transport.h"
#include "support/rdma_host.h"

#define ROOM 8

static struct rdma_settings settings;
static struct fabric fabric = {.rdma = &settings};

static struct haul_device device_at(const char *pci, int numa) {
  struct haul_device device = {.numa = numa};
  snprintf(device.pci, sizeof device.pci, "%s", pci);
  return device;
}

static struct haul_port port_of(const struct haul_device *device, size_t index, size_t count) {
  struct haul_port ports[ROOM];
  assert_int_equal(rdma_ports(&fabric, device, ports, ROOM), count);
  assert_string_equal(ports[index].path, "rdma");
  assert_int_equal(ports[index].usable, ports[index].reason[0] == '\0');
  return ports[index];
}

static void without_nics_there_are_no_ports(void **state) {
  (void)state;
  struct haul_device host = device_at("", 0);
  assert_int_equal(rdma_ports(&fabric, &host, NULL, 0), 0);
  rdma_host_library(NULL);
  assert_int_equal(rdma_ports(&fabric, &host, NULL, 0), 0);
}

static void a_port_is_described(void **state) {
  (void)state;
  struct haul_device gpu = device_at("0000:02:00.0", 0);
  sys_pci("devices/pci0000:00/0000:00:01.0/0000:02:00.0", 0);
  sys_pci("devices/pci0000:00/0000:00:01.0/0000:03:00.0", 0);
  sys_nic("mlx5_0", "devices/pci0000:00/0000:00:01.0/0000:03:00.0");
  rdma_add_roce("mlx5_0");
  struct haul_port port = port_of(&gpu, 0, 1);
  assert_string_equal(port.name, "mlx5_0/1");
  assert_string_equal(port.pci, "0000:03:00.0");
  assert_string_equal(port.address, "::ffff:10.0.0.1");
  assert_int_equal(port.emulated, 0);
  assert_int_equal(port.numa, 0);
  assert_int_equal(port.bridges, 2);
  assert_int_equal(port.numa_distance, 10);
  assert_int_equal(port.bits_per_second / 1000000000, 100);
  assert_int_equal(port.mtu, 1024);
  assert_int_equal(port.gid_index, 3);
  assert_int_equal(port.pkey, 0xffff);
  assert_int_equal(port.traffic_class, 0);
  assert_int_equal(port.service_level, 0);
}

static void settings_are_reported(void **state) {
  (void)state;
  struct haul_device host = device_at("", 0);
  rdma_gid(rdma_add_roce("mlx5_0")->port, 5, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.5", 2);
  strcpy(settings.texts[RDMA_TRAFFIC_CLASS], "104");
  strcpy(settings.texts[RDMA_SERVICE_LEVEL], "mlx5_0:3");
  strcpy(settings.texts[RDMA_GID], "5");
  strcpy(settings.texts[RDMA_MTU], "512");
  struct haul_port port = port_of(&host, 0, 1);
  memset(&settings, 0, sizeof settings);
  assert_string_equal(port.address, "::ffff:10.0.0.5");
  assert_int_equal(port.gid_index, 5);
  assert_int_equal(port.mtu, 512);
  assert_int_equal(port.traffic_class, 104);
  assert_int_equal(port.service_level, 3);
}

static void an_excluded_nic_has_one_line(void **state) {
  (void)state;
  struct haul_device host = device_at("", 0);
  rdma_add_roce("mlx5_0");
  rdma_add_roce("mlx5_1");
  strcpy(settings.texts[RDMA_NICS], "^mlx5_0");
  struct haul_port used = port_of(&host, 0, 2), excluded = port_of(&host, 1, 2);
  memset(&settings, 0, sizeof settings);
  assert_string_equal(used.name, "mlx5_1/1");
  assert_string_equal(excluded.name, "mlx5_0/1");
  assert_string_equal(excluded.reason, "excluded by the setting rdma_nics");
}

static void software_and_unknown_distance_are_reported(void **state) {
  (void)state;
  struct haul_device nowhere = device_at("", -1);
  rdma_add_roce("rxe0");
  struct haul_port port = port_of(&nowhere, 0, 1);
  assert_int_equal(port.emulated, 1);
  assert_int_equal(port.numa, -1);
  assert_int_equal(port.bridges, 0);
  assert_int_equal(port.numa_distance, -1);
}

static void infiniband_reports_the_lid(void **state) {
  (void)state;
  struct haul_device host = device_at("", 0);
  rdma_add_infiniband("mlx5_0");
  assert_string_equal(port_of(&host, 0, 1).address, "lid 1");
}

static void unusable_ports_come_last_with_a_reason(void **state) {
  (void)state;
  struct haul_device host = device_at("", 0);
  rdma_add_roce("broken")->errors.open = EACCES;
  rdma_add_roce("down")->port[0].state = IBV_PORT_DOWN;
  rdma_add_roce("fine");
  assert_string_equal(port_of(&host, 0, 3).name, "fine/1");
  struct haul_port port = port_of(&host, 1, 3);
  assert_string_equal(port.name, "broken/1");
  assert_non_null(strstr(port.reason, "Permission denied"));
  port = port_of(&host, 2, 3);
  assert_string_equal(port.name, "down/1");
  assert_string_equal(port.address, "");
  assert_non_null(strstr(port.reason, "link is down"));
}

static void a_short_array_gets_the_first_ports(void **state) {
  (void)state;
  struct haul_device host = device_at("", 0);
  struct haul_port port = {.numa = 77};
  rdma_add_roce("mlx5_0");
  rdma_add_roce("mlx5_1");
  assert_int_equal(rdma_ports(&fabric, &host, &port, 0), 2);
  assert_int_equal(port.numa, 77);
  assert_int_equal(rdma_ports(&fabric, &host, &port, 1), 2);
  assert_string_equal(port.name, "mlx5_0/1");
}

static struct haul_port named(const struct haul_device *device, const char *name) {
  static struct haul_port ports[DOUBLE_DEVICES];
  size_t count = rdma_ports(&fabric, device, ports, DOUBLE_DEVICES);
  for (size_t i = 0; i < count && i < DOUBLE_DEVICES; i++)
    if (strcmp(ports[i].name, name) == 0)
      return ports[i];
  fail_msg("no port %s", name);
  return ports[0];
}

static void assert_choice(const struct haul_device *device, const char *name, int chosen,
                          const char *why) {
  struct haul_port port = named(device, name);
  assert_int_equal(port.chosen, chosen);
  assert_string_equal(port.choice, why);
}

/* Two below the GPU's bridge, one of them on its NUMA node, and one elsewhere. */
static void the_nearest_ports_are_chosen(void **state) {
  (void)state;
  struct haul_device gpu = device_at("0000:02:00.0", 0), host = device_at("", -1);
  struct haul_device numa = device_at("", 1);
  sys_pci("devices/pci0000:00/0000:00:01.0/0000:02:00.0", 0);
  sys_pci("devices/pci0000:00/0000:00:01.0/0000:03:00.0", 0);
  sys_pci("devices/pci0000:00/0000:00:01.0/0000:04:00.0", 1);
  sys_pci("devices/pci0000:80/0000:80:01.0/0000:83:00.0", 1);
  sys_nic("mlx5_0", "devices/pci0000:00/0000:00:01.0/0000:03:00.0");
  sys_nic("mlx5_1", "devices/pci0000:00/0000:00:01.0/0000:04:00.0");
  sys_nic("mlx5_2", "devices/pci0000:80/0000:80:01.0/0000:83:00.0");
  rdma_add_roce("mlx5_0");
  assert_choice(&gpu, "mlx5_0/1", 1, "the only one");
  rdma_add_roce("mlx5_1");
  assert_choice(&gpu, "mlx5_0/1", 1, "nearest by NUMA");
  assert_choice(&gpu, "mlx5_1/1", 0, "mlx5_0/1 is nearest by NUMA");
  rdma_add_roce("mlx5_2");
  rdma_add_roce("mlx5_3")->port[0].state = IBV_PORT_DOWN;
  assert_choice(&gpu, "mlx5_0/1", 1, "nearest by PCI");
  assert_choice(&gpu, "mlx5_1/1", 0, "mlx5_0/1 is nearest by NUMA");
  assert_choice(&gpu, "mlx5_2/1", 0, "mlx5_0/1 is nearest by PCI");
  assert_choice(&gpu, "mlx5_3/1", 0, "");
  assert_choice(&host, "mlx5_0/1", 1, "all are as near");
  assert_choice(&host, "mlx5_2/1", 1, "all are as near");
  assert_choice(&numa, "mlx5_1/1", 1, "nearest by NUMA");
  assert_choice(&numa, "mlx5_2/1", 1, "nearest by NUMA");
}

static void sixteen_ports_are_used(void **state) {
  (void)state;
  struct haul_device host = device_at("", -1);
  for (unsigned i = 0; i < 17; i++) {
    char name[16];
    snprintf(name, sizeof name, "mlx5_%u", i);
    rdma_add_roce(name)->port[0].speed = i == 3 ? 1 : 32;
  }
  assert_choice(&host, "mlx5_2/1", 1, "all are as near");
  assert_choice(&host, "mlx5_3/1", 0, "a node uses 16 ports, and others go first");
  assert_choice(&host, "mlx5_16/1", 1, "all are as near");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, rdma_host_reset, rdma_host_check)
  const struct CMUnitTest tests[] = {
      TEST(without_nics_there_are_no_ports),
      TEST(a_port_is_described),
      TEST(settings_are_reported),
      TEST(an_excluded_nic_has_one_line),
      TEST(software_and_unknown_distance_are_reported),
      TEST(infiniband_reports_the_lid),
      TEST(unusable_ports_come_last_with_a_reason),
      TEST(a_short_array_gets_the_first_ports),
      TEST(the_nearest_ports_are_chosen),
      TEST(sixteen_ports_are_used),
  };
  return cmocka_run_group_tests(tests, rdma_host_open, rdma_host_close);
}
