/* SPDX-License-Identifier: MIT
 * A port of a NIC: its state, and the GID, partition and MTU that haul uses there. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "fabric/rdma/nic.h"
#include "fabric/rdma/sysfs.h"

static __attribute__((format(printf, 3, 4))) void
port_is(struct nic_port *port, enum nic_port_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  port->status = status;
  vsnprintf(port->reason, sizeof port->reason, format, arguments);
  va_end(arguments);
}

/* `hint`: what would fit. */
static __attribute__((format(printf, 4, 5))) void setting_is_wrong(struct nic_port *port,
                                                                   enum rdma_setting setting,
                                                                   const char *hint,
                                                                   const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  port->status = NIC_PORT_WRONG;
  port->setting = setting;
  snprintf(port->hint, sizeof port->hint, "%s", hint);
  vsnprintf(port->reason, sizeof port->reason, format, arguments);
  va_end(arguments);
}

/* Gb/s of payload a lane, after line coding, times the lanes (InfiniBand Architecture
 * Specification, volume 1, PortInfo.LinkSpeedActive and LinkSpeedExtActive). Ethernet reports the
 * nearest of these values. */
static double link_speed(unsigned speed, unsigned width) {
  static const double lanes[] = {2, 4, 8, 10, 13.64, 25, 50, 100};
  static const double widths[] = {1, 4, 8, 12, 2};
  double gigabits = 0;
  for (unsigned bit = 0; bit < sizeof lanes / sizeof lanes[0]; bit++)
    if (speed & 1u << bit)
      gigabits = lanes[bit];
  for (unsigned bit = 0; bit < sizeof widths / sizeof widths[0]; bit++)
    if (width & 1u << bit)
      return gigabits * widths[bit] / 8;
  return gigabits / 8;
}

/* The interface of the chosen GID; without a GID, the first of the NIC's PCI function, or the one
 * below a software NIC. */
static void name_interface(const struct nic *nic, struct nic_port *port) {
  char *name = port->interface_name;
  size_t size = sizeof port->interface_name;
  if (sysfs_text(sysfs_path("class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u", nic->name,
                            port->number, port->gid_index),
                 name, size) &&
      *name)
    return;
  if (!sysfs_first(sysfs_path("class/infiniband/%s/device/net", nic->name), NULL, name, size))
    sysfs_text(sysfs_path("class/infiniband/%s/parent", nic->name), name, size);
}

enum nic_gid_kind nic_gid_kind(const uint8_t gid[16]) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  static const uint8_t nothing[16];
  if (memcmp(gid, nothing, sizeof nothing) == 0)
    return NIC_GID_NONE;
  if (memcmp(gid, mapped, sizeof mapped) == 0)
    return NIC_GID_IPV4;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80 ? NIC_GID_LINK_LOCAL : NIC_GID_IPV6;
}

/* A device that network namespaces share has GIDs for the addresses of all of them. Addresses of
 * this namespace go first. A link-local one is derived from the MAC and belongs to no namespace. */
static int gid_order(enum nic_gid_kind kind, bool foreign) {
  static const int order[][2] = {
      [NIC_GID_IPV4] = {0, 2},
      [NIC_GID_IPV6] = {1, 3},
      [NIC_GID_LINK_LOCAL] = {4, 4},
      [NIC_GID_NONE] = {5, 5},
  };
  return order[kind][foreign];
}

static void consider_gid(struct nic_port *port, const struct ibv_gid_entry *entry,
                         const struct ifaddrs *addresses) {
  enum nic_gid_kind kind = nic_gid_kind(entry->gid.raw);
  int bits = kind < NIC_GID_LINK_LOCAL ? addresses_subnet(addresses, entry->gid.raw) : 0;
  bool foreign = bits < 0;
  if (gid_order(kind, foreign) >= gid_order(port->gid_kind, port->foreign))
    return;
  port->gid_kind = kind;
  port->foreign = foreign;
  port->subnet_bits = foreign ? 0 : (uint8_t)bits;
  port->gid_index = entry->gid_index;
  memcpy(port->gid, entry->gid.raw, sizeof port->gid);
}

/* The GID that is set, if the table has it and the link can use it. */
static void take_set_gid(const struct nic *nic, int entries, const struct ifaddrs *addresses,
                         struct nic_port *port) {
  unsigned set = (unsigned)nic->settings[RDMA_GID];
  unsigned type = port->infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
  char hint[sizeof port->hint] = "its GIDs:", text[INET6_ADDRSTRLEN];
  size_t used = strlen(hint);
  for (unsigned i = 0; i < (unsigned)entries; i++) {
    struct ibv_gid_entry entry = {0};
    if (nic->verbs->query_gid_ex(nic->context, port->number, i, &entry, 0, sizeof entry) != 0 ||
        entry.gid_type != type || nic_gid_kind(entry.gid.raw) == NIC_GID_NONE)
      continue;
    if (i == set) {
      consider_gid(port, &entry, addresses);
      return;
    }
    inet_ntop(AF_INET6, entry.gid.raw, text, sizeof text);
    if (used < sizeof hint)
      used += (size_t)snprintf(hint + used, sizeof hint - used, " %u (%s)", i, text);
  }
  setting_is_wrong(port, RDMA_GID, hint, "it has no %sGID %u", port->infiniband ? "" : "RoCE v2 ",
                   set);
}

static void choose_gid(const struct nic *nic, int entries, struct nic_port *port) {
  bool other_types = false, set = nic->settings[RDMA_GID] != RDMA_AUTO;
  struct ifaddrs *addresses;
  if (addresses_get(&addresses) != 0) {
    port_is(port, NIC_PORT_FAILED, "the addresses of this host cannot be read: %s",
            strerror(errno));
    return;
  }
  if (set)
    take_set_gid(nic, entries, addresses, port);
  for (int i = 0; i < entries && !set; i++) {
    struct ibv_gid_entry entry = {0};
    if (nic->verbs->query_gid_ex(nic->context, port->number, (uint32_t)i, &entry, 0,
                                 sizeof entry) != 0)
      continue; /* most entries of the table are empty */
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2)
      other_types = true;
    else
      consider_gid(port, &entry, addresses);
  }
  freeifaddrs(addresses);
  if (set || port->gid_kind != NIC_GID_NONE)
    return;
  if (other_types)
    port_is(port, NIC_PORT_OLD_GID, "it has only RoCE v1 GIDs, which routers do not forward");
  else
    port_is(port, NIC_PORT_NO_GID, "its network interface has no IP address, so it has no GID");
}

/* With a LID the GID is optional: only routed fabrics need it. The link-local prefix is that of
 * each subnet whose manager was given none. */
static void address_infiniband(const struct nic *nic, const struct ibv_port_attr *attributes,
                               struct nic_port *port) {
  union ibv_gid gid;
  if (port->status != NIC_PORT_USABLE)
    return;
  if (attributes->lid == 0) {
    port_is(port, NIC_PORT_WAITING, "no subnet manager has assigned it a LID");
    return;
  }
  port->lid = attributes->lid;
  if (nic->settings[RDMA_GID] != RDMA_AUTO) {
    take_set_gid(nic, attributes->gid_tbl_len, NULL, port);
    port->foreign = false; /* its GIDs are no IP addresses */
  } else if (nic->verbs->query_gid(nic->context, (uint8_t)port->number, 0, &gid) == 0) {
    memcpy(port->gid, gid.raw, sizeof port->gid);
  }
  port->subnet_bits = nic_gid_kind(port->gid) < NIC_GID_LINK_LOCAL ? 64 : 0;
}

/* The upper bit is the membership, full or limited. */
#define PKEY_BITS 0x7fff

static void choose_pkey(const struct nic *nic, int entries, struct nic_port *port) {
  int set = nic->settings[RDMA_PKEY];
  char hint[sizeof port->hint] = "its partition keys:";
  size_t used = strlen(hint);
  for (int i = 0; i < entries; i++) {
    __be16 key;
    if (nic->verbs->query_pkey(nic->context, (uint8_t)port->number, i, &key) != 0 || key == 0)
      continue;
    port->pkey = ntohs(key);
    port->pkey_index = (uint16_t)i;
    if (set == RDMA_AUTO || ((port->pkey ^ set) & PKEY_BITS) == 0)
      return;
    if (used < sizeof hint)
      used += (size_t)snprintf(hint + used, sizeof hint - used, " 0x%x", port->pkey);
  }
  if (set != RDMA_AUTO)
    setting_is_wrong(port, RDMA_PKEY, hint, "it has no partition key 0x%x", (unsigned)set);
}

/* 256 bytes are 1. */
static void limit_mtu(const struct nic *nic, struct nic_port *port) {
  int set = nic->settings[RDMA_MTU];
  char hint[64];
  if (set == RDMA_AUTO)
    return;
  if (set <= 128 << port->mtu) {
    port->mtu = (enum ibv_mtu)(ffs(set) - 8);
    return;
  }
  snprintf(hint, sizeof hint, "at most %d, or raise the MTU of the interface", 128 << port->mtu);
  setting_is_wrong(port, RDMA_MTU, hint, "its MTU is less than %d", set);
}

void nic_port(const struct nic *nic, unsigned number, struct nic_port *port) {
  struct ibv_port_attr attributes;
  *port = (struct nic_port){.number = number, .gid_kind = NIC_GID_NONE};
  if (!nic->context) {
    port_is(port, NIC_PORT_FAILED, "%s", nic->reason);
    return;
  }
  int system = verbs_query_port(nic->verbs, nic->context, number, &attributes);
  if (system != 0) {
    port_is(port, NIC_PORT_FAILED, "it cannot be queried: %s", strerror(system));
    return;
  }
  port->infiniband = attributes.link_layer != IBV_LINK_LAYER_ETHERNET;
  port->mtu = attributes.active_mtu;
  port->bytes_per_ns = link_speed(attributes.active_speed, attributes.active_width);
  if (attributes.state == IBV_PORT_ACTIVE)
    port->status = NIC_PORT_USABLE;
  else if (port->infiniband &&
           (attributes.state == IBV_PORT_INIT || attributes.state == IBV_PORT_ARMED))
    port_is(port, NIC_PORT_WAITING, "no subnet manager has activated it");
  else
    port_is(port, NIC_PORT_DOWN, "its link is down");
  if (port->infiniband)
    address_infiniband(nic, &attributes, port);
  else if (port->status == NIC_PORT_USABLE)
    choose_gid(nic, attributes.gid_tbl_len, port);
  if (!port->infiniband)
    name_interface(nic, port);
  if (port->status == NIC_PORT_USABLE)
    choose_pkey(nic, attributes.pkey_tbl_len, port);
  if (port->status == NIC_PORT_USABLE)
    limit_mtu(nic, port);
}
