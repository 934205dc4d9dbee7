/* SPDX-License-Identifier: MIT
 * Idle rails are closed by agreement, and come back on use. */
#include "support/check.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/wire.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/tcp.h"
#include "node/peer.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/rails.h"
#include "support/raw.h"
#include "support/seams.h"

#define BOUND  (20 * S)
#define LENGTH 65536u

static unsigned descriptors;

static int count_before(void **state) {
  (void)state;
  descriptors = open_descriptors();
  return 0;
}

static int count_after(void **state) {
  (void)state;
  assert_int_equal(open_descriptors(), descriptors);
  return 0;
}

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static struct haul_transfer_options over_tcp(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "tcp";
  options.deadline = soon();
  return options;
}

static void rest(int64_t ns) {
  nanosleep(&(struct timespec){ns / S, ns % S}, NULL);
}

static const struct tcp_endpoint *endpoint_of(haul_peer *peer) {
  return (const struct tcp_endpoint *)peer->base.endpoints[tcp_transport.index];
}

/* Without a rail, and without their memory. */
static bool is_dormant(haul_peer *peer) {
  const struct tcp_endpoint *endpoint = endpoint_of(peer);
  loop_lock(peer->node->loop);
  bool dormant = endpoint->rail_count == 0 && !endpoint->slots && !endpoint->dial.active;
  loop_unlock(peer->node->loop);
  return dormant;
}

static void expect_dormant(haul_peer *peer) {
  for (haul_deadline until = soon(); !is_dormant(peer); rest(MS))
    assert_true(haul_deadline_in(0) < until);
}

/* ---- Two nodes: end 0 connects to end 1 ---- */

struct end {
  struct haul_node *node;
  haul_peer *peer;
  struct haul_region *source, *target;
  struct haul_remote *remote;
};

static struct end ends[2];

static haul_peer *next_joined(struct haul_node *node) {
  struct haul_message message;
  assert_works(haul_message_receive(node, &message, soon()));
  assert_int_equal(message.kind, HAUL_PEER_JOINED);
  haul_peer *peer = haul_peer_retain(message.peer);
  haul_message_release(&message);
  return peer;
}

static void pair_open(const char *listen_at, int64_t idle_ns) {
  struct haul_node_config config = patient_config();
  char address[160];
  config.tcp_rails = 3;
  config.peer_events = 1;
  config.idle_rails_ns = idle_ns;
  for (unsigned i = 0; i < 2; i++) {
    assert_works(haul_node_open(&config, &ends[i].node));
    ends[i].source = region_make(ends[i].node, KIND_HOST, LENGTH);
    ends[i].target = region_make(ends[i].node, KIND_HOST, LENGTH);
    assert_works(haul_region_publish(ends[i].target, "region", HAUL_READ | HAUL_WRITE));
  }
  assert_works(haul_node_listen(ends[1].node, listen_at));
  assert_works(haul_node_address(ends[1].node, 0, address, sizeof address));
  assert_works(haul_peer_connect(ends[0].node, address, soon(), &ends[0].peer));
  ends[1].peer = next_joined(ends[1].node);
  for (unsigned i = 0; i < 2; i++)
    assert_works(haul_peer_lookup(ends[i].peer, "region", soon(), &ends[i].remote));
}

static void pair_close(void) {
  for (unsigned i = 0; i < 2; i++) {
    haul_remote_release(ends[i].remote);
    haul_region_release(ends[i].source);
    haul_region_release(ends[i].target);
    haul_peer_close(ends[i].peer);
  }
  for (unsigned i = 0; i < 2; i++)
    haul_node_close(ends[i].node);
}

static struct haul_transfer *start(unsigned end, uint64_t seed) {
  struct haul_transfer_options options = over_tcp();
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  pattern_fill(haul_region_address(ends[end].source), LENGTH, seed);
  assert_works(haul_write(ends[end].remote, ends[end].source, &piece, 1, &options, &transfer));
  return transfer;
}

static void finish(unsigned end, struct haul_transfer *transfer, uint64_t seed) {
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  pattern_check(haul_region_address(ends[!end].target), LENGTH, seed);
}

static const char *address_at(size_t i) {
  return i % 2 ? own_socket() : "tcp://127.0.0.1:0";
}

static void idle_rails_are_closed_and_come_back(void **state) {
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    pair_open(address_at(i), 20 * MS);
    unsigned before = open_descriptors();
    for (unsigned round = 0; round < 6; round++) {
      unsigned end = round / 2 % 2;
      finish(end, start(end, round), round);
      for (unsigned k = 0; k < 2; k++)
        expect_dormant(ends[k].peer);
      assert_true(open_descriptors() <= before); /* threads may still have had some to close */
      assert_works(haul_peer_status(ends[end].peer));
    }
    pair_close();
  }
}

static void both_sides_may_call_them_back_at_once(void **state) {
  (void)state;
  pair_open(address_at(0), 5 * MS);
  for (unsigned round = 0; round < 50; round++) {
    struct haul_transfer *transfers[2];
    for (unsigned k = 0; k < 2; k++)
      expect_dormant(ends[k].peer);
    for (unsigned k = 0; k < 2; k++)
      transfers[k] = start(k, round * 2 + k);
    for (unsigned k = 0; k < 2; k++)
      finish(k, transfers[k], round * 2 + k);
  }
  pair_close();
}

static void without_the_setting_they_stay(void **state) {
  (void)state;
  pair_open(address_at(0), INT64_MAX);
  finish(0, start(0, 1), 1);
  rest(200 * MS);
  assert_false(is_dormant(ends[0].peer));
  assert_int_equal(atomic_load(&endpoint_of(ends[0].peer)->open_rails), 3);
  pair_close();
}

/* Transfers at any moment of parking, from both sides. */
struct writer {
  pthread_t thread;
  unsigned end;
  uint64_t chance;
  bool stop;
};

static void *write_now_and_then(void *user) {
  struct writer *writer = user;
  for (unsigned round = 0; round < 400; round++) {
    uint64_t seed = (uint64_t)round * 2 + writer->end;
    finish(writer->end, start(writer->end, seed), seed);
    writer->chance = writer->chance * 6364136223846793005u + 1442695040888963407u;
    rest((int64_t)(writer->chance >> 33) % (4 * MS));
  }
  return NULL;
}

static void transfers_may_begin_at_any_moment_of_parking(void **state) {
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    struct writer writers[2];
    pair_open(address_at(i), 1 * MS);
    for (unsigned k = 0; k < 2; k++) {
      writers[k] = (struct writer){.end = k, .chance = test_seed() + k};
      pthread_create(&writers[k].thread, NULL, write_now_and_then, &writers[k]);
    }
    for (unsigned k = 0; k < 2; k++)
      pthread_join(writers[k].thread, NULL);
    for (unsigned k = 0; k < 2; k++) {
      assert_works(haul_peer_status(ends[k].peer));
      expect_dormant(ends[k].peer);
    }
    pair_close();
  }
}

/* ---- What an idle link costs ---- */

#define LINKS 64
static int links[LINKS];

static void *welcome_all(void *listener) {
  struct hello hello;
  for (unsigned i = 0; i < LINKS; i++) {
    links[i] = raw_accept(*(int *)listener);
    assert_true(raw_welcome(links[i], false, &hello));
  }
  return NULL;
}

static void expect_cost(const char *side, size_t before, unsigned descriptors_before) {
  size_t bytes = (mallinfo2().uordblks - before) / LINKS;
  assert_int_equal(open_descriptors() - descriptors_before, 2 * LINKS); /* and this side's */
  if (SANITIZED)
    return; /* its allocator does not say */
  printf("an idle link costs the %s 1 descriptor and %zu bytes\n", side, bytes);
  assert_true(bytes > 1000 && bytes <= 16384);
}

static void close_links(void) {
  for (unsigned i = 0; i < LINKS; i++)
    close(links[i]);
}

static void an_idle_link_costs_its_acceptor_little(void **state) {
  struct haul_node_config config = patient_config();
  struct haul_node *node;
  struct hello hello = raw_hello(ROLE_CONTROL);
  struct welcome welcome;
  (void)state;
  memset(hello.boot, 1, sizeof hello.boot); /* of another host: no map */
  config.peer_events = 1;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_node_listen(node, own_socket()));
  size_t before = mallinfo2().uordblks;
  unsigned descriptors_before = open_descriptors();
  for (unsigned i = 0; i < LINKS; i++) {
    links[i] = raw_connect(own_socket());
    assert_true(raw_greet(links[i], &hello, &welcome));
    assert_true(raw_control(links[i], CONTROL_READY, 0, "\3\0tcp\2", 6));
    haul_peer_close(next_joined(node));
  }
  expect_cost("acceptor", before, descriptors_before);
  close_links();
  haul_node_close(node);
}

static void an_idle_link_costs_its_initiator_little(void **state) {
  struct haul_node_config config = patient_config();
  struct haul_node *node;
  haul_peer *peers[LINKS];
  pthread_t thread;
  int listener = raw_listen(own_socket());
  (void)state;
  assert_works(haul_node_open(&config, &node));
  pthread_create(&thread, NULL, welcome_all, &listener);
  size_t before = mallinfo2().uordblks;
  unsigned descriptors_before = open_descriptors();
  for (unsigned i = 0; i < LINKS; i++)
    assert_works(haul_peer_connect(node, own_socket(), soon(), &peers[i]));
  pthread_join(thread, NULL);
  expect_cost("initiator", before, descriptors_before);
  for (unsigned i = 0; i < LINKS; i++)
    haul_peer_close(peers[i]);
  haul_node_close(node);
  close_links();
  close(listener);
}

/* ---- By hand ---- */

static struct {
  int listener, control, rail;
  struct welcome welcome; /* as the initiator */
  struct haul_node *node;
  haul_peer *peer;
  struct haul_region *region;
  struct haul_remote *remote;
} at;

static bool send_frame(int rail, uint8_t type) {
  uint8_t bytes[FRAME_HEADER];
  frame_pack(&(struct frame){.type = type}, bytes);
  return raw_send(rail, bytes, sizeof bytes);
}

static struct frame receive_frame(int rail) {
  uint8_t bytes[FRAME_HEADER];
  struct frame frame;
  const char *what;
  assert_true(raw_receive(rail, bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  if (frame.count > 0)
    assert_true(raw_receive(rail, (uint8_t[FRAME_SEGMENT]){0}, FRAME_SEGMENT));
  return frame;
}

static void expect_frame(int rail, uint8_t type) {
  assert_int_equal(receive_frame(rail).type, type);
}

static struct haul_transfer *read_raw(void) {
  struct haul_transfer_options options = over_tcp();
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  assert_works(haul_read(at.region, at.remote, &piece, 1, &options, &transfer));
  return transfer;
}

static void send_data(int rail, uint64_t request, uint64_t seed) {
  static uint8_t payload[LENGTH];
  uint8_t head[FRAME_HEADER], trailer[FRAME_TRAILER];
  pattern_fill(payload, sizeof payload, seed);
  frame_pack(&(struct frame){.type = FRAME_DATA, .request = request, .payload = LENGTH}, head);
  frame_pack_trailer(&(struct frame_trailer){0, 0}, trailer);
  assert_true(raw_send(rail, head, sizeof head) && raw_send(rail, payload, sizeof payload) &&
              raw_send(rail, trailer, sizeof trailer));
}

static void finish_read(struct haul_transfer *transfer, uint64_t seed) {
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  pattern_check(haul_region_address(at.region), LENGTH, seed);
}

static void expect_peer_dropped(int code) {
  assert_true(raw_ended(at.control, BOUND));
  assert_int_equal(haul_peer_status(at.peer), code);
}

/* ---- A raw acceptor ---- */

static void *connect_node(void *argument) {
  (void)argument;
  assert_works(haul_peer_connect(at.node, own_socket(), soon(), &at.peer));
  assert_works(haul_peer_lookup(at.peer, "region", soon(), &at.remote));
  return NULL;
}

static int accept_rail(unsigned index) {
  struct hello hello;
  int fd = raw_accept(at.listener);
  assert_true(raw_welcome(fd, false, &hello));
  assert_int_equal(hello.index, index);
  return fd;
}

/* One rail, over which a read was served; the express rail is refused. The next frame is PARK. */
static int acceptor_start(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  pthread_t thread;
  struct hello hello;
  count_before(state);
  config.liveness_ns = BOUND;
  config.tcp_rails = 1;
  config.idle_rails_ns = 40 * MS;
  at.listener = raw_listen(own_socket());
  assert_works(haul_node_open(&config, &at.node));
  at.region = region_make(at.node, KIND_HOST, LENGTH);
  pthread_create(&thread, NULL, connect_node, NULL);
  at.control = raw_accept(at.listener);
  assert_true(raw_welcome(at.control, false, &hello));
  raw_found(at.control, 77, LENGTH);
  pthread_join(thread, NULL);
  struct haul_transfer *transfer = read_raw();
  at.rail = accept_rail(0);
  close(raw_accept(at.listener));
  send_data(at.rail, receive_frame(at.rail).request, 1);
  finish_read(transfer, 1);
  expect_frame(at.rail, FRAME_PARK);
  return 0;
}

static int by_hand_end(void **state) {
  haul_remote_release(at.remote);
  haul_region_release(at.region);
  haul_peer_close(at.peer);
  haul_node_close(at.node);
  close(at.rail);
  close(at.control);
  if (at.listener >= 0)
    close(at.listener);
  return count_after(state);
}

static void the_initiator_closes_with_the_answer(void **state) {
  uint8_t byte;
  (void)state;
  assert_true(send_frame(at.rail, FRAME_PARKED));
  assert_false(raw_receive(at.rail, &byte, 1));
  expect_dormant(at.peer);
  assert_works(haul_peer_status(at.peer));
}

static void transfers_wait_for_the_answer(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_raw();
  rest(20 * MS);
  assert_int_equal(haul_transfer_test(transfer), 1);
  assert_true(send_frame(at.rail, FRAME_UNPARKED));
  send_data(at.rail, receive_frame(at.rail).request, 2); /* on the same rail */
  finish_read(transfer, 2);
  /* Again, and now it is parked. */
  expect_frame(at.rail, FRAME_PARK);
  transfer = read_raw();
  assert_true(send_frame(at.rail, FRAME_PARKED));
  int rail = accept_rail(0);
  send_data(rail, receive_frame(rail).request, 3);
  finish_read(transfer, 3);
  close(rail);
}

static void a_question_while_parking_is_remembered(void **state) {
  (void)state;
  assert_true(raw_control(at.control, CONTROL_DIAL, 0, "\3\0tcp", 5));
  rest(20 * MS);
  assert_true(send_frame(at.rail, FRAME_PARKED));
  close(accept_rail(0));
}

static void a_rail_cut_before_the_answer_is_lost(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_raw();
  shutdown(at.rail, SHUT_RDWR);
  assert_fails(HAUL_EPEER, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

static void requests_that_cross_are_served(void **state) {
  uint64_t handle;
  uint8_t bytes[FRAME_HEADER + FRAME_SEGMENT], byte[1 + FRAME_TRAILER];
  (void)state;
  assert_works(haul_region_publish(at.region, "served", HAUL_READ));
  assert_int_equal(raw_lookup(at.control, "served", &handle), 0);
  frame_pack(
      &(struct frame){.type = FRAME_READ, .count = 1, .request = 9, .handle = handle, .payload = 1},
      bytes);
  frame_pack_segment(&(struct frame_segment){3, 1}, bytes + FRAME_HEADER);
  assert_true(raw_send(at.rail, bytes, sizeof bytes) && send_frame(at.rail, FRAME_UNPARKED));
  struct frame frame = receive_frame(at.rail);
  assert_int_equal(frame.type, FRAME_DATA);
  assert_int_equal(frame.request, 9);
  assert_true(raw_receive(at.rail, byte, sizeof byte));
  assert_int_equal(byte[0], ((uint8_t *)haul_region_address(at.region))[3]);
}

static void the_acceptor_asks_nothing(void **state) {
  (void)state;
  assert_true(send_frame(at.rail, FRAME_PARK));
  expect_peer_dropped(HAUL_EPROTO);
}

static void an_answer_comes_once(void **state) {
  (void)state;
  assert_true(send_frame(at.rail, FRAME_UNPARKED) && send_frame(at.rail, FRAME_UNPARKED));
  expect_peer_dropped(HAUL_EPROTO);
}

static void nothing_follows_the_agreement(void **state) {
  uint8_t bytes[2 * FRAME_HEADER];
  (void)state;
  frame_pack(&(struct frame){.type = FRAME_PARKED}, bytes);
  frame_pack(&(struct frame){.type = FRAME_UNPARKED}, bytes + FRAME_HEADER);
  assert_true(raw_send(at.rail, bytes, sizeof bytes));
  expect_peer_dropped(HAUL_EPROTO);
}

/* The contents of `request`, of each of the other fields likewise (fuzz.frame). */
static void frames_about_parking_are_empty(void **state) {
  uint8_t bytes[FRAME_HEADER];
  (void)state;
  frame_pack(&(struct frame){.type = FRAME_PARKED, .request = 1}, bytes);
  assert_true(raw_send(at.rail, bytes, sizeof bytes));
  expect_peer_dropped(HAUL_EPROTO);
}

/* ---- A raw initiator ---- */

static void *look_up(void *argument) {
  (void)argument;
  assert_works(haul_peer_lookup(at.peer, "region", soon(), &at.remote));
  return NULL;
}

/* One rail, over which nothing was sent. */
static int initiator_start(void **state) {
  struct haul_node_config config = patient_config();
  struct hello hello = raw_hello(ROLE_CONTROL);
  pthread_t thread;
  count_before(state);
  config.peer_events = 1;
  at.listener = -1;
  assert_works(haul_node_open(&config, &at.node));
  assert_works(haul_node_listen(at.node, own_socket()));
  at.region = region_make(at.node, KIND_HOST, LENGTH);
  memset(hello.boot, 1, sizeof hello.boot); /* of another host: no map */
  at.control = raw_connect(own_socket());
  assert_true(raw_greet(at.control, &hello, &at.welcome));
  assert_true(raw_control(at.control, CONTROL_READY, 0, "\3\0tcp\1", 6));
  at.peer = next_joined(at.node);
  pthread_create(&thread, NULL, look_up, NULL);
  raw_found(at.control, 77, LENGTH);
  pthread_join(thread, NULL);
  at.rail = raw_channel(own_socket(), &at.welcome, "tcp", 0);
  return 0;
}

static void expect_dial(void) {
  uint8_t body[CONTROL_BODY_MAX];
  assert_int_equal(raw_answer(at.control, CONTROL_DIAL, body), 5);
}

static void the_acceptor_agrees_and_asks_for_a_new_one(void **state) {
  (void)state;
  for (unsigned i = 0; i < 3; i++) {
    assert_true(send_frame(at.rail, FRAME_PARK));
    expect_frame(at.rail, FRAME_PARKED);
    close(at.rail);
    expect_dormant(at.peer);
    struct haul_transfer *transfer = read_raw();
    expect_dial();
    at.rail = raw_channel(own_socket(), &at.welcome, "tcp", 0);
    send_data(at.rail, receive_frame(at.rail).request, i);
    finish_read(transfer, i);
  }
}

static void a_new_rail_replaces_a_parked_one(void **state) {
  uint8_t byte;
  (void)state;
  assert_true(send_frame(at.rail, FRAME_PARK));
  expect_frame(at.rail, FRAME_PARKED);
  int next = raw_channel(own_socket(), &at.welcome, "tcp", 0);
  assert_false(raw_receive(at.rail, &byte, 1)); /* the node has closed it */
  struct haul_transfer *transfer = read_raw();
  send_data(next, receive_frame(next).request, 4);
  finish_read(transfer, 4);
  close(next);
}

static void a_rail_in_use_is_not_parked(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_raw();
  struct frame frame = receive_frame(at.rail);
  assert_true(send_frame(at.rail, FRAME_PARK));
  expect_frame(at.rail, FRAME_UNPARKED);
  send_data(at.rail, frame.request, 5);
  finish_read(transfer, 5);
}

static void a_parked_rail_carries_nothing(void **state) {
  (void)state;
  assert_true(send_frame(at.rail, FRAME_PARK));
  expect_frame(at.rail, FRAME_PARKED);
  assert_true(send_frame(at.rail, FRAME_PARK));
  expect_peer_dropped(HAUL_EPROTO);
}

static void the_initiator_gives_no_answer(void **state) {
  (void)state;
  assert_true(send_frame(at.rail, FRAME_PARKED));
  expect_peer_dropped(HAUL_EPROTO);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  mallopt(M_ARENA_MAX, 1); /* mallinfo2 counts one arena */
#define TEST(test)           cmocka_unit_test_setup_teardown(test, count_before, count_after)
#define WITH_ACCEPTOR(test)  cmocka_unit_test_setup_teardown(test, acceptor_start, by_hand_end)
#define WITH_INITIATOR(test) cmocka_unit_test_setup_teardown(test, initiator_start, by_hand_end)
  const struct CMUnitTest tests[] = {
      TEST(idle_rails_are_closed_and_come_back),
      TEST(both_sides_may_call_them_back_at_once),
      TEST(without_the_setting_they_stay),
      TEST(transfers_may_begin_at_any_moment_of_parking),
      TEST(an_idle_link_costs_its_acceptor_little),
      TEST(an_idle_link_costs_its_initiator_little),
      WITH_ACCEPTOR(the_initiator_closes_with_the_answer),
      WITH_ACCEPTOR(transfers_wait_for_the_answer),
      WITH_ACCEPTOR(a_question_while_parking_is_remembered),
      WITH_ACCEPTOR(a_rail_cut_before_the_answer_is_lost),
      WITH_ACCEPTOR(requests_that_cross_are_served),
      WITH_ACCEPTOR(the_acceptor_asks_nothing),
      WITH_ACCEPTOR(an_answer_comes_once),
      WITH_ACCEPTOR(nothing_follows_the_agreement),
      WITH_ACCEPTOR(frames_about_parking_are_empty),
      WITH_INITIATOR(the_acceptor_agrees_and_asks_for_a_new_one),
      WITH_INITIATOR(a_new_rail_replaces_a_parked_one),
      WITH_INITIATOR(a_rail_in_use_is_not_parked),
      WITH_INITIATOR(a_parked_rail_carries_nothing),
      WITH_INITIATOR(the_initiator_gives_no_answer),
  };
  return cmocka_run_group_tests_name("parking", tests, NULL, NULL);
}
