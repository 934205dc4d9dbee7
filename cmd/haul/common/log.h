/* SPDX-License-Identifier: MIT
 * The log of a daemon: one line for each event, to standard error or syslog(3), as logfmt
 *
 *   2026-11-23T10:00:00.123Z warning refused address=10.0.0.7:41324 reason="the peer has no key"
 *
 * or as a JSON object. Bytes chosen by a peer are escaped, except for printable ASCII. */
#ifndef HAUL_COMMAND_LOG_H
#define HAUL_COMMAND_LOG_H

#include <haul/log.h>

#include "../command.h"

struct log_values {
  const char *level, *format; /* NULL: warning, text */
};

#define LOG_LEVEL_HELP                                                                             \
  "log events of this level and above: error, warning, info or debug (default: warning)"
#define LOG_FORMAT_HELP "log as text or json (default: text)"

/* Call it before any node is opened. Returns an exit status. */
int log_begin(const struct command *command, const struct log_values *values);
/* Logs a line of the command itself, at any level; `priority` is one of syslog(3). */
void log_line(int priority, const char *event, const char *text);
/* Sends later lines to syslog(3), for a process without standard error. */
void log_to_syslog(void);

#endif
