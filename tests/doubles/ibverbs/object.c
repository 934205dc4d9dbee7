/* SPDX-License-Identifier: MIT
 * Objects of a device: protection domains, registrations, completion queues, shared receive queues,
 * queue pairs. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "inside.h"
#include "transitions.h"

static struct double_device *device_of(struct ibv_context *context) {
  return double_context_of(context)->device;
}

static void *fail(int system) {
  errno = system;
  return NULL;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct double_context *whole = double_context_of(context);
  if (whole->device->errors.pd)
    return fail(whole->device->errors.pd);
  struct pd *pd = calloc(1, sizeof *pd);
  pd->mark = LIVE;
  pd->seen.context = context;
  whole->pds++;
  ibverbs_double.live.pds++;
  return &pd->seen;
}

static struct pd *pd_of(struct ibv_pd *seen) {
  struct pd *pd = (struct pd *)seen;
  DEMAND(pd && pd->mark == LIVE);
  return pd;
}

int ibv_dealloc_pd(struct ibv_pd *seen) {
  struct pd *pd = pd_of(seen);
  if (pd->users > 0)
    return EBUSY;
  double_context_of(seen->context)->pds--;
  ibverbs_double.live.pds--;
  pd->mark = FREED;
  free(pd);
  return 0;
}

#define KNOWN                                                                                      \
  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                     \
   IBV_ACCESS_REMOTE_ATOMIC)
#define NEED_LOCAL (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

static bool is_access(unsigned access) {
  return (access & ~(unsigned)KNOWN) == 0 &&
         ((access & NEED_LOCAL) == 0 || (access & IBV_ACCESS_LOCAL_WRITE));
}

static struct ibv_mr *registered(struct pd *pd, const struct registration *wanted) {
  struct double_device *device = device_of(pd->seen.context);
  uintptr_t end;
  if (device->errors.registration)
    return fail(device->errors.registration);
  if (wanted->seen.length == 0 || wanted->seen.length > device->limits.max_mr_size ||
      !is_access(wanted->access) ||
      __builtin_add_overflow((uintptr_t)wanted->seen.addr, wanted->seen.length, &end))
    return fail(EINVAL);
  struct registration *registration = calloc(1, sizeof *registration);
  *registration = *wanted;
  registration->mark = LIVE;
  registration->seen.context = pd->seen.context;
  registration->seen.pd = &pd->seen;
  int system = emulator_begin_registration(registration);
  if (system) {
    free(registration);
    return fail(system);
  }
  pd->users++;
  ibverbs_double.live.registrations++;
  return &registration->seen;
}

/* As on an old kernel: optional flags fail here, and are dropped below. */
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
  return registered(pd_of(pd), &(struct registration){.seen = {.addr = address, .length = length},
                                                      .iova = (uintptr_t)address,
                                                      .access = (unsigned)access,
                                                      .dmabuf = -1});
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned access) {
  if ((iova ^ (uintptr_t)address) % 4096 != 0)
    return fail(EINVAL);
  return registered(pd_of(pd),
                    &(struct registration){.seen = {.addr = address, .length = length},
                                           .iova = iova,
                                           .access = access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE,
                                           .dmabuf = -1});
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access) {
  struct pd *whole = pd_of(pd);
  if (!device_of(pd->context)->dmabuf)
    return fail(EOPNOTSUPP);
  if ((iova ^ offset) % 4096 != 0)
    return fail(EINVAL);
  if (fd < 0)
    return fail(EBADF);
  return registered(whole, &(struct registration){
                               .seen = {.addr = (void *)(uintptr_t)iova, .length = length},
                               .iova = iova,
                               .access = (unsigned)access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE,
                               .dmabuf = fd,
                               .offset = offset});
}

int ibv_dereg_mr(struct ibv_mr *seen) {
  struct registration *registration = (struct registration *)seen;
  DEMAND(registration && registration->mark == LIVE);
  emulator_end_registration(registration);
  pd_of(seen->pd)->users--;
  ibverbs_double.live.registrations--;
  registration->mark = FREED;
  free(registration);
  return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  struct double_context *whole = double_context_of(context);
  if (whole->device->errors.channel)
    return fail(whole->device->errors.channel);
  struct channel *channel = calloc(1, sizeof *channel);
  channel->mark = LIVE;
  channel->seen.context = context;
  channel->seen.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  int system = emulator_begin_channel(channel);
  if (system) {
    close(channel->seen.fd);
    free(channel);
    return fail(system);
  }
  whole->channels++;
  ibverbs_double.live.channels++;
  return &channel->seen;
}

struct channel *double_channel_of(struct ibv_comp_channel *seen) {
  struct channel *channel = (struct channel *)seen;
  DEMAND(channel && channel->mark == LIVE);
  return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *seen) {
  struct channel *channel = double_channel_of(seen);
  if (channel->cqs > 0)
    return EBUSY;
  emulator_end_channel(channel);
  close(seen->fd);
  double_context_of(seen->context)->channels--;
  ibverbs_double.live.channels--;
  channel->mark = FREED;
  free(channel);
  return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *user,
                             struct ibv_comp_channel *channel, int vector) {
  struct double_context *whole = double_context_of(context);
  if (whole->device->errors.cq)
    return fail(whole->device->errors.cq);
  if (cqe < 1 || cqe > whole->device->limits.max_cqe || vector < 0 ||
      vector >= context->num_comp_vectors)
    return fail(EINVAL);
  struct cq *cq = calloc(1, sizeof *cq);
  cq->mark = LIVE;
  cq->seen.context = context;
  cq->seen.channel = channel;
  cq->seen.cq_context = user;
  cq->seen.cqe = cqe;
  int system = emulator_begin_cq(cq);
  if (system) {
    free(cq);
    return fail(system);
  }
  if (channel)
    double_channel_of(channel)->cqs++;
  whole->cqs++;
  ibverbs_double.live.cqs++;
  return &cq->seen;
}

struct cq *double_cq_of(struct ibv_cq *seen) {
  struct cq *cq = (struct cq *)seen;
  DEMAND(cq && cq->mark == LIVE);
  return cq;
}

int ibv_destroy_cq(struct ibv_cq *seen) {
  struct cq *cq = double_cq_of(seen);
  if (cq->qps > 0)
    return EBUSY;
  emulator_end_cq(cq);
  if (seen->channel)
    double_channel_of(seen->channel)->cqs--;
  double_context_of(seen->context)->cqs--;
  ibverbs_double.live.cqs--;
  cq->mark = FREED;
  free(cq);
  return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *wanted) {
  struct pd *whole = pd_of(pd);
  const struct double_device *device = device_of(pd->context);
  if (device->errors.srq)
    return fail(device->errors.srq);
  if (device->limits.max_srq == 0)
    return fail(EOPNOTSUPP);
  if (wanted->attr.max_wr < 1 || wanted->attr.max_wr > (unsigned)device->limits.max_srq_wr ||
      wanted->attr.max_sge > (unsigned)device->limits.max_srq_sge)
    return fail(EINVAL);
  struct srq *srq = calloc(1, sizeof *srq);
  srq->mark = LIVE;
  srq->seen.context = pd->context;
  srq->seen.srq_context = wanted->srq_context;
  srq->seen.pd = pd;
  srq->size = wanted->attr;
  int system = emulator_begin_srq(srq);
  if (system) {
    free(srq);
    return fail(system);
  }
  whole->users++;
  ibverbs_double.live.srqs++;
  return &srq->seen;
}

struct srq *double_srq_of(struct ibv_srq *seen) {
  struct srq *srq = (struct srq *)seen;
  DEMAND(srq && srq->mark == LIVE);
  return srq;
}

int ibv_destroy_srq(struct ibv_srq *seen) {
  struct srq *srq = double_srq_of(seen);
  if (srq->qps > 0)
    return EBUSY;
  emulator_end_srq(srq);
  pd_of(seen->pd)->users--;
  ibverbs_double.live.srqs--;
  srq->mark = FREED;
  free(srq);
  return 0;
}

static bool fits(const struct double_device *device, const struct ibv_qp_cap *cap) {
  const struct ibv_device_attr *limits = &device->limits;
  return cap->max_send_wr <= (unsigned)limits->max_qp_wr &&
         cap->max_recv_wr <= (unsigned)limits->max_qp_wr &&
         cap->max_send_sge <= (unsigned)limits->max_sge &&
         cap->max_recv_sge <= (unsigned)limits->max_sge &&
         cap->max_inline_data <= device->inline_bytes;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted) {
  struct pd *whole = pd_of(pd);
  struct double_device *device = device_of(pd->context);
  if (device->errors.qp)
    return fail(device->errors.qp);
  if (wanted->qp_type != IBV_QPT_RC || !wanted->send_cq || !wanted->recv_cq ||
      !fits(device, &wanted->cap))
    return fail(EINVAL);
  struct qp *qp = calloc(1, sizeof *qp);
  qp->mark = LIVE;
  qp->first = *wanted;
  qp->seen.context = pd->context;
  qp->seen.qp_context = wanted->qp_context;
  qp->seen.pd = pd;
  qp->seen.send_cq = wanted->send_cq;
  qp->seen.recv_cq = wanted->recv_cq;
  qp->seen.srq = wanted->srq;
  qp->seen.qp_type = wanted->qp_type;
  int system = emulator_begin_qp(qp);
  if (system) {
    free(qp);
    return fail(system);
  }
  double_cq_of(wanted->send_cq)->qps++;
  double_cq_of(wanted->recv_cq)->qps++;
  if (wanted->srq)
    double_srq_of(wanted->srq)->qps++;
  whole->users++;
  ibverbs_double.live.qps++;
  return &qp->seen;
}

struct qp *double_qp_of(struct ibv_qp *seen) {
  struct qp *qp = (struct qp *)seen;
  DEMAND(qp && qp->mark == LIVE);
  return qp;
}

int ibv_destroy_qp(struct ibv_qp *seen) {
  struct qp *qp = double_qp_of(seen);
  emulator_end_qp(qp);
  double_cq_of(seen->send_cq)->qps--;
  double_cq_of(seen->recv_cq)->qps--;
  if (seen->srq)
    double_srq_of(seen->srq)->qps--;
  pd_of(seen->pd)->users--;
  ibverbs_double.live.qps--;
  qp->mark = FREED;
  free(qp);
  return 0;
}

/* Whether the address is of the port's kind. */
static bool is_route(const struct qp *qp, const struct ibv_ah_attr *to) {
  struct double_device *device = device_of(qp->seen.context);
  const struct double_port *port = &device->port[qp->attributes.port_num - 1];
  if (to->port_num != qp->attributes.port_num || to->sl > 15)
    return false;
  if (port->link_layer != IBV_LINK_LAYER_ETHERNET && !to->is_global)
    return to->dlid != 0;
  return to->is_global && double_has_gid(port, to->grh.sgid_index) && to->grh.hop_limit > 0;
}

static bool are_values(const struct qp *qp, const struct ibv_qp_attr *wanted, int mask) {
  struct double_device *device = device_of(qp->seen.context);
  const struct ibv_device_attr *limits = &device->limits;
  if ((mask & IBV_QP_PORT) && (wanted->port_num < 1 || wanted->port_num > device->ports))
    return false;
  if ((mask & IBV_QP_PKEY_INDEX) &&
      (wanted->pkey_index >= DOUBLE_PKEYS ||
       double_pkey(&device->port[wanted->port_num - 1], wanted->pkey_index) == 0))
    return false;
  if ((mask & IBV_QP_AV) && !is_route(qp, &wanted->ah_attr))
    return false;
  if ((mask & IBV_QP_PATH_MTU) &&
      (wanted->path_mtu < IBV_MTU_256 ||
       wanted->path_mtu > device->port[qp->attributes.port_num - 1].mtu))
    return false;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && wanted->max_rd_atomic > limits->max_qp_init_rd_atom)
    return false;
  return !(mask & IBV_QP_MAX_DEST_RD_ATOMIC) ||
         wanted->max_dest_rd_atomic <= limits->max_qp_rd_atom;
}

static void note_connected(const struct qp *qp) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  ibverbs_double.connected = qp->attributes;
  device_of(qp->seen.context)->to = qp->attributes.ah_attr;
  pthread_mutex_unlock(&lock);
}

int ibv_modify_qp(struct ibv_qp *seen, struct ibv_qp_attr *wanted, int mask) {
  struct qp *qp = double_qp_of(seen);
  if (!(mask & IBV_QP_STATE))
    return EINVAL;
  int least = attributes_needed(emulator_state(qp), wanted->qp_state);
  if (least < 0 || (mask & least) != least || !are_values(qp, wanted, mask))
    return EINVAL;
  attributes_take(&qp->attributes, wanted, mask);
  int system = emulator_to_state(qp, wanted->qp_state);
  if (system == 0)
    seen->state = wanted->qp_state;
  if (system == 0 && wanted->qp_state == IBV_QPS_RTS)
    note_connected(qp);
  return system;
}

int ibv_query_qp(struct ibv_qp *seen, struct ibv_qp_attr *attributes, int mask,
                 struct ibv_qp_init_attr *first) {
  struct qp *qp = double_qp_of(seen);
  (void)mask;
  *attributes = qp->attributes;
  attributes->qp_state = attributes->cur_qp_state = emulator_state(qp);
  attributes->cap = qp->first.cap;
  *first = qp->first;
  return 0;
}
