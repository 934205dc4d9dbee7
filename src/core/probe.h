/* SPDX-License-Identifier: MIT
 * Static probes (USDT) for perf and bpftrace: a nop each, and an ELF note with its address and
 * arguments. Built only with <sys/sdt.h> (systemtap-sdt-dev). haul(7) documents the arguments. */
#ifndef HAUL_CORE_PROBE_H
#define HAUL_CORE_PROBE_H

#ifdef HAUL_PROBES
#include <sys/sdt.h>
#ifdef __clang__ /* it warns about this header */
#define PROBE_QUIET                                                                                \
  _Pragma("clang diagnostic push")                                                                 \
      _Pragma("clang diagnostic ignored \"-Wgnu-zero-variadic-macro-arguments\"")
#define PROBE_LOUD _Pragma("clang diagnostic pop")
#else
#define PROBE_QUIET
#define PROBE_LOUD
#endif
#define PROBE4(name, a, b, c, d) PROBE_QUIET DTRACE_PROBE4(haul, name, a, b, c, d) PROBE_LOUD
#else
#define PROBE4(name, a, b, c, d) ((void)0)
#endif

#endif
