/* SPDX-License-Identifier: MIT */
#include "version.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <string>

#include "log.h"

namespace haul_nixl {

namespace fs = std::filesystem;

static constexpr int MAJOR = 1, MINOR_MOST = 5;
static constexpr const char *VARIABLE = "HAUL_NIXL_VERSION";

/* The wheel installs .PACKAGE.mesonpy.libs/libnixl.so beside PACKAGE-VERSION.dist-info. */
static std::string version_of_wheel(const fs::path &named) {
  std::error_code error;
  fs::path library = fs::canonical(named, error);
  std::string folder = library.parent_path().filename();
  size_t end = folder.find(".mesonpy.libs");
  if (end == std::string::npos || !folder.starts_with("."))
    return "";
  std::string prefix = folder.substr(1, end - 1) + "-";
  const std::string suffix = ".dist-info";
  for (const auto &entry : fs::directory_iterator(library.parent_path().parent_path(), error)) {
    std::string name = entry.path().filename();
    if (name.starts_with(prefix) && name.ends_with(suffix))
      return name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  }
  return "";
}

static bool is_known(const std::string &version) {
  int major = -1, minor = -1;
  return sscanf(version.c_str(), "%d.%d", &major, &minor) == 2 && major == MAJOR && minor >= 0 &&
         minor <= MINOR_MOST;
}

bool is_supported(const void *caller) {
  Dl_info info = {};
  dladdr(caller, &info);
  std::string library = info.dli_fname ? info.dli_fname : "an unknown library";
  const char *set = getenv(VARIABLE);
  std::string version = set && *set ? set : version_of_wheel(library);
  if (is_known(version))
    return true;
  say("NIXL " + (version.empty() ? "of unknown version" : version) + " (" + library +
      ") is refused: its interface to backends changes without notice, and this haul knows that of "
      "1.0 to 1.5 (hint: " +
      (version.empty()
           ? std::string("it is not of a wheel; if its version is among these, name it: ") +
                 VARIABLE + "=1.5"
           : "install nixl-cu12 1.5 or nixl-cu13 1.5") +
      ")");
  return false;
}

} // namespace haul_nixl
