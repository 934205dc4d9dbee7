/* SPDX-License-Identifier: MIT
 * Devices of NCCL: HCAs (hcas.c), and the network interfaces that are up and have an address.
 * NCCL_SOCKET_IFNAME selects interfaces as for NCCL's sockets: prefixes separated by commas, '='
 * before full names, '^' before a list to exclude. By default docker* is excluded, and loopback
 * unless it is the only one. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

static bool matches(const char *name, const char *rule, size_t length, bool whole) {
  return length > 0 && strncmp(name, rule, length) == 0 && (!whole || strlen(name) == length);
}

bool is_chosen(const char *name, const char *other, const char *rule) {
  bool out = *rule == '^';
  rule += out;
  bool whole = *rule == '=';
  rule += whole;
  bool found = false;
  while (*rule && !found) {
    size_t length = strcspn(rule, ",");
    found = matches(name, rule, length, whole) || matches(other, rule, length, whole);
    rule += length + (rule[length] == ',');
  }
  return found != out;
}

static bool is_wanted(const struct ifaddrs *found, bool loopback) {
  const char *rule = getenv("NCCL_SOCKET_IFNAME");
  bool is_loopback = found->ifa_flags & IFF_LOOPBACK;
  if (!found->ifa_addr || !(found->ifa_flags & IFF_UP))
    return false;
  if (rule && *rule)
    return is_chosen(found->ifa_name, found->ifa_name, rule) &&
           (*rule != '^' || is_loopback == loopback);
  return is_loopback == loopback && strncmp(found->ifa_name, "docker", 6) != 0;
}

/* "tcp://ADDRESS:0"; false for other families and link-local addresses. */
static bool write_address(const struct sockaddr *address, char text[64]) {
  char number[INET6_ADDRSTRLEN];
  const struct sockaddr_in *four = (const void *)address;
  const struct sockaddr_in6 *six = (const void *)address;
  bool is_four = address->sa_family == AF_INET;
  if (!is_four && (address->sa_family != AF_INET6 || IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)))
    return false;
  const void *bytes = is_four ? (const void *)&four->sin_addr : (const void *)&six->sin6_addr;
  if (!inet_ntop(address->sa_family, bytes, number, sizeof number))
    return false;
  snprintf(text, 64, is_four ? "tcp://%s:0" : "tcp://[%s]:0", number);
  return true;
}

/* In Mbit/s; 10 Gbit/s without a known speed, as with loopback, like NCCL. */
static int speed_of(const char *name) {
  char text[64];
  int speed = read_interface(name, "speed", text) ? atoi(text) : -1;
  return speed > 0 ? speed : 10000;
}

static bool is_known(const struct device *devices, unsigned count, const char *name) {
  for (unsigned i = 0; i < count; i++)
    if (strcmp(devices[i].name, name) == 0)
      return true;
  return false;
}

/* Adds interfaces of a family. Each is one device, at the first address found. */
static unsigned devices_add(const struct ifaddrs *all, int family, bool loopback,
                            struct device *devices, unsigned count, unsigned room) {
  for (const struct ifaddrs *at = all; at && count < room; at = at->ifa_next) {
    struct device *device = &devices[count];
    if (!is_wanted(at, loopback) || at->ifa_addr->sa_family != family ||
        strlen(at->ifa_name) >= sizeof device->name || is_known(devices, count, at->ifa_name) ||
        !write_address(at->ifa_addr, device->address))
      continue;
    strcpy(device->name, at->ifa_name);
    device->speed = speed_of(device->name);
    device->guid = if_nametoindex(device->name);
    device->port = 0;
    write_pci("net", device->name, device->pci);
    count++;
  }
  return count;
}

unsigned devices_find(struct device *devices, unsigned room) {
  struct ifaddrs *all;
  unsigned count = 0;
  if (getifaddrs(&all) != 0)
    return 0;
  for (int loopback = 0; loopback < 2 && count == 0; loopback++) {
    count = devices_add(all, AF_INET, loopback, devices, 0, room);
    count = devices_add(all, AF_INET6, loopback, devices, count, room);
    if (count > 0 && !loopback)
      count = hcas_add(devices, count, room);
  }
  freeifaddrs(all);
  return count;
}
