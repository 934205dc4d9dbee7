/* SPDX-License-Identifier: MIT
 * libhaul, which only buffers in device memory take: opened when one is asked for. */
#ifndef HAUL_USRBIO_LIBRARY_H
#define HAUL_USRBIO_LIBRARY_H

#include "haul/haul.h"

#define LIBRARY_CALLS(call)                                                                        \
  call(haul_node_open) call(haul_device_list) call(haul_region_alloc) call(haul_region_wrap)       \
      call(haul_region_import) call(haul_region_export) call(haul_region_release)                  \
          call(haul_region_address) call(haul_region_length) call(haul_region_place)

struct library {
#define LIBRARY_SLOT(name) __typeof__(&(name)) name;
  LIBRARY_CALLS(LIBRARY_SLOT)
#undef LIBRARY_SLOT
  haul_node *node; /* the process's, kept until it ends */
};

/* NULL: it is not there, or opens no node. In a forked child what the parent had is not used. */
const struct library *library_get(void);

/* The devices of the kind that is used: NVIDIA's where there are some, else Gaudi's. The emulated
 * accelerator where HAUL_USRBIO_DEVICES=sim says so, and never by itself. 0: the kind is unknown.
 */
int library_devices(uint16_t *kind);

#endif
