/* SPDX-License-Identifier: MIT
 * What one peer may have of a node: connections, regions, bytes in flight, and time to say who it
 * is. */
#include "support/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/sys.h"
#include "node/peer.h"
#include "support/owner.h"
#include "support/raw.h"

#define BOUND (20 * S)

static struct haul_node *server, *client;
static char address[160];

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static void serve(const struct haul_node_config *config) {
  assert_works(haul_node_open(config, &server));
  assert_works(haul_node_listen(server, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(server, 0, address, sizeof address));
  assert_works(haul_node_open(NULL, &client));
}

static int close_nodes(void **state) {
  (void)state;
  haul_node_close(client);
  haul_node_close(server);
  client = server = NULL;
  return 0;
}

static haul_peer *connected(void) {
  haul_peer *peer;
  assert_works(haul_peer_connect(client, address, soon(), &peer));
  return peer;
}

static void so_many_connections_of_one_origin(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_peer *peers[3], *more;
  int code = HAUL_ELIMIT;
  (void)state;
  config.max_peers_each = 3;
  serve(&config);
  for (size_t i = 0; i < COUNT(peers); i++)
    peers[i] = connected();
  assert_fails(HAUL_ELIMIT, haul_peer_connect(client, address, soon(), &more));
  assert_non_null(strstr(haul_error_last()->text, "max_peers_each"));
  haul_peer_close(peers[0]);
  for (haul_deadline until = soon(); code == HAUL_ELIMIT && clock_now() < until;)
    code = haul_peer_connect(client, address, soon(), &more); /* once the node saw it leave */
  assert_works(code);
  haul_peer_close(more);
  haul_peer_close(peers[1]);
  haul_peer_close(peers[2]);
}

static haul_region *published(const char *name) {
  haul_region *region;
  assert_works(haul_region_alloc(server, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  assert_works(haul_region_publish(region, name, HAUL_READ | HAUL_WRITE));
  return region;
}

static int looks_up(haul_peer *peer, const char *name) {
  haul_remote *remote;
  int code = haul_peer_lookup(peer, name, soon(), &remote);
  if (code == 0)
    haul_remote_release(remote);
  return code;
}

static void so_many_regions_at_a_time(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.max_lookups = 2;
  serve(&config);
  haul_region *one = published("one"), *two = published("two"), *three = published("three");
  haul_peer *peer = connected(), *other = connected();
  assert_works(looks_up(peer, "one"));
  assert_works(looks_up(peer, "one")); /* the same one */
  assert_works(looks_up(peer, "two"));
  assert_fails(HAUL_ELIMIT, looks_up(peer, "three"));
  assert_works(looks_up(other, "three"));
  haul_region_release(one);
  assert_works(looks_up(peer, "three"));
  assert_fails(HAUL_ENAME, looks_up(peer, "one"));
  haul_peer_close(peer);
  haul_peer_close(other);
  haul_region_release(two);
  haul_region_release(three);
}

/* It says how much, and a node keeps to it: all arrives. */
static void so_many_bytes_in_flight(void **state) {
  enum { WRITES = 16 };
  const size_t length = (size_t)4 << 20;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  haul_transfer *transfers[WRITES];
  haul_region *from, *to;
  haul_remote *remote;
  (void)state;
  config.peer_bytes = (size_t)2 << 20;
  serve(&config);
  assert_works(haul_region_alloc(server, (struct haul_place){HAUL_HOST, 0}, length, 0, &to));
  assert_works(haul_region_publish(to, "to", HAUL_READ | HAUL_WRITE));
  assert_works(haul_region_alloc(client, (struct haul_place){HAUL_HOST, 0}, length, 0, &from));
  pattern_fill(haul_region_address(from), length, 1);
  haul_peer *peer = connected();
  assert_int_equal(peer->base.window, 2);
  assert_works(haul_peer_lookup(peer, "to", soon(), &remote));
  options.only = "tcp";
  const struct haul_piece piece = {0, 0, length};
  for (int i = 0; i < WRITES; i++)
    assert_works(haul_write(remote, from, &piece, 1, &options, &transfers[i]));
  for (int i = 0; i < WRITES; i++) {
    assert_works(haul_transfer_wait(transfers[i], soon()));
    haul_transfer_release(transfers[i]);
  }
  pattern_check(haul_region_address(to), length, 1);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(from);
  haul_region_release(to);
}

static void the_time_for_a_handshake_is_bounded(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.handshake_ns = 200 * MS;
  serve(&config);
  int64_t began = clock_now();
  int fd = raw_connect(address);
  assert_true(raw_ended(fd, BOUND));
  int64_t took = clock_now() - began;
  assert_true(took >= 190 * MS && took < 5 * S);
  close(fd);
}

/* Connects from another address of this host and sends nothing. */
static int stranger(void) {
  struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000002)};
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
  return fd;
}

/* Those who say nothing, and come again and again, take no room from others. */
static void one_origin_cannot_occupy_all_handshakes(void **state) {
  enum { MANY = 300, AFTER = 100 };
  int strangers[MANY + AFTER];
  (void)state;
  serve(NULL);
  for (unsigned i = 0; i < MANY; i++)
    strangers[i] = stranger();
  int fd = raw_connect(address);
  for (unsigned i = MANY; i < MANY + AFTER; i++)
    strangers[i] = stranger();
  haul_peer_close(connected());
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hello = raw_hello(ROLE_CONTROL);
  assert_true(raw_send(fd, bytes, hello_pack(&hello, bytes)));
  assert_true(raw_receive(fd, bytes, HANDSHAKE_HEAD));
  close(fd);
  for (unsigned i = 0; i < MANY + AFTER; i++)
    close(strangers[i]);
}

/* Questions that take long, as each is about many regions that are for others. */
static void many_requests_do_not_delay_other_peers(void **state) {
  enum { REGIONS = 20000, QUESTIONS = 400, QUESTION = CONTROL_HEAD + 2, ANSWER = CONTROL_HEAD + 6 };
  static uint8_t questions[QUESTIONS * QUESTION], answers[QUESTIONS * ANSWER];
  const struct haul_grant grants[2] = {{"one", HAUL_READ}, {"other", HAUL_READ}};
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_region *region;
  haul_remote *remote;
  struct welcome welcome;
  char name[32];
  int answered = 0;
  (void)state;
  config.liveness_ns = 3600 * S; /* the raw peer is silent while it waits */
  serve(&config);
  assert_works(haul_region_alloc(server, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  for (int i = 0; i < REGIONS; i++) {
    snprintf(name, sizeof name, "region-%05d", i);
    assert_works(haul_region_publish_to(region, name, grants, COUNT(grants)));
  }
  haul_peer *peer = connected();
  int fd = raw_peer(address, &welcome);
  for (size_t i = 0; i < QUESTIONS; i++) /* "" and all behind it */
    raw_control_head(questions + i * QUESTION, CONTROL_LIST, 2, 1);
  assert_true(raw_send(fd, questions, sizeof questions));
  while (answered == 0)
    assert_int_equal(ioctl(fd, FIONREAD, &answered), 0);
  assert_fails(HAUL_ENAME, haul_peer_lookup(peer, "region-00001", soon(), &remote));
  assert_int_equal(ioctl(fd, FIONREAD, &answered), 0);
  assert_in_range(answered, ANSWER, QUESTIONS * ANSWER - 1);
  assert_true(raw_receive(fd, answers, sizeof answers)); /* every request has its response */
  close(fd);
  haul_peer_close(peer);
  haul_region_release(region);
}

static void limits_that_are_none_are_refused(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.peer_bytes = 1000;
  assert_fails(HAUL_EINVAL, haul_node_open(&config, &server));
  config.peer_bytes = 0;
  config.handshake_ns = -1;
  assert_fails(HAUL_EINVAL, haul_node_open(&config, &server));
  config.handshake_ns = 0;
  config.max_lookups = 1048577;
  assert_fails(HAUL_EINVAL, haul_node_open(&config, &server));
  server = NULL;
}

#define TEST(test) cmocka_unit_test_teardown(test, close_nodes)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(so_many_connections_of_one_origin),
      TEST(so_many_regions_at_a_time),
      TEST(so_many_bytes_in_flight),
      TEST(the_time_for_a_handshake_is_bounded),
      TEST(one_origin_cannot_occupy_all_handshakes),
      TEST(many_requests_do_not_delay_other_peers),
      TEST(limits_that_are_none_are_refused),
  };
  return cmocka_run_group_tests_name("node/limits", tests, NULL, NULL);
}
