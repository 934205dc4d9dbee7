/* SPDX-License-Identifier: MIT */
#include "note.h"

#include <stdio.h>
#include <string.h>

void note_keep(void *user, int priority, const char *text) {
  struct note *note = user;
  (void)priority;
  pthread_mutex_lock(&note->lock);
  snprintf(note->text, sizeof note->text, "%s", text);
  pthread_mutex_unlock(&note->lock);
}

const char *note_text(struct note *note) {
  pthread_mutex_lock(&note->lock);
  memcpy(note->copy, note->text, sizeof note->copy);
  pthread_mutex_unlock(&note->lock);
  return note->copy;
}
