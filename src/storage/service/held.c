/* SPDX-License-Identifier: MIT
 * What a client has open. Each call takes what it uses, so that a release in another thread ends
 * it when the last one is done. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "storage/service/server.h"

/* A handle: the place in the table, from 1 on, and above it how often that was used before. */
static uint64_t handle_of(const struct session *session, const struct held_file *held) {
  return (uint64_t)held->generation << 32 | (uint64_t)(held - session->files + 1);
}

/* The lock. */
static struct held_file *find_file(struct session *session, uint64_t handle) {
  uint32_t place = (uint32_t)handle;
  if (place == 0 || place > SERVICE_FILES)
    return NULL;
  struct held_file *held = &session->files[place - 1];
  bool there = held->file && !held->released && held->generation == handle >> 32;
  return there ? held : NULL;
}

int held_add_file(struct session *session, struct source_file *file, uint64_t *handle) {
  int status = -EMFILE;
  pthread_mutex_lock(&session->lock);
  for (unsigned i = 0; status && i < SERVICE_FILES; i++) {
    struct held_file *held = &session->files[i];
    if (held->file)
      continue;
    *held = (struct held_file){.file = file, .generation = held->generation + 1};
    *handle = handle_of(session, held);
    status = 0;
  }
  pthread_mutex_unlock(&session->lock);
  return status;
}

struct source_file *held_take_file(struct session *session, uint64_t handle) {
  pthread_mutex_lock(&session->lock);
  struct held_file *held = find_file(session, handle);
  if (held)
    held->holders++;
  pthread_mutex_unlock(&session->lock);
  return held ? held->file : NULL;
}

/* The lock, which it gives back: a release may block. */
static void unlock_and_release(struct session *session, struct held_file *held) {
  struct source_file *file = NULL;
  if (held->released && held->holders == 0) {
    file = held->file;
    held->file = NULL;
  }
  pthread_mutex_unlock(&session->lock);
  if (file)
    session->source->ops->release(session->source, file);
}

void held_give_file(struct session *session, uint64_t handle) {
  struct held_file *held = &session->files[(uint32_t)handle - 1];
  pthread_mutex_lock(&session->lock);
  held->holders--;
  unlock_and_release(session, held);
}

int held_release_file(struct session *session, uint64_t handle) {
  pthread_mutex_lock(&session->lock);
  struct held_file *held = find_file(session, handle);
  if (!held) {
    pthread_mutex_unlock(&session->lock);
    return -ESTALE;
  }
  held->released = true;
  unlock_and_release(session, held);
  return 0;
}

/* Asks the client, which may take its time. */
int held_add_region(struct session *session, const char *name, uint32_t *number) {
  haul_remote *remote;
  int code = haul_peer_lookup(session->peer, name, haul_deadline_in(SERVICE_WAIT_NS), &remote);
  if (code)
    return protocol_errno(code);
  pthread_mutex_lock(&session->lock);
  uint32_t place = 0;
  while (place < SERVICE_REGIONS && session->regions[place].remote)
    place++;
  if (place < SERVICE_REGIONS)
    session->regions[place] = (struct held_region){.remote = remote};
  pthread_mutex_unlock(&session->lock);
  *number = place + 1;
  if (place < SERVICE_REGIONS)
    return 0;
  haul_remote_release(remote);
  return -ENFILE;
}

/* The lock. */
static struct held_region *find_region(struct session *session, uint32_t number) {
  if (number == 0 || number > SERVICE_REGIONS)
    return NULL;
  struct held_region *held = &session->regions[number - 1];
  return held->remote && !held->released ? held : NULL;
}

haul_remote *held_take_region(struct session *session, uint32_t number) {
  pthread_mutex_lock(&session->lock);
  struct held_region *held = find_region(session, number);
  if (held)
    held->holders++;
  pthread_mutex_unlock(&session->lock);
  return held ? held->remote : NULL;
}

/* The lock, which it gives back. */
static void unlock_and_forget(struct session *session, struct held_region *held) {
  haul_remote *remote = NULL;
  if (held->released && held->holders == 0) {
    remote = held->remote;
    held->remote = NULL;
  }
  pthread_mutex_unlock(&session->lock);
  haul_remote_release(remote);
}

void held_give_region(struct session *session, uint32_t number) {
  struct held_region *held = &session->regions[number - 1];
  pthread_mutex_lock(&session->lock);
  held->holders--;
  unlock_and_forget(session, held);
}

int held_release_region(struct session *session, uint32_t number) {
  pthread_mutex_lock(&session->lock);
  struct held_region *held = find_region(session, number);
  if (!held) {
    pthread_mutex_unlock(&session->lock);
    return -ENXIO;
  }
  held->released = true;
  unlock_and_forget(session, held);
  return 0;
}

/* ---- Temporary files ---- */

static bool is_temporary(const struct held_temporary *held, uint64_t folder, const char *name) {
  return held->folder == folder && strcmp(held->name, name) == 0;
}

int held_add_temporary(struct session *session, uint64_t folder, const char *name) {
  int status = -EMFILE;
  pthread_mutex_lock(&session->lock);
  for (unsigned i = 0; i < SERVICE_TEMPORARIES && status; i++) {
    struct held_temporary *held = &session->temporaries[i];
    if (held->name[0])
      continue;
    held->folder = folder;
    snprintf(held->name, sizeof held->name, "%s", name);
    status = 0;
  }
  pthread_mutex_unlock(&session->lock);
  return status;
}

void held_drop_temporary(struct session *session, uint64_t folder, const char *name) {
  pthread_mutex_lock(&session->lock);
  for (unsigned i = 0; i < SERVICE_TEMPORARIES; i++)
    if (is_temporary(&session->temporaries[i], folder, name))
      session->temporaries[i].name[0] = '\0';
  pthread_mutex_unlock(&session->lock);
}

void held_close(struct session *session) {
  for (unsigned i = 0; i < SERVICE_TEMPORARIES; i++) {
    const struct held_temporary *held = &session->temporaries[i];
    if (held->name[0])
      session->source->ops->unlink(session->source, held->folder, held->name);
  }
  for (unsigned i = 0; i < SERVICE_FILES; i++)
    if (session->files[i].file)
      session->source->ops->release(session->source, session->files[i].file);
  for (unsigned i = 0; i < SERVICE_REGIONS; i++)
    haul_remote_release(session->regions[i].remote);
}
