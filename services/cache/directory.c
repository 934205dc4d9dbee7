/* SPDX-License-Identifier: MIT
 * The members of a cache in a directory: the nodes that publish a store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <haul/directory.h>

#include "cache/client.h"
#include "common/fail.h"

/* DIRECTORY/NAME, with the escapes of haul/directory.h; false: it is too long. */
static bool name_address(const char *directory, const char *name, char address[ADDRESS_MAX]) {
  int length = snprintf(address, ADDRESS_MAX, "%s/", directory);
  if (length < 0 || (size_t)length + 3 * strlen(name) >= ADDRESS_MAX)
    return false;
  char *at = address + length;
  for (; *name; name++)
    if (*name == '/' || *name == '%')
      at += sprintf(at, "%%%02X", (unsigned)*name);
    else
      *at++ = *name;
  *at = '\0';
  return true;
}

static void add(struct member_list *list, const char *directory,
                const struct haul_directory_entry *entry) {
  if (entry->kind == HAUL_DIRECTORY_REGION && strcmp(entry->name, REGION_NAME) == 0 &&
      list->count < HAUL_CACHE_MEMBERS_MAX &&
      name_address(directory, entry->node, list->addresses[list->count]))
    list->count++;
}

int members_find(haul_node *node, const char *directory, haul_deadline until,
                 struct member_list *list) {
  haul_directory *walk;
  struct haul_directory_event event = {.kind = HAUL_DIRECTORY_HOLDS};
  int code = haul_directory_open(node, directory, until, &walk);
  if (code)
    return code;
  while (code == 0 && event.kind != HAUL_DIRECTORY_TOLD) {
    code = haul_directory_next(walk, until, &event);
    if (code == 0 && event.kind == HAUL_DIRECTORY_HOLDS)
      add(list, directory, &event.entry);
  }
  haul_directory_close(walk);
  if (code == 0 && list->count == 0)
    return fail(HAUL_ENAME, "haul_cache_open", directory,
                "start a store there: haul cache serve --register", "no node there has a store");
  return code;
}
