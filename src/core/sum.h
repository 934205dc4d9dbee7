/* SPDX-License-Identifier: MIT
 * XXH3-64 of libxxhash, with run-time dispatch where the library has it: 44 GB/s with AVX-512
 * against 26 GB/s with SSE2, in cache. */
#ifndef HAUL_CORE_SUM_H
#define HAUL_CORE_SUM_H

#ifdef HAUL_XXHASH_DISPATCH
#include <xxh_x86dispatch.h> /* the same names */
#else
#include <xxhash.h>
#endif

#endif
