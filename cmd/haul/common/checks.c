/* SPDX-License-Identifier: MIT */
#include "checks.h"

#include <stdlib.h>
#include <string.h>

#include "../command.h"
#include "fail.h"
#include "text.h"

int checks_load(struct checks *checks, haul_node *node) {
  *checks = (struct checks){NULL, 0};
  for (size_t room = 64;; room = checks->count) {
    checks->count = room;
    checks->list = must_realloc(checks->list, room * sizeof(*checks->list));
    if (haul_check_list(node, checks->list, &checks->count)) {
      checks->count = 0;
      return fail_library("cannot run the checks");
    }
    if (checks->count <= room)
      return EXIT_DONE;
  }
}

void checks_free(struct checks *checks) {
  free(checks->list);
  *checks = (struct checks){NULL, 0};
}

bool checks_know(const struct checks *checks, const char *name) {
  for (size_t i = 0; i < checks->count; i++)
    if (strcmp(checks->list[i].name, name) == 0)
      return true;
  return false;
}

bool checks_know_backend(const struct checks *checks, const char *backend) {
  for (size_t i = 0; i < checks->count; i++)
    if (strcmp(checks->list[i].backend, backend) == 0)
      return true;
  return false;
}

const char *check_state_text(int state) {
  static const char *const names[] = {"ok", "limited", "missing"};
  return state >= 0 && state <= HAUL_CHECK_MISSING ? names[state] : "unknown";
}
