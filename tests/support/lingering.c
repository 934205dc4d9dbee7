/* SPDX-License-Identifier: MIT */
#include "support/lingering.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/check.h"

#define COPIES_MAX 253

int lingering_socket(void) {
  static const char bytes[65536];
  const struct linger linger = {1, LINGERS};
  const int small = 2048;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(listener, 1), 0);
  assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
  assert_true(accept4(listener, NULL, NULL, SOCK_CLOEXEC) >= 0); /* open until the test ends */
  close(listener);
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
  while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
    ;
  return fd;
}

bool lingering_send(int socket, const void *bytes, size_t length, size_t count, int flags) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int) * COPIES_MAX)];
  } control;
  const struct linger none = {0, 0};
  int fd = lingering_socket();
  memset(&control, 0, sizeof control);
  struct iovec span = {(void *)(uintptr_t)bytes, length};
  struct msghdr message = {.msg_iov = &span,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof(int) * count);
  for (size_t i = 0; i < count; i++)
    memcpy(CMSG_DATA(&control.header) + i * sizeof fd, &fd, sizeof fd);
  ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | flags);
  if (sent < 0) {
    assert_true(errno == EPERM || errno == EPIPE || errno == ECONNRESET);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  }
  close(fd);
  return sent >= 0;
}
