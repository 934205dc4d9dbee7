/* SPDX-License-Identifier: MIT
 * Output: JSON for scripts, tables and lines for people. */
#ifndef HAUL_COMMAND_OUTPUT_H
#define HAUL_COMMAND_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 16

/* Writes indented JSON, one value a line. Begins with `out` and maybe `flat`, the rest zero. `key`
 * is NULL within an array and at the top. */
struct json {
  FILE *out;
  int depth;
  int flat;                  /* containers at this depth and below take one line; 0: none */
  bool some[JSON_DEPTH_MAX]; /* the container at this depth has a value */
};

/* Begins an object on standard output. */
struct json json_open(void);

void json_object(struct json *json, const char *key); /* ends with json_end_object */
void json_end_object(struct json *json);
void json_array(struct json *json, const char *key); /* ends with json_end_array */
void json_end_array(struct json *json);

void json_text(struct json *json, const char *key, const char *text);
void json_number(struct json *json, const char *key, uint64_t number);
void json_signed(struct json *json, const char *key, int64_t number);
void json_real(struct json *json, const char *key, double number); /* null when it is not finite */
void json_micros(struct json *json, const char *key, int64_t nanoseconds); /* 12.345 */
void json_bool(struct json *json, const char *key, bool truth);
void json_null(struct json *json, const char *key);

/* The columns of the terminal; 0: standard output is none, or it does not say. */
int terminal_columns(void);

#define TABLE_COLUMNS_MAX 12

struct table {
  const char *alignment; /* 'l' or 'r' for each column */
  size_t columns, rows;
  char **cells; /* rows * columns copies */
};

/* Prints a line without control characters and invalid UTF-8, which names of files may have. */
void print_clean(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* With a heading for each column. `alignment` must outlive the table. table_end is due. */
struct table table_begin(const char *alignment, ...);
/* Adds a row: one text for each column. */
void table_row(struct table *table, ...);

/* Prints the table to standard output and frees it. */
void table_end(struct table *table);

#endif
