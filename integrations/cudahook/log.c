/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hook.h"

#define LINE 1024 /* bytes, enough for an error's text and hint */

static const char *target; /* NULL: no log. Constant after the constructor */
static _Atomic int descriptor = -1;

static __attribute__((constructor)) void read_target(void) {
  target = getenv("HAUL_CUDAHOOK_LOG");
  if (target && (!*target || strcmp(target, "0") == 0))
    target = NULL;
  if (target && strcmp(target, "1") == 0)
    atomic_store(&descriptor, STDERR_FILENO);
}

/* Creates the file at the first line, as most programs that are started with the hook log nothing.
 */
static int open_once(void) {
  int mine = open(target, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), first = -1;
  if (mine < 0 || atomic_compare_exchange_strong(&descriptor, &first, mine))
    return mine;
  close(mine);
  return first;
}

static size_t put(char *line, size_t room, size_t used, const char *format, va_list list) {
  int more = vsnprintf(line + used, room - used, format, list);
  used += more < 0 ? 0 : (size_t)more;
  return used < room ? used : room - 1;
}

static size_t say(char *line, size_t room, size_t used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static size_t say(char *line, size_t room, size_t used, const char *format, ...) {
  va_list list;
  va_start(list, format);
  used = put(line, room, used, format, list);
  va_end(list);
  return used;
}

/* `line` has `used` bytes and a terminator, which the newline replaces. */
static void write_line(int to, char *line, size_t used) {
  line[used++] = '\n';
  if (to >= 0 && write(to, line, used) < 0)
    return; /* an unwritable log is ignored */
}

static void record_line(const struct record *record, const char *format, va_list list) {
  char line[LINE];
  size_t used = say(line, sizeof line, 0, "haul-cudahook %d %s %zu %p ", (int)getpid(),
                    record->call, record->bytes, record->address);
  used = record->device < 0 ? say(line, sizeof line, used, "- ")
                            : say(line, sizeof line, used, "cuda:%d ", record->device);
  used = put(line, sizeof line, used, format, list);
  int to = atomic_load(&descriptor);
  write_line(to < 0 ? open_once() : to, line, used);
}

void log_record(const struct record *record, const char *format, ...) {
  va_list list;
  if (!target)
    return;
  va_start(list, format);
  record_line(record, format, list);
  va_end(list);
}

static void warning_line(const char *format, va_list list) {
  char line[LINE];
  size_t used = say(line, sizeof line, 0, "haul-cudahook %d: ", (int)getpid());
  used = put(line, sizeof line, used, format, list);
  write_line(STDERR_FILENO, line, used);
}

void log_warning(const struct record *record, const char *format, ...) {
  va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  if (target)
    record_line(record, format, list);
  if (atomic_load(&descriptor) != STDERR_FILENO)
    warning_line(format, again);
  va_end(again);
  va_end(list);
}

void *pass_on(struct record *record, const char *format, ...) {
  va_list list;
  if (!target)
    return NULL;
  va_start(list, format);
  vsnprintf(record->why, sizeof record->why, format, list);
  va_end(list);
  return NULL;
}
