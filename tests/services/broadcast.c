/* SPDX-License-Identifier: MIT
 * A source and its receivers, each a process: every byte arrives, from members where they have it;
 * members that die, hang, are slow or send wrong bytes are passed over; no version is ever mixed
 * with another. */
#include "broadcast/join.h" /* before cmocka.h, which has a macro `fail` */

#include "support/check.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/broadcaster.h"
#include "support/child.h"
#include "support/owner.h"

#define MIB (UINT64_C(1) << 20)

static struct broadcaster source, first, second;

static const struct setup tcp = {.paths = "tcp"};
/* So slow that a test acts meanwhile: 8 MiB take two seconds. */
static const struct setup slow_tcp = {.paths = "tcp", .tcp_rate = 4 * MIB};

static void source_start(const struct setup *setup) {
  broadcaster_start(&source, setup);
  assert_int_equal(source_open(&source), 0);
}

static void join(struct broadcaster *one, const struct setup *setup, const char *name) {
  broadcaster_start(one, setup);
  assert_int_equal(receiver_join(one, source.address, name), 0);
}

/* Receives the latest version, which must be whole. */
static struct received whole(struct broadcaster *one, uint64_t length, uint64_t seed) {
  struct received received;
  assert_int_equal(receiver_next(one, 0), 0);
  int code = receive(one, 0, 0, &received);
  if (code)
    print_error("%s\n", received.text);
  assert_int_equal(code, 0);
  assert_int_equal(received.version.length, length);
  assert_int_equal(received.report.bytes, length);
  assert_true(receiver_has(one, 0, length, seed));
  return received;
}

/* ---- Bytes ---- */

static void any_length_arrives(void **state) {
  (void)state;
  static const uint64_t lengths[] = {0, 1, 4095, 4096, 4097, 3 * 4096 + 5, 65 * 4096, MIB + 17};
  const struct setup small = {.chunk = 4096};
  source_start(&small);
  join(&first, NULL, "first");
  join(&second, NULL, "second");
  for (size_t i = 0; i < COUNT(lengths); i++) {
    assert_int_equal(source_publish(&source, i % 2, lengths[i], i, 0), 0);
    whole(&first, lengths[i], i);
    struct received received = whole(&second, lengths[i], i);
    assert_int_equal(bytes_from(&received, "first"), lengths[i]);
  }
  broadcaster_end(&second);
  broadcaster_end(&first);
  broadcaster_end(&source);
}

static void all_at_once(void **state) {
  (void)state;
  struct broadcaster many[6];
  struct received received;
  uint64_t fed = 0, length = 8 * MIB + 12345;
  source_start(&tcp);
  for (size_t i = 0; i < COUNT(many); i++) {
    char name[16];
    snprintf(name, sizeof name, "member%zu", i);
    join(&many[i], &tcp, name);
  }
  assert_int_equal(source_publish(&source, 0, length, 7, 0), 0);
  for (size_t i = 0; i < COUNT(many); i++)
    assert_int_equal(receiver_next(&many[i], 0), 0);
  for (size_t i = 0; i < COUNT(many); i++)
    receive_begin(&many[i], 0, 0);
  for (size_t i = 0; i < COUNT(many); i++) {
    assert_int_equal(receive_end(&many[i], &received), 0);
    assert_true(receiver_has(&many[i], 0, length, 7));
    fed += bytes_from(&received, NULL);
  }
  print_message("the source sent %.2f times the length to %zu receivers\n",
                (double)fed / (double)length, COUNT(many));
  assert_true(fed < COUNT(many) * length);
  for (size_t i = 0; i < COUNT(many); i++)
    broadcaster_end(&many[i]);
  broadcaster_end(&source);
}

static void device_memory(void **state) {
  (void)state;
  const struct setup device = {.place = {HAUL_SIM, 0}};
  uint64_t length = 3 * MIB + 99;
  source_start(&device);
  join(&first, &device, "first");
  join(&second, NULL, "second");
  assert_int_equal(source_publish(&source, 0, length, 5, 0), 0);
  whole(&first, length, 5);
  whole(&second, length, 5);
  broadcaster_end(&second);
  broadcaster_end(&first);
  broadcaster_end(&source);
}

/* ---- Members that fail ---- */

/* `first` is complete, `second` is about to read from it. */
static void a_chain(const struct setup *of_source, const struct setup *of_first, uint64_t length) {
  source_start(of_source);
  assert_int_equal(source_publish(&source, 0, length, 3, 0), 0);
  join(&first, of_first, "first");
  join(&second, &tcp, "second");
  whole(&first, length, 3);
  assert_int_equal(receiver_next(&second, 0), 0);
}

static void end_all(void) {
  broadcaster_end(&second);
  broadcaster_end(&first);
  broadcaster_end(&source);
}

static void wrong_bytes_are_read_again(void **state) {
  (void)state;
  struct received received;
  a_chain(&tcp, &tcp, MIB);
  receiver_spoil(&first, 0, MIB / 2);
  assert_int_equal(receive(&second, 0, 0, &received), 0);
  assert_true(receiver_has(&second, 0, MIB, 3));
  assert_true(received.report.corrupt >= 1 && received.report.retries >= received.report.corrupt);
  assert_string_equal(reason_of(&received, "first"), "wrong bytes");
  assert_true(bytes_from(&received, NULL) > 0);
  end_all();
}

static void a_member_that_died_is_passed_over(void **state) {
  (void)state;
  struct received received;
  a_chain(&tcp, &tcp, MIB);
  broadcaster_kill(&first);
  assert_int_equal(receive(&second, 0, 0, &received), 0);
  assert_true(receiver_has(&second, 0, MIB, 3));
  assert_int_equal(bytes_from(&received, NULL), MIB);
  broadcaster_end(&second);
  broadcaster_end(&source);
}

/* Chunks of it are in flight. */
static void a_member_dies_meanwhile(void **state) {
  (void)state;
  struct received received;
  a_chain(&tcp, &slow_tcp, 8 * MIB);
  receive_begin(&second, 0, 0);
  usleep(500 * 1000); /* whenever it happens, the result is the same */
  broadcaster_kill(&first);
  assert_int_equal(receive_end(&second, &received), 0);
  assert_true(receiver_has(&second, 0, 8 * MIB, 3));
  assert_int_equal(bytes_from(&received, NULL) + bytes_from(&received, "first"), 8 * MIB);
  assert_true(bytes_from(&received, NULL) > 0);
  broadcaster_end(&second);
  broadcaster_end(&source);
}

static void a_member_that_hangs_is_passed_over(void **state) {
  (void)state;
  struct received received;
  a_chain(&tcp, &tcp, MIB);
  child_stop(first.pid);
  assert_int_equal(receive(&second, 0, 0, &received), 0);
  assert_true(receiver_has(&second, 0, MIB, 3));
  assert_int_equal(bytes_from(&received, NULL), MIB);
  kill(first.pid, SIGCONT);
  end_all();
}

static void a_slow_member_is_passed_over(void **state) {
  (void)state;
  static const struct setup slow = {.paths = "tcp", .tcp_rate = MIB};
  struct received received;
  a_chain(&tcp, &slow, 16 * MIB);
  assert_int_equal(receive(&second, 0, 0, &received), 0);
  assert_true(receiver_has(&second, 0, 16 * MIB, 3));
  assert_true(bytes_from(&received, NULL) > bytes_from(&received, "first"));
  assert_int_equal(strncmp(reason_of(&received, "first"), "slow: ", 6), 0);
  end_all();
}

/* It comes back on another port, and is served by the one that has the bytes. */
static void a_member_comes_back(void **state) {
  (void)state;
  uint64_t length = 2 * MIB;
  a_chain(&tcp, &tcp, length);
  whole(&second, length, 3);
  broadcaster_kill(&second);
  join(&second, &tcp, "second");
  struct received received = whole(&second, length, 3);
  assert_int_equal(bytes_from(&received, "first"), length);
  end_all();
}

/* Waits until a member passes on the version that receiver_next found. */
static void await_served(const struct broadcaster *one) {
  struct haul_node_config config = patient_config();
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote;
  char name[64];
  int code = HAUL_ENAME;
  snprintf(name, sizeof name, "weights.%" PRIu64 ".have", one->version);
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_peer_connect(node, one->address, haul_deadline_in(20 * S), &peer));
  for (int i = 0; i < 2000 && code == HAUL_ENAME; i++) {
    code = haul_peer_lookup(peer, name, haul_deadline_in(20 * S), &remote);
    if (code == HAUL_ENAME)
      usleep(10 * 1000);
  }
  assert_int_equal(code, 0);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
}

/* `second` has half of the new version already, `first` begins with nothing: another link would be
 * shared. */
static void a_member_that_is_ahead_waits(void **state) {
  (void)state;
  struct received received;
  source_start(&slow_tcp);
  join(&first, &tcp, "first");
  join(&second, &tcp, "second");
  assert_int_equal(source_publish(&source, 0, 4 * MIB, 3, 0), 0);
  whole(&second, 4 * MIB, 3);
  assert_int_equal(source_publish(&source, 1, 4 * MIB, 3, 2 * MIB), 0);
  assert_int_equal(receiver_next(&first, 0), 0);
  receive_begin(&first, 0, 0);
  await_served(&first);
  assert_int_equal(receiver_next(&second, 0), 0);
  assert_int_equal(receive(&second, 0, HAUL_BROADCAST_KEEP, &received), 0);
  assert_int_equal(received.report.kept, 2 * MIB);
  assert_true(bytes_from(&received, "first") > bytes_from(&received, NULL)); /* a few are probes */
  assert_int_equal(receive_end(&first, &received), 0);
  end_all();
}

static void members_go_on_without_the_source(void **state) {
  (void)state;
  struct received received;
  a_chain(&tcp, &tcp, 2 * MIB);
  broadcaster_kill(&source);
  assert_int_equal(receive(&second, 0, 0, &received), 0);
  assert_true(receiver_has(&second, 0, 2 * MIB, 3));
  assert_int_equal(bytes_from(&received, "first"), 2 * MIB);
  broadcaster_end(&second);
  broadcaster_end(&first);
}

/* ---- Versions ---- */

static void right_chunks_are_kept(void **state) {
  (void)state;
  struct received received;
  a_chain(&tcp, &tcp, 4 * MIB);
  assert_int_equal(source_publish(&source, 1, 4 * MIB, 3, 1), 0); /* one byte is different */
  assert_int_equal(receiver_next(&first, 0), 0);
  assert_int_equal(receive(&first, 0, HAUL_BROADCAST_KEEP, &received), 0);
  assert_false(receiver_has(&first, 0, 4 * MIB, 3));
  assert_int_equal(received.report.kept, 4 * MIB - received.version.chunk);
  assert_int_equal(bytes_from(&received, NULL), received.version.chunk);
  end_all();
}

/* The second version is published while the first one is received. */
static void versions_never_mix(void **state) {
  (void)state;
  struct received received;
  uint64_t length = 8 * MIB;
  source_start(&slow_tcp);
  join(&first, &tcp, "first");
  assert_int_equal(source_publish(&source, 0, length, 1, 0), 0);
  assert_int_equal(receiver_next(&first, 0), 0);
  receive_begin(&first, 0, 0);
  assert_int_equal(source_publish(&source, 1, length, 2, 0), 0);
  assert_int_equal(receive_end(&first, &received), 0); /* it completes the older one */
  assert_true(receiver_has(&first, 0, length, 1));
  uint64_t older = received.version.number;
  assert_int_equal(receiver_next(&first, older), 0);
  assert_int_equal(receive(&first, 1, 0, &received), 0);
  assert_true(received.version.number > older);
  assert_true(receiver_has(&first, 0, length, 1)); /* double buffering */
  assert_true(receiver_has(&first, 1, length, 2));
  broadcaster_end(&first);
  broadcaster_end(&source);
}

static void a_newer_version_ends_the_older(void **state) {
  (void)state;
  struct received received;
  uint64_t length = 16 * MIB;
  source_start(&slow_tcp);
  join(&first, &tcp, "first");
  assert_int_equal(source_publish(&source, 0, length, 1, 0), 0);
  assert_int_equal(receiver_next(&first, 0), 0);
  receive_begin(&first, 0, HAUL_BROADCAST_NEWER);
  assert_int_equal(source_publish(&source, 1, length, 2, 0), 0);
  assert_int_equal(receive_end(&first, &received), HAUL_ESTALE);
  assert_non_null(strstr(received.text, " follows "));
  whole(&first, length, 2); /* in place */
  broadcaster_end(&first);
  broadcaster_end(&source);
}

static void a_version_that_nobody_has_is_stale(void **state) {
  (void)state;
  struct received received;
  source_start(&slow_tcp);
  join(&first, &tcp, "first");
  assert_int_equal(source_publish(&source, 0, 16 * MIB, 1, 0), 0);
  assert_int_equal(receiver_next(&first, 0), 0);
  receive_begin(&first, 0, 0);
  usleep(300 * 1000); /* if it has not begun then, the text is the other one */
  assert_int_equal(broadcaster_withdraw(&source, 0), 0);
  assert_int_equal(receive_end(&first, &received), HAUL_ESTALE);
  assert_non_null(strstr(received.text, "neither the source nor a"));
  broadcaster_end(&first);
  broadcaster_end(&source);
}

static int cancel_call(void *user, uint64_t bytes) {
  (void)bytes;
  return ++*(int *)user;
}

/* Not once all chunks are checked. */
static void a_check_of_kept_chunks_is_cancelled(void **state) {
  (void)state;
  haul_node *nodes[2];
  haul_broadcast *broadcast, *member;
  haul_region *regions[2];
  struct haul_broadcast_version version;
  struct haul_broadcast_report report = HAUL_BROADCAST_REPORT_INIT;
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  struct haul_node_config config = patient_config();
  struct haul_place host = {HAUL_HOST, 0};
  char address[160];
  int calls = 0;
  for (int i = 0; i < 2; i++) {
    assert_works(haul_node_open(&config, &nodes[i]));
    assert_works(haul_region_alloc(nodes[i], host, MIB, 0, &regions[i]));
    memset(haul_region_address(regions[i]), 7, MIB);
  }
  assert_works(haul_node_listen(nodes[0], "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(nodes[0], 0, address, sizeof address));
  options.chunk = 4096;
  assert_works(haul_broadcast_open(nodes[0], "kept", &options, &broadcast));
  assert_works(haul_broadcast_publish(broadcast, regions[0], haul_deadline_in(20 * S), NULL));
  options.progress = cancel_call;
  options.user = &calls;
  assert_works(
      haul_broadcast_join(nodes[1], address, "kept", &options, haul_deadline_in(20 * S), &member));
  assert_works(haul_broadcast_next(member, 0, haul_deadline_in(20 * S), &version));
  assert_fails(HAUL_ECANCELED,
               haul_broadcast_receive(member, &version, regions[1], HAUL_BROADCAST_KEEP,
                                      haul_deadline_in(20 * S), &report));
  assert_int_equal(calls, 1);
  assert_int_equal(report.kept, 4096);
  haul_broadcast_close(member);
  haul_broadcast_close(broadcast);
  for (int i = 0; i < 2; i++) {
    haul_region_release(regions[i]);
    haul_node_close(nodes[i]);
  }
}

/* ---- Lists ---- */

static void the_source_lists_its_receivers(void **state) {
  (void)state;
  haul_node *nodes[3];
  haul_broadcast *broadcast, *members[2];
  haul_region *region, *target, *another;
  struct haul_broadcast_member list[4];
  struct haul_broadcast_version version;
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  struct haul_node_config config = patient_config();
  struct haul_place host = {HAUL_HOST, 0};
  size_t count = COUNT(list);
  char address[160];
  for (int i = 0; i < 3; i++) {
    assert_works(haul_node_open(&config, &nodes[i]));
    if (i < 2)
      assert_works(haul_node_listen(nodes[i], "tcp://127.0.0.1:0"));
  }
  assert_works(haul_node_address(nodes[0], 0, address, sizeof address));
  assert_works(haul_broadcast_open(nodes[0], "list", NULL, &broadcast));
  assert_fails(HAUL_EEXIST, haul_broadcast_open(nodes[0], "list", NULL, &members[0]));
  options.member = "one";
  assert_works(haul_broadcast_join(nodes[1], address, "list", &options, haul_deadline_in(20 * S),
                                   &members[0]));
  options.member = "two"; /* its node does not listen */
  assert_works(haul_broadcast_join(nodes[2], address, "list", &options, haul_deadline_in(20 * S),
                                   &members[1]));
  assert_works(haul_region_alloc(nodes[0], host, 100000, 0, &region));
  assert_works(haul_region_alloc(nodes[1], host, 100000, 0, &target));
  assert_works(haul_broadcast_publish(broadcast, region, haul_deadline_in(20 * S), NULL));
  assert_fails(HAUL_EBUSY,
               haul_broadcast_publish(broadcast, region, haul_deadline_in(20 * S), NULL));
  assert_works(haul_broadcast_next(members[0], 0, haul_deadline_in(20 * S), &version));
  assert_fails(HAUL_ERANGE, haul_broadcast_receive(members[0], &version, NULL, 0,
                                                   haul_deadline_in(20 * S), NULL));
  assert_works(
      haul_broadcast_receive(members[0], &version, target, 0, haul_deadline_in(20 * S), NULL));
  assert_fails(HAUL_ETIMEDOUT,
               haul_broadcast_next(members[0], version.number, HAUL_NO_WAIT, &version));
  assert_works(haul_broadcast_members(broadcast, list, &count));
  assert_int_equal(count, 2);
  assert_string_equal(list[0].name, "one");
  assert_int_equal(list[0].state, HAUL_BROADCAST_COMPLETE);
  assert_int_equal(list[0].bytes, 100000);
  assert_string_equal(list[0].feeder, "source");
  assert_string_equal(list[1].name, "two");
  assert_string_equal(list[1].address, "");
  assert_int_equal(list[1].state, HAUL_BROADCAST_WAITING);
  haul_broadcast_close(members[1]);
  count = COUNT(list);
  assert_works(haul_broadcast_members(broadcast, list, &count));
  assert_int_equal(count, 2);
  assert_string_equal(list[1].name, "two");
  assert_int_equal(list[1].state, HAUL_BROADCAST_LEFT);
  assert_works(haul_region_alloc(nodes[1], host, 100000, 0, &another));
  assert_fails(HAUL_EEXIST, haul_broadcast_receive(members[0], &version, another, 0,
                                                   haul_deadline_in(20 * S), NULL));
  haul_region_release(another);
  haul_broadcast_close(members[0]);
  haul_region_release(target);
  haul_broadcast_close(broadcast);
  haul_region_release(region);
  for (int i = 0; i < 3; i++)
    haul_node_close(nodes[i]);
}

static void wrong_arguments(void **state) {
  (void)state;
  haul_node *node;
  haul_broadcast *broadcast;
  struct haul_broadcast_version version;
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  uint64_t number;
  size_t count = 1;
  char address[160];
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, address, sizeof address));
  assert_fails(HAUL_EINVAL, haul_broadcast_open(NULL, "a", NULL, &broadcast));
  assert_fails(HAUL_EINVAL, haul_broadcast_open(node, "a b", NULL, &broadcast));
  assert_fails(HAUL_EINVAL, haul_broadcast_open(node, "", NULL, &broadcast));
  options.chunk = 5000;
  assert_fails(HAUL_EINVAL, haul_broadcast_open(node, "a", &options, &broadcast));
  options.chunk = 0;
  options.members = 65537;
  assert_fails(HAUL_EINVAL, haul_broadcast_open(node, "a", &options, &broadcast));
  assert_fails(HAUL_ENAME, haul_broadcast_join(node, address, "nothing", NULL,
                                               haul_deadline_in(20 * S), &broadcast));
  assert_works(haul_broadcast_open(node, "a", NULL, &broadcast));
  assert_fails(HAUL_EINVAL, haul_broadcast_next(broadcast, 0, HAUL_NO_WAIT, &version));
  assert_fails(HAUL_EINVAL, haul_broadcast_feeders(broadcast, NULL, &count));
  assert_works(haul_broadcast_publish(broadcast, NULL, haul_deadline_in(S), &number));
  assert_true(number > 0);
  haul_broadcast_close(broadcast);
  haul_broadcast_close(NULL);
  haul_node_close(node);
}

/* ---- The board ---- */

/* A source, and a peer of it that writes to its board. */
struct board_writer {
  haul_node *node, *other;
  haul_broadcast *broadcast;
  haul_peer *peer;
  haul_remote *board;
  char address[160];
};

static void writer_open_as(struct board_writer *writer, const struct haul_node_config *config,
                           const char *listen, unsigned members) {
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  options.members = members;
  options.chunk = 4096;
  assert_works(haul_node_open(config, &writer->node));
  assert_works(haul_node_listen(writer->node, listen));
  assert_works(haul_node_address(writer->node, 0, writer->address, sizeof writer->address));
  assert_works(haul_broadcast_open(writer->node, "x", &options, &writer->broadcast));
  assert_works(haul_node_open(config, &writer->other));
  assert_works(
      haul_peer_connect(writer->other, writer->address, haul_deadline_in(20 * S), &writer->peer));
  assert_works(
      haul_peer_lookup(writer->peer, "x.members", haul_deadline_in(20 * S), &writer->board));
}

static void writer_open(struct board_writer *writer, const char *listen, unsigned members) {
  struct haul_node_config config = patient_config();
  writer_open_as(writer, &config, listen, members);
}

static void writer_close(struct board_writer *writer) {
  haul_remote_release(writer->board);
  haul_peer_close(writer->peer);
  haul_node_close(writer->other);
  haul_broadcast_close(writer->broadcast);
  haul_node_close(writer->node);
}

/* Writes the cards from place 0 on. */
static void write_cards(struct board_writer *writer, const struct card *cards, uint64_t count) {
  struct haul_place host = {HAUL_HOST, 0};
  struct board board = {.generation = 1, .used = count};
  size_t counts = sizeof board - offsetof(struct board, generation);
  haul_region *region;
  assert_works(haul_region_alloc(writer->other, host, sizeof board + count * sizeof *cards,
                                 HAUL_REGION_PRIVATE, &region));
  char *bytes = haul_region_address(region);
  memcpy(bytes, &board, sizeof board);
  memcpy(bytes + sizeof board, cards, count * sizeof *cards);
  struct haul_piece piece = {offsetof(struct board, generation), offsetof(struct board, generation),
                             counts + count * sizeof *cards};
  assert_works(haul_write(writer->board, region, &piece, 1, NULL, NULL));
  haul_region_release(region);
}

/* The board names no change. */
static void write_card(struct board_writer *writer, uint64_t place, const struct card *card) {
  struct haul_place host = {HAUL_HOST, 0};
  struct haul_piece piece = {0, card_offset(place), sizeof *card};
  haul_region *region;
  assert_works(haul_region_alloc(writer->other, host, sizeof *card, HAUL_REGION_PRIVATE, &region));
  memcpy(haul_region_address(region), card, sizeof *card);
  assert_works(haul_write(writer->board, region, &piece, 1, NULL, NULL));
  haul_region_release(region);
}

static struct card card_of(uint64_t owner, uint64_t host) {
  struct card card = {.owner = owner, .host = host, .name = "name", .address = "tcp://h:1"};
  card.hash = card_hash(&card);
  return card;
}

/* Their port accepts connections and says nothing: a second each, if all were tried, which the
 * deadline does not allow. */
static void members_that_hang_stall_no_one(void **state) {
  (void)state;
  struct board_writer writer;
  struct card cards[40];
  struct haul_node_config config = patient_config();
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof at;
  struct haul_place host = {HAUL_HOST, 0};
  struct haul_broadcast_version version;
  haul_node *node;
  haul_broadcast *member;
  haul_region *region, *target;
  int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(silent >= 0);
  assert_int_equal(bind(silent, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(silent, 64), 0);
  assert_int_equal(getsockname(silent, (struct sockaddr *)&at, &length), 0);
  for (size_t i = 0; i < COUNT(cards); i++) {
    cards[i] = card_of(i + 1, host_number());
    snprintf(cards[i].address, sizeof cards[i].address, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    cards[i].hash = card_hash(&cards[i]);
  }
  writer_open(&writer, "tcp://127.0.0.1:0", 64);
  write_cards(&writer, cards, COUNT(cards));
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(
      haul_broadcast_join(node, writer.address, "x", NULL, haul_deadline_in(20 * S), &member));
  assert_works(haul_region_alloc(writer.node, host, MIB, 0, &region));
  assert_works(haul_region_alloc(node, host, MIB, 0, &target));
  assert_works(haul_broadcast_publish(writer.broadcast, region, haul_deadline_in(20 * S), NULL));
  assert_works(haul_broadcast_next(member, 0, haul_deadline_in(20 * S), &version));
  assert_works(haul_broadcast_receive(member, &version, target, 0, haul_deadline_in(20 * S), NULL));
  haul_broadcast_close(member);
  haul_region_release(target);
  haul_node_close(node);
  assert_works(haul_broadcast_withdraw(writer.broadcast, 0));
  haul_region_release(region);
  writer_close(&writer);
  close(silent);
}

/* Members that were killed after they took a place and before they wrote their card. */
static void places_without_a_card_are_taken(void **state) {
  (void)state;
  struct board_writer writer;
  struct haul_node_config config = patient_config();
  struct haul_broadcast_member list[4];
  struct card cards[2] = {{.owner = 1}, {.owner = 2}};
  size_t count = COUNT(list);
  haul_node *node;
  haul_broadcast *member;
  writer_open(&writer, "tcp://127.0.0.1:0", COUNT(cards));
  write_cards(&writer, cards, COUNT(cards));
  assert_works(haul_node_open(&config, &node));
  assert_works(
      haul_broadcast_join(node, writer.address, "x", NULL, haul_deadline_in(20 * S), &member));
  assert_works(haul_broadcast_members(writer.broadcast, list, &count));
  assert_int_equal(count, 1);
  haul_broadcast_close(member);
  haul_node_close(node);
  writer_close(&writer);
}

/* The new source's board has as many changes as the old one, by another member, and more places. */
static void a_restarted_source_is_entered_again(void **state) {
  (void)state;
  struct board_writer writer;
  struct haul_node_config config = patient_config();
  struct haul_broadcast_member list[4];
  struct haul_broadcast_version version;
  struct card other = card_of(99, 7);
  size_t count = COUNT(list);
  haul_node *node;
  haul_broadcast *member;
  char address[160];
  writer_open(&writer, "tcp://127.0.0.1:0", 2);
  memcpy(address, writer.address, sizeof address);
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_broadcast_join(node, address, "x", NULL, haul_deadline_in(20 * S), &member));
  writer_close(&writer);
  writer_open(&writer, address, 8);
  write_cards(&writer, &other, 1);
  assert_works(haul_broadcast_publish(writer.broadcast, NULL, haul_deadline_in(20 * S), NULL));
  assert_works(haul_broadcast_next(member, 0, haul_deadline_in(20 * S), &version));
  assert_works(haul_broadcast_members(writer.broadcast, list, &count));
  assert_int_equal(count, 2);
  assert_string_equal(list[1].name, "name");
  assert_int_equal(list[0].state, HAUL_BROADCAST_WAITING);
  haul_broadcast_close(member);
  haul_node_close(node);
  writer_close(&writer);
}

/* Killed and started again on another port: its old card goes. A member of the same
 * name on another host stays, and one that lives enters again. */
static void a_restarted_member_replaces_its_card(void **state) {
  (void)state;
  struct board_writer writer;
  struct haul_node_config config = patient_config();
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  struct haul_broadcast_member list[4];
  struct haul_broadcast_version version;
  struct card cards[2] = {card_of(1, host_number()), card_of(2, host_number() + 1)};
  size_t count = COUNT(list);
  haul_node *nodes[2];
  haul_broadcast *members[2];
  options.member = "name";
  writer_open(&writer, "tcp://127.0.0.1:0", 8);
  write_cards(&writer, cards, COUNT(cards));
  for (int i = 0; i < 2; i++) {
    assert_works(haul_node_open(&config, &nodes[i]));
    assert_works(haul_node_listen(nodes[i], "tcp://127.0.0.1:0"));
    assert_works(haul_broadcast_join(nodes[i], writer.address, "x", &options,
                                     haul_deadline_in(20 * S), &members[i]));
    assert_works(haul_broadcast_members(writer.broadcast, list, &count));
    assert_int_equal(count, 2);
    count = COUNT(list);
  }
  assert_works(haul_broadcast_publish(writer.broadcast, NULL, haul_deadline_in(20 * S), NULL));
  for (int i = 0; i < 200 && count != 3; i++) {
    assert_fails(HAUL_ETIMEDOUT,
                 haul_broadcast_next(members[0], UINT64_MAX, haul_deadline_in(S / 10), &version));
    count = COUNT(list);
    assert_works(haul_broadcast_members(writer.broadcast, list, &count));
  }
  assert_int_equal(count, 3);
  for (int i = 0; i < 2; i++) {
    haul_broadcast_close(members[i]);
    haul_node_close(nodes[i]);
  }
  writer_close(&writer);
}

/* Another member took a dead card off the board, and was killed before it said so. */
static void a_card_that_went_silently_leaves_the_list(void **state) {
  (void)state;
  struct board_writer writer;
  struct haul_node_config config = patient_config();
  struct haul_broadcast_version version;
  struct card card = card_of(1, 7), none = {0};
  haul_node *node;
  haul_broadcast *member;
  writer_open(&writer, "tcp://127.0.0.1:0", 8);
  write_cards(&writer, &card, 1);
  assert_works(haul_node_open(&config, &node));
  assert_works(
      haul_broadcast_join(node, writer.address, "x", NULL, haul_deadline_in(20 * S), &member));
  assert_int_equal(member->join->order_count, 2);
  write_card(&writer, 0, &none);
  join_remove(member->join, &card, haul_deadline_in(20 * S));
  for (int i = 0; i < 200 && member->join->order_count != 1; i++)
    assert_fails(HAUL_ETIMEDOUT,
                 haul_broadcast_next(member, 0, haul_deadline_in(S / 10), &version));
  assert_int_equal(member->join->order_count, 1);
  haul_broadcast_close(member);
  haul_node_close(node);
  writer_close(&writer);
}

/* And not that the time is over. */
static void an_ended_source_is_named_as_the_cause(void **state) {
  (void)state;
  struct board_writer writer;
  struct haul_node_config config = patient_config();
  struct haul_broadcast_version version;
  haul_node *node;
  haul_broadcast *member;
  writer_open(&writer, "tcp://127.0.0.1:0", 8);
  assert_works(haul_node_open(&config, &node));
  assert_works(
      haul_broadcast_join(node, writer.address, "x", NULL, haul_deadline_in(20 * S), &member));
  writer_close(&writer);
  assert_fails(HAUL_ECONNECT, haul_broadcast_next(member, 0, haul_deadline_in(2 * S), &version));
  haul_broadcast_close(member);
  haul_node_close(node);
}

/* ---- Hostile sources and members ---- */

static haul_region *show_bytes(haul_node *node, const char *name, const void *bytes, size_t length,
                               unsigned rights) {
  struct haul_place host = {HAUL_HOST, 0};
  haul_region *region;
  assert_works(haul_region_alloc(node, host, length, 0, &region));
  memcpy(haul_region_address(region), bytes, length);
  assert_works(haul_region_publish(region, name, rights));
  return region;
}

/* Joins a source that has these as its head and its board. */
static int join_hostile(const struct head *head, const struct board *board) {
  haul_node *nodes[2];
  haul_broadcast *broadcast;
  char address[160];
  struct haul_node_config config = patient_config();
  assert_works(haul_node_open(&config, &nodes[0]));
  assert_works(haul_node_open(&config, &nodes[1]));
  assert_works(haul_node_listen(nodes[0], "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(nodes[0], 0, address, sizeof address));
  haul_region *regions[2] = {
      show_bytes(nodes[0], "x.head", head, sizeof *head, HAUL_READ),
      show_bytes(nodes[0], "x.members", board, sizeof *board, HAUL_READ | HAUL_WRITE)};
  int code =
      haul_broadcast_join(nodes[1], address, "x", NULL, haul_deadline_in(20 * S), &broadcast);
  haul_region_release(regions[0]);
  haul_region_release(regions[1]);
  haul_node_close(nodes[1]);
  haul_node_close(nodes[0]);
  return code;
}

static void hostile_sources_are_refused(void **state) {
  (void)state;
  struct board board = {.magic = BOARD_MAGIC, .capacity = 1000, .used = UINT64_MAX};
  struct head head = {.magic = HEAD_MAGIC, .version = 1, .length = UINT64_MAX, .chunk = 4096};
  head.hash = head_hash(&head);
  assert_int_equal(join_hostile(&head, &board), HAUL_EPROTO); /* too many chunks */
  head.chunk = 0;
  head.hash = head_hash(&head);
  assert_int_equal(join_hostile(&head, &board), HAUL_EPROTO);
  head.length = head.chunk = 4096;
  assert_int_equal(join_hostile(&head, &board), HAUL_EPROTO); /* the hash */
  head.hash = head_hash(&head);
  assert_int_equal(join_hostile(&head, &board), HAUL_EPROTO); /* the board is too short */
  board.capacity = UINT64_MAX;
  assert_int_equal(join_hostile(&head, &board), HAUL_EPROTO);
}

/* A member before the receiver in the chain that has 16 of 1024 chunks and gains none. */
struct idle_member {
  struct board_writer source;
  haul_region *data, *have, *original;
  bool falls; /* its bits are cleared and set again by turns */
  unsigned calls;
};

#define IDLE_BITS UINT64_C(0xffff)

static int change_bits(void *user, uint64_t bytes) {
  (void)bytes;
  struct idle_member *member = user;
  struct have *have = haul_region_address(member->have);
  if (member->falls)
    __atomic_store_n((uint64_t *)(have + 1), ++member->calls % 2 ? 0 : IDLE_BITS, __ATOMIC_RELEASE);
  return 0;
}

static void idle_member_open(struct idle_member *member) {
  struct haul_node_config config = patient_config();
  struct haul_place host = {HAUL_HOST, 0};
  struct card card = card_of(1, host_number());
  struct board_writer *writer = &member->source;
  uint64_t version, bits[1024 / 64] = {IDLE_BITS};
  struct have have = {.magic = HAVE_MAGIC};
  char bytes[sizeof have + sizeof bits], name[64];
  config.paths = "tcp";
  config.tcp_rate = 4 * MIB;
  writer_open_as(writer, &config, "tcp://127.0.0.1:0", 8);
  assert_works(haul_node_listen(writer->other, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(writer->other, 0, card.address, sizeof card.address));
  card.hash = card_hash(&card);
  write_cards(writer, &card, 1);
  assert_works(haul_region_alloc(writer->node, host, 4 * MIB, 0, &member->original));
  memset(haul_region_address(member->original), 7, 4 * MIB);
  assert_works(haul_broadcast_publish(writer->broadcast, member->original, haul_deadline_in(20 * S),
                                      &version));
  have.version = version;
  memcpy(bytes, &have, sizeof have);
  memcpy(bytes + sizeof have, bits, sizeof bits);
  snprintf(name, sizeof name, "x.%" PRIu64 ".have", version);
  member->have = show_bytes(writer->other, name, bytes, sizeof bytes, HAUL_READ);
  snprintf(name, sizeof name, "x.%" PRIu64 ".data", version);
  member->data =
      show_bytes(writer->other, name, haul_region_address(member->original), 4 * MIB, HAUL_READ);
}

/* Receives all. `idle` is then the report on that member. */
static void receive_behind(struct idle_member *member, struct haul_broadcast_feeder *idle) {
  struct haul_node_config config = patient_config();
  struct haul_place host = {HAUL_HOST, 0};
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  struct haul_broadcast_version version;
  struct haul_broadcast_feeder feeders[2];
  size_t count = COUNT(feeders);
  haul_node *node;
  haul_broadcast *broadcast;
  haul_region *target;
  config.paths = "tcp";
  options.progress = change_bits;
  options.user = member;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_broadcast_join(node, member->source.address, "x", &options,
                                   haul_deadline_in(20 * S), &broadcast));
  assert_works(haul_region_alloc(node, host, 4 * MIB, 0, &target));
  assert_works(haul_broadcast_next(broadcast, 0, haul_deadline_in(20 * S), &version));
  assert_works(
      haul_broadcast_receive(broadcast, &version, target, 0, haul_deadline_in(30 * S), NULL));
  assert_memory_equal(haul_region_address(target), haul_region_address(member->original), 4 * MIB);
  assert_works(haul_broadcast_feeders(broadcast, feeders, &count));
  assert_int_equal(count, 2);
  *idle = feeders[feeders[0].source ? 1 : 0];
  haul_broadcast_close(broadcast);
  haul_region_release(target);
  haul_node_close(node);
}

static void idle_member_close(struct idle_member *member) {
  assert_works(haul_broadcast_withdraw(member->source.broadcast, 0));
  haul_region_release(member->original);
  haul_region_release(member->have);
  haul_region_release(member->data);
  writer_close(&member->source);
}

static void a_member_that_loses_chunks_is_passed_over(void **state) {
  (void)state;
  struct idle_member member = {.falls = true};
  struct haul_broadcast_feeder idle;
  idle_member_open(&member);
  receive_behind(&member, &idle);
  assert_string_equal(idle.reason, haul_error_text(HAUL_EPROTO));
  idle_member_close(&member);
}

/* Its node responds. It is waited for once, and not again after each block. */
static void a_member_that_stops_is_waited_for_once(void **state) {
  (void)state;
  struct idle_member member = {.falls = false};
  struct haul_broadcast_feeder idle;
  idle_member_open(&member);
  receive_behind(&member, &idle);
  assert_string_equal(idle.reason, "no progress for 3.0 s");
  idle_member_close(&member);
}

static void cards_are_checked_and_ordered(void **state) {
  (void)state;
  uint32_t order[6];
  struct card cards[6] = {card_of(1, 10), card_of(2, 20), card_of(3, 10),
                          card_of(4, 30), card_of(5, 30), card_of(6, 20)};
  memset(cards[4].name, 'x', sizeof cards[4].name); /* without an end */
  cards[4].hash = card_hash(&cards[4]);
  cards[3].address[0] = '\n'; /* a wrong hash, and not printable */
  assert_false(card_is_valid(&cards[3]));
  assert_false(card_is_valid(&cards[4]));
  assert_int_equal(chain_order(cards, 6, 20, order), 4);
  static const uint32_t expected[] = {1, 5, 0, 2}; /* the source's host first */
  assert_memory_equal(order, expected, sizeof expected);
}

int main(int count, char **arguments) {
#ifdef __SANITIZE_THREAD__
  printf("skipped all: members read chunks that may change, and verify them; the thread sanitizer "
         "reports that\n");
  return 77;
#endif
  if (count > 1 && strcmp(arguments[1], BROADCASTER_MODE) == 0)
    return broadcaster_main();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_length_arrives),
      cmocka_unit_test(all_at_once),
      cmocka_unit_test(device_memory),
      cmocka_unit_test(wrong_bytes_are_read_again),
      cmocka_unit_test(a_member_that_died_is_passed_over),
      cmocka_unit_test(a_member_dies_meanwhile),
      cmocka_unit_test(a_member_that_hangs_is_passed_over),
      cmocka_unit_test(a_slow_member_is_passed_over),
      cmocka_unit_test(a_member_comes_back),
      cmocka_unit_test(a_member_that_is_ahead_waits),
      cmocka_unit_test(members_go_on_without_the_source),
      cmocka_unit_test(right_chunks_are_kept),
      cmocka_unit_test(versions_never_mix),
      cmocka_unit_test(a_newer_version_ends_the_older),
      cmocka_unit_test(a_version_that_nobody_has_is_stale),
      cmocka_unit_test(a_check_of_kept_chunks_is_cancelled),
      cmocka_unit_test(the_source_lists_its_receivers),
      cmocka_unit_test(wrong_arguments),
      cmocka_unit_test(members_that_hang_stall_no_one),
      cmocka_unit_test(places_without_a_card_are_taken),
      cmocka_unit_test(a_restarted_source_is_entered_again),
      cmocka_unit_test(a_restarted_member_replaces_its_card),
      cmocka_unit_test(a_card_that_went_silently_leaves_the_list),
      cmocka_unit_test(an_ended_source_is_named_as_the_cause),
      cmocka_unit_test(hostile_sources_are_refused),
      cmocka_unit_test(a_member_that_loses_chunks_is_passed_over),
      cmocka_unit_test(a_member_that_stops_is_waited_for_once),
      cmocka_unit_test(cards_are_checked_and_ordered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
