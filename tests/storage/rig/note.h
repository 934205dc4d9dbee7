/* SPDX-License-Identifier: MIT
 * The latest line of a log. */
#ifndef HAUL_TESTS_STORAGE_NOTE_H
#define HAUL_TESTS_STORAGE_NOTE_H

#include <pthread.h>

struct note {
  pthread_mutex_t lock; /* guards `text` */
  char text[512], copy[512];
};

#define NOTE_INIT                                                                                  \
  { .lock = PTHREAD_MUTEX_INITIALIZER }

/* A `log` of the storage module; `user` is the note. */
void note_keep(void *user, int priority, const char *text);
/* A copy, valid until the next call. For one thread. */
const char *note_text(struct note *note);

#endif
