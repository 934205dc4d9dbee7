/* SPDX-License-Identifier: MIT
 * The mock NIC, for tests that doubles/ibverbs-moving/with started. */
#ifndef HAUL_TESTS_NIC_H
#define HAUL_TESTS_NIC_H

#include <stdint.h>

#include "doubles/ibverbs/double.h"

/* Is there a mock NIC? If not, prints that the test is skipped, and how to get one. */
bool nic_is_there(void);
/* Injects these faults in this process (doubles/ibverbs-moving/door.h); "": none. */
void nic_fault(const char *words);
/* The same for processes that are started from now on. */
void nic_fault_of_children(const char *words);
/* The NICs of this process, while no node has them open (doubles/ibverbs-moving/door.h). */
void nic_set(const char *words);
/* The same for processes that are started from now on; NULL: as usual. */
void nic_set_of_children(const char *words);
/* Lists the addresses of the NICs, as getifaddrs(3), with their netmasks; for addresses_get. */
struct ifaddrs;
int nic_addresses(struct ifaddrs **addresses);
/* Number of calls of ibv_post_send in this process. */
uint64_t nic_doorbells(void);
/* Receives in the shared receive queues of this process. */
uint32_t nic_shared_receives(void);
/* Messages that have arrived in this process and have not entered a completion queue yet. */
uint32_t nic_arrivals(void);
/* How often a work request of this process found no receive. */
uint64_t nic_not_ready(void);
/* The description of the mock NIC, and the number of its objects in this process. */
struct ibverbs_double *nic_double(void);
/* Number of queue pairs of this process. */
unsigned nic_queue_pairs(void);
/* Fails if an object of the mock is left. */
void nic_check_empty(void);

#endif
