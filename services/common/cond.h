/* SPDX-License-Identifier: MIT */
#ifndef HAUL_SERVICES_COND_H
#define HAUL_SERVICES_COND_H

#include <pthread.h>

/* Initializes a condition whose waits end by the clock of haul_deadline. */
void monotonic_cond(pthread_cond_t *cond);

#endif
