/* SPDX-License-Identifier: MIT
 * One work request: the peer, access checks, and the copy, in parts of 256 KiB. Each part is
 * checked again, as a NIC checks each packet. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "moving.h"

#define PIECE (256u << 10)

/* The bytes of one side. */
struct side {
  pid_t pid;
  uint64_t pd;
  unsigned need;        /* rights at its registrations */
  uint8_t *raw;         /* inline bytes, in place of `place` */
  struct ibv_sge place; /* advanced as its bytes are moved */
};

/* No failure of the transfer: the host forbids access to another process's memory. */
static _Noreturn void refused_by_host(int system) {
  printf("skipped all: this host does not let processes of one user copy to each other's memory: "
         "%s\n",
         strerror(system));
  fflush(stdout);
  _exit(77);
}

static bool is_mapped(uint64_t address, uint64_t length) {
  unsigned char in_core[PIECE / 4096 + 2];
  uint64_t from = address & ~UINT64_C(4095);
  return mincore((void *)(uintptr_t)from, address + length - from, in_core) == 0;
}

/* A real registration keeps its pages alive after an unmap. Here that fails, so that tests notice
 * an unmap under way. */
static enum ibv_wc_status copy_across(pid_t pid, bool out, uint64_t here, uint64_t there,
                                      uint32_t length) {
  struct iovec own = {(void *)(uintptr_t)here, length};
  struct iovec other = {(void *)(uintptr_t)there, length};
  ssize_t moved = out ? process_vm_writev(pid, &own, 1, &other, 1, 0)
                      : process_vm_readv(pid, &own, 1, &other, 1, 0);
  if (moved == (ssize_t)length)
    return IBV_WC_SUCCESS;
  if (moved < 0 && (errno == EPERM || errno == ENOSYS))
    refused_by_host(errno);
  if (moved < 0 && errno == ESRCH)
    return IBV_WC_RETRY_EXC_ERR;
  return is_mapped(here, length) ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_PROT_ERR;
}

/* In address order, against deadlock. */
static void lock_both(struct fabric_mr *one, struct fabric_mr *other) {
  struct fabric_mr *first = one < other ? one : other, *second = one < other ? other : one;
  if (first)
    fabric_lock(&first->lock);
  if (second && second != first)
    fabric_lock(&second->lock);
}

static void unlock_both(struct fabric_mr *one, struct fabric_mr *other) {
  if (one)
    fabric_unlock(&one->lock);
  if (other && other != one)
    fabric_unlock(&other->lock);
}

/* With the registration's lock: the address of the side's next bytes, or 0 without access. */
static uint64_t locate(const struct side *side, const struct fabric_mr *mr, uint32_t length) {
  if (side->raw)
    return (uintptr_t)side->raw;
  uint64_t at = side->place.addr;
  if (!mr || atomic_load(&mr->pid) != side->pid || mr->key != side->place.lkey ||
      mr->pd != side->pd || (mr->access & side->need) != side->need)
    return 0;
  if (at < mr->iova || length > mr->length || at - mr->iova > mr->length - length)
    return 0;
  return mr->address + (at - mr->iova);
}

static struct fabric_mr *mr_of(const struct side *side) {
  return side->raw ? NULL : fabric_mr_of(side->place.lkey);
}

static enum ibv_wc_status copy_piece(const struct side *here, const struct side *there,
                                     uint32_t length, bool out) {
  struct fabric_mr *own = mr_of(here), *other = mr_of(there);
  enum ibv_wc_status status;
  lock_both(own, other);
  uint64_t from = locate(here, own, length), to = locate(there, other, length);
  if (!from)
    status = IBV_WC_LOC_PROT_ERR;
  else if (!to)
    status = IBV_WC_REM_ACCESS_ERR;
  else
    status = copy_across(there->pid, out, from, to, length);
  unlock_both(own, other);
  return status;
}

/* With the peer's lock. Packets leave an InfiniBand subnet with a global header only. */
static bool is_reachable(const struct sender *sender, const struct fabric_qp *peer) {
  const struct ibv_ah_attr *to = &sender->qp->attributes.ah_attr;
  const uint8_t *named = to->grh.dgid.raw, *own = sender->slot->gid;
  if (peer->infiniband != sender->slot->infiniband)
    return false;
  if (peer->infiniband)
    return to->dlid == peer->lid && memcmp(peer->gid, to->is_global ? named : own, 8) == 0;
  return memcmp(named, peer->gid, sizeof peer->gid) == 0 && is_delivered(own, named);
}

/* The peer's queue pair, locked; NULL: it does not acknowledge. */
static struct fabric_qp *lock_peer(const struct sender *sender) {
  uint32_t number = sender->qp->attributes.dest_qp_num;
  struct fabric_qp *to = fabric_qp_of(number);
  fabric_lock(&to->lock);
  int state = atomic_load(&to->state);
  if (!fault_cut() && is_reachable(sender, to) && atomic_load(&to->pid) != 0 &&
      atomic_load(&to->number) == number && (state == IBV_QPS_RTR || state == IBV_QPS_RTS) &&
      to->peer == sender->qp->seen.qp_num && to->packet_in == sender->qp->attributes.sq_psn)
    return to;
  fabric_unlock(&to->lock);
  return NULL;
}

static bool can_continue(const struct sender *sender) {
  return !atomic_load(&sender->stopping) && removal() == PRESENT &&
         atomic_load(&sender->slot->state) == IBV_QPS_RTS;
}

/* With the peer's lock. A refused request brings the peer's queue pair to error too. */
static enum ibv_wc_status fail_if_refused(struct fabric_qp *to, enum ibv_wc_status status) {
  if (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
      status == IBV_WC_REM_OP_ERR)
    qp_fail(to, true);
  return status;
}

static void advance(struct side *side, uint32_t length) {
  if (side->raw)
    side->raw += length;
  else
    side->place.addr += length;
}

/* Moves the bytes between both sides. `rights`: required of the peer's queue pair. */
static enum ibv_wc_status move_bytes(struct sender *sender, struct side *here, struct side *there,
                                     uint32_t length, bool out, unsigned rights) {
  enum ibv_wc_status status = IBV_WC_SUCCESS;
  while (length > 0 && status == IBV_WC_SUCCESS) {
    uint32_t piece = length < PIECE ? length : PIECE;
    if (!can_continue(sender))
      return IBV_WC_WR_FLUSH_ERR;
    struct fabric_qp *to = lock_peer(sender);
    if (!to)
      return IBV_WC_RETRY_EXC_ERR;
    status = (to->access & rights) != rights ? IBV_WC_REM_INV_REQ_ERR
                                             : copy_piece(here, there, piece, out);
    fail_if_refused(to, status);
    fabric_unlock(&to->lock);
    advance(here, piece);
    advance(there, piece);
    length -= piece;
    if (!qp_pause(sender, fault_slow()))
      return IBV_WC_WR_FLUSH_ERR; /* it failed meanwhile, or is about to end */
  }
  return status;
}

static struct side own_side(const struct sender *sender, struct request *request, unsigned need) {
  return (struct side){.pid = getpid(),
                       .pd = (uintptr_t)sender->qp->seen.pd,
                       .need = need,
                       .raw = request->is_inline ? request->inlined : NULL,
                       .place = request->place};
}

static enum ibv_wc_status write_or_read(struct sender *sender, struct request *request, bool out) {
  unsigned rights = out ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
  struct fabric_qp *to = lock_peer(sender);
  if (!to)
    return IBV_WC_RETRY_EXC_ERR;
  struct side here = own_side(sender, request, out ? 0 : IBV_ACCESS_LOCAL_WRITE);
  struct side there = {.pid = atomic_load(&to->pid),
                       .pd = to->pd,
                       .need = rights,
                       .place = {request->remote, request->length, request->key}};
  fabric_unlock(&to->lock);
  if (!out && sender->qp->attributes.max_rd_atomic == 0)
    return IBV_WC_LOC_QP_OP_ERR;
  return move_bytes(sender, &here, &there, request->length, out, rights);
}

/* Completes the peer's first receive with this status. */
static void consume_receive(const struct sender *sender, const struct request *request,
                            struct fabric_qp *to, enum ibv_wc_status status) {
  bool write = request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  to->arrival[to->arrivals++ % FABRIC_DEPTH] = (struct ibv_wc){
      .wr_id = to->receive[to->received++ % FABRIC_DEPTH].id,
      .status = status,
      .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
      .byte_len = request->length,
      .imm_data = request->immediate,
      .qp_num = atomic_load(&to->number),
      .src_qp = sender->qp->seen.qp_num,
      .wc_flags = write ? IBV_WC_WITH_IMM : 0,
  };
  fabric_ring(to);
}

/* The peer's queue pair with a receive, locked; else NULL with the status. */
static struct fabric_qp *lock_peer_with_receive(const struct sender *sender,
                                                enum ibv_wc_status *status, unsigned *timer) {
  struct fabric_qp *to = lock_peer(sender);
  *status = IBV_WC_RETRY_EXC_ERR;
  if (!to || to->received != to->receives || (to->srq && srq_take(to)))
    return to;
  *status = IBV_WC_RNR_RETRY_EXC_ERR;
  *timer = to->not_ready_timer;
  atomic_fetch_add(&ibverbs_double_not_ready, 1);
  fabric_unlock(&to->lock);
  return NULL;
}

static enum ibv_wc_status complete_receive(struct sender *sender, struct request *request,
                                           unsigned *timer) {
  enum ibv_wc_status status;
  struct fabric_qp *to = lock_peer_with_receive(sender, &status, timer);
  if (!to)
    return status;
  consume_receive(sender, request, to, IBV_WC_SUCCESS);
  fabric_unlock(&to->lock);
  return IBV_WC_SUCCESS;
}

/* The message exceeds the receive: an error for both sides. */
static enum ibv_wc_status fail_receive(struct sender *sender, struct request *request,
                                       enum ibv_wc_status theirs, enum ibv_wc_status ours) {
  struct fabric_qp *to = lock_peer(sender);
  if (!to)
    return IBV_WC_RETRY_EXC_ERR;
  consume_receive(sender, request, to, theirs);
  fail_if_refused(to, ours);
  fabric_unlock(&to->lock);
  return ours;
}

static enum ibv_wc_status send_message(struct sender *sender, struct request *request,
                                       unsigned *timer) {
  enum ibv_wc_status status;
  struct fabric_qp *to = lock_peer_with_receive(sender, &status, timer);
  if (!to)
    return status;
  struct fabric_receive receive = to->receive[to->received % FABRIC_DEPTH];
  struct side here = own_side(sender, request, 0);
  struct side there = {.pid = atomic_load(&to->pid),
                       .pd = to->pd,
                       .need = IBV_ACCESS_LOCAL_WRITE,
                       .place = receive.place};
  fabric_unlock(&to->lock);
  if (receive.place.length < request->length)
    return fail_receive(sender, request, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
  status = move_bytes(sender, &here, &there, request->length, true, 0);
  if (status == IBV_WC_REM_ACCESS_ERR)
    return IBV_WC_REM_OP_ERR;
  return status ? status : complete_receive(sender, request, timer);
}

static enum ibv_wc_status execute_atomic(const struct request *request, const struct side *there,
                                         const struct fabric_mr *mr, void *result) {
  uint64_t place = locate(there, mr, 8), old, changed;
  if (!place)
    return IBV_WC_REM_ACCESS_ERR;
  enum ibv_wc_status status = copy_across(there->pid, false, (uintptr_t)&old, place, 8);
  bool swap = request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  if (status || (swap && old != request->compare_add)) {
    memcpy(result, &old, status ? 0 : 8);
    return status;
  }
  changed = swap ? request->swap : old + request->compare_add;
  memcpy(result, &old, 8);
  return copy_across(there->pid, true, (uintptr_t)&changed, place, 8);
}

static enum ibv_wc_status locked_atomic(const struct request *request, const struct side *there,
                                        const struct fabric_mr *mr, void *result) {
  fabric_lock(fabric_atomics());
  enum ibv_wc_status status = execute_atomic(request, there, mr, result);
  fabric_unlock(fabric_atomics());
  return status;
}

static enum ibv_wc_status start_atomic(struct sender *sender, struct request *request) {
  struct fabric_qp *to = lock_peer(sender);
  if (!to)
    return IBV_WC_RETRY_EXC_ERR;
  struct side here = own_side(sender, request, IBV_ACCESS_LOCAL_WRITE);
  struct side there = {.pid = atomic_load(&to->pid),
                       .pd = to->pd,
                       .need = IBV_ACCESS_REMOTE_ATOMIC,
                       .place = {request->remote, 8, request->key}};
  struct fabric_mr *own = mr_of(&here), *other = mr_of(&there);
  enum ibv_wc_status status = IBV_WC_LOC_PROT_ERR;
  if (sender->qp->attributes.max_rd_atomic == 0) {
    fabric_unlock(&to->lock);
    return IBV_WC_LOC_QP_OP_ERR;
  }
  lock_both(own, other);
  uint64_t result = own ? locate(&here, own, 8) : 0;
  bool allowed = to->access & IBV_ACCESS_REMOTE_ATOMIC && to->reads_served > 0;
  if (result && (request->remote % 8 || !allowed))
    status = IBV_WC_REM_INV_REQ_ERR;
  else if (result)
    status = locked_atomic(request, &there, other, (void *)(uintptr_t)result);
  unlock_both(own, other);
  fail_if_refused(to, status);
  fabric_unlock(&to->lock);
  return status;
}

static enum ibv_wc_status attempt(struct sender *sender, struct request *request, unsigned *timer) {
  enum ibv_wc_status status;
  if (!can_continue(sender))
    return IBV_WC_WR_FLUSH_ERR;
  switch (request->opcode) {
  case IBV_WR_RDMA_WRITE:
    return write_or_read(sender, request, true);
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    status = write_or_read(sender, request, true);
    return status ? status : complete_receive(sender, request, timer);
  case IBV_WR_RDMA_READ:
    return write_or_read(sender, request, false);
  case IBV_WR_SEND:
    return send_message(sender, request, timer);
  default:
    return start_atomic(sender, request);
  }
}

/* Codes of the InfiniBand specification: 4.096 us times a power of two; and an approximation of its
 * table. */
static int64_t answer_ns(unsigned timeout) {
  return INT64_C(4096) << timeout;
}

static int64_t not_ready_ns(unsigned timer) {
  if (timer == 0)
    return 655360000;
  return timer % 2 ? INT64_C(15000) << timer / 2 : INT64_C(10000) << timer / 2;
}

enum ibv_wc_status move_request(struct sender *sender, struct request *request) {
  const struct ibv_qp_attr *attributes = &sender->qp->attributes;
  unsigned outstanding = 0, not_ready = 0, timer = 0;
  if (request->fault)
    return qp_pause(sender, answer_ns(attributes->timeout)) ? (enum ibv_wc_status)request->fault
                                                            : IBV_WC_WR_FLUSH_ERR;
  for (;;) {
    enum ibv_wc_status status = attempt(sender, request, &timer);
    int64_t wait;
    if (status == IBV_WC_RETRY_EXC_ERR)
      wait = answer_ns(attributes->timeout);
    else if (status == IBV_WC_RNR_RETRY_EXC_ERR)
      wait = not_ready_ns(timer);
    else
      return status;
    if (!qp_pause(sender, wait))
      return IBV_WC_WR_FLUSH_ERR;
    if (status == IBV_WC_RETRY_EXC_ERR && outstanding++ == attributes->retry_cnt)
      return status;
    if (status == IBV_WC_RNR_RETRY_EXC_ERR && attributes->rnr_retry != 7 &&
        not_ready++ == attributes->rnr_retry)
      return status;
  }
}
