/* SPDX-License-Identifier: MIT
 * Settings: their sources and precedence, and the errors of each source. */
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
  unsetenv("HAUL_LIVENESS"); /* tests run with one in the environment */
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

/* The error names FILE:LINE as its object. */
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

static const struct {
  const char *text;
  unsigned line;
  const char *words;
} wrong_lines[] = {
    {"pool", 1, "no '='"},
    {"\n# more\n\n  pool 5M\n", 4, "no '='"},
    {"= 5", 1, "unknown setting ''"},
    {"pol = 5M", 1, "unknown setting 'pol'"},
    {"Pool = 5M", 1, "unknown setting 'Pool'"},
    {"progress = caller", 1, "unknown setting 'progress'"},
    {"pool =", 1, "invalid pool '"},
    {"pool = 0", 1, "invalid pool '"},
    {"pool = -1", 1, "invalid pool '"},
    {"pool = +1", 1, "invalid pool '"},
    {"pool = 5X", 1, "invalid pool '"},
    {"pool = 5 M", 1, "invalid pool '"},
    {"pool = 5M # five", 1, "invalid pool '"},
    {"pool = 5MM", 1, "invalid pool '"},
    {"pool = 0x10", 1, "invalid pool '"},
    {"pool = 99999999999999999999", 1, "invalid pool '"},
    {"pool = 18446744073709551615", 1, "invalid pool '"},
    {"pool = 16777216T", 1, "invalid pool '"},
    {"pool = None", 1, "invalid pool '"},
    {"spin = 5", 1, "invalid spin '"},
    {"spin = 5h", 1, "invalid spin '"},
    {"spin = 1.5ms", 1, "invalid spin '"},
    {"spin = never", 1, "invalid spin '"},
    {"liveness = 9ms", 1, "invalid liveness '"},
    {"liveness = 0", 1, "invalid liveness '"},
    {"idle_rails = 999us", 1, "invalid idle_rails '"},
    {"deadline = 0s", 1, "invalid deadline '"},
    {"deadline = 9223372036855s", 1, "invalid deadline '"},
    {"tcp_rails = 17", 1, "invalid tcp_rails '"},
    {"tcp_rails = 1K", 1, "invalid tcp_rails '"},
    {"staging = 7M", 1, "invalid staging '"},
    {"tcp_rate = 1023K", 1, "invalid tcp_rate '"},
    {"tcp_zero_copy = 4095", 1, "invalid tcp_zero_copy '"},
    {"tcp_zero_copy = 0", 1, "invalid tcp_zero_copy '"},
    {"\ntcp_zero_copy = always", 2, "invalid tcp_zero_copy '"},
    {"paths = ", 1, "invalid paths '"},
    {"paths = pigeon", 1, "invalid paths '"},
    {"paths = tcp:64K", 1, "invalid paths '"},
    {"\n\npaths = tcp:64K,map:32K,rdma", 3, "invalid paths '"},
    {"paths = tcp, map", 1, "invalid paths '"},
    {"estimates_only = 2", 1, "invalid estimates_only '"},
    {"pool = 5M\nestimates_only = ", 2, "invalid estimates_only '"},
    {"copy_threads = 0", 1, "invalid copy_threads '"},
    {"message_window = 1M", 1, "invalid message_window '"},
    {"message_window = 2G", 1, "invalid message_window '"},
    {"max_peers = 4294967296", 1, "invalid max_peers '"},
    {"max_regions = 1048577", 1, "invalid max_regions '"},
    {"dpdk_pool = 1,2,3", 1, "invalid dpdk_pool '"},
    {"\ndpdk_pool = 1,2,3,4,5", 2, "invalid dpdk_pool '"},
    {"dpdk_pool = 1,2,-3,4", 1, "invalid dpdk_pool '"},
    {"dpdk_pool = 1,2,3,1048577", 1, "invalid dpdk_pool '"},
    {"dpdk_pool = 1, 2, 3, 4", 1, "invalid dpdk_pool '"},
    {"dpdk_wait = 100", 1, "invalid dpdk_wait '"},
    {"dpdk_hugepages = 0", 1, "invalid dpdk_hugepages '"},
    {"dpdk_eal = words", 1, "invalid dpdk_eal '"},
    {"dpdk_eal = -m 5 --help", 1, "invalid dpdk_eal '"},
    {"dpdk_eal = -m 5 \x01", 1, "invalid dpdk_eal '"},
    {"rdma_gid = 256", 1, "invalid rdma_gid '256': expected auto, a number from 0 to 255"},
    {"rdma_gid = mlx5_0:3,", 1, "invalid rdma_gid '"},
    {"rdma_gid = :3", 1, "invalid rdma_gid '"},
    {"rdma_gid = mlx5_0:", 1, "invalid rdma_gid '"},
    {"rdma_gid = mlx5_0:3,mlx5_1:256", 1, "invalid rdma_gid '"},
    {"rdma_gid = mlx5_0:3 ,mlx5_1:5", 1, "invalid rdma_gid '"},
    {"rdma_gid = -1", 1, "invalid rdma_gid '"},
    {"rdma_nics = ", 1, "invalid rdma_nics '"},
    {"rdma_nics = ^", 1, "invalid rdma_nics '"},
    {"rdma_nics = mlx5_0,", 1, "invalid rdma_nics '"},
    {"rdma_nics = mlx5_0:1", 1, "expected auto, names of NICs or ^ and names"},
    {"rdma_nics = mlx5_0,^mlx5_1", 1, "invalid rdma_nics '"},
    {"rdma_nics = mlx5_0, mlx5_1", 1, "invalid rdma_nics '"},
    {"rdma_traffic_class = 256", 1, "from 0 to 255"},
    {"rdma_service_level = 16", 1, "from 0 to 15"},
    {"rdma_pkey = 0", 1, "from 1 to 65535"},
    {"rdma_pkey = 0x10000", 1, "from 1 to 65535"},
    {"rdma_timeout = 0", 1, "from 1 to 31"},
    {"rdma_retry_count = 8", 1, "from 0 to 7"},
    {"rdma_mtu = 1500", 1, "expected auto, a power of 2 from 256 to 4096"},
    {"insecure = maybe", 1, "invalid insecure '"},
    {"insecure = ", 1, "invalid insecure '"},
    {"name = two words", 1, "invalid name '"},
    {"name = ", 1, "invalid name '"},
    {"name = 0123456789012345678901234567890123456789012345678901234567890123", 1,
     "invalid name '"},
    {"pool = 5M\nspin = 0\npool = 6M\n", 3, "line 1 sets pool already"},
    {"pool = 5M\r\nspin = x\r\n", 2, "invalid spin '"},
};

static void file_errors_name_the_line(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(wrong_lines); i++)
    refuses(wrong_lines[i].text, wrong_lines[i].line, wrong_lines[i].words);
}

static void overridden_lines_are_checked(void **state) {
  (void)state;
  setenv("HAUL_POOL", "1M", 1);
  refuses("pool = lots", 1,
          "invalid pool 'lots': expected a number of bytes of at least 1, less than 16777216T "
          "(units: K, M, G, T) or none, for example 256M");
}

static void binary_and_oversized_files_are_refused(void **state) {
  struct config config;
  (void)state;
  int to = open(file, O_WRONLY | O_CLOEXEC);
  assert_int_equal(write(to, "pool = 5M\n\0spin = 0\n", 20), 20);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  assert_non_null(strstr(haul_error_last()->text, "not a text file"));
  assert_int_equal(ftruncate(to, CONFIG_MAX + 1), 0);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  close(to);
  unlink(file);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config)); /* HAUL_CONF names a missing file */
  assert_int_equal(mkfifo(file, 0600), 0);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config)); /* a FIFO, whose writer is not awaited */
}

static void a_directory_is_refused(void **state) {
  struct config config;
  (void)state;
  setenv("HAUL_CONF", "/tmp", 1);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  assert_string_equal(haul_error_last()->object, "/tmp");
  assert_non_null(strstr(haul_error_last()->text, "not a regular file"));
}

/* Root can read any file, except through a symbolic link to itself. */
static void an_unreadable_file_is_refused(void **state) {
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
  assert_non_null(strstr(haul_error_last()->text, "cannot read the configuration"));
}

static void long_paths_keep_the_line_number(void **state) {
  struct config config = {.path = ""};
  char path[400], text[] = "\npol = 1";
  (void)state;
  memset(path, 'd', sizeof path - 1);
  path[sizeof path - 1] = '\0';
  assert_fails(HAUL_EINVAL, config_parse(text, path, &config));
  assert_non_null(strstr(haul_error_last()->object, "dd:2"));
}

static void errors_name_the_variable(void **state) {
  struct config config;
  (void)state;
  setenv("HAUL_SPIN", "long", 1);
  assert_fails(HAUL_EINVAL, config_read(NULL, &config));
  assert_string_equal(haul_error_last()->object, "HAUL_SPIN");
  assert_non_null(strstr(haul_error_last()->text, "or always, for example 50us"));
}

static void every_setting_is_parsed(void **state) {
  (void)state;
  struct config config = read_with("name = here\ninsecure = yes\nspin=50us\n liveness = 2min \n"
                                   "deadline = 1500ms\ntcp_rails = 4\ncopy_threads = none\n"
                                   "message_window = 2M\npool = 1G\nmax_peers = 7\r\n"
                                   "\t# a comment = nothing\nmax_regions = 99\n"
                                   "max_transfers = 12\ntcp_rate = 2M\nstaging=16M\n"
                                   "paths = tcp:64K,map\nestimates_only = yes\n"
                                   "tcp_zero_copy = 1M\ndpdk_eal = -m 64 --no-pci\n"
                                   "dpdk_hugepages = 3G\ndpdk_pool = 8,7,6,5\n"
                                   "dpdk_wait = 7ms\nidle_rails = 90s\npool_warm = 8M\n");
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
  assert_true(config.values.idle_rails_ns == INT64_C(90000000000));
  assert_int_equal(config.values.warm_bytes, 8 << 20);
  assert_true(read_with("idle_rails = 0\n").values.idle_rails_ns == INT64_MAX);
  assert_true(read_with("").values.idle_rails_ns == INT64_C(60000000000));
}

static void precedence_is_call_environment_file(void **state) {
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

static void numbers_of_the_call_are_checked(void **state) {
  struct haul_node_config given = HAUL_NODE_CONFIG_INIT;
  struct config config;
  (void)state;
  given.tcp_rails = 17;
  assert_fails(HAUL_EINVAL, config_read(&given, &config));
  assert_string_equal(haul_error_last()->object, "tcp_rails");
  assert_string_equal(haul_error_last()->text,
                      "invalid tcp_rails '17': expected a number from 1 to 16, for example 2");
  given.tcp_rails = 0;
  given.spin_ns = -1;
  assert_fails(HAUL_EINVAL, config_read(&given, &config));
  assert_non_null(strstr(haul_error_last()->text, "invalid spin '-1ns': expected a time"));
}

/* As haul.h says: "at least 10 ms", "at most 16". */
static void numbers_with_documented_bounds_are_clamped(void **state) {
  struct haul_node_config given = HAUL_NODE_CONFIG_INIT;
  struct config config;
  (void)state;
  given.liveness_ns = 1;
  given.message_window = 1;
  given.copy_threads = 100;
  given.max_regions = UINT_MAX;
  assert_works(config_read(&given, &config));
  assert_int_equal(config.values.liveness_ns, 10000000);
  assert_true(config.values.message_window > HAUL_MESSAGE_MAX);
  assert_int_equal(config.values.copy_threads, 16);
  assert_int_equal(config.values.max_regions, 1048576);
}

static void empty_variables_are_ignored(void **state) {
  (void)state;
  setenv("HAUL_POOL", "", 1);
  assert_int_equal(read_with("pool = 3M\n").values.pool_bytes, 3 << 20);
}

static void an_empty_path_reads_no_file(void **state) {
  struct config config;
  (void)state;
  write_file("pool = lots");
  setenv("HAUL_CONF", "", 1);
  assert_works(config_read(NULL, &config));
  assert_string_equal(config.path, "");
}

/* haul_setting_list names each origin, and its values parse as a file. */
static void the_list_is_valid_as_a_file(void **state) {
  struct haul_setting list[SETTINGS_COUNT];
  size_t count = COUNT(list);
  char text[2048] = "", again[64];
  (void)state;
  write_file("\npool = none\nliveness = 90s\nspin = always\nname = me\ntcp_rails = 3\n");
  setenv("HAUL_SPIN", "90us", 1);
  assert_works(haul_setting_list(NULL, list, &count));
  assert_int_equal(count, SETTINGS_COUNT);
  for (size_t i = 0; i < count; i++) {
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "%s = %s\n", list[i].name, list[i].value);
    snprintf(again, sizeof again, "%s:3", file);
    if (strcmp(list[i].name, "liveness") == 0)
      assert_string_equal(list[i].origin, again);
    else if (strcmp(list[i].name, "spin") == 0)
      assert_string_equal(list[i].origin, "HAUL_SPIN");
    else if (strcmp(list[i].name, "max_peers") == 0)
      assert_string_equal(list[i].origin, "default");
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

static void a_node_uses_the_configuration(void **state) {
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
      TEST(file_errors_name_the_line),
      TEST(overridden_lines_are_checked),
      TEST(binary_and_oversized_files_are_refused),
      TEST(a_directory_is_refused),
      TEST(an_unreadable_file_is_refused),
      TEST(long_paths_keep_the_line_number),
      TEST(errors_name_the_variable),
      TEST(every_setting_is_parsed),
      TEST(precedence_is_call_environment_file),
      TEST(numbers_of_the_call_are_checked),
      TEST(numbers_with_documented_bounds_are_clamped),
      TEST(empty_variables_are_ignored),
      TEST(an_empty_path_reads_no_file),
      TEST(the_list_is_valid_as_a_file),
      TEST(a_node_uses_the_configuration),
  };
  return cmocka_run_group_tests_name("node/config", tests, NULL, NULL);
}
