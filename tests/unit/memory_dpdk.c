/* SPDX-License-Identifier: MIT
 * Memory from DPDK, over its real libraries if installed. EAL is started once in a process, so
 * each test runs in its own process: this program with the test's name. */
#include "support/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/sys.h"
#include "doubles/gpudev/door.h"
#include "memory/dpdk/dpdk.h"
#include "memory/pages.h"
#include "memory/settings.h"
#include "support/child.h"
#include "support/tree.h"

#define MIB ((size_t)1 << 20)
#define MS  INT64_C(1000000)

static const struct haul_place place = {HAUL_DPDK, 0}, host = {HAUL_HOST, 0};

static haul_node *open_node(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *node;
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &node));
  return node;
}

static haul_region *get(haul_node *node, struct haul_place where, size_t length) {
  haul_region *region;
  assert_works(haul_region_alloc(node, where, length, 0, &region));
  return region;
}

static uint64_t counter(haul_node *node, const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(node, name, &value));
  return value;
}

static struct haul_check check_named(haul_node *node, const char *name) {
  struct haul_check checks[64];
  size_t count = COUNT(checks);
  assert_works(haul_check_list(node, checks, &count));
  for (size_t i = 0; i < count && i < COUNT(checks); i++)
    if (strcmp(checks[i].name, name) == 0)
      return checks[i];
  fail_msg("no check %s", name);
  return checks[0];
}

static void says(const char *where, const char *words) {
  if (!strstr(where, words))
    fail_msg("'%s' lacks '%s'", where, words);
}

static void listing_does_not_start_eal(void **state) {
  struct haul_device devices[32];
  size_t count = COUNT(devices);
  bool found = false;
  haul_node *node = open_node();
  (void)state;
  assert_works(haul_device_list(node, devices, &count));
  for (size_t i = 0; i < count; i++)
    found |= devices[i].place.kind == HAUL_DPDK && devices[i].numa == devices[i].place.device;
  assert_true(found);
  assert_int_equal(check_named(node, "dpdk.library").state, HAUL_CHECK_OK);
  assert_int_not_equal(check_named(node, "dpdk.memory").state, HAUL_CHECK_MISSING);
  assert_int_equal(check_named(node, "dpdk.pool").state, HAUL_CHECK_OK);
  assert_int_equal(counter(node, "dpdk.objects"), 0);
  assert_int_equal(dpdk_eal_state(), DPDK_IDLE);
  haul_node_close(node);
}

/* Objects of all sizes, limited by the host's memory; freed ones are reused. */
static void objects_are_aligned_and_used_again(void **state) {
  static const size_t sizes[] = {1, 65536, MIB - 1, 5 * MIB, 64 * MIB};
  haul_node *node = open_node();
  struct memory memory, again;
  (void)state;
  for (size_t i = 0; i < COUNT(sizes); i++) {
    assert_works(memory_alloc(place, sizes[i], 0, &memory));
    assert_int_equal((uintptr_t)memory.view % page_size(), 0);
    assert_true(pages_aligned(memory.view, sizes[i]));
    memset(memory.view, 1, sizes[i]);
    memory_free(&memory);
    assert_works(memory_alloc(place, sizes[i], HAUL_REGION_PRIVATE, &again));
    if (sizes[i] < 16 * MIB)
      assert_ptr_equal(again.view, memory.view);
    memory_free(&again);
  }
  struct haul_check pool = check_named(node, "dpdk.pool");
  struct dpdk_figures figures;
  assert_true(dpdk_pool_figures(0, &figures));
  assert_int_equal(pool.state == HAUL_CHECK_LIMITED, dpdk_pool_is_cut(&figures));
  assert_int_equal(counter(node, "dpdk.objects_cut") > 0, dpdk_pool_is_cut(&figures));
  assert_int_equal(counter(node, "dpdk.objects"), counter(node, "dpdk.objects_free"));
  assert_true(counter(node, "dpdk.objects_free") > 0);
  haul_node_close(node);
}

/* EAL binds its starting thread to a CPU, which must not be the application's. */
static void the_callers_affinity_and_signals_are_kept(void **state) {
  cpu_set_t before, after;
  sigset_t blocked, still;
  haul_node *node = open_node();
  (void)state;
  sched_getaffinity(0, sizeof before, &before);
  pthread_sigmask(SIG_BLOCK, NULL, &blocked);
  haul_region_release(get(node, place, MIB));
  sched_getaffinity(0, sizeof after, &after);
  pthread_sigmask(SIG_BLOCK, NULL, &still);
  assert_true(CPU_EQUAL(&before, &after));
  for (int i = 1; i < SIGRTMIN; i++)
    assert_int_equal(sigismember(&blocked, i), sigismember(&still, i));
  haul_node_close(node);
}

struct later {
  haul_region *region;
  int64_t at;
};

static void *release_later(void *argument) {
  struct later *later = argument;
  while (clock_now() < later->at)
    usleep(1000);
  haul_region_release(later->region);
  return NULL;
}

/* With dpdk_pool = 2,1,0,0 and dpdk_wait = 1500ms. */
static void allocations_wait_for_an_empty_pool(void **state) {
  haul_node *node = open_node(), *other = open_node();
  haul_region *first = get(node, place, MIB), *second;
  pthread_t thread;
  (void)state;
  int64_t began = clock_now();
  assert_fails(HAUL_ELIMIT, haul_region_alloc(node, place, MIB, 0, &second));
  assert_true(clock_now() - began >= 1500 * MS);
  says(haul_error_last()->text, "all 1 objects of 1024 KiB are in use");
  says(haul_error_last()->hint, "dpdk_pool");
  assert_int_equal(counter(node, "dpdk.waits"), 1);

  struct later later = {first, clock_now() + 30 * MS};
  pthread_create(&thread, NULL, release_later, &later);
  assert_works(haul_region_alloc(other, place, MIB, 0, &second)); /* on another node */
  pthread_join(thread, NULL);
  assert_int_equal(counter(node, "dpdk.waits"), 2);
  haul_region_release(second);
  second = get(other, place, MIB); /* pooled by the heap */
  haul_region_release(second);
  assert_fails(HAUL_ENOMEM, haul_region_alloc(node, place, (size_t)1 << 46, 0, &second));
  assert_int_equal(counter(node, "dpdk.waits"), 2); /* no free would help */
  haul_region_release(get(node, place, 10 * MIB));  /* sizes of an empty class come from EAL */
  haul_node_close(other);
  haul_node_close(node);
}

static void refused_with(const char *words, const char *object) {
  haul_node *node = open_node();
  haul_region *region;
  for (int i = 0; i < 2; i++) { /* the failure is final */
    assert_fails(HAUL_ENOTSUP, haul_region_alloc(node, place, MIB, 0, &region));
    says(haul_error_last()->text, words);
    says(haul_error_last()->object, object);
    says(haul_error_last()->hint, "start the program anew");
  }
  struct haul_check memory = check_named(node, "dpdk.memory");
  assert_int_equal(memory.state, HAUL_CHECK_MISSING);
  says(memory.text, words);
  assert_int_equal(dpdk_eal_state(), DPDK_FAILED);
  haul_node_close(node);
}

/* Contradicting arguments. */
static void a_failure_of_eal_has_its_log(void **state) {
  (void)state;
  refused_with("EAL does not start: Option --legacy-mem is not compatible with --in-memory; "
               "Invalid 'command line' arguments.",
               "--no-huge --in-memory -m 64");
}

/* An unknown argument, which EAL does not log. */
static void unknown_arguments_are_named(void **state) {
  (void)state;
  refused_with("EAL does not start: Invalid 'command line' arguments.",
               "--no-huge --no-such-argument");
}

/* An invalid value. */
static void invalid_values_have_eals_log(void **state) {
  (void)state;
  refused_with("EAL does not start: failed to parse device \"none\"; Unable to parse device 'none'",
               "--vdev none");
}

/* Requested huge pages that do not exist. */
static void missing_huge_pages_are_reported(void **state) {
  (void)state;
  if (dpdk_huge_free(-1) > 0)
    skip();
  refused_with("Cannot get hugepage information.", "--in-memory --no-pci -m 64");
}

/* Huge pages that were free when the arguments were made. EAL keeps some arguments, so there is no
 * second try. */
static void huge_pages_taken_meanwhile_are_reported(void **state) {
  char root[] = "/tmp/haul-dpdk-XXXXXX";
  haul_region *region;
  (void)state;
  if (dpdk_huge_free(-1) > 0)
    skip();
  assert_non_null(mkdtemp(root));
  tree_file(root, "kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n");
  dpdk_sys = root;
  haul_node *node = open_node();
  for (int i = 0; i < 2; i++) {
    assert_fails(HAUL_ENOTSUP, haul_region_alloc(node, place, MIB, 0, &region));
    says(haul_error_last()->text, "the huge pages that were free just before: ");
    says(haul_error_last()->text, "Cannot get hugepage information.");
    says(haul_error_last()->hint, "start the program anew: it does without huge pages");
  }
  tree_remove(root);
  says(check_named(node, "dpdk.memory").text, "Cannot get hugepage information.");
  haul_region_release(get(node, host, MIB)); /* other kinds work */
  haul_node_close(node);
}

static void child_of_a_user(void *argument) {
  haul_node *node = argument;
  struct memory memory;
  haul_region *region;
  alarm(60);
  if (haul_region_alloc(node, place, MIB, 0, &region) != HAUL_EFORK)
    _exit(1);
  if (memory_alloc(place, MIB, 0, &memory) != HAUL_EFORK)
    _exit(2);
  _exit(10);
}

static haul_region *inherited;

static void child_that_releases(void *argument) {
  alarm(60);
  haul_region_release(inherited);
  haul_node_close(argument);
  _exit(10);
}

static void a_forked_child_gets_an_error(void **state) {
  haul_node *node = open_node();
  (void)state;
  inherited = get(node, place, MIB);
  haul_region_release(get(node, place, 65536));
  assert_int_equal(child_run(child_of_a_user, node), 10);
  assert_int_equal(child_run(child_that_releases, node), 10);
  memset(haul_region_address(inherited), 1, MIB);
  haul_region_release(inherited);
  haul_region_release(get(node, place, MIB));
  haul_node_close(node);
}

/* A DPDK application's memory is wrapped in place. */
static void eals_memory_is_recognised(void **state) {
  haul_node *node = open_node();
  haul_region *region;
  (void)state;
  char *own = malloc(4096);
  assert_works(haul_region_wrap(node, own, 4096, &region));
  assert_int_equal(haul_region_place(region).kind, HAUL_HOST);
  haul_region_release(region);
  free(own);
  haul_region_release(get(node, place, 4096)); /* starts EAL */
  const struct dpdk_eal *eal = dpdk_eal_start();
  char *bytes = eal->alloc("test", 10000, 64, 0);
  assert_non_null(bytes);
  assert_works(haul_region_wrap(node, bytes + 1, 9000, &region));
  assert_int_equal(haul_region_place(region).kind, HAUL_DPDK);
  assert_ptr_equal(haul_region_address(region), bytes + 1);
  assert_int_equal(haul_region_rights(region), HAUL_READ | HAUL_WRITE);
  haul_region *copy = get(node, host, 9000);
  pattern_fill(bytes + 1, 9000, 3);
  assert_works(haul_region_copy(copy, 0, region, 0, 9000, HAUL_FOREVER));
  pattern_check(haul_region_address(copy), 9000, 3);
  haul_region_release(copy);
  haul_region_release(region);
  const struct rte_memseg_list *list = eal->list_of(bytes);
  char *end = (char *)list->base_va + list->len;
  assert_fails(HAUL_EINVAL, haul_region_wrap(node, end - 1, 2, &region));
  eal->free(bytes);
  haul_node_close(node);
}

static bool is_external(const void *address) {
  const struct rte_memseg_list *list = dpdk_eal_start()->list_of(address);
  return list && list->external;
}

static void regions_are_registered_once(void **state) {
  haul_node *node = open_node();
  haul_region *region = get(node, host, 3 * MIB + 1), *wrapped;
  char *bytes = haul_region_address(region);
  (void)state;
  assert_fails(HAUL_EINVAL, haul_region_dpdk_unregister(region));
  assert_works(haul_region_dpdk_register(region));
  assert_true(is_external(bytes) && is_external(bytes + 3 * MIB));
  assert_fails(HAUL_EINVAL, haul_region_dpdk_register(region));
  says(haul_error_last()->text, "already");
  assert_works(haul_region_wrap(node, bytes + 4096, 8192, &wrapped));
  assert_int_equal(haul_region_place(wrapped).kind, HAUL_HOST); /* it stays host memory */
  assert_fails(HAUL_EINVAL, haul_region_dpdk_register(wrapped));
  says(haul_error_last()->text, "already");
  haul_region_release(wrapped);
  assert_works(haul_region_dpdk_unregister(region));
  assert_false(is_external(bytes));
  assert_works(haul_region_dpdk_register(region));
  haul_region_release(region); /* this ends the registration, too */
  assert_false(is_external(bytes));
  haul_node_close(node);
}

static void unregistrable_memory_is_rejected(void **state) {
  haul_node *node = open_node();
  haul_region *region;
  char *pages = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  assert_fails(HAUL_EINVAL, haul_region_dpdk_register(NULL));
  assert_works(haul_region_wrap(node, pages + 64, 4096, &region));
  assert_fails(HAUL_EINVAL, haul_region_dpdk_register(region));
  says(haul_error_last()->text, "whole pages");
  haul_region_release(region);
  assert_works(haul_region_wrap(node, pages, 4097, &region));
  assert_fails(HAUL_EINVAL, haul_region_dpdk_register(region));
  haul_region_release(region);
  assert_works(haul_region_wrap(node, pages, 8192, &region));
  assert_works(haul_region_dpdk_register(region));
  haul_region_release(region);
  assert_false(is_external(pages));
  mprotect(pages, 4096, PROT_READ);
  assert_works(haul_region_wrap(node, pages, 4096, &region));
  assert_fails(HAUL_EACCESS, haul_region_dpdk_register(region));
  haul_region_release(region);
  region = get(node, (struct haul_place){HAUL_SIM, 0}, MIB);
  assert_fails(HAUL_ENOTSUP, haul_region_dpdk_register(region));
  haul_region_release(region);
  region = get(node, place, MIB);
  assert_fails(HAUL_EINVAL, haul_region_dpdk_register(region));
  haul_region_release(region);
  munmap(pages, 4 * 4096);
  haul_node_close(node);
}

static void *start_as_an_application(void *unused) {
  static char words[][24] = {"app", "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry",
                             "-m",  "200"};
  char *arguments[COUNT(words) + 1];
  (void)unused;
  for (size_t i = 0; i < COUNT(words); i++)
    arguments[i] = words[i];
  arguments[COUNT(words)] = NULL;
  assert_true(dpdk_eal_open()->init((int)COUNT(words), arguments) >= 0);
  return NULL;
}

static void an_applications_eal_is_used(void **state) {
  pthread_t thread;
  (void)state;
  pthread_create(&thread, NULL, start_as_an_application, NULL);
  pthread_join(thread, NULL);
  haul_node *node = open_node();
  haul_region_release(get(node, place, MIB));
  assert_int_equal(dpdk_eal_state(), DPDK_FOREIGN);
  says(check_named(node, "dpdk.memory").text, "the application");
  struct dpdk_figures figures;
  assert_true(dpdk_pool_figures(0, &figures));
  assert_true(figures.limit[1] > 0 && figures.limit[1] <= 100);
  haul_node_close(node);
}

static void two_nodes(char *root) {
  assert_non_null(mkdtemp(root));
  tree_folder(root, "devices/system/node/node0");
  tree_folder(root, "devices/system/node/node1");
  dpdk_sys = root;
}

static void refuses_node_1(haul_node *node) {
  haul_region *region;
  for (int i = 0; i < 2; i++) {
    assert_fails(HAUL_ENOTSUP,
                 haul_region_alloc(node, (struct haul_place){HAUL_DPDK, 1}, MIB, 0, &region));
    assert_string_equal(haul_error_last()->object, "dpdk:1");
    says(haul_error_last()->text, "without huge pages EAL's memory is at its node 0");
  }
  haul_region_release(get(node, place, MIB));
}

/* EAL would serve it from node 0. */
static void a_failed_bind_is_an_error(void **state) {
  char root[] = "/tmp/haul-dpdk-XXXXXX";
  (void)state;
  if (dpdk_nodes() > 1)
    skip();
  two_nodes(root);
  haul_node *node = open_node();
  refuses_node_1(node);
  assert_int_equal(dpdk_eal_state(), DPDK_SMALL);
  haul_node_close(node);
  tree_remove(root);
}

static void an_applications_eal_has_no_other_node(void **state) {
  char root[] = "/tmp/haul-dpdk-XXXXXX";
  pthread_t thread;
  (void)state;
  two_nodes(root);
  pthread_create(&thread, NULL, start_as_an_application, NULL);
  pthread_join(thread, NULL);
  haul_node *node = open_node();
  refuses_node_1(node);
  assert_int_equal(dpdk_eal_state(), DPDK_FOREIGN);
  haul_node_close(node);
  tree_remove(root);
}

/* The error of an empty path names the package. */
static void a_missing_library_hints_at_its_package(void **state) {
  haul_node *node;
  haul_region *region;
  (void)state;
  dpdk_library.names[0] = "libhaul-no-such-library.so.1";
  node = open_node();
  assert_fails(HAUL_EPLACE, haul_region_alloc(node, place, MIB, 0, &region));
  says(haul_error_last()->hint, "sudo apt-get install librte-gpudev23 librte-mempool-ring23");
  struct haul_check library = check_named(node, "dpdk.library");
  assert_int_equal(library.state, HAUL_CHECK_MISSING);
  says(library.remedy, "sudo apt-get install librte-gpudev23 librte-mempool-ring23");
  region = get(node, host, MIB);
  assert_fails(HAUL_ENOTSUP, haul_region_dpdk_register(region));
  haul_region_release(region);
  haul_node_close(node);
}

static const struct haul_place gpu = {HAUL_GPUDEV, 1};

/* Counters of the mock, which devices() loads. */
static struct gpudev_double *door(haul_node *node) {
  struct haul_device devices[32];
  size_t count = COUNT(devices);
  assert_works(haul_device_list(node, devices, &count));
  void *library = dlopen("librte_gpudev.so.23", RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(library);
  struct gpudev_double *counted = dlsym(library, "gpudev_double");
  assert_non_null(counted);
  return counted;
}

/* With both GPUs, while registered with EAL. */
static void regions_are_registered_with_gpus_too(void **state) {
  haul_node *node = open_node();
  struct gpudev_double *counted = door(node);
  haul_region *region = get(node, host, MIB);
  (void)state;
  assert_int_equal(counted->registrations, 0);
  assert_works(haul_region_dpdk_register(region));
  assert_int_equal(counted->registrations, 2);
  assert_int_equal(counted->unregistrations, 0);
  assert_works(haul_region_dpdk_unregister(region));
  assert_int_equal(counted->unregistrations, 2);
  assert_works(haul_region_dpdk_register(region));
  haul_region_release(region);
  assert_int_equal(counted->registrations, 4);
  assert_int_equal(counted->unregistrations, 4);
  haul_node_close(node);
  regions_are_registered_once(state);
  assert_int_equal(counted->registrations, counted->unregistrations);
}

static void a_gpu_that_rejects_memory_ends_the_registration(void **state) {
  haul_node *node = open_node();
  struct gpudev_double *counted = door(node);
  haul_region *region = get(node, host, MIB);
  (void)state;
  counted->full = 2;
  assert_fails(HAUL_ELIMIT, haul_region_dpdk_register(region));
  assert_string_equal(haul_error_last()->object, "rte_gpu_mem_register");
  assert_int_equal(counted->registrations, 1);
  assert_int_equal(counted->unregistrations, 1);
  assert_false(is_external(haul_region_address(region)));
  counted->full = 0;
  assert_works(haul_region_dpdk_register(region));
  haul_region_release(region);
  assert_int_equal(counted->registrations, 3);
  assert_int_equal(counted->unregistrations, 3);
  haul_node_close(node);
}

/* Through the mapping; a barrier makes the bytes visible to the next kernel. */
static void writes_end_with_a_barrier(void **state) {
  haul_node *node = open_node();
  struct gpudev_double *counted = door(node);
  haul_region *region = get(node, gpu, MIB), *copy = get(node, host, MIB);
  (void)state;
  assert_int_equal(counted->allocations, 1);
  assert_int_equal(counted->barriers[2], 0);
  assert_works(haul_region_copy(region, 0, copy, 0, MIB, HAUL_FOREVER));
  assert_int_equal(counted->barriers[2], 1);
  assert_works(haul_region_copy(copy, 0, region, 0, MIB, HAUL_FOREVER));
  assert_int_equal(counted->barriers[2], 1); /* reads need none */
  assert_int_equal(counted->barriers[0], 0); /* of the other GPU */
  haul_region_release(copy);
  haul_region_release(region);
  haul_node_close(node);
  assert_int_equal(counted->frees, 1);
}

static void without_a_driver_cuda_is_named(void **state) {
  haul_node *node = open_node();
  haul_region *region;
  (void)state;
  assert_fails(HAUL_EPLACE, haul_region_alloc(node, gpu, MIB, 0, &region));
  says(haul_error_last()->text, "DPDK has no driver for a GPU here");
  says(haul_error_last()->hint, "cuda:N");
  struct haul_check check = check_named(node, "gpudev.device");
  assert_int_equal(check.state, HAUL_CHECK_OK);
  says(check.text, "cuda:N");
  haul_node_close(node);
}

/* Does the command's output contain the text? */
static bool printed(const char *arguments, const char *words) {
  char command[512], text[16384];
  assert_non_null(getenv("HAUL"));
  snprintf(command, sizeof command, "'%s' %s", getenv("HAUL"), arguments);
  FILE *from = popen(command, "r");
  assert_non_null(from);
  text[fread(text, 1, sizeof text - 1, from)] = '\0';
  pclose(from);
  return strstr(text, words) != NULL;
}

static void cuda_is_named_for_gpus_without_a_dpdk_driver(void **state) {
  haul_node *node = open_node();
  haul_region *region;
  (void)state;
  assert_fails(HAUL_EPLACE,
               haul_region_alloc(node, (struct haul_place){HAUL_GPUDEV, 0}, MIB, 0, &region));
  says(haul_error_last()->hint, "cuda:N serves this GPU, cuda:0 the first");
  struct haul_check check = check_named(node, "gpudev.device");
  assert_int_equal(check.state, HAUL_CHECK_OK);
  says(check.text, "cuda:N serves this GPU");
  region = get(node, (struct haul_place){HAUL_CUDA, 0}, MIB);
  haul_region *copy = get(node, host, MIB);
  pattern_fill(haul_region_address(copy), MIB, 6);
  assert_works(haul_region_copy(region, 0, copy, 0, MIB, HAUL_FOREVER));
  memset(haul_region_address(copy), 0, MIB);
  assert_works(haul_region_copy(copy, 0, region, 0, MIB, HAUL_FOREVER));
  pattern_check(haul_region_address(copy), MIB, 6);
  haul_region_release(copy);
  haul_region_release(region);
  haul_node_close(node);
  assert_true(printed("info", "cuda:0"));
  assert_false(printed("info", "gpudev:0"));
  assert_true(printed("doctor", "cuda:N serves this GPU"));
}

static void memory_without_a_cpu_mapping_is_rejected(void **state) {
  haul_node *node = open_node();
  haul_region *region;
  (void)state;
  assert_fails(HAUL_ENOTSUP, haul_region_alloc(node, gpu, MIB, 0, &region));
  haul_node_close(node);
}

static void memory_of_gpus_moves_through_the_mapping(void **state) {
  haul_node *node = open_node();
  haul_region *region = get(node, gpu, MIB), *copy = get(node, host, MIB), *inner;
  (void)state;
  pattern_fill(haul_region_address(copy), MIB, 1);
  assert_works(haul_region_copy(region, 0, copy, 0, MIB, HAUL_FOREVER));
  char *address = haul_region_address(region);
  assert_works(haul_region_wrap(node, address + 4096, 8192, &inner));
  assert_int_equal(haul_region_place(inner).kind, HAUL_GPUDEV);
  assert_int_equal(haul_region_place(inner).device, 1);
  memset(haul_region_address(copy), 0, MIB);
  assert_works(haul_region_copy(copy, 4096, inner, 0, 8192, HAUL_FOREVER));
  haul_region_release(inner);
  assert_fails(HAUL_EINVAL, haul_region_wrap(node, address + MIB - 1, 2, &inner));
  assert_works(haul_region_copy(copy, 0, region, 0, MIB, HAUL_FOREVER));
  pattern_check(haul_region_address(copy), MIB, 1);
  assert_fails(HAUL_ENOMEM, haul_region_alloc(node, gpu, (size_t)2 << 30, 0, &inner));
  assert_fails(HAUL_EPLACE,
               haul_region_alloc(node, (struct haul_place){HAUL_GPUDEV, 2}, MIB, 0, &inner));
  haul_region_release(copy);
  haul_region_release(region);
  haul_node_close(node);
}

static const struct mode {
  const char *name;
  void (*run)(void **state);
  const char *eal, *pool, *wait; /* settings */
  bool everywhere;               /* also without DPDK */
  const char *gpus;              /* variant of the mock; NULL: none */
  bool cuda;                     /* also with the emulated CUDA driver */
} modes[] = {
#define MODE(test, ...)                                                                            \
  { #test, test, __VA_ARGS__, NULL, false }
#define MODE_OF_GPUS(test, everywhere, gpus, cuda)                                                 \
  { #test, test, NULL, NULL, NULL, everywhere, gpus, cuda }
    MODE(listing_does_not_start_eal, NULL, NULL, NULL, false),
    MODE(objects_are_aligned_and_used_again, NULL, NULL, NULL, false),
    MODE(the_callers_affinity_and_signals_are_kept, NULL, NULL, NULL, false),
    MODE(allocations_wait_for_an_empty_pool, NULL, "2,1,0,0", "1500ms", false),
    MODE(a_failure_of_eal_has_its_log, "--no-huge --in-memory -m 64", NULL, NULL, false),
    MODE(unknown_arguments_are_named, "--no-huge --no-such-argument", NULL, NULL, false),
    MODE(invalid_values_have_eals_log, "--no-huge -m 64 --vdev none", NULL, NULL, false),
    MODE(missing_huge_pages_are_reported, "--in-memory --no-pci -m 64", NULL, NULL, false),
    MODE(huge_pages_taken_meanwhile_are_reported, NULL, NULL, NULL, false),
    MODE(a_forked_child_gets_an_error, NULL, NULL, NULL, false),
    MODE(eals_memory_is_recognised, NULL, NULL, NULL, false),
    MODE(regions_are_registered_once, NULL, NULL, NULL, false),
    MODE(unregistrable_memory_is_rejected, NULL, NULL, NULL, false),
    MODE(an_applications_eal_is_used, NULL, NULL, NULL, false),
    MODE(a_failed_bind_is_an_error, NULL, NULL, NULL, false),
    MODE(an_applications_eal_has_no_other_node, NULL, NULL, NULL, false),
    MODE(a_missing_library_hints_at_its_package, NULL, NULL, NULL, true),
    MODE_OF_GPUS(without_a_driver_cuda_is_named, true, "none", false),
    MODE_OF_GPUS(cuda_is_named_for_gpus_without_a_dpdk_driver, true, "none", true),
    MODE_OF_GPUS(memory_without_a_cpu_mapping_is_rejected, true, "unmapped", false),
    MODE_OF_GPUS(memory_of_gpus_moves_through_the_mapping, true, "two", false),
    MODE_OF_GPUS(writes_end_with_a_barrier, true, "two", false),
    MODE_OF_GPUS(regions_are_registered_with_gpus_too, false, "two", false),
    MODE_OF_GPUS(a_gpu_that_rejects_memory_ends_the_registration, false, "two", false),
};

static void put(const char *variable, const char *value) {
  if (value)
    setenv(variable, value, 1);
}

static void find_doubles(bool cuda) {
  char path[512];
  const char *doubles = getenv("HAUL_DOUBLES");
  doubles = doubles ? doubles : ".";
  snprintf(path, sizeof path, "%s/gpudev%s%s%s", doubles, cuda ? ":" : "", cuda ? doubles : "",
           cuda ? "/cuda/current" : "");
  setenv("LD_LIBRARY_PATH", path, 1);
}

static void in_a_process(void **state) {
  const struct mode *mode = *state;
  if (mode->gpus && !getenv("HAUL_DOUBLES")) {
    print_message("skipped: HAUL_DOUBLES is not set\n");
    skip();
  }
  if (!mode->everywhere && !dpdk_eal_open()) {
    print_message("skipped: %s\n", haul_error_last()->hint);
    skip();
  }
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("HAUL_CONF", "", 1);
    put("HAUL_DPDK_EAL", mode->eal);
    put("HAUL_DPDK_POOL", mode->pool);
    put("HAUL_DPDK_WAIT", mode->wait);
    put("HAUL_DOUBLE_GPUDEV", mode->gpus);
    if (mode->gpus)
      find_doubles(mode->cuda);
    execl("/proc/self/exe", "memory_dpdk", mode->name, NULL);
    _exit(127);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static int run_one(const char *name) {
  for (size_t i = 0; i < COUNT(modes); i++) {
    const struct CMUnitTest test[] = {{modes[i].name, modes[i].run, NULL, NULL, NULL}};
    if (strcmp(modes[i].name, name) == 0)
      return cmocka_run_group_tests_name(name, test, NULL, NULL);
  }
  return 2;
}

int main(int count, char **arguments) {
  struct CMUnitTest tests[COUNT(modes)];
  if (count == 2)
    return run_one(arguments[1]);
  for (size_t i = 0; i < COUNT(modes); i++)
    tests[i] =
        (struct CMUnitTest){modes[i].name, in_a_process, NULL, NULL, (void *)(uintptr_t)&modes[i]};
  return _cmocka_run_group_tests("unit/memory_dpdk", tests, COUNT(modes), NULL, NULL);
}
