/* SPDX-License-Identifier: MIT
 * The module libhaul-metrics.so, as the command opens it: one table, which serves a node's counters
 * over HTTP in the text format of Prometheus, version 0.0.4.
 *
 * Not installed: command and module are of one build. */
#ifndef HAUL_METRICS_H
#define HAUL_METRICS_H

#include <haul/haul.h>

#define HAUL_METRICS_SYMBOL "haul_metrics" /* struct haul_metrics */

struct metrics;

struct haul_metrics {
  /* Serves 127.0.0.1:*port from a thread of its own until `close`; *port 0 becomes a free port. The
   * node must outlive it. Returns 0 or an errno value. */
  int (*open)(haul_node *node, unsigned short *port, struct metrics **metrics);
  void (*close)(struct metrics *metrics); /* NULL is allowed */
};

#endif
