/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_OPTIONS_H
#define HAUL_NIXL_OPTIONS_H

#include <cstdint>
#include <string>
#include <vector>

#include "interface.h"

namespace haul_nixl {

/* The backend's parameters. An empty text stands for haul's own setting (haul.conf(5)). */
struct Options {
  std::string paths, key;
  std::vector<std::string> listen;
  unsigned rails = 0;
  bool zero_copy = false, insecure = false;
  int64_t deadline_ns = 0;

  /* Throws std::invalid_argument with a sentence for an unknown parameter or an invalid value. */
  explicit Options(const Parameters &parameters);

  static Parameters defaults();
};

} // namespace haul_nixl

#endif
