/* SPDX-License-Identifier: MIT
 * Where a node's settings come from, and every mistake that their file can have. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/config.h"

static char file[32];

static int set_up(void **state) {
  (void)state;
  snprintf(file, sizeof file, "/tmp/haul-config-XXXXXX");
  int made = mkstemp(file);
  close(made);
  return made < 0 ? -1 : setenv("HAUL_CONF", file, 1);
}

static int tear_down(void **state) {
  (void)state;
  unlink(file);
  unsetenv("HAUL_POOL");
  unsetenv("HAUL_SPIN");
  return 0;
}

static void write_file(const char *text) {
  FILE *to = fopen(file, "we");
  assert_non_null(to);
  assert_true(fputs(text, to) >= 0);
  assert_int_equal(fclose(to), 0);
}

static struct config read_with(const char *text) {
  struct config config;
  write_file(text);
  assert_works(config_read(NULL, &config));
  return config;
}

/* The object names the file and the line. */
static void refuses(const char *text, unsigned line, const char *words) {
  struct config config;
  char object[64];
  write_file(text);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  snprintf(object, sizeof object, "%s:%u", file, line);
  assert_string_equal(haul_error_last()->object, object);
  if (!strstr(haul_error_last()->text, words))
    fail_msg("%s: %s", haul_error_last()->text, words);
}

/* ---- What is refused ---- */

static void every_mistake_is_told_with_its_line(void **state) {
  static const struct {
    const char *text;
    unsigned line;
    const char *words;
  } cases[] = {
      {"pool", 1, "sets nothing"},
      {"\n# more\n\n  pool 5M\n", 4, "sets nothing"},
      {"= 5", 1, "no setting"},
      {"pol = 5M", 1, "no setting pol"},
      {"Pool = 5M", 1, "no setting Pool"},
      {"progress = caller", 1, "no setting progress"},
      {"pool =", 1, "cannot be set"},
      {"pool = 0", 1, "cannot be set"},
      {"pool = -1", 1, "cannot be set"},
      {"pool = +1", 1, "cannot be set"},
      {"pool = 5X", 1, "cannot be set"},
      {"pool = 5 M", 1, "cannot be set"},
      {"pool = 5M # five", 1, "cannot be set"},
      {"pool = 5MM", 1, "cannot be set"},
      {"pool = 0x10", 1, "cannot be set"},
      {"pool = 99999999999999999999", 1, "cannot be set"},
      {"pool = 18446744073709551615", 1, "cannot be set"},
      {"pool = 16777216T", 1, "cannot be set"},
      {"pool = None", 1, "cannot be set"},
      {"spin = 5", 1, "cannot be set"},
      {"spin = 5h", 1, "cannot be set"},
      {"spin = 1.5ms", 1, "cannot be set"},
      {"spin = never", 1, "cannot be set"},
      {"liveness = 9ms", 1, "cannot be set"},
      {"liveness = 0", 1, "cannot be set"},
      {"deadline = 0s", 1, "cannot be set"},
      {"deadline = 9223372036855s", 1, "cannot be set"},
      {"tcp_rails = 17", 1, "cannot be set"},
      {"tcp_rails = 1K", 1, "cannot be set"},
      {"staging = 7M", 1, "cannot be set"},
      {"tcp_rate = 1023K", 1, "cannot be set"},
      {"tcp_zero_copy = 4095", 1, "cannot be set"},
      {"tcp_zero_copy = 0", 1, "cannot be set"},
      {"\ntcp_zero_copy = always", 2, "cannot be set"},
      {"paths = ", 1, "cannot be set"},
      {"paths = pigeon", 1, "cannot be set"},
      {"paths = tcp:64K", 1, "cannot be set"},
      {"\n\npaths = tcp:64K,map:32K,rdma", 3, "cannot be set"},
      {"paths = tcp, map", 1, "cannot be set"},
      {"estimates_only = 2", 1, "neither yes nor no"},
      {"pool = 5M\nestimates_only = ", 2, "neither yes nor no"},
      {"copy_threads = 0", 1, "cannot be set"},
      {"message_window = 1M", 1, "cannot be set"},
      {"message_window = 2G", 1, "cannot be set"},
      {"max_peers = 4294967296", 1, "cannot be set"},
      {"max_regions = 1048577", 1, "cannot be set"},
      {"dpdk_pool = 1,2,3", 1, "cannot be set"},
      {"\ndpdk_pool = 1,2,3,4,5", 2, "cannot be set"},
      {"dpdk_pool = 1,2,-3,4", 1, "cannot be set"},
      {"dpdk_pool = 1,2,3,1048577", 1, "cannot be set"},
      {"dpdk_pool = 1, 2, 3, 4", 1, "cannot be set"},
      {"dpdk_wait = 100", 1, "cannot be set"},
      {"dpdk_hugepages = 0", 1, "cannot be set"},
      {"dpdk_eal = words", 1, "no arguments of EAL's"},
      {"dpdk_eal = -m 5 --help", 1, "no arguments of EAL's"},
      {"dpdk_eal = -m 5 \x01", 1, "no arguments of EAL's"},
      {"insecure = maybe", 1, "neither yes nor no"},
      {"insecure = ", 1, "neither yes nor no"},
      {"name = two words", 1, "no name"},
      {"name = ", 1, "no name"},
      {"name = 0123456789012345678901234567890123456789012345678901234567890123", 1, "no name"},
      {"pool = 5M\nspin = 0\npool = 6M\n", 3, "in line 1 already"},
      {"pool = 5M\r\nspin = x\r\n", 2, "cannot be set"},
  };
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++)
    refuses(cases[i].text, cases[i].line, cases[i].words);
}

static void what_stands_over_a_mistake_does_not_hide_it(void **state) {
  (void)state;
  setenv("HAUL_POOL", "1M", 1);
  refuses("pool = lots", 1, "cannot be set");
}

static void what_is_no_text_file_is_refused(void **state) {
  struct config config;
  (void)state;
  int to = open(file, O_WRONLY | O_CLOEXEC);
  assert_int_equal(write(to, "pool = 5M\n\0spin = 0\n", 20), 20);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  assert_non_null(strstr(haul_error_last()->text, "no text"));
  assert_int_equal(ftruncate(to, CONFIG_MAX + 1), 0);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  close(to);
  unlink(file);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config)); /* HAUL_CONF names it */
  assert_int_equal(mkfifo(file, 0600), 0);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config)); /* and does not wait for a writer */
}

static void a_folder_is_refused(void **state) {
  struct config config;
  (void)state;
  setenv("HAUL_CONF", "/tmp", 1);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  assert_string_equal(haul_error_last()->object, "/tmp");
  assert_non_null(strstr(haul_error_last()->text, "no file"));
}

/* Root may read any file, but not through a link that leads to itself. */
static void a_file_that_cannot_be_read_is_refused(void **state) {
  struct config config;
  (void)state;
  write_file("pool = 5M\n");
  assert_int_equal(chmod(file, 0), 0);
  if (geteuid() == 0) {
    unlink(file);
    assert_int_equal(symlink(file, file), 0);
  }
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  assert_string_equal(haul_error_last()->object, file);
  assert_int_equal(haul_error_last()->system, geteuid() == 0 ? ELOOP : EACCES);
  assert_non_null(strstr(haul_error_last()->text, "cannot be read"));
}

static void the_line_is_told_of_a_long_path_too(void **state) {
  struct config config = {.path = ""};
  char path[400], text[] = "\npol = 1";
  (void)state;
  memset(path, 'd', sizeof path - 1);
  path[sizeof path - 1] = '\0';
  assert_fails(HAUL_EINVAL, config_parse(text, path, &config));
  assert_non_null(strstr(haul_error_last()->object, "dd:2"));
}

static void a_variables_mistake_names_it(void **state) {
  struct config config;
  (void)state;
  setenv("HAUL_SPIN", "long", 1);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  assert_string_equal(haul_error_last()->object, "HAUL_SPIN");
  assert_non_null(strstr(haul_error_last()->hint, "always"));
}

/* ---- What is taken ---- */

static void every_setting_can_be_set(void **state) {
  (void)state;
  struct config config = read_with("name = here\ninsecure = yes\nspin=50us\n liveness = 2min \n"
                                   "deadline = 1500ms\ntcp_rails = 4\ncopy_threads = none\n"
                                   "message_window = 2M\npool = 1G\nmax_peers = 7\r\n"
                                   "\t# a comment = nothing\nmax_regions = 99\n"
                                   "max_transfers = 12\ntcp_rate = 2M\nstaging=16M\n"
                                   "paths = tcp:64K,map\nestimates_only = yes\n"
                                   "tcp_zero_copy = 1M\ndpdk_eal = -m 64 --no-pci\n"
                                   "dpdk_hugepages = 3G\ndpdk_pool = 8,7,6,5\n"
                                   "dpdk_wait = 7ms\n");
  assert_string_equal(config.values.name, "here");
  assert_int_equal(config.values.insecure, 1);
  assert_int_equal(config.values.spin_ns, 50000);
  assert_true(config.values.liveness_ns == INT64_C(120000000000));
  assert_int_equal(config.values.transfer_ns, 1500000000);
  assert_int_equal(config.values.tcp_rails, 4);
  assert_true(config.values.copy_threads == UINT_MAX);
  assert_int_equal(config.values.message_window, 2 << 20);
  assert_int_equal(config.values.pool_bytes, 1 << 30);
  assert_int_equal(config.values.max_peers, 7);
  assert_int_equal(config.values.max_regions, 99);
  assert_int_equal(config.values.max_transfers, 12);
  assert_int_equal(config.values.tcp_rate, 2 << 20);
  assert_int_equal(config.values.staging_bytes, 16 << 20);
  assert_int_equal(config.rules.count, 2);
  assert_int_equal(config.values.estimates_only, 1);
  assert_int_equal(config.values.tcp_zero_copy, 1 << 20);
  assert_string_equal(config.memory.dpdk_eal, "-m 64 --no-pci");
  assert_true(config.memory.dpdk_hugepages == (size_t)3 << 30);
  assert_memory_equal(config.memory.dpdk_pool, ((uint32_t[]){8, 7, 6, 5}), 16);
  assert_int_equal(config.memory.dpdk_wait_ns, 7000000);
}

static void the_nearest_one_counts(void **state) {
  struct haul_node_config given = HAUL_NODE_CONFIG_INIT;
  struct config config;
  (void)state;
  write_file("pool = 3M\nspin = 3ms\nmax_peers = 3\n");
  setenv("HAUL_POOL", "2M", 1);
  setenv("HAUL_SPIN", "2ms", 1);
  given.pool_bytes = 1;
  assert_works(config_read(&given, &config));
  assert_int_equal(config.values.pool_bytes, 1);
  assert_int_equal(config.values.spin_ns, 2000000);
  assert_int_equal(config.values.max_peers, 3);
  assert_int_equal(config.values.max_regions, 65536);
}

static void an_empty_variable_is_not_set(void **state) {
  (void)state;
  setenv("HAUL_POOL", "", 1);
  assert_int_equal(read_with("pool = 3M\n").values.pool_bytes, 3 << 20);
}

static void without_a_file_there_is_none(void **state) {
  struct config config;
  (void)state;
  write_file("pool = lots");
  setenv("HAUL_CONF", "", 1);
  assert_works(config_read(NULL, &config));
  assert_string_equal(config.path, "");
}

/* What is listed says where it is from, and is written as it can be set. */
static void the_list_can_be_read_back(void **state) {
  struct haul_setting told[SETTINGS_COUNT];
  size_t count = COUNT(told);
  char text[2048] = "", again[64];
  (void)state;
  write_file("\npool = none\nliveness = 90s\nspin = always\nname = me\ntcp_rails = 3\n");
  setenv("HAUL_SPIN", "90us", 1);
  assert_works(haul_setting_list(NULL, told, &count));
  assert_int_equal(count, SETTINGS_COUNT);
  for (size_t i = 0; i < count; i++) {
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "%s = %s\n", told[i].name, told[i].value);
    snprintf(again, sizeof again, "%s:3", file);
    if (strcmp(told[i].name, "liveness") == 0)
      assert_string_equal(told[i].origin, again);
    else if (strcmp(told[i].name, "spin") == 0)
      assert_string_equal(told[i].origin, "HAUL_SPIN");
    else if (strcmp(told[i].name, "max_peers") == 0)
      assert_string_equal(told[i].origin, "default");
  }
  unsetenv("HAUL_SPIN");
  struct config first = read_with(text);
  assert_memory_equal(first.memory.dpdk_pool, ((uint32_t[]){4096, 1024, 256, 64}), 16);
  assert_true(first.memory.dpdk_wait_ns == 100000000);
  assert_string_equal(first.memory.dpdk_eal, "");
  assert_int_equal(first.values.spin_ns, 90000);
  assert_true(first.values.liveness_ns == INT64_C(90000000000));
  assert_true(first.values.pool_bytes == SIZE_MAX);
  assert_string_equal(first.name, "me");
}

static void a_node_is_opened_with_it(void **state) {
  struct haul_node *node;
  (void)state;
  write_file("max_peers = many\n");
  assert_fails(HAUL_EINVAL, haul_node_open(NULL, &node));
  assert_non_null(strstr(haul_error_last()->object, ":1"));
  write_file("max_regions = 1\n");
  assert_works(haul_node_open(NULL, &node));
  haul_node_close(node);
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(every_mistake_is_told_with_its_line),
      TEST(what_stands_over_a_mistake_does_not_hide_it),
      TEST(what_is_no_text_file_is_refused),
      TEST(a_folder_is_refused),
      TEST(a_file_that_cannot_be_read_is_refused),
      TEST(the_line_is_told_of_a_long_path_too),
      TEST(a_variables_mistake_names_it),
      TEST(every_setting_can_be_set),
      TEST(the_nearest_one_counts),
      TEST(an_empty_variable_is_not_set),
      TEST(without_a_file_there_is_none),
      TEST(the_list_can_be_read_back),
      TEST(a_node_is_opened_with_it),
  };
  return cmocka_run_group_tests_name("node/config", tests, NULL, NULL);
}
