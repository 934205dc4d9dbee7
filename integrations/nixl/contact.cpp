/* SPDX-License-Identifier: MIT */
#include "contact.h"

#include <algorithm>
#include <arpa/inet.h>
#include <fstream>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sstream>
#include <sys/stat.h>

namespace haul_nixl {

static const std::string HEADER = "haul-nixl 1";

std::string Contact::format() const {
  std::string text = HEADER + "\nnode " + node + "\nkey " + fingerprint + "\nhost " + host + "\n";
  for (const auto &address : addresses)
    text += "address " + address + "\n";
  return text;
}

bool Contact::parse(const std::string &text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != HEADER)
    return false;
  while (std::getline(lines, line)) {
    size_t blank = std::min(line.find(' '), line.size());
    std::string word = line.substr(0, blank);
    std::string value = line.substr(std::min(blank + 1, line.size()));
    if (word == "node")
      node = value;
    else if (word == "key")
      fingerprint = value;
    else if (word == "host")
      host = value;
    else if (word == "address")
      addresses.push_back(value);
  }
  return !node.empty() && !addresses.empty();
}

std::string this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network = {};
  stat("/proc/self/ns/net", &network);
  return boot + "." + std::to_string(network.st_ino);
}

bool is_loopback(const std::string &address) {
  return address.starts_with("tcp://127.") || address.starts_with("tcp://[::1]") ||
         address.starts_with("unix:");
}

/* The text of an interface's address, or "" if other hosts cannot use it as it is. */
static std::string address_of(const ifaddrs &interface) {
  char text[INET6_ADDRSTRLEN];
  if (!(interface.ifa_flags & IFF_UP) || !interface.ifa_addr)
    return "";
  if (interface.ifa_addr->sa_family == AF_INET) {
    auto *v4 = reinterpret_cast<const sockaddr_in *>(interface.ifa_addr);
    return inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  }
  if (interface.ifa_addr->sa_family == AF_INET6) {
    auto *v6 = reinterpret_cast<const sockaddr_in6 *>(interface.ifa_addr);
    if (!IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
      return std::string("[") + inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text) + "]";
  }
  return "";
}

static void expand(const std::string &wildcard, const std::string &port,
                   std::vector<std::string> &out) {
  ifaddrs *interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0)
    return;
  for (ifaddrs *each = interfaces; each; each = each->ifa_next) {
    std::string address = address_of(*each);
    if (!address.empty() && (wildcard != "0.0.0.0" || address[0] != '['))
      out.push_back("tcp://" + address + ":" + port);
  }
  freeifaddrs(interfaces);
}

std::vector<std::string> reachable_addresses(haul_node *node) {
  std::vector<std::string> found;
  char text[160];
  for (size_t i = 0; haul_node_address(node, i, text, sizeof text) == 0; i++) {
    std::string address = text;
    size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host == "tcp://0.0.0.0" || host == "tcp://[::]")
      expand(host.substr(6), address.substr(colon + 1), found);
    else
      found.push_back(address);
  }
  return found;
}

} // namespace haul_nixl
