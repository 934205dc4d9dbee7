/* SPDX-License-Identifier: MIT */
#include "support/stuck.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Tests use SIGALRM and the first real-time signals. */
#define STUCK_SIGNAL (SIGRTMAX - 1)

static const char script[] =
    "echo \"---- stuck, near its time limit: $0\"\n"
    "for p in $0 $(cat /proc/$0/task/*/children); do\n"
    "  [ $p = $$ ] && continue\n"
    "  echo \"---- $p: $(tr '\\0' ' ' </proc/$p/cmdline)\"\n"
    "  if command -v gdb >/dev/null; then\n"
    "    timeout 20 gdb -q -batch -p $p -ex 'thread apply all backtrace 30' 2>/dev/null |\n"
    "      grep -v '^\\[New LWP'\n"
    "  else\n"
    "    for t in /proc/$p/task/*; do\n"
    "      echo \"$(cat $t/comm): $(grep State $t/status), in $(cat $t/wchan), $(cat "
    "$t/syscall)\"\n"
    "    done\n"
    "  fi\n"
    "done >&2\n";

static char pid[16];

static void on_timeout(int signal) {
  int before = errno;
  (void)signal;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", script, pid, (char *)NULL);
    _exit(127);
  }
  while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
    ;
  errno = before;
}

void stuck_after(unsigned seconds) {
  static timer_t timer;
  static int is_made;
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = STUCK_SIGNAL};
  struct itimerspec when = {.it_value.tv_sec = seconds};
  struct sigaction action = {.sa_handler = on_timeout, .sa_flags = SA_RESTART};
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  sigaction(STUCK_SIGNAL, &action, NULL);
  if (!is_made && timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
    abort();
  is_made = 1;
  timer_settime(timer, 0, &when, NULL);
}

__attribute__((constructor)) static void begin(void) {
  stuck_after(STUCK_SECONDS);
}
