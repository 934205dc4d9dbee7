/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_REPORT_H
#define HAUL_NIXL_REPORT_H

#include <mutex>
#include <set>
#include <string>

#include "request.h"

namespace haul_nixl {

/* HAUL_NIXL_REPORT=1: a line for each kind of transfer and agent, and once more if the path
 * changes. */
class Reports {
public:
  Reports();
  /* Of a request whose last post has ended. */
  void add(const MemoryRequest &request);
  /* A line that tells `key` and then `more`. */
  void add(const std::string &key, const std::string &more);
  bool wanted() const {
    return wanted_;
  }

private:
  const bool wanted_;
  std::mutex lock_;
  std::set<std::string> said_;
};

} // namespace haul_nixl

#endif
