/* SPDX-License-Identifier: MIT
 * haul key: the keys that authenticate nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <haul/access.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/output.h"
#include "common/text.h"

struct values {
  const char *name;
  int json;
};

static struct values given;

static const struct option_spec options[] = {
    {"name", OPTION_TEXT, offsetof(struct values, name), "NAME",
     "new: name the holder, for access lists (default: haul)"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "show: print JSON"},
    {0},
};

static int make(const char *path, const char *name) {
  int code = haul_key_new(path, name ? name : "haul");
  if (code)
    fail_library("cannot make a key in %s", path);
  if (code)
    return code == HAUL_EINVAL ? EXIT_USAGE : EXIT_FAILED; /* the name, or the path */
  fprintf(stderr, "%s is a new key; copy the file to both sides and set HAUL_KEY=%s there\n", path,
          path);
  return EXIT_DONE;
}

static void print_key_json(const struct haul_key *keys, size_t count) {
  struct json json = json_open();
  json_array(&json, "keys");
  for (size_t i = 0; i < count; i++) {
    json_object(&json, NULL);
    json_text(&json, "name", keys[i].name);
    json_text(&json, "fingerprint", keys[i].fingerprint);
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

static void print_key_table(const struct haul_key *keys, size_t count) {
  struct table table = table_begin("ll", "NAME", "FINGERPRINT");
  for (size_t i = 0; i < count; i++)
    table_row(&table, keys[i].name, keys[i].fingerprint);
  table_end(&table);
}

static int show(const char *path, int as_json) {
  size_t count = 4096;
  struct haul_key *keys = must_realloc(NULL, count * sizeof *keys);
  if (haul_key_list(path, keys, &count) != 0) {
    free(keys);
    return fail_library("cannot show the keys of %s", path);
  }
  if (as_json)
    print_key_json(keys, count);
  else
    print_key_table(keys, count);
  free(keys);
  return EXIT_DONE;
}

static int run_key(const struct command *self, char **operands) {
  if (strcmp(operands[0], "new") == 0)
    return make(operands[1], given.name);
  if (strcmp(operands[0], "show") == 0)
    return show(operands[1], given.json);
  return options_wrong(self, "invalid action '%s': expected new or show", operands[0]);
}

const struct command key_command = {
    .name = "key",
    .summary = "Make a key that authenticates nodes, or show the keys of a file",
    .usage = "new|show FILE [OPTIONS]",
    .about =
        "`new` writes a key to a new file that only its owner can read. Nodes with a common line\n"
        "in their key files accept each other's TCP connections and encrypt them; a node connects\n"
        "with the first line. `show` prints names and fingerprints, to compare the keys of two\n"
        "files.",
    .options = options,
    .examples = "  haul key new /etc/haul/cluster.key\n"
                "  HAUL_KEY=/etc/haul/cluster.key haul serve --listen tcp://10.0.0.2:7420\n"
                "  haul key new alice.key --name alice; haul key show alice.key\n",
    .values = &given,
    .least = 2,
    .most = 2,
    .run = run_key,
};
