/* SPDX-License-Identifier: MIT */
#include "log.h"

#include <cctype>
#include <cstdio>
#include <haul/haul.h>
#include <unistd.h>

namespace haul_nixl {

/* Names of agents may contain anything. */
void say(const std::string &text) {
  std::string line = text;
  for (char &each : line)
    if (iscntrl(static_cast<unsigned char>(each)))
      each = '?';
  fprintf(stderr, "haul-nixl %d: %s\n", static_cast<int>(getpid()), line.c_str());
}

Status status_of(int code) {
  switch (code) {
  case HAUL_OK:
    return SUCCESS;
  case HAUL_EINVAL:
  case HAUL_ERANGE:
  case HAUL_EADDRESS:
    return INVALID_PARAMETER;
  case HAUL_EPEER:
  case HAUL_ECONNECT:
    return REMOTE_DISCONNECT;
  case HAUL_ESTALE:
  case HAUL_ENAME:
    return NOT_FOUND;
  case HAUL_ECANCELED:
  case HAUL_ECLOSED:
    return CANCELED;
  case HAUL_EACCESS:
  case HAUL_EAUTH:
  case HAUL_EFORK:
  case HAUL_EINSECURE:
    return NOT_ALLOWED;
  case HAUL_ENOTSUP:
  case HAUL_ENOPATH:
    return NOT_SUPPORTED;
  default:
    return BACKEND_ERROR;
  }
}

Status fail(const std::string &what) {
  const haul_error *error = haul_error_last();
  std::string line = what + ": " + error->text;
  if (error->object[0])
    line += std::string(" (") + error->object + ")";
  if (error->hint[0])
    line += std::string(" (hint: ") + error->hint + ")";
  say(line);
  return status_of(error->code);
}

Status fail(const char *what, const std::exception &error) noexcept {
  fprintf(stderr, "haul-nixl %d: %s: %s\n", static_cast<int>(getpid()), what, error.what());
  return BACKEND_ERROR;
}

} // namespace haul_nixl
