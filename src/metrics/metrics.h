/* SPDX-License-Identifier: MIT
 * A node's counters over HTTP, as Prometheus takes them: a module of its own, which links
 * libmicrohttpd and the public header's calls. */
#ifndef HAUL_METRICS_METRICS_H
#define HAUL_METRICS_METRICS_H

#include <haul/haul.h>
#include <stdio.h>

#define HAUL_METRICS_SYMBOL "haul_metrics"

struct metrics;

struct haul_metrics {
  /* Answers on 127.0.0.1:*port, 0: any free one, which it then is, from a thread of its own, until
   * `close`; the node stays until then. 0 or an errno. */
  int (*open)(haul_node *node, unsigned short *port, struct metrics **metrics);
  void (*close)(struct metrics *metrics); /* NULL is allowed */
};

/* In the text format, version 0.0.4. */
void metrics_write(haul_node *node, FILE *out);

#endif
