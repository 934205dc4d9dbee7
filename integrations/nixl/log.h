/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_LOG_H
#define HAUL_NIXL_LOG_H

#include <exception>
#include <string>

#include "interface.h"

namespace haul_nixl {

/* A line on standard error. */
void say(const std::string &text);

/* Reports haul's last failure, "WHAT: TEXT (hint: …)", and returns its status for NIXL. */
Status fail(const std::string &what);

/* The same for an exception, as of too little memory: allocates none. */
Status fail(const char *what, const std::exception &error) noexcept;

Status status_of(int code);

} // namespace haul_nixl

#endif
