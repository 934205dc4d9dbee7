/* SPDX-License-Identifier: MIT
 * How fast the line below a connection is, as its driver says. */
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "fabric/tcp/tcp.h"

static bool same_address(const struct sockaddr *a, const struct sockaddr *b) {
  if (!a || a->sa_family != b->sa_family)
    return false;
  if (a->sa_family == AF_INET)
    return memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                  &((const struct sockaddr_in *)(const void *)b)->sin_addr, 4) == 0;
  return a->sa_family == AF_INET6 &&
         memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, 16) == 0;
}

static bool find_interface(const struct sockaddr *address, char name[IFNAMSIZ]) {
  struct ifaddrs *addresses;
  bool found = false;
  if (getifaddrs(&addresses) != 0)
    return false;
  for (const struct ifaddrs *one = addresses; one && !found; one = one->ifa_next) {
    found = same_address(one->ifa_addr, address);
    if (found)
      snprintf(name, IFNAMSIZ, "%s", one->ifa_name);
  }
  freeifaddrs(addresses);
  return found;
}

double tcp_line_speed(int fd) {
  struct sockaddr_storage address = {0};
  socklen_t length = sizeof address;
  struct ethtool_cmd command = {.cmd = ETHTOOL_GSET};
  struct ifreq request = {0};
  request.ifr_data = (void *)&command;
  if (getsockname(fd, (struct sockaddr *)&address, &length) != 0 ||
      !find_interface((const struct sockaddr *)&address, request.ifr_name) ||
      ioctl(fd, SIOCETHTOOL, &request) != 0)
    return 0;
  uint32_t megabits = ethtool_cmd_speed(&command);
  return megabits == (uint32_t)SPEED_UNKNOWN ? 0 : megabits / 8000.0;
}
