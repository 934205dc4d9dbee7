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

#include "fabric/tcp/tcp.h"
#include "node/peer.h"
#include "support/ends.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

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

static const char *address_at(size_t i) {
  return i % 2 ? own_socket() : "tcp://127.0.0.1:0";
}

static void idle_rails_are_closed_and_come_back(void **state) {
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    ends_open(address_at(i), 20 * MS);
    unsigned before = open_descriptors();
    for (unsigned round = 0; round < 6; round++) {
      unsigned end = round / 2 % 2;
      ends_finish(end, ends_start(end, round), round);
      for (unsigned k = 0; k < 2; k++)
        expect_dormant(ends[k].peer);
      assert_true(open_descriptors() <= before); /* threads may still have had some to close */
      assert_works(haul_peer_status(ends[end].peer));
    }
    ends_close();
  }
}

static void both_sides_may_call_them_back_at_once(void **state) {
  (void)state;
  ends_open(address_at(0), 5 * MS);
  for (unsigned round = 0; round < 50; round++) {
    struct haul_transfer *transfers[2];
    for (unsigned k = 0; k < 2; k++)
      expect_dormant(ends[k].peer);
    for (unsigned k = 0; k < 2; k++)
      transfers[k] = ends_start(k, round * 2 + k);
    for (unsigned k = 0; k < 2; k++)
      ends_finish(k, transfers[k], round * 2 + k);
  }
  ends_close();
}

static void without_the_setting_they_stay(void **state) {
  (void)state;
  ends_open(address_at(0), INT64_MAX);
  ends_finish(0, ends_start(0, 1), 1);
  rest(200 * MS);
  assert_false(is_dormant(ends[0].peer));
  assert_int_equal(atomic_load(&endpoint_of(ends[0].peer)->open_rails), 3);
  ends_close();
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
    ends_finish(writer->end, ends_start(writer->end, seed), seed);
    writer->chance = writer->chance * 6364136223846793005u + 1442695040888963407u;
    rest((int64_t)(writer->chance >> 33) % (4 * MS));
  }
  return NULL;
}

static void transfers_may_begin_at_any_moment_of_parking(void **state) {
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    struct writer writers[2];
    ends_open(address_at(i), 1 * MS);
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
    ends_close();
  }
}

/* The first link is not counted: it opens the NIC, if there is one. */
#define LINKS 64
static int links[1 + LINKS];

static void *welcome_all(void *user) {
  int listener = *(int *)user;
  struct hello hello;
  for (unsigned i = 0; i <= LINKS; i++) {
    links[i] = raw_accept(listener);
    assert_true(raw_welcome(links[i], false, &hello));
    raw_refuse_nic(listener, links[i]);
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
  for (unsigned i = 0; i <= LINKS; i++)
    close(links[i]);
}

static void join(struct haul_node *node, int *fd) {
  struct hello hello = raw_hello(ROLE_CONTROL);
  struct welcome welcome;
  memset(hello.boot, 1, sizeof hello.boot); /* of another host: no map */
  *fd = raw_connect(own_socket());
  assert_true(raw_greet(*fd, &hello, &welcome));
  assert_true(raw_control(*fd, CONTROL_READY, 0, "\3\0tcp\2", 6));
  haul_peer_close(next_joined(node));
}

static void an_idle_link_costs_its_acceptor_little(void **state) {
  struct haul_node_config config = patient_config();
  struct haul_node *node;
  (void)state;
  config.peer_events = 1;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_node_listen(node, own_socket()));
  join(node, &links[0]);
  size_t before = mallinfo2().uordblks;
  unsigned descriptors_before = open_descriptors();
  for (unsigned i = 1; i <= LINKS; i++)
    join(node, &links[i]);
  expect_cost("acceptor", before, descriptors_before);
  close_links();
  haul_node_close(node);
}

static void an_idle_link_costs_its_initiator_little(void **state) {
  struct haul_node_config config = patient_config();
  struct haul_node *node;
  haul_peer *peers[1 + LINKS];
  pthread_t thread;
  int listener = raw_listen(own_socket());
  (void)state;
  assert_works(haul_node_open(&config, &node));
  pthread_create(&thread, NULL, welcome_all, &listener);
  assert_works(haul_peer_connect(node, own_socket(), soon(), &peers[0]));
  size_t before = mallinfo2().uordblks;
  unsigned descriptors_before = open_descriptors();
  for (unsigned i = 1; i <= LINKS; i++)
    assert_works(haul_peer_connect(node, own_socket(), soon(), &peers[i]));
  pthread_join(thread, NULL);
  expect_cost("initiator", before, descriptors_before);
  for (unsigned i = 0; i <= LINKS; i++)
    haul_peer_close(peers[i]);
  haul_node_close(node);
  close_links();
  close(listener);
}

static bool send_frame(int rail, uint8_t type) {
  uint8_t bytes[FRAME_HEADER];
  frame_pack(&(struct frame){.type = type}, bytes);
  return raw_send(rail, bytes, sizeof bytes);
}

static void expect_frame(int rail, uint8_t type) {
  assert_int_equal(receive_frame(rail).type, type);
}

static void expect_peer_dropped(int code) {
  assert_true(raw_ended(hand.control, ENDS_BOUND));
  assert_int_equal(haul_peer_status(hand.peer), code);
}

static int accept_rail(unsigned index) {
  struct hello hello;
  int fd = raw_accept(hand.listener);
  assert_true(raw_welcome(fd, false, &hello));
  assert_int_equal(hello.index, index);
  return fd;
}

/* These rails; a read was served over the first, and the express rail is refused. */
static void accept_rails(unsigned count, int rails[]) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.liveness_ns = ENDS_BOUND;
  config.tcp_rails = count;
  config.idle_rails_ns = 40 * MS;
  by_hand_accept(&config);
  struct haul_transfer *transfer = read_start(soon());
  for (unsigned i = 0; i < count; i++)
    rails[i] = accept_rail(i);
  close(raw_accept(hand.listener));
  send_data(rails[0], receive_frame(rails[0]).request, 1);
  read_finish(transfer, 1);
}

/* With one rail. The next frame is PARK. */
static int acceptor_start(void **state) {
  count_before(state);
  accept_rails(1, &hand.rail);
  expect_frame(hand.rail, FRAME_PARK);
  return 0;
}

static int by_hand_end(void **state) {
  close(hand.rail);
  by_hand_close();
  return count_after(state);
}

/* Before the parked ones are freed. */
static void a_lost_rail_comes_back_with_the_parked_ones(void **state) {
  int rails[2];
  (void)state;
  accept_rails(2, rails);
  close(rails[0]);
  hand.rail = rails[1];
  expect_frame(hand.rail, FRAME_PARK);
  assert_true(raw_control(hand.control, CONTROL_DIAL, 0, "\3\0tcp", 5));
  rest(20 * MS);
  assert_true(send_frame(hand.rail, FRAME_PARKED));
  for (unsigned i = 0; i < 2; i++)
    rails[i] = accept_rail(i);
  close(rails[0]);
  close(rails[1]);
}

static void the_initiator_closes_with_the_answer(void **state) {
  uint8_t byte;
  (void)state;
  assert_true(send_frame(hand.rail, FRAME_PARKED));
  assert_false(raw_receive(hand.rail, &byte, 1));
  expect_dormant(hand.peer);
  assert_works(haul_peer_status(hand.peer));
}

static void transfers_wait_for_the_answer(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  rest(20 * MS);
  assert_int_equal(haul_transfer_test(transfer), 1);
  assert_true(send_frame(hand.rail, FRAME_UNPARKED));
  send_data(hand.rail, receive_frame(hand.rail).request, 2); /* on the same rail */
  read_finish(transfer, 2);
  /* Again, and now it is parked. */
  expect_frame(hand.rail, FRAME_PARK);
  transfer = read_start(soon());
  assert_true(send_frame(hand.rail, FRAME_PARKED));
  int rail = accept_rail(0);
  send_data(rail, receive_frame(rail).request, 3);
  read_finish(transfer, 3);
  close(rail);
}

static void a_question_while_parking_is_remembered(void **state) {
  (void)state;
  assert_true(raw_control(hand.control, CONTROL_DIAL, 0, "\3\0tcp", 5));
  rest(20 * MS);
  assert_true(send_frame(hand.rail, FRAME_PARKED));
  close(accept_rail(0));
}

static void a_rail_cut_before_the_answer_is_lost(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  shutdown(hand.rail, SHUT_RDWR);
  assert_fails(HAUL_EPEER, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

static void requests_that_cross_are_served(void **state) {
  uint64_t handle;
  uint8_t bytes[FRAME_HEADER + FRAME_SEGMENT], byte[1 + FRAME_TRAILER];
  (void)state;
  assert_works(haul_region_publish(hand.region, "served", HAUL_READ));
  assert_int_equal(raw_lookup(hand.control, "served", &handle), 0);
  frame_pack(
      &(struct frame){.type = FRAME_READ, .count = 1, .request = 9, .handle = handle, .payload = 1},
      bytes);
  frame_pack_segment(&(struct frame_segment){3, 1}, bytes + FRAME_HEADER);
  assert_true(raw_send(hand.rail, bytes, sizeof bytes) && send_frame(hand.rail, FRAME_UNPARKED));
  struct frame frame = receive_frame(hand.rail);
  assert_int_equal(frame.type, FRAME_DATA);
  assert_int_equal(frame.request, 9);
  assert_true(raw_receive(hand.rail, byte, sizeof byte));
  assert_int_equal(byte[0], ((uint8_t *)haul_region_address(hand.region))[3]);
}

static void the_acceptor_asks_nothing(void **state) {
  (void)state;
  assert_true(send_frame(hand.rail, FRAME_PARK));
  expect_peer_dropped(HAUL_EPROTO);
}

static void an_answer_comes_once(void **state) {
  (void)state;
  assert_true(send_frame(hand.rail, FRAME_UNPARKED) && send_frame(hand.rail, FRAME_UNPARKED));
  expect_peer_dropped(HAUL_EPROTO);
}

static void nothing_follows_the_agreement(void **state) {
  uint8_t bytes[2 * FRAME_HEADER];
  (void)state;
  frame_pack(&(struct frame){.type = FRAME_PARKED}, bytes);
  frame_pack(&(struct frame){.type = FRAME_UNPARKED}, bytes + FRAME_HEADER);
  assert_true(raw_send(hand.rail, bytes, sizeof bytes));
  expect_peer_dropped(HAUL_EPROTO);
}

/* The contents of `request`, of each of the other fields likewise (fuzz.frame). */
static void frames_about_parking_are_empty(void **state) {
  uint8_t bytes[FRAME_HEADER];
  (void)state;
  frame_pack(&(struct frame){.type = FRAME_PARKED, .request = 1}, bytes);
  assert_true(raw_send(hand.rail, bytes, sizeof bytes));
  expect_peer_dropped(HAUL_EPROTO);
}

/* One rail, over which nothing was sent. */
static int initiator_start(void **state) {
  struct haul_node_config config = patient_config();
  count_before(state);
  by_hand_listen(&config);
  hand.control = by_hand_connect("tcp", 1, &hand.welcome);
  by_hand_meet(hand.control);
  hand.rail = raw_channel(own_socket(), &hand.welcome, "tcp", 0);
  return 0;
}

static void the_acceptor_agrees_and_asks_for_a_new_one(void **state) {
  (void)state;
  for (unsigned i = 0; i < 3; i++) {
    assert_true(send_frame(hand.rail, FRAME_PARK));
    expect_frame(hand.rail, FRAME_PARKED);
    close(hand.rail);
    expect_dormant(hand.peer);
    struct haul_transfer *transfer = read_start(soon());
    by_hand_expect_dial(hand.control);
    hand.rail = raw_channel(own_socket(), &hand.welcome, "tcp", 0);
    send_data(hand.rail, receive_frame(hand.rail).request, i);
    read_finish(transfer, i);
  }
}

static void a_new_rail_replaces_a_parked_one(void **state) {
  uint8_t byte;
  (void)state;
  assert_true(send_frame(hand.rail, FRAME_PARK));
  expect_frame(hand.rail, FRAME_PARKED);
  int next = raw_channel(own_socket(), &hand.welcome, "tcp", 0);
  assert_false(raw_receive(hand.rail, &byte, 1)); /* the node has closed it */
  struct haul_transfer *transfer = read_start(soon());
  send_data(next, receive_frame(next).request, 4);
  read_finish(transfer, 4);
  close(next);
}

static void a_rail_in_use_is_not_parked(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  struct frame frame = receive_frame(hand.rail);
  assert_true(send_frame(hand.rail, FRAME_PARK));
  expect_frame(hand.rail, FRAME_UNPARKED);
  send_data(hand.rail, frame.request, 5);
  read_finish(transfer, 5);
}

static void a_parked_rail_carries_nothing(void **state) {
  (void)state;
  assert_true(send_frame(hand.rail, FRAME_PARK));
  expect_frame(hand.rail, FRAME_PARKED);
  assert_true(send_frame(hand.rail, FRAME_PARK));
  expect_peer_dropped(HAUL_EPROTO);
}

static void the_initiator_gives_no_answer(void **state) {
  (void)state;
  assert_true(send_frame(hand.rail, FRAME_PARKED));
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
      cmocka_unit_test_setup_teardown(a_lost_rail_comes_back_with_the_parked_ones, count_before,
                                      by_hand_end),
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
