/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_CONTACT_H
#define HAUL_NIXL_CONTACT_H

#include <haul/haul.h>
#include <string>
#include <vector>

namespace haul_nixl {

/* How other agents reach a node: what NIXL calls connection info. */
struct Contact {
  std::string node;        /* its name in haul, unique in time and space */
  std::string fingerprint; /* of its key; "" without one */
  std::string host;        /* boot and network namespace: where loopback addresses are valid */
  std::vector<std::string> addresses;

  std::string format() const;
  /* False: `text` is not of a contact. */
  bool parse(const std::string &text);
};

/* This process's host, as in Contact. */
std::string this_host();

/* Addresses for other processes of what `node` listens on: a wildcard becomes those of the network
 * interfaces that are up. */
std::vector<std::string> reachable_addresses(haul_node *node);

bool is_loopback(const std::string &address);

} // namespace haul_nixl

#endif
