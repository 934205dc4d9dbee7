/* SPDX-License-Identifier: MIT */
#include "core/check.h"

#include <stdarg.h>
#include <stdio.h>

void check_begin(struct haul_check *check, const char *backend, const char *name) {
  *check = (struct haul_check){.state = HAUL_CHECK_OK};
  snprintf(check->backend, sizeof check->backend, "%s", backend);
  snprintf(check->name, sizeof check->name, "%s.%s", backend, name);
}

size_t check_run(const char *backend, const struct check_entry *entries, size_t count,
                 struct haul_check *checks, size_t room) {
  for (size_t i = 0; i < count && i < room; i++) {
    check_begin(&checks[i], backend, entries[i].name);
    entries[i].run(&checks[i]);
  }
  return count;
}

void check_set(struct haul_check *check, int state, const char *format, ...) {
  va_list values;
  va_start(values, format);
  check->state = state;
  vsnprintf(check->text, sizeof check->text, format, values);
  va_end(values);
}

void check_hint(struct haul_check *check, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(check->remedy, sizeof check->remedy, format, values);
  va_end(values);
}

void check_set_error(struct haul_check *check) {
  const struct haul_error *error = haul_error_last();
  check_set(check, HAUL_CHECK_MISSING, "%.190s", error->text);
  check_hint(check, "%.190s", error->hint);
}
