/* SPDX-License-Identifier: MIT
 * Fault injection through the seams of core: requests for memory, memfds and mappings are counted,
 * and the n-th fails. A sweep:
 *
 *   for (unsigned n = 1; seams_refuse(n), status = attempt(), seams_restore(); n++)
 *     assert that status is an error and nothing leaked;
 *
 * Requests of other threads are counted, too. */
#ifndef HAUL_TESTS_SEAMS_H
#define HAUL_TESTS_SEAMS_H

#include <stdbool.h>

/* The n-th request from now on fails: memory with NULL, a memfd with EMFILE, a mapping with ENOMEM.
 */
void seams_refuse(unsigned n);
/* Also all later requests. */
void seams_refuse_from(unsigned n);
/* Ends the injection; true if a request failed. */
bool seams_restore(void);

/* Disables Unix sockets for the rest of the process, and so `map` between processes; rdma and tcp
 * remain. */
void seams_no_unix_sockets(void);

/* For leak checks: open descriptors, mappings of haul's memory. */
unsigned open_descriptors(void);
unsigned haul_mappings(void);
/* A set-up and a teardown: as many descriptors after the test as before, and no mappings. */
int count_before(void **state);
int count_after(void **state);
extern unsigned counted_descriptors; /* before the test */

#endif
