/* SPDX-License-Identifier: MIT
 * Shared declarations of the server's sources.
 *
 * Each client has a session: a source of its own, so that it cannot use another client's handles; a
 * queue; and threads, so that a client that does not read its responses, or reads from a slow disk,
 * delays itself alone. One thread of the service receives all messages and never blocks. */
#ifndef HAUL_STORAGE_SERVICE_SERVER_H
#define HAUL_STORAGE_SERVICE_SERVER_H

#include <haul/storage.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/list.h"
#include "storage/mapping.h"
#include "storage/service/protocol.h"

#define SERVICE_SESSIONS 64u
/* Of one client: */
#define SERVICE_DEPTH       64u   /* requests that were received and have no response */
#define SERVICE_WORKERS     4u    /* threads */
#define SERVICE_FILES       1024u /* open files and folders */
#define SERVICE_REGIONS     256u  /* of a client: its bounce buffers, and device memory */
#define SERVICE_TEMPORARIES 16u
#define SERVICE_WAIT_NS     INT64_C(20000000000)  /* timeout of each wait for the client */
#define SERVICE_VIEW_MIN    ((uint64_t)128 << 10) /* bytes; a shorter read is cheaper as a copy */

/* A view maps a file's own pages as a region. It is made by the first large read of a file, shared
 * by all clients, and kept for some seconds after the last read: making one costs about a twentieth
 * of the CPU time of sending its bytes. A deleted file keeps its blocks on the disk as long. */
struct view {
  struct list link;
  haul_region *region;
  struct sigbus_watch watch;
  dev_t device;
  ino_t inode;
  /* With the lock: */
  unsigned users;
  int64_t unused_since; /* CLOCK_MONOTONIC, ns */
};

struct views {
  pthread_t thread;     /* unmaps views, which takes 7 ms per GB */
  pthread_mutex_t lock; /* guards the fields below; never held while blocking */
  pthread_cond_t changed;
  struct list all; /* unused ones in the order of `unused_since` */
  unsigned count;
  bool stops;
  bool open; /* constant */
};

struct exports {
  size_t count;
  struct haul_storage_export *list;
};

struct service {
  haul_node *node; /* NULL: it is being closed. Workers read and use it with node_lock */
  pthread_rwlock_t node_lock;
  atomic_bool stops;
  bool guarded; /* sigbus_start has succeeded */
  struct exports exports;
  void (*other)(void *user, const struct haul_message *message);
  void *user;
  struct views views;
  size_t nodes_max; /* per client: each node is a descriptor */
  pthread_t thread;
  pthread_mutex_t lock;   /* guards session_count */
  pthread_cond_t changed; /* a session has ended */
  unsigned session_count;
  struct list sessions; /* used by the thread alone */
};

/* An entry of a session's table. A release takes effect after the last use. */
struct session_handle {
  void *object;        /* struct source_file, or haul_remote; NULL: free */
  uint32_t generation; /* counts the uses of the entry; a part of the client's number */
  unsigned users;
  bool released;
};

/* A file that is removed with the client. */
struct session_temporary {
  uint64_t folder;
  char name[NAME_MAX + 1]; /* "": free */
};

struct session {
  struct list link; /* service->sessions */
  struct service *service;
  haul_peer *peer;
  pthread_mutex_t lock; /* guards the fields below */
  pthread_cond_t work;
  struct list queue; /* struct task */
  unsigned queued, under_way, workers, idle;
  unsigned references; /* the list of sessions, and each worker */
  bool ended;          /* no request is taken or answered any more */
  /* Set by GREET: */
  bool greeted, writable;
  struct source *source; /* NULL: GREET named no export */
  struct session_handle files[SERVICE_FILES], regions[SERVICE_REGIONS];
  struct session_temporary temporaries[SERVICE_TEMPORARIES];
};

/* A worker's request and its response. */
struct service_job {
  struct session *session;
  struct source_caller caller; /* the server's user */
  struct source *source;       /* of the session */
  struct protocol_request request;
  struct protocol_fields response;
  uint8_t bytes[PROTOCOL_BYTES_MAX]; /* for response.bytes */
  uint8_t message[PROTOCOL_RESPONSE_ROOM];
};

/* The rights of a client with this identity (haul_peer_identity): HAUL_READ, HAUL_WRITE, both, or
 * 0. Without rights a client does not learn that the export exists. */
unsigned export_rights(const struct haul_storage_export *export, const char *identity);

/* For the first message of a peer. NULL: no memory or no thread. */
struct session *session_open(struct service *service, haul_peer *peer);
/* Takes the message. */
void session_take(struct session *session, struct haul_message *message);
/* The client has left, or is disconnected. The last thread frees the session. */
void session_end(struct session *session);

/* -EMFILE: the table is full. */
int session_add_file(struct session *session, struct source_file *file, uint64_t *handle);
/* NULL: no such file. Each get needs a put. */
struct source_file *session_get_file(struct session *session, uint64_t handle);
void session_put_file(struct session *session, uint64_t handle);
int session_release_file(struct session *session, uint64_t handle);
/* -EMFILE. */
int session_add_temporary(struct session *session, uint64_t folder, const char *name);
/* The file was renamed or removed. */
void session_drop_temporary(struct session *session, uint64_t folder, const char *name);
/* Blocks for the client's response. -ENFILE: the table is full. */
int session_add_region(struct session *session, const char *name, uint32_t *number);
/* NULL: no such region, or it was released. Each get needs a put. */
haul_remote *session_get_region(struct session *session, uint32_t number);
void session_put_region(struct session *session, uint32_t number);
/* -ENXIO. */
int session_release_region(struct session *session, uint32_t number);

/* Fills job->response; returns the status. */
int handle_request(struct service_job *job);

/* 0 or a negative errno value. */
int views_open(struct views *views);
/* No view may be in use. Does nothing for zeroed memory. */
void views_close(struct views *views);

/* A view of an open file, up to `end` at least. NULL: not readable, shorter, or a file system
 * without stable pages. Blocks for the file system, as fstat(2) and mmap(2) do. */
struct view *view_get(struct service *service, int fd, uint64_t end);
void view_put(struct views *views, struct view *view); /* safe on NULL */
/* Data read from it may differ from the file's. */
bool view_is_spoiled(const struct view *view);
/* Reads the pages from the disk; false: it failed. */
bool view_populate(const struct view *view, uint64_t offset, uint64_t length);

/* stream.c: copies between an open file and a client's region */

struct stream {
  struct service *service;
  struct source *source;
  struct source_file *file;
  struct view *view; /* NULL: a read is copied to buffers */
  haul_remote *remote;
  int64_t offset;
  uint64_t length, at;        /* at: in the region */
  int flags;                  /* of source_ops.write */
  struct io_summary *summary; /* may be NULL */
};

/* Return the number of bytes. */
ssize_t stream_read(const struct stream *stream);
ssize_t stream_write(const struct stream *stream);

#endif
