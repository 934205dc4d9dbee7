/* SPDX-License-Identifier: MIT */
#include "storage/util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define NOTE_NS INT64_C(10000000000) /* between two lines of the log */

int storage_fail(struct haul_storage_error *error, int status, const char *hint, const char *format,
                 ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(error->text, sizeof error->text, format, list);
  va_end(list);
  snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
  return status;
}

int storage_errno(int code) {
  switch (code) {
  case 0:
    return 0;
  case HAUL_EINVAL:
    return -EINVAL;
  case HAUL_ENOMEM:
    return -ENOMEM;
  case HAUL_ENOTSUP:
    return -ENOTSUP;
  case HAUL_ETIMEDOUT:
    return -ETIMEDOUT;
  case HAUL_ESTALE:
    return -ESTALE;
  case HAUL_EACCESS:
    return -EACCES;
  default:
    return -EIO;
  }
}

bool storage_note_changes(struct storage_note *note, const char *line) {
  int64_t now = haul_deadline_in(0);
  if (now < note->next || strcmp(line, note->line) == 0)
    return false;
  snprintf(note->line, sizeof note->line, "%s", line);
  note->next = now + NOTE_NS;
  return true;
}

void storage_cond_init(pthread_cond_t *condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

bool storage_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until) {
  const struct timespec at = {until / 1000000000, until % 1000000000};
  return pthread_cond_timedwait(condition, lock, &at) != ETIMEDOUT;
}
