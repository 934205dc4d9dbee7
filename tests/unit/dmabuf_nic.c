/* SPDX-License-Identifier: MIT
 * The mock of a NIC that takes dma-bufs, in front of a real device: it registers the memory behind
 * the dma-buf and refuses what the kernel refuses. */
#include "support/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "doubles/dmabuf-nic/dmabuf_nic.h"
#include "fabric/rdma/device.h"
#include "fabric/rdma/rail.h"
#include "memory/copy.h"
#include "memory/pages.h"
#include "support/copying.h"
#include "support/seams.h"

#define PAGES  16
#define LENGTH (PAGES * page_size())
#define BOTH   (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static struct {
  struct dmabuf_nic *seen;
  struct nics *nics;
  struct nic_rail rail;
  struct memory sim, host;
  int dmabuf;
} t;

static struct ibv_mr *register_it(uint64_t offset, size_t length, uint64_t iova, int descriptor,
                                  int access) {
  errno = 0;
  return t.rail.nic->verbs->reg_dmabuf_mr(t.rail.nic->pd, offset, length, iova, descriptor, access);
}

static struct ibv_mr *register_all(void) {
  return register_it(0, LENGTH, (uintptr_t)t.sim.address, t.dmabuf, BOTH);
}

static void end(struct ibv_mr *mr) {
  assert_int_equal(t.rail.nic->verbs->dereg_mr(mr), 0);
}

/* Refused with this errno, and counted as a violation. */
static void is_wrong(int system, uint64_t offset, size_t length, uint64_t iova, int descriptor,
                     int access) {
  unsigned before = t.seen->violations;
  assert_null(register_it(offset, length, iova, descriptor, access));
  assert_int_equal(errno, system);
  assert_int_equal(t.seen->violations, before + 1);
}

static void the_probe_succeeds(void **state) {
  (void)state;
  assert_int_equal(t.rail.nic->dmabuf, 0);
  assert_true(t.seen->probes > 0);
  assert_int_equal(t.seen->violations, 0);
}

static void mode_off_refuses(void **state) {
  (void)state;
  struct nics *nics;
  assert_int_equal(setenv("HAUL_DMABUF_NIC", "off", 1), 0);
  int code = nics_open(NULL, &nics);
  assert_null(register_all());
  int system = errno;
  unsetenv("HAUL_DMABUF_NIC");
  assert_works(code);
  assert_int_equal(nics->list[0].dmabuf, EOPNOTSUPP);
  assert_int_equal(system, EOPNOTSUPP);
  nics_close(nics);
}

static void mode_full_refuses(void **state) {
  (void)state;
  struct nics *nics;
  assert_int_equal(setenv("HAUL_DMABUF_NIC", "full", 1), 0);
  int code = nics_open(NULL, &nics);
  assert_null(register_all());
  int system = errno;
  unsetenv("HAUL_DMABUF_NIC");
  assert_works(code);
  assert_int_equal(nics->list[0].dmabuf, 0);
  assert_int_equal(system, ENOMEM);
  nics_close(nics);
}

static void wrong_calls_are_refused_and_counted(void **state) {
  (void)state;
  uint64_t iova = (uintptr_t)t.sim.address;
  int file = memfd_create("no dma-buf", MFD_CLOEXEC), closed = dup(file);
  close(closed);
  is_wrong(EINVAL, 0, LENGTH, iova + 8, t.dmabuf, BOTH);
  is_wrong(EINVAL, 8, 8, iova, t.dmabuf, BOTH);
  is_wrong(EINVAL, 0, LENGTH, iova, t.dmabuf, IBV_ACCESS_REMOTE_WRITE);
  is_wrong(EINVAL, 0, LENGTH, iova, t.dmabuf, IBV_ACCESS_REMOTE_ATOMIC);
  is_wrong(EINVAL, 0, LENGTH, iova, t.dmabuf, BOTH | IBV_ACCESS_ON_DEMAND);
  is_wrong(EBADF, 0, LENGTH, iova, closed, BOTH);
  is_wrong(EINVAL, 0, LENGTH, iova, file, BOTH);
  is_wrong(EINVAL, 0, 0, iova, t.dmabuf, BOTH);
  is_wrong(EINVAL, 0, LENGTH + 1, iova, t.dmabuf, BOTH);
  is_wrong(EINVAL, page_size(), LENGTH, iova, t.dmabuf, BOTH);
  is_wrong(EINVAL, UINT64_MAX - 4095, 2 * page_size(), iova, t.dmabuf, BOTH);
  is_wrong(EINVAL, 0, 2 * page_size(), UINT64_MAX - 4095, t.dmabuf, BOTH);
  close(file);
}

static void valid_calls_register_and_end(void **state) {
  (void)state;
  unsigned registered = t.seen->registered, ended = t.seen->ended, violations = t.seen->violations;
  unsigned descriptors = open_descriptors(), mappings = haul_mappings();
  static const int accesses[] = {0, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, BOTH,
                                 BOTH | IBV_ACCESS_RELAXED_ORDERING};
  for (size_t i = 0; i < COUNT(accesses); i++) {
    struct ibv_mr *mr = register_it(0, LENGTH, (uintptr_t)t.sim.address, t.dmabuf, accesses[i]);
    assert_non_null(mr);
    assert_int_equal(mr->length, LENGTH);
    end(mr);
  }
  assert_int_equal(t.seen->registered, registered + COUNT(accesses));
  assert_int_equal(t.seen->ended, ended + COUNT(accesses));
  assert_int_equal(t.seen->violations, violations);
  assert_int_equal(open_descriptors(), descriptors);
  assert_int_equal(haul_mappings(), mappings);
}

static void other_registrations_are_not_counted(void **state) {
  (void)state;
  unsigned registered = t.seen->registered, ended = t.seen->ended;
  struct ibv_mr *mr = t.rail.nic->verbs->reg_mr_iova2(
      t.rail.nic->pd, t.host.address, LENGTH, (uintptr_t)t.host.address, IBV_ACCESS_LOCAL_WRITE);
  assert_non_null(mr);
  end(mr);
  assert_int_equal(t.seen->registered, registered);
  assert_int_equal(t.seen->ended, ended);
}

/* One write from the host's memory; the completion's status. */
static enum ibv_wc_status write_to(struct rdma_rail *rail, const struct ibv_mr *from, uint64_t at,
                                   uint64_t to, uint32_t length, uint32_t key) {
  struct ibv_sge place = {(uintptr_t)t.host.address + at, length, from->lkey};
  struct ibv_send_wr *bad, request = {.sg_list = &place,
                                      .num_sge = 1,
                                      .opcode = IBV_WR_RDMA_WRITE,
                                      .send_flags = IBV_SEND_SIGNALED,
                                      .wr.rdma = {.remote_addr = to, .rkey = key}};
  struct ibv_wc completion;
  struct pollfd events = {rail->events->fd, POLLIN, 0};
  assert_int_equal(ibv_req_notify_cq(rail->cq, 0), 0);
  assert_int_equal(ibv_post_send(rail->qp, &request, &bad), 0);
  assert_int_equal(poll(&events, 1, 20000), 1);
  assert_int_equal(ibv_poll_cq(rail->cq, 1, &completion), 1);
  struct ibv_cq *queue;
  void *context;
  assert_int_equal(rail->device->nic->verbs->get_cq_event(rail->events, &queue, &context), 0);
  rail->device->nic->verbs->ack_cq_events(queue, 1);
  return completion.status;
}

static void check_sim(uint64_t offset, size_t length, uint64_t seed) {
  struct memory seen;
  assert_works(memory_alloc((struct haul_place){HAUL_HOST, 0}, length, 0, &seen));
  assert_works(copy_wait(&seen, 0, &t.sim, offset, length, HAUL_FOREVER));
  pattern_check(seen.view, length, seed);
  memory_free(&seen);
}

/* A queue pair writes to itself, into a part of the buffer registered at its sim address. */
static void a_write_arrives_in_the_memory_behind_the_dmabuf(void **state) {
  (void)state;
  struct nic nic = *t.rail.nic;
  struct rdma_device device = {.nic = &nic, .port = t.rail.port};
  struct rdma_rail rail = {.device = &device};
  uint64_t offset = 3 * page_size() + 24, length = 5 * page_size() + 100;
  uint64_t address = (uintptr_t)t.sim.address + offset;
  struct ibv_mr *from = t.rail.nic->verbs->reg_mr_iova2(
      t.rail.nic->pd, t.host.address, LENGTH, (uintptr_t)t.host.address, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_mr *to = register_it(offset, length, address, t.dmabuf, BOTH);
  assert_true(from && to);
  nic.limits.srq_wr = 0; /* a node alone shares receives */
  assert_works(rdma_rail_look(&rail));
  assert_works(rdma_rail_open(&rail));
  assert_works(rdma_rail_connect(&rail, &rail.end));
  pattern_fill(t.host.view, LENGTH, 5);
  assert_int_equal(write_to(&rail, from, 0, address, (uint32_t)length, to->rkey), IBV_WC_SUCCESS);
  check_sim(offset, length, 5);
  /* It is its own peer: the refusal may flush its request first. */
  enum ibv_wc_status outside = write_to(&rail, from, 0, address - 8, 8, to->rkey);
  assert_true(outside == IBV_WC_REM_ACCESS_ERR || outside == IBV_WC_WR_FLUSH_ERR);
  rdma_rail_close(&rail);
  end(to);
  end(from);
}

static int open_all(void **state) {
  (void)state;
  size_t count = 1;
  uint64_t offset;
  assert_works(providers_start());
  assert_works(nics_open(NULL, &t.nics));
  assert_works(nics_rank(t.nics, NULL, false, &t.rail, &count));
  assert_works(memory_alloc((struct haul_place){HAUL_SIM, 0}, LENGTH, 0, &t.sim));
  assert_works(memory_alloc((struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &t.host));
  assert_works(memory_dmabuf(&t.sim, &t.dmabuf, &offset));
  assert_int_equal(offset, 0);
  return 0;
}

static int close_all(void **state) {
  (void)state;
  close(t.dmabuf);
  memory_free(&t.host);
  memory_free(&t.sim);
  nics_close(t.nics);
  providers_stop();
  return 0;
}

/* Why the tests cannot run, or NULL. */
static const char *obstacle(void) {
  struct nics *nics;
  t.seen = dlsym(RTLD_DEFAULT, "dmabuf_nic");
  if (!t.seen)
    return "the mock is not preloaded";
  if (access("/dev/udmabuf", R_OK | W_OK) != 0)
    return "the kernel has no /dev/udmabuf";
  if (nics_open(NULL, &nics) != 0)
    return "there is no RDMA device";
  nics_close(nics);
  return NULL;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_probe_succeeds),
      cmocka_unit_test(mode_off_refuses),
      cmocka_unit_test(mode_full_refuses),
      cmocka_unit_test(wrong_calls_are_refused_and_counted),
      cmocka_unit_test(valid_calls_register_and_end),
      cmocka_unit_test(other_registrations_are_not_counted),
      cmocka_unit_test(a_write_arrives_in_the_memory_behind_the_dmabuf),
  };
  const char *why = obstacle();
  if (why) {
    printf("skipped the mock of a NIC for dma-bufs: %s\n", why);
    return 77;
  }
  return cmocka_run_group_tests_name("dmabuf-nic", tests, open_all, close_all);
}
