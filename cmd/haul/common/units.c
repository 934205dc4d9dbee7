/* SPDX-License-Identifier: MIT */
#include "units.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prefixes[] = "KMGT";

/* What follows the number: 0 when it is not a unit. */
static uint64_t factor_of(const char *unit) {
  if (!*unit || strcmp(unit, "B") == 0)
    return 1;
  const char *prefix = strchr(prefixes, toupper((unsigned char)*unit));
  if (!prefix)
    return 0;
  const char *rest = unit + 1;
  uint64_t step = strcmp(rest, "B") == 0 ? 1000 : 1024;
  if (*rest && strcmp(rest, "B") != 0 && strcmp(rest, "iB") != 0)
    return 0;
  uint64_t factor = 1;
  for (const char *at = prefixes; at <= prefix; at++)
    factor *= step;
  return factor;
}

bool size_parse(const char *text, uint64_t *size) {
  uint64_t number = 0;
  const char *at = text;
  for (; isdigit((unsigned char)*at); at++) {
    if (__builtin_mul_overflow(number, 10u, &number) ||
        __builtin_add_overflow(number, (unsigned)(*at - '0'), &number))
      return false;
  }
  uint64_t factor = factor_of(at);
  return at != text && factor && !__builtin_mul_overflow(number, factor, size);
}

bool seconds_parse(const char *text, int64_t *nanoseconds) {
  char *end = NULL;
  if (!isdigit((unsigned char)*text) && *text != '.')
    return false;
  double seconds = strtod(text, &end);
  if (*end || !isfinite(seconds) || seconds > 10 * 365.25 * 86400)
    return false;
  *nanoseconds = (int64_t)(seconds * 1e9);
  return *nanoseconds > 0;
}

struct unit_text size_text(uint64_t bytes) {
  static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  struct unit_text result;
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024 && unit < 6; unit++)
    value /= 1024;
  snprintf(result.text, sizeof(result.text), unit ? "%.2f %s" : "%.0f %s", value, names[unit]);
  return result;
}

double gigabytes_per_second(uint64_t bytes, int64_t nanoseconds) {
  return nanoseconds > 0 ? (double)bytes / (double)nanoseconds : 0;
}

struct unit_text rate_text(uint64_t bytes, int64_t nanoseconds) {
  struct unit_text result;
  double rate = gigabytes_per_second(bytes, nanoseconds);
  if (rate >= 1)
    snprintf(result.text, sizeof(result.text), "%.2f GB/s", rate);
  else
    snprintf(result.text, sizeof(result.text), "%.1f MB/s", rate * 1000);
  return result;
}

struct unit_text time_text(double nanoseconds) {
  static const char *const names[] = {"ns", "us", "ms", "s"};
  struct unit_text result;
  double value = nanoseconds;
  size_t unit = 0;
  for (; value >= 1000 && unit < 3; unit++)
    value /= 1000;
  snprintf(result.text, sizeof(result.text), "%.3g %s", value, names[unit]);
  if (value >= 1000)
    snprintf(result.text, sizeof(result.text), "%.0f %s", value, names[unit]);
  return result;
}

struct unit_text clock_text(int64_t nanoseconds) {
  struct unit_text result;
  int64_t seconds = (nanoseconds + 500000000) / 1000000000;
  snprintf(result.text, sizeof(result.text), "%lld:%02lld", (long long)(seconds / 60),
           (long long)(seconds % 60));
  return result;
}
