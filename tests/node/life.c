/* SPDX-License-Identifier: MIT
 * A node from its opening to its close: what is refused, every way to make it move, forks. */
#include "support/check.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "node/node.h"
#include "support/child.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/seams.h"

#define BOUND (20 * S)

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static struct haul_node *open_node(void) {
  struct haul_node *node;
  assert_works(haul_node_open(NULL, &node));
  return node;
}

static void impossible_configurations_are_refused(void **state) {
  (void)state;
  struct haul_node *node;
  char name[65];
  memset(name, 'n', 64);
  name[64] = '\0';
#define REFUSES(field, value)                                                                      \
  do {                                                                                             \
    struct haul_node_config config = HAUL_NODE_CONFIG_INIT;                                        \
    config.field = value;                                                                          \
    assert_fails(HAUL_EINVAL, haul_node_open(&config, &node));                                     \
  } while (0)
  REFUSES(size, 0);
  REFUSES(size, 100000);
  REFUSES(name, name);
  REFUSES(progress, 7);
  REFUSES(spin_ns, -1);
  REFUSES(liveness_ns, -1);
  REFUSES(transfer_ns, -1);
  REFUSES(tcp_rails, 17);
  REFUSES(tcp_rate, 1000);
  REFUSES(staging_bytes, 8388607);
  REFUSES(warm_bytes, ((size_t)256 << 20) + 1); /* the pool keeps no more */
  assert_fails(HAUL_EINVAL, haul_node_open(NULL, NULL));
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.pool_bytes = SIZE_MAX;
  config.warm_bytes = (size_t)1 << 20; /* ignored without a pool */
  assert_works(haul_node_open(&config, &node));
  haul_node_close(node);
}

static void addresses_that_cannot_be_listened_on_are_refused(void **state) {
  (void)state;
  struct haul_node *node = open_node();
  char text[200];
  static const char *const bad[] = {"",
                                    "nowhere",
                                    "tcp://",
                                    "tcp://127.0.0.1",
                                    "tcp://:1",
                                    "unix://",
                                    "unix:///",
                                    "http://[::1]:80",
                                    "tcp://127.0.0.1:x",
                                    "tcp://127.0.0.1:65536",
                                    "tcp://[::1:80",
                                    "unix://relative",
                                    "tcp://no-such-host.invalid:1",
                                    "unix:///no/such/folder/socket"};
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_EADDRESS, haul_node_listen(node, bad[i]));
  memset(text, 'x', sizeof text);
  memcpy(text, "unix:///", 8);
  text[sizeof text - 1] = '\0';
  assert_fails(HAUL_EADDRESS, haul_node_listen(node, text));
  assert_fails(HAUL_EINVAL, haul_node_listen(node, NULL));
  assert_fails(HAUL_EADDRESS, haul_node_listen(node, "tcp://127.0.0.1:-1"));
  assert_fails(HAUL_ERANGE, haul_node_address(node, 0, text, sizeof text));
  haul_node_close(node);
}

static void without_a_key_only_loopback_is_allowed(void **state) {
  (void)state;
  struct haul_node *node = open_node();
  assert_fails(HAUL_EINSECURE, haul_node_listen(node, "tcp://0.0.0.0:0"));
  assert_fails(HAUL_EINSECURE, haul_node_listen(node, "tcp://[::]:0"));
  assert_non_null(strstr(haul_error_last()->hint, "insecure"));
  haul_node_close(node);
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.insecure = 1;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_node_listen(node, "tcp://0.0.0.0:0"));
  haul_node_close(node);
}

static void an_address_in_use_is_refused(void **state) {
  (void)state;
  struct haul_node *one = open_node(), *two = open_node();
  const char *name = own_socket();
  char address[160], file[64];
  snprintf(file, sizeof file, "unix:///tmp/haul-test-%d", (int)getpid());
  assert_works(haul_node_listen(one, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(one, 0, address, sizeof address));
  assert_fails(HAUL_EINVAL, haul_node_address(one, 0, address, strlen(address)));
  assert_fails(HAUL_EADDRINUSE, haul_node_listen(two, address));
  assert_works(haul_node_listen(one, file));
  assert_fails(HAUL_EADDRINUSE, haul_node_listen(two, file));
  assert_works(haul_node_listen(one, name));
  assert_fails(HAUL_EADDRINUSE, haul_node_listen(two, name));
  assert_works(haul_node_address(one, 1, address, sizeof address));
  assert_string_equal(address, file);
  assert_works(haul_node_address(one, 2, address, sizeof address));
  assert_string_equal(address, name);
  haul_node_close(one);
  assert_int_equal(access(file + 7, F_OK), -1);
  assert_works(haul_node_listen(two, file));
  haul_node_close(two);
}

static void a_file_that_is_not_a_socket_is_kept(void **state) {
  (void)state;
  struct haul_node *node = open_node();
  struct stat status;
  char path[] = "/tmp/haul-test-XXXXXX", address[64];
  close(mkstemp(path));
  snprintf(address, sizeof address, "unix://%s", path);
  assert_fails(HAUL_EADDRINUSE, haul_node_listen(node, address));
  assert_non_null(strstr(haul_error_last()->text, "no socket"));
  assert_true(stat(path, &status) == 0 && S_ISREG(status.st_mode));
  unlink(path);
  haul_node_close(node);
}

static void a_stale_socket_file_is_replaced(void **state) {
  (void)state;
  char file[64];
  snprintf(file, sizeof file, "/tmp/haul-test-%d", (int)getpid());
  char address[80];
  snprintf(address, sizeof address, "unix://%s", file);
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  memcpy(un.sun_path, file, strlen(file) + 1);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
  close(fd); /* as after a crash */
  struct haul_node *node = open_node();
  assert_works(haul_node_listen(node, address));
  haul_node_close(node);

  FILE *other = fopen(file, "we"); /* what is no socket is not replaced */
  fclose(other);
  node = open_node();
  assert_fails(HAUL_EADDRINUSE, haul_node_listen(node, address));
  haul_node_close(node);
  assert_int_equal(unlink(file), 0);
}

static void a_socket_file_of_another_node_is_kept(void **state) {
  (void)state;
  char address[80];
  snprintf(address, sizeof address, "unix:///tmp/haul-test-%d", (int)getpid());
  struct haul_node *first = open_node(), *second = open_node();
  assert_works(haul_node_listen(first, address));
  assert_int_equal(unlink(address + 7), 0);
  assert_works(haul_node_listen(second, address));
  haul_node_close(first);
  assert_int_equal(access(address + 7, F_OK), 0);
  haul_node_close(second);
  assert_int_equal(access(address + 7, F_OK), -1);
}

/* Also where a path could not be opened: without a NIC, for example. */
static void calls_that_succeed_keep_the_last_failure(void **state) {
  (void)state;
  char address[96];
  haul_peer *peer;
  struct haul_node *one = open_node(), *two = open_node();
  assert_fails(HAUL_EADDRESS, haul_node_listen(one, "nowhere"));
  assert_works(haul_node_listen(one, "tcp://127.0.0.1:0"));
  assert_string_equal(haul_error_last()->object, "nowhere");
  assert_works(haul_node_address(one, 0, address, sizeof address));
  assert_works(haul_peer_connect(two, address, soon(), &peer));
  assert_string_equal(haul_error_last()->object, "nowhere");
  haul_peer_close(peer);
  haul_node_close(one);
  haul_node_close(two);
}

struct mode {
  const char *name;
  int progress;
  int64_t spin_ns;
};

static const struct mode modes[] = {
    {"a thread that sleeps", HAUL_PROGRESS_THREAD, 0},
    {"a thread that polls, then sleeps", HAUL_PROGRESS_THREAD, 20000},
    {"a thread that polls", HAUL_PROGRESS_THREAD, HAUL_SPIN_ALWAYS},
    {"the caller, sleeping", HAUL_PROGRESS_CALLER, 0},
    {"the caller, polling then sleeping", HAUL_PROGRESS_CALLER, 20000},
    {"the caller, polling", HAUL_PROGRESS_CALLER, HAUL_SPIN_ALWAYS},
};

/* A whole conversation; the owner is in another process. */
static void converse(const struct mode *mode, const char *only) {
  struct owner owner;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = mode->progress;
  config.spin_ns = mode->spin_ns;
  owner_start(&owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&owner, 0, KIND_HOST, 4 << 20, "memory", 3), 0);
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_peer_connect(node, owner.address, soon(), &peer));
  assert_string_equal(haul_peer_name(peer), "owner");
  assert_works(haul_peer_lookup(peer, "memory", soon(), &remote));
  struct haul_region *region = region_make(node, KIND_HOST, 4 << 20);
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = only;
  for (unsigned round = 0; round < 20; round++) {
    uint64_t tag, length, sum, size = round % 2 ? 8 : 3 << 20;
    struct haul_piece piece = {0, 0, size};
    struct haul_transfer *transfer;
    region_fill(node, region, 0, size, round);
    assert_works(haul_write(remote, region, &piece, 1, &options, &transfer));
    assert_works(haul_message_send(peer, round, "hello", 5, soon()));
    assert_int_equal(owner_receive(&owner, 0, size, &tag, &length, &sum), 0);
    assert_int_equal(tag, round);
    assert_int_equal(length, 5);
    assert_true(sum == region_sum(node, region, 0, size));
    assert_works(haul_transfer_wait(transfer, soon()));
    haul_transfer_release(transfer);
  }
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  assert_int_equal(owner_end(&owner), 0);
}

static void a_node_moves_in_every_way(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(modes); i++) {
    print_message("%s\n", modes[i].name);
    converse(&modes[i], "map");
    converse(&modes[i], "tcp");
  }
}

/* Without a thread the descriptor alone tells when there is something to do: a liveness timer, a
 * wake by another thread, data, an end. */
static bool wait_readable(struct haul_node *node, int64_t ns) {
  struct pollfd pollfd = {.fd = haul_node_fd(node), .events = POLLIN};
  return poll(&pollfd, 1, (int)(ns / MS)) == 1;
}

static void poll_until(struct haul_node *node, bool (*done)(void *user), void *user) {
  haul_deadline until = soon();
  while (!done(user)) {
    assert_true(haul_deadline_in(0) < until);
    assert_true(wait_readable(node, BOUND));
    assert_true(haul_node_progress(node, HAUL_NO_WAIT) >= 0);
  }
}

static bool transfer_ended(void *user) {
  return haul_transfer_test(user) != 1;
}

static bool peer_ended(void *user) {
  return haul_peer_status(user) != 0;
}

/* Whoever sleeps on nothing else hears of the end of each transfer. */
static void the_descriptor_of_a_threaded_node_reports_transfers(void **state) {
  (void)state;
  struct owner owner;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_node *node = open_node();
  haul_node_fd(node);
  owner_start(&owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&owner, 0, KIND_HOST, 8 << 20, "memory", 3), 0);
  assert_works(haul_peer_connect(node, owner.address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "memory", soon(), &remote));
  struct haul_region *region = region_make(node, KIND_HOST, 8 << 20);
  static const char *const ways[] = {"tcp", "map"};
  for (unsigned i = 0; i < 200; i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    struct haul_piece piece = {0, 0, i % 4 < 2 ? 8 << 20 : 100};
    struct haul_transfer *transfer;
    options.only = ways[i % 2];
    assert_works(haul_write(remote, region, &piece, 1, &options, &transfer));
    while (haul_transfer_test(transfer) == 1) {
      assert_true(wait_readable(node, BOUND)); /* a lost wake-up ends the test here */
      haul_node_progress(node, HAUL_NO_WAIT);
    }
    assert_works(haul_transfer_test(transfer));
    haul_transfer_release(transfer);
  }
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  assert_int_equal(owner_end(&owner), 0);
}

static void the_descriptor_alone_drives_a_caller(void **state) {
  (void)state;
  struct owner owner;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER;
  config.liveness_ns = 400 * MS;
  owner_start(&owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&owner, 0, KIND_SIM, 8 << 20, "memory", 3), 0);
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_peer_connect(node, owner.address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "memory", soon(), &remote));
  struct haul_region *region = region_make(node, KIND_SIM, 8 << 20);
  static const char *const ways[] = {"tcp", "map"};
  for (unsigned i = 0; i < 20; i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    struct haul_piece piece = {0, 0, 8 << 20};
    struct haul_transfer *transfer;
    options.only = ways[i % 2];
    assert_works(i % 4 < 2 ? haul_write(remote, region, &piece, 1, &options, &transfer)
                           : haul_read(region, remote, &piece, 1, &options, &transfer));
    poll_until(node, transfer_ended, transfer);
    assert_works(haul_transfer_wait(transfer, HAUL_NO_WAIT));
    haul_transfer_release(transfer);
  }
  /* Nothing happens but timers, and both sides stay alive; the owner's bound is 5 s. */
  haul_deadline quiet = haul_deadline_in(2 * config.liveness_ns);
  unsigned wakes = 0;
  while (haul_deadline_in(0) < quiet)
    if (wait_readable(node, 10 * MS)) {
      haul_node_progress(node, HAUL_NO_WAIT);
      wakes++;
    }
  assert_works(haul_peer_status(peer));
  assert_true(wakes >= 4 && wakes < 1000);
  /* A deadline is a timer too. */
  owner_stop(&owner);
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 8 << 20};
  struct haul_transfer *transfer;
  options.only = "tcp";
  options.deadline = haul_deadline_in(30 * MS);
  assert_works(haul_read(region, remote, &piece, 1, &options, &transfer));
  poll_until(node, transfer_ended, transfer);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(transfer, HAUL_NO_WAIT));
  haul_transfer_release(transfer);
  poll_until(node, peer_ended, peer); /* the liveness timeout */
  owner_go_on(&owner);
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  assert_int_equal(owner_end(&owner), 0);
}

static void the_descriptor_of_a_threaded_node_reports_messages(void **state) {
  (void)state;
  struct haul_node *node = open_node(), *other = open_node();
  char address[160];
  struct haul_peer *peer;
  struct haul_message message;
  assert_works(haul_node_listen(node, own_socket()));
  assert_works(haul_node_address(node, 0, address, sizeof address));
  haul_node_fd(node);
  assert_works(haul_peer_connect(other, address, soon(), &peer));
  for (unsigned i = 0; i < 100; i++) {
    assert_works(haul_message_send(peer, i, NULL, 0, soon()));
    int code;
    while ((code = haul_message_receive(node, &message, HAUL_NO_WAIT)) == HAUL_ETIMEDOUT) {
      assert_true(wait_readable(node, BOUND));
      haul_node_progress(node, HAUL_NO_WAIT);
    }
    assert_works(code);
    assert_int_equal(message.tag, i);
    haul_message_release(&message);
  }
  haul_peer_close(peer);
  haul_node_close(other);
  haul_node_close(node);
}

static void many_nodes_live_in_one_process(void **state) {
  (void)state;
  enum { NODES = 12 };
  struct haul_node *nodes[NODES];
  struct haul_peer *peers[NODES][NODES];
  char addresses[NODES][160];
  for (unsigned i = 0; i < NODES; i++) {
    nodes[i] = open_node();
    assert_works(haul_node_listen(nodes[i], i % 2 ? "tcp://127.0.0.1:0" : "tcp://[::1]:0"));
    assert_works(haul_node_address(nodes[i], 0, addresses[i], sizeof addresses[i]));
  }
  for (unsigned i = 0; i < NODES; i++)
    for (unsigned k = 0; k < NODES; k++)
      assert_works(haul_peer_connect(nodes[i], addresses[k], soon(), &peers[i][k]));
  for (unsigned i = 0; i < NODES; i++)
    for (unsigned k = 0; k < NODES; k++)
      assert_works(haul_message_send(peers[i][k], i, &k, sizeof k, soon()));
  for (unsigned k = 0; k < NODES; k++) {
    unsigned from = 0;
    for (unsigned i = 0; i < NODES; i++) {
      struct haul_message message;
      assert_works(haul_message_receive(nodes[k], &message, soon()));
      assert_memory_equal(message.bytes, &k, sizeof k);
      from |= 1u << message.tag;
      haul_message_release(&message);
    }
    assert_int_equal(from, (1u << NODES) - 1);
  }
  for (unsigned i = 0; i < NODES; i++) {
    haul_node_close(nodes[i]);
    for (unsigned k = 0; k < NODES; k++)
      haul_peer_close(peers[i][k]);
  }
}

/* Also when nothing else happens in the node. */
static void imports_are_unmapped_some_time_after_their_release(void **state) {
  (void)state;
  struct haul_node *owner = open_node(), *node = open_node();
  struct haul_region *region, *import;
  struct haul_ticket ticket;
  uint64_t expired = 0;
  int fd;
  assert_works(haul_region_alloc(owner, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  assert_works(haul_region_export(region, HAUL_READ, NULL, &ticket, &fd));
  assert_works(haul_region_import(node, &ticket, fd, &import));
  assert_int_equal(haul_region_rights(import), HAUL_READ);
  assert_int_equal(haul_region_rights(region), HAUL_READ | HAUL_WRITE);
  assert_int_equal(haul_region_rights(NULL), 0);
  haul_region_release(import);
  assert_works(haul_region_export(region, HAUL_READ, NULL, &ticket, NULL));
  assert_works(haul_region_import(node, &ticket, -1, &import));
  haul_region_release(import);
  close(fd);
  for (haul_deadline end = soon(); expired == 0 && haul_deadline_in(0) < end; usleep(50000))
    assert_works(haul_counter_read(node, "imports.expired", &expired));
  assert_int_equal(expired, 1);
  assert_fails(HAUL_ETICKET, haul_region_import(node, &ticket, -1, &import));
  haul_region_release(region);
  haul_node_close(node);
  haul_node_close(owner);
}

/* Every call says the same: the ticket that it was imported with is of no use any more. */
static void a_released_region_needs_a_new_ticket(void **state) {
  (void)state;
  struct haul_node *owner = open_node(), *node = open_node();
  struct haul_region *region, *import, *other;
  struct haul_ticket ticket;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_piece piece = {0, 0, 8};
  char address[160];
  int fd;
  assert_works(haul_region_alloc(owner, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  assert_works(haul_region_alloc(owner, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &other));
  assert_works(haul_region_publish(other, "other", HAUL_READ | HAUL_WRITE));
  assert_works(haul_node_listen(owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(owner, 0, address, sizeof address));
  assert_works(haul_peer_connect(node, address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "other", soon(), &remote));
  assert_works(haul_region_export(region, HAUL_READ, NULL, &ticket, &fd));
  assert_works(haul_region_import(node, &ticket, fd, &import));
  haul_region_release(region);
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
#define NEEDS_ONE(call)                                                                            \
  assert_fails(HAUL_ESTALE, call);                                                                 \
  assert_string_equal(haul_error_last()->text, "the owner released the memory");                   \
  assert_string_equal(haul_error_last()->hint, "ask the owner for a new ticket")
  NEEDS_ONE(haul_region_copy(region, 0, import, 0, 8, soon()));
  NEEDS_ONE(haul_region_publish(import, "import", HAUL_READ));
  NEEDS_ONE(haul_write(remote, import, &piece, 1, NULL, NULL));
  haul_region_release(region);
  NEEDS_ONE(haul_region_import(node, &ticket, -1, &region));
  haul_region_release(import);
  NEEDS_ONE(haul_region_import(node, &ticket, fd, &region));
#undef NEEDS_ONE
  close(fd);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(other);
  haul_node_close(node);
  haul_node_close(owner);
}

static void *receive_for_ever(void *node) {
  struct haul_message message;
  return (void *)(intptr_t)haul_message_receive(node, &message, HAUL_FOREVER);
}

static void *progress_for_ever(void *node) {
  return (void *)(intptr_t)haul_node_progress(node, HAUL_FOREVER);
}

static void closing_ends_calls_that_wait(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(modes); i++) {
    struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
    config.progress = modes[i].progress;
    struct haul_node *node;
    pthread_t receiver, mover;
    void *code;
    assert_works(haul_node_open(&config, &node));
    node_retain(node); /* a thread may get to its call late */
    pthread_create(&receiver, NULL, receive_for_ever, node);
    pthread_create(&mover, NULL, progress_for_ever, node);
    nanosleep(&(struct timespec){0, 5 * MS}, NULL);
    haul_node_close(node);
    pthread_join(receiver, &code);
    assert_int_equal((intptr_t)code, HAUL_ECLOSED);
    pthread_join(mover, &code);
    assert_true((intptr_t)code >= 0 || (intptr_t)code == HAUL_ECLOSED);
    node_put(node);
  }
}

static void a_closed_node_takes_its_handles_back(void **state) {
  (void)state;
  struct haul_node *node = open_node();
  char address[160];
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_message message;
  assert_works(haul_node_listen(node, own_socket()));
  assert_works(haul_node_address(node, 0, address, sizeof address));
  struct haul_region *region = region_make(node, KIND_HOST, 1 << 20);
  assert_works(haul_region_publish(region, "mine", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_connect(node, address, soon(), &peer)); /* to itself */
  assert_works(haul_peer_lookup(peer, "mine", soon(), &remote));
  assert_works(haul_message_send(peer, 1, "x", 1, soon()));
  assert_works(haul_message_receive(node, &message, soon()));
  haul_node_close(node);
  assert_fails(HAUL_ECLOSED, haul_peer_status(peer));
  haul_message_release(&message);
  haul_peer_close(peer);
  haul_region_release(region);
  haul_remote_release(remote);
  haul_node_close(NULL);
  haul_peer_close(NULL);
  haul_remote_release(NULL);
  haul_region_release(NULL);
  haul_transfer_release(NULL);
}

/* What a node gave, and what is held of it after its close. */
struct held {
  struct haul_region *region, *other;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_transfer *transfer; /* that had ended */
};

static void each_call_says_that_it_was_closed(const struct held *held) {
  static const char *const ways[] = {NULL, "map", "tcp"};
  const struct haul_piece piece = {0, 0, 8}, large = {0, 0, 1 << 20};
  struct haul_path paths[HAUL_PATHS_MAX];
  struct haul_remote *remote;
  struct haul_transfer *transfer;
  size_t count = 0;
  for (size_t i = 0; i < COUNT(ways); i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    const struct haul_transfer_options *given = ways[i] ? &options : NULL;
    options.only = ways[i];
    assert_fails(HAUL_ECLOSED, haul_write(held->remote, held->region, &piece, 1, given, NULL));
    assert_fails(HAUL_ECLOSED, haul_write(held->remote, held->region, &large, 1, given, &transfer));
    assert_fails(HAUL_ECLOSED, haul_read(held->region, held->remote, &piece, 1, given, NULL));
    assert_fails(HAUL_ECLOSED, haul_read(held->region, held->remote, &large, 1, given, &transfer));
    assert_fails(HAUL_ECLOSED, haul_fetch_add(held->region, 0, held->remote, 0, 1, given, NULL));
    assert_fails(HAUL_ECLOSED,
                 haul_compare_swap(held->region, 0, held->remote, 0, 1, 2, given, &transfer));
    count = COUNT(paths);
    assert_works(haul_explain(held->region, held->remote, HAUL_OP_WRITE, 8, given, paths, &count));
    for (size_t k = 0; k < count; k++)
      assert_true(!paths[k].open && !paths[k].chosen && paths[k].reason[0]);
  }
  count = 0;
  assert_fails(HAUL_ECLOSED, haul_peer_lookup(held->peer, "memory", soon(), &remote));
  assert_fails(HAUL_ECLOSED, haul_peer_list(held->peer, soon(), NULL, &count));
  assert_fails(HAUL_ECLOSED, haul_peer_status(held->peer));
  assert_fails(HAUL_ECLOSED, haul_message_send(held->peer, 1, "x", 1, HAUL_FOREVER));
  assert_fails(HAUL_ECLOSED, haul_region_publish(held->region, "late", HAUL_READ));
  assert_fails(HAUL_ECLOSED, haul_region_unpublish(held->region, "late"));
}

/* What a handle knows by itself it still tells. */
static void each_handle_still_tells_what_it_knows(const struct held *held) {
  struct haul_report report = HAUL_REPORT_INIT;
  char text[4096];
  assert_works(haul_transfer_test(held->transfer));
  assert_works(haul_transfer_wait(held->transfer, HAUL_FOREVER));
  assert_works(haul_transfer_cancel(held->transfer));
  assert_works(haul_transfer_report(held->transfer, &report));
  assert_int_equal(report.bytes, 4096);
  assert_true(haul_report_format(&report, text, sizeof text) > 0);
  assert_string_equal(haul_peer_name(held->peer), "owner");
  assert_int_equal(haul_remote_length(held->remote), 1 << 20);
  assert_int_equal(haul_region_length(held->region), 1 << 20);
  memset(haul_region_address(held->region), 1, 1 << 20);
  assert_works(haul_region_copy(held->other, 0, held->region, 0, 1 << 20, soon()));
}

static void after_the_close_calls_on_kept_handles_fail(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(modes); i++) {
    struct haul_node_config config = HAUL_NODE_CONFIG_INIT, named = HAUL_NODE_CONFIG_INIT;
    struct haul_node *owner, *node;
    struct haul_region *memory;
    struct held held;
    char address[160];
    print_message("%s\n", modes[i].name);
    config.progress = modes[i].progress;
    config.spin_ns = modes[i].spin_ns;
    named.name = "owner";
    assert_works(haul_node_open(&named, &owner));
    assert_works(haul_node_listen(owner, "tcp://127.0.0.1:0"));
    assert_works(haul_node_address(owner, 0, address, sizeof address));
    memory = region_make(owner, KIND_HOST, 1 << 20);
    assert_works(haul_region_publish(memory, "memory", HAUL_READ | HAUL_WRITE));
    assert_works(haul_node_open(&config, &node));
    assert_works(haul_peer_connect(node, address, soon(), &held.peer));
    assert_works(haul_peer_lookup(held.peer, "memory", soon(), &held.remote));
    held.region = region_make(node, KIND_HOST, 1 << 20);
    held.other = region_make(node, KIND_HOST, 1 << 20);
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    const struct haul_piece piece = {0, 0, 4096};
    options.only = "tcp";
    assert_works(haul_write(held.remote, held.region, &piece, 1, &options, &held.transfer));
    assert_works(haul_transfer_wait(held.transfer, soon()));
    haul_node_close(node);
    each_call_says_that_it_was_closed(&held);
    each_handle_still_tells_what_it_knows(&held);
    haul_peer_close(held.peer);
    haul_remote_release(held.remote);
    assert_works(haul_transfer_wait(held.transfer, soon())); /* by itself */
    haul_transfer_release(held.transfer);
    haul_region_release(held.other);
    haul_region_release(held.region);
    haul_region_release(memory);
    haul_node_close(owner);
  }
}

/* In any order, and with nothing else of the node left. */
static void a_region_alone_outlives_its_node(void **state) {
  (void)state;
  struct haul_node *node = open_node();
  struct haul_region *one = region_make(node, KIND_HOST, 4096);
  struct haul_region *two = region_make(node, KIND_HOST, 4096);
  haul_node_close(node);
  pattern_fill(haul_region_address(one), 4096, 5);
  assert_fails(HAUL_ECLOSED, haul_region_publish(one, "late", HAUL_READ));
  assert_fails(HAUL_ECLOSED, haul_region_unpublish(one, "late"));
  assert_works(haul_region_copy(two, 0, one, 0, 4096, soon()));
  pattern_check(haul_region_address(two), 4096, 5);
  haul_region_release(one);
  haul_region_release(two);
}

struct releasing {
  struct haul_region **regions;
  unsigned from, to;
};

static void *release(void *argument) {
  const struct releasing *releasing = argument;
  for (unsigned i = releasing->from; i < releasing->to; i++)
    haul_region_release(releasing->regions[i]);
  return NULL;
}

/* What is published asks its node, which ends in the middle. */
static void regions_are_released_while_their_node_closes(void **state) {
  enum { REGIONS = 64 };
  (void)state;
  for (unsigned round = 0; round < 100; round++) {
    struct haul_node *node;
    struct haul_region *regions[REGIONS];
    struct releasing halves[] = {{regions, 0, REGIONS / 2}, {regions, REGIONS / 2, REGIONS}};
    pthread_t threads[2];
    assert_works(haul_node_open(NULL, &node));
    for (unsigned i = 0; i < REGIONS; i++) {
      char name[16];
      snprintf(name, sizeof name, "region-%u", i);
      regions[i] = region_make(node, KIND_HOST, 1);
      assert_works(haul_region_publish(regions[i], name, HAUL_READ));
    }
    for (unsigned i = 0; i < 2; i++)
      assert_int_equal(pthread_create(&threads[i], NULL, release, &halves[i]), 0);
    usleep(round % 10 * 20);
    haul_node_close(node);
    for (unsigned i = 0; i < 2; i++)
      assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
}

static void a_node_that_its_caller_drives_connects_to_itself(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  char address[160];
  config.progress = HAUL_PROGRESS_CALLER;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, address, sizeof address));
  struct haul_region *region = region_make(node, KIND_HOST, 4096);
  assert_works(haul_region_publish(region, "mine", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_connect(node, address, soon(), &peer));
  assert_works(haul_peer_lookup(peer, "mine", soon(), &remote));
  const struct haul_piece piece = {0, 2048, 1024};
  static const char *const paths[] = {"map", "tcp"};
  for (size_t i = 0; i < COUNT(paths); i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    options.only = paths[i];
    assert_works(haul_write(remote, region, &piece, 1, &options, NULL));
  }
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(region);
  haul_node_close(node);
}

/* Nobody drives the other one: the error says who did not answer. */
static void of_two_nodes_of_one_thread_the_silent_one_is_named(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *nodes[2];
  struct haul_peer *peer;
  char address[160];
  config.progress = HAUL_PROGRESS_CALLER;
  for (size_t i = 0; i < 2; i++)
    assert_works(haul_node_open(&config, &nodes[i]));
  assert_works(haul_node_listen(nodes[0], "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(nodes[0], 0, address, sizeof address));
  assert_fails(HAUL_ETIMEDOUT,
               haul_peer_connect(nodes[1], address, haul_deadline_in(50 * MS), &peer));
  assert_string_equal(haul_error_last()->object, address);
  for (size_t i = 0; i < 2; i++)
    haul_node_close(nodes[i]);
}

struct inherited {
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *region;
  unsigned descriptors; /* before there was a node */
};

#define IN_CHILD(call)                                                                             \
  if ((call) != HAUL_EFORK)                                                                        \
  _exit(__LINE__ % 100 + 100)

static void use_in_child(void *user) {
  struct inherited *inherited = user;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *region;
  struct haul_transfer *transfer;
  struct haul_message message;
  struct haul_piece piece = {0, 0, 1};
  size_t count = 0;
  uint64_t value;
  alarm(20);
  IN_CHILD(haul_node_open(NULL, &node));
  IN_CHILD(haul_node_listen(inherited->node, "tcp://127.0.0.1:0"));
  IN_CHILD(haul_node_progress(inherited->node, HAUL_NO_WAIT));
  IN_CHILD(haul_node_fd(inherited->node));
  IN_CHILD(haul_peer_connect(inherited->node, "tcp://127.0.0.1:1", soon(), &peer));
  IN_CHILD(haul_peer_lookup(inherited->peer, "memory", soon(), &remote));
  IN_CHILD(haul_peer_list(inherited->peer, soon(), NULL, &count));
  IN_CHILD(haul_peer_status(inherited->peer));
  IN_CHILD(haul_write(inherited->remote, inherited->region, &piece, 1, NULL, &transfer));
  IN_CHILD(haul_read(inherited->region, inherited->remote, &piece, 1, NULL, NULL));
  IN_CHILD(haul_fetch_add(inherited->region, 0, inherited->remote, 0, 1, NULL, NULL));
  IN_CHILD(haul_compare_swap(inherited->region, 0, inherited->remote, 0, 1, 2, NULL, &transfer));
  IN_CHILD(haul_message_send(inherited->peer, 0, NULL, 0, soon()));
  IN_CHILD(haul_message_receive(inherited->node, &message, HAUL_FOREVER));
  IN_CHILD(haul_region_publish(inherited->region, "child", HAUL_READ));
  IN_CHILD(haul_region_alloc(inherited->node, (struct haul_place){HAUL_HOST, 0}, 1, 0, &region));
  IN_CHILD(haul_counter_read(inherited->node, "pool.hits", &value));
  haul_remote_release(inherited->remote);
  haul_region_release(inherited->region);
  haul_peer_close(inherited->peer);
  haul_node_close(inherited->node);
  if (open_descriptors() != inherited->descriptors + 1) /* the memory that is published */
    _exit(98);
}

static void close_first_in_child(void *user) {
  struct inherited *inherited = user;
  alarm(20);
  haul_node_close(inherited->node);
  int taken[64]; /* numbers that the node had: nothing may be written to them */
  for (unsigned i = 0; i < COUNT(taken); i++)
    taken[i] = memfd_create("mine", 0);
  haul_remote_release(inherited->remote);
  haul_region_release(inherited->region);
  haul_peer_close(inherited->peer);
  for (unsigned i = 0; i < COUNT(taken); i++)
    if (lseek(taken[i], 0, SEEK_END) != 0)
      _exit(99);
}

static void a_forked_child_may_only_close(void **state) {
  (void)state;
  void (*const bodies[])(void *) = {use_in_child, close_first_in_child};
  const char *const addresses[] = {"tcp://127.0.0.1:0", own_socket()};
  for (size_t i = 0; i < 2 * COUNT(bodies); i++) {
    struct owner owner;
    struct inherited mine;
    owner_start(&owner, addresses[i / 2], NULL);
    assert_int_equal(owner_publish(&owner, 0, KIND_HOST, 1 << 20, "memory", 3), 0);
    mine.descriptors = open_descriptors();
    mine.node = open_node();
    assert_works(haul_peer_connect(mine.node, owner.address, soon(), &mine.peer));
    assert_works(haul_peer_lookup(mine.peer, "memory", soon(), &mine.remote));
    mine.region = region_make(mine.node, KIND_HOST, 1 << 20);
    assert_works(haul_region_publish(mine.region, "parents", HAUL_READ));
    assert_int_equal(child_run(bodies[i % 2], &mine), 0);
    /* The parent's connections work as before. */
    static const char *const ways[] = {"map", "tcp"};
    for (unsigned w = 0; w < 2; w++) {
      struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
      struct haul_piece piece = {0, 0, 1 << 20};
      options.only = ways[w];
      options.flags = HAUL_CHECKSUM;
      assert_works(haul_write(mine.remote, mine.region, &piece, 1, &options, NULL));
      assert_works(haul_read(mine.region, mine.remote, &piece, 1, &options, NULL));
    }
    haul_remote_release(mine.remote);
    haul_region_release(mine.region);
    haul_peer_close(mine.peer);
    haul_node_close(mine.node);
    assert_int_equal(owner_end(&owner), 0);
  }
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define TEST(test) cmocka_unit_test_setup_teardown(test, count_before, count_after)
  const struct CMUnitTest tests[] = {
      TEST(impossible_configurations_are_refused),
      TEST(addresses_that_cannot_be_listened_on_are_refused),
      TEST(without_a_key_only_loopback_is_allowed),
      TEST(an_address_in_use_is_refused),
      TEST(a_file_that_is_not_a_socket_is_kept),
      TEST(a_stale_socket_file_is_replaced),
      TEST(a_socket_file_of_another_node_is_kept),
      TEST(calls_that_succeed_keep_the_last_failure),
      TEST(a_node_moves_in_every_way),
      TEST(the_descriptor_alone_drives_a_caller),
      TEST(the_descriptor_of_a_threaded_node_reports_messages),
      TEST(the_descriptor_of_a_threaded_node_reports_transfers),
      TEST(many_nodes_live_in_one_process),
      TEST(imports_are_unmapped_some_time_after_their_release),
      TEST(a_released_region_needs_a_new_ticket),
      TEST(closing_ends_calls_that_wait),
      TEST(a_closed_node_takes_its_handles_back),
      TEST(after_the_close_calls_on_kept_handles_fail),
      TEST(a_region_alone_outlives_its_node),
      TEST(regions_are_released_while_their_node_closes),
      TEST(a_node_that_its_caller_drives_connects_to_itself),
      TEST(of_two_nodes_of_one_thread_the_silent_one_is_named),
      TEST(a_forked_child_may_only_close),
  };
  return cmocka_run_group_tests_name("life", tests, NULL, NULL);
}
