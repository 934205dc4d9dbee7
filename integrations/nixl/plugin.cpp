/* SPDX-License-Identifier: MIT
 * What NIXL looks up in libplugin_HAUL.so. */
#include <exception>
#include <haul/haul.h>

#include "engine.h"
#include "log.h"
#include "options.h"
#include "version.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace haul_nixl {

static Backend *create(const InitParameters *init) {
  try {
    return new Engine(*init);
  } catch (const std::exception &error) {
    say(std::string("cannot create the backend: ") + error.what());
    return nullptr;
  }
}

static void destroy(Backend *backend) {
  auto *engine = static_cast<Engine *>(backend);
  if (!engine->leave_in_child())
    delete engine;
}

static Plugin plugin = {API_VERSION,
                        create,
                        destroy,
                        [] { return "HAUL"; },
                        haul_version,
                        Options::defaults,
                        [] {
                          return Memories{DRAM, VRAM, FILES};
                        }};

} // namespace haul_nixl

/* NULL: NIXL does not load the plugin. */
EXPORT haul_nixl::Plugin *nixl_plugin_init() {
  return haul_nixl::is_supported(__builtin_return_address(0)) ? &haul_nixl::plugin : nullptr;
}

EXPORT void nixl_plugin_fini() {}
