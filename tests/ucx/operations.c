/* SPDX-License-Identifier: MIT
 * Put and get of gaudi_cpy and gaudi_dma at each threshold and past it, with what a key does not
 * allow, with a device that fails, several at a time, and from several threads. */
#include "rig.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
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
  assert_int_equal(rig_connect(&rig, NULL), UCS_OK);
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

/* ---- Thresholds ---- */

static void short_at_each_threshold(void **state) {
  const unsigned sizes[] = {0, 1, 8, 63, 64, 65, 255, 256};
  (void)state;
  assert_int_equal(rig.attributes.cap.put.max_short, 256);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    memset(back, 0, 257);
    assert_int_equal(uct_ep_put_short(rig.ep, bytes + i, sizes[i], at(100 * i), target.key.rkey),
                     UCS_OK);
    assert_int_equal(uct_ep_get_short(rig.ep, back, sizes[i], at(100 * i), target.key.rkey),
                     UCS_OK);
    assert_memory_equal(back, bytes + i, sizes[i]);
    assert_int_equal(back[sizes[i]], 0);
  }
}

/* As UCP's packing of device memory makes them. */
static void short_past_what_is_told(void **state) {
  const unsigned sizes[] = {257, 32 * KIB, 32 * KIB + 1, 5 * MIB};
  (void)state;
  for (size_t i = 0; i < COUNT(sizes); i++) {
    memset(back, 0, LENGTH);
    assert_int_equal(uct_ep_put_short(rig.ep, bytes, sizes[i], at(3), target.key.rkey), UCS_OK);
    assert_int_equal(uct_ep_get_short(rig.ep, back, sizes[i], at(3), target.key.rkey), UCS_OK);
    assert_memory_equal(back, bytes, sizes[i]);
    assert_int_equal(back[sizes[i]], 0);
  }
}

static size_t pack(void *to, void *length) {
  memcpy(to, bytes, *(size_t *)length);
  return *(size_t *)length;
}

/* Claims more than there is room for, and writes nothing. */
static size_t claim(void *to, void *length) {
  (void)to;
  return *(size_t *)length;
}

static void unpack(void *to, const void *from, size_t length) {
  memcpy(to, from, length);
}

static void buffered_at_each_threshold(void **state) {
  const size_t sizes[] = {0, 1, 256, 257, 4096, 32 * KIB - 1, 32 * KIB};
  size_t more = 32 * KIB + 1;
  (void)state;
  assert_int_equal(rig.attributes.cap.get.max_bcopy, 32 * KIB);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    size_t length = sizes[i];
    memset(back, 0, more);
    assert_int_equal(uct_ep_put_bcopy(rig.ep, pack, &length, at(7), target.key.rkey), length);
    assert_int_equal(uct_ep_get_bcopy(rig.ep, unpack, back, length, at(7), target.key.rkey, NULL),
                     UCS_OK);
    assert_memory_equal(back, bytes, length);
    assert_int_equal(back[length], 0);
  }
  rig_quiet(true);
  assert_int_equal(uct_ep_put_bcopy(rig.ep, claim, &more, at(0), target.key.rkey),
                   UCS_ERR_INVALID_PARAM);
  assert_int_equal(uct_ep_get_bcopy(rig.ep, unpack, back, more, at(0), target.key.rkey, NULL),
                   UCS_ERR_INVALID_PARAM);
}

static void zero_copy_at_each_threshold(void **state) {
  const size_t sizes[] = {0, 1, 256, 32 * KIB + 1, MIB, 4 * MIB, 4 * MIB + 1, LENGTH};
  (void)state;
  assert_int_equal(rig.attributes.cap.put.max_zcopy, 1024 * MIB);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    memset(back, 0, LENGTH);
    assert_int_equal(rig_put(&rig, bytes, sizes[i], at(0), target.key.rkey), UCS_OK);
    assert_int_equal(rig_get(&rig, back, sizes[i], at(0), target.key.rkey), UCS_OK);
    assert_memory_equal(back, bytes, sizes[i]);
  }
  rig_quiet(true);
  assert_int_equal(rig_put(&rig, bytes, 1024 * MIB + 1, at(0), target.key.rkey),
                   UCS_ERR_INVALID_PARAM);
  assert_int_equal(rig_get(&rig, back, 1024 * MIB + 1, at(0), target.key.rkey),
                   UCS_ERR_INVALID_PARAM);
}

static void registered_memory_is_taken_by_its_handle(void **state) {
  uct_mem_h memh;
  struct told told;
  (void)state;
  assert_int_equal(uct_md_mem_reg(rig.md, bytes, LENGTH, UCT_MD_MEM_ACCESS_ALL, &memh), UCS_OK);
  uct_iov_t iov = {.buffer = bytes + 100, .length = 4096, .memh = memh, .count = 1};
  told_init(&told);
  assert_int_equal(
      rig_end(&rig, uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &told.completion),
              &told),
      UCS_OK);
  assert_int_equal(rig_get(&rig, back, 4096, at(0), target.key.rkey), UCS_OK);
  assert_memory_equal(back, bytes + 100, 4096);
  iov.length = LENGTH; /* past its end */
  told_init(&told);
  rig_quiet(true);
  assert_int_equal(
      rig_end(&rig, uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &told.completion),
              &told),
      UCS_ERR_INVALID_PARAM);
  assert_int_equal(uct_md_mem_dereg(rig.md, memh), UCS_OK);
}

static void memory_to_read_alone_is_put_from(void **state) {
  void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  assert_ptr_not_equal(page, MAP_FAILED);
  assert_int_equal(rig_put(&rig, bytes, 4096, at(0), target.key.rkey), UCS_OK);
  assert_int_equal(rig_put(&rig, page, 4096, at(0), target.key.rkey), UCS_OK);
  memset(back, 1, 4096);
  assert_int_equal(rig_get(&rig, back, 4096, at(0), target.key.rkey), UCS_OK);
  assert_memory_equal(back, page, 4096);
  rig_quiet(true);
  assert_int_not_equal(rig_get(&rig, page, 4096, at(0), target.key.rkey), UCS_OK);
  munmap(page, 4096);
}

/* ---- What is refused ---- */

static void what_the_key_is_not_for(void **state) {
  (void)state;
  rig_quiet(true);
  assert_int_equal(rig_put(&rig, bytes, 1, at(target.length), target.key.rkey),
                   UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_put(&rig, bytes, 2, at(target.length - 1), target.key.rkey),
                   UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_put(&rig, bytes, 1, at(0) - 1, target.key.rkey), UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_get(&rig, back, 1, UINT64_MAX, target.key.rkey), UCS_ERR_INVALID_ADDR);
}

static void what_is_no_memory(void **state) {
  (void)state;
  rig_quiet(true);
  assert_int_not_equal(rig_put(&rig, bytes, 4096, 4096, UCT_INVALID_RKEY), UCS_OK);
  assert_int_not_equal(rig_put(&rig, (void *)4096, 4096, at(0), target.key.rkey), UCS_OK);
}

static void more_than_one_piece(void **state) {
  const uct_iov_t iov[2] = {{.buffer = bytes, .length = 1, .count = 1},
                            {.buffer = bytes, .length = 1, .count = 1}};
  (void)state;
  rig_quiet(true);
  assert_true(UCS_STATUS_IS_ERR(uct_ep_put_zcopy(rig.ep, iov, 2, at(0), target.key.rkey, NULL)));
}

/* ---- A device that fails ---- */

static void a_failed_copy_ends_with_an_error(void **state) {
  (void)state;
  rig_quiet(true);
  setenv("HAUL_DOUBLE_GAUDI_FAIL", "submit:1:5", 1);
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL");
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_OK);
}

/* The driver resets it: nothing on it works any more, and nothing hangs. */
static void a_device_that_goes_away(void **state) {
  (void)state;
  rig_quiet(true);
  setenv("HAUL_DOUBLE_GAUDI_FAIL", "abort:1:5", 1);
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL");
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
  assert_int_equal(rig_get(&rig, back, MIB, at(0), target.key.rkey), UCS_ERR_IO_ERROR);
}

/* ---- Several at a time ---- */

#define MANY 200

static void jobs_are_told_of_in_order(void **state) {
  struct told told[MANY];
  unsigned started = 0, ended = 0;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "100", 1);
  while (ended < MANY) {
    if (started < MANY) {
      const uct_iov_t iov = {.buffer = bytes + started, .length = 4096, .count = 1};
      told_init(&told[started]);
      ucs_status_t status = uct_ep_put_zcopy(rig.ep, &iov, 1, at(started * 4096u), target.key.rkey,
                                             &told[started].completion);
      assert_true(status == UCS_OK || status == UCS_INPROGRESS);
      told[started].times += status == UCS_OK;
      started++;
    }
    if (started == MANY) /* more than the device takes at a time */
      uct_worker_progress(rig.worker);
    while (ended < started && told[ended].times)
      assert_int_equal(told[ended++].status, UCS_OK);
    for (unsigned i = ended; i < started; i++)
      assert_int_equal(told[i].times, 0);
  }
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
  for (unsigned i = 0; i < MANY; i++) {
    assert_int_equal(rig_get(&rig, back, 4096, at(i * 4096u), target.key.rkey), UCS_OK);
    assert_memory_equal(back, bytes + i, 4096);
  }
}

static void a_flush_ends_behind_all(void **state) {
  const uct_iov_t iov = {.buffer = bytes, .length = 8 * MIB, .count = 1};
  struct told put, flushed;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "1000", 1);
  told_init(&put);
  told_init(&flushed);
  assert_int_equal(uct_ep_flush(rig.ep, 0, &flushed.completion), UCS_OK); /* nothing is under way */
  assert_int_equal(uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &put.completion),
                   UCS_INPROGRESS);
  assert_int_equal(uct_iface_flush(rig.iface, 0, NULL), UCS_INPROGRESS);
  assert_int_equal(rig_end(&rig, uct_ep_flush(rig.ep, 0, &flushed.completion), &flushed), UCS_OK);
  assert_int_equal(put.times, 1);
  assert_int_equal(uct_iface_flush(rig.iface, 0, NULL), UCS_OK);
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
}

static void who_sleeps_is_woken(void **state) {
  const uct_iov_t iov = {.buffer = bytes, .length = 8 * MIB, .count = 1};
  struct pollfd event = {.events = POLLIN};
  struct told told;
  (void)state;
  assert_true(rig.attributes.cap.event_flags & UCT_IFACE_FLAG_EVENT_FD);
  assert_int_equal(uct_iface_event_fd_get(rig.iface, &event.fd), UCS_OK);
  assert_int_equal(uct_iface_event_arm(rig.iface, UCT_EVENT_SEND_COMP), UCS_OK);
  assert_int_equal(poll(&event, 1, 20), 0); /* nothing is under way */
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "3000", 1);
  told_init(&told);
  assert_int_equal(uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &told.completion),
                   UCS_INPROGRESS);
  for (unsigned rounds = 0; told.times == 0 && rounds < 10000; rounds++) {
    uct_worker_progress(rig.worker);
    ucs_status_t armed = uct_iface_event_arm(rig.iface, UCT_EVENT_SEND_COMP);
    assert_true(armed == UCS_OK || armed == UCS_ERR_BUSY);
    if (armed == UCS_OK && told.times == 0)
      assert_int_equal(poll(&event, 1, 5000), 1);
  }
  assert_int_equal(told.times, 1);
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
}

static void an_interface_is_closed_with_jobs_under_way(void **state) {
  const uct_iov_t iov = {.buffer = bytes, .length = 8 * MIB, .count = 1};
  struct told told;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", "1000", 1);
  for (unsigned i = 0; i < 5; i++)
    uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, NULL);
  told_init(&told);
  uct_ep_put_zcopy(rig.ep, &iov, 1, at(0), target.key.rkey, &told.completion);
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
  uct_ep_destroy(rig.ep);
  uct_iface_close(rig.iface);
  assert_int_equal(told.times, 0);
  memset(bytes, 0, LENGTH); /* nobody reads it any more */
  rig_free(&rig, &target);
  uct_worker_destroy(rig.worker);
  ucs_async_context_destroy(rig.async);
  uct_md_close(rig.md);
  free(bytes);
  free(back);
}

/* ---- Several contexts, threads and processes ---- */

static void *use_one(void *transport) {
  struct rig own;
  struct target memory;
  uint8_t *from = malloc(MIB), *to = malloc(MIB);
  rig_open(&own, transport, "gaudi");
  assert_int_equal(rig_connect(&own, NULL), UCS_OK);
  rig_alloc(&own, MIB, &memory);
  for (unsigned round = 0; round < 20; round++) {
    pattern_fill(from, MIB, round);
    assert_int_equal(rig_put(&own, from, MIB, (uintptr_t)memory.address, memory.key.rkey), UCS_OK);
    assert_int_equal(rig_get(&own, to, MIB, (uintptr_t)memory.address, memory.key.rkey), UCS_OK);
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
  assert_int_equal(rig_put(&rig, bytes, MIB, at(0), target.key.rkey), UCS_OK);
}

#define COPY(test) cmocka_unit_test_setup_teardown(test, open_copy, close_all)
#define DMA(test)                                                                                  \
  { "dma: " #test, test, open_dma, close_all, NULL }

int main(void) {
  const struct CMUnitTest tests[] = {
      COPY(short_at_each_threshold),
      COPY(short_past_what_is_told),
      COPY(buffered_at_each_threshold),
      COPY(zero_copy_at_each_threshold),
      DMA(zero_copy_at_each_threshold),
      COPY(registered_memory_is_taken_by_its_handle),
      DMA(registered_memory_is_taken_by_its_handle),
      COPY(memory_to_read_alone_is_put_from),
      DMA(memory_to_read_alone_is_put_from),
      COPY(what_the_key_is_not_for),
      DMA(what_the_key_is_not_for),
      COPY(what_is_no_memory),
      DMA(what_is_no_memory),
      COPY(more_than_one_piece),
      DMA(more_than_one_piece),
      COPY(a_failed_copy_ends_with_an_error),
      DMA(a_failed_copy_ends_with_an_error),
      DMA(jobs_are_told_of_in_order),
      DMA(a_flush_ends_behind_all),
      DMA(who_sleeps_is_woken),
      cmocka_unit_test_setup(an_interface_is_closed_with_jobs_under_way, open_dma),
      cmocka_unit_test(several_contexts_in_one_process),
      COPY(a_forked_child_is_refused),
      DMA(a_forked_child_is_refused),
      COPY(a_device_that_goes_away),
      DMA(a_device_that_goes_away),
  };
  return cmocka_run_group_tests_name("ucx/operations", tests, NULL, NULL);
}
