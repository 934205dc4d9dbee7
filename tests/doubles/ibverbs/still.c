/* SPDX-License-Identifier: MIT
 * The mock's hooks: numbers for its objects, and neither completions nor events. */
#include <errno.h>

#include "inside.h"

int emulator_begin_context(struct double_context *context) {
  (void)context;
  return 0;
}

void emulator_end_context(struct double_context *context) {
  (void)context;
}

int emulator_begin_registration(struct registration *registration) {
  static _Atomic uint32_t next = 0x1000;
  registration->seen.lkey = next++;
  registration->seen.rkey = next++;
  return 0;
}

void emulator_end_registration(struct registration *registration) {
  (void)registration;
}

int emulator_begin_channel(struct channel *channel) {
  (void)channel;
  return 0;
}

void emulator_end_channel(struct channel *channel) {
  (void)channel;
}

int emulator_begin_cq(struct cq *cq) {
  (void)cq;
  return 0;
}

void emulator_end_cq(struct cq *cq) {
  (void)cq;
}

int emulator_begin_srq(struct srq *srq) {
  (void)srq;
  return 0;
}

void emulator_end_srq(struct srq *srq) {
  (void)srq;
}

int emulator_begin_qp(struct qp *qp) {
  static _Atomic uint32_t next = 0x100;
  qp->seen.qp_num = next++;
  return 0;
}

void emulator_end_qp(struct qp *qp) {
  (void)qp;
}

enum ibv_qp_state emulator_state(const struct qp *qp) {
  return qp->seen.state;
}

int emulator_to_state(struct qp *qp, enum ibv_qp_state state) {
  (void)qp;
  (void)state;
  return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user) {
  (void)cq;
  (void)user;
  double_channel_of(channel);
  errno = EAGAIN;
  return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) {
  double_cq_of(cq);
  DEMAND(count == 0); /* none was delivered */
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  (void)event;
  double_context_of(context);
  errno = EAGAIN;
  return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) {
  DEMAND(!event); /* none was delivered */
}
