/* SPDX-License-Identifier: MIT
 * Included before each source of the simulated library: another fiber may run before each atomic
 * operation. All interleavings are sequentially consistent; weaker orders need the thread
 * sanitizer and the hardware. */
#ifndef HAUL_SIM_ATOMICS_H
#define HAUL_SIM_ATOMICS_H

#include <stdatomic.h>

extern int sim_atomics_left; /* operations until the next switch */
void sim_atomic_switch(void);

static inline void sim_atomic_point(void) {
  if (--sim_atomics_left < 0)
    sim_atomic_switch();
}

/* The operations of <stdatomic.h> expand to these builtins of gcc. */
#define __atomic_load(...)             (sim_atomic_point(), __atomic_load(__VA_ARGS__))
#define __atomic_store(...)            (sim_atomic_point(), __atomic_store(__VA_ARGS__))
#define __atomic_exchange(...)         (sim_atomic_point(), __atomic_exchange(__VA_ARGS__))
#define __atomic_compare_exchange(...) (sim_atomic_point(), __atomic_compare_exchange(__VA_ARGS__))
#define __atomic_fetch_add(...)        (sim_atomic_point(), __atomic_fetch_add(__VA_ARGS__))
#define __atomic_fetch_sub(...)        (sim_atomic_point(), __atomic_fetch_sub(__VA_ARGS__))
#define __atomic_fetch_or(...)         (sim_atomic_point(), __atomic_fetch_or(__VA_ARGS__))
#define __atomic_fetch_and(...)        (sim_atomic_point(), __atomic_fetch_and(__VA_ARGS__))

#endif
