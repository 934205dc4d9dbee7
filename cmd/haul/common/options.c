/* SPDX-License-Identifier: MIT */
#include "options.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "units.h"

#define OPTIONS_MAX  32
#define FIRST_OPTION 256 /* getopt_long's value of the table's first entry: beyond every letter */

static size_t count_options(const struct command *command) {
  size_t count = 0;
  while (command->options[count].name)
    count++;
  return count;
}

/* The option that a letter is short for; NULL where it is none. */
static const struct option_spec *of_letter(const struct command *command, int letter) {
  if (!command->letters || !strchr(command->letters, letter))
    return NULL;
  const struct option_spec *spec = command->options;
  while (spec->name && spec->name[0] != letter)
    spec++;
  return spec->name ? spec : NULL;
}

static bool has_letter(const struct command *command, const struct option_spec *spec) {
  return of_letter(command, spec->name[0]) == spec;
}

/* As getopt wants them: ":h" and the command's own. */
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
  size_t count = count_options(command);
  for (size_t i = 0; i < count; i++) {
    const struct option_spec *spec = &command->options[i];
    int argument = spec->type == OPTION_FLAG ? no_argument : required_argument;
    list[i] = (struct option){spec->name, argument, NULL, FIRST_OPTION + (int)i};
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

static int add_to_list(const struct command *command, const char *name, struct text_list *list,
                       const char *text) {
  if (list->count == LIST_MAX)
    return options_wrong(command, "--%s is given more than %d times", name, LIST_MAX);
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

static bool parse_length(const char *text, uint64_t *length) {
  return size_parse(text, length) && *length > 0;
}

/* What a good value is. */
static const char *form_of(enum option_type type) {
  switch (type) {
  case OPTION_SIZE:
    return "a whole number of bytes, or of units: 4096, 64K, 1M, 2GB";
  case OPTION_LENGTH:
    return "a whole number of bytes, or of units, at least 1: 4096, 64K, 1M, 2GB";
  case OPTION_COUNT:
    return "a whole number, at least 1";
  case OPTION_SECONDS:
    return "more than 0, at most ten years: 10, 0.5";
  default:
    return "anything";
  }
}

static int store(const struct command *command, const struct option_spec *spec, void *values,
                 const char *text) {
  void *field = (char *)values + spec->offset;
  bool good = true;
  switch (spec->type) {
  case OPTION_FLAG:
    *(int *)field = 1;
    break;
  case OPTION_TEXT:
    *(const char **)field = text;
    break;
  case OPTION_LIST:
    return add_to_list(command, spec->name, field, text);
  case OPTION_SIZE:
    good = size_parse(text, field);
    break;
  case OPTION_LENGTH:
    good = parse_length(text, field);
    break;
  case OPTION_COUNT:
    good = parse_count(text, field);
    break;
  case OPTION_SECONDS:
    good = seconds_parse(text, field);
    break;
  }
  if (!good)
    return options_wrong(command, "'%s' is no good value for --%s, which is %s", text, spec->name,
                         form_of(spec->type));
  return EXIT_DONE;
}

/* getopt_long returned '?' or ':'. */
static int refuse(const struct command *command, int found, char **argv) {
  const char *word = argv[optind - 1];
  if (found == ':')
    return options_wrong(command, "option '%s' needs a value", word);
  if (optopt >= FIRST_OPTION)
    return options_wrong(command, "option '%s' takes no value", word);
  if (optopt)
    return options_wrong(command, "there is no option '-%c'", optopt);
  return options_wrong(command, "there is no option '%s'", word);
}

/* One option; EXIT_DONE to go on, -1 after --help. */
static int take(const struct command *command, int found, char **argv, void *values) {
  if (found == 'h') {
    options_print_help(command, stdout);
    return -1;
  }
  if (found == '?' || found == ':')
    return refuse(command, found, argv);
  const struct option_spec *spec =
      found < FIRST_OPTION ? of_letter(command, found) : &command->options[found - FIRST_OPTION];
  return store(command, spec, values, optarg);
}

bool options_parse(const struct command *command, int argc, char **argv, void *values,
                   struct operand_range range, char ***operands, int *status) {
  struct option list[OPTIONS_MAX + 2];
  char letters[OPTIONS_MAX * 2 + 3];
  fill_long_options(command, list);
  fill_letters(command, letters);
  opterr = 0;
  for (int found; (found = getopt_long(argc, argv, letters, list, NULL)) != -1;) {
    *status = take(command, found, argv, values);
    if (*status == EXIT_DONE)
      continue;
    if (*status < 0)
      *status = EXIT_DONE;
    return false;
  }
  *operands = argv + optind;
  int count = argc - optind;
  if (count < range.least || count > range.most) {
    *status = options_wrong(command, count < range.least ? "an operand is missing"
                                                         : "there is an operand too many");
    return false;
  }
  return true;
}

static void print_option(const struct command *command, const struct option_spec *spec, FILE *out) {
  char left[64];
  char letter[8] = "";
  if (has_letter(command, spec))
    snprintf(letter, sizeof letter, ", -%c", spec->name[0]);
  snprintf(left, sizeof(left), "--%s%s%s%s", spec->name, letter, spec->value ? " " : "",
           spec->value ? spec->value : "");
  fprintf(out, "  %-28s %s\n", left, spec->help);
}

void options_print_help(const struct command *command, FILE *out) {
  fprintf(out, "usage: haul %s %s\n\n%s.\n\n%s\n\noptions:\n", command->name, command->usage,
          command->summary, command->about);
  for (const struct option_spec *spec = command->options; spec->name; spec++)
    print_option(command, spec, out);
  fprintf(out, "  %-28s %s\n", "--help", "show this text");
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
