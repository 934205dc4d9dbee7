/* SPDX-License-Identifier: MIT */
#include "process.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fail.h"

static volatile sig_atomic_t flag;

static void raise_flag(int number) {
  (void)number;
  flag = 1;
}

void interrupt_catch(void) {
  struct sigaction action = {.sa_handler = raise_flag, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

bool interrupted(void) {
  return flag != 0;
}

int signals_open(bool hangup) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (hangup)
    sigaddset(&set, SIGHUP);
  sigprocmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0)
    fail_system(errno, "cannot open a signalfd");
  return signals;
}

/* LISTEN_PID differs in a child, which inherits the variables but not the sockets' purpose. */
unsigned service_sockets(void) {
  const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
  if (!pid || !count || strtol(pid, NULL, 10) != getpid())
    return 0;
  long sockets = strtol(count, NULL, 10);
  return sockets > 0 && sockets <= 64 ? (unsigned)sockets : 0;
}

void service_notify(const char *state) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *path = getenv("NOTIFY_SOCKET");
  size_t length = path ? strlen(path) : 0;
  if (length < 2 || length >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@'))
    return;
  memcpy(address.sun_path, path, length);
  if (path[0] == '@')
    address.sun_path[0] = '\0';
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return;
  ssize_t sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
  (void)sent; /* the manager reports a missing READY by its own timeout */
  close(fd);
}
