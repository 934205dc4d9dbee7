/* SPDX-License-Identifier: MIT */
#ifndef HAUL_METRICS_METRICS_H
#define HAUL_METRICS_METRICS_H

#include <stdio.h>

#include <haul/metrics.h>

/* Writes the node's counters in Prometheus' text format, version 0.0.4. */
void metrics_write(haul_node *node, FILE *out);

#endif
