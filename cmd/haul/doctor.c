/* SPDX-License-Identifier: MIT
 * haul doctor: the requirements of paths and places, and commands that fix them. */
#include <stdbool.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/host.h"
#include "common/options.h"
#include "common/output.h"
#include "common/session.h"

struct values {
  struct text_list require;
  int json;
};

static struct values given;

static const struct option_spec options[] = {
    {"require", OPTION_LIST, offsetof(struct values, require), "NAME",
     "exit with status 1 unless this check or backend passes"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {0},
};

/* `shown`: a backend, a check, or NULL for everything. */
static bool wanted(const struct haul_check *check, const char *shown) {
  return !shown || strcmp(check->backend, shown) == 0 || strcmp(check->name, shown) == 0;
}

static void print_remedies(const struct checks *checks, const char *shown) {
  const char *heading = "\nto fix it:\n";
  for (size_t i = 0; i < checks->count; i++) {
    const struct haul_check *check = &checks->list[i];
    if (!wanted(check, shown) || check->state == HAUL_CHECK_OK || !*check->remedy)
      continue;
    printf("%s  %s: %s\n", heading, check->name, check->remedy);
    heading = "";
  }
}

static bool begins_with(const char *text, const char *start) {
  return strncmp(text, start, strlen(start)) == 0;
}

/* Whether the check only waits for another one that failed. */
static bool is_unknown(const struct haul_check *check) {
  return check->state == HAUL_CHECK_MISSING && begins_with(check->text, "unknown without ");
}

static const char *state_text(const struct haul_check *check) {
  return is_unknown(check) ? "unknown" : check_state_text(check->state);
}

/* The worst check with a remedy; NULL: none. */
static const struct haul_check *find_first(const struct checks *checks, const char *shown) {
  const struct haul_check *first = NULL;
  for (size_t i = 0; i < checks->count; i++) {
    const struct haul_check *check = &checks->list[i];
    if (wanted(check, shown) && check->state != HAUL_CHECK_OK && *check->remedy &&
        (!first || check->state > first->state))
      first = check;
  }
  return first;
}

static void print_verdict(const struct checks *checks, const char *shown) {
  unsigned ok = 0, unneeded = 0, limited = 0, missing = 0, unknown = 0;
  for (size_t i = 0; i < checks->count; i++) {
    const struct haul_check *check = &checks->list[i];
    if (!wanted(check, shown))
      continue;
    bool needed = !begins_with(check->text, "not needed");
    ok += check->state == HAUL_CHECK_OK && needed;
    unneeded += check->state == HAUL_CHECK_OK && !needed;
    limited += check->state == HAUL_CHECK_LIMITED;
    unknown += is_unknown(check);
    missing += check->state == HAUL_CHECK_MISSING && !is_unknown(check);
  }
  const struct haul_check *first = find_first(checks, shown);
  printf("\n%u ok, %u limited, %u missing, %u unknown, %u not needed%s%s\n", ok, limited, missing,
         unknown, unneeded, first ? "; first: " : "", first ? first->name : "");
}

static void print_doctor_table(const struct checks *checks, const char *shown) {
  struct table table = table_begin("lll", "STATE", "CHECK", "FOUND");
  for (size_t i = 0; i < checks->count; i++) {
    const struct haul_check *check = &checks->list[i];
    if (wanted(check, shown))
      table_row(&table, state_text(check), check->name, check->text);
  }
  table_end(&table);
  print_remedies(checks, shown);
  print_verdict(checks, shown);
}

static void print_doctor_json(const struct checks *checks, const char *shown) {
  struct json json = {.out = stdout};
  json_array(&json, NULL);
  for (size_t i = 0; i < checks->count; i++) {
    const struct haul_check *check = &checks->list[i];
    if (!wanted(check, shown))
      continue;
    json_object(&json, NULL);
    json_text(&json, "backend", check->backend);
    json_text(&json, "name", check->name);
    json_text(&json, "state", check_state_text(check->state));
    json_text(&json, "text", check->text);
    json_text(&json, "remedy", check->remedy);
    json_end_object(&json);
  }
  json_end_array(&json);
}

/* Prints an error for each failed check of this name or backend. */
static int judge(const struct checks *checks, const char *name) {
  int status = EXIT_DONE;
  for (size_t i = 0; i < checks->count; i++) {
    const struct haul_check *check = &checks->list[i];
    bool itself = strcmp(check->name, name) == 0 && check->state != HAUL_CHECK_OK;
    bool part = strcmp(check->backend, name) == 0 && check->state == HAUL_CHECK_MISSING;
    if (itself || part)
      status = fail_because(check->remedy, "%s is %s: %s", check->name,
                            check_state_text(check->state), check->text);
  }
  return status;
}

static int judge_all(const struct checks *checks, const struct text_list *names) {
  int status = EXIT_DONE;
  for (size_t i = 0; i < names->count; i++)
    if (judge(checks, names->items[i]))
      status = EXIT_FAILED;
  return status;
}

/* Unknown names are errors: a misspelt --require must not pass. */
static int check_names(const struct command *self, const struct checks *checks, const char *shown,
                       const struct text_list *names) {
  const char *unknown = shown && !checks_know(checks, shown) ? shown : NULL;
  for (size_t i = 0; i < names->count && !unknown; i++)
    if (!checks_know(checks, names->items[i]))
      unknown = names->items[i];
  return unknown ? options_wrong(self, "unknown check or backend '%s': `haul doctor` lists them",
                                 unknown)
                 : EXIT_DONE;
}

static int run_doctor(const struct command *self, char **operands) {
  struct checks checks = {0};
  const char *shown = operands[0];
  haul_node *node = open_client_node();
  if (!node)
    return EXIT_FAILED;
  int status = checks_load(&checks, node);
  haul_node_close(node);
  if (status == EXIT_DONE)
    status = check_names(self, &checks, shown, &given.require);
  if (status == EXIT_DONE && given.json)
    print_doctor_json(&checks, shown);
  else if (status == EXIT_DONE)
    print_doctor_table(&checks, shown);
  if (status == EXIT_DONE)
    status = judge_all(&checks, &given.require);
  checks_free(&checks);
  return status;
}

const struct command doctor_command = {
    .name = "doctor",
    .summary = "Check the requirements of each path and place, and show how to fix them",
    .usage = "[BACKEND | CHECK] [OPTIONS]",
    .about =
        "Each check is ok, limited (it works, but could work better), missing, or unknown (it "
        "waits\n"
        "for one that is missing). The last line counts them. BACKEND (host,\n"
        "sim, cuda, gaudi, dpdk, gpudev, p2p, map, rdma, tcp) selects the checks of one\n"
        "backend, CHECK selects one. With --require the exit status is 1 unless a check is ok, or\n"
        "no check of a backend is missing.",
    .options = options,
    .examples = "  haul doctor\n"
                "  haul doctor rdma\n"
                "  haul doctor rdma.memlock\n"
                "  haul doctor --require map --require tcp && echo ready\n",
    .values = &given,
    .most = 1,
    .run = run_doctor,
};
