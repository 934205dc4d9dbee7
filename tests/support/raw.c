/* SPDX-License-Identifier: MIT */
#include "support/raw.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/sys.h"
#include "core/wire.h"
#include "support/check.h"

#define CONTROL_MAGIC 0x4c544348u

static void limit(int fd) {
  struct timeval seconds = {20, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &seconds, sizeof seconds);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &seconds, sizeof seconds);
}

int raw_connect(const char *text) {
  struct address address;
  assert_works(address_parse(text, haul_deadline_in(20000000000), &address));
  int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  limit(fd);
  if (connect(fd, (struct sockaddr *)&address.storage, address.length) != 0)
    fail_msg("cannot connect to %s", text);
  sock_tune(fd);
  return fd;
}

int raw_listen(const char *text) {
  struct address address;
  assert_works(address_parse(text, haul_deadline_in(20000000000), &address));
  int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  limit(fd);
  if (bind(fd, (struct sockaddr *)&address.storage, address.length) != 0 || listen(fd, 16) != 0)
    fail_msg("cannot listen on %s", text);
  return fd;
}

int raw_accept(int listener) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd >= 0)
    limit(fd);
  return fd;
}

bool raw_send(int fd, const void *bytes, size_t length) {
  for (const char *at = bytes; length > 0;) {
    ssize_t put = send(fd, at, length, MSG_NOSIGNAL);
    if (put <= 0)
      return false;
    at += put;
    length -= (size_t)put;
  }
  return true;
}

bool raw_receive(int fd, void *bytes, size_t length) {
  for (char *at = bytes; length > 0;) {
    ssize_t got = recv(fd, at, length, 0);
    if (got <= 0)
      return false;
    at += got;
    length -= (size_t)got;
  }
  return true;
}

bool raw_ended(int fd, int64_t within_ns) {
  char bytes[65536];
  int64_t until = clock_now() + within_ns;
  for (;;) {
    int64_t left = (until - clock_now()) / 1000000;
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    if (left < 0 || poll(&pollfd, 1, (int)left) <= 0)
      return false;
    if (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0)
      return true;
  }
}

uint16_t raw_highest = PROTOCOL_HIGHEST;

struct hello raw_hello(enum role role) {
  struct hello hello = {.lowest = PROTOCOL_LOWEST,
                        .highest = raw_highest,
                        .role = (uint8_t)role,
                        .name = "raw",
                        .message_window = 1 << 20,
                        .window = REQUESTS_MAX};
  boot_id(hello.boot);
  random_bytes(hello.node_id, sizeof hello.node_id);
  return hello;
}

bool raw_greet(int fd, const struct hello *hello, struct welcome *welcome) {
  uint8_t bytes[HANDSHAKE_MAX];
  if (!raw_send(fd, bytes, hello_pack(hello, bytes)) || !raw_receive(fd, bytes, HANDSHAKE_HEAD))
    return false;
  int body = welcome_body(bytes);
  if (body < 0 || !raw_receive(fd, bytes + HANDSHAKE_HEAD, (size_t)body))
    return false;
  int code = welcome_parse(bytes, HANDSHAKE_HEAD + (size_t)body, welcome);
  return code == 0 || code == HAUL_EVERSION;
}

int raw_peer(const char *address, struct welcome *welcome) {
  struct hello hello = raw_hello(ROLE_CONTROL);
  int fd = raw_connect(address);
  if (!raw_greet(fd, &hello, welcome) || welcome->version == 0)
    fail_msg("the node rejected a valid hello");
  assert_true(raw_control(fd, CONTROL_READY, 0, NULL, 0));
  return fd;
}

int raw_channel(const char *address, const struct welcome *control, const char *transport,
                uint16_t index) {
  struct hello hello = raw_hello(ROLE_CHANNEL);
  struct welcome welcome;
  memcpy(hello.token, control->token, sizeof hello.token);
  snprintf(hello.transport, sizeof hello.transport, "%s", transport);
  hello.index = index;
  int fd = raw_connect(address);
  if (raw_greet(fd, &hello, &welcome) && welcome.version != 0)
    return fd;
  close(fd);
  return -1;
}

bool raw_hello_of(int fd, struct hello *hello) {
  uint8_t bytes[HANDSHAKE_MAX];
  if (!raw_receive(fd, bytes, HANDSHAKE_HEAD))
    return false;
  int body = hello_body(bytes);
  return body >= 0 && raw_receive(fd, bytes + HANDSHAKE_HEAD, (size_t)body) &&
         hello_parse(bytes, HANDSHAKE_HEAD + (size_t)body, hello) == 0;
}

bool raw_welcome(int fd, bool same_host, struct hello *hello) {
  struct welcome welcome = {.version = raw_highest,
                            .lowest = PROTOCOL_LOWEST,
                            .highest = raw_highest,
                            .name = "raw",
                            .message_window = 1 << 20,
                            .window = REQUESTS_MAX};
  uint8_t bytes[HANDSHAKE_MAX];
  if (same_host)
    boot_id(welcome.boot);
  return raw_hello_of(fd, hello) && raw_send(fd, bytes, welcome_pack(&welcome, bytes));
}

void raw_refuse_nic(int listener, int control) {
  struct pollfd fds[] = {{control, POLLIN, 0}, {listener, POLLIN, 0}};
  while (poll(fds, 2, 20000) > 0 && !fds[0].revents) {
    struct hello hello;
    int fd = raw_accept(listener);
    assert_true(raw_hello_of(fd, &hello));
    assert_string_equal(hello.transport, "rdma");
    close(fd);
  }
  assert_true(fds[0].revents & POLLIN);
}

void raw_control_head(uint8_t *head, uint16_t type, uint32_t length, uint32_t request) {
  struct wire wire = wire_over(head, CONTROL_HEAD);
  wire_put32(&wire, CONTROL_MAGIC);
  wire_put32(&wire, type); /* and two zeros */
  wire_put32(&wire, length);
  wire_put32(&wire, request);
}

bool raw_control(int fd, uint16_t type, uint32_t request, const void *body, size_t length) {
  uint8_t head[CONTROL_HEAD];
  raw_control_head(head, type, (uint32_t)length, request);
  return raw_send(fd, head, sizeof head) && raw_send(fd, body, length);
}

long raw_answer(int fd, uint16_t type, uint8_t body[CONTROL_BODY_MAX]) {
  uint8_t head[CONTROL_HEAD];
  struct control_frame frame;
  do {
    if (!raw_receive(fd, head, sizeof head) || control_parse(head, &frame) != 0 ||
        frame.length > CONTROL_BODY_MAX || !raw_receive(fd, body, frame.length))
      return -1;
  } while (frame.type != type);
  return frame.length;
}

int raw_lookup(int fd, const char *name, uint64_t *handle) {
  uint8_t body[CONTROL_BODY_MAX] = {0};
  struct wire wire = wire_over(body, sizeof body);
  wire_put_string(&wire, name);
  assert_true(raw_control(fd, CONTROL_LOOKUP, 1, body, sizeof body - wire_left(&wire)));
  long length = raw_answer(fd, CONTROL_FOUND, body);
  assert_true(length >= 4);
  wire = wire_over(body, (size_t)length);
  int code = (int32_t)wire_get32(&wire);
  if (code == 0)
    *handle = wire_get64(&wire);
  return code;
}

void raw_found(int fd, uint64_t handle, uint64_t length) {
  uint8_t body[CONTROL_BODY_MAX];
  assert_true(raw_answer(fd, CONTROL_LOOKUP, body) > 0);
  struct wire wire = wire_over(body, sizeof body);
  wire_put32(&wire, 0);
  wire_put64(&wire, handle);
  wire_put64(&wire, length);
  wire_put16(&wire, HAUL_HOST);
  wire_put16(&wire, 0);
  wire_put32(&wire, HAUL_READ | HAUL_WRITE);
  assert_true(raw_control(fd, CONTROL_FOUND, 1, body, sizeof body - wire_left(&wire)));
}
