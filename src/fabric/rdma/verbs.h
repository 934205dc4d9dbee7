/* SPDX-License-Identifier: MIT
 * libibverbs, opened at run time (nic.c). haul does not link it; without it there is no RDMA path.
 *
 * Calls that <infiniband/verbs.h> defines as inline functions over a context's table (ibv_poll_cq,
 * ibv_post_send, ibv_req_notify_cq, …) are used directly. Symbols of the library are slots of this
 * table. ibv_query_port, ibv_reg_mr and ibv_query_gid_ex are macros or inline functions around
 * symbols in that header, so they must not be used. */
#ifndef HAUL_FABRIC_RDMA_VERBS_H
#define HAUL_FABRIC_RDMA_VERBS_H

#include <infiniband/verbs.h>

#include "core/library.h"

/* X(slot, symbol). Since rdma-core 32, according to libibverbs.map. */
#define VERBS_REQUIRED(X)                                                                          \
  X(fork_init, ibv_fork_init)                                                                      \
  X(get_device_list, ibv_get_device_list)                                                          \
  X(free_device_list, ibv_free_device_list)                                                        \
  X(get_device_name, ibv_get_device_name)                                                          \
  X(open_device, ibv_open_device)                                                                  \
  X(close_device, ibv_close_device)                                                                \
  X(query_device, ibv_query_device)                                                                \
  X(query_port_short, ibv_query_port)                                                              \
  X(query_gid, ibv_query_gid)                                                                      \
  X(query_pkey, ibv_query_pkey)                                                                    \
  X(query_gid_ex, _ibv_query_gid_ex)                                                               \
  X(get_async_event, ibv_get_async_event)                                                          \
  X(ack_async_event, ibv_ack_async_event)                                                          \
  X(alloc_pd, ibv_alloc_pd)                                                                        \
  X(dealloc_pd, ibv_dealloc_pd)                                                                    \
  X(reg_mr, ibv_reg_mr)                                                                            \
  X(reg_mr_iova2, ibv_reg_mr_iova2)                                                                \
  X(dereg_mr, ibv_dereg_mr)                                                                        \
  X(create_comp_channel, ibv_create_comp_channel)                                                  \
  X(destroy_comp_channel, ibv_destroy_comp_channel)                                                \
  X(create_cq, ibv_create_cq)                                                                      \
  X(destroy_cq, ibv_destroy_cq)                                                                    \
  X(get_cq_event, ibv_get_cq_event)                                                                \
  X(ack_cq_events, ibv_ack_cq_events)                                                              \
  X(create_srq, ibv_create_srq)                                                                    \
  X(destroy_srq, ibv_destroy_srq)                                                                  \
  X(create_qp, ibv_create_qp)                                                                      \
  X(modify_qp, ibv_modify_qp)                                                                      \
  X(query_qp, ibv_query_qp)                                                                        \
  X(destroy_qp, ibv_destroy_qp)                                                                    \
  X(wc_status_str, ibv_wc_status_str)

/* NULL in older libraries: since rdma-core 34 and 35. */
#define VERBS_OPTIONAL(X)                                                                          \
  X(reg_dmabuf_mr, ibv_reg_dmabuf_mr)                                                              \
  X(is_fork_initialized, ibv_is_fork_initialized)

/* Each slot has the contract of its symbol's man page. */
struct verbs {
#define VERBS_SLOT(slot, symbol) __typeof__(symbol) *slot;
  VERBS_REQUIRED(VERBS_SLOT)
  VERBS_OPTIONAL(VERBS_SLOT)
#undef VERBS_SLOT
};

/* Opens the library once; NULL with the detail where it is missing or too old. */
const struct verbs *verbs_open(void);

/* ibv_query_port over the table: 0 or an errno. */
int verbs_query_port(const struct verbs *verbs, struct ibv_context *context, unsigned port,
                     struct ibv_port_attr *attributes);

/* A seam for tests. */
extern struct library verbs_library;

#endif
