/* SPDX-License-Identifier: MIT */
#include "common/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int fail(int code, const char *call, const char *object, const char *hint, const char *format,
         ...) {
  struct haul_error error = {.code = code};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error.text, sizeof error.text, format, arguments);
  va_end(arguments);
  snprintf(error.call, sizeof error.call, "%s", call);
  snprintf(error.object, sizeof error.object, "%s", object ? object : "");
  snprintf(error.hint, sizeof error.hint, "%s", hint);
  return haul_error_set(&error);
}

int fail_memory(const char *call) {
  struct haul_error error = {.code = HAUL_ENOMEM,
                             .system = ENOMEM,
                             .text = "no memory left for bookkeeping",
                             .hint = "raise the memory limit of this process"};
  snprintf(error.call, sizeof error.call, "%s", call);
  return haul_error_set(&error);
}
