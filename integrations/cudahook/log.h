/* SPDX-License-Identifier: MIT
 * HAUL_CUDAHOOK_LOG: "1" for the standard error, else a file, to which lines are appended. */
#ifndef HAUL_CUDAHOOK_LOG_H
#define HAUL_CUDAHOOK_LOG_H

#include <stdbool.h>
#include <stddef.h>

/* One call of the application's. */
struct record {
  const char *call;
  size_t bytes;
  const void *address;
  int device;    /* -1: unknown */
  char why[224]; /* it was not served */
};

bool log_is_on(void);
/* One line: pid, call, size, address, device, and what became of it. Written by one write(2), takes
 * no lock. */
__attribute__((format(printf, 2, 3))) void log_record(const struct record *record,
                                                      const char *format, ...);

/* What the application's owner is to know also without a log: the record's line, and on the
 * standard error one with the text alone, unless the log is there already. */
__attribute__((format(printf, 2, 3))) void log_trouble(const struct record *record,
                                                       const char *format, ...);

/* Why it is passed on; NULL, for the caller to return. */
__attribute__((format(printf, 2, 3))) void *because(struct record *record, const char *format, ...);

#endif
