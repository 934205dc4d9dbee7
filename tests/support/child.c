/* SPDX-License-Identifier: MIT */
#include "support/child.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t child_start(const char *mode, int *socket) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    abort();
  pid_t child = fork();
  if (child < 0)
    abort();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ends[1] == 3)
      fcntl(3, F_SETFD, 0);
    else
      dup2(ends[1], 3);
    execl("/proc/self/exe", "test", mode, (char *)NULL);
    _exit(127);
  }
  close(ends[1]);
  *socket = ends[0];
  return child;
}

static int wait_for(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child)
    abort();
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void child_stop(pid_t child) {
  int status;
  kill(child, SIGSTOP);
  if (waitpid(child, &status, WUNTRACED) != child)
    abort();
}

int child_end(pid_t child, int socket) {
  close(socket);
  return wait_for(child);
}

int child_run(void (*body)(void *), void *argument) {
  pid_t child = fork();
  if (child < 0)
    abort();
  if (child == 0) {
    /* Sanitizers and cmocka catch these signals, which are expected here. */
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
    body(argument);
    _exit(0);
  }
  return wait_for(child);
}

void child_send(int socket, const void *bytes, size_t length, int descriptor) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  memset(&control, 0, sizeof control);
  struct iovec part = {(void *)(uintptr_t)bytes, length};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)length)
    abort();
}

int child_receive(int socket, void *bytes, size_t length) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec part = {bytes, length};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)length)
    abort();
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  int descriptor = -1;
  if (header && header->cmsg_type == SCM_RIGHTS)
    memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}
