/* SPDX-License-Identifier: MIT
 * Bounds that are lower in the simulator, so that what happens at a bound happens often. In every
 * other build both macros are BOUND.
 *
 *   shrinkable(BOUND, least)   only speed depends on it: the seed of a run makes some of these
 *                              smaller, down to `least`
 *   shrunk(BOUND, constant)    `constant` in all runs, for a bound that is part of a constant
 */
#ifndef HAUL_CORE_SHRINKABLE_H
#define HAUL_CORE_SHRINKABLE_H

#ifdef HAUL_SIMULATED
unsigned sim_shrink(const char *name, unsigned value, unsigned least);
#define shrinkable(bound, least) sim_shrink(#bound, (bound), (least))
#define shrunk(bound, constant)  (constant)
#else
#define shrinkable(bound, least) (bound)
#define shrunk(bound, constant)  (bound)
#endif

#endif
