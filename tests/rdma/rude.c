/* SPDX-License-Identifier: MIT
 * What a foreign peer can say on the rdma channel and over a rail: out of order, twice, too much,
 * or never. As the one who asks it meets an owner in another process, which drops it or refuses,
 * and serves others meanwhile; as the owner it answers a node of this process, whose transfers end
 * by their deadlines. */
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fabric/rdma/rdma.h"
#include "support/names.h"
#include "support/nic.h"
#include "support/raw.h"
#include "support/raw_rail.h"
#include "support/serving.h"

#define BOUND  (20 * S)
#define SOON   (3 * S) /* before the owner would be dropped for its silence */
#define LENGTH 65536u
#define HANDLE 0x1234500003u

static struct raw_rail rail; /* of the one peer that has one */

/* ---- Records ---- */

static void say(int channel, const struct rdma_record *record) {
  uint8_t bytes[RDMA_RECORD];
  rdma_pack(record, bytes);
  raw_send(channel, bytes, sizeof bytes);
}

static void say_plain(int channel, enum rdma_record_type type, uint32_t request, uint64_t handle) {
  say(channel, &(struct rdma_record){.type = (uint16_t)type, .request = request, .handle = handle});
}

/* The next one of the type; others are skipped. */
static struct rdma_record hear(int channel, enum rdma_record_type type) {
  uint8_t bytes[RDMA_RECORD];
  struct rdma_record record = {.type = 0};
  while (record.type != type) {
    assert_true(raw_receive(channel, bytes, sizeof bytes));
    assert_int_equal(rdma_parse(bytes, &record), 0);
  }
  return record;
}

static struct rdma_record greeting(void) {
  return (struct rdma_record){.type = RDMA_HELLO,
                              .rails = 1,
                              .ends = {{.nic = "raw",
                                        .ethernet = 1,
                                        .mtu = 3,
                                        .reads = 1,
                                        .receives = 1,
                                        .gid = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1},
                                        .queue_pair = 77}}};
}

/* ---- Asking ---- */

struct asker {
  int control, channel;
  uint64_t host, sim;
  struct rdma_record owner; /* its greeting */
};

static struct asker open_asker(void) {
  struct welcome welcome;
  struct asker asker;
  asker.control = raw_peer(serving.owner.address, &welcome);
  asker.channel = raw_channel(serving.owner.address, &welcome, "rdma", 0);
  assert_true(asker.channel >= 0);
  assert_int_equal(raw_lookup(asker.control, "host", &asker.host), 0);
  assert_int_equal(raw_lookup(asker.control, "sim", &asker.sim), 0);
  asker.owner = hear(asker.channel, RDMA_HELLO);
  return asker;
}

static void greet(const struct asker *asker, const struct rdma_record *hello) {
  say(asker->channel, hello);
  say_plain(asker->channel, RDMA_READY, 0, 0);
  hear(asker->channel, RDMA_READY);
}

static struct asker open_ready_asker(void) {
  struct asker asker = open_asker();
  struct rdma_record hello = greeting();
  greet(&asker, &hello);
  return asker;
}

/* With a rail that works, and so many receives of its own; `timer`: when to send again where there
 * is none. */
static struct asker open_railed_asker_with(unsigned receives, uint8_t timer) {
  struct asker asker = open_asker();
  struct rdma_record hello = greeting();
  raw_rail_open(&rail, receives);
  rail.not_ready_timer = timer;
  raw_rail_connect(&rail, &asker.owner.ends[0]);
  hello.ends[0] = raw_rail_end(&rail);
  greet(&asker, &hello);
  return asker;
}

static struct asker open_railed_asker(unsigned receives) {
  return open_railed_asker_with(receives, 1);
}

static void close_asker(struct asker *asker) {
  close(asker->channel);
  close(asker->control);
  if (rail.verbs)
    raw_rail_close(&rail);
  assert_unharmed();
}

/* Before it would be for its silence. */
static void assert_dropped(struct asker *asker) {
  assert_true(raw_ended(asker->control, SERVING_LIVENESS * 3 / 4));
  close_asker(asker);
}

static struct rdma_record attach(const struct asker *asker, uint64_t handle) {
  say_plain(asker->channel, RDMA_ATTACH, 1, handle);
  return hear(asker->channel, RDMA_ATTACHED);
}

/* About as many bytes as one may be about. */
static struct rdma_record long_question(enum rdma_record_type type, uint64_t handle) {
  return (struct rdma_record){.type = (uint16_t)type,
                              .request = 2,
                              .handle = handle,
                              .span_count = 1,
                              .spans = {{0, WORK_BYTES_MAX}}};
}

static void what_is_not_allowed_now_ends_the_peer(void **state) {
  (void)state;
  static const struct rdma_record wrong[] = {
      {.type = RDMA_READY},
      {.type = RDMA_DETACH, .handle = HANDLE},
      {.type = RDMA_QUIET, .handle = HANDLE},
      {.type = RDMA_FENCED + 1},
      /* These go over a rail. */
      {.type = RDMA_FENCED},
      {.type = RDMA_DONE},
      {.type = RDMA_SUM, .span_count = 1, .spans = {{0, 1}}},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct asker asker = open_ready_asker();
    say(asker.channel, &wrong[i]);
    assert_dropped(&asker);
  }
  struct asker early = open_asker();
  say_plain(early.channel, RDMA_ATTACH, 1, early.host);
  assert_dropped(&early);
}

static void what_is_not_allowed_over_a_rail_ends_the_peer(void **state) {
  (void)state;
  static const struct rdma_record wrong[] = {
      {.type = RDMA_FENCED},
      {.type = RDMA_FENCED, .rails = 3},
      {.type = RDMA_DONE, .status = HAUL_EPATH},
      {.type = RDMA_SUM, .span_count = 1},
      {.type = RDMA_SUM, .span_count = 0},
      {.type = RDMA_FENCED + 1},
      /* These go on the channel. */
      {.type = RDMA_HELLO},
      {.type = RDMA_ATTACH, .handle = HANDLE},
      {.type = RDMA_BROKEN},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct asker asker = open_railed_asker(4);
    assert_true(raw_rail_say(&rail, &wrong[i]));
    assert_dropped(&asker);
  }
  for (size_t length = 0; length <= RDMA_RECORD; length += RDMA_RECORD / 2) {
    static const char nonsense[RDMA_RECORD] = "nonsense";
    struct asker asker = open_railed_asker(4);
    assert_true(raw_rail_send(&rail, nonsense, length));
    assert_dropped(&asker);
  }
}

/* What is longer than a record has no room there: both rails are in error, and the peer stays. */
static void a_send_that_is_too_long_ends_the_path_alone(void **state) {
  (void)state;
  static const char much[RDMA_RECORD + 1] = "much";
  struct asker asker = open_railed_asker(4);
  assert_false(raw_rail_send(&rail, much, sizeof much));
  hear(asker.channel, RDMA_BROKEN);
  assert_serves();
  close_asker(&asker);
}

/* The owner does not wait for it. */
static void who_has_no_receive_for_answers_loses_the_path_alone(void **state) {
  (void)state;
  struct asker asker = open_railed_asker(0);
  struct rdma_record question = {.type = RDMA_FENCE, .request = 2, .handle = HANDLE};
  assert_true(raw_rail_say(&rail, &question));
  hear(asker.channel, RDMA_BROKEN);
  assert_serves();
  close_asker(&asker);
}

/* More than an honest one has without an answer, and of the slowest kind. */
static void who_asks_without_end_is_served_in_turn(void **state) {
  (void)state;
  struct asker asker = open_railed_asker(RAIL_DEPTH);
  struct rdma_record question = long_question(RDMA_SUM, asker.host);
  assert_int_equal(attach(&asker, asker.host).status, 0);
  for (unsigned i = 0; i < (SANITIZED ? 64 : 640); i++) {
    assert_true(raw_rail_say(&rail, &question));
    rail.count = 0; /* nobody listens */
    if (i % 64 == 63)
      assert_serves();
  }
  close_asker(&asker);
}

/* The answers find room as those before them arrive. */
static void writes_with_immediate_are_all_answered(void **state) {
  enum { WRITES = 2 * RDMA_FENCES + 2 * RDMA_ASKED };
  const uint8_t soon = 27; /* the specification's code for 123 ms */
  (void)state;
  struct asker asker = open_railed_asker_with(0, soon);
  for (uint32_t i = 0; i < WRITES; i++)
    raw_rail_tell(&rail, i);
  nanosleep(&(struct timespec){0, 60 * MS}, NULL);
  assert_true(raw_control(asker.control, CONTROL_PING, 0, NULL, 0));
  raw_rail_receive(&rail, RAIL_DEPTH);
  for (uint32_t i = 0; i < WRITES; i++) {
    struct rdma_record answer = raw_rail_hear(&rail, RDMA_FENCED);
    assert_int_equal(answer.request, i);
    assert_int_equal(answer.status, HAUL_ESTALE);
  }
  assert_serves();
  close_asker(&asker);
}

static void a_second_greeting_ends_the_peer(void **state) {
  (void)state;
  struct asker asker = open_ready_asker();
  struct rdma_record hello = greeting();
  say(asker.channel, &hello);
  assert_dropped(&asker);
}

static void a_greeting_with_unknown_atomics_ends_the_peer(void **state) {
  (void)state;
  struct asker asker = open_asker();
  struct rdma_record hello = greeting();
  hello.ends[0].atomics = 3;
  say(asker.channel, &hello);
  assert_dropped(&asker);
}

static void a_second_detach_ends_the_peer(void **state) {
  (void)state;
  struct asker asker = open_ready_asker();
  assert_int_equal(attach(&asker, asker.host).status, 0);
  say_plain(asker.channel, RDMA_DETACH, 0, asker.host);
  say_plain(asker.channel, RDMA_DETACH, 0, asker.host);
  assert_dropped(&asker);
}

/* Its queue pairs are gone by then. */
static void a_greeting_behind_the_end_of_the_rails_connects_nothing(void **state) {
  (void)state;
  struct asker asker = open_asker();
  struct rdma_record hello = greeting();
  say_plain(asker.channel, RDMA_BROKEN, 0, 0);
  say(asker.channel, &hello);
  hear(asker.channel, RDMA_SILENT);
  assert_unharmed();
  close_asker(&asker);
}

/* What they are copied through ends with the channel, and the peer stays. */
static void copies_that_were_asked_for_end_with_the_rails(void **state) {
  (void)state;
  struct asker asker = open_railed_asker(64);
  struct rdma_record question = long_question(RDMA_LIFT, asker.sim);
  assert_int_equal(attach(&asker, asker.sim).status, 0);
  for (unsigned i = 0; i < 64; i++)
    assert_true(raw_rail_say(&rail, &question));
  say_plain(asker.channel, RDMA_BROKEN, 0, 0);
  close(asker.channel);
  asker.channel = -1;
  nanosleep(&(struct timespec){0, 20 * MS}, NULL);
  assert_serves();
  close(asker.control);
  raw_rail_close(&rail);
  assert_unharmed();
}

/* Thousands of sums: all are answered, and others are served meanwhile. */
static void sums_leave_time_for_others(void **state) {
  (void)state;
  struct asker asker = open_railed_asker(RDMA_ASKED);
  struct rdma_record question = long_question(RDMA_SUM, asker.host);
  assert_int_equal(attach(&asker, asker.host).status, 0);
  for (unsigned i = 0; i < (SANITIZED ? 4 : 32); i++) {
    for (unsigned j = 0; j < RDMA_ASKED; j++)
      assert_true(raw_rail_say(&rail, &question));
    assert_serves();
    for (unsigned j = 0; j < RDMA_ASKED; j++)
      assert_int_equal(raw_rail_hear(&rail, RDMA_DONE).status, HAUL_ECHECKSUM);
  }
  close_asker(&asker);
}

/* Or it could ask for all values of a byte. */
static void sums_are_for_those_who_may_read(void **state) {
  (void)state;
  uint64_t handle;
  struct asker asker = open_railed_asker(1);
  assert_int_equal(owner_publish(&serving.owner, 8, KIND_WRAPPED, LENGTH, "writable", HAUL_WRITE),
                   0);
  assert_int_equal(raw_lookup(asker.control, "writable", &handle), 0);
  assert_int_equal(attach(&asker, handle).status, 0);
  assert_true(raw_rail_say(
      &rail,
      &(struct rdma_record){
          .type = RDMA_SUM, .request = 2, .handle = handle, .span_count = 1, .spans = {{0, 1}}}));
  assert_int_equal(raw_rail_hear(&rail, RDMA_DONE).status, HAUL_EACCESS);
  assert_int_equal(owner_release(&serving.owner, 8), 0); /* it does not wait for QUIET for ever */
  close_asker(&asker);
}

/* An honest one takes another path. */
static void a_write_that_cannot_be_compared_is_not_made(void **state) {
  (void)state;
  struct haul_remote *remote;
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  assert_int_equal(owner_publish(&serving.owner, 8, KIND_HOST, LENGTH, "writable", HAUL_WRITE), 0);
  assert_works(haul_peer_lookup(serving.peer, "writable", haul_deadline_in(BOUND), &remote));
  assert_works(haul_write(remote, serving.region, &piece, 1, &options, NULL));
  options.flags = HAUL_CHECKSUM;
  assert_fails(HAUL_ENOPATH, haul_write(remote, serving.region, &piece, 1, &options, NULL));
  options.only = "tcp";
  assert_works(haul_write(remote, serving.region, &piece, 1, &options, NULL));
  haul_remote_release(remote);
}

/* More peers than threads that register for them, and each asks again and again. Nor are there
 * slots for all of them: who finds none to be lent is told so. */
static void all_who_ask_have_their_turn(void **state) {
  (void)state;
  enum { ASKERS = 24, QUESTIONS = 32 };
  struct asker askers[ASKERS];
  unsigned lent = 0;
  for (unsigned i = 0; i < ASKERS; i++)
    askers[i] = open_ready_asker();
  for (unsigned j = 0; j < QUESTIONS; j++)
    for (unsigned i = 0; i < ASKERS; i++)
      say_plain(askers[i].channel, RDMA_ATTACH, j, j % 2 ? askers[i].host : askers[i].sim);
  for (unsigned i = 0; i < ASKERS; i++)
    for (unsigned j = 0; j < QUESTIONS; j++) {
      struct rdma_record answer = hear(askers[i].channel, RDMA_ATTACHED);
      assert_true(answer.status == 0 || (j % 2 == 0 && answer.status == HAUL_ELIMIT));
      assert_int_equal(answer.request, j);
      lent += j % 2 == 0 && answer.status == 0;
    }
  assert_true(lent >= QUESTIONS / 2); /* to one of them at least */
  for (unsigned i = 0; i < ASKERS; i++) {
    close(askers[i].channel);
    close(askers[i].control);
  }
  assert_unharmed();
}

/* ---- Answering ---- */

static struct {
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *region, *target;
  struct ibv_mr *registration;
  int listener, control, channel, tcp, express;
} at;

static void *connect_node(void *argument) {
  (void)argument;
  assert_works(haul_peer_connect(at.node, own_socket(), haul_deadline_in(BOUND), &at.peer));
  assert_works(haul_peer_lookup(at.peer, "region", haul_deadline_in(BOUND), &at.remote));
  return NULL;
}

static int take_connection(const char *transport) {
  struct hello hello;
  int fd = raw_accept(at.listener);
  assert_true(fd >= 0 && raw_welcome(fd, false, &hello));
  assert_string_equal(hello.transport, transport);
  return fd;
}

static struct rdma_record attached(unsigned flags, uint32_t request) {
  at.registration = raw_rail_register(&rail, haul_region_address(at.target), LENGTH);
  return (struct rdma_record){.type = RDMA_ATTACHED,
                              .request = request,
                              .handle = HANDLE,
                              .address = (uintptr_t)at.registration->addr,
                              .length = LENGTH,
                              .rails = 1,
                              .flags = (uint8_t)flags,
                              .slots = flags & RDMA_STAGED ? RDMA_STAGES : 0,
                              .number = 1,
                              .keys = {at.registration->rkey}};
}

/* A node that is connected to this owner, whose rail has that many receives. */
static void serve_node_with(unsigned flags, uint8_t receives, unsigned posted, uint8_t timer) {
  pthread_t thread;
  at.listener = raw_listen(own_socket());
  assert_works(haul_node_open(NULL, &at.node));
  at.region = region_make(at.node, KIND_HOST, LENGTH);
  at.target = region_make(at.node, KIND_HOST, LENGTH);
  pthread_create(&thread, NULL, connect_node, NULL);
  at.control = take_connection("");
  at.channel = take_connection("rdma");
  struct rdma_record hello = hear(at.channel, RDMA_HELLO);
  raw_rail_open(&rail, posted);
  rail.not_ready_timer = timer;
  raw_rail_connect(&rail, &hello.ends[0]);
  hello.rails = 1;
  hello.ends[0] = raw_rail_end(&rail);
  hello.ends[0].receives = receives;
  say(at.channel, &hello);
  say_plain(at.channel, RDMA_READY, 0, 0);
  at.tcp = take_connection("tcp");
  at.express = take_connection("tcp");
  raw_found(at.control, HANDLE, LENGTH);
  struct rdma_record answer = attached(flags, hear(at.channel, RDMA_ATTACH).request);
  say(at.channel, &answer);
  pthread_join(thread, NULL);
}

static void serve_node(unsigned flags, uint8_t receives) {
  serve_node_with(flags, receives, RAIL_DEPTH, 1);
}

static int end_node(void **state) {
  (void)state;
  haul_remote_release(at.remote);
  assert_int_equal(rail.verbs->dereg_mr(at.registration), 0);
  haul_region_release(at.region);
  haul_region_release(at.target);
  haul_peer_close(at.peer);
  haul_node_close(at.node);
  close(at.tcp);
  close(at.express);
  raw_rail_close(&rail);
  close(at.channel);
  close(at.control);
  close(at.listener);
  nic_check_empty();
  return 0;
}

static struct haul_transfer *start(enum haul_operation operation, int64_t within_ns) {
  struct haul_transfer *transfer;
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  options.deadline = haul_deadline_in(within_ns);
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(at.remote, at.region, &piece, 1, &options, &transfer)
                   : haul_read(at.region, at.remote, &piece, 1, &options, &transfer));
  return transfer;
}

static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, haul_deadline_in(SOON));
  assert_int_not_equal(haul_transfer_test(transfer), 1);
  haul_transfer_release(transfer);
  return code;
}

/* A work that ends so is posted again, and would be for ever. */
static void an_owner_that_says_that_the_path_broke_is_dropped(void **state) {
  (void)state;
  serve_node(RDMA_STAGED, RDMA_FENCES);
  struct haul_transfer *transfer = start(HAUL_OP_READ, BOUND);
  assert_true(
      raw_rail_say(&rail, &(struct rdma_record){.type = RDMA_DONE,
                                                .request = raw_rail_hear(&rail, RDMA_LIFT).request,
                                                .status = HAUL_EPATH}));
  assert_fails(HAUL_EPROTO, finish(transfer));
}

static void a_write_that_is_not_fenced_ends_at_its_deadline(void **state) {
  static const struct rdma_record fenced = {.type = RDMA_FENCED, .request = 1};
  (void)state;
  serve_node(RDMA_FENCED_WRITES, RDMA_FENCES);
  assert_fails(HAUL_ETIMEDOUT, finish(start(HAUL_OP_WRITE, 100 * MS)));
  /* The late answer is the first one's. */
  struct haul_transfer *second = start(HAUL_OP_WRITE, 300 * MS);
  assert_true(raw_rail_say(&rail, &fenced));
  assert_fails(HAUL_ETIMEDOUT, finish(second));
  struct haul_transfer *third = start(HAUL_OP_WRITE, BOUND);
  nanosleep(&(struct timespec){0, 50 * MS}, NULL);
  assert_true(raw_rail_say(&rail, &fenced));
  assert_true(raw_rail_say(&rail, &fenced));
  assert_works(finish(third));
}

static void a_write_that_the_owner_has_no_receive_for_ends_at_its_deadline(void **state) {
  (void)state;
  serve_node(RDMA_FENCED_WRITES, 0);
  assert_fails(HAUL_ETIMEDOUT, finish(start(HAUL_OP_WRITE, 100 * MS)));
}

#define LATER    0       /* the specification's code for 655 ms, after which a sender tries again */
#define PATIENCE (4 * S) /* less than it takes until it tries no more */

/* Whoever waits for it is told so, without asking again. */
static void assert_times_out(struct haul_transfer *transfer) {
  int64_t end = haul_deadline_in(PATIENCE);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(transfer, end));
  assert_true(haul_deadline_in(0) < end);
  haul_transfer_release(transfer);
}

static void a_write_that_arrives_late_and_is_not_fenced_ends(void **state) {
  (void)state;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, LATER);
  struct haul_transfer *transfer = start(HAUL_OP_WRITE, 100 * MS);
  nanosleep(&(struct timespec){0, 300 * MS}, NULL);
  raw_rail_receive(&rail, 1);
  assert_times_out(transfer);
}

/* Nor does it say that it is silent. */
static void a_write_that_never_arrives_ends(void **state) {
  (void)state;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, LATER);
  assert_times_out(start(HAUL_OP_WRITE, 100 * MS));
}

/* Who asks again and again whether it has ended puts its end off no further. */
static void a_write_that_never_arrives_ends_for_those_who_look(void **state) {
  (void)state;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, LATER);
  struct haul_transfer *transfer = start(HAUL_OP_WRITE, 100 * MS);
  int64_t end = haul_deadline_in(PATIENCE);
  while (haul_transfer_test(transfer) == 1 && haul_deadline_in(0) < end)
    nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_test(transfer));
  haul_transfer_release(transfer);
}

static void *ask_on(void *argument) {
  const struct rdma_record question = {.type = RDMA_FENCE, .request = 2, .handle = HANDLE};
  (void)argument;
  while (raw_rail_say(&rail, &question))
    nanosleep(&(struct timespec){0, 200 * MS}, NULL);
  return NULL;
}

/* What it asks meanwhile is no sign that its NIC takes anything. */
static void a_write_that_never_arrives_ends_whatever_else_comes(void **state) {
  (void)state;
  pthread_t thread;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, LATER);
  pthread_create(&thread, NULL, ask_on, NULL);
  assert_times_out(start(HAUL_OP_WRITE, 100 * MS));
  pthread_join(thread, NULL);
}

static void *connect_in_vain(void *argument) {
  int *code = argument;
  *code = haul_peer_connect(at.node, own_socket(), haul_deadline_in(BOUND), &at.peer);
  return NULL;
}

/* Between the request for the channel and its welcome. */
static void an_owner_that_leaves_before_it_welcomes_the_channel_leaves_nothing(void **state) {
  (void)state;
  pthread_t thread;
  int code;
  at.listener = raw_listen(own_socket());
  assert_works(haul_node_open(NULL, &at.node));
  pthread_create(&thread, NULL, connect_in_vain, &code);
  at.control = take_connection("");
  at.channel = raw_accept(at.listener);
  assert_true(at.channel >= 0);
  close(at.control);
  nanosleep(&(struct timespec){0, 100 * MS}, NULL);
  struct hello hello;
  assert_true(raw_welcome(at.channel, false, &hello));
  assert_string_equal(hello.transport, "rdma");
  at.tcp = take_connection("tcp");
  pthread_join(thread, NULL);
  if (code == 0)
    haul_peer_close(at.peer);
  nanosleep(&(struct timespec){0, 100 * MS}, NULL);
  haul_node_close(at.node);
  close(at.tcp);
  close(at.channel);
  close(at.listener);
  nic_check_empty();
}

static void an_owner_that_allows_no_atomics_gets_none(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  serve_node(0, RDMA_FENCES);
  assert_fails(HAUL_ENOPATH, haul_fetch_add(at.region, 0, at.remote, 0, 1, &options, NULL));
}

/* The key is what counts. */
static void an_owner_that_allows_atomics_falsely_is_stale(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  serve_node(RDMA_ATOMIC, RDMA_FENCES);
  uint64_t *number = haul_region_address(at.target);
  *number = 5;
  assert_fails(HAUL_ESTALE, haul_fetch_add(at.region, 0, at.remote, 0, 1, &options, NULL));
  assert_true(*number == 5);
}

/* Each of them with eight questions: more than there are receives, unless they wait. */
static void an_owner_that_takes_its_time_is_not_flooded(void **state) {
  (void)state;
  enum { PIECES = LENGTH / 2 };
  static struct haul_piece pieces[PIECES];
  struct haul_transfer *transfer;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  options.flags = HAUL_CHECKSUM;
  for (uint64_t i = 0; i < PIECES; i++)
    pieces[i] = (struct haul_piece){2 * i, 2 * i, 1};
  serve_node(0, RDMA_FENCES);
  assert_works(haul_read(at.region, at.remote, pieces, PIECES, &options, &transfer));
  nanosleep(&(struct timespec){0, 200 * MS}, NULL);
  for (unsigned i = 0; i < PIECES / RDMA_SPANS; i++)
    assert_true(
        raw_rail_say(&rail, &(struct rdma_record){.type = RDMA_DONE,
                                                  .request = raw_rail_hear(&rail, RDMA_SUM).request,
                                                  .handle = HANDLE}));
  assert_works(finish(transfer));
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
#define ASKS(test)                                                                                 \
  cmocka_unit_test_prestate_setup_teardown(test, serving_start, serving_end,                       \
                                           (void *)(uintptr_t) "tcp://127.0.0.1:0")
#define ANSWERS(test) cmocka_unit_test_teardown(test, end_node)
  const struct CMUnitTest tests[] = {
      ASKS(what_is_not_allowed_now_ends_the_peer),
      ASKS(what_is_not_allowed_over_a_rail_ends_the_peer),
      ASKS(a_send_that_is_too_long_ends_the_path_alone),
      ASKS(who_has_no_receive_for_answers_loses_the_path_alone),
      ASKS(who_asks_without_end_is_served_in_turn),
      ASKS(writes_with_immediate_are_all_answered),
      ASKS(a_second_greeting_ends_the_peer),
      ASKS(a_greeting_with_unknown_atomics_ends_the_peer),
      ASKS(a_second_detach_ends_the_peer),
      ASKS(a_greeting_behind_the_end_of_the_rails_connects_nothing),
      ASKS(copies_that_were_asked_for_end_with_the_rails),
      ASKS(sums_leave_time_for_others),
      ASKS(sums_are_for_those_who_may_read),
      ASKS(a_write_that_cannot_be_compared_is_not_made),
      ASKS(all_who_ask_have_their_turn),
      cmocka_unit_test(an_owner_that_leaves_before_it_welcomes_the_channel_leaves_nothing),
      ANSWERS(a_write_that_arrives_late_and_is_not_fenced_ends),
      ANSWERS(a_write_that_never_arrives_ends),
      ANSWERS(a_write_that_never_arrives_ends_for_those_who_look),
      ANSWERS(a_write_that_never_arrives_ends_whatever_else_comes),
      ANSWERS(an_owner_that_says_that_the_path_broke_is_dropped),
      ANSWERS(an_owner_that_allows_no_atomics_gets_none),
      ANSWERS(an_owner_that_allows_atomics_falsely_is_stale),
      ANSWERS(an_owner_that_takes_its_time_is_not_flooded),
      ANSWERS(a_write_that_is_not_fenced_ends_at_its_deadline),
      ANSWERS(a_write_that_the_owner_has_no_receive_for_ends_at_its_deadline),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
