/* SPDX-License-Identifier: MIT
 * A shortage of memory is neither a failure of authentication nor a fault of the peer. A full
 * socket is no failure. */
#include "support/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/sys.h"
#include "core/tls/session.h"

struct side {
  struct tls_context *context;
  struct tls *tls;
};

static char file[] = "/tmp/haul-key-XXXXXX";
static struct openssl short_of_memory;

static ssl_resumption *no_memory(void) {
  return NULL;
}

static int cannot_write(ssl_session *session, const void *bytes, size_t length, size_t *put) {
  (void)session, (void)bytes, (void)length, (void)put;
  return 0;
}

static struct side open_side(int descriptor, bool server, bool fails) {
  const struct tls_settings settings = {.key = file, .user = true};
  struct side side;
  assert_works(tls_context_open(&settings, &side.context));
  if (fails)
    side.context->openssl = &short_of_memory;
  assert_works(tls_open(side.context, descriptor, server, &side.tls));
  return side;
}

static void close_side(struct side *side) {
  tls_free(side->tls);
  tls_context_close(side->context);
}

static ssize_t no_room(int descriptor, const struct msghdr *message, int flags) {
  (void)descriptor, (void)message, (void)flags;
  errno = EAGAIN;
  return -1;
}

/* Before tls_buffer the records go to the socket at once. */
static void check_full_socket(struct side *side, const struct msghdr *message) {
  const struct sys_ops real = sys_ops;
  sys_ops.sendmsg = no_room;
  assert_int_equal(tls_send(side->tls, message), -1);
  assert_int_equal(errno, EAGAIN);
  sys_ops = real;
  assert_int_equal(tls_send(side->tls, message), 4);
}

static void check_sending(struct side *side) {
  struct iovec span = {file, 4};
  const struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  check_full_socket(side, &message);
  assert_true(tls_buffer(side->tls, false));
  assert_int_equal(tls_send(side->tls, &message), 4);
  side->context->openssl = &short_of_memory;
  assert_int_equal(tls_send(side->tls, &message), -1);
  assert_int_equal(errno, EIO);
}

/* Lets both sides handshake, in turns, until each has a result. */
static void handshake(bool client_fails, bool server_fails, int *client_code, int *server_code) {
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  struct side client = open_side(pair[0], false, client_fails);
  struct side server = open_side(pair[1], true, server_fails);
  *client_code = *server_code = TLS_READ;
  for (int i = 0; i < 4; i++) {
    if (*client_code > 0)
      *client_code = tls_handshake(client.tls, "server");
    if (*server_code > 0)
      *server_code = tls_handshake(server.tls, "client");
  }
  if (*client_code == TLS_DONE)
    check_sending(&client);
  close_side(&client);
  close_side(&server);
  close(pair[0]);
  close(pair[1]);
}

static void a_full_socket_is_tried_again_and_a_failed_record_is_an_io_error(void **state) {
  int client, server;
  (void)state;
  handshake(false, false, &client, &server);
  assert_int_equal(client, TLS_DONE);
  assert_int_equal(server, TLS_DONE);
}

static void a_client_without_memory_says_so(void **state) {
  int client, server;
  (void)state;
  handshake(true, false, &client, &server);
  assert_int_equal(client, HAUL_ENOMEM);
}

static void a_server_without_memory_says_so_and_the_client_blames_no_key(void **state) {
  int client, server;
  (void)state;
  handshake(false, true, &client, &server);
  assert_int_equal(server, HAUL_ENOMEM);
  assert_int_equal(client, HAUL_EPEER);
}

static int make_key(void **state) {
  struct key key = {.name = "a", .secret = {1}};
  (void)state;
  close(mkstemp(file));
  unlink(file);
  short_of_memory = *openssl_open();
  short_of_memory.resumption_new = no_memory;
  short_of_memory.session_write = cannot_write;
  return keys_create(file, &key);
}

static int remove_key(void **state) {
  (void)state;
  return unlink(file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_full_socket_is_tried_again_and_a_failed_record_is_an_io_error),
      cmocka_unit_test(a_client_without_memory_says_so),
      cmocka_unit_test(a_server_without_memory_says_so_and_the_client_blames_no_key)};
  return cmocka_run_group_tests_name("unit/tls_memory", tests, make_key, remove_key);
}
