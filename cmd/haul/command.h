/* SPDX-License-Identifier: MIT
 * The table of a subcommand. main.c lists all tables, which drive dispatch, the parsing of options
 * and the help texts. */
#ifndef HAUL_COMMAND_H
#define HAUL_COMMAND_H

#include <stddef.h>

enum exit_status { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

enum option_type {
  OPTION_FLAG,    /* int, set to 1 */
  OPTION_TEXT,    /* const char * */
  OPTION_PATH,    /* const char *: the name of a path */
  OPTION_MAYBE,   /* const char *: "" without a value, which only follows '=' */
  OPTION_LIST,    /* struct text_list: repeatable */
  OPTION_SIZE,    /* uint64_t, bytes */
  OPTION_LENGTH,  /* uint64_t, bytes, at least 1 */
  OPTION_COUNT,   /* unsigned, at least 1 */
  OPTION_SECONDS, /* int64_t, nanoseconds, more than 0 */
  OPTION_LEASE,   /* the same, at most a day */
};

/* One option. */
struct option_spec {
  const char *name; /* without the dashes; NULL ends a table */
  enum option_type type;
  size_t offset;     /* of the field in the values of the subcommand */
  const char *value; /* name of the value in the help text; NULL for a flag */
  const char *help;
};

struct command {
  const char *name;
  const char *summary; /* one line */
  const char *usage;   /* synopsis after "haul NAME" */
  const char *about;   /* paragraphs */
  const struct option_spec *options;
  const char *letters; /* each abbreviates the first option with this initial; NULL: none */
  const char *examples;
  void *values;    /* struct of the subcommand that the options fill */
  int least, most; /* number of operands */
  /* `operands` end with NULL. Prints its errors and returns an exit status. */
  int (*run)(const struct command *self, char **operands);
};

extern const struct command info_command;
extern const struct command doctor_command;
extern const struct command serve_command;
extern const struct command ls_command;
extern const struct command put_command;
extern const struct command get_command;
extern const struct command explain_command;
extern const struct command bench_command;
extern const struct command pingpong_command;
extern const struct command mount_command;
extern const struct command key_command;
extern const struct command top_command;
extern const struct command trace_command;
extern const struct command cache_command;
extern const struct command push_command;
extern const struct command pull_command;

#endif
