/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/ports.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "fabric/rdma/nic.h"

#define RANKED_MAX 64

struct list_of_ports {
  struct haul_port *ports;
  size_t room, count;
  const struct haul_device *device;
};

static void write_address(const struct nic_port *port, char *text, size_t size) {
  if (port->infiniband)
    snprintf(text, size, "lid %u", port->lid);
  else
    inet_ntop(AF_INET6, port->gid, text, (socklen_t)size);
}

static void add(struct list_of_ports *list, const struct nic_rail *rail, bool ranked) {
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
  snprintf(out->name, sizeof out->name, "%.40s/%u", nic->name, port->number);
  snprintf(out->pci, sizeof out->pci, "%s", nic->pci);
  snprintf(out->interface, sizeof out->interface, "%s", port->interface_name);
  if (port->status == NIC_PORT_USABLE)
    write_address(port, out->address, sizeof out->address);
  snprintf(out->reason, sizeof out->reason, "%s",
           !ranked && port->foreign ? "its address is another network namespace's" : port->reason);
}

static bool is_ranked(const struct nic_rail *rails, size_t count, const struct nic *nic,
                      unsigned number) {
  for (size_t i = 0; i < count; i++)
    if (rails[i].nic == nic && rails[i].port.number == number)
      return true;
  return false;
}

static void add_others(struct list_of_ports *list, const struct nic *nic,
                       const struct nic_rail *rails, size_t count) {
  struct nic_rail other = {.nic = nic, .distance = nic_distance(nic, list->device)};
  unsigned ports = nic->context ? nic->ports : 1; /* one stands for what could not be opened */
  for (unsigned number = 1; number <= ports; number++) {
    if (is_ranked(rails, count, nic, number))
      continue;
    nic_port(nic, number, 0, &other.port);
    add(list, &other, false);
  }
}

size_t rdma_ports(const struct haul_device *device, struct haul_port *ports, size_t room) {
  struct list_of_ports list = {.ports = ports, .room = room, .device = device};
  struct nic_rail rails[RANKED_MAX];
  size_t count = RANKED_MAX;
  struct nics *nics;
  if (nics_open(&nics) != 0)
    return 0;
  nics_rank(nics, device, rails, &count);
  if (count > RANKED_MAX)
    count = RANKED_MAX;
  for (size_t i = 0; i < count; i++)
    add(&list, &rails[i], true);
  for (size_t i = 0; i < nics->count; i++)
    add_others(&list, &nics->list[i], rails, count);
  nics_put(nics);
  return list.count;
}
