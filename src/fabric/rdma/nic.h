/* SPDX-License-Identifier: MIT
 * The NICs of this host: their limits, their ports, and their distance from a device.
 *
 * Distance comes from sysfs, as hwloc's does: a device's real path names the PCI bridges above it,
 * so the components that two paths share give the depth of their nearest common bridge. numa_node
 * decides between equals. Loading hwloc's topology would take longer than connecting a peer. */
#ifndef HAUL_FABRIC_RDMA_NIC_H
#define HAUL_FABRIC_RDMA_NIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fabric/rdma/verbs.h"
#include "fabric/rdma_settings.h"
#include "haul/haul.h"

struct nic_limits {
  int qp_wr, cqe;                  /* work requests of a queue, completions */
  int srq_wr;                      /* receives of a shared receive queue; 0: it has none */
  int reads_served, reads_started; /* reads and atomics under way a queue pair */
  enum ibv_atomic_cap atomics;     /* of 8 bytes */
};

/* Constant after nics_open. */
struct nic {
  const struct verbs *verbs;
  char name[IBV_SYSFS_NAME_MAX]; /* the kernel's: "mlx5_0" */
  char pci[16];                  /* "0000:17:00.0", empty for a software NIC */
  int numa;                      /* -1: unknown, or none */
  unsigned ports;                /* counted from 1 */
  struct ibv_context *context;   /* NULL: it cannot be used */
  struct ibv_pd *pd;             /* of all registrations of the set's holder */
  struct nic_limits limits;
  int settings[RDMA_SETTINGS]; /* RDMA_AUTO: GID, partition key, MTU are chosen by port */
  int system;                  /* errno of the failure, or 0 */
  int dmabuf;      /* 0: it takes dma-bufs; ENOSYS: libibverbs is too old; else an errno */
  char reason[96]; /* why it cannot be used; else empty */
};

/* The NICs as one holder opened them, with contexts and protection domains of its own: peers of
 * another holder cannot reach its registrations. */
struct nics {
  size_t count;
  struct nic list[];
};

/* Opens every NIC of the host. NICs that cannot be opened are listed with their reason. Blocks for
 * the drivers. `settings` may be NULL. HAUL_ENOTSUP: no libibverbs, or no NIC; HAUL_EINVAL: a
 * setting names another NIC; HAUL_ENOMEM. */
int nics_open(const struct rdma_settings *settings, struct nics **nics);
/* Closes the NICs, which must be unused. Safe on NULL. */
void nics_close(struct nics *nics);
/* Closes the context; the description stays. */
void nic_close(struct nic *nic);
/* In a forked child: closes the descriptors only. */
void nics_forked(struct nics *nics);

enum nic_port_status {
  NIC_PORT_USABLE,
  NIC_PORT_DOWN,    /* no cable, no link partner, or disabled */
  NIC_PORT_WAITING, /* InfiniBand: without an address of a subnet manager yet */
  NIC_PORT_NO_GID,  /* Ethernet: no IP address, so no GID */
  NIC_PORT_OLD_GID, /* Ethernet: only GIDs of RoCE v1 */
  NIC_PORT_WRONG,   /* a setting does not fit it: see `setting` */
  NIC_PORT_FAILED   /* the query failed */
};

/* In the order of preference. */
enum nic_gid_kind { NIC_GID_IPV4, NIC_GID_IPV6, NIC_GID_LINK_LOCAL, NIC_GID_NONE };
enum nic_gid_kind nic_gid_kind(const uint8_t gid[16]);

struct nic_port {
  unsigned number;
  enum nic_port_status status;
  bool infiniband; /* addressed by LID; else Ethernet, by GID */
  uint16_t lid;
  uint8_t gid[16];
  unsigned gid_index;
  uint16_t pkey, pkey_index;
  enum nic_gid_kind gid_kind; /* Ethernet */
  uint8_t subnet_bits;        /* of the GID that name its subnet; 0: they tell nothing */
  bool foreign;               /* Ethernet: the GID is an address of another network namespace */
  char interface_name[16];    /* the port's own; empty: unknown */
  enum ibv_mtu mtu;           /* the link's, or the setting's */
  double bytes_per_ns;        /* the link's, in one direction */
  char reason[128];           /* why it is not usable; else empty */
  enum rdma_setting setting;  /* NIC_PORT_WRONG: which one, */
  char hint[160];             /* and what would fit */
};

/* Queries a port's current state into `port`. On Ethernet it takes the RoCE v2 GID that is set, or
 * chooses one: addresses of this network namespace go first, then the order of nic_gid_kind, then
 * the lowest index. */
void nic_port(const struct nic *nic, unsigned number, struct nic_port *port);

/* The nearer NIC shares more bridges with the device; between equals the NUMA distance decides. */
struct nic_distance {
  unsigned shared; /* common components of the real paths, from the root complex on */
  int numa;        /* as in sysfs: 10: the same node; 20: a node is unknown */
};
struct nic_distance nic_distance(const struct nic *nic, const struct haul_device *device);
bool nic_is_nearer(struct nic_distance a, struct nic_distance b);
/* How it is nearer; a literal. */
const char *nic_is_near_by(struct nic_distance near, struct nic_distance far);

struct nic_rail {
  const struct nic *nic;
  struct nic_port port;
  struct nic_distance distance;
};

/* The usable ports, best first for a device (NULL: for none), then the others if they are wanted:
 * they may become usable. Fills up to *count and sets it to the number of ports. The order:
 * hardware, software, loopback; then near, fast, name and port. Ports whose GID is another network
 * namespace's come last, and are left out when there are usable ones without. HAUL_ENOTSUP with the
 * detail of the first port when none is usable; HAUL_EINVAL when a setting does not fit a port. */
int nics_rank(const struct nics *nics, const struct haul_device *device, bool with_unusable,
              struct nic_rail *rails, size_t *count);

#endif
