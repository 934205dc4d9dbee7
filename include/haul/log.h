/* SPDX-License-Identifier: MIT
 *
 * What a node has to say to who runs it: who came and left, who was refused, what broke, what went
 * up to a limit. The library itself prints nothing.
 *
 * What haul.h says of all its calls holds here. Everything here is there since version 0.1.
 */
#ifndef HAUL_LOG_H
#define HAUL_LOG_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

enum haul_log_level {
  HAUL_LOG_ERROR = 1,   /* the node does not do what it is for */
  HAUL_LOG_WARNING = 2, /* somebody was refused, or something is slower than it could be */
  HAUL_LOG_INFO = 3,    /* who comes and leaves */
  HAUL_LOG_DEBUG = 4
};

/* Both may have any bytes that a peer made up, but for zero bytes: escape what you print. */
struct haul_log_field {
  const char *key, *value;
};

struct haul_log_line {
  enum haul_log_level level;
  const char *event; /* "refused": haul_log(3) lists them */
  const char *text;  /* the same in words */
  const char *node;  /* its name */
  int64_t time_ns;   /* CLOCK_REALTIME, when it happened */
  size_t count;
  const struct haul_log_field *fields; /* "peer", "identity", "address", "path", "code", "reason" */
};

/* Has `take` called for what happens to nodes that are opened from now on in this process, if it is
 * as grave as `level`. NULL: nobody is told, as from the start. A node keeps what it was opened
 * with, and makes no call once haul_node_close has returned.
 *
 * It is called without any lock held, by the thread that drives the node, one line after the other:
 * where nobody drives a node (HAUL_PROGRESS_CALLER) its lines wait. It must not block, since the
 * node does nothing else meanwhile, and must not call haul, but for haul_error_name and the like.
 * The line is gone when it returns. Of one event 10 warnings or 100 others a second are told, then
 * how many more there were ("more"); lines that find no memory are not told at all. HAUL_EINVAL: no
 * such level. */
HAUL_API int haul_log_set(enum haul_log_level level,
                          void (*take)(void *user, const struct haul_log_line *line), void *user);

#ifdef __cplusplus
}
#endif

#endif
