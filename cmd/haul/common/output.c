/* SPDX-License-Identifier: MIT */
#include "output.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "fail.h"
#include "text.h"

struct json json_open(void) {
  struct json json = {.out = stdout};
  json_object(&json, NULL);
  return json;
}

static size_t write_character(FILE *out, const char *text) {
  size_t length = text_character(text);
  if (length == 0) {
    fputs("\\ufffd", out);
    return 1;
  }
  if (*text == '"' || *text == '\\')
    fprintf(out, "\\%c", *text);
  else if (text_is_control(text))
    fprintf(out, "\\u%04x", text_code_point(text));
  else
    fwrite(text, 1, length, out);
  return length;
}

/* The number of bytes that need no escape: nearly always all. */
static size_t plain_length(const char *text) {
  size_t length = 0;
  while (text[length] >= ' ' && text[length] < 0x7f && text[length] != '"' && text[length] != '\\')
    length++;
  return length;
}

static void write_text(FILE *out, const char *text) {
  fputc('"', out);
  for (const char *at = text; *at;) {
    size_t plain = plain_length(at);
    fwrite(at, 1, plain, out);
    at += plain;
    if (*at)
      at += write_character(out, at);
  }
  fputc('"', out);
}

static bool is_flat(const struct json *json) {
  return json->flat && json->depth >= json->flat;
}

static void new_line(struct json *json) {
  fprintf(json->out, "\n%*s", 2 * json->depth, "");
}

static void lead_in(struct json *json, const char *key) {
  if (json->depth == 0)
    return;
  if (json->some[json->depth])
    fputs(is_flat(json) ? ", " : ",", json->out);
  json->some[json->depth] = true;
  if (!is_flat(json))
    new_line(json);
  if (!key)
    return;
  write_text(json->out, key);
  fputs(": ", json->out);
}

static void open_container(struct json *json, const char *key, char bracket) {
  lead_in(json, key);
  fputc(bracket, json->out);
  json->depth++;
  json->some[json->depth] = false;
}

static void close_container(struct json *json, char bracket) {
  bool broken = json->some[json->depth] && !is_flat(json);
  json->depth--;
  if (broken)
    new_line(json);
  fputc(bracket, json->out);
  if (json->depth == 0)
    fputc('\n', json->out);
}

void json_object(struct json *json, const char *key) {
  open_container(json, key, '{');
}

void json_end_object(struct json *json) {
  close_container(json, '}');
}

void json_array(struct json *json, const char *key) {
  open_container(json, key, '[');
}

void json_end_array(struct json *json) {
  close_container(json, ']');
}

void json_text(struct json *json, const char *key, const char *text) {
  lead_in(json, key);
  write_text(json->out, text);
}

void json_number(struct json *json, const char *key, uint64_t number) {
  lead_in(json, key);
  fprintf(json->out, "%" PRIu64, number);
}

void json_signed(struct json *json, const char *key, int64_t number) {
  lead_in(json, key);
  fprintf(json->out, "%" PRId64, number);
}

void json_real(struct json *json, const char *key, double number) {
  if (!isfinite(number)) {
    json_null(json, key);
    return;
  }
  lead_in(json, key);
  fprintf(json->out, "%.6g", number);
}

void json_micros(struct json *json, const char *key, int64_t nanoseconds) {
  lead_in(json, key);
  uint64_t size = nanoseconds < 0 ? 0 - (uint64_t)nanoseconds : (uint64_t)nanoseconds;
  fprintf(json->out, "%s%" PRIu64 ".%03u", nanoseconds < 0 ? "-" : "", size / 1000,
          (unsigned)(size % 1000));
}

void json_bool(struct json *json, const char *key, bool truth) {
  lead_in(json, key);
  fputs(truth ? "true" : "false", json->out);
}

void json_null(struct json *json, const char *key) {
  lead_in(json, key);
  fputs("null", json->out);
}

void print_clean(FILE *out, const char *format, ...) {
  char *line = NULL;
  va_list list;
  va_start(list, format);
  int length = vasprintf(&line, format, list);
  va_end(list);
  if (length < 0)
    exit(fail_because(NULL, "out of memory"));
  text_clean(line);
  fprintf(out, "%s\n", line);
  free(line);
}

int terminal_columns(void) {
  struct winsize size;
  if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
    return 0;
  return size.ws_col;
}

static void add_row(struct table *table, va_list cells) {
  size_t count = table->columns;
  table->cells = must_realloc(table->cells, (table->rows + 1) * count * sizeof(*table->cells));
  char **row = table->cells + table->rows * count;
  for (size_t i = 0; i < count; i++) {
    row[i] = must_strdup(va_arg(cells, const char *));
    text_clean(row[i]);
  }
  table->rows++;
}

struct table table_begin(const char *alignment, ...) {
  struct table table = {.alignment = alignment, .columns = strlen(alignment)};
  va_list headings;
  va_start(headings, alignment);
  add_row(&table, headings);
  va_end(headings);
  return table;
}

void table_row(struct table *table, ...) {
  va_list cells;
  va_start(cells, table);
  add_row(table, cells);
  va_end(cells);
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

void table_end(struct table *table) {
  int widths[TABLE_COLUMNS_MAX];
  measure(table, widths);
  for (size_t i = 0; i < table->rows; i++)
    print_row(table, table->cells + i * table->columns, widths, stdout);
  for (size_t i = 0; i < table->rows * table->columns; i++)
    free(table->cells[i]);
  free(table->cells);
}
