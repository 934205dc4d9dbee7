/* SPDX-License-Identifier: MIT */
#include "support/ends.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "core/wire.h"
#include "support/check.h"
#include "support/names.h"
#include "support/owner.h"

haul_deadline soon(void) {
  return haul_deadline_in(ENDS_BOUND);
}

struct haul_transfer_options over_tcp(haul_deadline deadline) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "tcp";
  options.deadline = deadline;
  return options;
}

haul_peer *next_joined(struct haul_node *node) {
  struct haul_message message;
  assert_works(haul_message_receive(node, &message, soon()));
  assert_int_equal(message.kind, HAUL_PEER_JOINED);
  haul_peer *peer = haul_peer_retain(message.peer);
  haul_message_release(&message);
  return peer;
}

struct end ends[2];

void ends_open(const char *listen_at, int64_t idle_ns) {
  struct haul_node_config config = patient_config();
  char address[160];
  config.tcp_rails = 3;
  config.peer_events = 1;
  config.idle_rails_ns = idle_ns;
  for (unsigned i = 0; i < 2; i++) {
    assert_works(haul_node_open(&config, &ends[i].node));
    ends[i].source = region_make(ends[i].node, KIND_HOST, ENDS_LENGTH);
    ends[i].target = region_make(ends[i].node, KIND_HOST, ENDS_LENGTH);
    assert_works(haul_region_publish(ends[i].target, "region", HAUL_READ | HAUL_WRITE));
  }
  assert_works(haul_node_listen(ends[1].node, listen_at));
  assert_works(haul_node_address(ends[1].node, 0, address, sizeof address));
  assert_works(haul_peer_connect(ends[0].node, address, soon(), &ends[0].peer));
  ends[1].peer = next_joined(ends[1].node);
  for (unsigned i = 0; i < 2; i++)
    assert_works(haul_peer_lookup(ends[i].peer, "region", soon(), &ends[i].remote));
}

void ends_close(void) {
  for (unsigned i = 0; i < 2; i++) {
    haul_remote_release(ends[i].remote);
    haul_region_release(ends[i].source);
    haul_region_release(ends[i].target);
    haul_peer_close(ends[i].peer);
  }
  for (unsigned i = 0; i < 2; i++)
    haul_node_close(ends[i].node);
}

struct haul_transfer *ends_start(unsigned end, uint64_t seed) {
  struct haul_transfer_options options = over_tcp(soon());
  struct haul_piece piece = {0, 0, ENDS_LENGTH};
  struct haul_transfer *transfer;
  pattern_fill(haul_region_address(ends[end].source), ENDS_LENGTH, seed);
  assert_works(haul_write(ends[end].remote, ends[end].source, &piece, 1, &options, &transfer));
  return transfer;
}

void ends_finish(unsigned end, struct haul_transfer *transfer, uint64_t seed) {
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  pattern_check(haul_region_address(ends[!end].target), ENDS_LENGTH, seed);
}

struct by_hand hand;

static void *look_up(void *argument) {
  (void)argument;
  assert_works(haul_peer_lookup(hand.peer, "region", soon(), &hand.remote));
  return NULL;
}

static void *connect_node(void *argument) {
  assert_works(haul_peer_connect(hand.node, own_socket(), soon(), &hand.peer));
  return look_up(argument);
}

void by_hand_accept(const struct haul_node_config *config) {
  pthread_t thread;
  struct hello hello;
  hand.listener = raw_listen(own_socket());
  assert_works(haul_node_open(config, &hand.node));
  hand.region = region_make(hand.node, KIND_HOST, ENDS_LENGTH);
  pthread_create(&thread, NULL, connect_node, NULL);
  hand.control = raw_accept(hand.listener);
  assert_true(raw_welcome(hand.control, false, &hello));
  raw_refuse_nic(hand.listener, hand.control);
  raw_found(hand.control, 77, ENDS_LENGTH);
  pthread_join(thread, NULL);
}

void by_hand_listen(const struct haul_node_config *config) {
  struct haul_node_config with_events = *config;
  with_events.peer_events = 1;
  hand.listener = hand.control = -1;
  hand.peer = NULL;
  hand.remote = NULL;
  assert_works(haul_node_open(&with_events, &hand.node));
  assert_works(haul_node_listen(hand.node, own_socket()));
  hand.region = region_make(hand.node, KIND_HOST, ENDS_LENGTH);
}

int by_hand_connect(const char *transport, uint8_t rails, struct welcome *welcome) {
  uint8_t body[32];
  struct wire wire = wire_over(body, sizeof body);
  struct hello hello = raw_hello(ROLE_CONTROL);
  memset(hello.boot, 1, sizeof hello.boot); /* of another host: no map */
  wire_put_string(&wire, transport);
  wire_put8(&wire, rails);
  int control = raw_connect(own_socket());
  assert_true(raw_greet(control, &hello, welcome));
  assert_true(raw_control(control, CONTROL_READY, 0, body, sizeof body - wire_left(&wire)));
  return control;
}

void by_hand_meet(int control) {
  pthread_t thread;
  hand.peer = next_joined(hand.node);
  pthread_create(&thread, NULL, look_up, NULL);
  raw_found(control, 77, ENDS_LENGTH);
  pthread_join(thread, NULL);
}

void by_hand_expect_dial(int control) {
  uint8_t body[CONTROL_BODY_MAX];
  assert_int_equal(raw_answer(control, CONTROL_DIAL, body), 5);
  assert_memory_equal(body, "\3\0tcp", 5);
}

void by_hand_close(void) {
  haul_remote_release(hand.remote);
  haul_region_release(hand.region);
  haul_peer_close(hand.peer);
  haul_node_close(hand.node);
  if (hand.control >= 0)
    close(hand.control);
  if (hand.listener >= 0)
    close(hand.listener);
}

struct haul_transfer *read_start(haul_deadline deadline) {
  struct haul_transfer_options options = over_tcp(deadline);
  struct haul_piece piece = {0, 0, ENDS_LENGTH};
  struct haul_transfer *transfer;
  assert_works(haul_read(hand.region, hand.remote, &piece, 1, &options, &transfer));
  return transfer;
}

void read_finish(struct haul_transfer *transfer, uint64_t seed) {
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  pattern_check(haul_region_address(hand.region), ENDS_LENGTH, seed);
}

struct frame receive_frame(int rail) {
  uint8_t bytes[FRAME_HEADER];
  struct frame frame;
  const char *what;
  assert_true(raw_receive(rail, bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  if (frame.count > 0)
    assert_true(raw_receive(rail, (uint8_t[FRAME_SEGMENT]){0}, FRAME_SEGMENT));
  return frame;
}

void send_data(int rail, uint64_t request, uint64_t seed) {
  static uint8_t payload[ENDS_LENGTH];
  uint8_t head[FRAME_HEADER], trailer[FRAME_TRAILER];
  pattern_fill(payload, sizeof payload, seed);
  frame_pack(&(struct frame){.type = FRAME_DATA, .request = request, .payload = ENDS_LENGTH}, head);
  frame_pack_trailer(&(struct frame_trailer){0, 0}, trailer);
  assert_true(raw_send(rail, head, sizeof head) && raw_send(rail, payload, sizeof payload) &&
              raw_send(rail, trailer, sizeof trailer));
}
