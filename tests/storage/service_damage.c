/* SPDX-License-Identifier: MIT
 * A proxy between a file server and its client damages payload, which it finds by a mark that the
 * files consist of. Damaged data is sent again; permanent damage is EBADMSG. */
#include "support/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "folder.h"
#include "served.h"
#include "storage/source.h"
#include "support/seams.h"

#define SIZE        ((size_t)3 << 20)
#define CHUNK       ((size_t)64 << 10)
#define MARK        "to be damaged: 0123456789abcdef"
#define CONNECTIONS 16u
#define EVERY       UINT_MAX

/* Chunks left to damage, by direction: to the client, to the server. */
enum { TO_CLIENT, TO_SERVER };
static _Atomic unsigned budget[2], damaged[2];

static struct {
  struct served served, seen; /* the server's address, and the proxy's */
  struct sockaddr_in server;
  int listener;
  pthread_t thread;
  struct pipe {
    int client, server;
    pthread_t thread;
  } pipes[CONNECTIONS];
  unsigned count;
} proxy;

static char root[FOLDER_ROOM];
static struct source *source;
static struct source_file *file;
static char *expected, *bytes;

static void damage(char *chunk, size_t length, unsigned way) {
  char *mark = memmem(chunk, length, MARK, strlen(MARK));
  unsigned left = atomic_load(&budget[way]);
  if (!mark || left == 0)
    return;
  mark[20] ^= 1;
  atomic_fetch_add(&damaged[way], 1);
  if (left != EVERY)
    atomic_store(&budget[way], left - 1);
}

/* False: the connection has ended. */
static bool pass(int from, int to, unsigned way) {
  static _Thread_local char chunk[CHUNK];
  ssize_t got = recv(from, chunk, sizeof chunk, 0);
  if (got <= 0)
    return false;
  damage(chunk, (size_t)got, way);
  for (ssize_t at = 0, put; at < got; at += put)
    if ((put = send(to, chunk + at, (size_t)(got - at), MSG_NOSIGNAL)) <= 0)
      return false;
  return true;
}

/* Blocking writes cannot deadlock here: messages are small, and each test has data in one
 * direction. */
static void *run_pipe(void *argument) {
  const struct pipe *pipe = argument;
  struct pollfd ends[2] = {{pipe->server, POLLIN, 0}, {pipe->client, POLLIN, 0}};
  bool goes_on = true;
  while (goes_on && poll(ends, 2, -1) > 0) {
    if (ends[0].revents)
      goes_on = pass(pipe->server, pipe->client, TO_CLIENT);
    if (goes_on && ends[1].revents)
      goes_on = pass(pipe->client, pipe->server, TO_SERVER);
  }
  shutdown(pipe->client, SHUT_RDWR);
  shutdown(pipe->server, SHUT_RDWR);
  return NULL;
}

static void *run_proxy(void *unused) {
  for (int client; (client = accept(proxy.listener, NULL, NULL)) >= 0;) {
    struct pipe *pipe = &proxy.pipes[proxy.count];
    *pipe = (struct pipe){.client = client, .server = socket(AF_INET, SOCK_STREAM, 0)};
    if (proxy.count == CONNECTIONS ||
        connect(pipe->server, (struct sockaddr *)&proxy.server, sizeof proxy.server) != 0)
      abort();
    proxy.count += pthread_create(&pipe->thread, NULL, run_pipe, pipe) == 0;
  }
  return unused;
}

static void start_proxy(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  const char *port = strrchr(proxy.served.address, ':') + 1;
  proxy.server = at;
  proxy.server.sin_port = htons((uint16_t)atoi(port));
  proxy.count = 0;
  proxy.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(proxy.listener, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(proxy.listener, 8), 0);
  assert_int_equal(getsockname(proxy.listener, (struct sockaddr *)&at, &size), 0);
  proxy.seen = proxy.served;
  snprintf(proxy.seen.address, sizeof proxy.seen.address, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
  assert_int_equal(pthread_create(&proxy.thread, NULL, run_proxy, NULL), 0);
}

static void stop_proxy(void) {
  shutdown(proxy.listener, SHUT_RDWR);
  pthread_join(proxy.thread, NULL);
  close(proxy.listener);
  for (unsigned i = 0; i < proxy.count; i++) {
    shutdown(proxy.pipes[i].client, SHUT_RDWR);
    shutdown(proxy.pipes[i].server, SHUT_RDWR);
    pthread_join(proxy.pipes[i].thread, NULL);
    close(proxy.pipes[i].client);
    close(proxy.pipes[i].server);
  }
}

static int set_up(void **state) {
  (void)state;
  const struct source_caller caller = {.checked = true};
  struct source_entry entry;
  for (unsigned way = 0; way < 2; way++) {
    atomic_store(&budget[way], 0);
    atomic_store(&damaged[way], 0);
  }
  folder_make(root);
  expected = malloc(SIZE);
  bytes = malloc(SIZE);
  pattern_fill(expected, SIZE, 11);
  for (size_t at = 100; at + 64 < SIZE; at += 4096)
    memcpy(expected + at, MARK, strlen(MARK));
  int fd = open(folder_path(root, "file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  assert_int_equal(write(fd, expected, SIZE), SIZE);
  close(fd);
  served_open(&proxy.served, root, true);
  start_proxy();
  source = served_connect(&proxy.seen, false);
  assert_int_equal(source->ops->lookup(source, SOURCE_ROOT, "file", &entry), 0);
  assert_int_equal(source->ops->open(source, &caller, entry.node, O_RDWR, &file), 0);
  source->ops->forget(source, entry.node, 1);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  source->ops->release(source, file);
  source->ops->close(source);
  served_close(&proxy.served);
  stop_proxy();
  free(bytes);
  free(expected);
  folder_remove(root);
  return 0;
}

static void assert_reads(size_t length) {
  memset(bytes, 0, length);
  assert_int_equal(source->ops->read(source, file, bytes, length, 0), length);
  assert_memory_equal(bytes, expected, length);
}

static void assert_has(const char *what, size_t length) {
  int fd = open(folder_path(root, "file"), O_RDONLY | O_CLOEXEC);
  assert_int_equal(pread(fd, bytes, length, 0), length);
  close(fd);
  assert_memory_equal(bytes, what, length);
}

/* From the file's own pages, and for a small read from a copy. */
static const size_t lengths[] = {65536, 1 << 20};

static void damaged_reads_are_sent_again(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(lengths); i++) {
    atomic_store(&damaged[TO_CLIENT], 0);
    atomic_store(&budget[TO_CLIENT], 2);
    assert_reads(lengths[i]);
    assert_int_equal(atomic_load(&damaged[TO_CLIENT]), 2);
  }
}

static void permanent_damage_gives_ebadmsg(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(lengths); i++) {
    atomic_store(&budget[TO_CLIENT], EVERY);
    assert_int_equal(source->ops->read(source, file, bytes, lengths[i], 0), -EBADMSG);
    atomic_store(&budget[TO_CLIENT], 0);
    assert_reads(lengths[i]);
  }
}

static void damaged_writes_are_read_again(void **state) {
  (void)state;
  char *changed = malloc(1 << 20);
  memcpy(changed, expected, 1 << 20);
  changed[0]++;
  atomic_store(&budget[TO_SERVER], 2);
  assert_int_equal(source->ops->write(source, file, changed, 1 << 20, 0, 0), 1 << 20);
  assert_int_equal(atomic_load(&damaged[TO_SERVER]), 2);
  assert_has(changed, 1 << 20);
  free(changed);
}

static void damaged_data_is_never_written(void **state) {
  (void)state;
  char *changed = malloc(1 << 20);
  memcpy(changed, expected, 1 << 20);
  changed[0]++;
  atomic_store(&budget[TO_SERVER], EVERY);
  assert_int_equal(source->ops->write(source, file, changed, 1 << 20, 0, 0), -EBADMSG);
  atomic_store(&budget[TO_SERVER], 0);
  assert_has(expected, 1 << 20);
  free(changed);
}

int main(void) {
  seams_no_unix_sockets(); /* otherwise no wire is used */
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(damaged_reads_are_sent_again),
      TEST(permanent_damage_gives_ebadmsg),
      TEST(damaged_writes_are_read_again),
      TEST(damaged_data_is_never_written),
  };
  return cmocka_run_group_tests_name("storage/service_damage", tests, NULL, NULL);
}
