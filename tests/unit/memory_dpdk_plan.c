/* SPDX-License-Identifier: MIT
 * EAL's arguments by the host's memory: over a made-up sysfs and an rte_eal_init that records its
 * arguments. EAL is started once in a process, so each test runs in its own process: this program
 * with the test's name. */
#include "support/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/sys.h"
#include "memory/dpdk/dpdk.h"
#include "memory/pages.h"
#include "support/tree.h"

#define MIB  ((size_t)1 << 20)
#define HUGE "kernel/mm/hugepages/hugepages-2048kB/"

static haul_node *node;
static char root[64];

static void host_has(const char *path, unsigned pages) {
  char text[16];
  snprintf(text, sizeof text, "%u\n", pages);
  tree_file(root, path, text);
}

static void node_has(unsigned number, unsigned pages) {
  char path[96];
  snprintf(path, sizeof path,
           "devices/system/node/node%u/hugepages/hugepages-2048kB/free_hugepages", number);
  host_has(path, pages);
}

static unsigned reserved(void) {
  return (unsigned)(dpdk_huge_all() / HUGE_PAGE);
}

static char words[1024]; /* the arguments, each with a blank before it */
static size_t heap[4];   /* bytes on each node */

static int note_arguments(int count, char **arguments) {
  size_t used = 0;
  for (int i = 1; i < count; i++)
    used += (size_t)snprintf(words + used, sizeof words - used, " %s", arguments[i]);
  return 0;
}

static int heap_stats(int socket, struct rte_malloc_socket_stats *stats) {
  stats->heap_totalsz_bytes = stats->heap_freesz_bytes = heap[socket];
  return 0;
}

static void *heap_alloc(const char *type, size_t bytes, unsigned alignment, int socket) {
  (void)type;
  return bytes <= heap[socket] ? aligned_alloc(alignment, bytes) : NULL;
}

static void use_notes(void) {
  assert_non_null(dpdk_eal_open());
  struct dpdk_eal *eal = dpdk_library.table;
  eal->init = note_arguments;
  eal->stats = heap_stats;
  eal->alloc = heap_alloc;
  eal->free = free;
}

static struct {
  unsigned calls, node, flags;
  bool refuses;
} bound;

static long note_bind(void *address, size_t length, int mode, const unsigned long *nodes,
                      unsigned long bits, unsigned flags) {
  assert_int_equal((uintptr_t)address % page_size(), 0);
  assert_int_equal(length, MIB);
  assert_int_equal(mode, 1);
  bound.calls++;
  bound.flags = flags;
  for (unsigned i = 0; i + 1 < bits; i++)
    if (nodes[i / 64] & 1ul << i % 64)
      bound.node = i;
  errno = EPERM;
  return bound.refuses ? -1 : 0;
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  snprintf(root, sizeof root, "/tmp/haul-plan-XXXXXX");
  assert_non_null(mkdtemp(root));
  tree_folder(root, "devices/system/node/node0");
  dpdk_sys = root;
  use_notes();
  sys_ops.mbind = note_bind;
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &node));
  for (size_t i = 0; i < COUNT(heap); i++)
    heap[i] = 1024 * MIB;
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_node_close(node);
  tree_remove(root);
  return 0;
}

static haul_region *get(unsigned number) {
  haul_region *region;
  assert_works(
      haul_region_alloc(node, (struct haul_place){HAUL_DPDK, (uint16_t)number}, MIB, 0, &region));
  return region;
}

static void says(const char *where, const char *what) {
  if (!strstr(where, what))
    fail_msg("'%s' lacks '%s'", where, what);
}

static struct haul_check check_named(const char *name) {
  struct haul_check checks[64];
  size_t count = COUNT(checks);
  assert_works(haul_check_list(node, checks, &count));
  for (size_t i = 0; i < count && i < COUNT(checks); i++)
    if (strcmp(checks[i].name, name) == 0)
      return checks[i];
  fail_msg("no check %s", name);
  return checks[0];
}

static struct haul_device device(unsigned number) {
  struct haul_device devices[32];
  size_t count = COUNT(devices);
  assert_works(haul_device_list(node, devices, &count));
  for (size_t i = 0; i < count; i++)
    if (devices[i].place.kind == HAUL_DPDK && devices[i].place.device == number)
      return devices[i];
  fail_msg("no dpdk:%u", number);
  return devices[0];
}

static void half_of_the_free_huge_pages_is_taken(void **state) {
  (void)state;
  host_has(HUGE "free_hugepages", 512);
  host_has(HUGE "nr_hugepages", 600);
  haul_region_release(get(0));
  says(words, " --in-memory --no-pci --no-telemetry --iova-mode=va --socket-mem=512 "
              "--socket-limit=512 --lcores 0@");
  assert_int_equal(dpdk_eal_state(), DPDK_OURS);
  assert_int_equal(check_named("dpdk.memory").state, HAUL_CHECK_OK);
  assert_int_equal(reserved(), 600); /* no reservation without a setting */
}

/* 4096 + 1024 + 4096 + 16384 MiB: three quarters hold the objects of dpdk_pool. */
static void the_pool_bounds_the_memory(void **state) {
  (void)state;
  host_has(HUGE "free_hugepages", 100000);
  haul_region_release(get(0));
  says(words, "--socket-mem=29076 --socket-limit=29076");
}

/* A limit of 0 means unlimited. */
static void each_node_contributes_half_of_its_pages(void **state) {
  (void)state;
  host_has(HUGE "free_hugepages", 400);
  node_has(0, 300);
  node_has(1, 100);
  node_has(2, 0);
  haul_region_release(get(1));
  says(words, "--socket-mem=300,100,0 --socket-limit=300,100,1 ");
  assert_int_equal(bound.calls, 0); /* EAL detects the nodes */
}

static void small_pages_replace_huge_ones(void **state) {
  (void)state;
  host_has(HUGE "free_hugepages", 31);
  host_has(HUGE "nr_hugepages", 40);
  haul_region_release(get(0));
  says(words, " --no-huge --no-pci --no-shconf --no-telemetry -m ");
  assert_int_equal(dpdk_eal_state(), DPDK_SMALL);
  struct haul_check memory = check_named("dpdk.memory");
  assert_int_equal(memory.state, HAUL_CHECK_LIMITED);
  says(memory.text, "EAL was started without huge pages");
  assert_int_equal(reserved(), 40);
}

static void requested_huge_pages_are_reserved(void **state) {
  (void)state;
  host_has(HUGE "free_hugepages", 128); /* as after the start */
  host_has(HUGE "nr_hugepages", 130);
  haul_region_release(get(0));
  says(words, "--socket-mem=256 --socket-limit=256 ");
  assert_int_equal(reserved(), 130);
  assert_int_equal(check_named("dpdk.memory").state, HAUL_CHECK_OK);
}

/* The kernel has no free memory. */
static void fewer_than_requested_are_reported(void **state) {
  (void)state;
  host_has(HUGE "free_hugepages", 48);
  host_has(HUGE "nr_hugepages", 50);
  haul_region_release(get(0));
  assert_int_equal(reserved(), 130);
  says(words, "--socket-mem=96 --socket-limit=96 ");
  struct haul_check memory = check_named("dpdk.memory");
  assert_int_equal(memory.state, HAUL_CHECK_LIMITED);
  says(memory.text, "96 of the 256 MiB of huge pages that dpdk_hugepages asks for were free");
  says(memory.remedy, "nr_hugepages");
}

/* No permission, or a read-only file system. */
static void a_failed_reservation_is_reported(void **state) {
  (void)state;
  haul_region_release(get(0));
  says(words, " --no-huge ");
  struct haul_check memory = check_named("dpdk.memory");
  assert_int_equal(memory.state, HAUL_CHECK_LIMITED);
  says(memory.text, "0 of the 256 MiB of huge pages that dpdk_hugepages asks for were free: EAL's "
                    "memory is in pages of 4 KiB");
}

/* Three quarters of 1024 MiB are 768 of the 21760 MiB that all objects need. */
static void the_default_counts_are_cut_by_one_factor(void **state) {
  struct dpdk_figures figures;
  uint64_t cut;
  (void)state;
  heap[0] = 32768 * MIB;
  host_has(HUGE "free_hugepages", 800);
  node_has(0, 400);
  node_has(1, 400);
  says(check_named("dpdk.pool").text, "up to 4096,1024,256,64 objects");
  haul_region_release(get(0));
  assert_true(dpdk_pool_figures(0, &figures));
  assert_false(dpdk_pool_is_cut(&figures));
  assert_true(dpdk_pool_figures(1, &figures));
  assert_true(dpdk_pool_is_cut(&figures));
  struct haul_check pool = check_named("dpdk.pool");
  assert_int_equal(pool.state, HAUL_CHECK_LIMITED);
  assert_string_equal(pool.text, "144,36,9,2 objects of 64 KiB, 1, 16 and 256 MiB at dpdk:1, as "
                                 "EAL has no memory for 4096,1024,256,64");
  says(pool.remedy, "dpdk_pool in haul.conf");
  assert_string_equal(device(0).name, "DPDK memory, 4096,1024,256,64"); /* as haul info prints it */
  assert_string_equal(device(1).name, "DPDK memory, 144,36,9,2 (cut)");
  assert_works(haul_counter_read(node, "dpdk.objects_cut", &cut));
  assert_int_equal(cut, 4096 - 144 + 1024 - 36 + 256 - 9 + 64 - 2);
}

static void without_huge_pages_haul_binds(void **state) {
  struct dpdk_figures figures;
  (void)state;
  tree_folder(root, "devices/system/node/node1");
  haul_region *first = get(1), *second;
  assert_int_equal(dpdk_eal_state(), DPDK_SMALL);
  assert_int_equal(bound.calls, 1);
  assert_int_equal(bound.node, 1);
  assert_int_equal(bound.flags, 2); /* touched pages migrate */
  second = get(0);
  assert_int_equal(bound.calls, 2);
  assert_int_equal(bound.node, 0);
  haul_region_release(first);
  haul_region_release(second);
  haul_region_release(get(1)); /* the object stays bound */
  assert_int_equal(bound.calls, 2);
  for (unsigned i = 0; i < 2; i++) { /* one heap for both nodes */
    assert_true(dpdk_pool_figures(i, &figures));
    assert_int_equal(figures.limit[1], 18);
  }
}

static void a_node_that_cannot_be_bound_is_rejected(void **state) {
  haul_region *region;
  (void)state;
  tree_folder(root, "devices/system/node/node1");
  bound.refuses = true;
  for (int i = 0; i < 2; i++) {
    assert_fails(HAUL_ENOTSUP,
                 haul_region_alloc(node, (struct haul_place){HAUL_DPDK, 1}, MIB, 0, &region));
    assert_string_equal(haul_error_last()->object, "dpdk:1");
    says(haul_error_last()->text, "bind");
    says(haul_error_last()->hint, "dpdk:0");
  }
  struct dpdk_figures figures;
  assert_true(dpdk_pool_figures(1, &figures));
  assert_int_equal(figures.unused[1], figures.made[1]); /* nothing leaks */
  haul_region_release(get(0));
}

static void one_node_needs_no_binding(void **state) {
  (void)state;
  haul_region_release(get(0));
  assert_int_equal(bound.calls, 0);
}

static const struct mode {
  const char *name;
  void (*run)(void **state);
  const char *hugepages; /* the setting */
} modes[] = {
#define MODE(test, hugepages)                                                                      \
  { #test, test, hugepages }
    MODE(half_of_the_free_huge_pages_is_taken, NULL),
    MODE(the_pool_bounds_the_memory, NULL),
    MODE(each_node_contributes_half_of_its_pages, NULL),
    MODE(small_pages_replace_huge_ones, NULL),
    MODE(requested_huge_pages_are_reserved, "256M"),
    MODE(fewer_than_requested_are_reported, "256M"),
    MODE(a_failed_reservation_is_reported, "256M"),
    MODE(the_default_counts_are_cut_by_one_factor, NULL),
    MODE(without_huge_pages_haul_binds, NULL),
    MODE(a_node_that_cannot_be_bound_is_rejected, NULL),
    MODE(one_node_needs_no_binding, NULL),
};

static void in_a_process(void **state) {
  const struct mode *mode = *state;
  if (!dpdk_eal_open()) {
    print_message("skipped: %s\n", haul_error_last()->hint);
    skip();
  }
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("HAUL_CONF", "", 1);
    if (mode->hugepages)
      setenv("HAUL_DPDK_HUGEPAGES", mode->hugepages, 1);
    execl("/proc/self/exe", "memory_dpdk_plan", mode->name, NULL);
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
      return cmocka_run_group_tests_name(name, test, set_up, tear_down);
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
  return _cmocka_run_group_tests("unit/memory_dpdk_plan", tests, COUNT(modes), NULL, NULL);
}
