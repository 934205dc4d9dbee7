/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/nic.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "fabric/rdma/sysfs.h"
#include "memory/pages.h"

static struct verbs table;

#define SYMBOL(field, symbol) {#symbol, offsetof(struct verbs, field)},
static const struct library_symbol required[] = {VERBS_REQUIRED(SYMBOL)};
static const struct library_symbol optional[] = {VERBS_OPTIONAL(SYMBOL)};
#undef SYMBOL

/* Before Linux 5.12 a fork takes registered pages away from the parent, unless the library keeps
 * them from its children. On later kernels that does harm: children lack all registered memory,
 * each registration costs an madvise, and a failing one leaves that call's errno. The call fails
 * where the application registered memory first; then the application's choice stands. */
static void guard_against_forks(void) {
  if (!table.is_fork_initialized || table.is_fork_initialized() != IBV_FORK_UNNEEDED)
    table.fork_init();
}

struct library verbs_library = {
    .title = "libibverbs",
    .names = {"libibverbs.so.1"},
    .since = "rdma-core 32",
    .packages = "libibverbs1 ibverbs-providers",
    .required = required,
    .required_count = LIBRARY_COUNT(required),
    .optional = optional,
    .optional_count = LIBRARY_COUNT(optional),
    .table = &table,
    .opened = guard_against_forks,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

const struct verbs *verbs_open(void) {
  return library_open(&verbs_library);
}

/* As ibv_query_port of the header. The symbol fills only the shorter struct of the first libraries;
 * the context's own call fills all fields. */
int verbs_query_port(const struct verbs *verbs, struct ibv_context *context, unsigned port,
                     struct ibv_port_attr *attributes) {
  struct verbs_context *extended = __extension__ verbs_get_ctx_op(context, query_port);
  memset(attributes, 0, sizeof *attributes);
  if (extended)
    return extended->query_port(context, (uint8_t)port, attributes, sizeof *attributes);
  return verbs->query_port_short(context, (uint8_t)port,
                                 (struct _compat_ibv_port_attr *)(void *)attributes);
}

static bool is_pci(const char *name) {
  unsigned domain, bus, device, function;
  int end = 0;
  return sscanf(name, "%4x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) == 4 &&
         name[end] == '\0';
}

static void locate_nic(struct nic *nic) {
  char real[PATH_MAX];
  nic->numa = sysfs_number(sysfs_path("class/infiniband/%s/device/numa_node", nic->name), -1);
  if (!sysfs_real(sysfs_path("class/infiniband/%s/device", nic->name), real))
    return;
  const char *last = strrchr(real, '/');
  if (last && is_pci(last + 1))
    snprintf(nic->pci, sizeof nic->pci, "%s", last + 1);
}

static __attribute__((format(printf, 3, 4))) bool unusable(struct nic *nic, int system,
                                                           const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(nic->reason, sizeof nic->reason, format, arguments);
  va_end(arguments);
  nic->system = system;
  return false;
}

/* Before rdma-core 44 some failures leave errno unset. */
static int system_error(void) {
  return errno ? errno : EIO;
}

static bool read_limits(struct nic *nic) {
  struct ibv_device_attr attributes = {0};
  int system = nic->verbs->query_device(nic->context, &attributes);
  if (system != 0)
    return unusable(nic, system, "its limits cannot be read: %s", strerror(system));
  nic->ports = attributes.phys_port_cnt;
  nic->limits = (struct nic_limits){
      .qp_wr = attributes.max_qp_wr,
      .cqe = attributes.max_cqe,
      .srq_wr = attributes.max_srq > 0 && attributes.max_srq_sge > 0 ? attributes.max_srq_wr : 0,
      .reads_served = attributes.max_qp_rd_atom,
      .reads_started = attributes.max_qp_init_rd_atom,
      .atomics = attributes.atomic_cap,
  };
  return true;
}

/* EBADF for an invalid descriptor shows that the driver supports dma-bufs. */
static int probe_dmabuf(const struct nic *nic) {
  if (!nic->verbs->reg_dmabuf_mr)
    return ENOSYS;
  errno = 0;
  struct ibv_mr *mr =
      nic->verbs->reg_dmabuf_mr(nic->pd, 0, page_size(), 0, -1, IBV_ACCESS_LOCAL_WRITE);
  if (mr) {
    nic->verbs->dereg_mr(mr);
    return EPROTO;
  }
  return errno == EBADF ? 0 : system_error();
}

/* haul connects queue pairs without a connection manager, which iWARP requires. */
static bool open_context(struct nic *nic, struct ibv_device *device) {
  if (!nic->settings[RDMA_NICS])
    return unusable(nic, 0, "excluded by the setting rdma_nics");
  if (device->transport_type != IBV_TRANSPORT_IB)
    return unusable(nic, 0, "it supports neither InfiniBand nor RoCE%s",
                    device->transport_type == IBV_TRANSPORT_IWARP ? ", only iWARP" : "");
  errno = 0;
  nic->context = nic->verbs->open_device(device);
  if (nic->context)
    return true;
  int system = system_error();
  /* After EACCES the library looks elsewhere, and errno is of that look. */
  if (system == ENOENT && sysfs_node_access(device->dev_name) == EACCES)
    system = EACCES;
  return unusable(nic, system, "it cannot be opened: %s", strerror(system));
}

/* The time-out and the number of retries are UCX's: UCX_RC_TIMEOUT=1s, which rounds to 4.096 us
 * times 2^18, and UCX_RC_RETRY_COUNT=7 (rc_iface.c). NCCL 2.23 has 20 and 7 (NCCL_IB_TIMEOUT,
 * NCCL_IB_RETRY_CNT). A bond takes a second or two to use its other link. */
static void read_settings(struct nic *nic, const struct rdma_settings *settings) {
  static const int defaults[RDMA_SETTINGS] = {
      [RDMA_GID] = RDMA_AUTO, [RDMA_PKEY] = RDMA_AUTO, [RDMA_MTU] = RDMA_AUTO,
      [RDMA_TIMEOUT] = 18,    [RDMA_RETRY_COUNT] = 7,
  };
  for (unsigned i = 0; i < RDMA_SETTINGS; i++) {
    int set = rdma_setting_of(settings, i, nic->name);
    nic->settings[i] = set == RDMA_AUTO ? defaults[i] : set;
  }
}

static void open_nic(struct nic *nic, struct ibv_device *device,
                     const struct rdma_settings *settings) {
  const struct verbs *verbs = nic->verbs;
  snprintf(nic->name, sizeof nic->name, "%s", verbs->get_device_name(device));
  read_settings(nic, settings);
  locate_nic(nic);
  if (!open_context(nic, device))
    return;
  if (!read_limits(nic))
    goto no_limits;
  errno = 0;
  nic->pd = verbs->alloc_pd(nic->context);
  if (!nic->pd) {
    unusable(nic, system_error(), "it has no protection domain left: %s", strerror(system_error()));
    goto no_limits;
  }
  nic->dmabuf = probe_dmabuf(nic);
  return;

no_limits:
  verbs->close_device(nic->context);
  nic->context = NULL;
}

void nic_close(struct nic *nic) {
  if (!nic->context)
    return;
  nic->verbs->dealloc_pd(nic->pd);
  nic->verbs->close_device(nic->context);
  nic->context = NULL;
}

static bool is_nic(const void *user, const char *name) {
  const struct nics *nics = user;
  for (size_t i = 0; i < nics->count; i++)
    if (strcmp(nics->list[i].name, name) == 0)
      return true;
  return false;
}

static int check_names(const struct nics *nics, const struct rdma_settings *settings) {
  char stranger[64];
  for (unsigned i = 0; i < RDMA_SETTINGS; i++)
    if (rdma_setting_finds_stranger(settings, i, is_nic, nics, stranger))
      return error_set(HAUL_EINVAL, 0, rdma_setting_name(i), "list them: ls /sys/class/infiniband",
                       "there is no NIC %s", stranger);
  return 0;
}

/* A NIC that was short of memory or descriptors would be left out for the node's life: the caller
 * tries again. */
static int check_shortage(const struct nics *nics) {
  for (size_t i = 0; i < nics->count; i++) {
    int system = nics->list[i].system;
    if (system == ENOMEM || system == EMFILE || system == ENFILE)
      return error_system(system, nics->list[i].name, "opening the NIC");
  }
  return 0;
}

static int open_all(const struct verbs *verbs, const struct rdma_settings *settings,
                    struct ibv_device **devices, size_t count, struct nics **out) {
  if (count == 0)
    return error_set(HAUL_ENOTSUP, 0, NULL, "haul doctor rdma", "no RDMA device on this host");
  struct nics *nics = alloc_zero(1, sizeof *nics + count * sizeof nics->list[0]);
  if (!nics)
    return error_memory("RDMA devices");
  nics->count = count;
  for (size_t i = 0; i < count; i++) {
    nics->list[i].verbs = verbs;
    open_nic(&nics->list[i], devices[i], settings);
  }
  int code = check_names(nics, settings);
  if (code == 0)
    code = check_shortage(nics);
  if (code)
    nics_close(nics);
  else
    *out = nics;
  return code;
}

/* A kernel without RDMA fails with ENOSYS: that counts as no device. */
int nics_open(const struct rdma_settings *settings, struct nics **nics) {
  const struct verbs *verbs = verbs_open();
  int count = 0;
  if (!verbs)
    return haul_error_last()->code;
  struct ibv_device **devices = verbs->get_device_list(&count);
  int code = open_all(verbs, settings, devices, devices && count > 0 ? (size_t)count : 0, nics);
  if (devices)
    verbs->free_device_list(devices);
  return code;
}

void nics_close(struct nics *nics) {
  for (size_t i = 0; nics && i < nics->count; i++)
    nic_close(&nics->list[i]);
  alloc_free(nics);
}

void nics_forked(struct nics *nics) {
  for (size_t i = 0; nics && i < nics->count; i++) {
    if (!nics->list[i].context)
      continue;
    close(nics->list[i].context->cmd_fd);
    close(nics->list[i].context->async_fd);
  }
}

/* Leading components that both paths ("devices/pci0000:00/0000:00:01.0/…") have in common, without
 * the first. */
static unsigned count_shared(const char *a, const char *b) {
  unsigned shared = 0;
  while (*a && *b) {
    size_t length = strcspn(a, "/");
    if (length != strcspn(b, "/") || strncmp(a, b, length) != 0)
      break;
    shared++;
    a += length + (a[length] == '/');
    b += length + (b[length] == '/');
  }
  return shared > 0 ? shared - 1 : 0;
}

static unsigned shared_bridges(const char *nic, const char *device) {
  char from[PATH_MAX], to[PATH_MAX];
  if (!*nic || !*device || !sysfs_real(sysfs_path("bus/pci/devices/%s", nic), from) ||
      !sysfs_real(sysfs_path("bus/pci/devices/%s", device), to))
    return 0;
  return count_shared(from, to);
}

#define NUMA_NEAR    10 /* ACPI, System Locality Information Table: the same node */
#define NUMA_UNKNOWN 20 /* the kernel's value for another node without that table */

static int numa_distance(int from, int to) {
  char row[512], *at = row, *end;
  if (from < 0 || to < 0)
    return NUMA_UNKNOWN;
  if (from == to)
    return NUMA_NEAR;
  sysfs_text(sysfs_path("devices/system/node/node%d/distance", from), row, sizeof row);
  for (int node = 0;; node++, at = end) {
    long distance = strtol(at, &end, 10);
    if (end == at)
      return NUMA_UNKNOWN;
    if (node == to)
      return (int)distance;
  }
}

struct nic_distance nic_distance(const struct nic *nic, const struct haul_device *device) {
  return (struct nic_distance){
      .shared = device ? shared_bridges(nic->pci, device->pci) : 0,
      .numa = device ? numa_distance(device->numa, nic->numa) : NUMA_UNKNOWN,
  };
}

bool nic_is_nearer(struct nic_distance a, struct nic_distance b) {
  return a.shared != b.shared ? a.shared > b.shared : a.numa < b.numa;
}

const char *nic_is_near_by(struct nic_distance near, struct nic_distance far) {
  return near.shared != far.shared ? "nearest by PCI" : "nearest by NUMA";
}

/* Hardware goes first. Soft-RoCE over the loopback interface goes last: no other host reaches it.
 */
static int class_of(const struct nic_rail *rail) {
  static const uint8_t ipv6[16] = {[15] = 1};
  const struct nic_port *port = &rail->port;
  if (*rail->nic->pci)
    return 0;
  if (port->infiniband)
    return 1;
  bool loopback = port->gid_kind == NIC_GID_IPV4 ? port->gid[12] == 127
                                                 : memcmp(port->gid, ipv6, sizeof ipv6) == 0;
  return loopback ? 2 : 1;
}

static int order_of(const struct nic_port *port) {
  return port->foreign ? 2 : port->status != NIC_PORT_USABLE;
}

/* Below 0: a is better. */
static int compare(const struct nic_rail *a, const struct nic_rail *b) {
  if (order_of(&a->port) != order_of(&b->port))
    return order_of(&a->port) - order_of(&b->port);
  int classes = class_of(a) - class_of(b);
  if (classes)
    return classes;
  if (nic_is_nearer(a->distance, b->distance) || nic_is_nearer(b->distance, a->distance))
    return nic_is_nearer(a->distance, b->distance) ? -1 : 1;
  if (a->port.bytes_per_ns != b->port.bytes_per_ns)
    return a->port.bytes_per_ns > b->port.bytes_per_ns ? -1 : 1;
  int names = strverscmp(a->nic->name, b->nic->name);
  return names ? names : (int)a->port.number - (int)b->port.number;
}

/* Keeps the best `room` rails, sorted. */
static void insert(struct nic_rail *rails, size_t room, size_t found, const struct nic_rail *rail) {
  size_t at = found < room ? found : room;
  while (at > 0 && compare(rail, &rails[at - 1]) < 0)
    at--;
  if (at == room)
    return;
  size_t last = found < room ? found : room - 1;
  memmove(&rails[at + 1], &rails[at], (last - at) * sizeof *rails);
  rails[at] = *rail;
}

static int none_usable(const struct nics *nics) {
  const struct nic *nic = &nics->list[0];
  struct nic_port port;
  char object[80];
  if (!nic->context)
    return error_set(HAUL_ENOTSUP, nic->system, nic->name, "haul doctor rdma",
                     "%s cannot be used: %s", nic->name, nic->reason);
  nic_port(nic, 1, &port);
  snprintf(object, sizeof object, "%s/1", nic->name);
  return error_set(HAUL_ENOTSUP, 0, object, "haul doctor rdma", "port %s cannot be used: %s",
                   object, port.reason);
}

static int wrong_setting(const struct nic_rail *rail) {
  const struct nic_port *port = &rail->port;
  return error_set(HAUL_EINVAL, 0, rdma_setting_name(port->setting), port->hint,
                   "port %.40s/%u: %s", rail->nic->name, port->number, port->reason);
}

int nics_rank(const struct nics *nics, const struct haul_device *device, bool with_unusable,
              struct nic_rail *rails, size_t *count) {
  size_t found = 0, own = 0, unusable = 0, room = *count;
  for (size_t i = 0; i < nics->count; i++) {
    struct nic_rail rail = {.nic = &nics->list[i]};
    rail.distance = nic_distance(rail.nic, device);
    for (unsigned number = 1; rail.nic->context && number <= rail.nic->ports; number++) {
      nic_port(rail.nic, number, &rail.port);
      if (rail.port.status == NIC_PORT_WRONG) {
        *count = 0;
        return wrong_setting(&rail);
      }
      bool usable = rail.port.status == NIC_PORT_USABLE;
      if (!usable && !with_unusable)
        continue;
      insert(rails, room, found++, &rail);
      own += usable && !rail.port.foreign;
      unusable += !usable;
    }
  }
  *count = own > 0 ? own + unusable : found;
  return found > unusable ? 0 : none_usable(nics);
}
