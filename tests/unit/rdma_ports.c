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

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, rdma_host_reset, rdma_host_check)
  const struct CMUnitTest tests[] = {
      TEST(without_nics_there_are_no_ports),
      TEST(a_port_is_described),
      TEST(settings_are_reported),
      TEST(software_and_unknown_distance_are_reported),
      TEST(infiniband_reports_the_lid),
      TEST(unusable_ports_come_last_with_a_reason),
      TEST(a_short_array_gets_the_first_ports),
  };
  return cmocka_run_group_tests(tests, rdma_host_open, rdma_host_close);
}
