/* SPDX-License-Identifier: MIT
 * Static probes for perf and bpftrace (USDT): a nop each, and a note in the library that says where
 * it is and where its arguments are. Without <sys/sdt.h> (systemtap-sdt-dev) at the build there are
 * none. haul(7) has their arguments. */
#ifndef HAUL_CORE_PROBE_H
#define HAUL_CORE_PROBE_H

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#ifdef __clang__ /* whose words about this header would be errors */
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
