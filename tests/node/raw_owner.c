/* SPDX-License-Identifier: MIT
 * What a foreign owner can answer to a node that connected to it and uses a region of its: memory
 * is touched only while a transfer is on its way, and nobody waits for ever. */
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/wire.h"
#include "fabric/tcp/frame.h"
#include "support/owner.h"
#include "support/raw.h"

#define ADDRESS "unix://@haul-test-raw-owner"
#define BOUND   (20 * S)
#define LENGTH  65536u
#define HANDLE  0x1234500003u

/* The node, and the raw owner's end of each of its connections. */
static struct {
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  int listener, control, rails[2];
} at;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static void *connect_node(void *argument) {
  (void)argument;
  assert_works(haul_peer_connect(at.node, ADDRESS, soon(), &at.peer));
  assert_works(haul_peer_lookup(at.peer, "region", soon(), &at.remote));
  return NULL;
}

static int take_connection(void) {
  struct hello hello;
  struct welcome welcome = {.version = PROTOCOL_HIGHEST,
                            .lowest = PROTOCOL_LOWEST,
                            .highest = PROTOCOL_HIGHEST,
                            .name = "raw",
                            .message_window = 1 << 20};
  int fd = raw_accept(at.listener);
  assert_true(fd >= 0 && raw_welcome(fd, &hello, &welcome));
  return fd;
}

/* Tells the node of a region behind HANDLE, whatever it asks for. */
static void answer_lookup(void) {
  uint8_t body[CONTROL_BODY_MAX];
  assert_true(raw_answer(at.control, CONTROL_LOOKUP, body) > 0);
  struct wire wire = wire_over(body, sizeof body);
  wire_put32(&wire, 0);
  wire_put64(&wire, HANDLE);
  wire_put64(&wire, LENGTH);
  wire_put16(&wire, HAUL_HOST);
  wire_put16(&wire, 0);
  wire_put32(&wire, HAUL_READ | HAUL_WRITE);
  assert_true(raw_control(at.control, CONTROL_FOUND, 1, body, sizeof body - wire_left(&wire)));
}

static int start(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  pthread_t thread;
  config.tcp_rails = 2;
  config.liveness_ns = BOUND;
  setenv("HAUL_SIM_LATENCY_NS", "300000000", 1);
  at.listener = raw_listen(ADDRESS);
  assert_works(haul_node_open(&config, &at.node));
  pthread_create(&thread, NULL, connect_node, NULL);
  at.control = take_connection();
  at.rails[0] = take_connection();
  at.rails[1] = take_connection();
  answer_lookup();
  pthread_join(thread, NULL);
  return 0;
}

static int end(void **state) {
  (void)state;
  haul_remote_release(at.remote);
  haul_peer_close(at.peer);
  haul_node_close(at.node);
  close(at.rails[0]);
  close(at.rails[1]);
  close(at.control);
  close(at.listener);
  unsetenv("HAUL_SIM_LATENCY_NS");
  return 0;
}

/* ---- Answers to a READ ---- */

static uint64_t start_read(struct haul_region *region, struct haul_transfer **transfer) {
  struct haul_piece piece = {0, 0, LENGTH};
  uint8_t bytes[FRAME_HEADER + FRAME_PIECE];
  struct frame frame;
  const char *what;
  assert_works(haul_read(region, at.remote, &piece, 1, NULL, transfer));
  assert_true(raw_receive(at.rails[0], bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  assert_int_equal(frame.type, FRAME_READ);
  return frame.request;
}

/* DATA, its payload up to `bytes`, and the trailer if that is all of it. */
static void send_data(int rail, uint64_t request, size_t bytes) {
  static uint8_t payload[LENGTH];
  uint8_t head[FRAME_HEADER], trailer[FRAME_TRAILER];
  struct frame frame = {.type = FRAME_DATA, .request = request, .payload = LENGTH};
  memset(payload, 0x66, sizeof payload);
  frame_pack(&frame, head);
  frame_pack_trailer(&(struct frame_trailer){0, 0}, trailer);
  raw_send(rail, head, sizeof head);
  raw_send(rail, payload, bytes);
  if (bytes == LENGTH)
    raw_send(rail, trailer, sizeof trailer);
}

static void send_refusal(int rail, uint64_t request) {
  uint8_t head[FRAME_HEADER];
  frame_pack(&(struct frame){.type = FRAME_ACK, .request = request, .status = HAUL_ESTALE}, head);
  raw_send(rail, head, sizeof head);
}

static void sleep_ms(long ms) {
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Once the transfer has ended its memory is the caller's again: what still comes does not show. */
static void assert_left_alone(struct haul_transfer *transfer, struct haul_region *region,
                              int unfinished) {
  static const uint8_t rest[LENGTH / 2] = {0x55};
  assert_true(haul_transfer_wait(transfer, soon()) < 0);
  region_fill(at.node, region, 0, LENGTH, 5);
  uint64_t before = region_sum(at.node, region, 0, LENGTH);
  raw_send(unfinished, rest, sizeof rest);
  sleep_ms(500);
  assert_true(region_sum(at.node, region, 0, LENGTH) == before);
  haul_transfer_release(transfer);
}

static void a_refusal_in_the_middle_of_the_data_ends_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_data(at.rails[0], request, LENGTH / 2);
  sleep_ms(50);
  send_refusal(at.rails[1], request);
  assert_left_alone(transfer, region, at.rails[0]);
  assert_true(raw_ended(at.control, BOUND));
  region_drop(region, KIND_HOST);
}

static void data_on_two_rails_ends_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_data(at.rails[0], request, LENGTH / 2);
  sleep_ms(50);
  send_data(at.rails[1], request, LENGTH);
  assert_left_alone(transfer, region, at.rails[0]);
  assert_true(raw_ended(at.control, BOUND));
  region_drop(region, KIND_HOST);
}

static void a_refusal_behind_data_that_lands_ends_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_SIM, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_data(at.rails[0], request, LENGTH);
  send_refusal(at.rails[0], request);
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_EPROTO);
  haul_transfer_release(transfer);
  region_drop(region, KIND_SIM);
  assert_true(raw_ended(at.control, BOUND));
  sleep_ms(500);
}

static void an_answer_on_another_rail_ends_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_refusal(at.rails[1], request);
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_EPROTO);
  assert_true(raw_ended(at.control, BOUND));
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define WITH_OWNER(test)                                                                           \
  { #test, test, start, end, NULL }
  const struct CMUnitTest tests[] = {
      WITH_OWNER(a_refusal_in_the_middle_of_the_data_ends_the_peer),
      WITH_OWNER(data_on_two_rails_ends_the_peer),
      WITH_OWNER(a_refusal_behind_data_that_lands_ends_the_peer),
      WITH_OWNER(an_answer_on_another_rail_ends_the_peer),
  };
  return cmocka_run_group_tests_name("raw owner", tests, NULL, NULL);
}
