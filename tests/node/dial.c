/* SPDX-License-Identifier: MIT
 * Connections that a node makes: listeners that are full, silent, slow or hostile; a node that is
 * closed, and a process that forks, while it connects. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"
#include "support/child.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/raw.h"
#include "support/seams.h"

#define BOUND (20 * S)

static const enum haul_progress ways[] = {HAUL_PROGRESS_THREAD, HAUL_PROGRESS_CALLER};

static struct haul_node *open_node(enum haul_progress progress) {
  struct haul_node_config config = patient_config();
  struct haul_node *node;
  config.progress = (int)progress;
  assert_works(haul_node_open(&config, &node));
  return node;
}

/* A thread that connects to own_socket(). */
struct caller {
  pthread_t thread;
  struct haul_node *node;
  struct haul_peer *peer;
  haul_deadline until;
  int code;
  struct haul_error error;
};

static void *call(void *user) {
  struct caller *caller = user;
  caller->code = haul_peer_connect(caller->node, own_socket(), caller->until, &caller->peer);
  if (caller->code)
    caller->error = *haul_error_last();
  return NULL;
}

static void caller_start(struct caller *caller, enum haul_progress progress) {
  *caller = (struct caller){.node = open_node(progress), .until = haul_deadline_in(BOUND)};
  assert_int_equal(pthread_create(&caller->thread, NULL, call, caller), 0);
}

static void caller_join(struct caller *caller) {
  assert_int_equal(pthread_join(caller->thread, NULL), 0);
}

static void wait_until_dialing(struct haul_node *node) {
  for (bool dialing = false; !dialing;) {
    loop_lock(node->loop);
    dialing = !list_empty(&node->dials);
    loop_unlock(node->loop);
    nanosleep(&(struct timespec){0, 100000}, NULL);
  }
}

static int listen_with_full_queue(int waiting[8], int *count) {
  struct address address;
  int system = 0;
  assert_works(address_parse(own_socket(), haul_deadline_in(BOUND), &address));
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&address.storage, address.length), 0);
  assert_int_equal(listen(listener, 1), 0);
  for (*count = 0; *count < 8 && system == 0; ++*count) {
    assert_works(sock_open(&address, "full", &waiting[*count]));
    system = sock_connect_start(waiting[*count], &address);
  }
  assert_true(system != 0);
  return listener;
}

static void close_all(const int *fds, int count) {
  while (count > 0)
    close(fds[--count]);
}

static void a_full_listener_costs_no_more_than_the_deadline(void **state) {
  (void)state;
  int waiting[8], count;
  int listener = listen_with_full_queue(waiting, &count);
  for (size_t i = 0; i < COUNT(ways); i++) {
    struct haul_node *node = open_node(ways[i]);
    struct haul_peer *peer;
    int64_t began = clock_now();
    assert_fails(HAUL_ETIMEDOUT,
                 haul_peer_connect(node, own_socket(), haul_deadline_in(20 * MS), &peer));
    assert_string_equal(haul_error_last()->object, own_socket());
    assert_true(clock_now() - began < BOUND);
    haul_node_close(node);
  }
  close_all(waiting, count);
  close(listener);
}

static void a_full_listener_is_tried_until_it_has_room(void **state) {
  (void)state;
  int waiting[8], count;
  struct hello hello;
  for (size_t i = 0; i < COUNT(ways); i++) {
    struct caller caller;
    int listener = listen_with_full_queue(waiting, &count);
    caller_start(&caller, ways[i]);
    wait_until_dialing(caller.node);
    for (int k = 0; k < count - 1; k++)
      close(raw_accept(listener));
    int fd = raw_accept(listener);
    close(listener); /* no channels */
    assert_true(raw_welcome(fd, false, &hello));
    caller_join(&caller);
    assert_works(caller.code);
    haul_peer_close(caller.peer);
    haul_node_close(caller.node);
    close(fd);
    close_all(waiting, count);
  }
}

static void a_silent_listener_costs_no_more_than_the_deadline(void **state) {
  (void)state;
  int listener = raw_listen(own_socket());
  const haul_deadline deadlines[] = {HAUL_NO_WAIT, 20 * MS};
  for (size_t i = 0; i < COUNT(ways) * COUNT(deadlines); i++) {
    struct haul_node *node = open_node(ways[i / 2]);
    struct haul_peer *peer;
    haul_deadline until = deadlines[i % 2] ? haul_deadline_in(deadlines[i % 2]) : HAUL_NO_WAIT;
    assert_fails(HAUL_ETIMEDOUT, haul_peer_connect(node, own_socket(), until, &peer));
    assert_string_equal(haul_error_last()->text, deadlines[i % 2]
                                                     ? "the peer does not answer"
                                                     : "the deadline had passed before the call");
    assert_string_equal(haul_error_last()->call, "haul_peer_connect");
    haul_node_close(node);
  }
  close(listener);
}

/* Accepts a connection, discards its hello, and sends these bytes one by one. */
static void answer_and_close(int listener, const char *bytes, size_t length) {
  uint8_t head[HANDSHAKE_HEAD], body[HANDSHAKE_MAX];
  int fd = raw_accept(listener);
  assert_true(raw_receive(fd, head, sizeof head));
  assert_true(raw_receive(fd, body, (size_t)hello_body(head)));
  for (size_t i = 0; i < length; i++) {
    if (!raw_send(fd, bytes + i, 1))
      break;
    nanosleep(&(struct timespec){0, 1000}, NULL);
  }
  close(fd);
}

static void bad_welcomes_are_named(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t length;
    int code;
    const char *text;
  } cases[] = {
      {"", 0, HAUL_EPEER, "the connection ended"},
      {"haul-ok\n\6\0\6\0", 12, HAUL_EPEER, "the connection ended"},
      {"haul-ok\n\6\0\6\0\6\0\10\0half", 20, HAUL_EPEER, "the connection ended"},
      {"haul-ok\n\6\0\6\0\6\0\0\0", 16, HAUL_EPROTO, "the response to the handshake is malformed"},
      {"HTTP/1.1 400 Bad", 16, HAUL_EPROTO, "the listener is not a haul node"},
  };
  int listener = raw_listen(own_socket());
  for (size_t i = 0; i < COUNT(ways) * COUNT(cases); i++) {
    struct caller caller;
    size_t at = i / COUNT(ways);
    caller_start(&caller, ways[i % COUNT(ways)]);
    answer_and_close(listener, cases[at].bytes, cases[at].length);
    caller_join(&caller);
    assert_int_equal(caller.code, cases[at].code);
    assert_string_equal(caller.error.text, cases[at].text);
    assert_string_equal(caller.error.object, own_socket());
    haul_node_close(caller.node);
  }
  close(listener);
}

/* The listener ends the control connection while a channel is in its handshake. */
static void the_end_of_a_peer_ends_its_channels_handshake(void **state) {
  (void)state;
  int listener = raw_listen(own_socket());
  for (size_t i = 0; i < COUNT(ways); i++) {
    struct caller caller;
    struct hello hello;
    int64_t began = clock_now();
    caller_start(&caller, ways[i]);
    int control = raw_accept(listener);
    assert_true(raw_welcome(control, true, &hello));
    int channel = raw_accept(listener);
    close(control);
    caller_join(&caller);
    assert_int_equal(caller.code, HAUL_EPEER);
    assert_true(clock_now() - began < BOUND);
    close(channel);
    haul_node_close(caller.node);
  }
  close(listener);
}

static void closing_the_node_ends_a_connect(void **state) {
  (void)state;
  int listener = raw_listen(own_socket());
  for (size_t i = 0; i < COUNT(ways); i++) {
    struct caller caller;
    int64_t began = clock_now();
    caller_start(&caller, ways[i]);
    wait_until_dialing(caller.node);
    haul_node_close(caller.node);
    caller_join(&caller);
    assert_int_equal(caller.code, HAUL_ECLOSED);
    assert_true(clock_now() - began < BOUND);
  }
  close(listener);
}

static void close_in_child(void *node) {
  haul_node_close(node);
  if (open_descriptors() != counted_descriptors + 1) /* the listener */
    _exit(99);
}

static void a_forked_child_closes_what_is_connecting(void **state) {
  (void)state;
  struct hello hello;
  struct caller caller;
  int listener = raw_listen(own_socket());
  caller_start(&caller, HAUL_PROGRESS_THREAD);
  wait_until_dialing(caller.node);
  assert_int_equal(child_run(close_in_child, caller.node), 0);
  int fd = raw_accept(listener);
  close(listener); /* no channels */
  assert_true(raw_welcome(fd, false, &hello));
  caller_join(&caller);
  assert_works(caller.code);
  haul_peer_close(caller.peer);
  haul_node_close(caller.node);
  close(fd);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define TEST(test) cmocka_unit_test_setup_teardown(test, count_before, count_after)
  const struct CMUnitTest tests[] = {
      TEST(a_full_listener_costs_no_more_than_the_deadline),
      TEST(a_full_listener_is_tried_until_it_has_room),
      TEST(a_silent_listener_costs_no_more_than_the_deadline),
      TEST(bad_welcomes_are_named),
      TEST(the_end_of_a_peer_ends_its_channels_handshake),
      TEST(closing_the_node_ends_a_connect),
      TEST(a_forked_child_closes_what_is_connecting),
  };
  return cmocka_run_group_tests_name("dial", tests, NULL, NULL);
}
