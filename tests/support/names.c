/* SPDX-License-Identifier: MIT */
#include "support/names.h"

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "core/sys.h"

/* The process id is unique only within a PID namespace. */
const char *own_socket(void) {
  static char text[64];
  uint32_t chance;
  if (text[0] == '\0') {
    random_bytes(&chance, sizeof chance);
    snprintf(text, sizeof text, "unix://@haul-test-%d-%08x", (int)getpid(), chance);
  }
  return text;
}
