/* SPDX-License-Identifier: MIT */
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

void table_init(struct table *table, const char *alignment) {
  *table = (struct table){.alignment = alignment, .columns = strlen(alignment)};
}

void table_row(struct table *table, ...) {
  va_list list;
  size_t count = table->columns;
  table->cells = must_realloc(table->cells, (table->rows + 1) * count * sizeof(*table->cells));
  char **row = table->cells + table->rows * count;
  va_start(list, table);
  for (size_t i = 0; i < count; i++) {
    row[i] = must_strdup(va_arg(list, const char *));
    text_clean(row[i]);
  }
  va_end(list);
  table->rows++;
}

static void measure(const struct table *table, int *widths) {
  for (size_t i = 0; i < table->columns; i++)
    widths[i] = 0;
  for (size_t i = 0; i < table->rows * table->columns; i++) {
    int length = (int)strlen(table->cells[i]);
    if (length > widths[i % table->columns])
      widths[i % table->columns] = length;
  }
}

static void print_row(const struct table *table, char **row, const int *widths, FILE *out) {
  for (size_t i = 0; i < table->columns; i++) {
    const char *gap = i ? "  " : "";
    if (table->alignment[i] == 'r')
      fprintf(out, "%s%*s", gap, widths[i], row[i]);
    else if (i + 1 < table->columns)
      fprintf(out, "%s%-*s", gap, widths[i], row[i]);
    else
      fprintf(out, "%s%s", *row[i] ? gap : "", row[i]);
  }
  fputc('\n', out);
}

void table_print(const struct table *table, FILE *out) {
  int widths[TABLE_COLUMNS_MAX];
  measure(table, widths);
  for (size_t i = 0; i < table->rows; i++)
    print_row(table, table->cells + i * table->columns, widths, out);
}

void table_free(struct table *table) {
  for (size_t i = 0; i < table->rows * table->columns; i++)
    free(table->cells[i]);
  free(table->cells);
}
