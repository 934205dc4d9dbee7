/* SPDX-License-Identifier: MIT
 * Peers of version 6 of the protocol on hosts with eight NICs: four rails, paired by number, in
 * whichever order the hosts list them. */
#include "support/check.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fabric/rdma/frame.h"
#include "fabric/rdma/sysfs.h"
#include "support/names.h"
#include "support/nic.h"
#include "support/owner.h"
#include "support/raw.h"

#define BOUND  (20 * S)
#define LENGTH 65536u
#define HANDLE 0x1234500003u
#define EIGHT  "10.0.1.1,10.0.2.1,10.0.3.1,10.0.4.1,10.0.5.1,10.0.6.1,10.0.7.1,10.0.8.1"

static int set_up(void **state) {
  (void)state;
  nic_set(EIGHT);
  nic_set_of_children(EIGHT);
  raw_highest = 6;
  return 0;
}

static void send_record(int channel, const struct rdma_record *record) {
  uint8_t bytes[RDMA_RECORD];
  rdma_pack(record, bytes);
  assert_true(raw_send(channel, bytes, sizeof bytes));
}

/* The next record is of this type. */
static struct rdma_record receive_record(int channel, enum rdma_record_type type) {
  uint8_t bytes[RDMA_RECORD];
  struct rdma_record record;
  assert_true(raw_receive(channel, bytes, sizeof bytes));
  assert_int_equal(rdma_parse(bytes, &record), 0);
  assert_int_equal(record.type, type);
  return record;
}

/* Ends in the subnets of this host's first NICs. */
static struct rdma_record hello_of(uint8_t rails) {
  struct rdma_record hello = {.type = RDMA_HELLO, .rails = rails};
  for (uint8_t i = 0; i < rails; i++)
    hello.ends[i] = (struct rdma_end){.nic = "older",
                                      .ethernet = 1,
                                      .mtu = 3,
                                      .reads = 1,
                                      .receives = 1,
                                      .gid = {[10] = 0xff, 0xff, 10, 0, (uint8_t)(i + 1), 2},
                                      .queue_pair = 77u + i};
  return hello;
}

/* In the order of this side's list, and in one record. */
static void assert_ends(const struct rdma_record *hello, uint8_t rails) {
  assert_int_equal(hello->rails, rails);
  assert_int_equal(hello->more, 0);
  assert_int_equal(hello->paired, 0);
  for (uint8_t i = 0; i < rails; i++) {
    const uint8_t gid[16] = {[10] = 0xff, 0xff, 10, 0, (uint8_t)(i + 1), 1};
    assert_memory_equal(hello->ends[i].gid, gid, sizeof gid);
  }
}

static void check_initiator(const struct owner *owner, uint8_t rails) {
  struct welcome welcome;
  uint64_t handle;
  int control = raw_peer(owner->address, &welcome);
  assert_int_equal(welcome.version, 6);
  int channel = raw_channel(owner->address, &welcome, "rdma", 0);
  struct rdma_record hello = hello_of(rails);
  send_record(channel, &hello);
  hello = receive_record(channel, RDMA_HELLO);
  assert_ends(&hello, rails);
  receive_record(channel, RDMA_READY);
  send_record(channel, &(struct rdma_record){.type = RDMA_READY});
  assert_int_equal(raw_lookup(control, "memory", &handle), 0);
  send_record(channel, &(struct rdma_record){.type = RDMA_ATTACH, .request = 1, .handle = handle});
  struct rdma_record attached = receive_record(channel, RDMA_ATTACHED);
  assert_int_equal(attached.status, 0);
  assert_int_equal(attached.rails, rails);
  close(channel);
  close(control);
}

static void an_initiator_has_up_to_four_rails(void **state) {
  struct owner owner;
  (void)state;
  owner_start(&owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&owner, 0, KIND_HOST, LENGTH, "memory", HAUL_READ | HAUL_WRITE),
                   0);
  check_initiator(&owner, 1);
  check_initiator(&owner, 4);
  assert_int_equal(owner_end(&owner), 0);
}

static struct {
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *region;
} t;

static void *connect_node(void *argument) {
  (void)argument;
  assert_works(haul_peer_connect(t.node, own_socket(), haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "region", haul_deadline_in(BOUND), &t.remote));
  return NULL;
}

static int take_connection(int listener, const char *transport) {
  struct hello hello;
  int fd = raw_accept(listener);
  assert_true(fd >= 0 && raw_welcome(fd, false, &hello));
  assert_string_equal(hello.transport, transport);
  return fd;
}

static void assert_rails(unsigned rails) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_path path;
  char wanted[16];
  options.only = "rdma";
  assert_works(
      haul_explain(t.region, t.remote, HAUL_OP_WRITE, LENGTH, &options, &path, &(size_t){1}));
  assert_true(path.open);
  snprintf(wanted, sizeof wanted, ", %u rail", rails);
  assert_non_null(strstr(path.detail, wanted));
}

/* It does not wait for the other hello. */
static void check_acceptor(uint8_t rails) {
  pthread_t thread;
  int listener = raw_listen(own_socket());
  assert_works(haul_node_open(NULL, &t.node));
  t.region = region_make(t.node, KIND_HOST, LENGTH);
  pthread_create(&thread, NULL, connect_node, NULL);
  int control = take_connection(listener, "");
  int channel = take_connection(listener, "rdma");
  struct rdma_record hello = hello_of(rails);
  send_record(channel, &hello);
  hello = receive_record(channel, RDMA_HELLO);
  assert_ends(&hello, 4);
  receive_record(channel, RDMA_READY);
  assert_int_equal(nic_queue_pairs(), rails);
  send_record(channel, &(struct rdma_record){.type = RDMA_READY});
  raw_found(control, HANDLE, LENGTH);
  struct rdma_record attach = receive_record(channel, RDMA_ATTACH);
  send_record(channel, &(struct rdma_record){.type = RDMA_ATTACHED,
                                             .request = attach.request,
                                             .handle = HANDLE,
                                             .length = LENGTH,
                                             .rails = rails});
  pthread_join(thread, NULL);
  assert_rails(rails);
  haul_remote_release(t.remote);
  haul_region_release(t.region);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  close(channel);
  close(control);
  close(listener);
  nic_check_empty();
}

static void an_acceptor_has_up_to_four_rails(void **state) {
  (void)state;
  check_acceptor(2);
  check_acceptor(4);
}

int main(int argc, char **argv) {
  addresses_get = nic_addresses;
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_initiator_has_up_to_four_rails),
      cmocka_unit_test(an_acceptor_has_up_to_four_rails),
  };
  return cmocka_run_group_tests(tests, set_up, NULL);
}
