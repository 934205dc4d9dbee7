/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/address.h"

#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>

int (*addresses_get)(struct ifaddrs **addresses) = getifaddrs;

struct ifaddrs *addresses_read(void) {
  struct ifaddrs *addresses;
  return addresses_get(&addresses) == 0 ? addresses : NULL;
}

static bool is_gid(const struct sockaddr *address, const uint8_t gid[16]) {
  uint8_t mapped[16] = {[10] = 0xff, [11] = 0xff};
  if (!address)
    return false;
  if (address->sa_family == AF_INET6)
    return memcmp(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, gid, 16) == 0;
  if (address->sa_family != AF_INET)
    return false;
  memcpy(mapped + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
  return memcmp(mapped, gid, 16) == 0;
}

bool addresses_have(const struct ifaddrs *addresses, const uint8_t gid[16]) {
  for (; addresses; addresses = addresses->ifa_next)
    if (!(addresses->ifa_flags & IFF_LOOPBACK) && is_gid(addresses->ifa_addr, gid))
      return true;
  return false;
}
