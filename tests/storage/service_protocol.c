/* SPDX-License-Identifier: MIT
 * The messages of the file service: they round-trip, and malformed ones are rejected. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "storage/service/protocol.h"

static struct protocol_request request, back;
static struct protocol_fields fields;
static uint8_t bytes[PROTOCOL_REQUEST_ROOM], response[PROTOCOL_RESPONSE_ROOM];

static void fill(struct protocol_fields *all) {
  *all = (struct protocol_fields){
      .node = 11,
      .folder = 12,
      .file = UINT64_C(1) << 40 | 13,
      .inode = 14,
      .offset = INT64_MAX,
      .length = 15,
      .at = 16,
      .region = 17,
      .flags = 18,
      .mode = 0755,
      .version = 1,
      .depth = 19,
      .name = "name with a blank and \xff",
      .new_name = "new",
      .bytes = "target",
      .size = 6,
      .change = {.which = SOURCE_SIZE | SOURCE_TIMES, .size = 20, .mode = 0644},
      .stat = {.st_ino = 21, .st_mode = S_IFREG | 0644, .st_nlink = 1, .st_size = 22},
      .space = {.f_bsize = 4096, .f_frsize = 4096, .f_blocks = 23, .f_namemax = 255},
  };
  all->change.times[0].tv_nsec = UTIME_OMIT;
  all->change.times[1].tv_nsec = UTIME_NOW;
  all->stat.st_mtim = (struct timespec){-5, 999999999};
}

static size_t put_request(uint16_t operation) {
  request.operation = operation;
  request.forget_count = 2;
  request.forgets[0] = (struct protocol_forget){5, 6};
  request.forgets[1] = (struct protocol_forget){7, UINT64_MAX};
  fill(&request.fields);
  return protocol_put_request(&request, bytes);
}

static void requests_round_trip(void **state) {
  (void)state;
  static uint8_t again[PROTOCOL_REQUEST_ROOM];
  for (uint16_t i = 1; i < PROTOCOL_OPERATIONS; i++) {
    size_t length = put_request(i);
    assert_true(length > 0);
    assert_int_equal(protocol_get_request(bytes, length, &back), 0);
    assert_int_equal(back.operation, i);
    assert_int_equal(back.forgets[1].count, UINT64_MAX);
    assert_int_equal(protocol_put_request(&back, again), length);
    assert_memory_equal(again, bytes, length);
  }
}

static void requests_of_another_length_are_rejected(void **state) {
  (void)state;
  for (uint16_t i = 1; i < PROTOCOL_OPERATIONS; i++) {
    size_t length = put_request(i);
    for (size_t cut = 0; cut < length; cut++)
      assert_int_equal(protocol_get_request(bytes, cut, &back), -EPROTO);
    assert_int_equal(protocol_get_request(bytes, length + 1, &back), -EPROTO);
  }
}

static void unknown_operations_are_not_supported(void **state) {
  (void)state;
  const uint16_t unknown[] = {0, PROTOCOL_OPERATIONS, 0xffff};
  for (size_t i = 0; i < COUNT(unknown); i++) {
    size_t length = put_request(PROTOCOL_STATFS);
    memcpy(bytes, &unknown[i], 2);
    assert_int_equal(protocol_get_request(bytes, length, &back), -EOPNOTSUPP);
  }
}

static void responses_round_trip(void **state) {
  (void)state;
  static uint8_t again[PROTOCOL_RESPONSE_ROOM];
  struct protocol_fields all;
  fill(&all);
  for (uint16_t i = 1; i < PROTOCOL_OPERATIONS; i++) {
    size_t length = protocol_put_response(i, 0, &all, response);
    assert_int_equal(protocol_get_response(response, length, i, &fields), 0);
    assert_int_equal(protocol_put_response(i, 0, &fields, again), length);
    assert_memory_equal(again, response, length);
    for (size_t cut = 0; cut < length; cut++)
      assert_int_equal(protocol_get_response(response, cut, i, &fields), -EPROTO);
    length = protocol_put_response(i, -EBADMSG, &all, response);
    assert_int_equal(protocol_get_response(response, length, i, &fields), -EBADMSG);
  }
}

static int status_of(uint16_t operation, const struct protocol_fields *all) {
  size_t length = protocol_put_response(operation, 0, all, response);
  return protocol_get_response(response, length, operation, &fields);
}

static void received_attributes_are_checked(void **state) {
  (void)state;
  struct protocol_fields all;
#define REJECTED(operation, change)                                                                \
  fill(&all);                                                                                      \
  change;                                                                                          \
  assert_int_equal(status_of(operation, &all), -EPROTO)
  REJECTED(PROTOCOL_GETATTR, all.stat.st_mode = 0644);
  REJECTED(PROTOCOL_GETATTR, all.stat.st_mode |= 1u << 20);
  REJECTED(PROTOCOL_GETATTR, all.stat.st_size = -1);
  REJECTED(PROTOCOL_GETATTR, all.stat.st_ino = 0);
  REJECTED(PROTOCOL_GETATTR, all.stat.st_ino = SOURCE_INODES);
  REJECTED(PROTOCOL_GETATTR, all.stat.st_atim.tv_nsec = 1000000000);
  REJECTED(PROTOCOL_GETATTR, all.stat.st_ctim.tv_nsec = UTIME_NOW);
  REJECTED(PROTOCOL_LOOKUP, all.node = 0);
  REJECTED(PROTOCOL_LOOKUP, all.node = PROTOCOL_NODES);
  REJECTED(PROTOCOL_STATFS, all.space.f_bsize = 0);
  REJECTED(PROTOCOL_STATFS, all.space.f_frsize = UINT64_C(1) << 40);
#undef REJECTED
}

static bool reads_name(const char *name, uint64_t inode, int64_t next) {
  struct protocol_name read;
  const struct source_name written = {.name = name, .inode = inode, .next = next, .type = S_IFREG};
  struct wire wire = wire_over(bytes, sizeof bytes);
  assert_true(protocol_put_name(&wire, &written));
  wire = wire_over(bytes, (size_t)(wire.at - bytes));
  return protocol_get_name(&wire, &read) && strcmp(read.text, name) == 0;
}

static void listed_names_are_checked(void **state) {
  (void)state;
  assert_true(reads_name("..", 1, 1));
  assert_true(reads_name("name", 0, INT64_MAX));
  assert_false(reads_name("", 1, 1));
  assert_false(reads_name("../etc/passwd", 1, 1));
  assert_false(reads_name("name", SOURCE_INODES, 1));
  assert_false(reads_name("name", 1, -1));
}

static void zero_bytes_in_names_are_rejected(void **state) {
  (void)state;
  size_t length = put_request(PROTOCOL_UNLINK);
  uint8_t *at = memmem(bytes, length, "blank", 5);
  assert_non_null(at);
  *at = 0;
  assert_int_equal(protocol_get_request(bytes, length, &back), -EPROTO);
}

static void unknown_flags_are_rejected(void **state) {
  (void)state;
  assert_int_equal(protocol_flags_to_open(protocol_open_flags(O_RDWR | O_TRUNC | O_EXCL)),
                   O_RDWR | O_TRUNC | O_EXCL);
  assert_int_equal(protocol_open_flags(O_WRONLY | O_APPEND | O_DIRECT), O_WRONLY);
  assert_int_equal(protocol_flags_to_open(3), -EINVAL);
  assert_int_equal(protocol_flags_to_open(16), -EINVAL);
  assert_int_equal(protocol_flags_to_write(protocol_write_flags(RWF_APPEND | RWF_SYNC)),
                   RWF_APPEND | RWF_SYNC);
  assert_int_equal(protocol_flags_to_write(PROTOCOL_SUMMARY), 0); /* no flag of pwritev2(2) */
  assert_int_equal(protocol_flags_to_write(16), -EINVAL);
}

static struct io_summary example_summary(void) {
  struct io_summary summary = {.report = HAUL_REPORT_INIT, .pages = 700};
  summary.report.bytes = 1000;
  summary.report.slices = 3;
  summary.report.retries = 1;
  summary.report.checksum = 1;
  summary.report.to = (struct haul_place){HAUL_SIM, 2};
  summary.report.path_count = 2;
  summary.report.paths[0] = (struct haul_path){.name = "tcp",
                                               .open = 1,
                                               .chosen = 1,
                                               .cost_ns = 123,
                                               .copies_kernel = 1,
                                               .detail = "2 rails",
                                               .send = "direct"};
  summary.report.paths[1] = (struct haul_path){.name = "map", .reason = "another host"};
  return summary;
}

static void summaries_round_trip(void **state) {
  (void)state;
  struct io_summary summary = example_summary(), read;
  size_t length = protocol_put_summary(&summary, bytes, sizeof bytes);
  assert_true(length > 0);
  assert_int_equal(protocol_get_summary(bytes, length, &read), 0);
  assert_int_equal(read.report.bytes, 1000);
  assert_int_equal(read.pages, 700);
  assert_int_equal(read.report.retries, 1);
  assert_int_equal(read.report.to.device, 2);
  assert_string_equal(read.report.paths[0].detail, "2 rails");
  assert_string_equal(read.report.paths[1].reason, "another host");
  assert_int_equal(read.report.paths[0].copies_kernel, 1);
  assert_int_equal(protocol_put_summary(&read, response, sizeof response), length);
  assert_memory_equal(response, bytes, length);
  for (size_t room = 0; room < length; room++)
    assert_int_equal(protocol_put_summary(&summary, response, room), 0);
}

static void impossible_summaries_are_rejected(void **state) {
  (void)state;
  struct io_summary summary = example_summary(), read;
  size_t length = protocol_put_summary(&summary, bytes, sizeof bytes);
  for (size_t cut = 0; cut < length; cut++)
    assert_int_equal(protocol_get_summary(bytes, cut, &read), -EPROTO);
  assert_int_equal(protocol_get_summary(bytes, length + 1, &read), -EPROTO);
  uint8_t *at = memmem(bytes, length, "another", 7);
  assert_non_null(at);
  *at = '\033'; /* a control character */
  assert_int_equal(protocol_get_summary(bytes, length, &read), -EPROTO);
  summary.pages = 1001;
  length = protocol_put_summary(&summary, bytes, sizeof bytes);
  assert_int_equal(protocol_get_summary(bytes, length, &read), -EPROTO);
  summary = example_summary();
  summary.report.path_count = HAUL_PATHS_MAX;
  length = protocol_put_summary(&summary, bytes, sizeof bytes);
  assert_int_equal(protocol_get_summary(bytes, length, &read), 0);
  at = bytes + 8 + 8 + 4 + 8 + 8 + 8 + 4 * 2 + 1;
  assert_int_equal((*at)++, HAUL_PATHS_MAX);
  assert_int_equal(protocol_get_summary(bytes, length, &read), -EPROTO);
}

static void each_failure_has_its_errno(void **state) {
  (void)state;
  assert_int_equal(protocol_errno(HAUL_ECHECKSUM), -EBADMSG);
  assert_int_equal(protocol_errno(HAUL_ETIMEDOUT), -ETIMEDOUT);
  assert_int_equal(protocol_errno(HAUL_EPEER), -ENOTCONN);
  for (int code = -27; code < 0; code++)
    assert_true(protocol_errno(code) < 0 && protocol_errno(code) != -EIO);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(requests_round_trip),
      cmocka_unit_test(requests_of_another_length_are_rejected),
      cmocka_unit_test(unknown_operations_are_not_supported),
      cmocka_unit_test(responses_round_trip),
      cmocka_unit_test(received_attributes_are_checked),
      cmocka_unit_test(listed_names_are_checked),
      cmocka_unit_test(zero_bytes_in_names_are_rejected),
      cmocka_unit_test(unknown_flags_are_rejected),
      cmocka_unit_test(summaries_round_trip),
      cmocka_unit_test(impossible_summaries_are_rejected),
      cmocka_unit_test(each_failure_has_its_errno),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
