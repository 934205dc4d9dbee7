/* SPDX-License-Identifier: MIT */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <haul/haul.h>

#include "../command.h"
#include "progress.h"
#include "text.h"
#include "words.h"

static const char *command_name;

void fail_set_command(const char *name) {
  command_name = name;
}

/* One line, written at once so that lines of several processes do not mix. */
static void print_line(const char *text) {
  char line[2048];
  snprintf(line, sizeof(line), "haul: %s%s%s", command_name ? command_name : "",
           command_name ? ": " : "", text);
  text_clean(line);
  progress_hide();
  fprintf(stderr, "%s\n", line);
}

static void print_hint(const char *hint) {
  char line[512];
  if (!hint || !*hint)
    return;
  snprintf(line, sizeof(line), "hint: %s", hint);
  words_of_command(line, sizeof(line));
  text_clean(line);
  fprintf(stderr, "%s\n", line);
}

int fail_library(const char *format, ...) {
  char what[1024], line[1536];
  const struct haul_error *error = haul_error_last();
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof(what), format, list);
  va_end(list);
  const char *text = *error->text ? error->text : haul_error_text(error->code);
  if (*error->object)
    snprintf(line, sizeof(line), "%s: %s (%s)", what, text, error->object);
  else
    snprintf(line, sizeof(line), "%s: %s", what, text);
  print_line(line);
  print_hint(error->hint);
  return EXIT_FAILED;
}

int fail_system(int error, const char *format, ...) {
  char what[1024], line[1536];
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof(what), format, list);
  va_end(list);
  snprintf(line, sizeof(line), "%s: %s", what, strerror(error));
  print_line(line);
  return EXIT_FAILED;
}

int fail_because(const char *hint, const char *format, ...) {
  char line[1536];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof(line), format, list);
  va_end(list);
  print_line(line);
  print_hint(hint);
  return EXIT_FAILED;
}

void fail_note(const char *format, ...) {
  char line[1536];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof(line), format, list);
  va_end(list);
  print_line(line);
}
