/* SPDX-License-Identifier: MIT
 * Options from a command's table: parsing and help text. */
#ifndef HAUL_COMMAND_OPTIONS_H
#define HAUL_COMMAND_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <haul/haul.h>

#include "../command.h"
#include "session.h"

#define LIST_MAX 64

/* The values of an option that may be given several times. */
struct text_list {
  size_t count;
  const char *items[LIST_MAX];
};

/* Parses argv, whose first word is the name of the command, into its values and *operands. False:
 * the command ends with *status, after --help or after a usage error, which has been printed. */
bool options_parse(const struct command *command, int argc, char **argv, char ***operands,
                   int *status);

/* Prints a usage error and the usage line; returns EXIT_USAGE. */
int options_wrong(const struct command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether the option has a value: one that is not 0, of options that can be 0. */
bool options_given(const struct command *command, const struct option_spec *spec);

/* Parse an operand or a value; false after a usage error, which has been printed. */
bool options_address(const struct command *command, const char *text, const char *port,
                     char address[ADDRESS_MAX]);
bool options_target(const struct command *command, const char *text, struct target *target);
bool options_place(const struct command *command, const char *text, struct haul_place *place);

void options_print_help(const struct command *command, FILE *out);

/* Transfer options of put, get, explain and bench. */
struct transfer_choices {
  const char *only;
  int checksum;
  int zero_copy;
  int64_t timeout;
};

#define OPTION_ENTRY_ONLY(type)                                                                    \
  {                                                                                                \
    "only", OPTION_PATH, offsetof(struct type, transfer.only), "PATH",                             \
        "use only this path (map, rdma, tcp), and fail if it is closed"                            \
  }
#define OPTION_ENTRY_CHECKSUM(type)                                                                \
  {                                                                                                \
    "checksum", OPTION_FLAG, offsetof(struct type, transfer.checksum), NULL,                       \
        "verify a checksum, computed at the source, at the destination"                            \
  }
#define OPTION_ENTRY_ZERO_COPY(type)                                                               \
  {                                                                                                \
    "require-zero-copy", OPTION_FLAG, offsetof(struct type, transfer.zero_copy), NULL,             \
        "fail, with the reason, if the path needs a buffer between source and destination"         \
  }
#define OPTION_ENTRY_TIMEOUT(type)                                                                 \
  {                                                                                                \
    "timeout", OPTION_SECONDS, offsetof(struct type, transfer.timeout), "SECONDS",                 \
        "limit connecting, each lookup and the transfer (default: 10, 10 and 60 a chunk)"          \
  }

/* Converts the choices for the library; the deadline counts from this call. */
struct haul_transfer_options transfer_options(const struct transfer_choices *choices);

#endif
