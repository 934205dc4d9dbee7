/* SPDX-License-Identifier: MIT
 * Devices of NCCL: the network interfaces that are up and have an address. NCCL_SOCKET_IFNAME
 * selects them as for NCCL's sockets: prefixes separated by commas, '=' before full names, '^'
 * before a list to exclude. By default docker* is excluded, and loopback unless it is the only one.
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

static bool is_chosen(const char *name, const char *rule) {
  bool out = *rule == '^';
  rule += out;
  bool whole = *rule == '=';
  rule += whole;
  bool found = false;
  while (*rule && !found) {
    size_t length = strcspn(rule, ",");
    found = length > 0 && strncmp(name, rule, length) == 0 && (!whole || strlen(name) == length);
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
    return is_chosen(found->ifa_name, rule) && (*rule != '^' || is_loopback == loopback);
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
  char path[96];
  int speed = -1;
  snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
  FILE *file = fopen(path, "re");
  if (file && fscanf(file, "%d", &speed) != 1)
    speed = -1;
  if (file)
    fclose(file);
  return speed > 0 ? speed : 10000;
}

/* The sysfs folder of its PCI device, or "". */
static void write_pci(const char *name, char pci[64]) {
  char path[96], whole[PATH_MAX];
  snprintf(path, sizeof path, "/sys/class/net/%s/device", name);
  bool fits = realpath(path, whole) && strlen(whole) < 64 && strstr(whole, "/pci");
  snprintf(pci, 64, "%.63s", fits ? whole : "");
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
    write_pci(device->name, device->pci);
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
  }
  freeifaddrs(all);
  return count;
}
