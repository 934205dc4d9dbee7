/* SPDX-License-Identifier: MIT
 *
 * Options from a command's table: parsing and help text.
 */
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

/* How many operands a command takes. */
struct operand_range {
  int least, most;
};

/* Fills `values` from argv as the command's table says, and sets *operands to what is left, which
 * ends with NULL. False when the command is to end now, with *status: after --help, or after a
 * usage error, which has been printed. */
bool options_parse(const struct command *command, int argc, char **argv, void *values,
                   struct operand_range range, char ***operands, int *status);

/* Prints a usage error and the usage line; returns EXIT_USAGE. */
int options_wrong(const struct command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Parse an operand or a value; false after a usage error, which has been printed. */
bool options_address(const struct command *command, const char *text, const char *port,
                     char address[ADDRESS_MAX]);
bool options_target(const struct command *command, const char *text, struct target *target);
bool options_place(const struct command *command, const char *text, struct haul_place *place);

void options_print_help(const struct command *command, FILE *out);

/* What put, get, explain and bench let the user ask of a transfer. */
struct transfer_choices {
  const char *only;
  int checksum;
  int zero_copy;
  int64_t timeout;
};

#define OPTION_ENTRY_ONLY(type)                                                                    \
  {                                                                                                \
    "only", OPTION_TEXT, offsetof(struct type, transfer.only), "PATH",                             \
        "take this path alone (map, rdma, tcp) and fail where it is closed"                        \
  }
#define OPTION_ENTRY_CHECKSUM(type)                                                                \
  {                                                                                                \
    "checksum", OPTION_FLAG, offsetof(struct type, transfer.checksum), NULL,                       \
        "compute a checksum at the source and check it at the destination"                         \
  }
#define OPTION_ENTRY_ZERO_COPY(type)                                                               \
  {                                                                                                \
    "require-zero-copy", OPTION_FLAG, offsetof(struct type, transfer.zero_copy), NULL,             \
        "fail, with the reason, where a buffer would lie between source and destination"           \
  }
#define OPTION_ENTRY_TIMEOUT(type)                                                                 \
  {                                                                                                \
    "timeout", OPTION_SECONDS, offsetof(struct type, transfer.timeout), "SECONDS",                 \
        "give up when it has not ended by then (default: 60 for each part)"                        \
  }

/* The library's form of the choices; the deadline counts from now. */
struct haul_transfer_options transfer_options(const struct transfer_choices *choices);

#endif
