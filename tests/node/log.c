/* SPDX-License-Identifier: MIT
 * The log of a node: its events, its bounds, and its end. */
#include "support/check.h"

#include <haul/log.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/node.h"
#include "support/owner.h"
#include "support/rails.h"
#include "support/raw.h"

#define BOUND (20 * S)
#define ROOM  4096

/* What was said, as "event key=value …", a line each. */
static struct {
  pthread_mutex_t lock;
  char lines[ROOM][256];
  int levels[ROOM];
  size_t count;
  int inside;
  bool at_once; /* two lines were delivered at the same time */
} said = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void take(void *user, const struct haul_log_line *line) {
  assert_ptr_equal(user, &said);
  pthread_mutex_lock(&said.lock);
  said.at_once |= said.inside++ > 0;
  pthread_mutex_unlock(&said.lock);
  assert_true(line->time_ns > 0 && line->text[0] && line->node[0]);
  char *text = said.lines[said.count % ROOM];
  size_t length = (size_t)snprintf(text, 256, "%s", line->event);
  for (size_t i = 0; i < line->count && length < 256; i++)
    length += (size_t)snprintf(text + length, 256 - length, " %s=%s", line->fields[i].key,
                               line->fields[i].value);
  pthread_mutex_lock(&said.lock);
  said.levels[said.count % ROOM] = (int)line->level;
  said.count++;
  said.inside--;
  pthread_mutex_unlock(&said.lock);
}

static size_t count_of(const char *part) {
  size_t found = 0;
  pthread_mutex_lock(&said.lock);
  for (size_t i = 0; i < said.count; i++)
    found += strstr(said.lines[i], part) != NULL;
  pthread_mutex_unlock(&said.lock);
  return found;
}

/* A line that has this is there, soon. */
static void assert_said(const char *part) {
  for (haul_deadline until = haul_deadline_in(BOUND);
       count_of(part) == 0 && haul_deadline_in(0) < until;)
    usleep(10000);
  if (count_of(part) == 0)
    for (size_t i = 0; i < said.count; i++)
      print_error("%s\n", said.lines[i]);
  if (count_of(part) == 0)
    fail_msg("nothing was said of '%s'", part);
}

static int forget(void **state) {
  (void)state;
  said.count = 0;
  said.at_once = false;
  return 0;
}

static int say_nothing(void **state) {
  (void)state;
  haul_log_set(HAUL_LOG_ERROR, NULL, NULL);
  return 0;
}

/* 0: the test run's. A path that is lost is logged after a quarter of it. */
static int64_t liveness_ns;

static struct haul_node *node_at(enum haul_log_level level, int progress, unsigned max_peers) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.name = "server";
  config.progress = progress;
  config.max_peers = max_peers;
  config.liveness_ns = liveness_ns;
  assert_works(haul_log_set(level, take, &said));
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_log_set(level, NULL, NULL));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  return node;
}

static struct haul_node *server(enum haul_log_level level) {
  return node_at(level, HAUL_PROGRESS_THREAD, 0);
}

static const char *address_of(struct haul_node *node) {
  static char address[160];
  assert_works(haul_node_address(node, 0, address, sizeof address));
  return address;
}

static struct haul_node *client(const char *name) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.name = name;
  assert_works(haul_node_open(&config, &node));
  return node;
}

static void connects_and_ends_are_logged(void **state) {
  haul_peer *peer;
  (void)state;
  struct haul_node *node = server(HAUL_LOG_INFO), *other = client("guest");
  assert_works(haul_peer_connect(other, address_of(node), haul_deadline_in(BOUND), &peer));
  assert_said("connected peer=guest address=127.0.0.1:");
  haul_peer_close(peer);
  assert_said("left peer=guest address=127.0.0.1:");
  assert_said("reason=the peer closed the connection");
  haul_node_close(other);
  haul_node_close(node);
  assert_false(said.at_once);
}

static void refusals_are_logged_with_the_reason(void **state) {
  struct welcome welcome;
  (void)state;
  struct haul_node *node = server(HAUL_LOG_WARNING);
  struct hello hello = raw_hello(ROLE_CONTROL);
  hello.lowest = hello.highest = 99;
  int fd = raw_connect(address_of(node));
  assert_true(raw_greet(fd, &hello, &welcome));
  close(fd);
  assert_said("refused address=127.0.0.1:");
  assert_said("99 to 99 offered");
  fd = raw_connect(address_of(node));
  assert_true(raw_send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27));
  assert_said("does not begin with a hello");
  close(fd);
  haul_node_close(node);
  assert_int_equal(count_of("connected"), 0);
}

static void protocol_errors_are_logged(void **state) {
  struct welcome welcome;
  (void)state;
  struct haul_node *node = server(HAUL_LOG_WARNING);
  int fd = raw_peer(address_of(node), &welcome);
  assert_true(raw_control(fd, CONTROL_CREDIT, 0, "abc", 3));
  assert_said("dropped peer=");
  assert_said("reason=the peer sent a malformed control frame");
  close(fd);
  haul_node_close(node);
}

static void limits(void **state) {
  haul_peer *peer, *second;
  (void)state;
  struct haul_node *node = node_at(HAUL_LOG_WARNING, HAUL_PROGRESS_THREAD, 1);
  struct haul_node *other = client("guest");
  assert_works(haul_peer_connect(other, address_of(node), haul_deadline_in(BOUND), &peer));
  assert_fails(HAUL_ELIMIT,
               haul_peer_connect(other, address_of(node), haul_deadline_in(BOUND), &second));
  assert_said("limit address=127.0.0.1:");
  assert_said("max_peers");
  haul_peer_close(peer);
  haul_node_close(other);
  haul_node_close(node);
}

/* Ends the latest of the connections that were made to the address, which is one of tcp's. */
static void cut_rail(const char *address) {
  unsigned port = (unsigned)atoi(strrchr(address, ':') + 1);
  int latest = -1;
  for (int fd = 3; fd < 256; fd++) {
    struct sockaddr_in other = {0};
    socklen_t length = sizeof other;
    if (getpeername(fd, (struct sockaddr *)&other, &length) == 0 && other.sin_family == AF_INET &&
        ntohs(other.sin_port) == port)
      latest = fd;
  }
  assert_int_equal(shutdown(latest, SHUT_RDWR), 0);
}

static void cut_unix_sockets(void) {
  for (int fd = 3; fd < 256; fd++) {
    struct sockaddr_storage other = {0};
    socklen_t length = sizeof other;
    if (getpeername(fd, (struct sockaddr *)&other, &length) == 0 && other.ss_family == AF_UNIX)
      shutdown(fd, SHUT_RDWR);
  }
}

/* A transfer over tcp, which opens its rails. */
static void first_transfer(struct haul_node *node, struct haul_node *other, haul_peer *peer) {
  struct haul_region *here = region_make(other, KIND_HOST, 4096);
  struct haul_region *there = region_make(node, KIND_HOST, 4096);
  struct haul_remote *remote;
  assert_works(haul_region_publish(there, "there", HAUL_READ));
  assert_works(haul_peer_lookup(peer, "there", haul_deadline_in(BOUND), &remote));
  open_rails(remote, here);
  haul_remote_release(remote);
  haul_region_release(here);
  haul_region_release(there);
}

static haul_peer *pair_with(unsigned rails, struct haul_node **node, struct haul_node **other) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_peer *peer;
  liveness_ns = config.liveness_ns = 8 * S;
  *node = server(HAUL_LOG_WARNING);
  liveness_ns = 0;
  config.name = "guest";
  config.tcp_rails = rails;
  assert_works(haul_node_open(&config, other));
  assert_works(haul_peer_connect(*other, address_of(*node), haul_deadline_in(BOUND), &peer));
  return peer;
}

static void end_pair(haul_peer *peer, struct haul_node *node, struct haul_node *other) {
  haul_peer_close(peer);
  haul_node_close(other);
  haul_node_close(node);
}

static void a_rail_that_is_lost(void **state) {
  struct haul_node *node, *other;
  (void)state;
  haul_peer *peer = pair_with(4, &node, &other);
  first_transfer(node, other, peer);
  cut_rail(address_of(node));
  assert_said("rail_lost peer=guest path=tcp reason=1 data connections ended, others go on");
  assert_works(haul_peer_status(peer));
  assert_int_equal(count_of("path_lost"), 0);
  end_pair(peer, node, other);
}

static void a_path_that_is_lost(void **state) {
  struct haul_node *node, *other;
  (void)state;
  haul_peer *peer = pair_with(0, &node, &other);
  cut_unix_sockets();
  assert_said("path_lost peer=guest path=map reason=the map channel to the peer ended");
  assert_works(haul_peer_status(peer));
  end_pair(peer, node, other);
}

/* A peer that takes the control connection and answers a lookup, and takes no other connection. */
static void *takes_one(void *user) {
  int listener = *(int *)user, fds[2];
  struct hello hello;
  fds[0] = raw_accept(listener);
  assert_true(fds[0] >= 0 && raw_welcome(fds[0], false, &hello));
  raw_refuse_nic(listener, fds[0]);
  raw_found(fds[0], 77, 4096);
  fds[1] = raw_accept(listener);
  close(fds[1]);
  close(listener);
  raw_ended(fds[0], BOUND);
  close(fds[0]);
  return NULL;
}

static void a_path_that_cannot_be_opened(void **state) {
  char address[64];
  struct sockaddr_in own;
  socklen_t length = sizeof own;
  haul_peer *peer;
  pthread_t thread;
  struct haul_remote *remote;
  struct haul_piece piece = {0, 0, 1};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  (void)state;
  liveness_ns = 2 * S; /* for so long it is tried */
  struct haul_node *node = server(HAUL_LOG_INFO);
  liveness_ns = 0;
  struct haul_region *region = region_make(node, KIND_HOST, 4096);
  int listener = raw_listen("tcp://127.0.0.1:0");
  options.only = "tcp";
  getsockname(listener, (struct sockaddr *)&own, &length);
  snprintf(address, sizeof address, "tcp://127.0.0.1:%u", ntohs(own.sin_port));
  pthread_create(&thread, NULL, takes_one, &listener);
  assert_works(haul_peer_connect(node, address, haul_deadline_in(BOUND), &peer));
  assert_works(haul_peer_lookup(peer, "there", haul_deadline_in(BOUND), &remote));
  assert_fails(HAUL_ENOPATH, haul_read(region, remote, &piece, 1, &options, NULL));
  assert_non_null(strstr(haul_error_last()->hint, "not tcp: no data connection: "));
  assert_said("path_failed peer=");
  assert_said("path=tcp reason=no data connection: ");
  assert_said("left peer=");
  assert_said("reason=every path to the peer broke"); /* the next connection may have one */
  assert_fails(HAUL_EPEER, haul_peer_status(peer));
  haul_remote_release(remote);
  haul_region_release(region);
  haul_peer_close(peer);
  haul_node_close(node);
  pthread_join(thread, NULL);
}

/* A flood of events gives few lines, and the rest is counted. */
static void a_flood_is_counted(void **state) {
  enum { MANY = 300 };
  unsigned more = 0;
  (void)state;
  struct haul_node *node = server(HAUL_LOG_WARNING);
  for (int i = 0; i < MANY; i++) {
    int fd = raw_connect(address_of(node));
    raw_send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
    assert_true(raw_ended(fd, BOUND));
    close(fd);
  }
  assert_said(" more like this");
  haul_node_close(node); /* tells the rest */
  for (size_t i = 0; i < said.count; i++) {
    const char *at = strstr(said.lines[i], " more=");
    unsigned count;
    if (at && sscanf(at, " more=%u", &count) == 1)
      more += count;
  }
  size_t told = count_of("does not begin with a hello");
  assert_int_equal(told + more, MANY);
  assert_true(told < MANY);
}

static void a_level_omits_less_severe_events(void **state) {
  haul_peer *peer;
  (void)state;
  struct haul_node *node = server(HAUL_LOG_ERROR), *other = client("guest");
  assert_works(haul_peer_connect(other, address_of(node), haul_deadline_in(BOUND), &peer));
  int fd = raw_connect(address_of(node));
  raw_send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
  assert_true(raw_ended(fd, BOUND));
  close(fd);
  haul_peer_close(peer);
  haul_node_close(other);
  haul_node_close(node);
  assert_int_equal(said.count, 0);
}

/* Lines wait for the driving thread; the close delivers the last ones. */
static void the_driving_thread_gets_the_lines(void **state) {
  (void)state;
  struct haul_node *node = node_at(HAUL_LOG_WARNING, HAUL_PROGRESS_CALLER, 0);
  int fd = raw_connect(address_of(node));
  raw_send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
  assert_int_equal(said.count, 0);
  while (said.count == 0)
    assert_true(haul_node_progress(node, haul_deadline_in(BOUND)) > 0);
  assert_int_equal(said.levels[0], HAUL_LOG_WARNING);
  close(fd);
  haul_node_close(node);
}

static void a_node_that_is_closed_says_no_more(void **state) {
  haul_peer *peer;
  (void)state;
  struct haul_node *node = server(HAUL_LOG_DEBUG), *other = client("guest");
  assert_works(haul_peer_connect(node, address_of(node), haul_deadline_in(BOUND), &peer));
  haul_node_close(node);
  size_t count = said.count;
  assert_said("left peer=server");
  haul_peer_close(peer);
  haul_node_close(other);
  assert_int_equal(said.count, count);
}

static void wrong_arguments(void **state) {
  (void)state;
  assert_fails(HAUL_EINVAL, haul_log_set((enum haul_log_level)0, take, NULL));
  assert_fails(HAUL_EINVAL, haul_log_set((enum haul_log_level)5, take, NULL));
  assert_works(haul_log_set((enum haul_log_level)0, NULL, NULL));
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, forget, say_nothing)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(connects_and_ends_are_logged),
      TEST(refusals_are_logged_with_the_reason),
      TEST(protocol_errors_are_logged),
      TEST(limits),
      TEST(a_rail_that_is_lost),
      TEST(a_path_that_is_lost),
      TEST(a_path_that_cannot_be_opened),
      TEST(a_flood_is_counted),
      TEST(a_level_omits_less_severe_events),
      TEST(the_driving_thread_gets_the_lines),
      TEST(a_node_that_is_closed_says_no_more),
      TEST(wrong_arguments),
  };
  return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
