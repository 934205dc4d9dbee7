/* SPDX-License-Identifier: MIT
 * Nodes that find each other by name: entries, dead nodes and their successors, and an etcd that
 * fails, restarts, or is another server. */
#include "support/check.h"

#include <haul/access.h>
#include <haul/directory.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/child.h"
#include "support/etcd.h"
#include "support/owner.h"

#define BOUND       (20 * S)
#define DIES_MODE   "dies"
#define LEASE       2
#define REGIONS_NUM 1200 /* more than a page */

static struct etcd etcd;
static struct haul_node *server, *client;
static haul_directory *walk;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static struct haul_node *named(const char *name) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.name = name;
  config.peer_events = 0;
  assert_works(haul_node_open(&config, &node));
  return node;
}

static void listen_at(struct haul_node *node, const char *address) {
  assert_works(haul_node_listen(node, address));
}

static int enter(struct haul_node *node, haul_deadline until) {
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  options.lease_seconds = LEASE;
  return haul_node_register(node, etcd.directory, &options, until);
}

static struct haul_node *entered(const char *name) {
  struct haul_node *node = named(name);
  listen_at(node, "tcp://127.0.0.1:0");
  assert_works(enter(node, soon()));
  return node;
}

static haul_region *publish(struct haul_node *node, const char *name, size_t length) {
  haul_region *region;
  const struct haul_place host = {HAUL_HOST, 0};
  assert_works(haul_region_alloc(node, host, length, 0, &region));
  assert_works(haul_region_publish(region, name, HAUL_READ));
  return region;
}

/* The address of a name in the directory; eight are kept. */
static const char *at(const char *name) {
  static char texts[8][200];
  static unsigned next;
  char *text = texts[next++ % 8];
  snprintf(text, sizeof texts[0], "%s/%s", etcd.directory, name);
  return text;
}

static int find(const char *name, struct haul_directory_entry *entry) {
  size_t count = 1;
  int code = haul_directory_find(client, at(name), soon(), entry, &count);
  return code ? code : (int)count;
}

/* Waits until the name exists, or does not. */
static void wait_until(const char *name, bool there) {
  struct haul_directory_entry entry;
  for (int i = 0; i < 400; i++) {
    int found = find(name, &entry);
    if (there ? found > 0 : found == HAUL_ENAME)
      return;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
  }
  fail_msg("%s is %s", name, there ? "not there" : "still there");
}

static int connects_to(const char *address) {
  haul_peer *peer = NULL;
  int code = haul_peer_connect(client, address, soon(), &peer);
  haul_peer_close(peer);
  return code;
}

static int open_client(void **state) {
  (void)state;
  client = named("client");
  return 0;
}

/* A client that waits a second for a member of etcd that is silent. */
static void open_impatient_client(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node_close(client);
  config.liveness_ns = S;
  assert_works(haul_node_open(&config, &client));
}

static int close_all(void **state) {
  (void)state;
  haul_directory_close(walk);
  haul_node_close(server);
  haul_node_close(client);
  walk = NULL;
  server = client = NULL;
  return 0;
}

static void a_node_name_leads_to_the_node(void **state) {
  (void)state;
  struct haul_directory_entry entry;
  haul_peer *peer;
  server = entered("alpha");
  assert_int_equal(find("alpha", &entry), 1);
  assert_int_equal(entry.kind, HAUL_DIRECTORY_NODE);
  assert_string_equal(entry.node, "alpha");
  assert_int_equal(entry.address_count, 1);
  assert_works(haul_peer_connect(client, at("alpha"), soon(), &peer));
  assert_string_equal(haul_peer_name(peer), "alpha");
  haul_peer_close(peer);
}

static void a_region_name_leads_to_its_publisher(void **state) {
  (void)state;
  struct haul_directory_entry entry;
  haul_peer *peer;
  haul_remote *remote;
  server = entered("beta");
  haul_region *region = publish(server, "weights", 12345);
  wait_until("weights", true);
  assert_int_equal(find("weights", &entry), 1);
  assert_int_equal(entry.kind, HAUL_DIRECTORY_REGION);
  assert_string_equal(entry.node, "beta");
  assert_int_equal(entry.length, 12345);
  assert_int_equal(entry.rights, HAUL_READ);
  assert_works(haul_peer_connect(client, at("weights"), soon(), &peer));
  assert_works(haul_peer_lookup(peer, "weights", soon(), &remote));
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(region);
  wait_until("weights", false);
}

static void of_several_publishers_a_reachable_one_is_chosen(void **state) {
  (void)state;
  server = entered("gamma");
  struct haul_node *second = entered("delta");
  haul_region *one = publish(server, "shard", 100), *other = publish(second, "shard", 100);
  size_t count = 2;
  struct haul_directory_entry entries[2];
  for (int i = 0; i < 100; i++) {
    count = 2;
    if (haul_directory_find(client, at("shard"), soon(), entries, &count) == 0 && count == 2)
      break;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
  }
  assert_int_equal(count, 2);
  assert_string_equal(entries[0].node, "delta");
  assert_string_equal(entries[1].node, "gamma");
  /* An entry of a dead node is skipped. */
  etcd_put(&etcd, "test/name/shard/aaa",
           "{\"id\":\"00000000000000000000000000000000\",\"boot\":"
           "\"00000000000000000000000000000000\",\"addresses\":[\"tcp://127.0.0.1:1\"],\"bytes\":5,"
           "\"place\":\"host\",\"rights\":\"r\"}");
  for (int i = 0; i < 8; i++)
    assert_works(connects_to(at("shard")));
  haul_region_release(one);
  haul_region_release(other);
  haul_node_close(second);
}

static void names_may_have_any_byte_that_a_name_may(void **state) {
  (void)state;
  struct haul_directory_entry entry;
  server = entered("a/b");
  haul_region *region = publish(server, "x/y%z\"{", 100);
  wait_until("x%2Fy%25z\"{", true);
  assert_int_equal(find("a%2Fb", &entry), 1);
  assert_string_equal(entry.node, "a/b");
  assert_works(connects_to(at("a%2fb")));
  haul_region_release(region);
}

static void regions_for_some_identities_are_not_entered(void **state) {
  (void)state;
  const struct haul_grant grant = {"alice", HAUL_READ};
  haul_region *region;
  const struct haul_place host = {HAUL_HOST, 0};
  struct haul_directory_entry entry;
  server = entered("epsilon");
  assert_works(haul_region_alloc(server, host, 100, 0, &region));
  assert_works(haul_region_publish_to(region, "secret", &grant, 1));
  haul_region *known = publish(server, "known", 100);
  wait_until("known", true); /* so the round after it is over */
  assert_int_equal(find("secret", &entry), HAUL_ENAME);
  haul_region_release(region);
  haul_region_release(known);
}

static void addresses_may_be_advertised(void **state) {
  (void)state;
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  struct haul_directory_entry entry;
  server = named("zeta");
  options.advertise = "tcp://10.1.2.3:7420,tcp://10.1.2.4:7420";
  assert_works(haul_node_register(server, etcd.directory, &options, soon()));
  assert_int_equal(find("zeta", &entry), 1);
  assert_int_equal(entry.network, 0);
  assert_int_equal(entry.address_count, 2);
  assert_string_equal(entry.addresses[1], "tcp://10.1.2.4:7420");
}

static void only_addresses_may_be_advertised(void **state) {
  static const char *const lists[] = {
      "",           "foo",
      "10.0.0.7",   "tcp://10.0.0.7",
      "tcp://:1",   "tcp://a:1, tcp://b:1",
      "tcp://a:1,", "tcp://a:1,tcp://b:1,tcp://c:1,tcp://d:1,tcp://e:1"};
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  (void)state;
  server = named("upsilon");
  for (size_t i = 0; i < COUNT(lists); i++) {
    options.advertise = lists[i];
    assert_fails(HAUL_EINVAL, haul_node_register(server, etcd.directory, &options, soon()));
  }
}

static void a_listener_on_all_addresses_is_entered_with_a_real_one(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_directory_entry entry;
  config.name = "wide";
  config.insecure = 1;
  assert_works(haul_node_open(&config, &server));
  listen_at(server, "tcp://0.0.0.0:0");
  assert_works(enter(server, soon()));
  assert_int_equal(find("wide", &entry), 1);
  assert_int_equal(strncmp(entry.addresses[0], "tcp://127.0.0.1:", 16), 0);
}

/* A region is withdrawn while its entry is being put, and the node listens on a further address. */
static void a_region_withdrawn_during_an_update_is_removed(void **state) {
  (void)state;
  server = entered("rho");
  for (int i = 0; i < 20; i++) {
    haul_region *region = publish(server, "fleeting", 100);
    if (i % 2)
      wait_until("fleeting", true);
    assert_works(haul_region_unpublish(region, "fleeting"));
    if (i < 10)
      listen_at(server, "tcp://127.0.0.1:0");
    haul_region_release(region);
  }
  wait_until("fleeting", false);
}

static void many_take_longer_than_a_lease(void **state) {
  haul_region *region;
  const struct haul_place host = {HAUL_HOST, 0};
  (void)state;
  server = named("sigma");
  listen_at(server, "tcp://127.0.0.1:0");
  assert_works(haul_region_alloc(server, host, 64, 0, &region));
  for (int i = 0; i < (SANITIZED ? 4000 : 20000); i++) {
    char name[16];
    snprintf(name, sizeof name, "m%d", i);
    assert_works(haul_region_publish(region, name, HAUL_READ));
  }
  assert_works(enter(server, haul_deadline_in(60 * S)));
  haul_region_release(region);
}

static struct haul_directory_event next_event(void) {
  struct haul_directory_event event;
  assert_works(haul_directory_next(walk, soon(), &event));
  return event;
}

static void open_walk_of(const char *directory) {
  struct haul_directory_event event;
  assert_works(haul_directory_open(client, directory, soon(), &walk));
  do
    event = next_event();
  while (event.kind == HAUL_DIRECTORY_HOLDS);
  assert_int_equal(event.kind, HAUL_DIRECTORY_TOLD);
}

static void open_walk(void) {
  open_walk_of(etcd.directory);
}

static void assert_next(int kind, const char *node, const char *name) {
  struct haul_directory_event event = next_event();
  assert_string_equal(event.entry.node, node);
  assert_string_equal(event.entry.name, name);
  assert_int_equal(event.kind, kind);
}

static void a_walk_returns_entries_and_then_changes(void **state) {
  struct haul_directory_event event;
  (void)state;
  open_walk();
  assert_int_equal(haul_directory_next(walk, haul_deadline_in(50 * MS), &event), HAUL_ETIMEDOUT);
  server = entered("eta");
  assert_next(HAUL_DIRECTORY_CAME, "eta", "");
  haul_region *region = publish(server, "cache", 100);
  assert_next(HAUL_DIRECTORY_CAME, "eta", "cache");
  assert_works(haul_region_unpublish(region, "cache"));
  assert_next(HAUL_DIRECTORY_WENT, "eta", "cache");
  haul_region_release(region);
  haul_node_close(server);
  server = NULL;
  assert_next(HAUL_DIRECTORY_WENT, "eta", "");
}

static void more_than_a_page_is_returned_whole(void **state) {
  static haul_region *regions[REGIONS_NUM];
  struct haul_directory_event event;
  unsigned told = 0;
  (void)state;
  server = named("theta");
  listen_at(server, "tcp://127.0.0.1:0");
  for (unsigned i = 0; i < REGIONS_NUM; i++) {
    char name[16];
    snprintf(name, sizeof name, "r%u", i);
    regions[i] = publish(server, name, 64);
  }
  assert_works(enter(server, soon()));
  assert_works(haul_directory_open(client, etcd.directory, soon(), &walk));
  do {
    event = next_event();
    told += event.kind == HAUL_DIRECTORY_HOLDS && event.entry.kind == HAUL_DIRECTORY_REGION &&
            strcmp(event.entry.node, "theta") == 0;
  } while (event.kind == HAUL_DIRECTORY_HOLDS);
  assert_int_equal(told, REGIONS_NUM);
  for (unsigned i = 0; i < REGIONS_NUM; i++)
    haul_region_release(regions[i]);
}

static void a_node_that_listens_again_is_entered_again(void **state) {
  (void)state;
  struct haul_directory_entry entry = {0};
  server = entered("iota");
  haul_region *region = publish(server, "moves", 100);
  wait_until("moves", true);
  listen_at(server, "tcp://127.0.0.1:0");
  for (int i = 0; i < 100 && entry.address_count < 2; i++) {
    assert_int_equal(find("moves", &entry), 1);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
  }
  assert_int_equal(entry.address_count, 2);
  haul_region_release(region);
}

/* Enters the directory, says so, and waits to be killed. */
static int dies_main(void) {
  struct haul_node *node;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  char directory[96], name[8] = "x";
  child_receive(3, directory, sizeof directory);
  config.name = "mortal";
  options.lease_seconds = LEASE;
  if (haul_node_open(&config, &node) || haul_node_listen(node, "tcp://127.0.0.1:0") ||
      haul_node_register(node, directory, &options, soon()))
    return 1;
  child_send(3, name, sizeof name, -1);
  pause();
  return 0;
}

static pid_t start_mortal(int *socket) {
  char word[8];
  pid_t pid = child_start(DIES_MODE, socket);
  child_send(*socket, etcd.directory, sizeof etcd.directory, -1);
  child_receive(*socket, word, sizeof word);
  return pid;
}

static void a_killed_node_expires_with_its_lease(void **state) {
  int socket;
  (void)state;
  pid_t pid = start_mortal(&socket);
  wait_until("mortal", true);
  kill(pid, SIGKILL);
  assert_int_equal(child_end(pid, socket), 128 + SIGKILL);
  int64_t began = haul_deadline_in(0);
  wait_until("mortal", false);
  /* etcd looks for ended leases every half a second, and gives a lease a second more. */
  assert_true(haul_deadline_in(0) - began < (LEASE + 10) * S);
}

static void a_name_is_one_node_s(void **state) {
  (void)state;
  server = entered("kappa");
  struct haul_node *second = named("kappa");
  listen_at(second, "tcp://127.0.0.1:0");
  assert_fails(HAUL_EEXIST, enter(second, haul_deadline_in(300 * MS)));
  assert_works(connects_to(at("kappa")));
  haul_node_close(second);
}

static void a_name_that_becomes_free_is_awaited(void **state) {
  int socket;
  (void)state;
  pid_t pid = start_mortal(&socket);
  kill(pid, SIGKILL);
  child_end(pid, socket);
  server = named("mortal");
  listen_at(server, "tcp://127.0.0.1:0");
  assert_works(enter(server, soon()));
}

static void a_node_at_the_same_address_is_the_successor(void **state) {
  struct haul_directory_entry entry;
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  int socket;
  (void)state;
  pid_t pid = start_mortal(&socket);
  kill(pid, SIGKILL);
  child_end(pid, socket);
  assert_int_equal(find("mortal", &entry), 1);
  server = named("mortal");
  listen_at(server, entry.addresses[0]);
  assert_works(haul_node_register(server, etcd.directory, &options, haul_deadline_in(S)));
}

static void another_node_at_the_address_is_rejected(void **state) {
  struct haul_directory_entry entry;
  int socket;
  (void)state;
  pid_t pid = start_mortal(&socket);
  assert_int_equal(find("mortal", &entry), 1);
  kill(pid, SIGKILL);
  child_end(pid, socket);
  server = named("somebody");
  listen_at(server, entry.addresses[0]);
  assert_fails(HAUL_EPEER, connects_to(at("mortal")));
  assert_non_null(strstr(haul_error_last()->text, "somebody"));
  wait_until("mortal", false);
}

static void *close_soon(void *node) {
  nanosleep(&(struct timespec){0, 200000000}, NULL);
  haul_node_close(node);
  return NULL;
}

static void without_an_etcd_the_call_fails_in_time(void **state) {
  struct haul_directory_entry entry;
  size_t count = 1;
  (void)state;
  assert_fails(HAUL_ECONNECT,
               haul_directory_find(client, "etcd://127.0.0.1:1/test/x", soon(), &entry, &count));
  server = named("lambda");
  listen_at(server, "tcp://127.0.0.1:0");
  assert_fails(HAUL_ECONNECT, haul_node_register(server, "etcd://127.0.0.1:1/test", NULL, soon()));
  assert_works(enter(server, soon())); /* with a running etcd */
}

static void another_member_is_tried(void **state) {
  char address[160];
  (void)state;
  server = entered("mu");
  snprintf(address, sizeof address, "etcd://127.0.0.1:1,127.0.0.1:%u/test/mu", etcd.port);
  assert_works(connects_to(address));
}

static void a_find_ends_with_its_node(void **state) {
  struct haul_directory_entry entry;
  size_t count = 1;
  pthread_t thread;
  (void)state;
  etcd_stop(&etcd);
  pthread_create(&thread, NULL, close_soon, client);
  int code = haul_directory_find(client, at("x"), soon(), &entry, &count);
  pthread_join(thread, NULL);
  etcd_go_on(&etcd);
  client = NULL;
  assert_int_equal(code, HAUL_ECLOSED);
}

static void a_stopped_etcd_costs_at_most_the_deadline(void **state) {
  struct haul_directory_entry entry;
  size_t count = 1;
  (void)state;
  etcd_stop(&etcd);
  int64_t began = haul_deadline_in(0);
  int code = haul_directory_find(client, at("x"), haul_deadline_in(300 * MS), &entry, &count);
  int64_t took = haul_deadline_in(0) - began;
  etcd_go_on(&etcd);
  assert_int_equal(code, HAUL_ETIMEDOUT);
  assert_true(took < 10 * S);
}

static void a_stopped_etcd_delays_no_call_without_deadline(void **state) {
  struct haul_directory_entry entry;
  size_t count = 1;
  (void)state;
  open_impatient_client();
  etcd_stop(&etcd);
  int code = haul_directory_find(client, at("x"), HAUL_FOREVER, &entry, &count);
  etcd_go_on(&etcd);
  assert_int_equal(code, HAUL_ETIMEDOUT);
}

static _Atomic int changes, last_change;

static void note_change(void *user, int code) {
  (void)user;
  atomic_store(&last_change, code);
  atomic_fetch_add(&changes, 1);
}

static void wait_for_change(int count) {
  for (int i = 0; i < 400 && atomic_load(&changes) < count; i++)
    nanosleep(&(struct timespec){0, 50000000}, NULL);
  assert_true(atomic_load(&changes) >= count);
}

static void an_etcd_that_lost_its_data_is_filled_again(void **state) {
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  (void)state;
  server = named("nu");
  listen_at(server, "tcp://127.0.0.1:0");
  haul_region *region = publish(server, "lasting", 100);
  options.lease_seconds = LEASE;
  options.changed = note_change;
  assert_works(haul_node_register(server, etcd.directory, &options, soon()));
  etcd_kill(&etcd);
  wait_for_change(1);
  assert_true(atomic_load(&last_change) != 0);
  etcd_start_again(&etcd, true);
  wait_for_change(2);
  assert_int_equal(atomic_load(&last_change), 0);
  wait_until("nu", true);
  wait_until("lasting", true);
  haul_region_release(region);
}

static void a_walk_survives_a_restart_and_an_unknown_host(void **state) {
  struct haul_directory_event event;
  char directory[160];
  (void)state;
  snprintf(directory, sizeof directory, "etcd://nowhere.invalid,127.0.0.1:%u/test", etcd.port);
  open_walk_of(directory);
  assert_fails(HAUL_ETIMEDOUT, haul_directory_next(walk, haul_deadline_in(S), &event));
  etcd_kill(&etcd);
  etcd_start_again(&etcd, false);
  server = entered("upsilon");
  do /* leases of nodes that ended meanwhile */
    event = next_event();
  while (event.kind == HAUL_DIRECTORY_WENT);
  assert_int_equal(event.kind, HAUL_DIRECTORY_CAME);
  assert_string_equal(event.entry.node, "upsilon");
}

struct fake {
  int listener;
  unsigned short port;
  const char *answer;
  pthread_t thread;
};

static void *answer_all(void *argument) {
  const struct fake *fake = argument;
  char request[4096];
  for (int fd; (fd = accept(fake->listener, NULL, NULL)) >= 0; close(fd)) {
    ssize_t got = recv(fd, request, sizeof request, 0);
    if (got > 0 && fake->answer)
      got = send(fd, fake->answer, strlen(fake->answer), MSG_NOSIGNAL);
    if (!fake->answer) /* silent, until the other side is tired of it */
      while (recv(fd, request, sizeof request, 0) > 0)
        ;
  }
  return NULL;
}

static void fake_start(struct fake *fake, const char *answer) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  fake->answer = answer;
  fake->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fake->listener, (struct sockaddr *)&address, length), 0);
  assert_int_equal(listen(fake->listener, 8), 0);
  getsockname(fake->listener, (struct sockaddr *)&address, &length);
  fake->port = ntohs(address.sin_port);
  pthread_create(&fake->thread, NULL, answer_all, fake);
}

static void fake_end(struct fake *fake) {
  shutdown(fake->listener, SHUT_RDWR);
  pthread_join(fake->thread, NULL);
  close(fake->listener);
}

#define HTTP_OK(body) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" body

static int find_at_scheme(const struct fake *fake, const char *scheme) {
  struct haul_directory_entry entry;
  size_t count = 1;
  char address[160];
  snprintf(address, sizeof address, "%s://127.0.0.1:%u/test/x", scheme, fake->port);
  return haul_directory_find(client, address, haul_deadline_in(2 * S), &entry, &count);
}

static int find_at(const struct fake *fake) {
  return find_at_scheme(fake, "etcd");
}

static void a_status_without_a_reason_is_not_ascribed_to_etcd(void **state) {
  struct fake fake;
  (void)state;
  fake_start(&fake, "HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n<html></html>");
  int code = find_at(&fake);
  fake_end(&fake);
  assert_int_equal(code, HAUL_EPROTO);
  assert_string_equal(haul_error_last()->text,
                      "the server rejected the request (HTTP status 502); it may not be etcd");
}

static void a_port_without_tls_gets_a_hint(void **state) {
  struct fake fake;
  (void)state;
  fake_start(&fake, "SSH-2.0-OpenSSH_9.2\r\n");
  int code = find_at_scheme(&fake, "etcds");
  fake_end(&fake);
  assert_int_equal(code, HAUL_EAUTH);
  assert_string_equal(haul_error_last()->hint, "check that etcd serves TLS on this port");
}

static void a_member_that_is_not_ready_is_left(void **state) {
  static const char *const answers[] = {
      "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n"
      "{\"error\":\"etcdserver: no leader\",\"code\":14}",
      "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{\"cut\":"};
  (void)state;
  server = entered("rho");
  for (size_t i = 0; i < COUNT(answers); i++) {
    struct fake fake;
    struct haul_directory_entry entry;
    size_t count = 1;
    char address[160];
    fake_start(&fake, answers[i]);
    snprintf(address, sizeof address, "etcd://127.0.0.1:%u,127.0.0.1:%u/test/rho", fake.port,
             etcd.port);
    int code = haul_directory_find(client, address, haul_deadline_in(2 * S), &entry, &count);
    fake_end(&fake);
    assert_int_equal(code, 0);
  }
}

static void malformed_responses_are_rejected(void **state) {
  static const struct {
    const char *answer;
    int code;
  } cases[] = {
      {"SSH-2.0-OpenSSH_9.2\r\n", HAUL_EPEER},
      {HTTP_OK(""), HAUL_EPROTO},
      {HTTP_OK("hello"), HAUL_EPROTO},
      {HTTP_OK("[]"), HAUL_EPROTO},
      {HTTP_OK("{}"), HAUL_ENAME},
      {HTTP_OK("{\"responses\":7}"), HAUL_ENAME},
      {HTTP_OK("{\"responses\":[{\"response_range\":{\"kvs\":[7,{},{\"key\":5},{\"key\":\"!\"},"
               "{\"key\":\"dGVzdC9ub2RlLw==\",\"value\":\"\"}]}}]}"),
       HAUL_ENAME},
      {"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n404 page not found", HAUL_EPROTO},
      {"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n{\"error\":\"no token\"}",
       HAUL_EAUTH},
      {"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
       "{\"message\":\"etcdserver: requested lease not found\"}",
       HAUL_ESTALE},
      {"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{", HAUL_EPEER},
      {NULL, HAUL_ETIMEDOUT},
  };
  (void)state;
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct fake fake;
    fake_start(&fake, cases[i].answer);
    int code = find_at(&fake);
    if (code != cases[i].code)
      print_message("case %zu: %s\n", i, haul_error_last()->text);
    fake_end(&fake);
    assert_int_equal(code, cases[i].code);
  }
}

/* etcd keeps to the limit that it is given; what says that it is etcd may not. */
static void entries_beyond_the_limit_are_not_read(void **state) {
  static char answer[200000];
  struct fake fake;
  haul_peer *peer;
  char address[160];
  (void)state;
  size_t used = (size_t)snprintf(answer, sizeof answer,
                                 HTTP_OK("{\"responses\":[{\"response_range\":{\"kvs\":[{}"));
  for (int i = 0; i < 400; i++) /* test/name/x/a, at a port without listener */
    used += (size_t)snprintf(answer + used, sizeof answer - used,
                             ",{\"key\":\"dGVzdC9uYW1lL3gvYQ==\",\"value\":\""
                             "eyJpZCI6IjAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwIiwiYm9vdCI6IjAwM"
                             "DAwMDAwMDAwMDAwMDAwMDAw"
                             "MDAwMDAwMDAwMDAwIiwiYWRkcmVzc2VzIjpbInRjcDovLzEyNy4wLjAuMToxIl0sImJ5d"
                             "GVzIjo1LCJwbGFjZSI6Imhv"
                             "c3QiLCJyaWdodHMiOiJyIn0=\"}");
  snprintf(answer + used, sizeof answer - used, "]}}]}");
  fake_start(&fake, answer);
  snprintf(address, sizeof address, "etcd://127.0.0.1:%u/test/x", fake.port);
  struct haul_directory_entry entry;
  size_t count = 1;
  assert_works(haul_directory_find(client, address, soon(), &entry, &count));
  int code = haul_peer_connect(client, address, haul_deadline_in(300 * MS), &peer);
  fake_end(&fake);
  assert_int_equal(count, 64);
  assert_true(code < 0);
}

static void foreign_entries_are_passed_over(void **state) {
  static const char *const values[] = {
      "",
      "nonsense",
      "{}",
      "{\"id\":\"00\"}",
      "{\"id\":\"00000000000000000000000000000000\",\"boot\":\"00000000000000000000000000000000\","
      "\"addresses\":[]}",
      "{\"id\":\"00000000000000000000000000000000\",\"boot\":\"00000000000000000000000000000000\","
      "\"addresses\":[7]}"};
  struct haul_directory_entry entry;
  (void)state;
  for (size_t i = 0; i < COUNT(values); i++) {
    etcd_put(&etcd, "test/node/odd", values[i]);
    assert_int_equal(find("odd", &entry), HAUL_ENAME);
  }
  etcd_put(&etcd, "test/node/", "{}");
  etcd_put(&etcd, "test/name/only", "{}");
  etcd_put(&etcd, "test/other/thing", "{}");
  etcd_put(&etcd, "test/node/%zz", "{}");
  open_walk(); /* foreign keys are not returned */
}

static void invalid_addresses_are_rejected(void **state) {
  static const char *const texts[] = {
      "etcd://",         "etcd:///p/x",    "etcd://h",       "etcd://h/",
      "etcd://h/p",      "etcd://h/p/",    "etcd://h/p/a/b", "etcd://h/p%/x",
      "etcd://h/p/%00",  "etcd://h/p/%2",  "etcd://,/p/x",   "tcp://h:1/p/x",
      "etcd://h/p q/x",  "etcd://h:0/p/x", "etcd://:1/p/x",  "etcd://h:99999/p/x",
      "etcd://u:p@h/p/x"};
  struct haul_directory_entry entry;
  (void)state;
  for (size_t i = 0; i < COUNT(texts); i++) {
    size_t count = 1;
    assert_fails(HAUL_EADDRESS, haul_directory_find(client, texts[i], soon(), &entry, &count));
  }
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  server = named("omicron");
  assert_fails(HAUL_EINVAL, haul_node_register(server, etcd.directory, NULL, soon()));
  listen_at(server, "tcp://127.0.0.1:0");
  options.lease_seconds = 1;
  assert_fails(HAUL_EINVAL, haul_node_register(server, etcd.directory, &options, soon()));
  assert_works(enter(server, soon()));
  assert_fails(HAUL_EINVAL, enter(server, soon()));
}

static int start_etcd(void **state) {
  (void)state;
  etcd_start(&etcd);
  return 0;
}

static int remove_etcd(void **state) {
  (void)state;
  etcd_remove(&etcd);
  return 0;
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, open_client, close_all)

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], DIES_MODE) == 0)
    return dies_main();
  if (!etcd_is_installed()) {
    printf("skipped directory: there is no etcd here: tools/deps\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {
      TEST(a_node_name_leads_to_the_node),
      TEST(a_region_name_leads_to_its_publisher),
      TEST(of_several_publishers_a_reachable_one_is_chosen),
      TEST(names_may_have_any_byte_that_a_name_may),
      TEST(regions_for_some_identities_are_not_entered),
      TEST(addresses_may_be_advertised),
      TEST(only_addresses_may_be_advertised),
      TEST(a_listener_on_all_addresses_is_entered_with_a_real_one),
      TEST(a_region_withdrawn_during_an_update_is_removed),
      TEST(many_take_longer_than_a_lease),
      TEST(a_walk_returns_entries_and_then_changes),
      TEST(more_than_a_page_is_returned_whole),
      TEST(a_node_that_listens_again_is_entered_again),
      TEST(a_killed_node_expires_with_its_lease),
      TEST(a_name_is_one_node_s),
      TEST(a_name_that_becomes_free_is_awaited),
      TEST(a_node_at_the_same_address_is_the_successor),
      TEST(another_node_at_the_address_is_rejected),
      TEST(without_an_etcd_the_call_fails_in_time),
      TEST(another_member_is_tried),
      TEST(a_find_ends_with_its_node),
      TEST(a_stopped_etcd_costs_at_most_the_deadline),
      TEST(a_stopped_etcd_delays_no_call_without_deadline),
      TEST(an_etcd_that_lost_its_data_is_filled_again),
      TEST(a_walk_survives_a_restart_and_an_unknown_host),
      TEST(a_status_without_a_reason_is_not_ascribed_to_etcd),
      TEST(a_port_without_tls_gets_a_hint),
      TEST(a_member_that_is_not_ready_is_left),
      TEST(malformed_responses_are_rejected),
      TEST(entries_beyond_the_limit_are_not_read),
      TEST(foreign_entries_are_passed_over),
      TEST(invalid_addresses_are_rejected),
  };
  return cmocka_run_group_tests_name("directory", tests, start_etcd, remove_etcd);
}
