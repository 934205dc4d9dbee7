/* SPDX-License-Identifier: MIT
 * The NIC that is a double, for tests that doubles/ibverbs-moving/with started. */
#ifndef HAUL_TESTS_NIC_H
#define HAUL_TESTS_NIC_H

#include <stdint.h>

#include "doubles/ibverbs/double.h"

/* Whether there is one; if not, says that and how to get it, for a test that is skipped then. */
bool nic_is_there(void);
/* From now on these go wrong in this process (doubles/ibverbs-moving/door.h); "" makes all well. */
void nic_fault(const char *words);
/* The same from the start on for processes that are started from now on. */
void nic_fault_of_children(const char *words);
/* Calls of ibv_post_send in this process, ever. */
uint64_t nic_doorbells(void);
/* Fails when an object of the double is left. */
void nic_check_empty(void);

#endif
