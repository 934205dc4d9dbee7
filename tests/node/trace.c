/* SPDX-License-Identifier: MIT
 * What a node says has happened, and when: to this process, to peers, and to whom. */
#include "support/check.h"

#include <haul/access.h>
#include <haul/stats.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/node.h"
#include "support/owner.h"
#include "support/tree.h"

#define BOUND  (20 * S)
#define LENGTH ((size_t)3000000) /* three slices */
#define ROOM   ((size_t)20000)   /* more than the ring has */

static char folder[64];
static struct haul_node *server, *client;
static haul_peer *peer;
static haul_region *target, *local;
static haul_remote *remote;
static struct haul_trace_event events[ROOM];

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static struct haul_node *named(const char *name, const char *key, int any_observer) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.name = name;
  config.key = key;
  config.any_observer = any_observer;
  assert_works(haul_node_open(&config, &node));
  return node;
}

static const char *listening(const char *address) {
  static char found[160];
  assert_works(haul_node_listen(server, address));
  assert_works(haul_node_address(server, 0, found, sizeof found));
  return found;
}

/* A server with a region, and a client that has looked it up. */
static void open_pair(const char *key, int any_observer) {
  server = named("server", key, any_observer);
  client = named("client", key, 0);
  assert_works(haul_peer_connect(client, listening("tcp://127.0.0.1:0"), soon(), &peer));
  target = region_make(server, KIND_HOST, LENGTH);
  assert_works(haul_region_publish(target, "target", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(peer, "target", soon(), &remote));
  local = region_make(client, KIND_PRIVATE, LENGTH);
}

static int close_pair(void **state) {
  (void)state;
  if (remote)
    haul_remote_release(remote);
  if (local)
    region_drop(local, KIND_PRIVATE);
  if (target)
    region_drop(target, KIND_HOST);
  haul_peer_close(peer);
  haul_node_close(client);
  haul_node_close(server);
  remote = NULL;
  local = target = NULL;
  peer = NULL;
  client = server = NULL;
  return 0;
}

static void move(size_t length, bool reads) {
  haul_transfer *transfer;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, length};
  options.only = "tcp";
  if (reads)
    assert_works(haul_read(local, remote, &piece, 1, &options, &transfer));
  else
    assert_works(haul_write(remote, local, &piece, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

/* Events of this kind, and the sum of their bytes. */
static size_t of_kind(size_t count, enum haul_trace_kind kind, uint64_t *bytes) {
  size_t found = 0;
  *bytes = 0;
  for (size_t i = 0; i < count; i++) {
    found += events[i].kind == kind;
    *bytes += events[i].kind == kind ? events[i].bytes : 0;
  }
  return found;
}

static size_t own_events(haul_node *node, struct haul_trace *trace) {
  size_t count = ROOM;
  assert_works(haul_node_trace(node, trace, events, &count));
  return count;
}

static size_t peers_events(struct haul_trace *trace) {
  size_t count = ROOM;
  assert_works(haul_peer_trace_of(peer, soon(), trace, events, &count));
  return count;
}

static void a_transfer_is_seen_from_its_start_to_its_end(void **state) {
  struct haul_trace trace = {0};
  uint64_t bytes;
  (void)state;
  open_pair(NULL, 0);
  assert_int_equal(own_events(client, &trace), 0);
  move(LENGTH, false);
  size_t count = own_events(client, &trace);
  assert_int_equal(trace.lost, 0);
  assert_int_equal(of_kind(count, HAUL_TRACE_SUBMIT, &bytes), 1);
  assert_int_equal(bytes, LENGTH);
  assert_int_equal(events[0].kind, HAUL_TRACE_SUBMIT);
  assert_int_equal(events[0].slice, 3);
  assert_int_equal(of_kind(count, HAUL_TRACE_POST, &bytes), 3);
  assert_int_equal(bytes, LENGTH);
  assert_int_equal(of_kind(count, HAUL_TRACE_DONE, &bytes), 3);
  assert_int_equal(bytes, LENGTH);
  assert_int_equal(of_kind(count, HAUL_TRACE_REQUEST, &bytes), 3);
  assert_int_equal(of_kind(count, HAUL_TRACE_COMPLETE, &bytes), 1);
  assert_int_equal(count, 11);
  assert_int_equal(events[count - 1].kind, HAUL_TRACE_COMPLETE);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(events[i].transfer, events[0].transfer);
    assert_int_equal(events[i].peer, events[0].peer);
    assert_int_equal(events[i].status, 0);
    assert_int_equal(events[i].operation, HAUL_OP_WRITE);
    assert_true(events[i].at_ns <= trace.clock_ns);
    assert_string_equal(events[i].path, events[i].kind == HAUL_TRACE_SUBMIT ? "" : "tcp");
  }
  assert_int_equal(own_events(client, &trace), 0);
}

static void a_peer_reports_the_bytes_that_it_serves(void **state) {
  struct haul_trace trace = {0};
  uint64_t bytes;
  (void)state;
  open_pair(NULL, 0);
  assert_int_equal(peers_events(&trace), 0);
  move(LENGTH, false);
  move(1000, true);
  size_t count = peers_events(&trace);
  assert_int_equal(of_kind(count, HAUL_TRACE_SERVE, &bytes), 3);
  assert_int_equal(bytes, LENGTH);
  assert_int_equal(of_kind(count, HAUL_TRACE_SERVED, &bytes), 4);
  assert_int_equal(bytes, LENGTH + 1000);
  assert_int_equal(count, 7);
  assert_string_equal(events[0].path, "tcp");
}

/* The ids of events of this kind, in ascending order: those of requests. */
static size_t ids_of(size_t count, enum haul_trace_kind kind, uint64_t ids[ROOM]) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    if (events[i].kind != kind)
      continue;
    uint64_t id = kind == HAUL_TRACE_REQUEST ? events[i].bytes : events[i].transfer;
    size_t at = found++;
    for (; at > 0 && ids[at - 1] > id; at--)
      ids[at] = ids[at - 1];
    ids[at] = id;
  }
  return found;
}

static void both_sides_record_the_same_requests(void **state) {
  static uint64_t sent[ROOM], served[ROOM];
  struct haul_trace own = {0}, peers = {0};
  (void)state;
  open_pair(NULL, 0);
  own_events(client, &own);
  peers_events(&peers);
  move(LENGTH, false);
  move(1000, true);
  size_t count = ids_of(own_events(client, &own), HAUL_TRACE_REQUEST, sent);
  assert_int_equal(count, 4);
  assert_int_equal(ids_of(peers_events(&peers), HAUL_TRACE_SERVED, served), count);
  assert_memory_equal(sent, served, count * sizeof sent[0]);
}

static void a_failure_shows_its_code(void **state) {
  struct haul_trace trace = {0};
  (void)state;
  open_pair(NULL, 0);
  own_events(client, &trace);
  assert_works(haul_region_unpublish(target, "target"));
  haul_transfer *transfer;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 100};
  options.only = "tcp";
  assert_works(haul_write(remote, local, &piece, 1, &options, &transfer));
  assert_fails(HAUL_ESTALE, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  size_t count = own_events(client, &trace);
  assert_int_equal(count, 5);
  assert_int_equal(events[3].status, HAUL_ESTALE);
  assert_int_equal(events[4].status, HAUL_ESTALE);
}

static void write_events(haul_node *node, uint64_t count) {
  struct trace *trace = &((struct haul_node *)node)->fabric.trace;
  for (uint64_t i = 0; i < count; i++)
    trace_write(trace, (struct trace_event){.kind = HAUL_TRACE_POST,
                                            .operation = HAUL_OP_WRITE,
                                            .path = TRACE_NO_PATH,
                                            .bytes = i});
}

static void lost_events_are_counted(void **state) {
  struct haul_trace trace = {0};
  (void)state;
  open_pair(NULL, 0);
  peers_events(&trace);
  write_events(server, TRACE_SLOTS + 100);
  assert_int_equal(peers_events(&trace), TRACE_SLOTS);
  assert_int_equal(trace.lost, 100);
  assert_int_equal(events[0].bytes, 100);
  assert_int_equal(events[TRACE_SLOTS - 1].bytes, TRACE_SLOTS + 99);
  write_events(server, 3);
  assert_int_equal(peers_events(&trace), 3);
  assert_int_equal(trace.lost, 100);
}

static void little_room_is_filled_bit_by_bit(void **state) {
  struct haul_trace trace = {0};
  (void)state;
  open_pair(NULL, 0);
  peers_events(&trace);
  write_events(server, 300);
  for (uint64_t i = 0; i < 300; i += 150) {
    size_t count = 150;
    assert_works(haul_peer_trace_of(peer, soon(), &trace, events, &count));
    assert_int_equal(count, 150);
    assert_int_equal(events[149].bytes, i + 149);
  }
  size_t count = 0;
  assert_works(haul_peer_trace_of(peer, soon(), &trace, NULL, &count));
  assert_int_equal(peers_events(&trace), 0);
  assert_int_equal(trace.lost, 0);
}

static void observers_do_not_take_events_from_each_other(void **state) {
  struct haul_trace one = {0}, other = {0}, own = {0};
  haul_peer *second;
  char address[160];
  size_t count = ROOM;
  (void)state;
  open_pair(NULL, 0);
  assert_works(haul_node_address(server, 0, address, sizeof address));
  assert_works(haul_peer_connect(client, address, soon(), &second));
  peers_events(&one);
  assert_works(haul_peer_trace_of(second, soon(), &other, events, &count));
  own_events(server, &own);
  write_events(server, 10);
  assert_int_equal(peers_events(&one), 10);
  haul_peer_close(second);
  assert_works(haul_peer_connect(client, address, soon(), &second));
  count = ROOM;
  assert_works(haul_peer_trace_of(second, soon(), &other, events, &count));
  assert_int_equal(count, 10);
  assert_int_equal(own_events(server, &own), 10);
  haul_peer_close(second);
}

static void any_number_may_be_requested(void **state) {
  const uint64_t numbers[] = {1, 2, 5000, UINT64_MAX, UINT64_MAX / 2, UINT64_C(1) << 62};
  (void)state;
  open_pair(NULL, 0);
  struct haul_trace trace = {0};
  peers_events(&trace);
  write_events(server, 10);
  for (size_t i = 0; i < COUNT(numbers); i++) {
    struct haul_trace hostile = {.next = numbers[i]};
    assert_int_equal(peers_events(&hostile), numbers[i] < 10 ? 11 - numbers[i] : 0);
    assert_int_equal(hostile.next, 11);
    assert_int_equal(hostile.lost, 0);
  }
}

static bool records(haul_node *node) {
  loop_lock(node->loop);
  bool on = node->fabric.trace.allocated != NULL;
  loop_unlock(node->loop);
  return on;
}

static void a_recording_ends_without_readers(void **state) {
  struct haul_trace trace = {0};
  (void)state;
  open_pair(NULL, 0);
  assert_false(records(server));
  peers_events(&trace);
  assert_true(records(server));
  for (haul_deadline until = soon(); records(server) && clock_now() < until;)
    usleep(20000);
  assert_false(records(server));
  move(100, false); /* not recorded */
  assert_int_equal(peers_events(&trace), 0);
  assert_int_equal(trace.lost, 0);
  write_events(server, 1);
  assert_int_equal(peers_events(&trace), 1);
}

#define WRITERS 4
#define EACH    20000

static void *write_some(void *argument) {
  (void)argument;
  write_events(server, EACH);
  return NULL;
}

/* However the threads and the readers meet, events are whole, in order, and told or lost. */
static void writers_and_readers_at_once(void **state) {
  struct haul_trace trace = {0};
  pthread_t threads[WRITERS];
  uint64_t told = 0;
  (void)state;
  open_pair(NULL, 0);
  own_events(server, &trace);
  for (int i = 0; i < WRITERS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, write_some, NULL), 0);
  for (haul_deadline until = soon(); trace.next <= WRITERS * EACH && clock_now() < until;) {
    size_t count = own_events(server, &trace);
    told += count;
    for (size_t i = 0; i < count; i++)
      assert_true(events[i].kind == HAUL_TRACE_POST && events[i].bytes < EACH);
  }
  for (int i = 0; i < WRITERS; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(trace.next, WRITERS * EACH + 1);
  assert_int_equal(told + trace.lost, WRITERS * EACH);
}

static void *move_much(void *argument) {
  (void)argument;
  for (int i = 0; i < 200; i++)
    move(10000, i % 2);
  return NULL;
}

static void transfers_go_on_while_recordings_begin_and_end(void **state) {
  struct haul_trace trace = {0};
  pthread_t thread;
  (void)state;
  open_pair(NULL, 0);
  assert_int_equal(pthread_create(&thread, NULL, move_much, NULL), 0);
  for (int i = 0; i < 50; i++) {
    peers_events(&trace);
    own_events(client, &trace);
    loop_lock(server->loop);
    trace_stop(&server->fabric.trace);
    loop_unlock(server->loop);
    loop_lock(client->loop);
    trace_stop(&client->fabric.trace);
    loop_unlock(client->loop);
  }
  pthread_join(thread, NULL);
}

static int ask(void) {
  struct haul_trace trace = {0};
  size_t count = ROOM;
  return haul_peer_trace_of(peer, soon(), &trace, events, &count);
}

static const char *key(void) {
  static char path[160];
  if (!folder[0]) {
    snprintf(folder, sizeof folder, "/tmp/haul-trace-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/key", folder);
    assert_works(haul_key_new(path, "alice"));
  }
  return path;
}

static void with_a_key_only_observers_get_statistics(void **state) {
  (void)state;
  open_pair(key(), 0);
  assert_fails(HAUL_EACCESS, ask());
  assert_false(records(server));
}

static void unless_that_is_set(void **state) {
  (void)state;
  open_pair(key(), 1);
  assert_works(ask());
}

static void its_own_user_may_observe_over_a_unix_socket(void **state) {
  (void)state;
  char address[64];
  snprintf(address, sizeof address, "unix://@haul-trace-%d", (int)getpid());
  server = named("server", key(), 0);
  client = named("client", NULL, 0);
  assert_works(haul_peer_connect(client, listening(address), soon(), &peer));
  assert_works(ask());
}

static void wrong_arguments(void **state) {
  struct haul_trace trace = {0};
  size_t count = 1;
  (void)state;
  server = named("server", NULL, 0);
  assert_fails(HAUL_EINVAL, haul_node_trace(NULL, &trace, events, &count));
  assert_fails(HAUL_EINVAL, haul_node_trace(server, NULL, events, &count));
  assert_fails(HAUL_EINVAL, haul_node_trace(server, &trace, NULL, &count));
  assert_fails(HAUL_EINVAL, haul_peer_trace_of(NULL, soon(), &trace, events, &count));
}

static int remove_folder(void **state) {
  (void)state;
  if (folder[0])
    tree_remove(folder);
  return 0;
}

#define TEST(test) cmocka_unit_test_teardown(test, close_pair)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_transfer_is_seen_from_its_start_to_its_end),
      TEST(a_peer_reports_the_bytes_that_it_serves),
      TEST(both_sides_record_the_same_requests),
      TEST(a_failure_shows_its_code),
      TEST(lost_events_are_counted),
      TEST(little_room_is_filled_bit_by_bit),
      TEST(observers_do_not_take_events_from_each_other),
      TEST(any_number_may_be_requested),
      TEST(a_recording_ends_without_readers),
      TEST(writers_and_readers_at_once),
      TEST(transfers_go_on_while_recordings_begin_and_end),
      TEST(with_a_key_only_observers_get_statistics),
      TEST(unless_that_is_set),
      TEST(its_own_user_may_observe_over_a_unix_socket),
      TEST(wrong_arguments),
  };
  return cmocka_run_group_tests_name("trace", tests, NULL, remove_folder);
}
