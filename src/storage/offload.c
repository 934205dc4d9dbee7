/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>
#include <unistd.h>

#include "core/thread.h"
#include "storage/util.h"
#include "storage/worker_internal.h"

#define COPY_TIMEOUT_NS INT64_C(30000000000) /* a longer copy counts as a lost device */

struct offload {
  _Atomic bool remote_canceled;
  pthread_mutex_t lock; /* guards the fields below; no lock is taken after it */
  pthread_cond_t posted;
  struct list jobs;
  bool stopping;
  unsigned count;
  storage_log *log;
  void *user;
  struct storage_note note; /* `lock` */
  pthread_t threads[];
};

/* -ENODATA: there is a hole. SEEK_HOLE also reports the end of the file, which is no hole. */
static int check_holes(const struct offload_job *job) {
  struct source *source = job->remote->source;
  struct source_file *file = job->remote->file;
  off_t hole = source->ops->lseek(source, file, job->hole_from, SEEK_HOLE);
  if (hole < 0)
    return hole == -ENXIO ? 0 : (int)hole;
  if (hole >= job->hole_end)
    return 0;
  char byte;
  ssize_t got = source->ops->read(source, file, &byte, 1, hole);
  return got > 0 ? -ENODATA : (int)got;
}

static bool is_lost(const struct offload_job *job) {
  return job->watch && atomic_load(&job->watch->lost);
}

static ssize_t move_remote(struct offload_job *job) {
  struct source *source = job->remote->source;
  return source->ops->move(source, job->remote->file, job->memory, &job->move);
}

static ssize_t read_remote(struct offload_job *job) {
  struct source *source = job->remote->source;
  int status = job->hole_end ? check_holes(job) : 0;
  if (status)
    return status;
  if (job->memory)
    return move_remote(job);
  ssize_t done = source->ops->read(source, job->remote->file, job->bytes, job->length, job->offset);
  return is_lost(job) ? -EFAULT : done;
}

/* Copies a client's memory first: a truncated page would be written as zeros. */
static ssize_t write_remote(struct offload_job *job) {
  struct source *source = job->remote->source;
  if (job->memory)
    return move_remote(job);
  char *copy = job->watch ? malloc(job->length) : NULL;
  if (job->watch && !copy)
    return -ENOMEM;
  if (copy)
    copy_shared(copy, job->bytes, job->length);
  ssize_t done = is_lost(job)
                     ? -EFAULT
                     : source->ops->write(source, job->remote->file, copy ? copy : job->bytes,
                                          job->length, job->offset, job->flags);
  free(copy);
  return done;
}

void offload_release(const struct offload_job *job) {
  remote_file_put(job->remote);
  if (job->buffer)
    buffer_put(job->buffer);
}

static void say(struct offload *offload, const struct haul_file_report *report) {
  char line[sizeof offload->note.line];
  if (report->direct == report->bytes)
    snprintf(line, sizeof line,
             "files are read into device memory without a copy in host memory: "
             "%s, %s",
             report->path, report->detail);
  else
    snprintf(line, sizeof line, "device memory is staged: %s", report->reason);
  pthread_mutex_lock(&offload->lock);
  bool changed = storage_note_changes(&offload->note, line);
  pthread_mutex_unlock(&offload->lock);
  if (changed && offload->log)
    offload->log(offload->user, LOG_INFO, line);
}

/* The end of the file is no error. */
static ssize_t read_file(struct offload *offload, struct offload_job *job) {
  struct haul_file_report report = HAUL_FILE_REPORT_INIT;
  int code = haul_file_read(job->reader, (uint64_t)job->offset, job->to, job->to_offset,
                            job->length, 0, &report);
  job->direct = report.direct;
  if (report.bytes > 0)
    say(offload, &report);
  if (code == 0 || code == HAUL_ERANGE)
    return (ssize_t)report.bytes;
  return code == HAUL_ESYSTEM ? -haul_error_last()->system : storage_errno(code);
}

static ssize_t run_job(struct offload *offload, struct offload_job *job) {
  if (job->kind == OFFLOAD_COPY)
    return storage_errno(haul_region_copy(job->to, job->to_offset, job->from, job->from_offset,
                                          job->length, haul_deadline_in(COPY_TIMEOUT_NS)));
  if (job->kind == OFFLOAD_FILE)
    return read_file(offload, job);
  if (job->kind == OFFLOAD_RELEASE) {
    offload_release(job);
    return 0;
  }
  if (atomic_load(&offload->remote_canceled))
    return -ECANCELED;
  return job->kind == OFFLOAD_WRITE ? write_remote(job) : read_remote(job);
}

static struct offload_job *next_job(struct offload *offload) {
  pthread_mutex_lock(&offload->lock);
  while (list_empty(&offload->jobs) && !offload->stopping)
    pthread_cond_wait(&offload->posted, &offload->lock);
  struct list *item = list_take(&offload->jobs);
  pthread_mutex_unlock(&offload->lock);
  return item ? list_entry(item, struct offload_job, link) : NULL;
}

static void *run_jobs(void *argument) {
  struct offload *offload = argument;
  for (struct offload_job *job; (job = next_job(offload));) {
    job->result = run_job(offload, job);
    job->done(job);
  }
  return NULL;
}

void offload_cancel_remote(struct offload *offload) {
  atomic_store(&offload->remote_canceled, true);
}

void offload_post(struct offload *offload, struct offload_job *job) {
  list_init(&job->link);
  pthread_mutex_lock(&offload->lock);
  list_append(&offload->jobs, &job->link);
  pthread_cond_signal(&offload->posted);
  pthread_mutex_unlock(&offload->lock);
}

void offload_log(struct offload *offload, storage_log *log, void *user) {
  offload->log = log;
  offload->user = user;
}

int offload_open(unsigned threads, struct offload **out) {
  struct offload *offload = calloc(1, sizeof *offload + threads * sizeof offload->threads[0]);
  if (!offload)
    return -ENOMEM;
  pthread_mutex_init(&offload->lock, NULL);
  pthread_cond_init(&offload->posted, NULL);
  list_init(&offload->jobs);
  int code = 0;
  while (code == 0 && offload->count < threads) {
    code = -thread_start(&offload->threads[offload->count], run_jobs, offload);
    offload->count += code == 0;
  }
  if (code)
    offload_close(offload);
  else
    *out = offload;
  return code;
}

void offload_close(struct offload *offload) {
  if (!offload)
    return;
  pthread_mutex_lock(&offload->lock);
  offload->stopping = true;
  pthread_cond_broadcast(&offload->posted);
  pthread_mutex_unlock(&offload->lock);
  for (unsigned i = 0; i < offload->count; i++)
    pthread_join(offload->threads[i], NULL);
  pthread_cond_destroy(&offload->posted);
  pthread_mutex_destroy(&offload->lock);
  free(offload);
}
