/* SPDX-License-Identifier: MIT */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

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
