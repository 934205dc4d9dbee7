/* SPDX-License-Identifier: MIT
 * The setting `paths`: the path taken, the report, and settings of higher precedence. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "support/owner.h"
#include "support/seams.h"

#define BOUND  (20 * S)
#define LENGTH ((uint64_t)1 << 20)

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *theirs, *ours;
  struct haul_remote *remote;
} t;

static void begin(const char *paths) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char address[160];
  config.paths = paths;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_node_open(&config, &t.user));
  assert_works(haul_peer_connect(t.user, address, haul_deadline_in(BOUND), &t.peer));
  t.theirs = region_make(t.owner, KIND_HOST, LENGTH);
  t.ours = region_make(t.user, KIND_HOST, LENGTH);
  assert_works(haul_region_publish(t.theirs, "memory", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
}

static int tear_down(void **state) {
  (void)state;
  unsetenv("HAUL_PATHS");
  haul_remote_release(t.remote);
  haul_region_release(t.ours);
  haul_region_release(t.theirs);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  memset(&t, 0, sizeof t);
  return 0;
}

static struct haul_report write_with(const struct haul_transfer_options *options, uint64_t bytes) {
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_piece piece = {0, 0, bytes};
  haul_transfer *transfer;
  assert_works(haul_write(t.remote, t.ours, &piece, 1, options, &transfer));
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  return report;
}

static const struct haul_path *named(const struct haul_report *report, const char *name) {
  for (size_t i = 0; i < report->path_count; i++)
    if (strcmp(report->paths[i].name, name) == 0)
      return &report->paths[i];
  fail_msg("no path %s", name);
  return NULL;
}

static uint64_t counter(const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(t.user, name, &value));
  return value;
}

static void an_invalid_path_fails_the_open(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.paths = "tcp:64K";
  assert_fails(HAUL_EINVAL, haul_node_open(&config, &node));
  assert_string_equal(haul_error_last()->object, "paths");
  assert_non_null(strstr(haul_error_last()->text, "tcp:64K,rdma"));
  setenv("HAUL_PATHS", "pigeon", 1);
  assert_fails(HAUL_EINVAL, haul_node_open(NULL, &node));
  assert_string_equal(haul_error_last()->object, "HAUL_PATHS");
}

/* Nothing falls back to what was left out. */
static void a_closed_path_that_was_set_fails(void **state) {
  (void)state;
  struct haul_piece piece = {0, 0, 8};
  begin("rdma");
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  assert_works(haul_explain(t.ours, t.remote, HAUL_OP_WRITE, 8, NULL, paths, &count));
  if (paths[0].open) {
    print_message("skipped: there is a NIC here\n");
    skip();
  }
  assert_fails(HAUL_ENOPATH, haul_write(t.remote, t.ours, &piece, 1, NULL, NULL));
  assert_non_null(strstr(haul_error_last()->hint, "not tcp: left out by the program"));
}

static void the_report_names_the_source_of_the_setting(void **state) {
  (void)state;
  char text[2048];
  setenv("HAUL_PATHS", "tcp", 1);
  begin(NULL);
  struct haul_report report = write_with(NULL, LENGTH);
  assert_string_equal(report.paths[0].name, "tcp");
  assert_string_equal(report.paths[0].reason, "set by HAUL_PATHS");
  assert_false(named(&report, "map")->open);
  assert_string_equal(named(&report, "map")->reason, "left out by HAUL_PATHS");
  haul_report_format(&report, text, sizeof text);
  assert_non_null(strstr(text, "set by HAUL_PATHS"));
  assert_non_null(strstr(text, "not map: left out by HAUL_PATHS"));
}

/* Also the smallest, which otherwise go without a look at the path. */
static void small_writes_obey(void **state) {
  (void)state;
  struct haul_piece piece = {0, 0, 8};
  begin("tcp");
  assert_works(haul_write(t.remote, t.ours, &piece, 1, NULL, NULL));
  assert_int_equal(counter("path.tcp.writes"), 1);
  assert_int_equal(counter("path.map.writes"), 0);
}

static void sizes_have_their_paths(void **state) {
  (void)state;
  begin("tcp:1000,map:2000,tcp");
  assert_string_equal(write_with(NULL, 1000).paths[0].name, "tcp");
  struct haul_report report = write_with(NULL, 1001);
  assert_string_equal(report.paths[0].name, "map");
  assert_true(named(&report, "tcp")->open);
  report = write_with(NULL, LENGTH);
  assert_string_equal(report.paths[0].name, "tcp");
  assert_true(named(&report, "map")->open);
  assert_non_null(strstr(named(&report, "map")->reason, "but another is set by the program"));
  for (unsigned i = 0; i < 3; i++) {
    struct haul_piece piece = {0, 0, i == 0 ? 8 : i == 1 ? 1001 : 2001};
    assert_works(haul_write(t.remote, t.ours, &piece, 1, NULL, NULL));
  }
  assert_int_equal(counter("path.tcp.writes"), 4);
  assert_int_equal(counter("path.map.writes"), 2);
}

static void small_sizes_of_map_stay_direct(void **state) {
  (void)state;
  begin("map:100,tcp");
  for (uint64_t bytes = 8; bytes < 1000; bytes *= 2) {
    struct haul_piece piece = {0, 0, bytes};
    assert_works(haul_write(t.remote, t.ours, &piece, 1, NULL, NULL));
  }
  assert_int_equal(counter("path.map.writes"), 4);
  assert_int_equal(counter("path.tcp.writes"), 3);
}

/* Where the one for the size is closed the other named ones are taken, not those left out. */
static void of_several_a_closed_one_is_passed_over(void **state) {
  (void)state;
  struct haul_transfer_options zero_copy = HAUL_TRANSFER_OPTIONS_INIT;
  begin("tcp:64K,map");
  zero_copy.flags = HAUL_REQUIRE_ZERO_COPY;
  struct haul_report report = write_with(&zero_copy, 1000);
  assert_string_equal(report.paths[0].name, "map");
  assert_string_equal(report.paths[0].reason, "");
}

/* The call's word is above the configuration's. */
static void a_transfer_may_require_an_excluded_path(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  begin("tcp");
  options.only = "map";
  struct haul_report report = write_with(&options, 1000);
  assert_string_equal(report.paths[0].name, "map");
  assert_string_equal(named(&report, "tcp")->reason, "excluded by the option 'only'");
}

static void the_call_overrides_the_environment(void **state) {
  (void)state;
  setenv("HAUL_PATHS", "tcp", 1);
  begin("auto");
  struct haul_report report = write_with(NULL, 1000);
  assert_string_equal(report.paths[0].name, "map");
  assert_string_equal(report.paths[0].reason, "");
}

static unsigned copies(uint64_t bytes, const char **send) {
  static struct haul_report report;
  report = write_with(NULL, bytes);
  *send = report.paths[0].send;
  return report.paths[0].copies_kernel;
}

static void estimates_alone_are_reported(void **state) {
  (void)state;
  setenv("HAUL_ESTIMATES_ONLY", "yes", 1);
  begin(NULL);
  unsetenv("HAUL_ESTIMATES_ONLY");
  assert_string_equal(write_with(NULL, 1000).paths[0].reason,
                      "by estimates alone (estimates_only)");
}

/* From which size on pages go by reference can be set too. */
static void the_threshold_of_tcp_can_be_set(void **state) {
  (void)state;
  static const struct {
    const char *set;
    uint64_t from;
  } cases[] = {{"4096", 4096}, {"512K", 524288}, {"auto", 65536}, {"none", 0}};
  for (unsigned i = 0; i < COUNT(cases); i++) {
    const char *send;
    setenv("HAUL_TCP_ZERO_COPY", cases[i].set, 1);
    begin("tcp");
    for (uint64_t bytes = 2048; bytes <= LENGTH; bytes *= 2) {
      bool pages = cases[i].from && bytes >= cases[i].from;
      assert_int_equal(copies(bytes, &send), pages ? 1 : 2);
      assert_string_equal(send, pages ? "direct" : "buffered");
    }
    struct haul_report report = write_with(NULL, LENGTH);
    bool set = strcmp(cases[i].set, "auto") != 0;
    assert_int_equal(strstr(report.paths[0].detail, ", as set") != NULL, set); /* reported */
    unsetenv("HAUL_TCP_ZERO_COPY");
    tear_down(NULL);
  }
  setenv("HAUL_TCP_ZERO_COPY", "4095", 1);
  assert_fails(HAUL_EINVAL, haul_node_open(NULL, &t.user));
  unsetenv("HAUL_TCP_ZERO_COPY");
}

#define TEST(test) cmocka_unit_test_teardown(test, tear_down)

/* The peer is this process, whose time is measured. */
static void the_cpu_time_is_measured_on_demand(void **state) {
  static const char *const ways[] = {"map", "tcp"};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  char text[4096];
  (void)state;
  begin(NULL);
  for (unsigned i = 0; i < 2; i++) {
    options.only = ways[i];
    options.flags = 0;
    assert_int_equal(write_with(&options, LENGTH).cpu_ns, 0);
    options.flags = HAUL_CPU_TIME;
    struct haul_report report = write_with(&options, LENGTH);
    assert_true(report.cpu_ns > 0);
    haul_report_format(&report, text, sizeof text);
    assert_non_null(strstr(text, "; CPU time "));
  }
}

static void the_cpu_time_of_an_atomic_operation(void **state) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  haul_transfer *transfer;
  (void)state;
  begin(NULL);
  options.flags = HAUL_CPU_TIME;
  assert_works(haul_fetch_add(t.ours, 0, t.remote, 0, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  assert_true(report.cpu_ns > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(an_invalid_path_fails_the_open),
      TEST(a_closed_path_that_was_set_fails),
      TEST(the_report_names_the_source_of_the_setting),
      TEST(small_writes_obey),
      TEST(sizes_have_their_paths),
      TEST(small_sizes_of_map_stay_direct),
      TEST(of_several_a_closed_one_is_passed_over),
      TEST(a_transfer_may_require_an_excluded_path),
      TEST(the_call_overrides_the_environment),
      TEST(estimates_alone_are_reported),
      TEST(the_threshold_of_tcp_can_be_set),
      TEST(the_cpu_time_is_measured_on_demand),
      TEST(the_cpu_time_of_an_atomic_operation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
