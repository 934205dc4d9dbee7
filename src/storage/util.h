/* SPDX-License-Identifier: MIT
 * Errors, lines of the log, and waits with a deadline. */
#ifndef HAUL_STORAGE_UTIL_H
#define HAUL_STORAGE_UTIL_H

#include <haul/storage.h>
#include <pthread.h>
#include <stdbool.h>

/* Fills *error, with no hint where `hint` is NULL; returns `status`. */
int storage_fail(struct haul_storage_error *error, int status, const char *hint, const char *format,
                 ...) __attribute__((format(printf, 4, 5)));

/* The negative errno value for an error code of libhaul; 0 for success. */
int storage_errno(int code);

/* As struct haul_storage_mount has it. */
typedef void storage_log(void *user, int priority, const char *text);

/* A line of a log that is repeated only when it has changed. */
struct storage_note {
  int64_t next; /* the earliest time of the next one */
  char line[512];
};

/* Notes the line. False: it is the last one, or comes too soon after that. */
bool storage_note_changes(struct storage_note *note, const char *line);

/* A condition for storage_wait. */
void storage_cond_init(pthread_cond_t *condition);
/* Waits at most until a time of CLOCK_MONOTONIC in nanoseconds (haul_deadline). False: it has
 * passed. */
bool storage_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until);

#endif
