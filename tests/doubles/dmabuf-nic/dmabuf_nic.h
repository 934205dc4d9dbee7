/* SPDX-License-Identifier: MIT
 * A NIC that takes dma-bufs, where there is none: Soft-RoCE cannot register one.
 *
 * Preloaded (LD_PRELOAD) into a program, it answers ibv_reg_dmabuf_mr in place of libibverbs.
 * Whatever asks dlsym(3) for that name, of whichever library, gets the one here; all else is the
 * real library's, with its real providers. So it needs no place in the loader's search path, and
 * providers, which want the real library's private symbols, still find these.
 *
 * It checks what the kernel and its drivers check, with their errno, and then registers the same
 * pages at the real device. Of a dma-buf's own mapping no pages can be pinned; but behind a udmabuf
 * there is a memfd, and of that one they can. So it watches UDMABUF_CREATE, and a dma-buf that
 * another process made, or another exporter, is out of its reach: EOPNOTSUPP.
 *
 * From the environment:
 *   HAUL_DMABUF_NIC         "off": as a NIC or kernel without dma-bufs, all is EOPNOTSUPP;
 *                           "full": the probe succeeds, and every registration is ENOMEM
 *   HAUL_DMABUF_NIC_REPORT  a file; each program that registered anything appends one line at its
 *                           end: "NAME probes=N registered=N ended=N refused=N violations=N" */
#ifndef HAUL_TESTS_DMABUF_NIC_H
#define HAUL_TESTS_DMABUF_NIC_H

#include <stdatomic.h>

/* The test's door: found by dlsym(3) under this name. */
struct dmabuf_nic {
  _Atomic unsigned probes;     /* descriptor -1: asked whether dma-bufs are taken, with success */
  _Atomic unsigned registered; /* registrations made */
  _Atomic unsigned ended;      /* and ended */
  _Atomic unsigned refused;    /* with no fault of the caller's */
  _Atomic unsigned violations; /* refused, as the call was wrong; each is told on stderr as well */
};
extern struct dmabuf_nic dmabuf_nic;

#endif
