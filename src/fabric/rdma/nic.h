/* SPDX-License-Identifier: MIT
 * The NICs of this host: what they are, whether they can be used, and how far they are.
 *
 * Distance comes from sysfs alone: of two devices the real paths name the PCI bridges above each,
 * so the components that they share tell how deep their nearest common bridge lies; and both have
 * a numa_node. That is where hwloc takes it from too. It is a few lines here, against a library to
 * open at run time, whose topology takes longer to load than a peer to connect. */
#ifndef HAUL_FABRIC_RDMA_NIC_H
#define HAUL_FABRIC_RDMA_NIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fabric/rdma/verbs.h"
#include "haul/haul.h"

/* What a registration allows. The last is an optional flag (verbs.h, IBV_ACCESS_OPTIONAL_RANGE):
 * ibv_reg_mr_iova2 leaves it out where the kernel does not know it, ibv_reg_mr would fail. The
 * payload's packets may then pass each other on the PCIe bus; a completion still comes after all.
 */
#define NIC_ACCESS_READ  (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING)
#define NIC_ACCESS_WRITE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | NIC_ACCESS_READ)

struct nic_limits {
  uint64_t mr_size;                /* bytes of one registration */
  int registrations;               /* of all processes */
  int qp_wr, sge, sge_read, cqe;   /* requests a queue, pieces of a request, completions */
  int reads_served, reads_started; /* reads and atomics under way a queue pair */
  enum ibv_atomic_cap atomics;     /* of 8 bytes */
};

/* Does not change after nics_open. */
struct nic {
  const struct verbs *verbs;
  char name[IBV_SYSFS_NAME_MAX]; /* the kernel's: "mlx5_0" */
  char pci[16];                  /* "0000:17:00.0", empty for a software NIC */
  int numa;                      /* -1: unknown, or none */
  uint64_t guid;
  unsigned ports;              /* counted from 1 */
  struct ibv_context *context; /* NULL: it is here and cannot be used */
  struct ibv_pd *pd;           /* for all that the holder of the set registers here */
  struct nic_limits limits;
  int system;      /* errno of what went wrong, or 0 */
  int dmabuf;      /* 0: it takes dma-bufs; ENOSYS: libibverbs is too old; else the kernel's no */
  char reason[96]; /* why it cannot be used; else empty */
};

/* A set of NICs that one holder opened: its own contexts and protection domains, so that what it
 * registers is out of reach of another holder's peers. */
struct nics {
  _Atomic unsigned refs;
  size_t count;
  struct nic list[];
};

/* Opens every NIC of the host, with one reference. Those that cannot be opened are in the list with
 * their reason. Blocks for the drivers. HAUL_ENOTSUP: no libibverbs, or no NIC; HAUL_ENOMEM. */
int nics_open(struct nics **nics);
struct nics *nics_retain(struct nics *nics);
/* The last one closes; nothing of the NICs is in use any more. */
void nics_put(struct nics *nics);
/* Of no use to this node any more; what is known of it stays. */
void nic_close(struct nic *nic);
/* In a forked child: closes the descriptors and touches nothing else. */
void nics_forked(struct nics *nics);

enum nic_port_status {
  NIC_PORT_USABLE,
  NIC_PORT_DOWN,    /* no cable, no other end, or switched off */
  NIC_PORT_WAITING, /* InfiniBand: no subnet manager has given it an address yet */
  NIC_PORT_NO_GID,  /* Ethernet: no GID, as there is no IP address */
  NIC_PORT_OLD_GID, /* Ethernet: GIDs of RoCE v1 alone */
  NIC_PORT_FAILED   /* it could not be asked */
};

/* In the order of preference. */
enum nic_gid_kind { NIC_GID_IPV4, NIC_GID_IPV6, NIC_GID_LINK_LOCAL, NIC_GID_NONE };

struct nic_port {
  unsigned number;
  enum nic_port_status status;
  bool infiniband; /* addressed by LID; else Ethernet, by GID alone */
  uint16_t lid;
  uint8_t gid[16];
  unsigned gid_index;
  enum nic_gid_kind gid_kind; /* Ethernet */
  bool foreign;               /* Ethernet: the GID is an address, and none of this namespace's */
  unsigned interface;         /* Ethernet: index of the GID's network interface, 0 unknown */
  char interface_name[16];    /* the port's own, empty where unknown */
  enum ibv_mtu mtu;           /* the link's */
  double bytes_per_ns;        /* the link's, in one direction */
  char reason[128];           /* why it is not usable; else empty */
};

/* Asks a port, which may have changed since the last time. On Ethernet it chooses the GID: of RoCE
 * v2, of `interface` (0: any), an address of this network namespace before those of others, the
 * kind as nic_gid_kind orders them, the lowest index. Fills everything. */
void nic_port(const struct nic *nic, unsigned number, unsigned interface, struct nic_port *port);

/* Bytes of a packet's payload. */
static inline unsigned nic_mtu_bytes(enum ibv_mtu mtu) {
  return 128u << mtu;
}

/* Where a NIC lies as seen from a device: the nearer one shares more bridges with it or, with as
 * many, is on the nearer NUMA node. */
struct nic_distance {
  unsigned shared; /* components of the real paths in common, from the root complex on */
  int numa;        /* as in sysfs: 10 the same node; 20 where a node is unknown */
};
struct nic_distance nic_distance(const struct nic *nic, const struct haul_device *device);

/* One port to use. */
struct nic_rail {
  const struct nic *nic;
  struct nic_port port;
  struct nic_distance distance;
};

/* The usable ports, best first for a device (NULL: for none), up to *count, which becomes how many
 * there are. Hardware goes before software, and that before what only this host reaches; then near
 * before far, fast before slow, and what is equal in all of that by name and port. Ports whose GID
 * is another network namespace's are left out, unless there are no others. HAUL_ENOTSUP with the
 * detail of the first when none is usable. */
int nics_rank(const struct nics *nics, const struct haul_device *device, struct nic_rail *rails,
              size_t *count);

#endif
