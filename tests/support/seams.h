/* SPDX-License-Identifier: MIT
 * Refusals through the seams of core: every request for memory, a memfd or a mapping is counted,
 * and the n-th fails. A sweep:
 *
 *   for (unsigned n = 1; seams_refuse(n), status = attempt(), seams_restore(); n++)
 *     assert that status is an error and nothing leaked;
 *
 * Threads may run meanwhile: their requests are counted too. */
#ifndef HAUL_TESTS_SEAMS_H
#define HAUL_TESTS_SEAMS_H

#include <stdbool.h>

/* From now on the n-th request fails: memory with NULL, a memfd with EMFILE, a mapping with ENOMEM.
 */
void seams_refuse(unsigned n);
/* The same for the n-th and all after it. */
void seams_refuse_from(unsigned n);
/* Ends that; true if a request was refused. */
bool seams_restore(void);

/* For the rest of the process there are no Unix sockets: then there is no `map` between processes
 * of one host, and rdma and tcp are left. */
void seams_no_unix_sockets(void);

/* For leak checks: descriptors that are open, mappings of haul's memory. */
unsigned open_descriptors(void);
unsigned haul_mappings(void);

#endif
