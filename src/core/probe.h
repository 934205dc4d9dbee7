/* SPDX-License-Identifier: MIT
 * Static probes for perf and bpftrace (USDT): a nop each, and a note in the library that says where
 * it is and where its arguments are. Without <sys/sdt.h> (systemtap-sdt-dev) at the build there are
 * none. haul(7) has their arguments. */
#ifndef HAUL_CORE_PROBE_H
#define HAUL_CORE_PROBE_H

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define PROBE4(name, a, b, c, d) DTRACE_PROBE4(haul, name, a, b, c, d)
#else
#define PROBE4(name, a, b, c, d) ((void)0)
#endif

#endif
