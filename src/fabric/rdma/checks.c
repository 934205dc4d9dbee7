/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/checks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/check.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/frame.h"
#include "fabric/rdma/nic.h"
#include "fabric/rdma/sysfs.h"
#include "fabric/transport.h"

/* Facts about this host, gathered before the checks run. */
struct host {
  bool library;
  bool usable;             /* it has a device that can be opened */
  struct nics *nics;       /* NULL: none */
  struct haul_error error; /* without library or NICs: the detail */
};

typedef void check_fn(struct haul_check *check, const struct host *host);

static void check_library(struct haul_check *check, const struct host *host) {
  if (host->library) {
    check_set(check, HAUL_CHECK_OK, "found libibverbs");
    return;
  }
  const char *command = strstr(host->error.hint, "sudo");
  check_set(check, HAUL_CHECK_MISSING, "%s", host->error.text);
  check_hint(check, "%.180s", command ? command : "");
}

/* Drivers of network cards, and the modules that add RDMA to them. */
static const struct {
  const char *driver, *module;
} rdma_modules[] = {
    {"mlx5_core", "mlx5_ib"}, {"mlx4_core", "mlx4_ib"},   {"bnxt_en", "bnxt_re"}, {"ice", "irdma"},
    {"qede", "qedr"},         {"hns3", "hns_roce_hw_v2"}, {"mana", "mana_ib"},
};

/* A driver's folder has an entry for each of its devices: "0000:17:00.0". */
static bool is_device(const char *name) {
  return strchr(name, ':') != NULL;
}

static bool find_idle_card(struct haul_check *check) {
  char card[32];
  for (size_t i = 0; i < sizeof rdma_modules / sizeof rdma_modules[0]; i++) {
    const char *driver = rdma_modules[i].driver;
    if (!sysfs_first(sysfs_path("bus/pci/drivers/%s", driver), is_device, card, sizeof card))
      continue;
    check_set(
        check, HAUL_CHECK_MISSING,
        "no RDMA device; the card %s (%s) may be one, but the module %s is not loaded or finds "
        "no RDMA on it",
        card, driver, rdma_modules[i].module);
    check_hint(check, "sudo modprobe %s", rdma_modules[i].module);
    return true;
  }
  return false;
}

static bool is_up(const char *interface) {
  char state[16];
  return sysfs_text(sysfs_path("class/net/%s/operstate", interface), state, sizeof state) &&
         strcmp(state, "up") == 0;
}

/* Soft-RoCE runs on any Ethernet interface, and on loopback. */
static void report_no_device(struct haul_check *check) {
  char interface[16];
  if (!sysfs_first(sysfs_path("class/net"), is_up, interface, sizeof interface))
    snprintf(interface, sizeof interface, "lo");
  check_set(check, HAUL_CHECK_MISSING,
            "no RDMA device; for a trial the kernel emulates one (Soft-RoCE)");
  check_hint(check, "%ssudo rdma link add rxe0 type rxe netdev %s",
             sysfs_has(sysfs_path("module/rdma_rxe")) ? "" : "sudo modprobe rdma_rxe && ",
             interface);
}

/* Skips the file "abi_version". */
static bool is_uverbs(const char *name) {
  return strncmp(name, "uverbs", 6) == 0;
}

/* The device nodes exclude this process, or a container lacks them. */
static void hint_open(struct haul_check *check, int system) {
  if (system == EACCES || system == EPERM)
    check_hint(
        check,
        "sudo chmod a+rw /dev/infiniband/uverbs* (the package rdma-core makes it permanent)");
  else if (system == ENOENT || system == ENODEV || system == ENXIO)
    check_hint(check, "start the container with --device=/dev/infiniband");
}

static void explain_kernel_device(struct haul_check *check, const struct host *host,
                                  const char *name) {
  char node[32];
  if (!host->library) {
    check_set(check, HAUL_CHECK_MISSING, "the kernel has %s, but libibverbs is missing", name);
  } else if (!sysfs_first(sysfs_path("class/infiniband_verbs"), is_uverbs, node, sizeof node)) {
    check_set(check, HAUL_CHECK_MISSING, "the kernel has %s, but programs have no access to it",
              name);
    check_hint(check, "sudo modprobe ib_uverbs");
  } else if (sysfs_node_access(node) == ENOENT) {
    check_set(check, HAUL_CHECK_MISSING, "the kernel has %s, but /dev/infiniband/%s does not exist",
              name, node);
    hint_open(check, ENOENT);
  } else {
    check_set(check, HAUL_CHECK_MISSING, "the kernel has %s, but libibverbs has no driver for it",
              name);
    check_hint(check, "sudo apt-get install ibverbs-providers");
  }
}

static void explain_absence(struct haul_check *check, const struct host *host) {
  char name[64];
  if (host->error.code == HAUL_ENOMEM)
    check_set(check, HAUL_CHECK_MISSING, "cannot look for devices: %s", host->error.text);
  else if (sysfs_first(sysfs_path("class/infiniband"), NULL, name, sizeof name))
    explain_kernel_device(check, host, name);
  else if (!find_idle_card(check))
    report_no_device(check);
}

static void check_rdma_device(struct haul_check *check, const struct host *host) {
  const struct nic *bad = NULL;
  char names[128] = "";
  size_t used = 0;
  if (!host->nics) {
    explain_absence(check, host);
    return;
  }
  for (size_t i = 0; i < host->nics->count; i++) {
    const struct nic *nic = &host->nics->list[i];
    if (nic->context && used < sizeof names)
      used +=
          (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", nic->name);
    else if (!nic->context && !bad)
      bad = nic;
  }
  if (!bad) {
    check_set(check, HAUL_CHECK_OK, "%s", names);
    return;
  }
  check_set(check, *names ? HAUL_CHECK_LIMITED : HAUL_CHECK_MISSING, "%s: %s%s%s", bad->name,
            bad->reason, *names ? "; usable: " : "", names);
  hint_open(check, bad->system);
}

static bool needs_device(struct haul_check *check, const struct host *host) {
  if (host->usable)
    return false;
  check_set(check, HAUL_CHECK_MISSING, "unknown without an RDMA device (rdma.device)");
  return true;
}

struct tally {
  unsigned good, bad;
  struct nic_rail first_good, first_bad;
};

/* judge returns 1 for a good port, 0 for a bad one, -1 for neither. */
static struct tally tally_ports(const struct nics *nics,
                                int (*judge)(const struct nic_port *port)) {
  struct tally tally = {0};
  for (size_t i = 0; i < nics->count; i++) {
    struct nic_rail rail = {.nic = &nics->list[i]};
    for (unsigned number = 1; rail.nic->context && number <= rail.nic->ports; number++) {
      nic_port(rail.nic, number, &rail.port);
      int verdict = judge(&rail.port);
      if (verdict == 1 && tally.good++ == 0)
        tally.first_good = rail;
      else if (verdict == 0 && tally.bad++ == 0)
        tally.first_bad = rail;
    }
  }
  return tally;
}

static void report_bad_port(struct haul_check *check, const struct tally *tally) {
  check_set(check, tally->good > 0 ? HAUL_CHECK_LIMITED : HAUL_CHECK_MISSING,
            "port %.32s/%u: %s; %u of %u ports are good", tally->first_bad.nic->name,
            tally->first_bad.port.number, tally->first_bad.port.reason, tally->good,
            tally->good + tally->bad);
}

static const char *interface_of(const struct nic_port *port) {
  return *port->interface_name ? port->interface_name : "INTERFACE";
}

static int judge_link(const struct nic_port *port) {
  return port->status != NIC_PORT_DOWN && port->status != NIC_PORT_WAITING &&
         port->status != NIC_PORT_FAILED;
}

static void check_link(struct haul_check *check, const struct host *host) {
  if (needs_device(check, host))
    return;
  struct tally tally = tally_ports(host->nics, judge_link);
  const struct nic_port *bad = &tally.first_bad.port;
  if (tally.bad == 0) {
    check_set(check, HAUL_CHECK_OK, "%u port%s up; %.32s/%u: %.0f Gb/s", tally.good,
              tally.good == 1 ? "" : "s", tally.first_good.nic->name, tally.first_good.port.number,
              tally.first_good.port.bytes_per_ns * 8);
    return;
  }
  report_bad_port(check, &tally);
  if (bad->status == NIC_PORT_WAITING)
    check_hint(check,
               "sudo apt-get install opensm && sudo systemctl start opensm (on one host of the "
               "network)");
  else if (bad->status == NIC_PORT_DOWN && !bad->infiniband)
    check_hint(check, "sudo ip link set dev %s up", interface_of(bad));
}

static int judge_gid(const struct nic_port *port) {
  if (port->status == NIC_PORT_USABLE)
    return 1;
  return port->status == NIC_PORT_NO_GID || port->status == NIC_PORT_OLD_GID ? 0 : -1;
}

static const char *gid_words(const struct nic_port *port) {
  static const char *const words[] = {"by IPv4", "by IPv6", "by IPv6, link-local", ""};
  return port->infiniband ? "by LID (InfiniBand)" : words[port->gid_kind];
}

/* The kernel derives a link-local GID from the MAC, even for an interface without an IP address. */
static int judge_reach(const struct nic_port *port) {
  if (port->status != NIC_PORT_USABLE)
    return -1;
  return port->infiniband || port->gid_kind != NIC_GID_LINK_LOCAL;
}

static void hint_address(struct haul_check *check, const struct nic_port *port) {
  check_hint(check, "sudo ip address add ADDRESS/24 dev %s", interface_of(port));
}

/* All ports have a GID. */
static void report_reach(struct haul_check *check, const struct host *host) {
  struct tally tally = tally_ports(host->nics, judge_reach);
  const struct nic_rail *good = &tally.first_good, *bad = &tally.first_bad;
  if (tally.bad == 0) {
    check_set(check, HAUL_CHECK_OK, "%.32s/%u is addressed %s", good->nic->name, good->port.number,
              gid_words(&good->port));
    return;
  }
  check_set(
      check, HAUL_CHECK_LIMITED,
      "%.32s/%u is addressed %s: routers do not forward it, and some drivers need an IP address",
      bad->nic->name, bad->port.number, gid_words(&bad->port));
  hint_address(check, &bad->port);
}

static void check_gid(struct haul_check *check, const struct host *host) {
  if (needs_device(check, host))
    return;
  struct tally tally = tally_ports(host->nics, judge_gid);
  if (tally.good + tally.bad == 0) {
    check_set(check, HAUL_CHECK_MISSING, "unknown while no port is up (rdma.port)");
  } else if (tally.bad == 0) {
    report_reach(check, host);
  } else {
    report_bad_port(check, &tally);
    if (tally.first_bad.port.status == NIC_PORT_NO_GID)
      hint_address(check, &tally.first_bad.port);
  }
}

#define CAP_IPC_LOCK_BIT 14         /* linux/capability.h */
#define INITIAL_USERS    0xEFFFFFFD /* linux/proc_ns.h, PROC_USER_INIT_INO */
#define LITTLE           ((rlim_t)1 << 20)

/* The kernel checks the capability in the initial user namespace, not in a container's. */
static bool has_ipc_lock(void) {
  struct stat users;
  char line[128];
  unsigned long long effective = 0;
  if (stat("/proc/self/ns/user", &users) != 0 || users.st_ino != INITIAL_USERS)
    return false;
  FILE *status = fopen("/proc/self/status", "re");
  while (status && fgets(line, sizeof line, status))
    if (strncmp(line, "CapEff:", 7) == 0)
      effective = strtoull(line + 7, NULL, 16);
  if (status)
    fclose(status);
  return effective >> CAP_IPC_LOCK_BIT & 1;
}

static void check_memlock(struct haul_check *check, const struct host *host) {
  struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
  (void)host;
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) {
    check_set(check, HAUL_CHECK_OK, "any amount of memory may be registered");
  } else if (has_ipc_lock()) {
    check_set(check, HAUL_CHECK_OK, "any amount of memory may be registered (CAP_IPC_LOCK)");
  } else {
    check_set(check, limit.rlim_cur < LITTLE ? HAUL_CHECK_MISSING : HAUL_CHECK_LIMITED,
              "%llu KiB of memory may be registered in all (ulimit -l)%s",
              (unsigned long long)limit.rlim_cur / 1024,
              limit.rlim_cur < LITTLE ? ", too little for a connection" : "");
    if (limit.rlim_max == RLIM_INFINITY)
      check_hint(check, "ulimit -l unlimited");
    else
      check_hint(check,
                 "echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/haul.conf, "
                 "then log in again (for a service: LimitMEMLOCK=infinity)");
  }
}

static const struct nic *find_nic(const struct nics *nics, bool dmabuf) {
  for (size_t i = 0; i < nics->count; i++)
    if (nics->list[i].context && (nics->list[i].dmabuf == 0) == dmabuf)
      return &nics->list[i];
  return NULL;
}

static void report_no_dmabuf(struct haul_check *check, const struct nic *nic) {
  struct utsname kernel;
  /* Linux has the call since 5.12. Older kernels return the same error as drivers without it. */
  if (kernel_is_before("5.12", &kernel)) {
    check_set(
        check, HAUL_CHECK_LIMITED,
        "Linux %.32s registers no dma-buf, 5.12 does: device memory goes through host buffers",
        kernel.release);
    check_hint(check, "sudo apt-get update && sudo apt-get full-upgrade && sudo reboot");
    return;
  }
  check_set(check, HAUL_CHECK_LIMITED,
            "%s %.32s takes no dma-buf (%s): device memory goes through host buffers",
            *nic->pci ? "the driver of" : "the software NIC", nic->name, strerror(nic->dmabuf));
}

static void check_dmabuf(struct haul_check *check, const struct host *host) {
  if (needs_device(check, host))
    return;
  const struct nic *without = find_nic(host->nics, false);
  if (!without) {
    check_set(check, HAUL_CHECK_OK, "device memory can be registered through its dma-buf");
  } else if (without->dmabuf == ENOSYS) {
    check_set(check, HAUL_CHECK_LIMITED,
              "libibverbs is older than rdma-core 34 and supports no dma-buf: device memory goes "
              "through host buffers");
    check_hint(check, "sudo apt-get install libibverbs1 ibverbs-providers");
  } else {
    report_no_dmabuf(check, without);
  }
}

/* Modules, and the peer-memory clients of NVIDIA's own RDMA stack. */
const char *checks_peer_memory(void) {
  static const char *const places[] = {"module/nvidia_peermem", "module/nv_peer_mem",
                                       "kernel/mm/memory_peers/nv_mem",
                                       "kernel/mm/memory_peers/nv_mem_nc"};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
    if (sysfs_has(sysfs_path("%s", places[i])))
      return strrchr(places[i], '/') + 1;
  return NULL;
}

static void check_peer_memory(struct haul_check *check, const struct host *host) {
  const char *name = checks_peer_memory();
  if (name) {
    check_set(check, HAUL_CHECK_OK, "%s is loaded: NVIDIA memory can be registered by address",
              name);
  } else if (!sysfs_has(sysfs_path("module/nvidia"))) {
    check_set(check, HAUL_CHECK_OK, "not needed: no NVIDIA driver is loaded");
  } else {
    check_set(check, HAUL_CHECK_LIMITED, "NVIDIA memory cannot be registered by its address%s",
              host->usable && find_nic(host->nics, true) ? ", only through its dma-buf" : "");
    check_hint(check, "sudo modprobe nvidia_peermem");
  }
}

/* The rkeys go over the control connection, which is encrypted where the nodes have a key. */
static void check_encryption(struct haul_check *check, const struct host *host) {
  (void)host;
  check_set(check, HAUL_CHECK_OK,
            "NICs do not encrypt: use rdma on trusted networks only, else set paths = tcp");
}

static const struct {
  const char *name;
  check_fn *run;
} all[] = {
    {"library", check_library},
    {"device", check_rdma_device},
    {"port", check_link},
    {"gid", check_gid},
    {"memlock", check_memlock},
    {"dma-buf", check_dmabuf},
    {"peer-memory", check_peer_memory},
    {"encryption", check_encryption},
};

size_t rdma_checks(struct haul_check *checks, size_t room) {
  size_t count = sizeof all / sizeof all[0];
  if (room == 0)
    return count;
  struct host host = {.library = verbs_open() != NULL};
  if (!host.library || nics_open(NULL, &host.nics) != 0)
    error_save(&host.error);
  for (size_t i = 0; host.nics && i < host.nics->count; i++)
    host.usable |= host.nics->list[i].context != NULL;
  for (size_t i = 0; i < count && i < room; i++) {
    check_begin(&checks[i], "rdma", all[i].name);
    all[i].run(&checks[i], &host);
  }
  nics_close(host.nics);
  return count;
}

#define RANKED_MAX 64

struct port_list {
  struct haul_port *ports;
  size_t room, count;
  const struct haul_device *device;
  struct nic_rail used[RDMA_RAILS_MAX]; /* by nodes, with their distances */
  size_t used_count;
};

static void find_used(const struct nics *nics, struct port_list *list) {
  list->used_count = RDMA_RAILS_MAX;
  nics_rank(nics, NULL, false, list->used, &list->used_count);
  if (list->used_count > RDMA_RAILS_MAX)
    list->used_count = RDMA_RAILS_MAX;
  for (size_t i = 0; i < list->used_count; i++)
    list->used[i].distance = nic_distance(list->used[i].nic, list->device);
}

static void explain_choice(const struct port_list *list, const struct nic_rail *rail,
                           struct haul_port *out) {
  const struct nic_rail *near = rail, *far = rail;
  bool used = false;
  for (size_t i = 0; i < list->used_count; i++) {
    const struct nic_rail *other = &list->used[i];
    used |= other->nic == rail->nic && other->port.number == rail->port.number;
    near = nic_is_nearer(other->distance, near->distance) ? other : near;
    far = nic_is_nearer(far->distance, other->distance) ? other : far;
  }
  out->chosen = used && near == rail;
  if (!used)
    snprintf(out->choice, sizeof out->choice, "a node uses %u ports, and others go first",
             RDMA_RAILS_MAX);
  else if (near != rail)
    snprintf(out->choice, sizeof out->choice, "%.24s/%u is %s", near->nic->name, near->port.number,
             nic_is_near_by(near->distance, rail->distance));
  else
    snprintf(out->choice, sizeof out->choice, "%s",
             far != rail            ? nic_is_near_by(rail->distance, far->distance)
             : list->used_count > 1 ? "all are as near"
                                    : "the only one");
}

static void add_port(struct port_list *list, const struct nic_rail *rail, bool ranked) {
  const struct nic *nic = rail->nic;
  const struct nic_port *port = &rail->port;
  if (list->count++ >= list->room)
    return;
  struct haul_port *out = &list->ports[list->count - 1];
  bool known = nic->numa >= 0 && list->device->numa >= 0;
  *out = (struct haul_port){.path = "rdma",
                            .usable = ranked,
                            .emulated = !*nic->pci,
                            .numa = nic->numa,
                            .bridges = (int)rail->distance.shared,
                            .numa_distance = known ? rail->distance.numa : -1,
                            .bits_per_second = (uint64_t)(port->bytes_per_ns * 8e9)};
  if (ranked)
    explain_choice(list, rail, out);
  snprintf(out->name, sizeof out->name, "%.40s/%u", nic->name, port->number);
  snprintf(out->pci, sizeof out->pci, "%s", nic->pci);
  snprintf(out->interface, sizeof out->interface, "%s", port->interface_name);
  if (port->status == NIC_PORT_USABLE && port->infiniband)
    snprintf(out->address, sizeof out->address, "lid %u", port->lid);
  else if (port->status == NIC_PORT_USABLE)
    inet_ntop(AF_INET6, port->gid, out->address, sizeof out->address);
  if (port->status == NIC_PORT_USABLE) {
    out->mtu = 128u << port->mtu;
    out->gid_index = port->gid_index;
    out->pkey = port->pkey;
    out->traffic_class = (unsigned)nic->settings[RDMA_TRAFFIC_CLASS];
    out->service_level = (unsigned)nic->settings[RDMA_SERVICE_LEVEL];
    out->timeout = (unsigned)nic->settings[RDMA_TIMEOUT];
    out->retry_count = (unsigned)nic->settings[RDMA_RETRY_COUNT];
  }
  snprintf(out->reason, sizeof out->reason, "%s",
           !ranked && port->foreign ? "its address belongs to another network namespace"
                                    : port->reason);
}

static bool is_ranked(const struct nic_rail *rails, size_t count, const struct nic *nic,
                      unsigned number) {
  for (size_t i = 0; i < count; i++)
    if (rails[i].nic == nic && rails[i].port.number == number)
      return true;
  return false;
}

static void add_unusable(struct port_list *list, const struct nic *nic,
                         const struct nic_rail *rails, size_t count) {
  struct nic_rail other = {.nic = nic, .distance = nic_distance(nic, list->device)};
  unsigned ports = nic->context ? nic->ports : 1; /* one line for a NIC that could not be opened */
  for (unsigned number = 1; number <= ports; number++) {
    if (is_ranked(rails, count, nic, number))
      continue;
    nic_port(nic, number, &other.port);
    add_port(list, &other, false);
  }
}

size_t rdma_ports(const struct fabric *fabric, const struct haul_device *device,
                  struct haul_port *ports, size_t room) {
  struct port_list list = {.ports = ports, .room = room, .device = device};
  struct nic_rail rails[RANKED_MAX];
  size_t count = RANKED_MAX;
  struct nics *nics;
  if (nics_open(fabric->rdma, &nics) != 0)
    return 0;
  find_used(nics, &list);
  nics_rank(nics, device, false, rails, &count);
  if (count > RANKED_MAX)
    count = RANKED_MAX;
  for (size_t i = 0; i < count; i++)
    add_port(&list, &rails[i], true);
  for (size_t i = 0; i < nics->count; i++)
    add_unusable(&list, &nics->list[i], rails, count);
  nics_close(nics);
  return list.count;
}
