/* SPDX-License-Identifier: MIT */
#include "process.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../command.h"
#include "fail.h"

static volatile sig_atomic_t caught; /* the number of the first signal; 0: none */

void interrupt_raise(int number) {
  caught = number;
}

void interrupt_catch(void) {
  struct sigaction action = {.sa_handler = interrupt_raise, .sa_flags = (int)SA_RESETHAND};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

bool interrupted(void) {
  return caught != 0;
}

void interrupt_end(void) {
  int number = caught;
  if (!number)
    return;
  signal(number, SIG_DFL);
  raise(number);
}

int signals_open(void) {
  struct sigaction hangup;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
    sigaddset(&set, SIGHUP); /* a blocked signal arrives although it is ignored */
  sigprocmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0)
    fail_system(errno, "cannot open a signalfd");
  return signals;
}

/* The name of a process, or "". */
static void read_name(unsigned process, char name[32]) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%u/comm", process);
  FILE *file = fopen(path, "re");
  if (!file || !fgets(name, 32, file))
    name[0] = '\0';
  name[strcspn(name, "\n")] = '\0';
  if (file)
    fclose(file);
}

int signals_describe(int signals, char *text, size_t size) {
  struct signalfd_siginfo info;
  char name[32], sender[96] = "";
  if (read(signals, &info, sizeof info) != sizeof info)
    return fail_system(errno, "ends, as it cannot read signals");
  read_name(info.ssi_pid, name);
  if (info.ssi_pid > 0) /* else the kernel sent it, as for a terminal */
    snprintf(sender, sizeof sender, " from process %u%s%s%s, user %u", info.ssi_pid,
             *name ? " (" : "", name, *name ? ")" : "", info.ssi_uid);
  snprintf(text, size, "%s%s",
           info.ssi_signo == SIGINT    ? "SIGINT"
           : info.ssi_signo == SIGTERM ? "SIGTERM"
                                       : "SIGHUP",
           sender);
  return EXIT_DONE;
}

static const char *fatal_command;

static const struct fatal {
  int number;
  const char *name;
} fatal[] = {
#define FATAL(name)                                                                                \
  { name, #name }
    FATAL(SIGABRT), FATAL(SIGALRM),   FATAL(SIGBUS),  FATAL(SIGFPE),
    FATAL(SIGILL),  FATAL(SIGPROF),   FATAL(SIGPWR),  FATAL(SIGQUIT),
    FATAL(SIGSEGV), FATAL(SIGSYS),    FATAL(SIGUSR1), FATAL(SIGUSR2),
    FATAL(SIGXCPU), FATAL(SIGVTALRM), FATAL(SIGIO),   FATAL(SIGSTKFLT),
#undef FATAL
};

/* Only async-signal-safe calls are allowed here. */
static void explain_fatal(int number) {
  char line[96] = "haul: ";
  strncat(line, fatal_command, 32);
  strcat(line, ": ended by ");
  for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++)
    if (fatal[i].number == number)
      strcat(line, fatal[i].name);
  strcat(line, "\n");
  ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
  (void)ignored;
  signal(number, SIG_DFL);
  raise(number); /* once this handler returns */
}

void signals_explain_fatal(const char *command) {
  fatal_command = command;
  for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
    struct sigaction before, ours = {.sa_handler = explain_fatal, .sa_flags = SA_ONSTACK};
    if (sigaction(fatal[i].number, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
      sigaction(fatal[i].number, &ours, NULL);
  }
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
