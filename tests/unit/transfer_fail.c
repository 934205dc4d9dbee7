/* SPDX-License-Identifier: MIT
 * Failures of transfers: a thread that sees the code also sees its detail, and the first one
 * counts. The path of a transfer is chosen once, and again only when it is lost. */
#include "support/check.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "transfer/transfer.h"

#define ROUNDS 200

static struct fabric fabric;
static struct transfers transfers;
static struct link link_to;
static struct haul_remote remote;
static struct haul_transfer transfer;

static int setup(void **state) {
  (void)state;
  memset(&transfer, 0, sizeof transfer);
  memset(&link_to, 0, sizeof link_to);
  fabric.log.level = -1; /* no log lines */
  transfers.fabric = &fabric;
  pthread_mutex_init(&transfers.lock, NULL);
  link_to.fabric = &fabric;
  remote.link = &link_to;
  remote.transfers = &transfers;
  transfer.remote = &remote;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  alloc_free(atomic_load(&transfer.error));
  pthread_mutex_destroy(&transfers.lock);
  return 0;
}

static void *check_detail(void *argument) {
  int code;
  while ((code = atomic_load_explicit(&transfer.failure, memory_order_acquire)) == 0)
    sched_yield();
  const struct haul_error *error = atomic_load_explicit(&transfer.error, memory_order_relaxed);
  *(bool *)argument = error && error->code == code;
  return NULL;
}

static void *fail_with_code(void *argument) {
  int code = *(const int *)argument;
  error_code(code, "transfer");
  transfer_fail(&transfer, code);
  return NULL;
}

static void the_detail_is_visible_before_the_code(void **state) {
  static const int codes[] = {HAUL_ETIMEDOUT, HAUL_ECANCELED};
  (void)state;
  for (int i = 0; i < ROUNDS; i++) {
    pthread_t threads[3];
    bool agrees = false;
    assert_int_equal(pthread_create(&threads[0], NULL, check_detail, &agrees), 0);
    for (size_t j = 0; j < COUNT(codes); j++)
      assert_int_equal(
          pthread_create(&threads[1 + j], NULL, fail_with_code, (void *)(uintptr_t)&codes[j]), 0);
    for (size_t j = 0; j < COUNT(threads); j++)
      pthread_join(threads[j], NULL);
    assert_true(agrees);
    alloc_free(atomic_exchange(&transfer.error, NULL));
    atomic_store(&transfer.failure, 0);
  }
  assert_int_equal(atomic_load(&transfers.failed), ROUNDS);
}

static struct alloc_ops real;
static int failure_seen;

static void *calloc_and_look(size_t count, size_t size) {
  failure_seen = atomic_load(&transfer.failure);
  return real.calloc(count, size);
}

static void the_code_is_set_after_the_detail_is_allocated(void **state) {
  (void)state;
  failure_seen = 1;
  real = alloc_ops;
  alloc_ops.calloc = calloc_and_look;
  error_code(HAUL_ECANCELED, "transfer");
  transfer_fail(&transfer, HAUL_ECANCELED);
  alloc_ops = real;
  assert_int_equal(failure_seen, 0);
  assert_int_equal(atomic_load(&transfer.failure), HAUL_ECANCELED);
}

static void the_first_failure_counts(void **state) {
  (void)state;
  error_code(HAUL_ECANCELED, "transfer");
  transfer_fail(&transfer, HAUL_ECANCELED);
  error_code(HAUL_ETIMEDOUT, "transfer");
  transfer_fail(&transfer, HAUL_ETIMEDOUT);
  assert_int_equal(atomic_load(&transfer.failure), HAUL_ECANCELED);
  assert_int_equal(atomic_load(&transfer.error)->code, HAUL_ECANCELED);
}

static unsigned posted[TRANSPORTS_MAX];

static void count_post(struct endpoint *endpoint, struct work *work) {
  (void)work;
  posted[endpoint->transport->index]++;
}

static void the_path_is_chosen_again_only_when_it_is_lost(void **state) {
  struct transport table[2] = {{.name = "a", .index = 0, .post = count_post},
                               {.name = "b", .index = 1, .post = count_post}};
  struct endpoint endpoints[2] = {{.transport = &table[0], .link = &link_to, .open = true},
                                  {.transport = &table[1], .link = &link_to, .open = true}};
  struct route route = {.type = 0};
  struct work work = {.owner = &transfer, .operation = HAUL_OP_WRITE};
  (void)state;
  for (size_t i = 0; i < TRANSPORTS_MAX; i++)
    link_to.endpoints[i] = &endpoints[i < 2 ? i : 1];
  for (size_t i = 0; i < 2; i++)
    route.estimates[i] = (struct estimate){.open = true, .lines[SEND_SHORT] = {UINT64_MAX, 1, 1}};
  route.estimates[1].lines[SEND_SHORT].latency_ns = 1000;
  transfer.route = &route;
  transfer.operation = HAUL_OP_WRITE;
  transfer.bytes = 8;
  for (int i = 0; i < 3; i++)
    assert_works(transfer_post(&transfer, &work));
  /* Another path that becomes cheaper meanwhile is not taken. */
  route.estimates[0].lines[SEND_SHORT].latency_ns = 1e6;
  assert_works(transfer_post(&transfer, &work));
  assert_int_equal(posted[0], 4);
  atomic_store(&endpoints[0].open, false);
  assert_works(transfer_post(&transfer, &work));
  assert_int_equal(posted[1], 1);
  atomic_store(&endpoints[0].open, true);
  assert_works(transfer_post(&transfer, &work)); /* it stays there */
  assert_int_equal(posted[1], 2);
  atomic_fetch_or(&transfer.avoided, 2); /* the second path refused a work */
  assert_works(transfer_post(&transfer, &work));
  assert_int_equal(posted[0], 5);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(the_detail_is_visible_before_the_code),
      CASE(the_code_is_set_after_the_detail_is_allocated),
      CASE(the_first_failure_counts),
      CASE(the_path_is_chosen_again_only_when_it_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
