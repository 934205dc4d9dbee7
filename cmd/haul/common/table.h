/* SPDX-License-Identifier: MIT
 *
 * Text in columns.
 */
#ifndef HAUL_COMMAND_TABLE_H
#define HAUL_COMMAND_TABLE_H

#include <stddef.h>
#include <stdio.h>

#define TABLE_COLUMNS_MAX 12

struct table {
  const char *alignment; /* a letter a column: 'l' or 'r' */
  size_t columns, rows;
  char **cells; /* rows * columns, each the table's own */
};

/* `alignment` must outlive the table. Release with table_free. */
void table_init(struct table *table, const char *alignment);

/* Adds a row: as many texts as there are columns. The first row is the heading. */
void table_row(struct table *table, ...);

void table_print(const struct table *table, FILE *out);
void table_free(struct table *table);

#endif
