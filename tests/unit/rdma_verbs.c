/* SPDX-License-Identifier: MIT
 * libibverbs, opened at run time: failures, optional calls, fork safety. */
#include "support/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "fabric/rdma/verbs.h"
#include "support/rdma_host.h"
#include "support/seams.h"

static const struct verbs *open_verbs(void) {
  const struct verbs *verbs = verbs_open();
  assert_non_null(verbs);
  return verbs;
}

static void is_refused_with_a_package(void) {
  assert_null(verbs_open());
  assert_int_equal(haul_error_last()->code, HAUL_ENOTSUP);
  assert_string_equal(haul_error_last()->object, verbs_library.names[0]);
  assert_non_null(strstr(haul_error_last()->hint, "apt-get install libibverbs1"));
}

static void a_missing_library_gives_null(void **state) {
  (void)state;
  rdma_host_library(NULL);
  is_refused_with_a_package();
}

static void a_file_that_is_not_a_library_is_rejected(void **state) {
  (void)state;
  unsigned before = open_descriptors();
  library_forget(&verbs_library);
  verbs_library.names[0] = "/proc/self/status";
  is_refused_with_a_package();
  assert_int_equal(open_descriptors(), before);
}

static void a_library_without_a_required_call_is_refused(void **state) {
  (void)state;
  rdma_host_library("31");
  is_refused_with_a_package();
  assert_non_null(strstr(haul_error_last()->hint, "_ibv_query_gid_ex"));
  assert_non_null(strstr(haul_error_last()->text, "older than rdma-core 32"));
  assert_int_equal(rdma_double()->forks, 0);
}

static void a_failure_is_retried(void **state) {
  (void)state;
  rdma_host_library(NULL);
  assert_null(verbs_open());
  rdma_host_library("current"); /* the package was installed */
  open_verbs();
}

static void all_slots_are_filled(void **state) {
  (void)state;
  const struct verbs *verbs = open_verbs();
  void *library = dlopen(verbs_library.names[0], RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(library);
  void *slots[sizeof *verbs / sizeof(void *)];
  memcpy(slots, verbs, sizeof slots);
  size_t at = 0;
#define SAME(slot, symbol)                                                                         \
  assert_non_null(slots[at]);                                                                      \
  assert_ptr_equal(slots[at++], dlsym(library, #symbol));
  VERBS_REQUIRED(SAME)
  VERBS_OPTIONAL(SAME)
#undef SAME
  assert_int_equal(at, COUNT(slots));
  dlclose(library);
}

static void optional_slots_may_be_null(void **state) {
  (void)state;
  rdma_host_library("33");
  assert_null(open_verbs()->reg_dmabuf_mr);
  assert_null(open_verbs()->is_fork_initialized);
  assert_int_equal(rdma_double()->forks, 1);
}

static void it_is_opened_once(void **state) {
  (void)state;
  const struct verbs *verbs = open_verbs();
  verbs_library.names[0] = "/nowhere";
  assert_ptr_equal(open_verbs(), verbs);
}

static void fork_init_is_called_on_old_kernels(void **state) {
  (void)state;
  open_verbs();
  open_verbs();
  assert_int_equal(rdma_double()->forks, 1);
}

static void fork_init_is_not_called_on_new_kernels(void **state) {
  (void)state;
  rdma_double()->fork_safe = true;
  open_verbs();
  assert_int_equal(rdma_double()->forks, 0);
}

static void *open_in_thread(void *barrier) {
  pthread_barrier_wait(barrier);
  return (void *)(uintptr_t)verbs_open();
}

static void many_threads_open_it_once(void **state) {
  (void)state;
  pthread_t threads[8];
  pthread_barrier_t barrier;
  void *verbs[COUNT(threads)];
  pthread_barrier_init(&barrier, NULL, COUNT(threads));
  for (size_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, open_in_thread, &barrier), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], &verbs[i]);
  for (size_t i = 0; i < COUNT(threads); i++)
    assert_ptr_equal(verbs[i], open_verbs());
  assert_int_equal(rdma_double()->forks, 1);
  pthread_barrier_destroy(&barrier);
}

static struct ibv_context *open_first(const struct verbs *verbs) {
  struct ibv_device **list = verbs->get_device_list(NULL);
  assert_non_null(list[0]);
  struct ibv_context *context = verbs->open_device(list[0]);
  verbs->free_device_list(list);
  assert_non_null(context);
  return context;
}

static void ports_are_queried_through_old_and_new_contexts(void **state) {
  (void)state;
  const struct verbs *verbs = open_verbs();
  struct double_device *device = rdma_add_roce("mlx5_0");
  for (int short_context = 0; short_context <= 1; short_context++) {
    struct ibv_port_attr attributes;
    device->short_context = short_context;
    struct ibv_context *context = open_first(verbs);
    memset(&attributes, 0xff, sizeof attributes);
    assert_int_equal(verbs_query_port(verbs, context, 1, &attributes), 0);
    assert_int_equal(attributes.state, IBV_PORT_ACTIVE);
    assert_int_equal(attributes.link_layer, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(attributes.port_cap_flags2, 0);
    assert_int_equal(verbs_query_port(verbs, context, 2, &attributes), EINVAL);
    verbs->close_device(context);
  }
}

/* The installed library, if any, has all required calls. */
static void the_real_library_fits(void **state) {
  (void)state;
  void *real = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!real) {
    printf("skipped: libibverbs.so.1 is not installed\n");
    skip();
  }
  dlclose(real);
  library_forget(&verbs_library);
  verbs_library.names[0] = "libibverbs.so.1";
  const struct verbs *verbs = open_verbs();
  assert_string_equal(verbs->wc_status_str(IBV_WC_SUCCESS), "success");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, rdma_host_reset, rdma_host_check)
  const struct CMUnitTest tests[] = {
      TEST(a_missing_library_gives_null),
      TEST(a_file_that_is_not_a_library_is_rejected),
      TEST(a_library_without_a_required_call_is_refused),
      TEST(a_failure_is_retried),
      TEST(all_slots_are_filled),
      TEST(optional_slots_may_be_null),
      TEST(it_is_opened_once),
      TEST(fork_init_is_called_on_old_kernels),
      TEST(fork_init_is_not_called_on_new_kernels),
      TEST(many_threads_open_it_once),
      TEST(ports_are_queried_through_old_and_new_contexts),
      TEST(the_real_library_fits),
  };
  return cmocka_run_group_tests_name("rdma/verbs", tests, rdma_host_open, rdma_host_close);
}
