/* SPDX-License-Identifier: MIT
 * Hostile clients of a file server: it continues to serve the others, and frees the resources of
 * disconnected ones. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mounted.h" /* eventually */
#include "served.h"
#include "storage/service/protocol.h"
#include "storage/source.h"
#include "support/child.h"
#include "support/seams.h"

#define S INT64_C(1000000000)

static char root[FOLDER_ROOM];
static struct served served;
static unsigned descriptors;

/* A client that sends raw messages. */
static struct {
  haul_node *node;
  haul_peer *peer;
  haul_region *region; /* 4 MiB, published as "open" for writing and as "shut" for reading */
  uint64_t number;
} raw;

static haul_deadline soon(void) {
  return haul_deadline_in(10 * S);
}

static void raw_open(void) {
  const struct haul_place host = {HAUL_HOST, 0};
  assert_works(haul_node_open(NULL, &raw.node));
  assert_works(haul_peer_connect(raw.node, served.address, soon(), &raw.peer));
  assert_works(haul_region_alloc(raw.node, host, 4 << 20, 0, &raw.region));
  assert_works(haul_region_publish(raw.region, "open", HAUL_WRITE));
  assert_works(haul_region_publish(raw.region, "shut", HAUL_READ));
}

static void raw_close(void) {
  haul_region_release(raw.region);
  haul_peer_close(raw.peer);
  haul_node_close(raw.node);
}

static int raw_send(const void *bytes, size_t length) {
  return haul_message_send(raw.peer, PROTOCOL_TAG | ++raw.number, bytes, length, soon());
}

static int send_request(struct protocol_request *request) {
  static uint8_t bytes[PROTOCOL_REQUEST_ROOM];
  size_t length = protocol_put_request(request, bytes);
  return raw_send(bytes, length);
}

static int raw_receive(uint16_t operation, struct protocol_fields *fields) {
  struct haul_message message;
  assert_works(haul_message_receive(raw.node, &message, soon()));
  assert_int_equal(message.tag, PROTOCOL_TAG | raw.number);
  int status = protocol_get_response(message.bytes, message.length, operation, fields);
  fields->bytes = NULL;
  haul_message_release(&message);
  return status;
}

static int call_server(uint16_t operation, const struct protocol_fields *fields,
                       struct protocol_fields *response) {
  static struct protocol_request request;
  request.operation = operation;
  request.fields = *fields;
  assert_works(send_request(&request));
  return raw_receive(operation, response);
}

#define CALL(operation, response, ...)                                                             \
  call_server(operation, &(const struct protocol_fields){__VA_ARGS__}, response)

static int greet(const char *name) {
  struct protocol_fields fields = {.version = PROTOCOL_VERSION}, response;
  strcpy(fields.name, name);
  return call_server(PROTOCOL_GREET, &fields, &response);
}

static int set_up(void **state) {
  (void)state;
  folder_make(root);
  folder_put(root, "file", "hello");
  descriptors = open_descriptors();
  served_open(&served, root, false);
  raw_open();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  raw_close();
  served_close(&served);
  assert_int_equal(open_descriptors(), descriptors);
  folder_remove(root);
  return 0;
}

/* Checks that a correct client is served. */
static void assert_serves(void) {
  struct source *source = served_connect(&served, false);
  const struct source_caller caller = {.checked = true};
  struct source_entry entry;
  struct source_file *file;
  char bytes[8] = {0};
  assert_int_equal(source->ops->lookup(source, SOURCE_ROOT, "file", &entry), 0);
  assert_int_equal(source->ops->open(source, &caller, entry.node, O_RDONLY, &file), 0);
  assert_int_equal(source->ops->read(source, file, bytes, sizeof bytes, 0), 5);
  assert_string_equal(bytes, "hello");
  source->ops->release(source, file);
  source->ops->close(source);
}

static uint64_t open_named(const char *name) {
  struct protocol_fields response;
  struct protocol_fields fields = {.node = SOURCE_ROOT};
  strcpy(fields.name, name);
  assert_int_equal(call_server(PROTOCOL_LOOKUP, &fields, &response), 0);
  assert_int_equal(CALL(PROTOCOL_OPEN, &response, .node = response.node), 0);
  return response.file;
}

static uint64_t open_it(void) {
  return open_named("file");
}

static uint32_t introduce(const char *name) {
  struct protocol_fields fields = {0}, response;
  strcpy(fields.name, name);
  assert_int_equal(call_server(PROTOCOL_REGION, &fields, &response), 0);
  return response.region;
}

static void malformed_requests_end_the_session(void **state) {
  (void)state;
  uint8_t bytes[512];
  struct haul_message message;
  unsigned seed = 1;
  for (unsigned round = 0; round < 20; round++) {
    size_t length = (size_t)rand_r(&seed) % sizeof bytes;
    for (size_t i = 0; i < length; i++)
      bytes[i] = (uint8_t)rand_r(&seed);
    bytes[3] = 0xff; /* more forgets than allowed */
    assert_works(raw_send(bytes, length < 4 ? 4 : length));
    assert_fails(HAUL_ETIMEDOUT,
                 haul_message_receive(raw.node, &message, haul_deadline_in(S / 20)));
  }
  assert_serves();
}

static void every_operation_survives_any_fields(void **state) {
  (void)state;
  struct protocol_fields response;
  const uint64_t numbers[] = {0, 1, 2, UINT32_MAX, UINT64_C(1) << 32 | 1, INT64_MAX, UINT64_MAX};
  assert_int_equal(greet(SERVED_EXPORT), 0);
  for (uint16_t i = PROTOCOL_REGION; i < PROTOCOL_OPERATIONS; i++)
    for (size_t n = 0; n < COUNT(numbers); n++) {
      uint64_t number = numbers[n];
      const struct protocol_fields fields = {.node = number,
                                             .folder = number,
                                             .file = number,
                                             .inode = number,
                                             .offset = (int64_t)number,
                                             .length = number,
                                             .at = number,
                                             .region = (uint32_t)number,
                                             .flags = (uint32_t)number,
                                             .mode = (uint32_t)number};
      int status = call_server(i, &fields, &response);
      assert_true(status <= 0 && status != -EPROTO);
    }
  assert_serves();
}

static void requests_before_greet_are_rejected(void **state) {
  (void)state;
  struct protocol_fields response;
  assert_int_equal(CALL(PROTOCOL_STATFS, &response, 0), -EPROTO);
  assert_int_equal(CALL(PROTOCOL_EXPORTS, &response, 0), -EPROTO);
  assert_int_equal(CALL(PROTOCOL_GREET, &response, 0), -EPROTONOSUPPORT);
  assert_int_equal(greet("elsewhere"), -ENOENT);
  assert_int_equal(greet("../tree"), -ENOENT);
  assert_int_equal(greet(""), 0);
  assert_int_equal(CALL(PROTOCOL_EXPORTS, &response, 0), 0);
  assert_int_equal(CALL(PROTOCOL_STATFS, &response, 0), -ENOTCONN);
  assert_int_equal(greet(SERVED_EXPORT), 0);
  assert_int_equal(greet(SERVED_EXPORT), -EALREADY);
}

static void names_do_not_leave_the_tree(void **state) {
  (void)state;
  struct protocol_fields response;
  const char *const wrong[] = {"", ".", "..", "../file", "/etc/passwd", "a/b"};
  assert_int_equal(symlinkat("/etc", AT_FDCWD, folder_path(root, "out")), 0);
  assert_int_equal(greet(SERVED_EXPORT), 0);
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct protocol_fields fields = {.node = SOURCE_ROOT};
    strcpy(fields.name, wrong[i]);
    assert_int_equal(call_server(PROTOCOL_LOOKUP, &fields, &response), -EINVAL);
  }
  struct protocol_fields fields = {.node = SOURCE_ROOT, .name = "out"};
  assert_int_equal(call_server(PROTOCOL_LOOKUP, &fields, &response), 0);
  uint64_t out = response.node;
  assert_int_equal(CALL(PROTOCOL_OPENDIR, &response, .node = out), -ENOTDIR);
  assert_int_equal(CALL(PROTOCOL_OPEN, &response, .node = out), -ELOOP);
  assert_int_equal(CALL(PROTOCOL_LOOKUP, &response, .node = out, .name = "passwd"), -ENOTDIR);
}

static void a_read_only_tree_rejects_changes(void **state) {
  (void)state;
  struct protocol_fields response;
  assert_int_equal(greet(SERVED_EXPORT), 0);
  uint64_t file = open_it();
  uint32_t region = introduce("shut");
  const struct protocol_fields name = {.node = SOURCE_ROOT,
                                       .folder = SOURCE_ROOT,
                                       .name = "new",
                                       .new_name = "newer",
                                       .bytes = "x",
                                       .size = 1};
  const uint16_t changes[] = {PROTOCOL_MKDIR,  PROTOCOL_SYMLINK, PROTOCOL_MKNOD,
                              PROTOCOL_LINK,   PROTOCOL_UNLINK,  PROTOCOL_RMDIR,
                              PROTOCOL_RENAME, PROTOCOL_CREATE,  PROTOCOL_SETXATTR};
  for (size_t i = 0; i < COUNT(changes); i++)
    assert_int_equal(call_server(changes[i], &name, &response), -EROFS);
  assert_int_equal(CALL(PROTOCOL_WRITE, &response, .file = file, .length = 4, .region = region),
                   -EROFS);
  assert_int_equal(CALL(PROTOCOL_OPEN, &response, .node = 2, .flags = 1), -EROFS);
  assert_int_equal(CALL(PROTOCOL_FALLOCATE, &response, .file = file, .length = 4), -EROFS);
}

static void the_servers_rights_are_not_passed_on(void **state) {
  (void)state;
  struct protocol_fields response;
  served_close(&served);
  raw_close();
  served_open(&served, root, true);
  raw_open();
  assert_int_equal(greet(SERVED_EXPORT), 0);
  assert_int_equal(CALL(PROTOCOL_MKNOD, &response, .node = 1, .name = "a", .mode = S_IFREG | 04755),
                   -EPERM);
  assert_int_equal(CALL(PROTOCOL_CREATE, &response, .node = 1, .name = "a", .mode = 02755), -EPERM);
  assert_int_equal(CALL(PROTOCOL_MKNOD, &response, .node = 1, .name = "a", .mode = S_IFCHR | 0666),
                   -EPERM);
  const struct protocol_fields mode = {.node = SOURCE_ROOT,
                                       .change = {.which = SOURCE_MODE, .mode = 04755}};
  assert_int_equal(call_server(PROTOCOL_SETATTR, &mode, &response), -EPERM);
  const struct protocol_fields owner = {.node = SOURCE_ROOT, .change = {.which = SOURCE_UID}};
  assert_int_equal(call_server(PROTOCOL_SETATTR, &owner, &response), -EPERM);
  assert_int_equal(CALL(PROTOCOL_SETXATTR, &response, .node = SOURCE_ROOT, .bytes = "x", .size = 1,
                        .name = "security.capability"),
                   -EPERM);
}

static void regions_are_checked(void **state) {
  (void)state;
  struct protocol_fields response;
  assert_int_equal(greet(SERVED_EXPORT), 0);
  uint64_t file = open_it();
  uint32_t open = introduce("open"), shut = introduce("shut");
  assert_int_equal(CALL(PROTOCOL_REGION, &response, .name = "nobody's"), -ENXIO);
  assert_int_equal(CALL(PROTOCOL_READ, &response, .file = file, .length = 5, .region = open), 0);
  assert_int_equal(response.length, 5);
  assert_memory_equal(haul_region_address(raw.region), "hello", 5);
  assert_int_equal(CALL(PROTOCOL_READ, &response, .file = file, .length = 5, .region = shut),
                   -EACCES);
  assert_int_equal(CALL(PROTOCOL_READ, &response, .file = file, .length = 5, .region = open,
                        .at = (4 << 20) - 4),
                   -EINVAL);
  assert_int_equal(
      CALL(PROTOCOL_READ, &response, .file = file, .length = PROTOCOL_READ_MAX + 1, .region = open),
      -EINVAL);
  assert_int_equal(CALL(PROTOCOL_UNREGION, &response, .region = open), 0);
  assert_int_equal(CALL(PROTOCOL_READ, &response, .file = file, .length = 5, .region = open),
                   -ENXIO);
  assert_works(haul_region_unpublish(raw.region, "shut"));
  open = introduce("open");
  assert_works(haul_region_unpublish(raw.region, "open"));
  assert_int_equal(CALL(PROTOCOL_READ, &response, .file = file, .length = 5, .region = open),
                   -ENXIO);
}

/* As requests of several threads overtake each other. */
static void an_ended_number_names_no_later_region(void **state) {
  (void)state;
  struct protocol_fields response;
  assert_int_equal(greet(SERVED_EXPORT), 0);
  uint64_t file = open_it();
  uint32_t earlier = introduce("open");
  for (unsigned i = 0; i < 300; i++) {
    assert_int_equal(CALL(PROTOCOL_UNREGION, &response, .region = earlier), 0);
    uint32_t later = introduce("open");
    assert_int_equal(CALL(PROTOCOL_READ, &response, .file = file, .length = 5, .region = earlier),
                     -ENXIO);
    assert_int_equal(CALL(PROTOCOL_UNREGION, &response, .region = earlier), -ENXIO);
    assert_int_equal(CALL(PROTOCOL_READ, &response, .file = file, .length = 5, .region = later), 0);
    earlier = later;
  }
}

static void a_clients_handles_are_bounded_and_freed(void **state) {
  (void)state;
  struct protocol_fields response;
  unsigned before = open_descriptors();
  assert_int_equal(greet(SERVED_EXPORT), 0);
  unsigned count = 0;
  int status = 0;
  for (open_it(); !status; count++)
    status = CALL(PROTOCOL_OPEN, &response, .node = 2);
  assert_int_equal(status, -EMFILE);
  assert_int_equal(count, 1024);
  assert_true(open_descriptors() >= before + 1024);
  for (unsigned i = 0; i < 256; i++)
    introduce("open");
  assert_int_equal(CALL(PROTOCOL_REGION, &response, .name = "open"), -ENFILE);
  assert_serves();
  raw_close();
  assert_true(eventually(open_descriptors() < before + 8));
  raw_open();
}

/* Responses fill its window and block its own worker threads alone. */
static void a_client_that_does_not_receive_blocks_itself_alone(void **state) {
  (void)state;
  static struct protocol_request request;
  assert_int_equal(greet(SERVED_EXPORT), 0);
  request.operation = PROTOCOL_STATFS;
  for (unsigned i = 0; i < 3000; i++)
    send_request(&request);
  int64_t until = haul_deadline_in(5 * S);
  assert_serves();
  assert_true(haul_deadline_in(0) < until);
}

/* Reads until it is killed. */
static _Noreturn void killed(const char *address) {
  snprintf(served.address, sizeof served.address, "%s", address);
  raw_open();
  greet(SERVED_EXPORT);
  uint64_t file = open_named("big");
  uint32_t region = introduce("open");
  static struct protocol_request request;
  request.operation = PROTOCOL_READ;
  request.fields = (struct protocol_fields){.file = file, .length = 4 << 20, .region = region};
  for (;;) {
    struct protocol_fields response;
    if (send_request(&request) || raw_receive(PROTOCOL_READ, &response) < 0)
      _exit(1);
  }
}

static void clients_may_be_killed_at_any_time(void **state) {
  (void)state;
  folder_put(root, "big", "");
  assert_int_equal(truncate(folder_path(root, "big"), 8 << 20), 0);
  unsigned before = open_descriptors();
  for (unsigned i = 0; i < 12; i++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      setenv("HAUL_SERVED", served.address, 1);
      execl("/proc/self/exe", "test", "killed", (char *)NULL);
      _exit(127);
    }
    mounted_pause((int)(5 + 11 * i));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  assert_serves();
  assert_true(eventually(open_descriptors() <= before + 8));
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "killed") == 0)
    killed(getenv("HAUL_SERVED"));
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(malformed_requests_end_the_session),
      TEST(every_operation_survives_any_fields),
      TEST(requests_before_greet_are_rejected),
      TEST(names_do_not_leave_the_tree),
      TEST(a_read_only_tree_rejects_changes),
      TEST(the_servers_rights_are_not_passed_on),
      TEST(regions_are_checked),
      TEST(an_ended_number_names_no_later_region),
      TEST(a_clients_handles_are_bounded_and_freed),
      TEST(a_client_that_does_not_receive_blocks_itself_alone),
      TEST(clients_may_be_killed_at_any_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
