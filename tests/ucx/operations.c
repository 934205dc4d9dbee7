/* SPDX-License-Identifier: MIT
 * Put and get of gaudi_cpy and gaudi_dma: at and beyond each limit, outside the key, with failing
 * devices, several at a time, and from several threads. */
#include "rig.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (9 * MIB + 1)

static struct rig rig;
static struct target target;
static uint8_t *bytes, *back;

static int open_all(const char *transport) {
  bytes = malloc(LENGTH);
  back = malloc(LENGTH);
  rig_open(&rig, transport, "gaudi");
  assert_ok(rig_connect(&rig, NULL));
  rig_alloc(&rig, LENGTH, &target);
  pattern_fill(bytes, LENGTH, 1);
  memset(back, 0, LENGTH);
  return 0;
}

static int open_copy(void **state) {
  (void)state;
  return open_all("gaudi_cpy");
}

static int open_dma(void **state) {
  (void)state;
  return open_all("gaudi_dma");
}

static int close_all(void **state) {
  (void)state;
  rig_quiet(false);
  rig_free(&rig, &target);
  rig_close(&rig);
  free(bytes);
  free(back);
  return 0;
}

static uint64_t at(size_t offset) {
  return (uintptr_t)target.address + offset;
}

/* UCP packs and unpacks device memory by such operations, whatever the limit. */
static void short_of_any_length(void **state) {
  const unsigned sizes[] = {0, 1, 8, 63, 64, 65, 256, 257, 32 * KIB, 32 * KIB + 1, 5 * MIB};
  (void)state;
  assert_int_equal(rig.attributes.cap.put.max_short, UINT_MAX);
  assert_int_equal(rig.attributes.cap.get.max_short, UINT_MAX);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    memset(back, 0, LENGTH);
    assert_ok(uct_ep_put_short(rig.ep, bytes + i, sizes[i], at(100 * i), target.key.rkey));
    assert_ok(uct_ep_get_short(rig.ep, back, sizes[i], at(100 * i), target.key.rkey));
    assert_memory_equal(back, bytes + i, sizes[i]);
    assert_int_equal(back[sizes[i]], 0);
  }
}

static size_t pack(void *to, void *length) {
  memcpy(to, bytes, *(size_t *)length);
  return *(size_t *)length;
}

/* Returns a length beyond the limit, without a write. */
static size_t pack_too_much(void *to, void *length) {
  (void)to;
  return *(size_t *)length;
}

static void unpack(void *to, const void *from, size_t length) {
  memcpy(to, from, length);
}

static void buffered_up_to_the_limit(void **state) {
  const size_t sizes[] = {0, 1, 256, 257, 4096, 32 * KIB - 1, 32 * KIB};
  size_t more = 32 * KIB + 1;
  (void)state;
  assert_int_equal(rig.attributes.cap.get.max_bcopy, 32 * KIB);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    size_t length = sizes[i];
    memset(back, 0, more);
    assert_int_equal(uct_ep_put_bcopy(rig.ep, pack, &length, at(7), target.key.rkey), length);
    assert_ok(uct_ep_get_bcopy(rig.ep, unpack, back, length, at(7), target.key.rkey, NULL));
    assert_memory_equal(back, bytes, length);
    assert_int_equal(back[length], 0);
  }
  rig_quiet(true);
  assert_int_equal(uct_ep_put_bcopy(rig.ep, pack_too_much, &more, at(0), target.key.rkey),
                   UCS_ERR_INVALID_PARAM);
  assert_int_equal(uct_ep_get_bcopy(rig.ep, unpack, back, more, at(0), target.key.rkey, NULL),
                   UCS_ERR_INVALID_PARAM);
}

static void zero_copy_up_to_the_limit(void **state) {
  const size_t sizes[] = {0, 1, 256, 32 * KIB + 1, MIB, 4 * MIB, 4 * MIB + 1, LENGTH};
  (void)state;
  assert_int_equal(rig.attributes.cap.put.max_zcopy, 1024 * MIB);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    memset(back, 0, LENGTH);
    assert_ok(rig_put(&rig, bytes, sizes[i], at(0), target.key.rkey));
    assert_ok(rig_get(&rig, back, sizes[i], at(0), target.key.rkey));
    assert_memory_equal(back, bytes, sizes[i]);
  }
  rig_quiet(true);
  assert_int_equal(rig_put(&rig, bytes, 1024 * MIB + 1, at(0), target.key.rkey),
                   UCS_ERR_INVALID_PARAM);
  assert_int_equal(rig_get(&rig, back, 1024 * MIB + 1, at(0), target.key.rkey),
                   UCS_ERR_INVALID_PARAM);
}

static void memory_handles_are_used(void **state) {
  uct_mem_h memh;
  struct waiter waiter;
  (void)state;
  assert_ok(uct_md_mem_reg(rig.md, bytes, LENGTH, UCT_MD_MEM_ACCESS_ALL, &memh));
  uct_iov_t iov = {.buffer = bytes + 100, .length = 4096, .memh = memh, .count = 1};
  waiter_init(&waiter);
  assert_ok(rig_wait(&rig,
                     uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &waiter.completion),
                     &waiter));
  assert_ok(rig_get(&rig, back, 4096, at(0), target.key.rkey));
  assert_memory_equal(back, bytes + 100, 4096);
  iov.length = LENGTH; /* beyond its end */
  waiter_init(&waiter);
  rig_quiet(true);
  assert_int_equal(
      rig_wait(&rig, uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &waiter.completion),
               &waiter),
      UCS_ERR_INVALID_PARAM);
  assert_ok(uct_md_mem_dereg(rig.md, memh));
}

static void read_only_memory_can_be_put(void **state) {
  void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  assert_ptr_not_equal(page, MAP_FAILED);
  assert_ok(rig_put(&rig, bytes, 4096, at(0), target.key.rkey));
  assert_ok(rig_put(&rig, page, 4096, at(0), target.key.rkey));
  memset(back, 1, 4096);
  assert_ok(rig_get(&rig, back, 4096, at(0), target.key.rkey));
  assert_memory_equal(back, page, 4096);
  rig_quiet(true);
  assert_int_not_equal(rig_get(&rig, page, 4096, at(0), target.key.rkey), UCS_OK);
  munmap(page, 4096);
}

/* A device that kept the earlier pages would move their bytes, and its double aborts. */
static void memory_can_be_mapped_again(void **state) {
  void *where = NULL;
  (void)state;
  for (unsigned round = 0; round < 3; round++) {
    uint8_t *pages = mmap(where, MIB, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED_NOREPLACE : 0), -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    pattern_fill(pages, MIB, 10 + round);
    assert_ok(rig_put(&rig, pages, MIB, at(0), target.key.rkey));
    assert_ok(rig_get(&rig, back, MIB, at(0), target.key.rkey));
    pattern_check(back, MIB, 10 + round);
    where = pages;
    assert_int_equal(munmap(pages, MIB), 0);
  }
}

static void host_memory_can_be_the_target(void **state) {
  (void)state;
  assert_ok(rig_put(&rig, bytes, MIB, (uintptr_t)back, UCT_INVALID_RKEY));
  assert_memory_equal(back, bytes, MIB);
  memset(back, 0, MIB);
  assert_ok(rig_get(&rig, back, MIB, (uintptr_t)bytes, UCT_INVALID_RKEY));
  assert_memory_equal(back, bytes, MIB);
}

static unsigned logged;

static ucs_log_func_rc_t count_lines(const char *file, unsigned line, const char *function,
                                     ucs_log_level_t level,
                                     const ucs_log_component_config_t *component,
                                     const char *message, va_list arguments) {
  (void)file, (void)line, (void)function, (void)component, (void)message, (void)arguments;
  logged += level == UCS_LOG_LEVEL_TRACE_DATA;
  return UCS_LOG_FUNC_RC_STOP;
}

static void operations_are_logged(void **state) {
  (void)state;
  logged = 0;
  if (UCS_MAX_LOG_LEVEL < UCS_LOG_LEVEL_TRACE_DATA) {
    printf("skipped operations_are_logged: this UCX was configured without such a log\n");
    skip();
  }
  ucs_log_push_handler(count_lines);
  rig_log(UCS_LOG_LEVEL_TRACE_DATA);
  ucs_status_t status = rig_put(&rig, bytes, 4096, at(0), target.key.rkey);
  ucs_status_t nothing = rig_put(&rig, bytes, 0, at(0), target.key.rkey);
  rig_quiet(false);
  ucs_log_pop_handler();
  assert_ok(status);
  assert_ok(nothing);
  assert_int_equal(logged, 2);
}

/* Not to another interface, even of this process. */
static void endpoints_know_their_interface(void **state) {
  uint8_t own[256], others[256];
  struct rig other;
  (void)state;
#if !UCX_HAS_GAUDI
  printf("skipped endpoints_know_their_interface: UCX 1.13 does not ask\n");
  skip();
#endif
  rig_open(&other, rig.transport, "gaudi");
  assert_ok(uct_iface_get_address(rig.iface, (uct_iface_addr_t *)own));
  assert_ok(uct_iface_get_address(other.iface, (uct_iface_addr_t *)others));
  assert_true(rig_is_connected(&rig, own));
  assert_false(rig_is_connected(&rig, others));
  rig_close(&other);
}

static void ranges_outside_the_key_are_refused(void **state) {
  (void)state;
  rig_quiet(true);
  assert_int_equal(rig_put(&rig, bytes, 1, at(target.length), target.key.rkey),
                   UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_put(&rig, bytes, 2, at(target.length - 1), target.key.rkey),
                   UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_put(&rig, bytes, 1, at(0) - 1, target.key.rkey), UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_get(&rig, back, 1, UINT64_MAX, target.key.rkey), UCS_ERR_INVALID_ADDR);
}

static void unmapped_memory_is_refused(void **state) {
  (void)state;
  rig_quiet(true);
  assert_int_not_equal(rig_put(&rig, bytes, 4096, 4096, UCT_INVALID_RKEY), UCS_OK);
  assert_int_not_equal(rig_put(&rig, (void *)4096, 4096, at(0), target.key.rkey), UCS_OK);
}

static void several_segments_are_refused(void **state) {
  const uct_iov_t iov[2] = {{.buffer = bytes, .length = 1, .count = 1},
                            {.buffer = bytes, .length = 1, .count = 1}};
  (void)state;
  rig_quiet(true);
  assert_true(UCS_STATUS_IS_ERR(uct_ep_put_zcopy(rig.ep, iov, 2, at(0), target.key.rkey, NULL)));
}

static void a_failed_copy_ends_with_an_error(void **state) {
  (void)state;
  rig_quiet(true);
  setenv("HAUL_DOUBLE_GAUDI_FAIL", "submit:1:5", 1);
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL");
  assert_ok(rig_put(&rig, bytes, MIB, at(0), target.key.rkey));
}

/* The driver resets it: everything fails, nothing hangs. */
static void a_reset_device_fails(void **state) {
  (void)state;
  rig_quiet(true);
  setenv("HAUL_DOUBLE_GAUDI_FAIL", "abort:1:5", 1);
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL");
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
  assert_int_equal(rig_get(&rig, back, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
}

#define MANY 200

static void jobs_complete_in_order(void **state) {
  struct waiter waiter[MANY];
  unsigned started = 0, ended = 0;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "100", 1);
  while (ended < MANY) {
    if (started < MANY) {
      const uct_iov_t iov = {.buffer = bytes + started, .length = 4096, .count = 1};
      waiter_init(&waiter[started]);
      ucs_status_t status = uct_ep_put_zcopy(rig.ep, &iov, 1, at(started * 4096u), target.key.rkey,
                                             &waiter[started].completion);
      assert_true(status == UCS_OK || status == UCS_INPROGRESS);
      waiter[started].calls += status == UCS_OK;
      started++;
    }
    if (started == MANY) /* more than the device queues */
      uct_worker_progress(rig.worker);
    while (ended < started && waiter[ended].calls)
      assert_ok(waiter[ended++].status);
    for (unsigned i = ended; i < started; i++)
      assert_int_equal(waiter[i].calls, 0);
  }
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
  for (unsigned i = 0; i < MANY; i++) {
    assert_ok(rig_get(&rig, back, 4096, at(i * 4096u), target.key.rkey));
    assert_memory_equal(back, bytes + i, 4096);
  }
}

static void a_flush_completes_last(void **state) {
  const uct_iov_t iov = {.buffer = bytes, .length = 8 * MIB, .count = 1};
  struct waiter put, flushed;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "1000", 1);
  waiter_init(&put);
  waiter_init(&flushed);
  assert_ok(uct_ep_flush(rig.ep, 0, &flushed.completion)); /* nothing is in flight */
  assert_int_equal(uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &put.completion),
                   UCS_INPROGRESS);
  assert_int_equal(uct_iface_flush(rig.iface, 0, NULL), UCS_INPROGRESS);
  assert_ok(rig_wait(&rig, uct_ep_flush(rig.ep, 0, &flushed.completion), &flushed));
  assert_int_equal(put.calls, 1);
  assert_ok(uct_iface_flush(rig.iface, 0, NULL));
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
}

static void sleeping_threads_are_woken(void **state) {
  const uct_iov_t iov = {.buffer = bytes, .length = 8 * MIB, .count = 1};
  struct pollfd event = {.events = POLLIN};
  struct waiter waiter;
  (void)state;
  assert_true(rig.attributes.cap.event_flags & UCT_IFACE_FLAG_EVENT_FD);
  assert_ok(uct_iface_event_fd_get(rig.iface, &event.fd));
  assert_ok(uct_iface_event_arm(rig.iface, UCT_EVENT_SEND_COMP));
  assert_int_equal(poll(&event, 1, 20), 0); /* nothing is in flight */
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "3000", 1);
  waiter_init(&waiter);
  assert_int_equal(uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &waiter.completion),
                   UCS_INPROGRESS);
  for (unsigned rounds = 0; waiter.calls == 0 && rounds < 10000; rounds++) {
    uct_worker_progress(rig.worker);
    ucs_status_t armed = uct_iface_event_arm(rig.iface, UCT_EVENT_SEND_COMP);
    assert_true(armed == UCS_OK || armed == UCS_ERR_BUSY);
    if (armed == UCS_OK && waiter.calls == 0)
      assert_int_equal(poll(&event, 1, 5000), 1);
  }
  assert_int_equal(waiter.calls, 1);
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
}

static void closing_an_interface_cancels_jobs(void **state) {
  const uct_iov_t iov = {.buffer = bytes, .length = 8 * MIB, .count = 1};
  struct waiter waiter;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "1000", 1);
  for (unsigned i = 0; i < 5; i++)
    uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, NULL);
  waiter_init(&waiter);
  uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &waiter.completion);
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
  uct_ep_destroy(rig.ep);
  uct_iface_close(rig.iface);
  assert_int_equal(waiter.calls, 0);
  memset(bytes, 0, LENGTH); /* not accessed any more */
  rig_free(&rig, &target);
  uct_worker_destroy(rig.worker);
  ucs_async_context_destroy(rig.async);
  uct_md_close(rig.md);
  free(bytes);
  free(back);
}

static void *use_one(void *transport) {
  struct rig own;
  struct target memory;
  uint8_t *from = malloc(MIB), *to = malloc(MIB);
  rig_open(&own, transport, "gaudi");
  assert_ok(rig_connect(&own, NULL));
  rig_alloc(&own, MIB, &memory);
  for (unsigned round = 0; round < 20; round++) {
    pattern_fill(from, MIB, round);
    assert_ok(rig_put(&own, from, MIB, (uintptr_t)memory.address, memory.key.rkey));
    assert_ok(rig_get(&own, to, MIB, (uintptr_t)memory.address, memory.key.rkey));
    pattern_check(to, MIB, round);
  }
  rig_free(&own, &memory);
  rig_close(&own);
  free(from);
  free(to);
  return NULL;
}

static void several_contexts_in_one_process(void **state) {
  static char copy[] = "gaudi_cpy", dma[] = "gaudi_dma";
  pthread_t threads[4];
  (void)state;
  for (unsigned i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, use_one, i % 2 ? copy : dma), 0);
  for (unsigned i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
}

static void a_forked_child_is_refused(void **state) {
  int status;
  (void)state;
  pid_t child = fork();
  if (child == 0) {
    rig_quiet(true);
    alarm(20);
    bool refused = UCS_STATUS_IS_ERR(rig_put(&rig, bytes, MIB, at(0), target.key.rkey)) &&
                   UCS_STATUS_IS_ERR(uct_ep_put_short(rig.ep, bytes, 8, at(0), target.key.rkey));
    _exit(refused ? 0 : 1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_ok(rig_put(&rig, bytes, MIB, at(0), target.key.rkey));
}

#define COPY(test) cmocka_unit_test_setup_teardown(test, open_copy, close_all)
#define DMA(test)                                                                                  \
  { "dma: " #test, test, open_dma, close_all, NULL }

int main(void) {
  const struct CMUnitTest tests[] = {
      COPY(short_of_any_length),
      COPY(buffered_up_to_the_limit),
      COPY(zero_copy_up_to_the_limit),
      DMA(zero_copy_up_to_the_limit),
      COPY(memory_handles_are_used),
      DMA(memory_handles_are_used),
      COPY(read_only_memory_can_be_put),
      DMA(read_only_memory_can_be_put),
      COPY(memory_can_be_mapped_again),
      DMA(memory_can_be_mapped_again),
      COPY(host_memory_can_be_the_target),
      DMA(host_memory_can_be_the_target),
      COPY(operations_are_logged),
      DMA(operations_are_logged),
      COPY(endpoints_know_their_interface),
      DMA(endpoints_know_their_interface),
      COPY(ranges_outside_the_key_are_refused),
      DMA(ranges_outside_the_key_are_refused),
      COPY(unmapped_memory_is_refused),
      DMA(unmapped_memory_is_refused),
      COPY(several_segments_are_refused),
      DMA(several_segments_are_refused),
      COPY(a_failed_copy_ends_with_an_error),
      DMA(a_failed_copy_ends_with_an_error),
      DMA(jobs_complete_in_order),
      DMA(a_flush_completes_last),
      DMA(sleeping_threads_are_woken),
      cmocka_unit_test_setup(closing_an_interface_cancels_jobs, open_dma),
      cmocka_unit_test(several_contexts_in_one_process),
      COPY(a_forked_child_is_refused),
      DMA(a_forked_child_is_refused),
      COPY(a_reset_device_fails),
      DMA(a_reset_device_fails),
  };
  return cmocka_run_group_tests_name("ucx/operations", tests, NULL, NULL);
}
