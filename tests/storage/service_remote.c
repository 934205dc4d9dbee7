/* SPDX-License-Identifier: MIT
 * Files of `haul serve --export` over loopback tcp and a Unix socket; the client's view of a server
 * that is stopped, killed and started again. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mounted.h" /* eventually */
#include "storage/service/remote.h"
#include "storage/source.h"
#include "support/child.h"

#define S    INT64_C(1000000000)
#define MIB  ((size_t)1 << 20)
#define SIZE (5 * MIB + 4321)

static char root[FOLDER_ROOM], listens[160];
static pid_t server = -1;
static struct source *source;
static const struct source_ops *ops;
static char *expected;

static void run_server(const char *listen, int ready) {
  char number[16], export[FOLDER_ROOM + 16];
  snprintf(number, sizeof number, "%d", ready);
  snprintf(export, sizeof export, "tree=%s:rw", root);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(null, STDOUT_FILENO);
  execl(getenv("HAUL"), "haul", "serve", "--listen", listen, "--export", export, "--ready-fd",
        number, (char *)NULL);
  _exit(127);
}

static void start_server(const char *listen) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  server = fork();
  assert_true(server >= 0);
  if (server == 0)
    run_server(listen, ends[1]);
  close(ends[1]);
  ssize_t length = read(ends[0], listens, sizeof listens - 1);
  close(ends[0]);
  assert_true(length > 1);
  listens[length - 1] = '\0';
}

static int end_server(int signal) {
  int status;
  /* A test may have stopped it. A SIGCONT after the other signal would discard the SIGSTOP with
   * which the leak sanitizer stops each thread at exit: it would wait forever. */
  kill(server, SIGCONT);
  kill(server, signal);
  assert_int_equal(waitpid(server, &status, 0), server);
  server = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void connect_to_it(int64_t timeout_ns) {
  const struct remote_config config = {
      .rpc = {.address = listens, .export = "tree", .timeout_ns = timeout_ns}};
  struct haul_storage_error error;
  if (remote_source_open(&config, &source, &error))
    fail_msg("%s", error.text);
  ops = source->ops;
}

static void make_file(void) {
  int fd = open(folder_path(root, "file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  pattern_fill(expected, SIZE, 7);
  assert_int_equal(write(fd, expected, SIZE), SIZE);
  close(fd);
}

static int set_up(void **state) {
  folder_make(root);
  expected = malloc(SIZE);
  make_file();
  start_server(*state);
  connect_to_it(10 * S);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  ops->close(source);
  if (server > 0)
    assert_int_equal(end_server(SIGTERM), 0);
  free(expected);
  folder_remove(root);
  return 0;
}

static struct source_file *open_named(const char *name, int flags) {
  const struct source_caller caller = {.checked = true};
  struct source_entry entry;
  struct source_file *file;
  assert_int_equal(ops->lookup(source, SOURCE_ROOT, name, &entry), 0);
  assert_int_equal(ops->open(source, &caller, entry.node, flags, &file), 0);
  ops->forget(source, entry.node, 1);
  return file;
}

static void reads_return_the_files_data(void **state) {
  (void)state;
  const struct {
    off_t offset;
    size_t length, there;
  } reads[] = {{0, SIZE, SIZE},
               {0, 1, 1},
               {SIZE - 1, 10, 1},
               {SIZE, 10, 0},
               {MIB - 3, 2 * MIB, 2 * MIB},
               {4321, 4096, 4096},
               {3 * MIB, SIZE, SIZE - 3 * MIB}};
  char *bytes = malloc(SIZE);
  struct source_file *file = open_named("file", O_RDONLY);
  for (size_t i = 0; i < COUNT(reads); i++) {
    assert_int_equal(ops->read(source, file, bytes, reads[i].length, reads[i].offset),
                     reads[i].there);
    assert_memory_equal(bytes, expected + reads[i].offset, reads[i].there);
  }
  ops->release(source, file);
  free(bytes);
}

static void writes_reach_the_file(void **state) {
  (void)state;
  struct source_entry entry;
  struct source_file *file;
  const struct source_caller caller = {.checked = true};
  char *bytes = malloc(SIZE);
  assert_int_equal(ops->create(source, &caller, SOURCE_ROOT, "new", 0600, O_RDWR, &entry, &file),
                   0);
  assert_int_equal(ops->write(source, file, expected, SIZE, 0, 0), SIZE);
  assert_int_equal(ops->write(source, file, "end", 3, 0, RWF_APPEND), 3);
  assert_int_equal(ops->fsync(source, file, true), 0);
  int fd = open(folder_path(root, "new"), O_RDONLY | O_CLOEXEC);
  assert_int_equal(pread(fd, bytes, SIZE, 0), SIZE);
  assert_memory_equal(bytes, expected, SIZE);
  assert_int_equal(pread(fd, bytes, 10, SIZE), 3);
  close(fd);
  const struct source_caller other = {.checked = false};
  const struct source_new folder = {.kind = SOURCE_FOLDER, .mode = 0755};
  assert_int_equal(ops->make(source, &other, SOURCE_ROOT, "folder", &folder, &entry), -EPERM);
  ops->release(source, file);
  free(bytes);
}

static void a_truncated_file_is_read_to_its_end(void **state) {
  (void)state;
  char bytes[64];
  struct source_file *file = open_named("file", O_RDONLY);
  assert_int_equal(truncate(folder_path(root, "file"), 10), 0);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), 10);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, MIB), 0);
  ops->release(source, file);
}

static void *read_all(void *argument) {
  struct source_file *file = argument;
  char *bytes = malloc(SIZE);
  bool good = true;
  for (unsigned i = 0; i < 4; i++)
    good =
        ops->read(source, file, bytes, SIZE, 0) == SIZE && !memcmp(bytes, expected, SIZE) && good;
  free(bytes);
  return good ? argument : NULL;
}

/* More threads than slots. */
static void threads_read_concurrently(void **state) {
  (void)state;
  pthread_t threads[24];
  void *good;
  struct source_file *file = open_named("file", O_RDONLY);
  for (unsigned i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, read_all, file), 0);
  for (unsigned i = 0; i < COUNT(threads); i++) {
    pthread_join(threads[i], &good);
    assert_non_null(good);
  }
  ops->release(source, file);
}

/* Directly into memory without CPU access. */
static void a_file_is_read_into_a_device(void **state) {
  (void)state;
  struct rpc *rpc = remote_of(source)->rpc;
  const struct haul_place host = {HAUL_HOST, 0}, device = {HAUL_SIM, 0};
  haul_region *target, *copy;
  struct client_buffer buffer;
  struct rpc_call *call;
  bool in_use;
  struct source_file *file = open_named("file", O_RDONLY);
  assert_works(haul_region_alloc(rpc_node(rpc), device, 2 * MIB, 0, &target));
  assert_works(haul_region_alloc(rpc_node(rpc), host, 2 * MIB, 0, &copy));
  client_buffer_open(&buffer, rpc, target, HAUL_WRITE);
  struct buffer_io io = {.operation = PROTOCOL_READ,
                         .generation = open_of(file)->generation,
                         .file = open_of(file)->handle,
                         .offset = 77,
                         .at = 4096,
                         .length = MIB + 5};
  assert_int_equal(client_buffer_start(&buffer, &io, &call), 0);
  assert_int_equal(client_buffer_wait(&buffer, &io, call, NULL, NULL, &in_use), MIB + 5);
  assert_works(haul_region_copy(copy, 0, target, 4096, MIB + 5, haul_deadline_in(10 * S)));
  assert_memory_equal(haul_region_address(copy), expected + 77, MIB + 5);
  client_buffer_close(&buffer);
  haul_region_release(target);
  haul_region_release(copy);
  ops->release(source, file);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void the_client_reconnects_to_a_new_server(void **state) {
  (void)state;
  struct source_entry entry, again;
  struct source_file *file = open_named("file", O_RDONLY);
  char bytes[64], address[160];
  assert_int_equal(ops->lookup(source, SOURCE_ROOT, "file", &entry), 0);
  snprintf(address, sizeof address, "%s", listens);
  end_server(SIGKILL);
  double began = seconds();
  assert_true(ops->read(source, file, bytes, sizeof bytes, 0) < 0);
  assert_int_equal(ops->lookup(source, SOURCE_ROOT, "file", &again), -ENOTCONN);
  assert_true(seconds() - began < 5);
  start_server(address);
  assert_true(eventually(ops->lookup(source, SOURCE_ROOT, "file", &again) == 0));
  assert_int_not_equal(again.node, entry.node);
  assert_int_equal(ops->getattr(source, entry.node, NULL, &entry.stat), -ESTALE);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), -ESTALE);
  struct source_file *opened = open_named("file", O_RDONLY);
  assert_int_equal(ops->read(source, opened, bytes, sizeof bytes, 0), sizeof bytes);
  assert_memory_equal(bytes, expected, sizeof bytes);
  /* A file of the old connection does not end the client buffers of the new one. */
  const struct client_buffer *buffer = &remote_of(source)->in.buffer;
  char name[sizeof buffer->name];
  memcpy(name, buffer->name, sizeof name);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), -ESTALE);
  assert_string_equal(name, buffer->name);
  ops->forget(source, entry.node, 1);
  ops->release(source, file);
  ops->release(source, opened);
}

static void fill_region(haul_region *region, haul_region *host, int byte) {
  memset(haul_region_address(host), byte, MIB);
  assert_works(haul_region_copy(region, 0, host, 0, MIB, haul_deadline_in(10 * S)));
}

/* The first MiB of a region. */
static const char *bytes_of(haul_region *region, haul_region *host) {
  assert_works(haul_region_copy(host, 0, region, 0, MIB, haul_deadline_in(10 * S)));
  return haul_region_address(host);
}

static bool moves(struct source_memory *memory, const struct source_move *like) {
  struct source_file *file = open_named("file", O_RDONLY);
  struct source_move move = *like;
  ssize_t moved = ops->move(source, file, memory, &move);
  ops->release(source, file);
  return moved == (ssize_t)like->length;
}

static void a_read_that_timed_out_changes_no_device_memory(void **state) {
  (void)state;
  const struct source_move move = {.length = MIB};
  struct source_move late = move;
  struct source_memory *memory;
  haul_region *region, *host;
  struct stat stat;
  ops->close(source);
  connect_to_it(S);
  haul_node *node = ops->node(source);
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_SIM, 0}, MIB, 0, &region));
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, MIB, 0, &host));
  assert_int_equal(ops->attach(source, region, &memory), 0);
  struct source_file *file = open_named("file", O_RDONLY);
  assert_true(moves(memory, &move));
  assert_memory_equal(bytes_of(region, host), expected, MIB);
  child_stop(server);
  assert_int_equal(ops->move(source, file, memory, &late), -ETIMEDOUT);
  fill_region(region, host, 0x55);
  kill(server, SIGCONT);
  assert_true(eventually(ops->getattr(source, SOURCE_ROOT, NULL, &stat) == 0));
  usleep(300000); /* time for the server to execute the request */
  const char *bytes = bytes_of(region, host);
  for (size_t i = 0; i < MIB; i++)
    assert_int_equal(bytes[i], 0x55);
  ops->release(source, file);
  assert_true(moves(memory, &move));
  assert_memory_equal(bytes_of(region, host), expected, MIB);
  ops->detach(source, memory);
  haul_region_release(region);
  haul_region_release(host);
}

/* The server's number of a buffer that another thread has withdrawn, after a third registered its
 * own. */
static void an_ended_number_moves_no_other_buffers_bytes(void **state) {
  (void)state;
  const struct source_move move = {.length = MIB};
  struct source_memory *first, *second;
  haul_region *regions[2], *host;
  haul_node *node = ops->node(source);
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, MIB, 0, &host));
  for (unsigned i = 0; i < COUNT(regions); i++)
    assert_works(haul_region_alloc(node, (struct haul_place){HAUL_SIM, 0}, MIB, 0, &regions[i]));
  assert_int_equal(ops->attach(source, regions[0], &first), 0);
  assert_int_equal(ops->attach(source, regions[1], &second), 0);
  assert_true(moves(first, &move));
  struct protocol_request end = {.operation = PROTOCOL_UNREGION,
                                 .fields = {.region = first->buffer.number}};
  struct protocol_fields response;
  uint64_t generation = first->buffer.generation;
  assert_int_equal(rpc_call(remote_of(source)->rpc, &generation, &end, &response, NULL, NULL), 0);
  assert_true(moves(second, &move));
  fill_region(regions[0], host, 0x55);
  fill_region(regions[1], host, 0x55);
  assert_true(moves(first, &move)); /* staged, as the server refuses the number */
  assert_memory_equal(bytes_of(regions[0], host), expected, MIB);
  const char *others = bytes_of(regions[1], host);
  for (size_t i = 0; i < MIB; i++)
    assert_int_equal(others[i], 0x55);
  ops->detach(source, first);
  ops->detach(source, second);
  for (unsigned i = 0; i < COUNT(regions); i++)
    haul_region_release(regions[i]);
  haul_region_release(host);
}

#define BUFFERS    250u /* more than half of the server's table of 256 */
#define GENERATION 1u   /* of the source's first connection */
#define REQUESTS   64u  /* as many as the server accepts */

static void announce_all(struct client_buffer *buffers, haul_region *region) {
  for (unsigned i = 0; i < BUFFERS; i++) {
    client_buffer_open(&buffers[i], remote_of(source)->rpc, region, HAUL_WRITE);
    assert_true(eventually(client_buffer_announce(&buffers[i], GENERATION) == 0));
  }
}

static void close_all(struct client_buffer *buffers) {
  for (unsigned i = 0; i < BUFFERS; i++)
    client_buffer_close(&buffers[i]);
}

static void buffers_withdrawn_during_many_requests_are_freed(void **state) {
  (void)state;
  struct rpc *rpc = remote_of(source)->rpc;
  struct client_buffer *buffers = calloc(BUFFERS, sizeof *buffers);
  struct protocol_request request = {.operation = PROTOCOL_STATFS};
  struct protocol_fields response;
  struct rpc_call *calls[REQUESTS];
  haul_region *region;
  uint64_t generation = GENERATION;
  assert_works(
      haul_region_alloc(rpc_node(rpc), (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  announce_all(buffers, region);
  child_stop(server);
  for (unsigned i = 0; i < REQUESTS; i++)
    assert_int_equal(rpc_start(rpc, &generation, &request, &calls[i]), 0);
  close_all(buffers);
  kill(server, SIGCONT);
  for (unsigned i = 0; i < REQUESTS; i++) {
    assert_int_equal(rpc_wait(rpc, &calls[i], &response, NULL, NULL), 0);
    rpc_end(calls[i]);
  }
  announce_all(buffers, region);
  close_all(buffers);
  haul_region_release(region);
  free(buffers);
}

static void *announce_in_vain(void *buffer) {
  return client_buffer_announce(buffer, GENERATION) == -ETIMEDOUT ? buffer : NULL;
}

/* While the server is stopped; then waits for its late responses. */
static void announce_too_late(struct client_buffer *buffers, unsigned count) {
  pthread_t threads[REQUESTS];
  struct stat stat;
  void *timed_out;
  child_stop(server);
  for (unsigned i = 0; i < count; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, announce_in_vain, &buffers[i]), 0);
  for (unsigned i = 0; i < count; i++) {
    pthread_join(threads[i], &timed_out);
    assert_non_null(timed_out);
  }
  kill(server, SIGCONT);
  assert_true(eventually(ops->getattr(source, SOURCE_ROOT, NULL, &stat) == 0));
}

static void buffers_announced_too_late_are_freed(void **state) {
  (void)state;
  const unsigned turns = 5, each = 60; /* more than the table has room for */
  struct client_buffer *buffers = calloc(turns * each, sizeof *buffers), last;
  haul_region *region;
  ops->close(source);
  connect_to_it(S);
  struct rpc *rpc = remote_of(source)->rpc;
  assert_works(
      haul_region_alloc(rpc_node(rpc), (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  for (unsigned i = 0; i < turns * each; i++)
    client_buffer_open(&buffers[i], rpc, region, HAUL_WRITE);
  for (unsigned i = 0; i < turns; i++)
    announce_too_late(buffers + i * each, each);
  client_buffer_open(&last, rpc, region, HAUL_WRITE);
  assert_true(eventually(client_buffer_announce(&last, GENERATION) == 0));
  client_buffer_close(&last);
  for (unsigned i = 0; i < turns * each; i++)
    client_buffer_close(&buffers[i]);
  haul_region_release(region);
  free(buffers);
}

static void an_unresponsive_server_times_out(void **state) {
  (void)state;
  struct source_entry entry;
  struct source_file *file;
  char bytes[64];
  ops->close(source);
  connect_to_it(S);
  file = open_named("file", O_RDONLY);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), sizeof bytes);
  child_stop(server);
  double began = seconds();
  assert_int_equal(ops->lookup(source, SOURCE_ROOT, "file", &entry), -ETIMEDOUT);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), -ETIMEDOUT);
  assert_true(seconds() - began < 4);
  kill(server, SIGCONT);
  assert_true(eventually(ops->read(source, file, bytes, sizeof bytes, 0) == sizeof bytes));
  assert_memory_equal(bytes, expected, sizeof bytes);
  ops->release(source, file);
}

/* Closing ends the read's bounce buffer. ThreadSanitizer reports a lock that is gone by then. */
static void a_source_may_be_closed_after_a_timeout(void **state) {
  (void)state;
  char bytes[64];
  ops->close(source);
  connect_to_it(S);
  struct source_file *file = open_named("file", O_RDONLY);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), sizeof bytes);
  child_stop(server);
  assert_int_equal(ops->read(source, file, bytes, sizeof bytes, 0), -ETIMEDOUT);
  ops->close(source);
  free(open_of(file));
  kill(server, SIGCONT);
  connect_to_it(10 * S);
}

static void servers_may_be_killed_at_any_time(void **state) {
  (void)state;
  for (unsigned i = 0; i < 6; i++) {
    pthread_t threads[4];
    char address[160];
    snprintf(address, sizeof address, "%s", listens);
    struct source_file *file = open_named("file", O_RDONLY);
    for (unsigned t = 0; t < COUNT(threads); t++)
      assert_int_equal(pthread_create(&threads[t], NULL, read_all, file), 0);
    mounted_pause((int)(7 * i));
    end_server(SIGKILL);
    for (unsigned t = 0; t < COUNT(threads); t++)
      pthread_join(threads[t], NULL);
    ops->release(source, file);
    start_server(address);
    struct source_entry entry;
    assert_true(eventually(ops->lookup(source, SOURCE_ROOT, "file", &entry) == 0));
  }
}

int main(void) {
  static char own[64];
  if (!getenv("HAUL")) {
    printf("skipped: HAUL is to be the path of the command\n");
    return 77;
  }
  snprintf(own, sizeof own, "unix://@haul-files-%d", getpid());
#define OVER(name, address)                                                                        \
  { #name, name, set_up, tear_down, (void *)(uintptr_t)(address) }
#define TEST(name) OVER(name, "tcp://127.0.0.1:0"), OVER(name, own)
  const struct CMUnitTest tests[] = {
      TEST(reads_return_the_files_data),
      TEST(writes_reach_the_file),
      TEST(a_truncated_file_is_read_to_its_end),
      TEST(threads_read_concurrently),
      TEST(a_file_is_read_into_a_device),
      TEST(the_client_reconnects_to_a_new_server),
      TEST(a_read_that_timed_out_changes_no_device_memory),
      TEST(an_ended_number_moves_no_other_buffers_bytes),
      TEST(buffers_withdrawn_during_many_requests_are_freed),
      TEST(buffers_announced_too_late_are_freed),
      TEST(an_unresponsive_server_times_out),
      TEST(a_source_may_be_closed_after_a_timeout),
      TEST(servers_may_be_killed_at_any_time),
  };
  setenv("HAUL_SIM_DEVICES", "1", 0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
