/* SPDX-License-Identifier: MIT
 * Two nodes that connect to each other use one link. */
#include "support/check.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/peer.h"
#include "support/owner.h"
#include "support/raw.h"
#include "support/seams.h"

#define BOUND  (100 * S)
#define LENGTH ((size_t)65536)

/* Node 0 connects to node 1 first. */
static struct {
  struct haul_node *node;
  char address[160];
  haul_peer *peer;
  struct haul_region *region;
} at[2];

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static void open_at(unsigned i, const struct haul_node_config *given, const char *address) {
  struct haul_node_config config = *given;
  config.peer_events = 1;
  assert_works(haul_node_open(&config, &at[i].node));
  assert_works(haul_node_listen(at[i].node, address));
  assert_works(haul_node_address(at[i].node, 0, at[i].address, sizeof at[i].address));
  at[i].peer = NULL;
  at[i].region = region_make(at[i].node, KIND_HOST, LENGTH);
  assert_works(haul_region_publish(at[i].region, "region", HAUL_READ | HAUL_WRITE));
}

static void connect_at(unsigned i) {
  assert_works(haul_peer_connect(at[i].node, at[!i].address, soon(), &at[i].peer));
}

static void close_peer(unsigned i) {
  haul_peer_close(at[i].peer);
  at[i].peer = NULL;
}

static void close_both(void) {
  for (unsigned i = 0; i < 2; i++) {
    haul_peer_close(at[i].peer);
    haul_region_release(at[i].region);
    haul_node_close(at[i].node);
  }
}

static unsigned count_links(struct haul_node *node) {
  loop_lock(node->loop);
  unsigned count = node->peer_count;
  loop_unlock(node->loop);
  return count;
}

/* An end of a closed connection is dropped when it notices. */
static void expect_links(unsigned count) {
  haul_deadline until = soon();
  for (unsigned i = 0; i < 2; i++)
    while (count_links(at[i].node) != count) {
      assert_true(clock_now() < until);
      nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

/* The peer of the next event; the caller has no use of it. */
static haul_peer *next_event(unsigned i, int kind) {
  struct haul_message message;
  assert_works(haul_message_receive(at[i].node, &message, soon()));
  assert_int_equal(message.kind, kind);
  haul_peer *peer = message.peer;
  haul_message_release(&message);
  return peer;
}

static void expect_no_event(unsigned i) {
  struct haul_message message;
  assert_fails(HAUL_ETIMEDOUT, haul_message_receive(at[i].node, &message, HAUL_NO_WAIT));
}

static void move(unsigned i, const char *only, uint64_t seed) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece all = {0, 0, LENGTH};
  struct haul_remote *remote;
  options.only = only;
  assert_works(haul_peer_lookup(at[i].peer, "region", soon(), &remote));
  pattern_fill(haul_region_address(at[i].region), LENGTH, seed);
  assert_works(haul_write(remote, at[i].region, &all, 1, &options, NULL));
  pattern_check(haul_region_address(at[!i].region), LENGTH, seed);
  haul_remote_release(remote);
}

static void send_message(unsigned i) {
  struct haul_message message;
  assert_works(haul_message_send(at[i].peer, 7, "to you", 6, soon()));
  assert_works(haul_message_receive(at[!i].node, &message, soon()));
  assert_int_equal(message.kind, HAUL_MESSAGE);
  assert_ptr_equal(message.peer, at[!i].peer);
  haul_message_release(&message);
}

static const struct haul_node_config plain = HAUL_NODE_CONFIG_INIT;

/* Both over one link; each has heard of the other once. */
static void meet(const struct haul_node_config *config) {
  for (unsigned i = 0; i < 2; i++)
    open_at(i, config, "tcp://127.0.0.1:0");
  connect_at(0);
  haul_peer *joined = next_event(1, HAUL_PEER_JOINED);
  connect_at(1);
  assert_ptr_equal(at[1].peer, joined);
  assert_ptr_equal(next_event(0, HAUL_PEER_JOINED), at[0].peer);
  expect_links(1);
}

static void both_use_one_link(void **state) {
  (void)state;
  meet(&plain);
  for (unsigned i = 0; i < 2; i++) {
    move(i, "tcp", 1 + i);
    move(i, NULL, 3 + i);
    send_message(i);
    expect_no_event(i);
  }
  close_both();
}

static void it_lives_while_either_uses_it(void **state) {
  (void)state;
  for (unsigned first = 0; first < 2; first++) {
    meet(&plain);
    close_peer(first);
    move(!first, "tcp", 5);
    expect_links(1);
    close_peer(!first);
    expect_links(0);
    next_event(0, HAUL_PEER_LEFT);
    next_event(1, HAUL_PEER_LEFT);
    close_both();
  }
}

/* Node 1 has given its use back. */
static void expect_released(void) {
  haul_deadline until = soon();
  for (bool held = true; held;) {
    loop_lock(at[0].node->loop);
    held = at[0].peer->held;
    loop_unlock(at[0].node->loop);
    assert_true(clock_now() < until);
  }
}

/* A write from node `i` to an emulated device ends before its bytes are there. */
static void abandon_write(unsigned i) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 4096};
  struct haul_remote *remote;
  options.only = "tcp";
  options.deadline = haul_deadline_in(S / 10);
  assert_works(haul_peer_lookup(at[i].peer, "device", soon(), &remote));
  assert_fails(HAUL_ETIMEDOUT, haul_write(remote, at[i].region, &piece, 1, &options, NULL));
  haul_remote_release(remote);
}

/* Node `i` gives its use back while a write that it abandoned may land. */
static struct haul_region *leave_abandoned(unsigned i, const char *latency) {
  setenv("HAUL_SIM_LATENCY_NS", latency, 1);
  meet(&plain);
  unsetenv("HAUL_SIM_LATENCY_NS");
  struct haul_region *device = region_make(at[!i].node, KIND_SIM, LENGTH);
  assert_works(haul_region_publish(device, "device", HAUL_WRITE));
  abandon_write(i);
  close_peer(i);
  expect_links(1);
  return device;
}

static bool has_abandoned(const haul_peer *peer) {
  return link_has_abandoned(&peer->base);
}

/* Else they could land after the writes of the next link. */
static void the_next_connection_waits_for_abandoned_writes(void **state) {
  (void)state;
  struct haul_region *device = leave_abandoned(0, "3000000000");
  loop_lock(at[0].node->loop);
  const haul_peer *first = list_entry(at[0].node->peers.next, struct haul_peer, list);
  loop_unlock(at[0].node->loop);
  assert_true(has_abandoned(first));
  connect_at(0);
  assert_false(has_abandoned(first));
  expect_links(2);
  for (unsigned i = 0; i < 2; i++)
    move(i, "tcp", 8 + i);
  haul_region_release(device);
  close_both();
}

static void its_other_side_may_use_it_with_abandoned_writes(void **state) {
  (void)state;
  struct haul_region *device = leave_abandoned(1, "3000000000");
  expect_released(); /* the next call would get a link of its own */
  connect_at(1);
  expect_links(1);
  for (unsigned i = 0; i < 2; i++)
    move(i, "tcp", 8 + i);
  haul_region_release(device);
  close_both();
}

static void the_next_connection_ends_it_if_they_take_too_long(void **state) {
  (void)state;
  struct haul_region *device = leave_abandoned(0, "10000000000");
  assert_works(haul_peer_connect(at[0].node, at[1].address, haul_deadline_in(S), &at[0].peer));
  expect_links(1);
  assert_int_equal(haul_peer_status(at[1].peer), HAUL_EPEER);
  move(0, "tcp", 8);
  haul_region_release(device);
  close_both();
}

/* The application that has heard of the other node once does not hear of it again. */
static void it_can_be_held_again(void **state) {
  (void)state;
  meet(&plain);
  for (unsigned i = 0; i < 3; i++) {
    close_peer(1);
    expect_released();
    connect_at(1);
  }
  expect_links(1);
  expect_no_event(0);
  expect_no_event(1);
  close_peer(0);
  move(1, "tcp", 6);
  close_both();
}

/* Two links of one side are two of the other. */
static void each_call_has_a_link_of_its_own(void **state) {
  haul_peer *first[2];
  (void)state;
  meet(&plain);
  for (unsigned i = 0; i < 2; i++) {
    first[i] = at[i].peer;
    connect_at(i);
    assert_ptr_not_equal(at[i].peer, first[i]);
  }
  expect_links(2);
  haul_peer *third = at[1].peer;
  connect_at(1);
  expect_links(3);
  assert_true(at[1].peer->base.initiator);
  move(1, "tcp", 7);
  haul_peer_close(third);
  for (unsigned i = 0; i < 2; i++)
    haul_peer_close(first[i]);
  close_both();
}

static void it_is_encrypted_as_both_want(void **state) {
  static const char line[] =
      "both 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char key[] = "/tmp/haul-share-XXXXXX";
  (void)state;
  int fd = mkstemp(key);
  assert_int_equal(write(fd, line, sizeof line - 1), sizeof line - 1);
  close(fd);
  config.key = key;
  meet(&config);
  move(1, "tcp", 8);
  close_both();
  unlink(key);
}

static void connections_over_unix_sockets_are_not_shared(void **state) {
  char address[2][96];
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    snprintf(address[i], sizeof address[i], "unix://@haul-share-%d-%u", getpid(), i);
    open_at(i, &plain, address[i]);
  }
  connect_at(0);
  connect_at(1);
  expect_links(2);
  move(0, NULL, 9);
  move(1, NULL, 10);
  close_both();
}

static void a_node_that_connects_twice_has_two_links(void **state) {
  (void)state;
  meet(&plain);
  haul_peer *first = at[0].peer;
  connect_at(0);
  assert_ptr_not_equal(at[0].peer, first);
  expect_links(2);
  haul_peer_close(first);
  close_both();
}

static void a_node_may_connect_to_itself(void **state) {
  haul_peer *peers[2];
  (void)state;
  open_at(0, &plain, "tcp://127.0.0.1:0");
  for (unsigned i = 0; i < 2; i++)
    assert_works(haul_peer_connect(at[0].node, at[0].address, soon(), &peers[i]));
  assert_ptr_not_equal(peers[0], peers[1]);
  for (unsigned i = 0; i < 2; i++)
    haul_peer_close(peers[i]);
  haul_region_release(at[0].region);
  haul_node_close(at[0].node);
}

/* A peer by hand: its listener, its connections and what it claims to be. */
static struct {
  int listener, control, link;
  char address[64];
  struct welcome welcome; /* of the node, where this peer connects */
  haul_peer *joined;      /* this peer there; NULL: it has not connected */
} hand;

static void hand_listen(void) {
  struct sockaddr_in name;
  socklen_t length = sizeof name;
  hand.listener = raw_listen("tcp://127.0.0.1:0");
  hand.control = hand.link = -1;
  assert_int_equal(getsockname(hand.listener, (struct sockaddr *)&name, &length), 0);
  snprintf(hand.address, sizeof hand.address, "tcp://127.0.0.1:%u", ntohs(name.sin_port));
}

/* Welcomes the node's next connection under the smallest id, and names this link. */
static void hand_welcome(const uint8_t shared[16]) {
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hello;
  struct welcome welcome = {.version = PROTOCOL_HIGHEST,
                            .lowest = PROTOCOL_LOWEST,
                            .highest = PROTOCOL_HIGHEST,
                            .name = "hand",
                            .message_window = 1 << 20,
                            .window = REQUESTS_MAX};
  memset(welcome.share, 0x51, sizeof welcome.share);
  if (shared)
    memcpy(welcome.shared, shared, sizeof welcome.shared);
  hand.control = raw_accept(hand.listener);
  assert_true(raw_hello_of(hand.control, &hello));
  assert_string_equal(hello.transport, "");
  assert_true(raw_send(hand.control, bytes, welcome_pack(&welcome, bytes)));
}

/* Connects to node 0 under this id, or the smallest. */
static void hand_connect(const uint8_t *id) {
  struct haul_message message;
  struct hello hello = raw_hello(ROLE_CONTROL);
  memset(hello.node_id, 0, sizeof hello.node_id);
  if (id)
    memcpy(hello.node_id, id, sizeof hello.node_id);
  memset(hello.boot, 1, sizeof hello.boot); /* of another host: no map */
  hand.link = raw_connect(at[0].address);
  assert_true(raw_greet(hand.link, &hello, &hand.welcome) && hand.welcome.version != 0);
  assert_true(raw_control(hand.link, CONTROL_READY, 0, NULL, 0));
  assert_works(haul_message_receive(at[0].node, &message, soon()));
  assert_int_equal(message.kind, HAUL_PEER_JOINED);
  hand.joined = haul_peer_retain(message.peer);
  haul_message_release(&message);
}

static void *connect_to_hand(void *user) {
  assert_works(haul_peer_connect(at[0].node, hand.address, *(haul_deadline *)user, &at[0].peer));
  return NULL;
}

static pthread_t caller;
static haul_deadline call_until;

static void call_hand(haul_deadline until) {
  call_until = until;
  pthread_create(&caller, NULL, connect_to_hand, &call_until);
}

static void hand_begin(void) {
  open_at(0, &plain, "tcp://127.0.0.1:0");
  hand_listen();
}

static void hand_end(void) {
  close(hand.listener);
  if (hand.control >= 0)
    close(hand.control);
  if (hand.link >= 0)
    close(hand.link);
  haul_peer_close(hand.joined);
  hand.joined = NULL;
  haul_peer_close(at[0].peer);
  haul_region_release(at[0].region);
  haul_node_close(at[0].node);
}

/* Node 0 has a link to the peer by hand, on hand.control. */
static void hand_accept(void) {
  uint8_t body[CONTROL_BODY_MAX];
  hand_begin();
  call_hand(soon());
  hand_welcome(NULL);
  raw_refuse_nic(hand.listener, hand.control);
  assert_true(raw_answer(hand.control, CONTROL_READY, body) >= 0);
  pthread_join(caller, NULL);
}

/* Calls node 0, which names the link that it has made, and goes no further. */
static void hand_be_offered(void) {
  struct hello hello = raw_hello(ROLE_CONTROL);
  uint8_t share[16];
  memset(hello.node_id, 0, sizeof hello.node_id);
  memset(share, 0x51, sizeof share);
  hand.link = raw_connect(at[0].address);
  assert_true(raw_greet(hand.link, &hello, &hand.welcome) && hand.welcome.version != 0);
  assert_memory_equal(hand.welcome.shared, share, sizeof share);
}

static int hold(int fd, uint32_t request) {
  uint8_t body[CONTROL_BODY_MAX];
  assert_true(raw_control(fd, CONTROL_HOLD, request, NULL, 0));
  assert_int_equal(raw_answer(fd, CONTROL_HELD, body), 4);
  struct wire wire = wire_from(body, 4);
  return (int32_t)wire_get32(&wire);
}

static void hold_keeps_a_link_until_release(void **state) {
  uint8_t body[CONTROL_BODY_MAX];
  (void)state;
  hand_accept();
  hand_be_offered();
  assert_int_equal(hold(hand.control, 1), 0);
  assert_int_equal(hold(hand.control, 2), HAUL_EEXIST);
  next_event(0, HAUL_PEER_JOINED);
  close_peer(0);
  assert_int_equal(hold(hand.control, 3), HAUL_EEXIST); /* it lives */
  assert_true(raw_control(hand.control, CONTROL_RELEASE, 0, NULL, 0));
  assert_int_equal(raw_answer(hand.control, CONTROL_GOODBYE, body), 0);
  expect_no_event(0);
  hand_end();
}

static void expect_dropped(int fd, haul_peer *peer) {
  assert_true(raw_ended(fd, BOUND));
  assert_int_equal(haul_peer_status(peer), HAUL_EPROTO);
}

struct frame_case {
  uint16_t type;
  const char *body;
  size_t length;
};

static void send_case(int fd, const struct frame_case *one) {
  assert_true(raw_control(fd, one->type, 1, one->body, one->length));
}

static void malformed_frames_drop_the_peer(void **state) {
  static const struct frame_case cases[] = {
      {CONTROL_HOLD, "x", 1}, {CONTROL_RELEASE, "x", 1}, {CONTROL_HELD, "\0\0\0\0", 4}};
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++) {
    hand_accept();
    hand_be_offered();
    if (cases[i].type == CONTROL_RELEASE)
      assert_int_equal(hold(hand.control, 1), 0);
    send_case(hand.control, &cases[i]);
    expect_dropped(hand.control, at[0].peer);
    hand_end();
  }
}

/* A link that no welcome has named; one that is not held. */
static void frames_out_of_turn_drop_the_peer(void **state) {
  static const struct frame_case cases[] = {{CONTROL_HOLD, "", 0}, {CONTROL_RELEASE, "", 0}};
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++) {
    hand_accept();
    send_case(hand.control, &cases[i]);
    expect_dropped(hand.control, at[0].peer);
    hand_end();
  }
}

/* What only the other side may send, and a response to no request. */
static void an_initiator_cannot_hold(void **state) {
  static const struct frame_case cases[] = {
      {CONTROL_HOLD, "", 0}, {CONTROL_RELEASE, "", 0}, {CONTROL_HELD, "\0\0\0\0", 4}};
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++) {
    hand_begin();
    hand_connect(NULL);
    send_case(hand.link, &cases[i]);
    expect_dropped(hand.link, hand.joined);
    hand_end();
  }
}

/* The peer by hand has connected; the node calls it, and it names that link. */
static void call_and_name(const uint8_t shared[16]) {
  call_hand(soon());
  hand_welcome(shared);
}

static void answer_hold(int code) {
  uint8_t body[CONTROL_BODY_MAX], answer[4];
  struct wire wire = wire_over(answer, 4);
  wire_put32(&wire, (uint32_t)code);
  assert_int_equal(raw_answer(hand.link, CONTROL_HOLD, body), 0);
  assert_true(raw_control(hand.link, CONTROL_HELD, 1, answer, 4));
}

static void expect_own_connection(void) {
  uint8_t body[CONTROL_BODY_MAX];
  raw_refuse_nic(hand.listener, hand.control);
  assert_true(raw_answer(hand.control, CONTROL_READY, body) >= 0);
  pthread_join(caller, NULL);
  assert_int_equal(at[0].peer->base.initiator, true);
}

static void a_malformed_response_drops_the_link(void **state) {
  static const struct frame_case cases[] = {{CONTROL_HELD, "", 0},
                                            {CONTROL_HELD, "\1\0\0\0", 4},
                                            {CONTROL_HELD, "\0\0\0\200", 4},
                                            {CONTROL_HELD, "\0\0\0\0x", 5}};
  uint8_t body[CONTROL_BODY_MAX];
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++) {
    hand_begin();
    hand_connect(NULL);
    call_and_name(hand.welcome.share);
    assert_int_equal(raw_answer(hand.link, CONTROL_HOLD, body), 0);
    send_case(hand.link, &cases[i]);
    expect_dropped(hand.link, hand.joined);
    expect_own_connection();
    hand_end();
  }
}

/* The call waits for HELD during a quarter of its time, and uses its own connection then. */
static void a_late_held_is_released(void **state) {
  uint8_t body[CONTROL_BODY_MAX];
  (void)state;
  hand_begin();
  hand_connect(NULL);
  call_hand(haul_deadline_in(4 * S));
  hand_welcome(hand.welcome.share);
  assert_int_equal(raw_answer(hand.link, CONTROL_HOLD, body), 0);
  expect_own_connection();
  assert_true(raw_control(hand.link, CONTROL_HELD, 1, "\0\0\0\0", 4));
  assert_int_equal(raw_answer(hand.link, CONTROL_RELEASE, body), 0);
  hand_end();
}

static void a_link_that_is_not_held_is_not_used(void **state) {
  (void)state;
  hand_begin();
  hand_connect(NULL);
  call_and_name(hand.welcome.share);
  answer_hold(HAUL_ECLOSED);
  expect_own_connection();
  hand_end();
}

static void a_link_that_ends_is_not_used(void **state) {
  uint8_t body[CONTROL_BODY_MAX];
  (void)state;
  hand_begin();
  hand_connect(NULL);
  call_and_name(hand.welcome.share);
  assert_int_equal(raw_answer(hand.link, CONTROL_HOLD, body), 0);
  close(hand.link);
  hand.link = -1;
  expect_own_connection();
  hand_end();
}

static void an_unknown_link_is_not_used(void **state) {
  uint8_t unknown[16] = {1, 2, 3};
  (void)state;
  hand_begin();
  hand_connect(NULL);
  call_and_name(unknown);
  expect_own_connection();
  hand_end();
}

/* A peer that claims node 1's id is not taken for it. */
static void a_false_node_is_not_used(void **state) {
  (void)state;
  hand_begin();
  open_at(1, &plain, "tcp://127.0.0.1:0");
  hand_connect(at[1].node->fabric.node_id);
  connect_at(0);
  assert_int_equal(at[0].peer->base.initiator, true);
  move(0, "tcp", 11);
  haul_peer_close(at[0].peer);
  at[0].peer = NULL;
  hand_end();
  haul_region_release(at[1].region);
  haul_node_close(at[1].node);
}

/* One that claims node 1's id towards node 0, which has a link to node 1, learns an id that opens
 * nothing. */
static void a_false_node_gets_nothing(void **state) {
  struct welcome welcome;
  (void)state;
  meet(&plain);
  struct hello hello = raw_hello(ROLE_CONTROL);
  memcpy(hello.node_id, at[1].node->fabric.node_id, sizeof hello.node_id);
  int fd = raw_connect(at[0].address);
  assert_true(raw_greet(fd, &hello, &welcome) && welcome.version != 0);
  memcpy(welcome.token, welcome.shared, sizeof welcome.token);
  assert_int_equal(raw_channel(at[1].address, &welcome, "tcp", 0), -1);
  close(fd);
  move(0, "tcp", 12);
  close_both();
}

/* Both called at once: the peer by hand, of the smaller id, names no link at first. */
static void the_larger_id_calls_again(void **state) {
  (void)state;
  hand_begin();
  hand_connect(NULL);
  call_and_name(NULL);
  int first = hand.control;
  hand_welcome(hand.welcome.share);
  answer_hold(0);
  pthread_join(caller, NULL);
  assert_int_equal(at[0].peer->base.initiator, false);
  assert_true(raw_ended(first, BOUND));
  assert_true(raw_ended(hand.control, BOUND));
  close(first);
  hand_end();
}

static void it_does_not_call_forever(void **state) {
  (void)state;
  hand_begin();
  hand_connect(NULL);
  call_and_name(NULL);
  for (unsigned i = 0; i < 2; i++) {
    int before = hand.control;
    hand_welcome(NULL);
    assert_true(raw_ended(before, BOUND));
    close(before);
  }
  expect_own_connection();
  hand_end();
}

static void a_call_that_fails_again_keeps_its_connection(void **state) {
  (void)state;
  hand_begin();
  hand_connect(NULL);
  call_and_name(NULL);
  close(raw_accept(hand.listener));
  expect_own_connection();
  hand_end();
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, count_before, count_after)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(both_use_one_link),
      TEST(it_lives_while_either_uses_it),
      TEST(the_next_connection_waits_for_abandoned_writes),
      TEST(its_other_side_may_use_it_with_abandoned_writes),
      TEST(the_next_connection_ends_it_if_they_take_too_long),
      TEST(it_can_be_held_again),
      TEST(each_call_has_a_link_of_its_own),
      TEST(it_is_encrypted_as_both_want),
      TEST(connections_over_unix_sockets_are_not_shared),
      TEST(a_node_that_connects_twice_has_two_links),
      TEST(a_node_may_connect_to_itself),
      TEST(hold_keeps_a_link_until_release),
      TEST(frames_out_of_turn_drop_the_peer),
      TEST(malformed_frames_drop_the_peer),
      TEST(an_initiator_cannot_hold),
      TEST(a_malformed_response_drops_the_link),
      TEST(a_late_held_is_released),
      TEST(a_link_that_is_not_held_is_not_used),
      TEST(a_link_that_ends_is_not_used),
      TEST(an_unknown_link_is_not_used),
      TEST(a_false_node_is_not_used),
      TEST(a_false_node_gets_nothing),
      TEST(the_larger_id_calls_again),
      TEST(it_does_not_call_forever),
      TEST(a_call_that_fails_again_keeps_its_connection),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
