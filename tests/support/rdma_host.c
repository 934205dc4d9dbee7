/* SPDX-License-Identifier: MIT */
#include "support/rdma_host.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fabric/rdma/sysfs.h"
#include "fabric/rdma/verbs.h"
#include "support/check.h"
#include "support/tree.h"

static char folder[64];
static char library[512];
static void *opened; /* keeps the mock loaded */
static struct ibverbs_double *mock;

void rdma_host_library(const char *variant) {
  const char *doubles = getenv("HAUL_DOUBLES");
  library_forget(&verbs_library);
  if (opened)
    dlclose(opened);
  opened = NULL;
  mock = NULL;
  snprintf(library, sizeof library, "%s/ibverbs/%s/libibverbs.so.1", doubles ? doubles : "",
           variant ? variant : "none");
  verbs_library.names[0] = library;
  if (!variant)
    return;
  opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!opened)
    fail_msg("%s; run it by ctest, or set HAUL_DOUBLES to tests/doubles in the build folder",
             dlerror());
  mock = dlsym(opened, "ibverbs_double");
  assert_non_null(mock);
}

struct ibverbs_double *rdma_double(void) {
  assert_non_null(mock);
  return mock;
}

/* ConnectX-7, as ibv_devinfo -v shows it. */
static const struct ibv_device_attr usual_limits = {
    .max_mr_size = UINT64_MAX,
    .max_mr = 16777216,
    .max_qp_wr = 32768,
    .max_sge = 30,
    .max_sge_rd = 30,
    .max_cqe = 4194303,
    .max_srq = 8388608,
    .max_srq_wr = 32767,
    .max_srq_sge = 31,
    .max_qp_rd_atom = 16,
    .max_qp_init_rd_atom = 16,
    .atomic_cap = IBV_ATOMIC_HCA,
};

static struct double_device *add(const char *name) {
  assert_true(rdma_double()->count < DOUBLE_DEVICES);
  size_t number = ++rdma_double()->count;
  struct double_device *device = &rdma_double()->devices[number - 1];
  snprintf(device->name, sizeof device->name, "%s", name);
  device->guid = UINT64_C(0x0002c90300000000) + number;
  device->transport = IBV_TRANSPORT_IB;
  device->ports = 1;
  device->limits = usual_limits;
  device->inline_bytes = 220;
  device->dmabuf = true;
  device->port[0] = (struct double_port){
      .state = IBV_PORT_ACTIVE, .mtu = IBV_MTU_4096, .speed = 32, .width = 2}; /* 4x EDR */
  return device;
}

struct double_device *rdma_add_roce(const char *name) {
  struct double_device *device = add(name);
  char address[32];
  snprintf(address, sizeof address, "::ffff:10.0.0.%zu", rdma_double()->count);
  device->port[0].link_layer = IBV_LINK_LAYER_ETHERNET;
  device->port[0].mtu = IBV_MTU_1024;
  rdma_gid(&device->port[0], 3, IBV_GID_TYPE_ROCE_V2, address, 2);
  return device;
}

struct double_device *rdma_add_infiniband(const char *name) {
  struct double_device *device = add(name);
  device->port[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  device->port[0].lid = (uint16_t)rdma_double()->count;
  rdma_gid(&device->port[0], 0, IBV_GID_TYPE_IB, "fe80::2:c903:0:1", 0);
  return device;
}

void rdma_gid(struct double_port *port, unsigned index, enum ibv_gid_type type, const char *address,
              unsigned interface) {
  struct double_gid *gid = &port->gids[index];
  *gid = (struct double_gid){.type = type, .interface = interface};
  assert_int_equal(inet_pton(AF_INET6, address, gid->raw), 1);
}

void sys_file(const char *path, const char *text) {
  tree_file(folder, path, text);
}

void sys_folder(const char *path) {
  tree_folder(folder, path);
}

void sys_link(const char *path, const char *to) {
  tree_link(folder, path, to);
}

void sys_pci(const char *path, int numa) {
  char text[256], number[16];
  const char *name = strrchr(path, '/') + 1;
  snprintf(text, sizeof text, "%s/numa_node", path);
  snprintf(number, sizeof number, "%d\n", numa);
  sys_file(text, number);
  snprintf(text, sizeof text, "bus/pci/devices/%s", name);
  sys_link(text, path);
}

void sys_nic(const char *name, const char *path) {
  char text[256];
  snprintf(text, sizeof text, "class/infiniband/%s/device", name);
  sys_link(text, path);
}

int rdma_host_open(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/haul-sys-XXXXXX");
  static char dev_folder[512];
  if (!mkdtemp(folder))
    return -1;
  sysfs_root = folder;
  snprintf(dev_folder, sizeof dev_folder, "%s/dev", folder);
  device_nodes_root = dev_folder;
  return 0;
}

int rdma_host_close(void **state) {
  (void)state;
  library_forget(&verbs_library);
  if (opened)
    dlclose(opened);
  opened = NULL;
  tree_remove(folder);
  return 0;
}

int rdma_host_reset(void **state) {
  (void)state;
  tree_remove(folder);
  mkdir(folder, 0700);
  rdma_host_library("current");
  memset(mock, 0, sizeof *mock);
  return 0;
}

int rdma_host_check(void **state) {
  (void)state;
  static const struct double_live nobody;
  if (!mock || memcmp(&mock->live, &nobody, sizeof nobody) == 0)
    return 0;
  print_error("left behind: %u lists, %u contexts, %u protection domains, %u registrations\n",
              mock->live.lists, mock->live.contexts, mock->live.pds, mock->live.registrations);
  return -1;
}
