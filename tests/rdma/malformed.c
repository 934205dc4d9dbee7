/* SPDX-License-Identifier: MIT
 * Malformed and hostile peers on the rdma channel and over a rail: records out of order, repeated,
 * too many, or missing. As a client the peer meets an owner in another process, which ends or
 * rejects it and still serves others. As an owner it meets a node of this process, whose transfers
 * end by their deadlines. */
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fabric/rdma/owner.h"
#include "fabric/rdma/rail.h"
#include "support/names.h"
#include "support/nic.h"
#include "support/raw.h"
#include "support/raw_rail.h"
#include "support/serving.h"

#define BOUND  (20 * S)
#define SOON   (3 * S) /* below the liveness timeout */
#define LENGTH 65536u
#define HANDLE 0x1234500003u

static struct raw_rail rail; /* of the current peer, if it has one */

static void send_record(int channel, const struct rdma_record *record) {
  uint8_t bytes[RDMA_RECORD];
  rdma_pack(record, bytes);
  raw_send(channel, bytes, sizeof bytes);
}

static void send_plain(int channel, enum rdma_record_type type, uint32_t request, uint64_t handle) {
  send_record(channel,
              &(struct rdma_record){.type = (uint16_t)type, .request = request, .handle = handle});
}

/* Receives the next record of the type; skips others. */
static struct rdma_record receive_record(int channel, enum rdma_record_type type) {
  uint8_t bytes[RDMA_RECORD];
  struct rdma_record record = {.type = 0};
  while (record.type != type) {
    assert_true(raw_receive(channel, bytes, sizeof bytes));
    assert_int_equal(rdma_parse(bytes, &record), 0);
  }
  return record;
}

static struct rdma_record hello_record(void) {
  return (struct rdma_record){.type = RDMA_HELLO,
                              .rails = 1,
                              .ends = {{.nic = "raw",
                                        .ethernet = 1,
                                        .mtu = 3,
                                        .reads = 1,
                                        .receives = 1,
                                        .gid = {[10] = 0xff, 0xff, 10, 0, 0, 1},
                                        .queue_pair = 77}}};
}

struct client {
  int control, channel;
  uint64_t host, sim;
  struct rdma_record owner; /* its hello */
};

static struct client open_client(void) {
  struct welcome welcome;
  struct client client;
  client.control = raw_peer(serving.owner.address, &welcome);
  client.channel = raw_channel(serving.owner.address, &welcome, "rdma", 0);
  assert_true(client.channel >= 0);
  assert_int_equal(raw_lookup(client.control, "host", &client.host), 0);
  assert_int_equal(raw_lookup(client.control, "sim", &client.sim), 0);
  return client;
}

static void send_hello(struct client *client, const struct rdma_record *hello) {
  send_record(client->channel, hello);
  client->owner = receive_record(client->channel, RDMA_HELLO);
  send_plain(client->channel, RDMA_READY, 0, 0);
  receive_record(client->channel, RDMA_READY);
}

static struct client open_ready_client(void) {
  struct client client = open_client();
  struct rdma_record hello = hello_record();
  send_hello(&client, &hello);
  return client;
}

/* With a working rail that has `receives` receives. `timer`: the RNR timer, as the InfiniBand
 * specification codes it. */
static struct client open_railed_client_with(unsigned receives, uint8_t timer) {
  struct client client = open_client();
  struct rdma_record hello = hello_record();
  raw_rail_open(&rail, receives);
  rail.not_ready_timer = timer;
  hello.ends[0] = raw_rail_end(&rail);
  send_hello(&client, &hello);
  raw_rail_connect(&rail, &client.owner.ends[0]);
  return client;
}

static struct client open_railed_client(unsigned receives) {
  return open_railed_client_with(receives, 1);
}

static void close_client(struct client *client) {
  close(client->channel);
  close(client->control);
  if (rail.verbs)
    raw_rail_close(&rail);
  assert_unharmed();
}

/* Before the liveness timeout ends it. */
static void assert_dropped(struct client *client) {
  assert_true(raw_ended(client->control, SERVING_LIVENESS * 3 / 4));
  close_client(client);
}

static struct rdma_record attach(const struct client *client, uint64_t handle) {
  send_plain(client->channel, RDMA_ATTACH, 1, handle);
  return receive_record(client->channel, RDMA_ATTACHED);
}

/* For the largest allowed number of bytes. */
static struct rdma_record long_request(enum rdma_record_type type, uint64_t handle) {
  return (struct rdma_record){.type = (uint16_t)type,
                              .request = 2,
                              .handle = handle,
                              .span_count = 1,
                              .spans = {{0, WORK_BYTES_MAX}}};
}

static void unexpected_records_end_the_peer(void **state) {
  (void)state;
  const struct rdma_record wrong[] = {
      hello_record(), /* a second one */
      {.type = RDMA_READY},
      {.type = RDMA_DETACH, .handle = HANDLE},
      {.type = RDMA_REVOKE_ACK, .handle = HANDLE},
      {.type = RDMA_FENCED + 1},
      /* These belong on a rail. */
      {.type = RDMA_FENCED},
      {.type = RDMA_RESPONSE},
      {.type = RDMA_CHECKSUM, .span_count = 1, .spans = {{0, 1}}},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct client client = open_ready_client();
    send_record(client.channel, &wrong[i]);
    assert_dropped(&client);
  }
  struct client early = open_client();
  send_plain(early.channel, RDMA_ATTACH, 1, early.host);
  assert_dropped(&early);
}

static void unexpected_rail_messages_end_the_peer(void **state) {
  (void)state;
  static const struct rdma_record wrong[] = {
      {.type = RDMA_FENCED},
      {.type = RDMA_FENCED, .rails = 3},
      {.type = RDMA_RESPONSE, .status = HAUL_EPATH},
      {.type = RDMA_CHECKSUM, .span_count = 1},
      {.type = RDMA_CHECKSUM, .span_count = 0},
      {.type = RDMA_FENCED + 1},
      /* These belong on the channel. */
      {.type = RDMA_HELLO},
      {.type = RDMA_ATTACH, .handle = HANDLE},
      {.type = RDMA_BROKEN},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct client client = open_railed_client(4);
    assert_true(raw_rail_say(&rail, &wrong[i]));
    assert_dropped(&client);
  }
  for (size_t length = 0; length <= RDMA_RECORD; length += RDMA_RECORD / 2) {
    static const char malformed[RDMA_RECORD] = "malformed";
    struct client client = open_railed_client(4);
    assert_true(raw_rail_send(&rail, malformed, length));
    assert_dropped(&client);
  }
}

/* It exceeds the receive buffer: both queue pairs go to error, and the peer stays. */
static void an_oversized_send_closes_the_path_only(void **state) {
  (void)state;
  static const char much[RDMA_RECORD + 1] = "much";
  struct client client = open_railed_client(4);
  assert_false(raw_rail_send(&rail, much, sizeof much));
  receive_record(client.channel, RDMA_BROKEN);
  assert_serves();
  close_client(&client);
}

static void a_peer_without_receives_loses_the_path_only(void **state) {
  (void)state;
  struct client client = open_railed_client(0);
  struct rdma_record request = {.type = RDMA_FENCE, .request = 2, .handle = HANDLE};
  assert_true(raw_rail_say(&rail, &request));
  receive_record(client.channel, RDMA_BROKEN);
  assert_serves();
  close_client(&client);
}

/* More requests than a well-behaved peer has outstanding, of the slowest kind. */
static void a_flood_of_requests_does_not_starve_others(void **state) {
  (void)state;
  struct client client = open_railed_client(RAIL_DEPTH);
  struct rdma_record request = long_request(RDMA_CHECKSUM, client.host);
  assert_int_equal(attach(&client, client.host).status, 0);
  for (unsigned i = 0; i < (SANITIZED ? 64 : 640); i++) {
    assert_true(raw_rail_say(&rail, &request));
    rail.count = 0; /* drops the responses */
    if (i % 64 == 63)
      assert_serves();
  }
  close_client(&client);
}

/* Responses wait for send buffers. */
static void all_writes_with_immediate_get_responses(void **state) {
  enum { WRITES = 2 * RDMA_FENCES + 2 * RDMA_REQUESTS };
  const uint8_t soon = 27; /* RNR timer of 123 ms */
  (void)state;
  struct client client = open_railed_client_with(0, soon);
  for (uint32_t i = 0; i < WRITES; i++)
    raw_rail_tell(&rail, i);
  nanosleep(&(struct timespec){0, 60 * MS}, NULL);
  assert_true(raw_control(client.control, CONTROL_PING, 0, NULL, 0));
  raw_rail_receive(&rail, RAIL_DEPTH);
  for (uint32_t i = 0; i < WRITES; i++) {
    struct rdma_record response = raw_rail_hear(&rail, RDMA_FENCED);
    assert_int_equal(response.request, i);
    assert_int_equal(response.status, HAUL_ESTALE);
  }
  assert_serves();
  close_client(&client);
}

static void a_hello_with_unknown_atomics_ends_the_peer(void **state) {
  (void)state;
  struct client client = open_client();
  struct rdma_record hello = hello_record();
  hello.ends[0].atomics = 3;
  send_record(client.channel, &hello);
  assert_dropped(&client);
}

/* Of two records, of which the first announces `more` ends. */
static void assert_bad_hello(unsigned more, unsigned ends, unsigned then) {
  struct client client = open_client();
  struct rdma_record hello = hello_record();
  hello.rails = RDMA_ENDS;
  hello.more = (uint8_t)more;
  for (unsigned i = 1; i < RDMA_ENDS; i++)
    hello.ends[i] = hello.ends[0];
  send_record(client.channel, &hello);
  hello.rails = (uint8_t)ends;
  hello.more = (uint8_t)then;
  send_record(client.channel, &hello);
  assert_dropped(&client);
}

static void a_hello_whose_numbers_do_not_fit_ends_the_peer(void **state) {
  (void)state;
  assert_bad_hello(13, 0, 0); /* too many */
  assert_bad_hello(4, 3, 0);  /* fewer than announced */
  assert_bad_hello(4, 4, 1);  /* more */
  assert_bad_hello(3, 4, 0);
  assert_bad_hello(4, 0, 4); /* none */
  assert_bad_hello(0, 4, 0); /* a second one */
}

static void an_unfinished_hello_costs_little(void **state) {
  (void)state;
  struct client client = open_client();
  struct rdma_record hello = hello_record();
  hello.more = 1;
  send_record(client.channel, &hello);
  assert_serves();
  close_client(&client);
}

static void a_second_detach_ends_the_peer(void **state) {
  (void)state;
  struct client client = open_ready_client();
  assert_int_equal(attach(&client, client.host).status, 0);
  send_plain(client.channel, RDMA_DETACH, 0, client.host);
  send_plain(client.channel, RDMA_DETACH, 0, client.host);
  assert_dropped(&client);
}

static void a_hello_after_broken_connects_nothing(void **state) {
  (void)state;
  struct client client = open_client();
  struct rdma_record hello = hello_record();
  send_plain(client.channel, RDMA_BROKEN, 0, 0);
  send_record(client.channel, &hello);
  receive_record(client.channel, RDMA_BROKEN_ACK);
  assert_unharmed();
  close_client(&client);
}

/* A peer whose path was open, and that connects broken rails again. */
static struct client open_restoring_client(void) {
  struct client client = open_client();
  struct rdma_record hello = hello_record();
  hello.restores = true;
  send_hello(&client, &hello);
  assert_int_equal(attach(&client, client.host).status, 0);
  return client;
}

static void break_rails(const struct client *client) {
  send_plain(client->channel, RDMA_BROKEN, 0, 0);
  receive_record(client->channel, RDMA_BROKEN_ACK);
  send_plain(client->channel, RDMA_BROKEN_ACK, 0, 0);
}

static void rails_are_renewed_after_broken(void **state) {
  (void)state;
  struct client client = open_restoring_client();
  struct rdma_record hello = hello_record();
  hello.restores = true;
  for (unsigned i = 0; i < 3; i++) {
    break_rails(&client);
    nanosleep(&(struct timespec){0, (100 * MS) << i}, NULL); /* as initiators do */
    send_record(client.channel, &hello);
    assert_int_equal(receive_record(client.channel, RDMA_HELLO).rails, 1);
    receive_record(client.channel, RDMA_READY);
    assert_int_equal(attach(&client, client.host).status, 0);
  }
  assert_serves();
  close_client(&client);
}

/* Else a peer could keep the loop busy with queue pairs. */
static void rails_are_renewed_after_a_pause(void **state) {
  (void)state;
  struct client client = open_restoring_client();
  struct rdma_record hello = hello_record();
  hello.restores = true;
  break_rails(&client);
  send_record(client.channel, &hello);
  assert_int_equal(receive_record(client.channel, RDMA_HELLO).rails, 1);
  receive_record(client.channel, RDMA_READY);
  break_rails(&client);
  send_record(client.channel, &hello);
  receive_record(client.channel, RDMA_BROKEN);
  send_plain(client.channel, RDMA_BROKEN_ACK, 0, 0);
  nanosleep(&(struct timespec){0, 200 * MS}, NULL);
  send_record(client.channel, &hello);
  assert_int_equal(receive_record(client.channel, RDMA_HELLO).rails, 1);
  assert_serves();
  close_client(&client);
}

static void an_acknowledgement_that_nothing_needs_breaks_nothing(void **state) {
  (void)state;
  struct client client = open_restoring_client();
  struct rdma_record hello = hello_record();
  send_plain(client.channel, RDMA_BROKEN_ACK, 0, 0);
  assert_int_equal(attach(&client, client.host).status, 0);
  send_record(client.channel, &hello);
  assert_dropped(&client);
}

static void renewed_rails_have_the_same_number(void **state) {
  (void)state;
  struct client client = open_restoring_client();
  struct rdma_record hello = hello_record();
  hello.restores = true;
  hello.rails = 2;
  hello.ends[1] = hello.ends[0];
  break_rails(&client);
  send_record(client.channel, &hello);
  assert_dropped(&client);
}

/* The staging area is freed with the channel, and the peer stays. */
static void staged_copies_end_with_the_rails(void **state) {
  (void)state;
  struct client client = open_railed_client(64);
  struct rdma_record request = long_request(RDMA_COPY_OUT, client.sim);
  assert_int_equal(attach(&client, client.sim).status, 0);
  for (unsigned i = 0; i < 64; i++)
    assert_true(raw_rail_say(&rail, &request));
  send_plain(client.channel, RDMA_BROKEN, 0, 0);
  close(client.channel);
  client.channel = -1;
  nanosleep(&(struct timespec){0, 20 * MS}, NULL);
  assert_serves();
  close(client.control);
  raw_rail_close(&rail);
  assert_unharmed();
}

static void checksums_do_not_starve_others(void **state) {
  (void)state;
  struct client client = open_railed_client(RDMA_REQUESTS);
  struct rdma_record request = long_request(RDMA_CHECKSUM, client.host);
  assert_int_equal(attach(&client, client.host).status, 0);
  for (unsigned i = 0; i < (SANITIZED ? 4 : 32); i++) {
    for (unsigned j = 0; j < RDMA_REQUESTS; j++)
      assert_true(raw_rail_say(&rail, &request));
    assert_serves();
    for (unsigned j = 0; j < RDMA_REQUESTS; j++)
      assert_int_equal(raw_rail_hear(&rail, RDMA_RESPONSE).status, HAUL_ECHECKSUM);
  }
  close_client(&client);
}

/* Otherwise a peer could find out a byte with 256 requests. */
static void checksums_require_the_right_to_read(void **state) {
  (void)state;
  uint64_t handle;
  struct client client = open_railed_client(1);
  assert_int_equal(owner_publish(&serving.owner, 8, KIND_WRAPPED, LENGTH, "writable", HAUL_WRITE),
                   0);
  assert_int_equal(raw_lookup(client.control, "writable", &handle), 0);
  assert_int_equal(attach(&client, handle).status, 0);
  assert_true(raw_rail_say(&rail, &(struct rdma_record){.type = RDMA_CHECKSUM,
                                                        .request = 2,
                                                        .handle = handle,
                                                        .span_count = 1,
                                                        .spans = {{0, 1}}}));
  assert_int_equal(raw_rail_hear(&rail, RDMA_RESPONSE).status, HAUL_EACCESS);
  assert_int_equal(owner_release(&serving.owner, 8),
                   0); /* it waits for REVOKE_ACK only for a bounded time */
  close_client(&client);
}

/* A well-behaved client takes another path. */
static void a_checksummed_write_requires_the_right_to_read(void **state) {
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

/* More peers than registering threads, with many requests each. Slots of staging areas are limited:
 * without one the response is HAUL_ELIMIT. */
static void attach_requests_of_all_peers_are_served(void **state) {
  (void)state;
  enum { CLIENTS = 24, REQUESTS = 32 };
  struct client clients[CLIENTS];
  unsigned granted = 0;
  for (unsigned i = 0; i < CLIENTS; i++)
    clients[i] = open_ready_client();
  for (unsigned j = 0; j < REQUESTS; j++)
    for (unsigned i = 0; i < CLIENTS; i++)
      send_plain(clients[i].channel, RDMA_ATTACH, j, j % 2 ? clients[i].host : clients[i].sim);
  for (unsigned i = 0; i < CLIENTS; i++)
    for (unsigned j = 0; j < REQUESTS; j++) {
      struct rdma_record response = receive_record(clients[i].channel, RDMA_ATTACHED);
      assert_true(response.status == 0 || (j % 2 == 0 && response.status == HAUL_ELIMIT));
      assert_int_equal(response.request, j);
      granted += j % 2 == 0 && response.status == 0;
    }
  assert_true(granted >= REQUESTS / 2); /* to at least one of them */
  for (unsigned i = 0; i < CLIENTS; i++) {
    close(clients[i].channel);
    close(clients[i].control);
  }
  assert_unharmed();
}

static struct {
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *region, *target;
  struct ibv_mr *registration;
  int listener, control, channel;
} at;

static void *connect_node(void *argument) {
  (void)argument;
  assert_works(haul_peer_connect(at.node, own_socket(), haul_deadline_in(BOUND), &at.peer));
  assert_works(haul_peer_lookup(at.peer, "region", haul_deadline_in(BOUND), &at.remote));
  return NULL;
}

/* The owner breaks the protocol before or after the connection counts as made. */
static void *connect_node_alone(void *argument) {
  (void)argument;
  at.peer = NULL;
  haul_peer_connect(at.node, own_socket(), haul_deadline_in(BOUND), &at.peer);
  return NULL;
}

static int take_connection(const char *transport) {
  struct hello hello;
  int fd = raw_accept(at.listener);
  assert_true(fd >= 0 && raw_welcome(fd, false, &hello));
  assert_string_equal(hello.transport, transport);
  return fd;
}

static void assert_bad_pairs(unsigned rails, unsigned paired) {
  pthread_t thread;
  at.listener = raw_listen(own_socket());
  assert_works(haul_node_open(NULL, &at.node));
  pthread_create(&thread, NULL, connect_node_alone, NULL);
  at.control = take_connection("");
  at.channel = take_connection("rdma");
  struct rdma_record hello = receive_record(at.channel, RDMA_HELLO);
  assert_int_equal(hello.rails, 1);
  hello.rails = (uint8_t)rails;
  hello.paired = (uint16_t)paired;
  hello.ends[1] = hello.ends[0];
  send_record(at.channel, &hello);
  assert_true(raw_ended(at.control, SOON));
  pthread_join(thread, NULL);
  haul_peer_close(at.peer);
  haul_node_close(at.node);
  close(at.channel);
  close(at.control);
  close(at.listener);
  nic_check_empty();
}

/* The node has offered one end. */
static void pairs_that_do_not_exist_end_the_owner(void **state) {
  (void)state;
  assert_bad_pairs(1, 2);
  assert_bad_pairs(1, 3);
  assert_bad_pairs(2, 3);
  assert_bad_pairs(2, 1);
  assert_bad_pairs(1, 1u << 15);
}

static struct rdma_record attached(unsigned flags, uint32_t request) {
  if (!at.registration)
    at.registration = raw_rail_register(&rail, haul_region_address(at.target), LENGTH);
  return (struct rdma_record){.type = RDMA_ATTACHED,
                              .request = request,
                              .handle = HANDLE,
                              .address = (uintptr_t)at.registration->addr,
                              .length = LENGTH,
                              .rails = 1,
                              .flags = (uint8_t)flags,
                              .slots = flags & RDMA_STAGED ? RDMA_SLOTS : 0,
                              .number = 1,
                              .keys = {at.registration->rkey}};
}

/* Connects a node to this owner. The hello announces `receives`; `posted` exist. */
static void serve_node_with(unsigned flags, uint8_t receives, unsigned posted, uint8_t timer) {
  pthread_t thread;
  at.listener = raw_listen(own_socket());
  assert_works(haul_node_open(NULL, &at.node));
  at.region = region_make(at.node, KIND_HOST, LENGTH);
  at.target = region_make(at.node, KIND_HOST, LENGTH);
  pthread_create(&thread, NULL, connect_node, NULL);
  at.control = take_connection("");
  at.channel = take_connection("rdma");
  struct rdma_record hello = receive_record(at.channel, RDMA_HELLO);
  raw_rail_open(&rail, posted);
  rail.not_ready_timer = timer;
  raw_rail_connect(&rail, &hello.ends[0]);
  hello.rails = 1;
  hello.ends[0] = raw_rail_end(&rail);
  hello.ends[0].receives = receives;
  send_record(at.channel, &hello);
  send_plain(at.channel, RDMA_READY, 0, 0);
  raw_found(at.control, HANDLE, LENGTH);
  struct rdma_record response = attached(flags, receive_record(at.channel, RDMA_ATTACH).request);
  send_record(at.channel, &response);
  pthread_join(thread, NULL);
}

static void serve_node(unsigned flags, uint8_t receives) {
  serve_node_with(flags, receives, RAIL_DEPTH, 1);
}

static int end_node(void **state) {
  (void)state;
  haul_remote_release(at.remote);
  assert_int_equal(rail.verbs->dereg_mr(at.registration), 0);
  at.registration = NULL;
  haul_region_release(at.region);
  haul_region_release(at.target);
  haul_peer_close(at.peer);
  haul_node_close(at.node);
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

/* HAUL_EPATH would make the client post the work again, for ever. */
static void a_response_with_epath_ends_the_owner(void **state) {
  (void)state;
  serve_node(RDMA_STAGED, RDMA_FENCES);
  struct haul_transfer *transfer = start(HAUL_OP_READ, BOUND);
  assert_true(raw_rail_say(
      &rail, &(struct rdma_record){.type = RDMA_RESPONSE,
                                   .request = raw_rail_hear(&rail, RDMA_COPY_OUT).request,
                                   .status = HAUL_EPATH}));
  assert_fails(HAUL_EPROTO, finish(transfer));
}

static void an_unfenced_write_times_out(void **state) {
  static const struct rdma_record fenced = {.type = RDMA_FENCED, .request = 1};
  (void)state;
  serve_node(RDMA_FENCED_WRITES, RDMA_FENCES);
  assert_fails(HAUL_ETIMEDOUT, finish(start(HAUL_OP_WRITE, 100 * MS)));
  /* The late response belongs to the first write. */
  struct haul_transfer *second = start(HAUL_OP_WRITE, 300 * MS);
  assert_true(raw_rail_say(&rail, &fenced));
  assert_fails(HAUL_ETIMEDOUT, finish(second));
  struct haul_transfer *third = start(HAUL_OP_WRITE, BOUND);
  nanosleep(&(struct timespec){0, 50 * MS}, NULL);
  assert_true(raw_rail_say(&rail, &fenced));
  assert_true(raw_rail_say(&rail, &fenced));
  assert_works(finish(third));
}

static void a_write_without_a_receive_times_out(void **state) {
  (void)state;
  serve_node(RDMA_FENCED_WRITES, 0);
  assert_fails(HAUL_ETIMEDOUT, finish(start(HAUL_OP_WRITE, 100 * MS)));
}

#define RNR_655_MS 0       /* RNR timer: the sender retries after 655 ms */
#define PATIENCE   (4 * S) /* less than all retries take */

/* The wait returns by itself. */
static void assert_times_out(struct haul_transfer *transfer) {
  int64_t end = haul_deadline_in(PATIENCE);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(transfer, end));
  assert_true(haul_deadline_in(0) < end);
  haul_transfer_release(transfer);
}

static void a_late_write_without_fence_times_out(void **state) {
  (void)state;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, RNR_655_MS);
  struct haul_transfer *transfer = start(HAUL_OP_WRITE, 100 * MS);
  nanosleep(&(struct timespec){0, 300 * MS}, NULL);
  raw_rail_receive(&rail, 1);
  assert_times_out(transfer);
}

static void a_lost_write_times_out(void **state) {
  (void)state;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, RNR_655_MS);
  assert_times_out(start(HAUL_OP_WRITE, 100 * MS));
}

static void a_lost_write_times_out_while_polled(void **state) {
  (void)state;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, RNR_655_MS);
  struct haul_transfer *transfer = start(HAUL_OP_WRITE, 100 * MS);
  int64_t end = haul_deadline_in(PATIENCE);
  while (haul_transfer_test(transfer) == 1 && haul_deadline_in(0) < end)
    nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_test(transfer));
  haul_transfer_release(transfer);
}

static void *keep_requesting(void *argument) {
  const struct rdma_record request = {.type = RDMA_FENCE, .request = 2, .handle = HANDLE};
  (void)argument;
  while (raw_rail_say(&rail, &request))
    nanosleep(&(struct timespec){0, 200 * MS}, NULL);
  return NULL;
}

/* The peer's requests are no progress of its receive queue. */
static void a_lost_write_times_out_despite_other_traffic(void **state) {
  (void)state;
  pthread_t thread;
  serve_node_with(RDMA_FENCED_WRITES, RDMA_FENCES, 0, RNR_655_MS);
  pthread_create(&thread, NULL, keep_requesting, NULL);
  assert_times_out(start(HAUL_OP_WRITE, 100 * MS));
  pthread_join(thread, NULL);
}

static void *connect_node_code(void *argument) {
  int *code = argument;
  *code = haul_peer_connect(at.node, own_socket(), haul_deadline_in(BOUND), &at.peer);
  return NULL;
}

static void an_owner_that_leaves_before_the_welcome_leaks_nothing(void **state) {
  (void)state;
  pthread_t thread;
  int code;
  at.listener = raw_listen(own_socket());
  assert_works(haul_node_open(NULL, &at.node));
  pthread_create(&thread, NULL, connect_node_code, &code);
  at.control = take_connection("");
  at.channel = raw_accept(at.listener);
  assert_true(at.channel >= 0);
  close(at.control);
  nanosleep(&(struct timespec){0, 100 * MS}, NULL);
  struct hello hello;
  raw_welcome(at.channel, false, &hello); /* the node may have closed it */
  pthread_join(thread, NULL);
  if (code == 0)
    haul_peer_close(at.peer);
  nanosleep(&(struct timespec){0, 100 * MS}, NULL);
  haul_node_close(at.node);
  close(at.channel);
  close(at.listener);
  nic_check_empty();
}

/* The owner answers the next ATTACH, which comes without a look-up. */
static void answer_again(unsigned flags, uint64_t length) {
  struct rdma_record response = attached(flags, receive_record(at.channel, RDMA_ATTACH).request);
  response.length = length;
  send_record(at.channel, &response);
}

static bool is_staged(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_path path;
  options.only = "rdma";
  assert_works(haul_explain(at.region, at.remote, HAUL_OP_WRITE, 1, &options, &path, &(size_t){1}));
  return strstr(path.detail, "staged");
}

static void a_region_that_is_short_of_keys_is_attached_again(void **state) {
  (void)state;
  serve_node(RDMA_STAGED | RDMA_RETRIES, RDMA_FENCES);
  struct haul_transfer *staged = start(HAUL_OP_READ, BOUND);
  uint32_t copy = raw_rail_hear(&rail, RDMA_COPY_OUT).request;
  answer_again(RDMA_STAGED | RDMA_RETRIES, LENGTH);
  assert_true(receive_record(at.channel, RDMA_DETACH).handle == HANDLE);
  answer_again(0, LENGTH);
  while (is_staged())
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_works(finish(start(HAUL_OP_WRITE, BOUND)));
  assert_true(raw_rail_say(&rail, &(struct rdma_record){.type = RDMA_RESPONSE, .request = copy}));
  finish(staged);
  haul_remote_release(at.remote);
  at.remote = NULL;
  receive_record(at.channel, RDMA_DETACH);
  receive_record(at.channel, RDMA_DETACH);
}

static void another_length_of_it_ends_the_owner(void **state) {
  (void)state;
  serve_node(RDMA_STAGED | RDMA_RETRIES, RDMA_FENCES);
  answer_again(0, LENGTH + 1);
  assert_true(raw_ended(at.control, SOON));
}

/* As one of an older version. */
static void an_owner_that_does_not_retry_is_not_asked(void **state) {
  uint8_t byte;
  (void)state;
  serve_node(RDMA_STAGED, RDMA_FENCES);
  nanosleep(&(struct timespec){1, 500 * MS}, NULL);
  assert_int_equal(recv(at.channel, &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1);
}

static void no_atomics_without_the_owners_flag(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  serve_node(0, RDMA_FENCES);
  assert_fails(HAUL_ENOPATH, haul_fetch_add(at.region, 0, at.remote, 0, 1, &options, NULL));
}

static void a_false_atomics_flag_fails_as_stale(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "rdma";
  serve_node(RDMA_ATOMIC, RDMA_FENCES);
  uint64_t *number = haul_region_address(at.target);
  *number = 5;
  assert_fails(HAUL_ESTALE, haul_fetch_add(at.region, 0, at.remote, 0, 1, &options, NULL));
  assert_true(*number == 5);
}

/* Eight requests a work: more than there are receives, unless they wait. */
static void a_slow_owner_is_not_flooded(void **state) {
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
    assert_true(raw_rail_say(
        &rail, &(struct rdma_record){.type = RDMA_RESPONSE,
                                     .request = raw_rail_hear(&rail, RDMA_CHECKSUM).request,
                                     .handle = HANDLE}));
  assert_works(finish(transfer));
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
#define OWNER_TEST(test)                                                                           \
  cmocka_unit_test_prestate_setup_teardown(test, serving_start, serving_end,                       \
                                           (void *)(uintptr_t) "tcp://127.0.0.1:0")
#define CLIENT_TEST(test) cmocka_unit_test_teardown(test, end_node)
  const struct CMUnitTest tests[] = {
      OWNER_TEST(unexpected_records_end_the_peer),
      OWNER_TEST(unexpected_rail_messages_end_the_peer),
      OWNER_TEST(an_oversized_send_closes_the_path_only),
      OWNER_TEST(a_peer_without_receives_loses_the_path_only),
      OWNER_TEST(a_flood_of_requests_does_not_starve_others),
      OWNER_TEST(all_writes_with_immediate_get_responses),
      OWNER_TEST(a_hello_with_unknown_atomics_ends_the_peer),
      OWNER_TEST(a_hello_whose_numbers_do_not_fit_ends_the_peer),
      OWNER_TEST(an_unfinished_hello_costs_little),
      OWNER_TEST(a_second_detach_ends_the_peer),
      OWNER_TEST(a_hello_after_broken_connects_nothing),
      OWNER_TEST(rails_are_renewed_after_broken),
      OWNER_TEST(rails_are_renewed_after_a_pause),
      OWNER_TEST(an_acknowledgement_that_nothing_needs_breaks_nothing),
      OWNER_TEST(renewed_rails_have_the_same_number),
      OWNER_TEST(staged_copies_end_with_the_rails),
      OWNER_TEST(checksums_do_not_starve_others),
      OWNER_TEST(checksums_require_the_right_to_read),
      OWNER_TEST(a_checksummed_write_requires_the_right_to_read),
      OWNER_TEST(attach_requests_of_all_peers_are_served),
      cmocka_unit_test(an_owner_that_leaves_before_the_welcome_leaks_nothing),
      cmocka_unit_test(pairs_that_do_not_exist_end_the_owner),
      CLIENT_TEST(a_late_write_without_fence_times_out),
      CLIENT_TEST(a_lost_write_times_out),
      CLIENT_TEST(a_lost_write_times_out_while_polled),
      CLIENT_TEST(a_lost_write_times_out_despite_other_traffic),
      CLIENT_TEST(a_response_with_epath_ends_the_owner),
      CLIENT_TEST(a_region_that_is_short_of_keys_is_attached_again),
      CLIENT_TEST(another_length_of_it_ends_the_owner),
      CLIENT_TEST(an_owner_that_does_not_retry_is_not_asked),
      CLIENT_TEST(no_atomics_without_the_owners_flag),
      CLIENT_TEST(a_false_atomics_flag_fails_as_stale),
      CLIENT_TEST(a_slow_owner_is_not_flooded),
      CLIENT_TEST(an_unfenced_write_times_out),
      CLIENT_TEST(a_write_without_a_receive_times_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
