/* SPDX-License-Identifier: MIT
 * The transitions of a queue pair, for the double and for the simulator's model. */
#ifndef HAUL_TESTS_IBVERBS_TRANSITIONS_H
#define HAUL_TESTS_IBVERBS_TRANSITIONS_H

#include <infiniband/verbs.h>

/* Attributes that each transition of a reliable connection needs (ibv_modify_qp(3)); -1:
 * there is no such transition. */
static inline int attributes_needed(enum ibv_qp_state from, enum ibv_qp_state to) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
    return IBV_QP_STATE;
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
    return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
    return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
    return IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
           IBV_QP_MAX_QP_RD_ATOMIC;
  return -1;
}

static inline void attributes_take(struct ibv_qp_attr *into, const struct ibv_qp_attr *from,
                                   int mask) {
  if (mask & IBV_QP_PKEY_INDEX)
    into->pkey_index = from->pkey_index;
  if (mask & IBV_QP_PORT)
    into->port_num = from->port_num;
  if (mask & IBV_QP_ACCESS_FLAGS)
    into->qp_access_flags = from->qp_access_flags;
  if (mask & IBV_QP_AV)
    into->ah_attr = from->ah_attr;
  if (mask & IBV_QP_PATH_MTU)
    into->path_mtu = from->path_mtu;
  if (mask & IBV_QP_DEST_QPN)
    into->dest_qp_num = from->dest_qp_num;
  if (mask & IBV_QP_RQ_PSN)
    into->rq_psn = from->rq_psn;
  if (mask & IBV_QP_SQ_PSN)
    into->sq_psn = from->sq_psn;
  if (mask & IBV_QP_MIN_RNR_TIMER)
    into->min_rnr_timer = from->min_rnr_timer;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
    into->max_dest_rd_atomic = from->max_dest_rd_atomic;
  if (mask & IBV_QP_TIMEOUT)
    into->timeout = from->timeout;
  if (mask & IBV_QP_RETRY_CNT)
    into->retry_cnt = from->retry_cnt;
  if (mask & IBV_QP_RNR_RETRY)
    into->rnr_retry = from->rnr_retry;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
    into->max_rd_atomic = from->max_rd_atomic;
}

#endif
