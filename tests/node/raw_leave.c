/* SPDX-License-Identifier: MIT
 * What was sent before the end of a connection arrives, whichever of its sockets ends first; with a
 * peer made by hand on the other side. */
#include "support/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/wire.h"
#include "support/owner.h"
#include "support/raw.h"

#define BOUND  (20 * S)
#define LENGTH ((size_t)900 << 10) /* in the window that the raw peer gives */

static struct haul_node *node;

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.peer_events = 1;
  config.liveness_ns = 2 * S;
  return haul_node_open(&config, &node);
}

static int tear_down(void **state) {
  (void)state;
  haul_node_close(node);
  return 0;
}

static void sleep_ms(long ms) {
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* The two connections of a peer that came, whose rail has ended. */
static int peer_without_a_rail(void) {
  char address[160];
  struct welcome welcome;
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, address, sizeof address));
  int control = raw_peer(address, &welcome), rail = raw_channel(address, &welcome, "tcp", 0);
  assert_true(control >= 0 && rail >= 0);
  struct haul_message message;
  assert_works(haul_message_receive(node, &message, haul_deadline_in(BOUND)));
  assert_int_equal(message.kind, HAUL_PEER_JOINED);
  haul_message_release(&message);
  close(rail);
  sleep_ms(50);
  return control;
}

static void expect(int kind) {
  struct haul_message message;
  assert_works(haul_message_receive(node, &message, haul_deadline_in(BOUND)));
  assert_int_equal(message.kind, kind);
  haul_message_release(&message);
}

static void a_message_is_heard_though_the_rail_ended_first(void **state) {
  (void)state;
  int control = peer_without_a_rail();
  uint8_t body[8 + 4] = {9, 0, 0, 0, 0, 0, 0, 0, 'l', 'a', 's', 't'};
  assert_true(raw_control(control, CONTROL_MESSAGE, 0, body, sizeof body));
  close(control);
  expect(HAUL_MESSAGE);
  expect(HAUL_PEER_LEFT);
}

static void a_peer_that_lost_its_rails_is_dropped(void **state) {
  (void)state;
  int control = peer_without_a_rail();
  expect(HAUL_PEER_LEFT);
  assert_true(raw_ended(control, BOUND));
  close(control);
}

static struct {
  int listener, control, rails[8];
  size_t count;
  char address[64];
  struct haul_peer *peer;
  _Atomic bool connected;
} at;

/* Little room, so that most of what is sent stays with the sender. */
static void listen_raw(void) {
  struct sockaddr_in address = {.sin_port = 0};
  socklen_t length = sizeof address;
  at.listener = raw_listen("tcp://127.0.0.1:0");
  setsockopt(at.listener, SOL_SOCKET, SO_RCVBUF, &(int){8192}, sizeof(int));
  assert_int_equal(getsockname(at.listener, (struct sockaddr *)&address, &length), 0);
  snprintf(at.address, sizeof at.address, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
}

static void *connect_node(void *argument) {
  (void)argument;
  int code = haul_peer_connect(node, at.address, haul_deadline_in(BOUND), &at.peer);
  atomic_store(&at.connected, true);
  return code == 0 ? NULL : argument;
}

/* The control connection, then what the node connects besides: rails alone. */
static void accept_all(void) {
  struct hello hello;
  at.control = raw_accept(at.listener);
  assert_true(at.control >= 0 && raw_welcome(at.control, false, &hello));
  while (!atomic_load(&at.connected)) {
    struct pollfd waiting = {at.listener, POLLIN, 0};
    int fd = poll(&waiting, 1, 20) > 0 ? raw_accept(at.listener) : -1;
    if (fd >= 0 && raw_welcome(fd, false, &hello) && strcmp(hello.transport, "tcp") == 0)
      at.rails[at.count++] = fd;
    else if (fd >= 0)
      close(fd);
  }
}

static void connect_both(void) {
  pthread_t thread;
  void *failed;
  listen_raw();
  assert_int_equal(pthread_create(&thread, NULL, connect_node, &at), 0);
  accept_all();
  assert_int_equal(pthread_join(thread, &failed), 0);
  assert_null(failed);
}

/* The bytes of the next message; other frames are skipped. */
static size_t read_message(void) {
  uint8_t head[CONTROL_HEAD];
  struct control_frame frame;
  static char bytes[LENGTH + 8];
  do {
    assert_true(raw_receive(at.control, head, sizeof head));
    assert_int_equal(control_parse(head, &frame), 0);
    assert_true(frame.length <= sizeof bytes);
    assert_true(raw_receive(at.control, bytes, frame.length));
  } while (frame.type != CONTROL_MESSAGE);
  return frame.length - 8;
}

/* A socket that is closed with something unread takes back what the other side has not fetched. */
static void sent_messages_arrive_after_the_close(void **state) {
  (void)state;
  char *bytes = calloc(1, LENGTH);
  uint8_t body[CONTROL_BODY_MAX];
  connect_both();
  assert_works(haul_message_send(at.peer, 9, bytes, LENGTH, haul_deadline_in(BOUND)));
  haul_peer_close(at.peer);
  for (int i = 0; i < 2000; i++) /* while it closes */
    raw_control(at.control, CONTROL_PING, 0, NULL, 0);
  assert_int_equal(read_message(), LENGTH);
  assert_int_equal(raw_answer(at.control, CONTROL_GOODBYE, body), 0);
  assert_true(raw_ended(at.control, BOUND));
  close(at.control);
  for (size_t i = 0; i < at.count; i++)
    close(at.rails[i]);
  close(at.listener);
  free(bytes);
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_message_is_heard_though_the_rail_ended_first),
      TEST(a_peer_that_lost_its_rails_is_dropped),
      TEST(sent_messages_arrive_after_the_close),
  };
  return cmocka_run_group_tests_name("leaving", tests, NULL, NULL);
}
