/* SPDX-License-Identifier: MIT
 *
 * What a daemon's nodes have to say, a line each on the standard error or to syslog(3): as logfmt,
 *
 *   2026-11-23T10:00:00.123Z warning refused address=10.0.0.7:41324 reason="it has no key"
 *
 * or as an object of JSON. No byte that a peer made up gets out as it is, but for printable ASCII.
 */
#ifndef HAUL_COMMAND_LOG_H
#define HAUL_COMMAND_LOG_H

#include <haul/log.h>

#include "../command.h"

struct log_values {
  const char *level, *format; /* as the user wrote them; NULL: warning, text */
};

#define LOG_LEVEL_HELP                                                                             \
  "tell what is as grave as that: error, warning, info or debug (default: warning)"
#define LOG_FORMAT_HELP "text or json (default: text)"

/* Before any node is opened. Returns an exit status. */
int log_begin(const struct command *command, const struct log_values *values);
/* A line of the command's own, whatever the level: as the others, with the text as a field. The
 * priority is one of syslog(3)'s. */
void log_tell(int priority, const char *event, const char *text);
/* From now on to syslog(3): there is no standard error any more. */
void log_to_syslog(void);

#endif
