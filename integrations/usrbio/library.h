/* SPDX-License-Identifier: MIT
 * libhaul: only device memory needs it, so it is opened at the first call that does. */
#ifndef HAUL_USRBIO_LIBRARY_H
#define HAUL_USRBIO_LIBRARY_H

#include <haul/haul.h>

#define LIBRARY_CALLS(call)                                                                        \
  call(haul_node_open) call(haul_device_list) call(haul_region_alloc) call(haul_region_wrap)       \
      call(haul_region_import) call(haul_region_export) call(haul_region_copy)                     \
          call(haul_region_release) call(haul_region_address) call(haul_region_length)             \
              call(haul_region_place) call(haul_deadline_in)

struct library {
#define LIBRARY_SLOT(name) __typeof__(&(name)) name;
  LIBRARY_CALLS(LIBRARY_SLOT)
#undef LIBRARY_SLOT
  haul_node *node; /* stays open until the process ends */
};

/* NULL: it is not installed, opens no node, or was opened by the parent of this process. */
const struct library *library_get(void);
/* A code of libhaul as 0 or a negative errno value. */
int library_errno(int code);

#endif
