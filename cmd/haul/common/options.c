/* SPDX-License-Identifier: MIT */
#include "options.h"

#include <getopt.h>
#include <stdarg.h>
#include <string.h>

#include "fail.h"
#include "text.h"

#define OPTIONS_MAX  32
#define DAY_NS       INT64_C(86400000000000)
#define FIRST_OPTION 256 /* code of the first table entry for getopt_long: above all letters */

/* The option that the letter abbreviates, or NULL. */
static const struct option_spec *of_letter(const struct command *command, int letter) {
  if (!command->letters || !strchr(command->letters, letter))
    return NULL;
  const struct option_spec *spec = command->options;
  while (spec->name && spec->name[0] != letter)
    spec++;
  return spec->name ? spec : NULL;
}

/* The letters in the form of getopt: ":h" and those of the command. */
static void fill_letters(const struct command *command, char text[OPTIONS_MAX * 2 + 3]) {
  text = stpcpy(text, ":h");
  for (const char *at = command->letters; at && *at; at++) {
    const struct option_spec *spec = of_letter(command, *at);
    *text++ = *at;
    if (spec && spec->type != OPTION_FLAG)
      *text++ = ':';
  }
  *text = '\0';
}

static void fill_long_options(const struct command *command, struct option *list) {
  int count = 0;
  for (const struct option_spec *spec = command->options; spec->name; spec++, count++) {
    int argument = spec->type == OPTION_FLAG    ? no_argument
                   : spec->type == OPTION_MAYBE ? optional_argument
                                                : required_argument;
    list[count] = (struct option){spec->name, argument, NULL, FIRST_OPTION + count};
  }
  list[count] = (struct option){"help", no_argument, NULL, 'h'};
  list[count + 1] = (struct option){NULL, 0, NULL, 0};
}

int options_wrong(const struct command *command, const char *format, ...) {
  char line[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof(line), format, list);
  va_end(list);
  fail_because(NULL, "%s", line);
  fprintf(stderr, "usage: haul %s %s\nhint: `haul %s --help` explains the options\n", command->name,
          command->usage, command->name);
  return EXIT_USAGE;
}

bool options_address(const struct command *command, const char *text, const char *port,
                     char address[ADDRESS_MAX]) {
  struct target target;
  bool names_region = target_or_node_parse(text, &target) && target.name;
  if (!names_region && address_expand(text, port, address))
    return true;
  if (names_region)
    options_wrong(command, "invalid address '%s': pass the node alone: %s", text, target.address);
  else
    options_wrong(command, "invalid address '%s': expected HOST[:PORT], unix:///PATH or etcd://…",
                  text);
  return false;
}

bool options_target(const struct command *command, const char *text, struct target *target) {
  if (target_parse(text, target))
    return true;
  options_wrong(command, "invalid target '%s': expected NODE/NAME", text);
  return false;
}

bool options_place(const struct command *command, const char *text, struct haul_place *place) {
  if (haul_place_parse(text, place) == 0)
    return true;
  options_wrong(command, "invalid place '%s': `haul info` lists the places", text);
  return false;
}

static int add_to_list(const struct command *command, const char *name, struct text_list *list,
                       const char *text) {
  if (list->count == LIST_MAX)
    return options_wrong(command, "at most %d values of --%s are possible", LIST_MAX, name);
  list->items[list->count++] = text;
  return EXIT_DONE;
}

static bool parse_count(const char *text, unsigned *count) {
  uint64_t value = 0;
  if (!size_parse(text, &value) || value == 0 || value > UINT32_MAX)
    return false;
  *count = (unsigned)value;
  return true;
}

static bool is_path(const char *text) {
  return strcmp(text, "map") == 0 || strcmp(text, "rdma") == 0 || strcmp(text, "tcp") == 0;
}

bool options_given(const struct command *command, const struct option_spec *spec) {
  static const size_t sizes[] = {
      [OPTION_FLAG] = sizeof(int),        [OPTION_TEXT] = sizeof(char *),
      [OPTION_PATH] = sizeof(char *),     [OPTION_MAYBE] = sizeof(char *),
      [OPTION_LIST] = sizeof(size_t),     [OPTION_SIZE] = sizeof(uint64_t),
      [OPTION_LENGTH] = sizeof(uint64_t), [OPTION_COUNT] = sizeof(unsigned),
      [OPTION_SECONDS] = sizeof(int64_t), [OPTION_LEASE] = sizeof(int64_t),
  };
  static const char none[sizeof(uint64_t)];
  const char *field = (const char *)command->values + spec->offset;
  return memcmp(field, none, sizes[spec->type]) != 0;
}

static const char *expected_value(enum option_type type) {
  switch (type) {
  case OPTION_SIZE:
    return "bytes, or a number with a unit, for example 4096, 64K, 1M or 2GB, below 16 EiB";
  case OPTION_LENGTH:
    return "at least 1 byte and less than 16 EiB, for example 4096, 64K, 1M or 2GB";
  case OPTION_COUNT:
    return "a whole number from 1 to 4294967295";
  case OPTION_PATH:
    return "map, rdma or tcp";
  case OPTION_SECONDS:
    return "seconds greater than 0, at most ten years, for example 10 or 0.5";
  case OPTION_LEASE:
    return "seconds greater than 0, at most 86400 (a day), for example 600";
  default:
    return "text";
  }
}

static int store(const struct command *command, const struct option_spec *spec, const char *text) {
  void *field = (char *)command->values + spec->offset;
  bool good = true;
  switch (spec->type) {
  case OPTION_FLAG:
    *(int *)field = 1;
    break;
  case OPTION_PATH:
    good = is_path(text);
    *(const char **)field = text;
    break;
  case OPTION_TEXT:
    *(const char **)field = text;
    break;
  case OPTION_MAYBE:
    *(const char **)field = text ? text : "";
    break;
  case OPTION_LIST:
    return add_to_list(command, spec->name, field, text);
  case OPTION_SIZE:
    good = size_parse(text, field);
    break;
  case OPTION_LENGTH:
    good = size_parse(text, field) && *(uint64_t *)field > 0;
    break;
  case OPTION_COUNT:
    good = parse_count(text, field);
    break;
  case OPTION_SECONDS:
    good = seconds_parse(text, field);
    break;
  case OPTION_LEASE:
    good = seconds_parse(text, field) && *(int64_t *)field <= DAY_NS;
    break;
  }
  if (!good)
    return options_wrong(command, "invalid --%s '%s': expected %s", spec->name, text,
                         expected_value(spec->type));
  return EXIT_DONE;
}

/* getopt_long returned '?' or ':'. */
static int refuse(const struct command *command, int found, char **argv) {
  const char *word = argv[optind - 1];
  if (found == ':')
    return options_wrong(command, "option '%s' requires a value", word);
  if (optopt >= FIRST_OPTION)
    return options_wrong(command, "option '%s' takes no value", word);
  if (optopt)
    return options_wrong(command, "unknown option '-%c'", optopt);
  const struct option_spec *spec = command->options;
  while (spec->name && !text_resembles(word + strspn(word, "-"), spec->name))
    spec++;
  if (spec->name)
    return options_wrong(command, "unknown option '%s': did you mean --%s?", word, spec->name);
  return options_wrong(command, "unknown option '%s'", word);
}

/* Handles one option; EXIT_DONE to go on, -1 after --help. */
static int handle_option(const struct command *command, int found, char **argv) {
  if (found == 'h') {
    options_print_help(command, stdout);
    return -1;
  }
  if (found == '?' || found == ':')
    return refuse(command, found, argv);
  const struct option_spec *spec =
      found < FIRST_OPTION ? of_letter(command, found) : &command->options[found - FIRST_OPTION];
  return store(command, spec, optarg);
}

/* The words at the start of the usage are the operands. */
static int check_count(const struct command *command, char **operands, int count) {
  const char *missing = command->usage;
  if (count > command->most)
    return options_wrong(command, "too many operands: '%s'", operands[command->most]);
  if (count >= command->least)
    return EXIT_DONE;
  for (int i = 0; i < count; i++)
    missing = strchr(missing, ' ') + 1;
  return options_wrong(command, "missing operand %.*s", (int)strcspn(missing, " "), missing);
}

bool options_parse(const struct command *command, int argc, char **argv, char ***operands,
                   int *status) {
  struct option list[OPTIONS_MAX + 2];
  char letters[OPTIONS_MAX * 2 + 3];
  fill_long_options(command, list);
  fill_letters(command, letters);
  opterr = 0;
  for (int found; (found = getopt_long(argc, argv, letters, list, NULL)) != -1;) {
    *status = handle_option(command, found, argv);
    if (*status == EXIT_DONE)
      continue;
    if (*status < 0)
      *status = EXIT_DONE;
    return false;
  }
  *operands = argv + optind;
  *status = check_count(command, *operands, argc - optind);
  return *status == EXIT_DONE;
}

static void print_option(const struct command *command, const struct option_spec *spec, FILE *out) {
  char column[64];
  char letter[8] = "";
  if (of_letter(command, spec->name[0]) == spec)
    snprintf(letter, sizeof letter, ", -%c", spec->name[0]);
  bool maybe = spec->type == OPTION_MAYBE;
  snprintf(column, sizeof(column), "--%s%s%s%s%s", spec->name, letter,
           maybe         ? "[="
           : spec->value ? " "
                         : "",
           spec->value ? spec->value : "", maybe ? "]" : "");
  fprintf(out, "  %-28s %s\n", column, spec->help);
}

void options_print_help(const struct command *command, FILE *out) {
  fprintf(out, "usage: haul %s %s\n\n%s.\n\n%s\n\noptions:\n", command->name, command->usage,
          command->summary, command->about);
  for (const struct option_spec *spec = command->options; spec->name; spec++)
    print_option(command, spec, out);
  fprintf(out, "  %-28s %s\n", "--help", "print this text");
  fprintf(out, "\nexamples:\n%s\nexit status: 0 done, 1 failed, 2 wrong usage\n",
          command->examples);
}

struct haul_transfer_options transfer_options(const struct transfer_choices *choices) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  if (choices->checksum)
    options.flags |= HAUL_CHECKSUM;
  if (choices->zero_copy)
    options.flags |= HAUL_REQUIRE_ZERO_COPY;
  options.only = choices->only;
  options.deadline = choices->timeout ? haul_deadline_in(choices->timeout) : 0;
  return options;
}
