/* SPDX-License-Identifier: MIT
 * The emulator's controls for tests, besides ibverbs_double: found by dlsym(3). */
#ifndef HAUL_TESTS_IBVERBS_DOOR_H
#define HAUL_TESTS_IBVERBS_DOOR_H

#include <stdint.h>

/* Injects faults into this process from now on: words separated by commas; "" clears all.
 * HAUL_DOUBLE_FAULT does the same from the start on. N counts from 1.
 *
 *   retry:N    the N-th work request is never acknowledged (RETRY_EXC_ERR)
 *   cut        no work request is acknowledged until this fault is cleared
 *   rnr:N      the N-th work request finds no receive (RNR_RETRY_EXC_ERR)
 *   access:N   the N-th work request is refused by the peer's NIC (REM_ACCESS_ERR)
 *   refuse:N   ibv_post_send refuses the N-th work request and those behind it (ENOMEM)
 *   remove:N   the device is removed at the N-th work request: everything is flushed
 *   vanish:N   the same without completions, only with the event, as with real drivers
 *   overrun:N  the N-th completion overruns its completion queue
 *   memlock:N  the N-th registration and all after it fail with ENOMEM
 *   nomem:N    the N-th registration fails with ENOMEM
 *   pin:US     each registration takes US microseconds longer
 *   slow:US    each 256 KiB of a work request take US microseconds longer
 *   late:US    a completion comes US microseconds after its bytes
 *   nogid      the port has no GID
 *   second     the port has the same GID again at index 2, and partition key 0x8002 there
 *   subnet:N   the port is InfiniBand with LID 1, in the subnet with the prefix N
 *   routed     routers connect the subnets of RoCE
 *   drops      with `routed`: and drop every packet
 *   noatomics  the device has no atomics (IBV_ATOMIC_NONE)
 *   srq:N      a shared receive queue of the device has N receives at most
 *   dmabuf     the device takes dma-bufs, of the mock GPUs only
 *   peermem    the kernel has a peer-memory module: addresses of the mock GPUs can be registered
 *   global     the device reports IBV_ATOMIC_GLOB; without it IBV_ATOMIC_HCA, which is the truth
 *   allglobal  all devices do
 *
 * Ports and limits that are named change at the first NIC alone. 0, or EINVAL without a change. */
int ibverbs_double_fault(const char *words);

/* The NICs that this process finds when it lists them the next time, separated by commas: the
 * address of each ("10.0.1.1" in a subnet of 24 bits, "fd00:1::1" and "fe80::1" of 64), or "ib:N"
 * for InfiniBand in the subnet with the prefix N, which for 0 is the default. Their names are
 * double0, double1… in this order, their LIDs 1, 2… The environment's HAUL_DOUBLE_NICS is the same
 * from the start on. 0, or EINVAL without a change. */
int ibverbs_double_nics(const char *words);

/* CLOCK_MONOTONIC in ns at the latest ibv_post_send of this process. */
extern _Atomic int64_t ibverbs_double_doorbell;
/* The number of calls of ibv_post_send. */
extern _Atomic uint64_t ibverbs_double_doorbells;
/* Receives in the shared receive queues of this process. */
uint32_t ibverbs_double_shared_receives(void);
/* Messages that have arrived in this process and have not entered a completion queue yet. */
uint32_t ibverbs_double_arrivals(void);
/* How often a work request of this process found no receive. */
extern _Atomic uint64_t ibverbs_double_not_ready;

#endif
