/* SPDX-License-Identifier: MIT
 * What the parts of the server share.
 *
 * Each client has a session: a source of its own, so that no client can name what another one
 * holds, a queue, and threads, so that one that does not take its answers, or asks for what a disk
 * does not give, stops nobody but itself. A thread of the service receives messages and does
 * nothing that may wait. */
#ifndef HAUL_STORAGE_SERVICE_SERVER_H
#define HAUL_STORAGE_SERVICE_SERVER_H

#include <haul/storage.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/list.h"
#include "storage/service/exported.h"
#include "storage/service/protocol.h"
#include "storage/service/told.h"
#include "storage/service/view.h"

#define SERVICE_SESSIONS 64u
/* Of one client: */
#define SERVICE_DEPTH       64u   /* requests that were received and not answered */
#define SERVICE_WORKERS     4u    /* threads */
#define SERVICE_FILES       1024u /* open files and folders */
#define SERVICE_REGIONS     16u
#define SERVICE_TEMPORARIES 16u
#define SERVICE_WAIT_NS     INT64_C(20000000000) /* for a client, with anything */

struct service {
  haul_node *node; /* NULL: it is being closed; workers read it, and use it, with node_lock */
  pthread_rwlock_t node_lock;
  atomic_bool stops;
  bool guarded; /* sigbus_start was called for it */
  struct exported exports;
  void (*other)(void *user, const struct haul_message *message);
  void *user;
  struct views views;
  size_t nodes_max; /* of one client: each is a descriptor */
  pthread_t thread;
  pthread_mutex_t lock;   /* guards what follows */
  pthread_cond_t changed; /* a session is gone */
  unsigned session_count;
  struct list sessions; /* the thread's alone */
};

/* A file that a client has open. */
struct held_file {
  struct source_file *file; /* NULL: the place is free */
  uint32_t generation;
  unsigned holders;
  bool released;
};

/* A file that is to go when the client does. */
struct held_temporary {
  uint64_t folder;
  char name[NAME_MAX + 1]; /* "": the place is free */
};

struct held_region {
  haul_remote *remote;
  unsigned holders;
  bool released;
};

struct session {
  struct list link; /* service->sessions */
  struct service *service;
  haul_peer *peer;
  pthread_mutex_t lock; /* guards what follows */
  pthread_cond_t work;
  struct list queue; /* struct task */
  unsigned queued, under_way, workers, idle;
  unsigned holders; /* the list of sessions, and each worker */
  bool ended;       /* nothing more is taken or answered */
  /* From the greeting on: */
  bool greeted, writable;
  struct source *source; /* NULL: a client that has asked for no export */
  struct held_file files[SERVICE_FILES];
  struct held_region regions[SERVICE_REGIONS];
  struct held_temporary temporaries[SERVICE_TEMPORARIES];
};

/* A worker's own. */
struct worker_desk {
  struct session *session;
  struct protocol_request request;
  struct protocol_fields answer;
  uint8_t bytes[PROTOCOL_BYTES_MAX]; /* what answer.bytes may point to */
  uint8_t message[PROTOCOL_ANSWER_ROOM];
};

/* session.c. With the first message of a peer; NULL: no memory or threads. */
struct session *session_open(struct service *service, haul_peer *peer);
/* Takes the message. */
void session_take(struct session *session, struct haul_message *message);
/* The client has left, or is to be: its threads end, and the last one frees all. */
void session_end(struct session *session);

/* answer.c: fills desk->answer; the status. */
int answer_request(struct worker_desk *desk);

/* held.c. Files by handles; NULL: there is none. */
int held_add_file(struct session *session, struct source_file *file, uint64_t *handle);
struct source_file *held_take_file(struct session *session, uint64_t handle);
void held_give_file(struct session *session, uint64_t handle);
int held_release_file(struct session *session, uint64_t handle);
/* -EMFILE: there are too many. */
int held_add_temporary(struct session *session, uint64_t folder, const char *name);
/* It has another name now, or is gone. */
void held_drop_temporary(struct session *session, uint64_t folder, const char *name);
int held_add_region(struct session *session, const char *name, uint32_t *number);
haul_remote *held_take_region(struct session *session, uint32_t number);
void held_give_region(struct session *session, uint32_t number);
int held_release_region(struct session *session, uint32_t number);
/* All; nobody holds any. */
void held_close(struct session *session);

/* stream.c: between an open file and a client's region; how many bytes. */
struct stream {
  struct service *service;
  struct source *source;
  struct source_file *file;
  struct view *view; /* NULL: what is read is copied */
  haul_remote *remote;
  int64_t offset;
  uint64_t length, at;
  int flags;         /* as of source_ops.write */
  struct told *told; /* NULL: nobody asks how it went */
};
ssize_t stream_read(const struct stream *stream);
ssize_t stream_write(const struct stream *stream);

#endif
