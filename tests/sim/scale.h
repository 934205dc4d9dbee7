/* SPDX-License-Identifier: MIT
 * Thousands of nodes with few links each: what they cost, and what churn, a rolling restart and a
 * partition do to them. */
#ifndef HAUL_SIM_SCALE_H
#define HAUL_SIM_SCALE_H

#include <stdbool.h>

void scale_start(unsigned nodes);
bool scale_is_over(void);

#endif
