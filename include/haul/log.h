/* SPDX-License-Identifier: MIT
 * Log lines of a node for its operator: peers that come and leave, connections that are refused,
 * paths that break, limits that are reached. The library itself prints nothing.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_LOG_H
#define HAUL_LOG_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

enum haul_log_level {
  HAUL_LOG_ERROR = 1,   /* the node cannot do its work */
  HAUL_LOG_WARNING = 2, /* a connection was refused, or something is slower than it could be */
  HAUL_LOG_INFO = 3,    /* peers come and leave */
  HAUL_LOG_DEBUG = 4
};

/* Both may hold any bytes that a peer chose, except zero: escape them before printing. */
struct haul_log_field {
  const char *key, *value;
};

struct haul_log_line {
  enum haul_log_level level;
  const char *event; /* "refused"; haul_log(3) lists all */
  const char *text;  /* the event in words */
  const char *node;  /* name of the node */
  int64_t time_ns;   /* CLOCK_REALTIME of the event */
  size_t count;
  const struct haul_log_field *fields; /* "peer", "identity", "address", "path", "code", "reason" */
};

/* Registers `take` for the lines, at `level` and more severe, of all nodes that this process opens
 * from now on; NULL, as at the start, for none. A node keeps what it was opened with, and makes no
 * call after haul_node_close has returned.
 *
 * The thread that drives the node calls it, without locks, one line at a time; the lines of a node
 * in HAUL_PROGRESS_CALLER mode wait until it is driven. `take` must not block, as the node makes no
 * progress meanwhile, and must not call haul, except haul_error_name and haul_error_text. The line
 * is valid within the call. Rate limit per event: 10 errors or warnings, or 100 others, per second,
 * and 1024 lines that wait; a later line of the event counts the rest in a field "more". Lines for
 * which there is no memory are dropped. HAUL_EINVAL: unknown level. */
HAUL_API int haul_log_set(enum haul_log_level level,
                          void (*take)(void *user, const struct haul_log_line *line), void *user);

#ifdef __cplusplus
}
#endif

#endif
