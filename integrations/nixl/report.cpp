/* SPDX-License-Identifier: MIT */
#include "report.h"

#include <cstdlib>

#include "log.h"

namespace haul_nixl {

static std::string place_of(haul_place place) {
  char text[16];
  return haul_place_format(place, text, sizeof text);
}

static std::string copies_of(const haul_path &path) {
  std::string text;
  auto add = [&text](unsigned count, const char *agent) {
    if (count)
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " by " + agent;
  };
  add(path.copies_cpu, "the CPU");
  add(path.copies_kernel, "the kernel");
  add(path.copies_dma, "DMA");
  return text.empty() ? "no copies" : "copies: " + text;
}

/* Why no path before the chosen one in haul's order was taken. */
static std::string others_of(const haul_report &report) {
  std::string text;
  for (size_t i = 1; i < report.path_count && i < HAUL_PATHS_MAX; i++) {
    const haul_path &path = report.paths[i];
    text += std::string("; not ") + path.name + ": " + path.reason;
  }
  return text;
}

Reports::Reports() : wanted_(getenv("HAUL_NIXL_REPORT") && *getenv("HAUL_NIXL_REPORT") == '1') {}

void Reports::add(const MemoryRequest &request) {
  haul_report report = HAUL_REPORT_INIT;
  if (!wanted_ || !request.first() || haul_transfer_report(request.first(), &report) != 0 ||
      report.path_count == 0)
    return;
  const haul_path &path = report.paths[0];
  std::string key = std::string(request.operation() == WRITE ? "write to " : "read from ") +
                    request.peer().agent() + ", " + place_of(report.from) + " to " +
                    place_of(report.to) + ": " + path.name;
  add(key, (path.detail[0] ? std::string(" (") + path.detail + ")" : "") + ", " + copies_of(path) +
               others_of(report));
}

void Reports::add(const std::string &key, const std::string &more) {
  {
    std::lock_guard guard(lock_);
    if (!wanted_ || !said_.insert(key).second)
      return;
  }
  say(key + more);
}

} // namespace haul_nixl
