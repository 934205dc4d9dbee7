/* SPDX-License-Identifier: MIT */
#include "log.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "options.h"
#include "output.h"
#include "text.h"

#define LINE_MAX_BYTES 4096 /* PIPE_BUF: a pipe takes it in one piece */

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};

static struct {
  bool json;
  bool journal; /* standard error is a socket of the systemd journal */
  bool syslog;
} how;

/* systemd.exec(5): JOURNAL_STREAM has the device and the inode of the journal's socket. */
static bool is_journal(void) {
  const char *stream = getenv("JOURNAL_STREAM");
  unsigned long long device, inode;
  struct stat found;
  return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
         fstat(STDERR_FILENO, &found) == 0 && found.st_dev == device && found.st_ino == inode;
}

/* RFC 3339, UTC, milliseconds. */
static struct unit_text stamp(int64_t nanoseconds) {
  struct unit_text stamp;
  struct tm parts;
  time_t seconds = (time_t)(nanoseconds / 1000000000);
  gmtime_r(&seconds, &parts);
  size_t length = strftime(stamp.text, sizeof stamp.text, "%Y-%m-%dT%H:%M:%S", &parts);
  snprintf(stamp.text + length, sizeof stamp.text - length, ".%03dZ",
           (int)(nanoseconds / 1000000 % 1000));
  return stamp;
}

static bool is_bare(const char *value) {
  for (const char *at = value; *at; at++)
    if (*at <= ' ' || *at >= 0x7f || strchr("\"=\\", *at))
      return false;
  return *value != '\0';
}

static void write_quoted(FILE *out, const char *value) {
  fputc('"', out);
  for (const unsigned char *at = (const unsigned char *)value; *at; at++) {
    if (*at == '"' || *at == '\\')
      fprintf(out, "\\%c", *at);
    else if (*at == '\n')
      fputs("\\n", out);
    else if (*at < ' ' || *at >= 0x7f)
      fprintf(out, "\\x%02x", *at);
    else
      fputc(*at, out);
  }
  fputc('"', out);
}

static void write_text(FILE *out, const struct haul_log_line *line) {
  if (!how.syslog) /* syslog adds time and level */
    fprintf(out, "%s %s ", stamp(line->time_ns).text, level_names[line->level - 1]);
  fputs(line->event, out);
  for (size_t i = 0; i < line->count; i++) {
    fprintf(out, " %s=", line->fields[i].key);
    if (is_bare(line->fields[i].value))
      fputs(line->fields[i].value, out);
    else
      write_quoted(out, line->fields[i].value);
  }
  fputc('\n', out);
}

static void write_json(FILE *out, const struct haul_log_line *line) {
  struct json json = {.out = out, .flat = 1};
  json_object(&json, NULL);
  json_text(&json, "time", stamp(line->time_ns).text);
  json_text(&json, "level", level_names[line->level - 1]);
  json_text(&json, "event", line->event);
  json_text(&json, "text", line->text);
  json_text(&json, "node", line->node);
  for (size_t i = 0; i < line->count; i++)
    json_text(&json, line->fields[i].key, line->fields[i].value);
  json_end_object(&json);
}

/* Lines are dropped if the pipe is full: the log must not block the node. */
static bool has_room(void) {
  struct pollfd entry = {STDERR_FILENO, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && entry.revents & POLLOUT;
}

static void write_line(void *user, const struct haul_log_line *line) {
  char text[LINE_MAX_BYTES] = "";
  (void)user;
  FILE *out = fmemopen(text, sizeof text, "w");
  if (!out)
    return;
  if (how.journal && !how.syslog)
    fprintf(out, "<%d>", priorities[line->level - 1]);
  (how.json ? write_json : write_text)(out, line);
  fclose(out);
  if (how.syslog)
    syslog(priorities[line->level - 1], "%s", text);
  else if (has_room() && write(STDERR_FILENO, text, strlen(text)) < 0)
    return; /* a failed log line has no other place to be reported */
}

void log_line(int priority, const char *event, const char *text) {
  const struct haul_log_field fields[] = {{"what", text}};
  struct haul_log_line line = {.level = HAUL_LOG_ERROR,
                               .event = event,
                               .text = "a message of the command itself",
                               .node = "",
                               .fields = fields,
                               .count = 1};
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  line.time_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
  while (line.level < HAUL_LOG_DEBUG && priorities[line.level - 1] < priority)
    line.level++;
  write_line(NULL, &line);
}

int log_begin(const struct command *command, const struct log_values *values) {
  int level = HAUL_LOG_WARNING;
  if (values->level) {
    for (level = HAUL_LOG_ERROR; level <= HAUL_LOG_DEBUG; level++)
      if (strcmp(values->level, level_names[level - 1]) == 0)
        break;
    if (level > HAUL_LOG_DEBUG)
      return options_wrong(command, "invalid --log '%s': expected error, warning, info or debug",
                           values->level);
  }
  if (values->format && strcmp(values->format, "text") != 0 && strcmp(values->format, "json") != 0)
    return options_wrong(command, "invalid --log-format '%s': expected text or json",
                         values->format);
  how.json = values->format && strcmp(values->format, "json") == 0;
  how.journal = is_journal();
  haul_log_set((enum haul_log_level)level, write_line, NULL);
  return EXIT_DONE;
}

void log_to_syslog(void) {
  how.syslog = true;
}
