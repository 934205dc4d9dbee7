/* SPDX-License-Identifier: MIT
 * The setting `paths`: parsed and formatted. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>

#include "fabric/transport.h"
#include "transfer/rules.h"

static struct path_rules parse(const char *text) {
  struct path_rules rules;
  memset(&rules, 0xff, sizeof rules);
  assert_true(rules_parse(text, &rules));
  return rules;
}

static void invalid_rules_are_rejected(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    ",",
                                    "pigeon",
                                    "tcp,",
                                    ",tcp",
                                    "tcp,map",             /* no size */
                                    "tcp:64K",             /* no last rule */
                                    "tcp:64K,map:32K,tcp", /* sizes do not grow */
                                    "tcp:64K,map:64K,tcp",
                                    "tcp:0,map",
                                    "tcp:,map",
                                    "tcp:-1,map",
                                    "tcp:+1,map",
                                    "tcp:1KK,map",
                                    "tcp:1k,map",
                                    "tcp:64K:1,map",
                                    "tcp:16777216T,map", /* 2^64 */
                                    "tcp:99999999999999999999,map",
                                    "auto,tcp",
                                    " tcp",
                                    "TCP"};
  struct path_rules rules = {.count = 7};
  for (unsigned i = 0; i < COUNT(bad); i++) {
    if (rules_parse(bad[i], &rules))
      fail_msg("'%s' was accepted", bad[i]);
    assert_int_equal(rules.count, 7);
  }
  char many[256] = "";
  for (unsigned i = 0; i < RULES_MAX; i++)
    snprintf(many + strlen(many), sizeof many - strlen(many), "tcp:%u,", i + 1);
  strcat(many, "tcp");
  assert_false(rules_parse(many, &rules));
  memset(many, 't', sizeof many - 1);
  assert_false(rules_parse(many, &rules));
}

static void each_size_has_its_path(void **state) {
  (void)state;
  struct path_rules rules = parse("map:4K,rdma:1048576,tcp");
  unsigned map = transport_named("map")->index, tcp = transport_named("tcp")->index;
  assert_int_equal(rules.count, 3);
  assert_int_equal(rules_path(&rules, 1), map);
  assert_int_equal(rules_path(&rules, 4096), map);
  assert_int_equal(rules_path(&rules, 4097), transport_named("rdma")->index);
  assert_int_equal(rules_path(&rules, 1048577), tcp);
  assert_int_equal(rules_path(&rules, UINT64_MAX), tcp);
  assert_true(rules_allow(&rules, map) && rules_allow(&rules, tcp));
}

static void paths_without_a_rule_are_closed(void **state) {
  (void)state;
  struct path_rules rules = parse("tcp");
  assert_false(rules_allow(&rules, transport_named("map")->index));
  assert_true(rules_allow(&rules, transport_named("tcp")->index));
}

static void auto_allows_any_path(void **state) {
  (void)state;
  struct path_rules rules = parse("auto");
  assert_int_equal(rules.count, 0);
  assert_int_equal(rules_path(&rules, 8), -1);
  assert_true(rules_allow(&rules, 0));
}

static void formatted_rules_parse_again(void **state) {
  (void)state;
  static const char *const good[] = {"auto", "tcp", "map:4K,tcp", "tcp:1,rdma:3G,map:5000G,tcp",
                                     "tcp:1T,map"};
  for (unsigned i = 0; i < COUNT(good); i++) {
    struct path_rules rules = parse(good[i]);
    char text[96], small[6];
    rules_format(&rules, text, sizeof text);
    assert_string_equal(text, good[i]);
    rules_format(&rules, small, sizeof small); /* cut off */
    assert_true(strncmp(small, good[i], strlen(small)) == 0);
  }
}

static void a_long_origin_keeps_its_end(void **state) {
  (void)state;
  struct path_rules rules = parse("tcp");
  char path[200];
  memset(path, 'p', sizeof path);
  strcpy(path + 180, ".conf:12");
  rules_from(&rules, path);
  assert_string_equal(rules.origin + strlen(rules.origin) - 8, ".conf:12");
  assert_non_null(strstr(rules.left_out, ".conf:12"));
  rules_from(&rules, "HAUL_PATHS");
  assert_string_equal(rules.left_out, "left out by HAUL_PATHS");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invalid_rules_are_rejected),
      cmocka_unit_test(each_size_has_its_path),
      cmocka_unit_test(paths_without_a_rule_are_closed),
      cmocka_unit_test(auto_allows_any_path),
      cmocka_unit_test(formatted_rules_parse_again),
      cmocka_unit_test(a_long_origin_keeps_its_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
