/* SPDX-License-Identifier: MIT */
#include "serve_exports.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/module.h"

static bool is_name(const char *text) {
  size_t length = strlen(text);
  for (const char *at = text; *at; at++)
    if (*at <= ' ' || *at >= 0x7f || *at == '/')
      return false;
  return length > 0 && length < sizeof((struct served_tree *)0)->name;
}

/* NAME= is there when the first '=' comes before the first '/'. */
static const char *name_end(const char *text) {
  const char *equals = strchr(text, '=');
  const char *slash = strchr(text, '/');
  return equals && (!slash || equals < slash) ? equals : NULL;
}

/* The folder's own name, where the user gave none. That it is not there is told when it is opened.
 */
static void name_after(char *name, size_t size, const char *path) {
  char whole[PATH_MAX];
  const char *found = realpath(path, whole) ? whole : path;
  const char *slash = strrchr(found, '/');
  snprintf(name, size, "%.*s", (int)size - 1, slash ? slash + 1 : found);
}

static int parse_one(const struct command *command, const char *text, struct served_tree *tree,
                     struct haul_storage_export *export) {
  const char *equals = name_end(text);
  const char *path = equals ? equals + 1 : text;
  size_t length = strlen(path);
  export->writable = length > 3 && strcmp(path + length - 3, ":rw") == 0;
  if (export->writable)
    length -= 3;
  if (length == 0)
    return options_wrong(command, "'%s' is not [NAME=]DIR[:rw]", text);
  if (length >= sizeof tree->path)
    return options_wrong(command, "'%s' is too long", text);
  memcpy(tree->path, path, length);
  if (equals)
    snprintf(tree->name, sizeof tree->name, "%.*s", equals - text < 64 ? (int)(equals - text) : 0,
             text);
  else
    name_after(tree->name, sizeof tree->name, tree->path);
  if (!is_name(tree->name))
    return options_wrong(command,
                         "'%s': an export's name has 1 to 63 printable bytes without blanks "
                         "and '/': give one, NAME=DIR",
                         text);
  export->name = tree->name;
  export->path = tree->path;
  return EXIT_DONE;
}

int exports_parse(const struct command *command, struct exports *exports,
                  const struct text_list *list) {
  for (size_t i = 0; i < list->count; i++) {
    int status = parse_one(command, list->items[i], &exports->trees[i], &exports->list[i]);
    if (status)
      return status;
    for (size_t other = 0; other < i; other++)
      if (strcmp(exports->trees[i].name, exports->trees[other].name) == 0)
        return options_wrong(command, "two exports have the name '%s'", exports->trees[i].name);
    exports->count++;
  }
  return EXIT_DONE;
}

bool exports_allow(struct exports *exports, const char *name, const char *who, bool reads_only) {
  for (size_t i = 0; i < exports->count; i++) {
    struct served_tree *tree = &exports->trees[i];
    struct haul_storage_export *export = &exports->list[i];
    if (strcmp(tree->name, name) != 0)
      continue;
    tree->grants[export->grant_count++] =
        (struct haul_grant){who, reads_only ? HAUL_READ : HAUL_READ | HAUL_WRITE};
    export->grants = tree->grants;
    return true;
  }
  return false;
}

int exports_open(struct exports *exports, haul_node *node,
                 void (*other)(void *user, const struct haul_message *message), void *user) {
  struct haul_storage_error error;
  void *symbol;
  if (exports->count == 0)
    return EXIT_DONE;
  int status = module_symbol(&module_storage, HAUL_STORAGE_SERVICE_SYMBOL, "export files", &symbol);
  if (status)
    return status;
  exports->calls = symbol;
  const struct haul_storage_serving serving = {
      .size = sizeof serving,
      .node = node,
      .exports = exports->list,
      .count = exports->count,
      .other = other,
      .user = user,
  };
  if (exports->calls->open(&serving, &exports->service, &error))
    return fail_because(error.hint, "%s", error.text);
  return EXIT_DONE;
}

void exports_stop(struct exports *exports) {
  if (exports->service)
    exports->calls->stop(exports->service);
}

int exports_close(struct exports *exports) {
  if (exports->service && exports->calls->close(exports->service))
    return fail_because("look at the disk: its errors are in `dmesg`",
                        "a disk did not answer while a client's requests were ended");
  return EXIT_DONE;
}
