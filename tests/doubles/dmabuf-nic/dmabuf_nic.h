/* SPDX-License-Identifier: MIT
 * Adds dma-buf registration to a NIC that lacks it, such as Soft-RoCE.
 *
 * Preloaded (LD_PRELOAD), it replaces ibv_reg_dmabuf_mr: dlsym(3) returns the function here, for
 * any library. All other calls go to the real library and its providers, which need its private
 * symbols.
 *
 * It checks the arguments as the kernel and its drivers do, with their errno, then registers the
 * same pages at the real device. Pages of a dma-buf's mapping cannot be pinned, but those of the
 * memfd behind a udmabuf can. So it watches UDMABUF_CREATE. Dma-bufs of another process or exporter
 * fail with EOPNOTSUPP.
 *
 * From the environment:
 *   HAUL_DMABUF_NIC         "off": all calls fail with EOPNOTSUPP, as without dma-buf support;
 *                           "full": the probe succeeds, and registrations fail with ENOMEM
 *   HAUL_DMABUF_NIC_REPORT  a file; each program that registered memory appends a line when it
 *                           ends: "NAME probes=N registered=N ended=N refused=N violations=N" */
#ifndef HAUL_TESTS_DMABUF_NIC_H
#define HAUL_TESTS_DMABUF_NIC_H

#include <stdatomic.h>

/* The test's counters, found by dlsym(3). */
struct dmabuf_nic {
  _Atomic unsigned probes;     /* successful probes with descriptor -1 */
  _Atomic unsigned registered; /* registrations */
  _Atomic unsigned ended;      /* deregistrations */
  _Atomic unsigned refused;    /* valid calls that failed */
  _Atomic unsigned violations; /* invalid calls, also reported on stderr */
};
extern struct dmabuf_nic dmabuf_nic;

#endif
