/* SPDX-License-Identifier: MIT
 * When tcp's rails are opened, and what happens to transfers that wait for them. */
#include "support/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"
#include "core/wire.h"
#include "fabric/tcp/tcp.h"
#include "node/peer.h"
#include "support/ends.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

static unsigned open_rails_of(haul_peer *peer) {
  const struct tcp_endpoint *endpoint =
      (const struct tcp_endpoint *)peer->base.endpoints[tcp_transport.index];
  return atomic_load(&endpoint->open_rails);
}

static const char *const addresses[] = {"tcp://127.0.0.1:0", NULL}; /* NULL: own_socket() */

static const char *address_at(size_t i) {
  return addresses[i] ? addresses[i] : own_socket();
}

static void expect_rails(unsigned count) {
  for (unsigned i = 0; i < 2; i++)
    for (haul_deadline until = soon(); open_rails_of(ends[i].peer) != count;) {
      assert_true(haul_deadline_in(0) < until);
      nanosleep(&(struct timespec){0, MS}, NULL);
    }
}

static unsigned rails_explained(unsigned end) {
  struct haul_transfer_options options = over_tcp(soon());
  struct haul_path path;
  assert_works(haul_explain(ends[end].source, ends[end].remote, HAUL_OP_WRITE, ENDS_LENGTH,
                            &options, &path, &(size_t){1}));
  unsigned rails = 0;
  assert_non_null(strstr(path.detail, " rails"));
  const char *at = strstr(path.detail, " rails");
  while (at > path.detail && at[-1] >= '0' && at[-1] <= '9')
    at--;
  sscanf(at, "%u", &rails);
  return rails;
}

static void the_first_transfer_of_each_side_opens_them(void **state) {
  (void)state;
  for (size_t i = 0; i < 2 * COUNT(addresses); i++) {
    unsigned first = i % 2;
    ends_open(address_at(i / 2), 0);
    expect_rails(0);
    for (unsigned end = 0; end < 2; end++) /* what reports say does not change */
      assert_int_equal(rails_explained(end), 3);
    ends_finish(first, ends_start(first, 1), 1);
    expect_rails(3);
    for (unsigned end = 0; end < 2; end++) {
      assert_int_equal(rails_explained(end), 3);
      ends_finish(end, ends_start(end, 2 + end), 2 + end);
    }
    ends_close();
  }
}

static void both_sides_may_begin_at_once(void **state) {
  (void)state;
  for (size_t i = 0; i < 16; i++) {
    struct haul_transfer *transfers[2];
    ends_open(address_at(i % 2), 0);
    for (unsigned k = 0; k < 2; k++)
      transfers[k] = ends_start(k ^ (i / 2 % 2), 3);
    for (unsigned k = 0; k < 2; k++) {
      assert_works(haul_transfer_wait(transfers[k], soon()));
      haul_transfer_release(transfers[k]);
    }
    expect_rails(3);
    ends_close();
  }
}

static void a_message_opens_none(void **state) {
  struct haul_message message;
  (void)state;
  ends_open(address_at(0), 0);
  assert_works(haul_message_send(ends[0].peer, 7, "x", 1, soon()));
  assert_works(haul_message_receive(ends[1].node, &message, soon()));
  haul_message_release(&message);
  expect_rails(0);
  ends_close();
}

static int raw_owner_start(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  count_before(state);
  config.liveness_ns = ENDS_BOUND;
  by_hand_accept(&config);
  return 0;
}

static int by_hand_end(void **state) {
  by_hand_close();
  return count_after(state);
}

static void expect_end(struct haul_transfer *transfer, int code) {
  assert_fails(code, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

/* Accepts a rail, reads its hello and answers with this refusal. */
static void refuse_rail(int code, const char *reason) {
  struct welcome welcome = {.lowest = PROTOCOL_LOWEST, .highest = PROTOCOL_HIGHEST, .code = code};
  struct hello hello;
  uint8_t bytes[HANDSHAKE_MAX];
  snprintf(welcome.reason, sizeof welcome.reason, "%s", reason);
  int fd = raw_accept(hand.listener);
  assert_true(raw_hello_of(fd, &hello));
  assert_true(raw_send(fd, bytes, welcome_pack(&welcome, bytes)));
  close(fd);
}

static uint32_t expect_refused(char *reason, size_t size) {
  uint8_t body[CONTROL_BODY_MAX];
  char name[16];
  long length = raw_answer(hand.control, CONTROL_REFUSED, body);
  assert_true(length > 0);
  struct wire in = wire_over(body, (size_t)length);
  wire_get_string(&in, name, sizeof name);
  assert_string_equal(name, "tcp");
  uint32_t code = wire_get32(&in);
  wire_get_string(&in, reason, size);
  assert_true(!in.failed && wire_left(&in) == 0);
  return code;
}

static void a_transfer_that_waits_has_its_deadline(void **state) {
  (void)state;
  expect_end(read_start(haul_deadline_in(50 * MS)), HAUL_ETIMEDOUT);
}

static void a_transfer_that_waits_can_be_canceled(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  int fd = raw_accept(hand.listener); /* it is being dialed */
  assert_works(haul_transfer_cancel(transfer));
  expect_end(transfer, HAUL_ECANCELED);
  close(fd);
}

static void a_transfer_that_waits_ends_with_its_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  int fd = raw_accept(hand.listener);
  close(hand.control);
  hand.control = -1;
  expect_end(transfer, HAUL_EPEER);
  assert_true(raw_ended(fd, ENDS_BOUND)); /* the node gave the dial up */
  close(fd);
}

static void a_transfer_that_waits_ends_with_its_node(void **state) {
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  int fd = raw_accept(hand.listener);
  haul_node_close(hand.node);
  expect_end(transfer, HAUL_ECLOSED);
  close(fd);
  assert_works(haul_node_open(NULL, &hand.node)); /* for the teardown */
}

/* The transfers that wait end at once; the next one tries again. */
static void a_limit_of_the_peer_is_told_at_once(void **state) {
  char reason[160];
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    struct haul_transfer *transfer = read_start(soon());
    refuse_rail(HAUL_ELIMIT, "no room today");
    assert_fails(HAUL_ELIMIT, haul_transfer_wait(transfer, soon()));
    assert_non_null(strstr(haul_error_last()->text, "no room today"));
    haul_transfer_release(transfer);
    assert_int_equal((int32_t)expect_refused(reason, sizeof reason), HAUL_ELIMIT);
    assert_non_null(strstr(reason, "no room today"));
  }
}

static void a_final_refusal_closes_the_path_with_its_reason(void **state) {
  char reason[160];
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  refuse_rail(HAUL_EAUTH, "who are you");
  assert_fails(HAUL_ENOPATH, haul_transfer_wait(transfer, soon()));
  assert_non_null(strstr(haul_error_last()->hint, "who are you"));
  haul_transfer_release(transfer);
  assert_int_equal((int32_t)expect_refused(reason, sizeof reason), HAUL_EPATH);
  assert_non_null(strstr(reason, "who are you"));
  assert_true(raw_ended(hand.control, ENDS_BOUND)); /* a peer without any path */
  assert_fails(HAUL_EPEER, haul_peer_status(hand.peer));
}

static void answer_read(int rail, uint64_t seed) {
  send_data(rail, receive_frame(rail).request, seed);
}

/* A connection that breaks off, or a listener that comes back, costs a pause. */
static void a_failed_dial_is_tried_again(void **state) {
  struct hello hello;
  (void)state;
  struct haul_transfer *transfer = read_start(soon());
  close(raw_accept(hand.listener));
  int fd = raw_accept(hand.listener);
  shutdown(fd, SHUT_RDWR);
  close(fd);
  int rail = raw_accept(hand.listener);
  assert_true(raw_welcome(rail, false, &hello));
  assert_string_equal(hello.transport, "tcp");
  assert_int_equal(hello.index, 0);
  answer_read(rail, 5);
  read_finish(transfer, 5);
  close(rail);
}

/* The peer asks for rails; this side needs none. */
static void the_peer_may_ask_for_them(void **state) {
  struct hello hello;
  uint8_t body[8];
  struct wire wire = wire_over(body, sizeof body);
  (void)state;
  wire_put_string(&wire, "tcp");
  for (unsigned i = 0; i < 3; i++) /* again: it is under way */
    assert_true(raw_control(hand.control, CONTROL_DIAL, 0, body, sizeof body - wire_left(&wire)));
  int rail = raw_accept(hand.listener);
  assert_true(raw_welcome(rail, false, &hello) && hello.index == 0);
  int second = raw_accept(hand.listener);
  assert_true(raw_welcome(second, false, &hello) && hello.index == 1);
  int express = raw_accept(hand.listener);
  assert_true(raw_welcome(express, false, &hello) && hello.index == TCP_EXPRESS);
  struct haul_transfer *transfer = read_start(soon());
  answer_read(rail, 6);
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  close(rail);
  close(second);
  close(express);
}

static void impossible_questions_drop_the_peer(void **state) {
  static const char *const names[] = {"map", "rdma", "foo", ""};
  static unsigned calls;
  uint8_t body[32];
  struct wire wire = wire_over(body, sizeof body);
  (void)state;
  wire_put_string(&wire, names[calls++ % COUNT(names)]);
  assert_true(raw_control(hand.control, CONTROL_DIAL, 0, body, sizeof body - wire_left(&wire)));
  assert_true(raw_ended(hand.control, ENDS_BOUND));
  assert_int_equal(haul_peer_status(hand.peer), HAUL_EPROTO);
}

static int node_start(void **state) {
  struct haul_node_config config = patient_config();
  count_before(state);
  config.liveness_ns = ENDS_BOUND;
  by_hand_listen(&config);
  return 0;
}

/* It makes `hand.control`. */
static void meet_initiator(void) {
  hand.control = by_hand_connect("tcp", 2, &hand.welcome);
  by_hand_meet(hand.control);
}

static bool refuse(int control, const char *name, int code, const char *reason) {
  uint8_t body[64];
  struct wire wire = wire_over(body, sizeof body);
  wire_put_string(&wire, name);
  wire_put32(&wire, (uint32_t)code);
  wire_put_string(&wire, reason);
  return raw_control(control, CONTROL_REFUSED, 0, body, sizeof body - wire_left(&wire));
}

static void who_was_connected_to_asks_for_them(void **state) {
  (void)state;
  meet_initiator();
  struct haul_transfer *transfer = read_start(soon());
  by_hand_expect_dial(hand.control);
  int rail = raw_channel(own_socket(), &hand.welcome, "tcp", 0);
  answer_read(rail, 8);
  read_finish(transfer, 8);
  close(rail);
}

static void who_asked_hears_why_there_are_none(void **state) {
  (void)state;
  meet_initiator();
  static const int codes[] = {HAUL_ELIMIT, HAUL_ENOMEM, HAUL_EPATH};
  for (size_t i = 0; i < COUNT(codes); i++) {
    struct haul_transfer *transfer = read_start(soon());
    by_hand_expect_dial(hand.control);
    assert_true(refuse(hand.control, "tcp", codes[i], "no doors"));
    bool closes = codes[i] == HAUL_EPATH;
    assert_fails(closes ? HAUL_ENOPATH : codes[i], haul_transfer_wait(transfer, soon()));
    const struct haul_error *error = haul_error_last();
    assert_non_null(strstr(closes ? error->hint : error->text, "no doors"));
    haul_transfer_release(transfer);
  }
  assert_true(raw_ended(hand.control, ENDS_BOUND)); /* a peer without any path */
  assert_fails(HAUL_EPEER, haul_peer_status(hand.peer));
}

static int64_t (*the_clock)(void);
static _Atomic int64_t ahead; /* of the system's clock */

static int64_t clock_ahead(void) {
  return the_clock() + atomic_load(&ahead);
}

static int clock_start(void **state) {
  the_clock = sys_ops.monotonic;
  sys_ops.monotonic = clock_ahead;
  return node_start(state);
}

static int clock_end(void **state) {
  int code = by_hand_end(state);
  sys_ops.monotonic = the_clock;
  return code;
}

#define BEATS 16 /* in the node's liveness timeout */

/* Lets time pass, then has the node answer. False once it dropped the peer. */
static bool beat(int control, int64_t ns) {
  uint8_t body[CONTROL_BODY_MAX];
  atomic_fetch_add(&ahead, ns);
  return raw_control(control, CONTROL_PING, PING_REQUEST, NULL, 0) &&
         raw_answer(control, CONTROL_PING, body) >= 0;
}

static void who_asked_and_hears_nothing_ends_the_link(void **state) {
  unsigned beats = 0;
  (void)state;
  meet_initiator();
  struct haul_transfer *transfer = read_start(HAUL_FOREVER);
  by_hand_expect_dial(hand.control);
  while (beats < 4 * BEATS && beat(hand.control, ENDS_BOUND / BEATS))
    beats++;
  assert_in_range(beats, 2 * BEATS - 1, 3 * BEATS);
  assert_fails(HAUL_EPEER, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  assert_fails(HAUL_EPEER, haul_peer_status(hand.peer));
  assert_non_null(strstr(haul_error_last()->text, "opens no data connection"));
}

/* Rails that came while it was stopped count. */
static void who_asked_and_was_stopped_waits_on(void **state) {
  (void)state;
  meet_initiator();
  struct haul_transfer *transfer = read_start(HAUL_FOREVER);
  by_hand_expect_dial(hand.control);
  for (unsigned i = 0; i < 7; i++)
    assert_true(beat(hand.control, ENDS_BOUND / 4));
  assert_true(beat(hand.control, 5 * ENDS_BOUND));
  assert_true(beat(hand.control, ENDS_BOUND / BEATS));
  int rail = raw_channel(own_socket(), &hand.welcome, "tcp", 0);
  answer_read(rail, 9);
  for (unsigned i = 0; i < 3 * BEATS; i++)
    assert_true(beat(hand.control, ENDS_BOUND / BEATS));
  read_finish(transfer, 9);
  close(rail);
}

static void impossible_answers_drop_the_peer(void **state) {
  (void)state;
  for (unsigned i = 0; i < 8; i++) {
    int control = i < 4   ? by_hand_connect("tcp", 2, &hand.welcome)
                  : i < 5 ? by_hand_connect("tcp", 0, &hand.welcome)
                  : i < 6 ? by_hand_connect("tcp", TCP_RAILS_MAX + 1, &hand.welcome)
                  : i < 7 ? by_hand_connect("map", 1, &hand.welcome)
                          : by_hand_connect("foo", 1, &hand.welcome);
    if (i == 0)
      assert_true(refuse(control, "tcp", 0, ""));
    else if (i == 1)
      assert_true(refuse(control, "tcp", HAUL_EPEER, ""));
    else if (i == 2)
      assert_true(refuse(control, "map", HAUL_EPATH, ""));
    else if (i == 3) /* who connects is not asked */
      assert_true(raw_control(control, CONTROL_DIAL, 0, "\3\0tcp", 5));
    assert_true(raw_ended(control, ENDS_BOUND));
    close(control);
  }
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define TEST(test)       cmocka_unit_test_setup_teardown(test, count_before, count_after)
#define WITH_OWNER(test) cmocka_unit_test_setup_teardown(test, raw_owner_start, by_hand_end)
#define WITH_CLOCK(test) cmocka_unit_test_setup_teardown(test, clock_start, clock_end)
#define WITH_NODE(test)  cmocka_unit_test_setup_teardown(test, node_start, by_hand_end)
  const struct CMUnitTest tests[] = {
      TEST(the_first_transfer_of_each_side_opens_them),
      TEST(both_sides_may_begin_at_once),
      TEST(a_message_opens_none),
      WITH_OWNER(a_transfer_that_waits_has_its_deadline),
      WITH_OWNER(a_transfer_that_waits_can_be_canceled),
      WITH_OWNER(a_transfer_that_waits_ends_with_its_peer),
      WITH_OWNER(a_transfer_that_waits_ends_with_its_node),
      WITH_OWNER(a_limit_of_the_peer_is_told_at_once),
      WITH_OWNER(a_final_refusal_closes_the_path_with_its_reason),
      WITH_OWNER(a_failed_dial_is_tried_again),
      WITH_OWNER(the_peer_may_ask_for_them),
      WITH_OWNER(impossible_questions_drop_the_peer),
      WITH_OWNER(impossible_questions_drop_the_peer),
      WITH_OWNER(impossible_questions_drop_the_peer),
      WITH_OWNER(impossible_questions_drop_the_peer),
      WITH_NODE(who_was_connected_to_asks_for_them),
      WITH_NODE(who_asked_hears_why_there_are_none),
      WITH_CLOCK(who_asked_and_hears_nothing_ends_the_link),
      WITH_CLOCK(who_asked_and_was_stopped_waits_on),
      WITH_NODE(impossible_answers_drop_the_peer),
  };
  return cmocka_run_group_tests_name("rails", tests, NULL, NULL);
}
