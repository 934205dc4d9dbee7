/* SPDX-License-Identifier: MIT
 * Addresses and places, as text. What is accepted is written in a form that means the same. */
#include <netdb.h>
#include <string.h>

#include "core/sock.h"
#include "rig.h"

/* The linker puts this one before libc's (--wrap): no input asks a name server. */
int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **result);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **result);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **result) {
  struct addrinfo numeric = *hints;
  numeric.ai_flags |= AI_NUMERICHOST;
  return __real_getaddrinfo(node, service, &numeric, result);
}

static void try_address(const char *text) {
  struct address address, again;
  char formatted[160], twice[160];
  if (address_parse(text, haul_deadline_in(20000000000), &address) != 0) {
    RIG_ASSERT(haul_error_last()->text[0] && haul_error_last()->hint[0]);
    return;
  }
  address_format(&address, formatted, sizeof formatted);
  RIG_ASSERT(address_parse(formatted, haul_deadline_in(20000000000), &again) == 0);
  RIG_ASSERT(again.length == address.length && again.local == address.local &&
             again.loopback == address.loopback);
  address_format(&again, twice, sizeof twice);
  RIG_ASSERT(strcmp(formatted, twice) == 0);
}

static void try_place(const char *text) {
  struct haul_place place, again;
  char formatted[32];
  if (haul_place_parse(text, &place) != 0)
    return;
  haul_place_format(place, formatted, sizeof formatted);
  RIG_ASSERT(haul_place_parse(formatted, &again) == 0);
  RIG_ASSERT(again.kind == place.kind && again.device == place.device);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  char text[512];
  if (length >= sizeof text)
    return 0;
  memcpy(text, bytes, length);
  text[length] = '\0';
  try_address(text);
  try_place(text);
  return 0;
}
