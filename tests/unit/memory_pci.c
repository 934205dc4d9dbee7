/* SPDX-License-Identifier: MIT
 * PCI devices in a made-up sysfs. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/pci.h"
#include "support/tree.h"

#define ABOVE  "devices/pci0000:00/0000:00:01.0"
#define SWITCH ABOVE "/0000:01:00.0"
#define DEVICE SWITCH "/0000:02:00.0"

static char root[64];
static const char *devices[] = {"0000:02:00.0", NULL};

static const char *next(unsigned number) {
  return devices[number];
}

static int begin(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/haul-pci-XXXXXX");
  assert_non_null(mkdtemp(root));
  tree_folder(root, DEVICE);
  tree_link(root, "bus/pci/devices/0000:00:01.0", ABOVE);
  tree_link(root, "bus/pci/devices/0000:01:00.0", SWITCH);
  tree_link(root, "bus/pci/devices/0000:02:00.0", DEVICE);
  return 0;
}

static int end(void **state) {
  (void)state;
  tree_remove(root);
  return 0;
}

static void bytes_file(const char *path, const unsigned char *bytes, size_t length) {
  char whole[256];
  tree_file(root, path, "");
  snprintf(whole, sizeof whole, "%s/%s", root, path);
  FILE *file = fopen(whole, "we");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, length, file), length);
  fclose(file);
}

static void put32(unsigned char *at, unsigned value) {
  for (int i = 0; i < 4; i++)
    at[i] = (unsigned char)(value >> 8 * i);
}

/* A bridge with a capability before its ACS, with this control register. */
static void bridge(const char *path, unsigned control) {
  unsigned char config[4096] = {0};
  put32(config + 0x100, 0x0001u | 1u << 16 | 0x148u << 20);
  put32(config + 0x148, 0x000du | 1u << 16);
  config[0x148 + 6] = (unsigned char)control;
  bytes_file(path, config, sizeof config);
}

static struct haul_check acs(void) {
  struct haul_check check = {.state = 9};
  pci_check_acs(&check, root, "gpu", next);
  return check;
}

static struct haul_check iommu(void) {
  struct haul_check check = {.state = 9};
  pci_check_iommu(&check, root, "gpu", next);
  return check;
}

static void assert_says(struct haul_check check, int state, const char *text, const char *remedy) {
  if (check.state != state || !strstr(check.text, text) || !strstr(check.remedy, remedy))
    fail_msg("%d, '%s', '%s'", check.state, check.text, check.remedy);
}

static void an_unknown_device_is_harmless(void **state) {
  (void)state;
  devices[0] = "../../../etc/pass";
  assert_int_equal(pci_numa(root, devices[0]), -1);
  assert_says(iommu(), HAUL_CHECK_OK, "no IOMMU", "");
  assert_says(acs(), HAUL_CHECK_OK, "no bridge", "");
  devices[0] = "0000:02:00.0";
}

static void a_bridge_that_redirects_is_named_with_the_command(void **state) {
  (void)state;
  bridge(ABOVE "/config", 0x01);
  bridge(SWITCH "/config", 0x1d);
  assert_says(acs(), HAUL_CHECK_LIMITED, "the bridge 0000:01:00.0 above gpu:0",
              "setpci -s 0000:01:00.0 ECAP_ACS+6.w=0:1c");
  bridge(SWITCH "/config", 0x01);
  assert_says(acs(), HAUL_CHECK_OK, "no bridge", "");
}

/* The device's own capability does not count. */
static void the_device_itself_is_not_counted_as_a_bridge(void **state) {
  (void)state;
  bridge(ABOVE "/config", 0);
  bridge(SWITCH "/config", 0);
  bridge(DEVICE "/config", 0x1f);
  assert_says(acs(), HAUL_CHECK_OK, "no bridge", "");
}

static void files_readable_by_root_are_reported(void **state) {
  unsigned char config[64] = {0};
  (void)state;
  bridge(ABOVE "/config", 0);
  bytes_file(SWITCH "/config", config, sizeof config);
  assert_says(acs(), HAUL_CHECK_LIMITED, "root alone", "sudo haul doctor gpu");
}

static void a_cyclic_capability_list_ends(void **state) {
  unsigned char config[4096] = {0};
  (void)state;
  put32(config + 0x100, 0x0001u | 0x200u << 20);
  put32(config + 0x200, 0x0002u | 0x100u << 20);
  bytes_file(ABOVE "/config", config, sizeof config);
  memset(config, 0xff, sizeof config); /* a removed device reads so */
  bytes_file(SWITCH "/config", config, sizeof config);
  assert_says(acs(), HAUL_CHECK_OK, "no bridge", "");
  put32(config + 0x100, 0x0001u | 0xffcu << 20); /* up to the last word */
  bytes_file(SWITCH "/config", config, sizeof config);
  assert_says(acs(), HAUL_CHECK_OK, "no bridge", "");
}

static void a_translating_iommu_is_reported(void **state) {
  (void)state;
  assert_says(iommu(), HAUL_CHECK_OK, "no IOMMU", "");
  tree_file(root, DEVICE "/iommu_group/type", "identity\n");
  assert_says(iommu(), HAUL_CHECK_OK, "passes the devices' addresses on (identity)", "");
  tree_file(root, DEVICE "/iommu_group/type", "DMA-FQ\n");
  assert_says(iommu(), HAUL_CHECK_LIMITED, "gpu:0 (DMA-FQ)", "iommu=pt");
}

static void a_node_is_a_small_number(void **state) {
  (void)state;
  assert_int_equal(pci_numa(root, devices[0]), -1);
  tree_file(root, DEVICE "/numa_node", "3\n");
  assert_int_equal(pci_numa(root, devices[0]), 3);
  tree_file(root, DEVICE "/numa_node", "-1\n");
  assert_int_equal(pci_numa(root, devices[0]), -1);
  tree_file(root, DEVICE "/numa_node", "99999999999999999999\n");
  assert_int_equal(pci_numa(root, devices[0]), -1);
}

static void a_device_is_found_by_vendor_and_class(void **state) {
  (void)state;
  char name[PCI_NAME];
  assert_false(pci_find(root, "0x10de", "", name));
  tree_file(root, DEVICE "/vendor", "0x10de\n");
  assert_false(pci_find(root, "0x10de", "", name)); /* no class: no device */
  tree_file(root, DEVICE "/class", "0x030200\n");
  assert_true(pci_find(root, "0x10de", "", name));
  assert_string_equal(name, "0000:02:00.0");
  assert_true(pci_find(root, "0x10de", "0x03", name));
  assert_false(pci_find(root, "0x10de", "0x12", name));
  assert_false(pci_find(root, "0x10d", "", name));
  assert_false(pci_find(root, "0x1da3", "", name));
  assert_false(pci_find("/nowhere", "0x10de", "", name));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(an_unknown_device_is_harmless),
      TEST(a_bridge_that_redirects_is_named_with_the_command),
      TEST(the_device_itself_is_not_counted_as_a_bridge),
      TEST(files_readable_by_root_are_reported),
      TEST(a_cyclic_capability_list_ends),
      TEST(a_translating_iommu_is_reported),
      TEST(a_node_is_a_small_number),
      TEST(a_device_is_found_by_vendor_and_class),
  };
  return cmocka_run_group_tests_name("memory/pci", tests, NULL, NULL);
}
