/* SPDX-License-Identifier: MIT
 * The NICs of a host: failures, limits, ports, GIDs, distances, ranking. */
#include "support/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/rdma/nic.h"
#include "fabric/rdma/sysfs.h"
#include "support/rdma_host.h"
#include "support/seams.h"

static struct nics *open_nics(void) {
  struct nics *nics = NULL;
  assert_works(nics_open(NULL, &nics));
  assert_non_null(nics);
  return nics;
}

static struct nic_port port_of(const struct nics *nics, size_t index) {
  struct nic_port port;
  nic_port(&nics->list[index], 1, &port);
  assert_int_equal(port.number, 1);
  assert_int_equal(port.status == NIC_PORT_USABLE, port.reason[0] == '\0');
  return port;
}

static void no_library_means_no_nics(void **state) {
  (void)state;
  struct nics *nics;
  rdma_host_library(NULL);
  assert_fails(HAUL_ENOTSUP, nics_open(NULL, &nics));
  assert_non_null(strstr(haul_error_last()->hint, "libibverbs1"));
}

static void no_devices_is_not_supported(void **state) {
  (void)state;
  struct nics *nics;
  assert_fails(HAUL_ENOTSUP, nics_open(NULL, &nics));
  rdma_double()->list_error = ENOSYS; /* a kernel without RDMA */
  assert_fails(HAUL_ENOTSUP, nics_open(NULL, &nics));
  assert_non_null(strstr(haul_error_last()->hint, "haul doctor rdma"));
}

static void check_unusable(int system, const char *words) {
  unsigned before = open_descriptors();
  struct nic_rail rail;
  size_t count = 1;
  struct nics *nics = open_nics();
  const struct nic *nic = &nics->list[0];
  assert_null(nic->context);
  assert_null(nic->pd);
  assert_int_equal(nic->system, system);
  assert_non_null(strstr(nic->reason, words));
  assert_string_equal(nic->name, "mlx5_0");
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_FAILED);
  assert_fails(HAUL_ENOTSUP, nics_rank(nics, NULL, false, &rail, &count));
  assert_non_null(strstr(haul_error_last()->text, words));
  assert_int_equal(count, 0);
  nics_close(nics);
  assert_int_equal(open_descriptors(), before);
}

static void an_open_failure_gives_the_reason(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0")->errors.open = EACCES;
  check_unusable(EACCES, "Permission denied");
}

static void a_query_failure_closes_the_nic(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0")->errors.query = EIO;
  check_unusable(EIO, "limits");
}

static void a_pd_failure_closes_the_nic(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0")->errors.pd = EIO;
  check_unusable(EIO, "protection domain");
}

/* Else it would be left out for the node's life. */
static void a_nic_that_met_a_shortage_is_opened_again(void **state) {
  (void)state;
  static const struct {
    int system, code;
  } shortages[] = {{ENOMEM, HAUL_ENOMEM}, {EMFILE, HAUL_ELIMIT}, {ENFILE, HAUL_ELIMIT}};
  unsigned before = open_descriptors();
  struct double_device *device = rdma_add_roce("mlx5_0");
  struct nics *nics;
  rdma_add_roce("mlx5_1");
  for (unsigned i = 0; i < COUNT(shortages); i++) {
    _Atomic int *where = shortages[i].system == ENOMEM ? &device->errors.pd : &device->errors.open;
    *where = shortages[i].system;
    assert_fails(shortages[i].code, nics_open(NULL, &nics));
    assert_string_equal(haul_error_last()->object, "mlx5_0");
    assert_int_equal(open_descriptors(), before);
    *where = 0;
    nics = open_nics();
    assert_non_null(nics->list[0].context);
    nics_close(nics);
  }
}

static void other_protocols_are_not_opened(void **state) {
  (void)state;
  struct double_device *device = rdma_add_roce("mlx5_0");
  device->errors.open = EIO;
  device->transport = IBV_TRANSPORT_IWARP;
  check_unusable(0, "iWARP");
  device->transport = IBV_TRANSPORT_UNSPECIFIED; /* EFA */
  check_unusable(0, "neither InfiniBand nor RoCE");
}

static void other_nics_stay_usable(void **state) {
  (void)state;
  struct nic_rail rail;
  size_t count = 1;
  rdma_add_roce("mlx5_0")->errors.open = EIO;
  rdma_add_roce("mlx5_1");
  struct nics *nics = open_nics();
  assert_int_equal(nics->count, 2);
  assert_works(nics_rank(nics, NULL, false, &rail, &count));
  assert_int_equal(count, 1);
  assert_ptr_equal(rail.nic, &nics->list[1]);
  nics_close(nics);
}

static void no_failure_leaks(void **state) {
  (void)state;
  unsigned refusals = 0, before = open_descriptors();
  rdma_add_roce("mlx5_0");
  rdma_add_infiniband("mlx5_1");
  for (unsigned n = 1;; n++) {
    struct nics *nics = NULL;
    seams_refuse(n);
    int code = nics_open(NULL, &nics);
    bool refused = seams_restore();
    if (code == 0)
      nics_close(nics);
    if (!refused)
      break;
    refusals++;
    assert_int_equal(code, HAUL_ENOMEM);
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(rdma_host_check(NULL), 0);
  }
  assert_int_equal(refusals, 1);
}

static void limits_are_read_from_the_device(void **state) {
  (void)state;
  struct double_device *device = rdma_add_roce("mlx5_0");
  device->ports = 2;
  device->limits.atomic_cap = IBV_ATOMIC_NONE;
  struct nics *nics = open_nics();
  const struct nic *nic = &nics->list[0];
  assert_int_equal(nic->ports, 2);
  assert_int_equal(nic->limits.qp_wr, 32768);
  assert_int_equal(nic->limits.cqe, 4194303);
  assert_int_equal(nic->limits.srq_wr, 32767);
  assert_int_equal(nic->limits.reads_served, 16);
  assert_int_equal(nic->limits.reads_started, 16);
  assert_false(nic->limits.atomics);
  nics_close(nics);
  device->limits.max_srq = 0; /* the length of a queue means nothing then */
  nics = open_nics();
  assert_int_equal(nics->list[0].limits.srq_wr, 0);
  nics_close(nics);
}

static int dmabuf_of_first(void) {
  struct nics *nics = open_nics();
  int answer = nics->list[0].dmabuf;
  assert_int_equal(rdma_double()->live.registrations, 0);
  nics_close(nics);
  return answer;
}

static void dmabuf_support_is_probed_once(void **state) {
  (void)state;
  struct double_device *device = rdma_add_roce("mlx5_0");
  assert_int_equal(dmabuf_of_first(), 0);
  device->dmabuf = false;
  assert_int_equal(dmabuf_of_first(), EOPNOTSUPP);
  rdma_host_library("33");
  memset(rdma_double(), 0, sizeof *rdma_double());
  rdma_add_roce("mlx5_0");
  assert_int_equal(dmabuf_of_first(), ENOSYS);
}

static void relaxed_ordering_is_optional(void **state) {
  (void)state;
  static char bytes[4096];
  rdma_add_roce("mlx5_0");
  struct nics *nics = open_nics();
  const struct nic *nic = &nics->list[0];
  const unsigned access[] = {IBV_ACCESS_RELAXED_ORDERING,
                             IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_LOCAL_WRITE};
  for (size_t i = 0; i < COUNT(access); i++) {
    assert_null(nic->verbs->reg_mr(nic->pd, bytes, sizeof bytes, (int)access[i]));
    struct ibv_mr *mr =
        nic->verbs->reg_mr_iova2(nic->pd, bytes, sizeof bytes, (uintptr_t)bytes, access[i]);
    assert_non_null(mr);
    nic->verbs->dereg_mr(mr);
  }
  nics_close(nics);
}

static void closing_releases_everything(void **state) {
  (void)state;
  unsigned before = open_descriptors();
  rdma_add_roce("mlx5_0");
  struct nics *nics = open_nics();
  assert_int_equal(rdma_double()->live.lists, 0);
  assert_int_equal(rdma_double()->live.contexts, 1);
  nics_close(nics);
  nics_close(NULL);
  assert_int_equal(rdma_double()->live.contexts, 0);
  assert_int_equal(open_descriptors(), before);
}

static void two_sets_are_independent(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  struct nics *one = open_nics(), *other = open_nics();
  assert_ptr_not_equal(one->list[0].context, other->list[0].context);
  assert_ptr_not_equal(one->list[0].pd, other->list[0].pd);
  nics_close(one);
  assert_int_equal(port_of(other, 0).status, NIC_PORT_USABLE);
  nics_close(other);
}

static void a_forked_child_only_closes_descriptors(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  rdma_add_roce("mlx5_1")->errors.open = EIO;
  unsigned before = open_descriptors();
  struct nics *nics = open_nics();
  pid_t child = fork();
  if (child == 0) {
    nics_forked(nics);
    nics_forked(NULL);
    _exit(open_descriptors() == before && rdma_double()->live.contexts == 1 ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  nics_close(nics);
}

static void link_state_decides(void **state) {
  (void)state;
  static const struct {
    enum ibv_port_state state;
    uint8_t layer;
    uint16_t lid;
    enum nic_port_status status;
  } cases[] = {
      {IBV_PORT_DOWN, IBV_LINK_LAYER_ETHERNET, 0, NIC_PORT_DOWN},
      {IBV_PORT_NOP, IBV_LINK_LAYER_ETHERNET, 0, NIC_PORT_DOWN},
      {IBV_PORT_INIT, IBV_LINK_LAYER_ETHERNET, 0, NIC_PORT_DOWN},
      {IBV_PORT_ACTIVE_DEFER, IBV_LINK_LAYER_ETHERNET, 0, NIC_PORT_DOWN},
      {IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET, 0, NIC_PORT_USABLE},
      {IBV_PORT_DOWN, IBV_LINK_LAYER_INFINIBAND, 7, NIC_PORT_DOWN},
      {IBV_PORT_INIT, IBV_LINK_LAYER_INFINIBAND, 7, NIC_PORT_WAITING},
      {IBV_PORT_ARMED, IBV_LINK_LAYER_INFINIBAND, 7, NIC_PORT_WAITING},
      {IBV_PORT_ACTIVE, IBV_LINK_LAYER_INFINIBAND, 0, NIC_PORT_WAITING},
      {IBV_PORT_ACTIVE, IBV_LINK_LAYER_INFINIBAND, 7, NIC_PORT_USABLE},
  };
  struct double_port *port = &rdma_add_roce("mlx5_0")->port[0];
  struct nics *nics = open_nics();
  for (size_t i = 0; i < COUNT(cases); i++) {
    port->state = cases[i].state;
    port->link_layer = cases[i].layer;
    port->lid = cases[i].lid;
    assert_int_equal(port_of(nics, 0).status, cases[i].status);
  }
  port->error = EIO;
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_FAILED);
  nics_close(nics);
}

static void a_missing_port_is_reported(void **state) {
  (void)state;
  struct nic_port port;
  rdma_add_roce("mlx5_0");
  struct nics *nics = open_nics();
  nic_port(&nics->list[0], 2, &port);
  assert_int_equal(port.status, NIC_PORT_FAILED);
  nics_close(nics);
}

static void speed_excludes_line_coding(void **state) {
  (void)state;
  static const struct {
    uint8_t speed, width;
    double gigabits;
  } cases[] = {
      {1, 1, 2},     {1, 2, 8},    {4, 2, 32},   {8, 2, 40},    {16, 2, 54.56},
      {32, 1, 25},   {32, 2, 100}, {32, 16, 50}, {64, 2, 200},  {128, 2, 400},
      {128, 4, 800}, {2, 8, 48},   {0, 2, 0},    {32, 0, 25.0},
  };
  struct double_port *port = &rdma_add_infiniband("mlx5_0")->port[0];
  struct nics *nics = open_nics();
  for (size_t i = 0; i < COUNT(cases); i++) {
    port->speed = cases[i].speed;
    port->width = cases[i].width;
    assert_true(fabs(port_of(nics, 0).bytes_per_ns - cases[i].gigabits / 8) < 0.001);
  }
  nics_close(nics);
}

static void infiniband_uses_the_lid(void **state) {
  (void)state;
  struct double_device *device = rdma_add_infiniband("mlx5_0");
  struct nics *nics = open_nics();
  struct nic_port port = port_of(nics, 0);
  assert_true(port.infiniband);
  assert_int_equal(port.lid, 1);
  assert_int_equal(port.gid_index, 0);
  assert_memory_equal(port.gid, device->port[0].gids[0].raw, 16);
  nics_close(nics);
}

/* Adds a NIC with an Ethernet port without GIDs. */
static struct double_port *add_bare(struct nics **nics) {
  struct double_port *port = &rdma_add_roce("mlx5_0")->port[0];
  memset(port->gids, 0, sizeof port->gids);
  *nics = open_nics();
  return port;
}

static void ethernet_needs_a_gid(void **state) {
  (void)state;
  struct nics *nics;
  struct double_port *port = add_bare(&nics);
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_NO_GID);
  assert_non_null(strstr(port_of(nics, 0).reason, "no IP address"));
  port->gids[2] = (struct double_gid){.zero = true, .type = IBV_GID_TYPE_ROCE_V2};
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_NO_GID);
  nics_close(nics);
}

static void roce_v1_is_refused(void **state) {
  (void)state;
  struct nics *nics;
  struct double_port *port = add_bare(&nics);
  rdma_gid(port, 0, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1", 2);
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_OLD_GID);
  nics_close(nics);
}

static void check_choice(const struct nics *nics, unsigned index, enum nic_gid_kind kind) {
  struct nic_port port = port_of(nics, 0);
  assert_int_equal(port.status, NIC_PORT_USABLE);
  assert_int_equal(port.gid_index, index);
  assert_int_equal(port.gid_kind, kind);
  assert_memory_equal(port.gid, rdma_double()->devices[0].port[0].gids[index].raw, 16);
}

/* Each entry is better than those before it. */
static void the_best_gid_is_chosen(void **state) {
  (void)state;
  struct nics *nics;
  struct double_port *port = add_bare(&nics);
  rdma_gid(port, 0, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1", 2);
  rdma_gid(port, 7, IBV_GID_TYPE_ROCE_V2, "fe80::1", 2);
  check_choice(nics, 7, NIC_GID_LINK_LOCAL);
  rdma_gid(port, 5, IBV_GID_TYPE_ROCE_V2, "fd00::1", 2);
  check_choice(nics, 5, NIC_GID_IPV6);
  rdma_gid(port, 6, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1", 2);
  check_choice(nics, 6, NIC_GID_IPV4);
  rdma_gid(port, 4, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.2", 2); /* the lowest of equals */
  check_choice(nics, 4, NIC_GID_IPV4);
  nics_close(nics);
}

static void the_interface_is_named(void **state) {
  (void)state;
  struct nics *nics;
  struct double_port *port = add_bare(&nics);
  assert_string_equal(port_of(nics, 0).interface_name, "");
  sys_file("class/infiniband/mlx5_0/parent", "dummy0\n"); /* Soft-RoCE */
  assert_string_equal(port_of(nics, 0).interface_name, "dummy0");
  sys_folder("class/infiniband/mlx5_0/device/net/eth4");
  assert_string_equal(port_of(nics, 0).interface_name, "eth4");
  rdma_gid(port, 3, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1", 2);
  sys_file("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "eth4.7\n");
  assert_string_equal(port_of(nics, 0).interface_name, "eth4.7");
  nics_close(nics);
}

static struct nics *open_with(enum rdma_setting which, const char *text) {
  struct rdma_settings settings = {0};
  struct nics *nics = NULL;
  assert_true(rdma_setting_assign(&settings, which, text, 0, 65535));
  assert_works(nics_open(&settings, &nics));
  return nics;
}

static void check_setting(const char *text, int first, int second) {
  struct nics *nics = open_with(RDMA_SERVICE_LEVEL, text);
  assert_int_equal(nics->list[0].settings[RDMA_SERVICE_LEVEL], first);
  assert_int_equal(nics->list[1].settings[RDMA_SERVICE_LEVEL], second);
  assert_int_equal(nics->list[0].settings[RDMA_TRAFFIC_CLASS], 0);
  nics_close(nics);
}

static void settings_are_for_all_nics_or_by_nic(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  rdma_add_roce("mlx5_1");
  check_setting("auto", 0, 0);
  check_setting("3", 3, 3);
  check_setting("mlx5_0:3,mlx5_1:5", 3, 5);
  check_setting("mlx5_1:5", 0, 5);
  check_setting("7,mlx5_1:5", 7, 5);
  check_setting("mlx5_1:5,7", 7, 5);
}

static void a_setting_for_an_unknown_nic_is_refused(void **state) {
  (void)state;
  struct rdma_settings settings = {0};
  struct nics *nics;
  rdma_add_roce("mlx5_0");
  rdma_add_roce("mlx5_1");
  assert_true(rdma_setting_assign(&settings, RDMA_GID, "mlx5_0:3,mlx5:5", 0, 255));
  assert_fails(HAUL_EINVAL, nics_open(&settings, &nics));
  assert_string_equal(haul_error_last()->object, "rdma_gid");
  assert_string_equal(haul_error_last()->text, "there is no NIC mlx5");
  assert_string_equal(haul_error_last()->hint, "list them: ls /sys/class/infiniband");
}

static void check_nics(const char *text, bool first, bool second) {
  struct nics *nics = open_with(RDMA_NICS, text);
  const bool used[] = {first, second};
  for (size_t i = 0; i < COUNT(used); i++) {
    assert_int_equal(nics->list[i].context != NULL, used[i]);
    assert_string_equal(nics->list[i].reason, used[i] ? "" : "excluded by the setting rdma_nics");
  }
  nics_close(nics);
}

static void nics_are_chosen_or_excluded(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  rdma_add_roce("mlx5_1");
  check_nics("auto", true, true);
  check_nics("mlx5_0", true, false);
  check_nics("mlx5_1,mlx5_0", true, true);
  check_nics("^mlx5_0", false, true);
  check_nics("^mlx5_0,mlx5_1", false, false);
}

static void check_unknown_name(const char *text) {
  struct rdma_settings settings = {0};
  struct nics *nics;
  assert_true(rdma_setting_assign(&settings, RDMA_NICS, text, 0, 0));
  assert_true(rdma_settings_need_nic(&settings));
  assert_fails(HAUL_EINVAL, nics_open(&settings, &nics));
  assert_string_equal(haul_error_last()->object, "rdma_nics");
  assert_string_equal(haul_error_last()->text, "there is no NIC mlx5");
}

static void an_unknown_nic_is_neither_chosen_nor_excluded(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  check_unknown_name("mlx5");
  check_unknown_name("mlx5_0,mlx5");
  check_unknown_name("^mlx5");
}

/* The only NIC does not fit. */
static void check_wrong(enum rdma_setting which, const char *value, const char *object,
                        const char *hint) {
  struct nics *nics = open_with(which, value);
  struct nic_rail rail;
  size_t count = 1;
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_WRONG);
  assert_fails(HAUL_EINVAL, nics_rank(nics, NULL, false, &rail, &count));
  assert_string_equal(haul_error_last()->object, object);
  assert_non_null(strstr(haul_error_last()->text, "port mlx5_0/1: "));
  assert_string_equal(haul_error_last()->hint, hint);
  assert_int_equal(count, 0);
  nics_close(nics);
}

static void a_set_gid_is_taken_though_another_is_better(void **state) {
  (void)state;
  struct double_port *port = rdma_add_roce("mlx5_0")->port;
  rdma_gid(port, 5, IBV_GID_TYPE_ROCE_V2, "fe80::5", 2);
  struct nics *nics = open_with(RDMA_GID, "5");
  check_choice(nics, 5, NIC_GID_LINK_LOCAL);
  nics_close(nics);
}

static void a_missing_gid_is_refused_with_those_that_there_are(void **state) {
  (void)state;
  struct double_port *port = rdma_add_roce("mlx5_0")->port;
  rdma_gid(port, 0, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1", 2);
  rdma_gid(port, 5, IBV_GID_TYPE_ROCE_V2, "fd00::5", 2);
  const char *hint = "its GIDs: 3 (::ffff:10.0.0.1) 5 (fd00::5)";
  check_wrong(RDMA_GID, "4", "rdma_gid", hint);
  check_wrong(RDMA_GID, "0", "rdma_gid", hint); /* RoCE v1 */
  check_wrong(RDMA_GID, "255", "rdma_gid", hint);
}

static void a_port_that_is_down_refuses_no_gid(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0")->port[0].state = IBV_PORT_DOWN;
  struct nics *nics = open_with(RDMA_GID, "4");
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_DOWN);
  nics_close(nics);
}

static void infiniband_takes_a_set_gid(void **state) {
  (void)state;
  struct double_port *port = rdma_add_infiniband("mlx5_0")->port;
  rdma_gid(port, 1, IBV_GID_TYPE_IB, "fec0:0:0:7::1", 0);
  struct nics *nics = open_with(RDMA_GID, "1");
  struct nic_port found = port_of(nics, 0);
  assert_int_equal(found.gid_index, 1);
  assert_memory_equal(found.gid, port->gids[1].raw, 16);
  assert_false(found.foreign);
  nics_close(nics);
  check_wrong(RDMA_GID, "2", "rdma_gid", "its GIDs: 0 (fe80::2:c903:0:1) 1 (fec0:0:0:7::1)");
}

static void a_partition_key_is_found_whatever_its_membership(void **state) {
  (void)state;
  struct double_port *port = rdma_add_infiniband("mlx5_0")->port;
  port->pkeys[1] = 0x8001;
  port->pkeys[3] = 0x0002;
  static const struct {
    const char *text;
    unsigned index, key;
  } cases[] = {{"auto", 0, 0xffff},   {"32767", 0, 0xffff}, {"1", 1, 0x8001},
               {"0x8001", 1, 0x8001}, {"0x8002", 3, 2},     {"2", 3, 2}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct nics *nics = open_with(RDMA_PKEY, cases[i].text);
    struct nic_port found = port_of(nics, 0);
    assert_int_equal(found.pkey_index, cases[i].index);
    assert_int_equal(found.pkey, cases[i].key);
    nics_close(nics);
  }
  check_wrong(RDMA_PKEY, "3", "rdma_pkey", "its partition keys: 0xffff 0x8001 0x2");
}

static void a_set_mtu_is_at_most_the_ports(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0"); /* 1024 */
  struct nics *nics = open_with(RDMA_MTU, "512");
  assert_int_equal(port_of(nics, 0).mtu, IBV_MTU_512);
  nics_close(nics);
  nics = open_with(RDMA_MTU, "1024");
  assert_int_equal(port_of(nics, 0).mtu, IBV_MTU_1024);
  nics_close(nics);
  check_wrong(RDMA_MTU, "2048", "rdma_mtu", "at most 1024, or raise the MTU of the interface");
}

#define ROOT_0   "devices/pci0000:00/0000:00:01.0"
#define SWITCH_0 ROOT_0 "/0000:01:00.0"
#define ROOT_8   "devices/pci0000:80/0000:80:01.0"

/* Two sockets. The first has a PCIe switch with a GPU and a NIC, and a NIC beside the switch. On
 * the second, a NIC and a GPU have a root complex each. */
static void make_machine(void) {
  sys_pci(SWITCH_0 "/0000:02:00.0", 0); /* GPU */
  sys_pci(SWITCH_0 "/0000:03:00.0", 0);
  sys_pci(ROOT_0 "/0000:04:00.0", 0);
  sys_pci(ROOT_8 "/0000:81:00.0", 1);
  sys_pci("devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0", 1); /* GPU */
  sys_nic("far", ROOT_8 "/0000:81:00.0");
  sys_nic("near", SWITCH_0 "/0000:03:00.0");
  sys_nic("beside", ROOT_0 "/0000:04:00.0");
  sys_file("devices/system/node/node0/distance", "10 21\n");
  sys_file("devices/system/node/node1/distance", "21 10\n");
  rdma_add_roce("far");
  rdma_add_roce("near");
  rdma_add_roce("beside");
}

static struct haul_device device_at(const char *pci, int numa) {
  struct haul_device device = {.numa = numa};
  snprintf(device.pci, sizeof device.pci, "%s", pci);
  return device;
}

static void check_order(const struct nics *nics, const struct haul_device *device,
                        const char *const names[], size_t count) {
  struct nic_rail rails[8];
  size_t found = COUNT(rails);
  assert_works(nics_rank(nics, device, false, rails, &found));
  assert_int_equal(found, count);
  for (size_t i = 0; i < count; i++)
    assert_string_equal(rails[i].nic->name, names[i]);
}

static void pci_address_and_numa_node_are_read(void **state) {
  (void)state;
  make_machine();
  rdma_add_roce("rxe0");
  struct nics *nics = open_nics();
  assert_string_equal(nics->list[0].pci, "0000:81:00.0");
  assert_int_equal(nics->list[0].numa, 1);
  assert_string_equal(nics->list[3].pci, "");
  assert_int_equal(nics->list[3].numa, -1);
  nics_close(nics);
}

static void shared_bridges_are_counted(void **state) {
  (void)state;
  make_machine();
  struct nics *nics = open_nics();
  struct haul_device gpu = device_at("0000:02:00.0", 0), nowhere = device_at("0000:99:00.0", -1);
  static const unsigned shared[] = {0, 3, 2};
  static const int numa[] = {21, 10, 10};
  for (size_t i = 0; i < COUNT(shared); i++) {
    struct nic_distance distance = nic_distance(&nics->list[i], &gpu);
    assert_int_equal(distance.shared, shared[i]);
    assert_int_equal(distance.numa, numa[i]);
    assert_int_equal(nic_distance(&nics->list[i], &nowhere).shared, 0);
    assert_int_equal(nic_distance(&nics->list[i], &nowhere).numa, 20);
    assert_int_equal(nic_distance(&nics->list[i], NULL).shared, 0);
  }
  nics_close(nics);
}

static void the_nearest_port_is_first(void **state) {
  (void)state;
  make_machine();
  struct nics *nics = open_nics();
  struct haul_device gpu = device_at("0000:02:00.0", 0), other = device_at("0000:c1:00.0", 1);
  struct haul_device host = device_at("", 0);
  check_order(nics, &gpu, (const char *const[]){"near", "beside", "far"}, 3);
  check_order(nics, &other, (const char *const[]){"far", "beside", "near"}, 3);
  check_order(nics, &host, (const char *const[]){"beside", "near", "far"}, 3);
  nics_close(nics);
}

static void unknown_numa_distance_is_20(void **state) {
  (void)state;
  make_machine();
  sys_file("devices/system/node/node0/distance", "10\n");
  struct nics *nics = open_nics();
  struct haul_device host = device_at("", 0);
  assert_int_equal(nic_distance(&nics->list[0], &host).numa, 20);
  assert_int_equal(nic_distance(&nics->list[1], &host).numa, 10);
  nics_close(nics);
}

static void speed_then_name_break_ties(void **state) {
  (void)state;
  make_machine();
  rdma_double()->count = 0;
  rdma_add_roce("mlx5_10");
  rdma_add_roce("mlx5_9")->ports = 2;
  rdma_double()->devices[1].port[1] = rdma_double()->devices[1].port[0];
  rdma_add_roce("rxe0")->port[0].speed = 128; /* software, at a high nominal speed */
  rdma_add_roce("slow")->port[0].speed = 4;
  sys_nic("mlx5_10", ROOT_0 "/0000:04:00.0");
  sys_nic("mlx5_9", ROOT_0 "/0000:04:00.0");
  sys_nic("slow", ROOT_0 "/0000:04:00.0");
  struct nics *nics = open_nics();
  check_order(nics, NULL, (const char *const[]){"mlx5_9", "mlx5_9", "mlx5_10", "slow", "rxe0"}, 5);
  nics_close(nics);
}

static void loopback_is_last(void **state) {
  (void)state;
  rdma_gid(&rdma_add_roce("rxe0")->port[0], 3, IBV_GID_TYPE_ROCE_V2, "::ffff:127.0.0.1", 1);
  rdma_gid(&rdma_add_roce("rxe1")->port[0], 3, IBV_GID_TYPE_ROCE_V2, "::1", 1);
  rdma_add_roce("rxe2")->port[0].speed = 1;
  struct nics *nics = open_nics();
  check_order(nics, NULL, (const char *const[]){"rxe2", "rxe0", "rxe1"}, 3);
  nics_close(nics);
}

/* Like getifaddrs: one allocation for all entries. */
static int one_address(struct ifaddrs **addresses) {
  struct {
    struct ifaddrs entries[2];
    struct sockaddr_in address;
  } *block = calloc(1, sizeof *block);
  assert_non_null(block);
  block->entries[0].ifa_next = &block->entries[1]; /* without an address, as of a tunnel */
  block->address.sin_family = AF_INET;
  block->address.sin_addr.s_addr = htonl(0x0a4d0002);
  block->entries[1].ifa_addr = (struct sockaddr *)(void *)&block->address;
  *addresses = block->entries;
  return 0;
}

static int no_addresses(struct ifaddrs **list) {
  (void)list;
  errno = ENOMEM;
  return -1;
}

/* Without them no port would be in a subnet or in this network namespace. */
static void addresses_that_cannot_be_read_make_a_port_unusable(void **state) {
  (void)state;
  rdma_add_roce("mlx5_0");
  struct nics *nics = open_nics();
  addresses_get = no_addresses;
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_FAILED);
  assert_non_null(strstr(port_of(nics, 0).reason, strerror(ENOMEM)));
  addresses_get = getifaddrs;
  assert_int_equal(port_of(nics, 0).status, NIC_PORT_USABLE);
  nics_close(nics);
}

static void ports_of_other_network_namespaces_are_excluded(void **state) {
  (void)state;
  rdma_gid(&rdma_add_roce("rxe0")->port[0], 3, IBV_GID_TYPE_ROCE_V2, "::ffff:10.77.0.1", 1);
  struct double_port *own = &rdma_add_roce("rxe1")->port[0];
  rdma_gid(own, 4, IBV_GID_TYPE_ROCE_V2, "::ffff:10.77.0.2", 1);
  struct nics *nics = open_nics();
  check_order(nics, NULL, (const char *const[]){"rxe0", "rxe1"}, 2);
  assert_int_equal(port_of(nics, 1).gid_index, 3);
  addresses_get = one_address;
  check_order(nics, NULL, (const char *const[]){"rxe1"}, 1);
  assert_int_equal(port_of(nics, 1).gid_index, 4);
  assert_false(port_of(nics, 1).foreign);
  addresses_get = getifaddrs;
  nics_close(nics);
}

static void a_short_array_gets_the_best_ports(void **state) {
  (void)state;
  make_machine();
  struct nics *nics = open_nics();
  struct haul_device gpu = device_at("0000:02:00.0", 0);
  struct nic_rail rails[3];
  for (size_t room = 0; room < COUNT(rails); room++) {
    size_t count = room;
    memset(rails, 0, sizeof rails);
    assert_works(nics_rank(nics, &gpu, false, rails, &count));
    assert_int_equal(count, 3);
    assert_true(room < 1 || strcmp(rails[0].nic->name, "near") == 0);
    assert_true(room < 2 || strcmp(rails[1].nic->name, "beside") == 0);
    assert_null(rails[room].nic);
  }
  nics_close(nics);
}

static void unusable_ports_are_not_ranked(void **state) {
  (void)state;
  make_machine();
  struct nics *nics = open_nics();
  struct nic_rail rail;
  size_t count = 1;
  rdma_double()->devices[1].port[0].state = IBV_PORT_DOWN;
  check_order(nics, NULL, (const char *const[]){"beside", "far"}, 2);
  rdma_double()->devices[0].port[0].state = IBV_PORT_DOWN;
  rdma_double()->devices[2].port[0].error = EIO;
  assert_fails(HAUL_ENOTSUP, nics_rank(nics, NULL, false, &rail, &count));
  assert_string_equal(haul_error_last()->object, "far/1");
  assert_non_null(strstr(haul_error_last()->text, "link is down"));
  nics_close(nics);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, rdma_host_reset, rdma_host_check)
  const struct CMUnitTest tests[] = {
      TEST(no_library_means_no_nics),
      TEST(no_devices_is_not_supported),
      TEST(an_open_failure_gives_the_reason),
      TEST(a_query_failure_closes_the_nic),
      TEST(a_pd_failure_closes_the_nic),
      TEST(a_nic_that_met_a_shortage_is_opened_again),
      TEST(other_protocols_are_not_opened),
      TEST(other_nics_stay_usable),
      TEST(no_failure_leaks),
      TEST(limits_are_read_from_the_device),
      TEST(dmabuf_support_is_probed_once),
      TEST(relaxed_ordering_is_optional),
      TEST(closing_releases_everything),
      TEST(two_sets_are_independent),
      TEST(a_forked_child_only_closes_descriptors),
      TEST(link_state_decides),
      TEST(a_missing_port_is_reported),
      TEST(speed_excludes_line_coding),
      TEST(infiniband_uses_the_lid),
      TEST(ethernet_needs_a_gid),
      TEST(roce_v1_is_refused),
      TEST(the_best_gid_is_chosen),
      TEST(the_interface_is_named),
      TEST(settings_are_for_all_nics_or_by_nic),
      TEST(a_setting_for_an_unknown_nic_is_refused),
      TEST(nics_are_chosen_or_excluded),
      TEST(an_unknown_nic_is_neither_chosen_nor_excluded),
      TEST(a_set_gid_is_taken_though_another_is_better),
      TEST(a_missing_gid_is_refused_with_those_that_there_are),
      TEST(a_port_that_is_down_refuses_no_gid),
      TEST(infiniband_takes_a_set_gid),
      TEST(a_partition_key_is_found_whatever_its_membership),
      TEST(a_set_mtu_is_at_most_the_ports),
      TEST(pci_address_and_numa_node_are_read),
      TEST(shared_bridges_are_counted),
      TEST(the_nearest_port_is_first),
      TEST(unknown_numa_distance_is_20),
      TEST(speed_then_name_break_ties),
      TEST(loopback_is_last),
      TEST(addresses_that_cannot_be_read_make_a_port_unusable),
      TEST(ports_of_other_network_namespaces_are_excluded),
      TEST(a_short_array_gets_the_best_ports),
      TEST(unusable_ports_are_not_ranked),
  };
  return cmocka_run_group_tests_name("rdma/nic", tests, rdma_host_open, rdma_host_close);
}
