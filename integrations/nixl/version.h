/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_VERSION_H
#define HAUL_NIXL_VERSION_H

namespace haul_nixl {

/* Whether the NIXL whose code contains `caller` has the interface of interface.h; says why not.
 * NIXL itself has no version to ask for: its wheel names it. */
bool is_supported(const void *caller);

} // namespace haul_nixl

#endif
