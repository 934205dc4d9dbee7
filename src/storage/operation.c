/* SPDX-License-Identifier: MIT
 * Reads and writes: of local files by io_uring, of remote files by offload threads. Data goes
 * straight to and from host memory, and from local files into device memory where haul_file_read
 * can. Else between local files and device memory it goes through bounce buffers, in parts, so that
 * disk and device work at the same time. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "storage/worker_internal.h"

#define REQUEST_MAX ((uint64_t)1 << 30) /* bytes of one request of io_uring */

static enum file_direction direction_of(const struct part *part) {
  return part->operation->ring->direction;
}

static void free_job(struct offload_job *job) {
  free(job);
}

/* Putting the last references blocks, so an offload thread does it. */
static void put_remote(struct worker *worker, struct remote_file *remote, struct buffer *buffer) {
  if (buffer && buffer_put_unless_last(buffer))
    buffer = NULL;
  if (remote && remote_file_put_unless_last(remote))
    remote = NULL;
  if (!remote && !buffer)
    return;
  struct offload_job like = {
      .kind = OFFLOAD_RELEASE, .remote = remote, .buffer = buffer, .done = free_job};
  struct offload_job *job = malloc(sizeof *job);
  if (!job) {
    offload_release(&like);
    return;
  }
  *job = like;
  offload_post(worker->workers->offload, job);
}

/* All its parts have ended. Bytes before an error count, as with read(2). */
static void complete_operation(struct worker *worker, struct operation *operation) {
  struct workers_counters *counters = &worker->workers->counters;
  struct share *share = &worker->shares[operation->ring->priority];
  uint64_t done = operation->end - operation->offset;
  int64_t result = done > 0 || operation->code == 0 ? (int64_t)done : operation->code;
  counter_add(result < 0 ? &counters->failed : &counters->bytes, result < 0 ? 1 : (uint64_t)result);
  ring_complete(&operation->ring->ring, operation->index, operation->userdata, result);
  put_remote(worker, operation->remote, operation->buffer);
  if (operation->file)
    file_put(operation->file);
  list_append(&worker->free_operations, &operation->link);
  worker->in_flight--;
  share->operations--;
  share->bytes -= operation->requested;
}

/* The earliest part that is short or failed ends the operation; no part begins behind it. */
static void end_part(struct worker *worker, struct part *part, int code) {
  struct operation *operation = part->operation;
  uint64_t end = part->offset + part->done;
  if (part->left > 0 && end < operation->end) {
    operation->end = end;
    operation->code = code;
    operation->length = operation->divided;
    list_remove(&operation->link);
  }
  if (part->bounce)
    list_prepend(&worker->free_bounces, &part->bounce->link);
  list_append(&worker->free_parts, &part->link);
  operation->parts--;
  if (operation->parts == 0 && operation->divided == operation->length) {
    list_remove(&operation->link);
    complete_operation(worker, operation);
  }
}

static char *bytes_of(const struct part *part) {
  return part->bounce ? part->bounce->address
                      : part->operation->buffer->address + part->buffer_offset;
}

/* In an offload thread. */
static void job_done(struct offload_job *job) {
  struct worker *worker = job->context;
  pthread_mutex_lock(&worker->lock);
  list_append(&worker->finished_jobs, &job->link);
  pthread_mutex_unlock(&worker->lock);
  worker_wake(worker);
}

static void post_remote(struct worker *worker, struct part *part) {
  struct operation *operation = part->operation;
  const struct client_ring *ring = operation->ring;
  struct buffer *buffer = operation->buffer;
  struct offload_job *job = &part->job;
  *job = (struct offload_job){
      .kind = ring->direction == FILE_WRITE ? OFFLOAD_WRITE : OFFLOAD_READ,
      .length = part->left,
      .remote = operation->remote,
      .offset = (off_t)(part->offset + part->done),
      .flags = ring->durable ? RWF_DSYNC : 0,
      .done = job_done,
      .context = worker,
  };
  if (buffer->memory) {
    job->memory = buffer->memory;
    job->move = (struct source_move){.write = ring->direction == FILE_WRITE,
                                     .at = part->buffer_offset + part->done,
                                     .length = job->length,
                                     .offset = job->offset,
                                     .flags = job->flags};
  } else {
    job->bytes = bytes_of(part) + part->done;
    job->watch = &buffer->watch;
  }
  if (ring->no_holes && part->offset == operation->offset && part->done == 0) {
    job->hole_from = (off_t)operation->offset;
    job->hole_end = (off_t)(operation->offset + operation->requested);
  }
  offload_post(worker->workers->offload, job);
}

static int slot_of(struct worker *worker, const struct part *part) {
  const struct buffer *buffer = part->operation->buffer;
  if (part->bounce)
    return -1;
  int slot = pinned_slot(&worker->pinned, &worker->uring, worker->workers->buffers, buffer);
  if (slot < 0 && pinned_is_rejected(&worker->pinned, buffer))
    counter_add(&worker->workers->counters.unpinned, 1);
  return slot;
}

static void post_local(struct worker *worker, struct part *part) {
  const struct client_ring *ring = part->operation->ring;
  struct file *file = part->operation->file;
  int fd = part->direct ? file_direct(file, ring->direction) : file->fd[ring->direction];
  char *bytes = bytes_of(part) + part->done;
  uint64_t offset = part->offset + part->done;
  uint64_t most = worker_yields(worker, ring->priority) ? BOUNCE_BYTES : REQUEST_MAX;
  unsigned length = (unsigned)(part->left < most ? part->left : most);
  int slot = slot_of(worker, part);
  struct io_uring_sqe *sqe = worker_get_sqe(worker);
  if (ring->direction == FILE_READ && slot < 0)
    io_uring_prep_read(sqe, fd, bytes, length, offset);
  else if (ring->direction == FILE_READ)
    io_uring_prep_read_fixed(sqe, fd, bytes, length, offset, slot);
  else if (slot < 0)
    io_uring_prep_write(sqe, fd, bytes, length, offset);
  else
    io_uring_prep_write_fixed(sqe, fd, bytes, length, offset, slot);
  if (ring->direction == FILE_WRITE && ring->durable)
    sqe->rw_flags = RWF_DSYNC;
  io_uring_sqe_set_data(sqe, part);
}

/* Into device memory, past host memory where that is possible. */
static void post_file(struct worker *worker, struct part *part) {
  part->job = (struct offload_job){
      .kind = OFFLOAD_FILE,
      .length = part->left,
      .reader = part->reader,
      .to = part->operation->buffer->region,
      .to_offset = part->buffer_offset + part->done,
      .offset = (off_t)(part->offset + part->done),
      .done = job_done,
      .context = worker,
  };
  offload_post(worker->workers->offload, &part->job);
}

static void post_io(struct worker *worker, struct part *part) {
  if (part->operation->remote)
    post_remote(worker, part);
  else if (part->reader)
    post_file(worker, part);
  else
    post_local(worker, part);
}

/* Between the bounce buffer and the device: the bytes that were read, or all to be written. */
static void post_copy(struct worker *worker, struct part *part) {
  bool reads = direction_of(part) == FILE_READ;
  haul_region *device = part->operation->buffer->region, *bounce = part->bounce->region;
  part->job = (struct offload_job){
      .kind = OFFLOAD_COPY,
      .length = reads ? part->done : part->left,
      .to = reads ? device : bounce,
      .from = reads ? bounce : device,
      .to_offset = reads ? part->buffer_offset : 0,
      .from_offset = reads ? 0 : part->buffer_offset,
      .done = job_done,
      .context = worker,
  };
  counter_add(&worker->workers->counters.staged, part->job.length);
  offload_post(worker->workers->offload, &part->job);
}

static bool is_aligned(const struct part *part) {
  struct file *file = part->operation->file;
  uint32_t memory = atomic_load_explicit(&file->memory_align, memory_order_relaxed);
  uint32_t offset = atomic_load_explicit(&file->offset_align, memory_order_relaxed);
  return (uintptr_t)bytes_of(part) % memory == 0 && part->offset % offset == 0 &&
         part->left % offset == 0;
}

static void start_part(struct worker *worker, struct part *part) {
  struct workers_counters *counters = &worker->workers->counters;
  if (!part->operation->remote && !part->reader) {
    bool supported = file_direct(part->operation->file, direction_of(part)) >= 0;
    part->direct = supported && is_aligned(part);
    counter_add(part->direct ? &counters->direct
                : !supported ? &counters->buffered_file
                             : &counters->buffered_alignment,
                1);
  }
  if (part->bounce && direction_of(part) == FILE_WRITE)
    post_copy(worker, part);
  else
    post_io(worker, part);
}

/* Its last read or write has ended. */
static void end_io(struct worker *worker, struct part *part, int code) {
  if (part->bounce && direction_of(part) == FILE_READ && part->done > 0)
    post_copy(worker, part); /* an error behind these bytes is found by the client's next read */
  else
    end_part(worker, part, code);
}

static void end_copy(struct worker *worker, struct part *part) {
  int code = (int)part->job.result;
  bool reads = direction_of(part) == FILE_READ;
  if (code && reads) {
    part->left += part->done;
    part->done = 0;
  }
  if (code || reads)
    end_part(worker, part, code);
  else
    post_io(worker, part);
}

/* A short read is continued until one returns nothing. */
void part_ended_io(struct worker *worker, struct part *part, int result) {
  bool again = result == -EINTR || result == -EAGAIN;
  if (again && !part->operation->remote) { /* a server could return these for ever */
    post_io(worker, part);
  } else if (result == -EINVAL && part->direct) {
    counter_add(&worker->workers->counters.buffered_file, 1);
    part->direct = false;
    post_io(worker, part);
  } else if (result <= 0) {
    end_io(worker, part, result);
  } else {
    part->done += (uint64_t)result;
    part->left -= (uint64_t)result;
    part->direct &= (size_t)result % BOUNCE_BYTES == 0; /* else the rest is not aligned */
    if (part->left == 0)
      end_io(worker, part, 0);
    else
      post_io(worker, part);
  }
}

/* NULL with *code 0: all are in use. NULL with -ENOMEM: not even one can be allocated. */
static struct bounce *get_bounce(struct worker *worker, haul_node *node, int *code) {
  struct list *idle = list_take(&worker->free_bounces);
  *code = 0;
  if (idle)
    return list_entry(idle, struct bounce, link);
  if (worker->bounce_count == BOUNCES)
    return NULL;
  struct bounce *bounce = malloc(sizeof *bounce);
  if (bounce && haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, BOUNCE_BYTES,
                                  HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &bounce->region) == 0) {
    bounce->address = haul_region_address(bounce->region);
    list_init(&bounce->link);
    worker->bounce_count++;
    return bounce;
  }
  free(bounce);
  *code = worker->bounce_count == 0 ? -ENOMEM : 0;
  return NULL;
}

static uint64_t part_max(const struct operation *operation) {
  return operation->buffer->region || operation->remote ? BOUNCE_BYTES : UINT64_MAX;
}

/* Starts the next part. False: it has to wait for a part or a bounce buffer. */
static bool start_next_part(struct worker *worker, struct operation *operation) {
  struct buffer *buffer = operation->buffer;
  struct bounce *bounce = NULL;
  int code = 0;
  if (list_empty(&worker->free_parts))
    return false;
  bool local_device = buffer->region && !operation->remote;
  haul_file *reader = local_device && operation->ring->direction == FILE_READ
                          ? file_reader(operation->file, worker->time)
                          : NULL;
  bool staged = local_device && !reader;
  if (staged)
    bounce = get_bounce(worker, buffer->node, &code);
  if (staged && !bounce && code == 0)
    return false;
  uint64_t left = operation->length - operation->divided;
  struct part *part = list_entry(list_take(&worker->free_parts), struct part, link);
  *part = (struct part){.operation = operation,
                        .bounce = bounce,
                        .reader = reader,
                        .buffer_offset = operation->buffer_offset + operation->divided,
                        .offset = operation->offset + operation->divided,
                        .left = left < part_max(operation) ? left : part_max(operation)};
  list_init(&part->link);
  operation->parts++;
  operation->divided += part->left;
  if (code)
    end_part(worker, part, code);
  else
    start_part(worker, part);
  return true;
}

/* An operation may end with its last part, and is not in the list then. */
static bool divide_operations(struct worker *worker) {
  bool moved = false;
  while (!list_empty(&worker->dividing)) {
    struct operation *operation = list_entry(worker->dividing.next, struct operation, link);
    bool last = operation->length - operation->divided <= part_max(operation);
    if (last)
      list_remove(&operation->link);
    if (!start_next_part(worker, operation)) {
      if (last)
        list_prepend(&worker->dividing, &operation->link);
      return moved;
    }
    moved = true;
  }
  return moved;
}

static void count_remote(struct workers_counters *counters, const struct offload_job *job) {
  if (job->result <= 0)
    return;
  uint64_t bytes = (uint64_t)job->result;
  counter_add(&counters->remote, bytes);
  if (!job->memory)
    return;
  counter_add(job->move.staged ? &counters->staged : &counters->device_direct, bytes);
  counter_add(&counters->registrations, job->move.registered);
  counter_add(&counters->registration_hits, job->move.found);
}

/* Counts the bytes of a part that has a reader, which is not used for a while if it stages. */
static void count_file(const struct worker *worker, struct part *part) {
  struct workers_counters *counters = &worker->workers->counters;
  if (part->job.result <= 0)
    return;
  uint64_t staged = (uint64_t)part->job.result - part->job.direct;
  counter_add(&counters->device_direct, part->job.direct);
  counter_add(&counters->staged, staged);
  if (staged > 0)
    file_reader_staged(part->operation->file, worker->time);
}

bool operations_turn(struct worker *worker) {
  struct list finished = LIST_INIT(finished);
  pthread_mutex_lock(&worker->lock);
  list_splice(&finished, &worker->finished_jobs);
  pthread_mutex_unlock(&worker->lock);
  bool moved = !list_empty(&finished);
  for (struct list *item; (item = list_take(&finished));) {
    struct part *part = list_entry(list_entry(item, struct offload_job, link), struct part, job);
    ssize_t result = part->job.result;
    if (part->job.kind == OFFLOAD_COPY) {
      end_copy(worker, part);
      continue;
    }
    if (part->reader)
      count_file(worker, part);
    else
      count_remote(&worker->workers->counters, &part->job);
    part_ended_io(worker, part, (int)result);
  }
  return divide_operations(worker) || moved;
}

/* -ENODATA: there is a hole. The end of the file is none. */
static int check_holes(const struct operation *operation) {
  int fd = operation->file->fd[FILE_READ];
  off_t hole = lseek(fd, (off_t)operation->offset, SEEK_HOLE);
  if (hole < 0)
    return errno == ENXIO ? 0 : -errno;
  if ((uint64_t)hole >= operation->offset + operation->length)
    return 0;
  off_t data = lseek(fd, hole, SEEK_DATA), size = lseek(fd, 0, SEEK_END);
  return data < 0 && hole == size ? 0 : -ENODATA;
}

/* Checks a record of the client, and gets the buffer and the file that it names. */
static int check_record(struct worker *worker, const struct ring_record *record,
                        struct operation *operation) {
  const struct client_ring *ring = operation->ring;
  struct workers *workers = worker->workers;
  if (record->length == 0 || record->offset > INT64_MAX ||
      record->length > INT64_MAX - record->offset)
    return -EINVAL;
  int code = buffers_get(workers->buffers, record->buffer, ring->uid, &operation->buffer);
  if (code)
    return code;
  size_t size = operation->buffer->length;
  if (record->buffer_offset > size || record->length > size - record->buffer_offset)
    return -EINVAL;
  code = files_get(workers->files, record->file, ring->uid, ring->direction, &operation->file,
                   &operation->remote);
  if (code == 0 && ring->no_holes && ring->direction == FILE_READ && !operation->remote)
    code = check_holes(operation);
  return code;
}

/* Behind those of its priority, and before lower ones. */
static void add_to_dividing(struct worker *worker, struct operation *operation) {
  struct list *before = worker->dividing.previous;
  while (before != &worker->dividing &&
         list_entry(before, struct operation, link)->ring->priority > operation->ring->priority)
    before = before->previous;
  list_prepend(before, &operation->link);
}

void operation_begin(struct worker *worker, struct client_ring *ring,
                     const struct ring_operation *request) {
  const struct ring_record *record = &request->record;
  struct operation *operation =
      list_entry(list_take(&worker->free_operations), struct operation, link);
  *operation = (struct operation){.ring = ring,
                                  .userdata = request->userdata,
                                  .buffer_offset = record->buffer_offset,
                                  .offset = record->offset,
                                  .requested = record->length,
                                  .length = record->length,
                                  .end = record->offset,
                                  .index = request->index};
  list_init(&operation->link);
  worker->in_flight++;
  worker->shares[ring->priority].operations++;
  worker->shares[ring->priority].bytes += operation->requested;
  counter_add(&worker->workers->counters.operations, 1);
  operation->code = check_record(worker, record, operation);
  if (operation->code) {
    complete_operation(worker, operation);
    return;
  }
  operation->end += operation->length;
  counter_add(&operation->buffer->used, operation->length);
  add_to_dividing(worker, operation);
  divide_operations(worker);
}

int operations_open(struct worker *worker) {
  list_init(&worker->free_operations);
  list_init(&worker->free_parts);
  list_init(&worker->dividing);
  list_init(&worker->free_bounces);
  list_init(&worker->finished_jobs);
  worker->operations = calloc(OPERATIONS, sizeof *worker->operations);
  worker->parts = calloc(OPERATIONS, sizeof *worker->parts);
  if (!worker->operations || !worker->parts) {
    operations_close(worker);
    return -ENOMEM;
  }
  for (unsigned i = 0; i < OPERATIONS; i++) {
    list_append(&worker->free_operations, &worker->operations[i].link);
    list_append(&worker->free_parts, &worker->parts[i].link);
  }
  return 0;
}

void operations_close(struct worker *worker) {
  for (struct list *item; (item = list_take(&worker->free_bounces));) {
    struct bounce *bounce = list_entry(item, struct bounce, link);
    haul_region_release(bounce->region);
    free(bounce);
  }
  free(worker->operations);
  free(worker->parts);
}
