/* SPDX-License-Identifier: MIT */
#include "interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

/* A number in /sys/class/net/NAME/FILE, -1 where there is none. */
static long read_number(const char *name, const char *file) {
  char path[128];
  long number = -1;
  snprintf(path, sizeof(path), "/sys/class/net/%s/%s", name, file);
  FILE *in = fopen(path, "re");
  if (!in)
    return -1;
  if (fscanf(in, "%ld", &number) != 1)
    number = -1;
  fclose(in);
  return number;
}

static struct interface *find_or_add(struct interface *list, size_t *count,
                                     const struct ifaddrs *entry) {
  for (size_t i = 0; i < *count; i++)
    if (strcmp(list[i].name, entry->ifa_name) == 0)
      return &list[i];
  if (*count == INTERFACES_MAX)
    return NULL;
  struct interface *added = &list[(*count)++];
  *added = (struct interface){.up = (entry->ifa_flags & IFF_UP) != 0};
  snprintf(added->name, sizeof(added->name), "%s", entry->ifa_name);
  added->megabits = read_number(added->name, "speed");
  added->mtu = read_number(added->name, "mtu");
  added->numa = read_number(added->name, "device/numa_node");
  return added;
}

static void add_address(struct interface *to, const struct sockaddr *address) {
  char text[INET6_ADDRSTRLEN];
  const void *bytes = NULL;
  if (address && address->sa_family == AF_INET)
    bytes = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
  else if (address && address->sa_family == AF_INET6)
    bytes = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
  if (!bytes || !inet_ntop(address->sa_family, bytes, text, sizeof(text)))
    return;
  size_t used = strlen(to->addresses);
  if (used + strlen(text) + 2 < sizeof(to->addresses))
    snprintf(to->addresses + used, sizeof(to->addresses) - used, "%s%s", used ? " " : "", text);
}

size_t interfaces_list(struct interface list[INTERFACES_MAX]) {
  struct ifaddrs *all;
  size_t count = 0;
  if (getifaddrs(&all))
    return 0;
  for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
    struct interface *to = find_or_add(list, &count, entry);
    if (to)
      add_address(to, entry->ifa_addr);
  }
  freeifaddrs(all);
  return count;
}
