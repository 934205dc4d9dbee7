/* SPDX-License-Identifier: MIT
 * The doors of the double that moves bytes, besides ibverbs_double: found by dlsym(3). */
#ifndef HAUL_TESTS_IBVERBS_DOOR_H
#define HAUL_TESTS_IBVERBS_DOOR_H

#include <stdint.h>

/* What goes wrong in this process from now on, as words with commas between; "" ends it all.
 * HAUL_DOUBLE_FAULT holds the same for the time from the start on. N counts from 1.
 *
 *   retry:N    the N-th request that is posted finds nobody at the other side (RETRY_EXC_ERR)
 *   rnr:N      the N-th request finds no receive there (RNR_RETRY_EXC_ERR)
 *   access:N   the N-th request is refused there (REM_ACCESS_ERR)
 *   refuse:N   the N-th request, and all behind it in that call, are refused (ENOMEM)
 *   remove:N   the device is removed with the N-th request: everything is flushed
 *   vanish:N   the same without a completion: the event alone says it, as with real drivers
 *   overrun:N  the N-th completion finds its completion queue full
 *   memlock:N  the N-th registration and all after it are refused with ENOMEM
 *   pin:US     each registration takes that many microseconds more
 *   slow:US    each 256 KiB of a request take that many microseconds more
 *   late:US    a completion comes that much later than its bytes
 *   nogid      the port has no GID
 *   noatomics  the device has no atomics (IBV_ATOMIC_NONE)
 *   global     it says that its atomics are so towards processors too (IBV_ATOMIC_GLOB); else they
 *              are among themselves (IBV_ATOMIC_HCA), which is the truth
 *
 * 0, or EINVAL: nothing was changed. */
int ibverbs_double_fault(const char *words);

/* CLOCK_MONOTONIC in ns at the latest ibv_post_send of this process. */
extern _Atomic int64_t ibverbs_double_doorbell;
/* How many there were. */
extern _Atomic uint64_t ibverbs_double_doorbells;

#endif
