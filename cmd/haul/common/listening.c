/* SPDX-License-Identifier: MIT */
#include "listening.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "../command.h"
#include "fail.h"

#define REGISTER_WAIT_NS  INT64_C(30000000000)
#define REGISTER_SLICE_NS INT64_C(2000000000) /* between two checks for signals */

int listen_all(haul_node *node, const struct text_list *given) {
  const struct text_list fallback = {1, {LISTEN_DEFAULT}};
  const struct text_list *list = given->count ? given : &fallback;
  for (size_t i = 0; i < list->count; i++) {
    char address[ADDRESS_MAX];
    if (!address_expand(list->items[i], DEFAULT_PORT, address))
      return fail_because("write HOST:PORT or unix:///PATH, for example 127.0.0.1:7420",
                          "cannot listen on '%s': invalid address", list->items[i]);
    if (haul_node_listen(node, address))
      return fail_library("cannot listen on %s", address);
  }
  return EXIT_DONE;
}

int register_node(haul_node *node, const char *directory, const struct haul_register_options *how,
                  int signals) {
  haul_deadline until = haul_deadline_in(REGISTER_WAIT_NS);
  struct pollfd entry = {signals, POLLIN, 0};
  if (!directory)
    return EXIT_DONE;
  for (int noted = 0, code;; noted = code) {
    code = haul_node_register(node, directory, how, haul_deadline_in(REGISTER_SLICE_NS));
    if (code == 0)
      return EXIT_DONE;
    bool waits = code == HAUL_EEXIST || code == HAUL_ETIMEDOUT;
    if (!waits || haul_deadline_in(0) >= until || poll(&entry, 1, 0) > 0)
      return fail_library("cannot register in %s", directory);
    if (code != noted)
      fail_note(code == HAUL_EEXIST
                    ? "waiting for the name: another node, which may be dead, has it in %s"
                    : "waiting for %s, which does not respond",
                directory);
  }
}

int announce_node(haul_node *node, unsigned descriptor) {
  char address[ADDRESS_MAX];
  for (size_t i = 0; haul_node_address(node, i, address, sizeof address) == 0; i++) {
    printf("listening on %s\n", address);
    if (descriptor && dprintf((int)descriptor, "%s\n", address) < 0)
      return fail_system(errno, "cannot write to descriptor %u", descriptor);
  }
  if (descriptor)
    close((int)descriptor);
  return fflush(stdout) ? fail_system(errno, "cannot write to standard output") : EXIT_DONE;
}
