/* SPDX-License-Identifier: MIT */
#include "fail.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <haul/haul.h>

#include "../command.h"
#include "progress.h"
#include "text.h"

static const char *command_name;
static char state_left[1024];

/* If two phrases start alike, the longer one comes first. */
static const struct {
  const char *library, *command;
} phrases[] = {
    {"set a later deadline in the options",
     "allow more time with --timeout, if the command has it"},
    {"pass a later deadline", "allow more time with --timeout"},
    {"the deadline had passed before the call", "timed out"},
    {"haul_device_list shows", "haul info shows"},
    {"haul_check_list says", "haul doctor says"},
    {"check the call's arguments; its comment in haul.h says what it takes",
     "haul help COMMAND says what the command takes"},
    {"publish it with HAUL_WRITE there", "publish it writable there: haul serve, without ':ro'"},
    {"publish it with HAUL_READ | HAUL_WRITE there",
     "publish it readable and writable there: haul serve, without ':ro'"},
    {"publish it with HAUL_READ there", "publish it readable there"},
    {", or allocate with HAUL_REGION_PRIVATE what is not shared", ""},
    {"set only = \"rdma\" to use it", "set --only rdma to use it"},
    {"start the source again, and call haul_broadcast_next for its version",
     "start haul push again, and then this command, which keeps right chunks"},
    {"call haul_broadcast_next for the present version",
     "run this command again: it keeps right chunks"},
    {"publish them again, as a new version",
     "start haul push again; its file must not change meanwhile"},
    {"did they change?", "did its file change?"},
    {"open the source with room for more members", "start haul push with more --members"},
    {"set the option address to one that others reach", "set --address to one that others reach"},
};

static void replace(char *text, size_t size, const char *from, const char *to) {
  char rest[512];
  char *at = strstr(text, from);
  if (!at)
    return;
  size_t room = size - (size_t)(at - text);
  snprintf(rest, sizeof(rest), "%s", at + strlen(from));
  if ((size_t)snprintf(at, room, "%s", to) < room)
    snprintf(at + strlen(to), room - strlen(to), "%s", rest);
}

void use_command_terms(char *text, size_t size) {
  for (size_t i = 0; i < sizeof(phrases) / sizeof(phrases[0]); i++)
    replace(text, size, phrases[i].library, phrases[i].command);
}

void fail_set_command(const char *name) {
  command_name = name;
}

/* Prints the line in one write, so that lines of several processes do not mix. */
static void print_line(const char *text) {
  char line[2048];
  snprintf(line, sizeof(line), "haul: %s%s%s", command_name ? command_name : "",
           command_name ? ": " : "", text);
  text_clean(line);
  progress_hide();
  fprintf(stderr, "%s\n", line);
}

static void print_hint(const char *hint) {
  char line[1536];
  bool hints = hint && *hint;
  if (!hints && !*state_left)
    return;
  snprintf(line, sizeof(line), "hint: %s%s%s", hints ? hint : "", hints && *state_left ? "; " : "",
           state_left);
  use_command_terms(line, sizeof(line));
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
  bool named = !*error->object || strstr(what, error->object) || strstr(text, error->object);
  snprintf(line, sizeof(line), "%s: %s%s%s%s", what, text, named ? "" : " (",
           named ? "" : error->object, named ? "" : ")");
  use_command_terms(line, sizeof(line));
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
  print_hint(NULL);
  return EXIT_FAILED;
}

static void print_list(const char *format, va_list list) {
  char line[1536];
  vsnprintf(line, sizeof(line), format, list);
  print_line(line);
}

int fail_because(const char *hint, const char *format, ...) {
  va_list list;
  va_start(list, format);
  print_list(format, list);
  va_end(list);
  print_hint(hint);
  return EXIT_FAILED;
}

void fail_leaves(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(state_left, sizeof(state_left), format, list);
  va_end(list);
}

void fail_note(const char *format, ...) {
  va_list list;
  va_start(list, format);
  print_list(format, list);
  va_end(list);
}
