/* SPDX-License-Identifier: MIT
 * Reads and writes by io_uring, those of far files by threads that wait (mover.h). Memory of the
 * host is read into where it lies; a device's goes through staging buffers, in parts, so that the
 * disk and the device work at the same time. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "storage/worker_inside.h"

#define ONCE ((uint64_t)1 << 30) /* bytes of one request of io_uring's */

static enum file_way way_of(const struct part *part) {
  return part->operation->served->way;
}

/* ---- The whole ---- */

static void free_errand(struct moving *deferred) {
  free(deferred);
}

/* The last hold blocks: somebody else gives it back. */
static void leave_far(struct worker *worker, struct far *far) {
  if (far_put_unless_last(far))
    return;
  struct moving *deferred = calloc(1, sizeof *deferred);
  if (!deferred) {
    far_put(far);
    return;
  }
  deferred->far = far;
  deferred->done = free_errand;
  mover_post(worker->workers->mover, deferred);
}

static void free_operation(struct worker *worker, struct operation *operation) {
  if (operation->far)
    leave_far(worker, operation->far);
  if (operation->file)
    files_put(operation->file);
  if (operation->buffer)
    buffer_put(operation->buffer);
  struct share *share = &worker->shares[operation->served->priority];
  list_append(&worker->free, &operation->link);
  worker->under_way--;
  share->operations--;
  share->bytes -= operation->asked;
}

/* All its parts have ended. Bytes before a fault count, as with read(2). */
static void finish(struct worker *worker, struct operation *operation) {
  struct workers_counters *counters = &worker->workers->counters;
  uint64_t done = operation->end - operation->offset;
  int64_t result = done > 0 || operation->code == 0 ? (int64_t)done : operation->code;
  worker_count(result < 0 ? &counters->refused : &counters->bytes,
               result < 0 ? 1 : (uint64_t)result);
  intake_complete(&operation->served->intake, operation->index, operation->userdata, result);
  free_operation(worker, operation);
}

/* ---- Parts ---- */

static void give_stage(struct worker *worker, struct part *part) {
  if (part->stage)
    list_prepend(&worker->stages, &part->stage->link);
  part->stage = NULL;
}

/* The earliest part that is short ends the whole; what lies behind it has not been asked for. */
static void end_part(struct worker *worker, struct part *part, int code) {
  struct operation *operation = part->operation;
  uint64_t end = part->offset + part->done;
  if (part->left > 0 && end < operation->end) {
    operation->end = end;
    operation->code = code;
    operation->length = operation->cut;
    list_remove(&operation->link);
  }
  give_stage(worker, part);
  list_append(&worker->free_parts, &part->link);
  operation->parts--;
  if (operation->parts == 0 && operation->cut == operation->length) {
    list_remove(&operation->link);
    finish(worker, operation);
  }
}

static char *bytes_of(const struct part *part) {
  const struct buffer *buffer = part->operation->buffer;
  return part->stage ? part->stage->address : buffer->address + part->at;
}

static void prepare(struct io_uring_sqe *request, enum file_way way, int fd, void *bytes,
                    unsigned length, uint64_t offset, int slot) {
  if (way == FILE_READS && slot < 0)
    io_uring_prep_read(request, fd, bytes, length, offset);
  else if (way == FILE_READS)
    io_uring_prep_read_fixed(request, fd, bytes, length, offset, slot);
  else if (slot < 0)
    io_uring_prep_write(request, fd, bytes, length, offset);
  else
    io_uring_prep_write_fixed(request, fd, bytes, length, offset, slot);
}

/* In the mover's thread. */
static void moved(struct moving *moving) {
  struct worker *worker = moving->context;
  pthread_mutex_lock(&worker->lock);
  list_append(&worker->copied, &moving->link);
  pthread_mutex_unlock(&worker->lock);
  worker_nudge(worker);
}

static void post_far(struct worker *worker, struct part *part) {
  struct operation *operation = part->operation;
  const struct served *served = operation->served;
  part->moving = (struct moving){.far = operation->far,
                                 .bytes = bytes_of(part) + part->done,
                                 .offset = (off_t)(part->offset + part->done),
                                 .length = part->left,
                                 .writes = served->way == FILE_WRITES,
                                 .flags = served->durable ? RWF_DSYNC : 0,
                                 .guard = part->stage ? NULL : &operation->buffer->guard,
                                 .done = moved,
                                 .context = worker};
  if (served->no_holes && part->offset == operation->offset && part->done == 0) {
    part->moving.hole_from = (off_t)operation->offset;
    part->moving.hole_end = (off_t)(operation->offset + operation->asked);
  }
  mover_post(worker->workers->mover, &part->moving);
}

static int pinned_slot(struct worker *worker, struct buffer *buffer) {
  int slot = fixed_slot(&worker->fixed, &worker->uring, worker->workers->buffers, buffer);
  if (slot < 0 && fixed_refuses(&worker->fixed, buffer))
    worker_count(&worker->workers->counters.unpinned, 1);
  return slot;
}

static void post_here(struct worker *worker, struct part *part) {
  const struct served *served = part->operation->served;
  struct file *file = part->operation->file;
  struct io_uring_sqe *request = worker_request(worker);
  int fd = part->direct ? file_direct(file, served->way) : file->fd[served->way];
  char *bytes = bytes_of(part) + part->done;
  uint64_t most = worker_yields(worker, served->priority) ? BOUNCE_BYTES : ONCE;
  unsigned length = (unsigned)(part->left < most ? part->left : most);
  prepare(request, served->way, fd, bytes, length, part->offset + part->done,
          part->stage ? -1 : pinned_slot(worker, part->operation->buffer));
  if (served->way == FILE_WRITES && served->durable)
    request->rw_flags = RWF_DSYNC;
  io_uring_sqe_set_data(request, part);
}

static void post(struct worker *worker, struct part *part) {
  if (part->operation->far)
    post_far(worker, part);
  else
    post_here(worker, part);
}

static bool is_aligned(const struct part *part) {
  const struct file *file = part->operation->file;
  return (uintptr_t)bytes_of(part) % file->memory_align == 0 &&
         part->offset % file->offset_align == 0 && part->left % file->offset_align == 0;
}

/* Past the page cache where it can be, and counts why not. */
static bool goes_direct(struct worker *worker, const struct part *part) {
  struct workers_counters *counters = &worker->workers->counters;
  if (file_direct(part->operation->file, way_of(part)) < 0)
    worker_count(&counters->buffered_file, 1);
  else if (!is_aligned(part))
    worker_count(&counters->buffered_alignment, 1);
  else
    return worker_count(&counters->direct, 1), true;
  return false;
}

/* Between the stage and the device: what was read, or all that is to be written. */
static void start_copy(struct worker *worker, struct part *part) {
  bool reads = way_of(part) == FILE_READS;
  haul_region *device = part->operation->buffer->region, *stage = part->stage->region;
  part->moving = (struct moving){.to = reads ? device : stage,
                                 .from = reads ? stage : device,
                                 .to_offset = reads ? part->at : 0,
                                 .from_offset = reads ? 0 : part->at,
                                 .length = reads ? part->done : part->left,
                                 .done = moved,
                                 .context = worker};
  worker_count(&worker->workers->counters.staged, part->moving.length);
  mover_post(worker->workers->mover, &part->moving);
}

static void start_part(struct worker *worker, struct part *part) {
  part->direct = !part->operation->far && goes_direct(worker, part);
  if (part->stage && way_of(part) == FILE_WRITES)
    start_copy(worker, part);
  else
    post(worker, part);
}

/* io_uring is done with it. */
static void end_request(struct worker *worker, struct part *part, int code) {
  if (part->stage && way_of(part) == FILE_READS && part->done > 0)
    start_copy(worker, part); /* a fault behind these bytes is found by who reads on */
  else
    end_part(worker, part, code);
}

static void end_copy(struct worker *worker, struct part *part) {
  int code = (int)part->moving.result;
  bool reads = way_of(part) == FILE_READS;
  if (code && reads) {
    part->left += part->done;
    part->done = 0;
  }
  if (code || reads)
    end_part(worker, part, code);
  else
    post(worker, part);
}

/* A read that is short goes on until it finds nothing more. */
void part_proceed(struct worker *worker, struct part *part, int result) {
  bool again = result == -EINTR || result == -EAGAIN;
  if (again && !part->operation->far) { /* a server that goes on saying so is not asked for ever */
    post(worker, part);
  } else if (result == -EINVAL && part->direct) {
    worker_count(&worker->workers->counters.buffered_file, 1);
    part->direct = false;
    post(worker, part);
  } else if (result <= 0) {
    end_request(worker, part, result);
  } else {
    part->done += (uint64_t)result;
    part->left -= (uint64_t)result;
    part->direct &= (size_t)result % BOUNCE_BYTES == 0; /* else the rest lies otherwise */
    if (part->left == 0)
      end_request(worker, part, 0);
    else
      post(worker, part);
  }
}

/* ---- Cutting ---- */

static struct bounce *new_stage(haul_node *node) {
  struct bounce *stage = malloc(sizeof *stage);
  if (!stage)
    return NULL;
  list_init(&stage->link);
  if (haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, BOUNCE_BYTES,
                        HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &stage->region) == 0) {
    stage->address = haul_region_address(stage->region);
    return stage;
  }
  free(stage);
  return NULL;
}

/* NULL: all are in use, and *code is set where none can be had at all. */
static struct bounce *take_stage(struct worker *worker, haul_node *node, int *code) {
  struct list *idle = list_take(&worker->stages);
  if (idle)
    return list_entry(idle, struct bounce, link);
  if (worker->stage_count == STAGES)
    return NULL;
  struct bounce *stage = new_stage(node);
  worker->stage_count += stage != NULL;
  if (!stage && worker->stage_count == 0)
    *code = -ENOMEM;
  return stage;
}

static uint64_t part_most(const struct operation *operation) {
  return operation->buffer->region || operation->far ? BOUNCE_BYTES : UINT64_MAX;
}

/* False: it has to wait. */
static bool cut_one(struct worker *worker, struct operation *operation) {
  uint64_t left = operation->length - operation->cut;
  struct buffer *buffer = operation->buffer;
  struct bounce *stage = NULL;
  int code = 0;
  if (list_empty(&worker->free_parts))
    return false;
  left = left < part_most(operation) ? left : part_most(operation);
  if (buffer->region)
    stage = take_stage(worker, buffer->node, &code);
  if (buffer->region && !stage && code == 0)
    return false;
  struct part *part = list_entry(list_take(&worker->free_parts), struct part, link);
  *part = (struct part){.operation = operation,
                        .stage = stage,
                        .at = operation->at + operation->cut,
                        .offset = operation->offset + operation->cut,
                        .left = left};
  list_init(&part->link);
  operation->parts++;
  operation->cut += left;
  if (code)
    end_part(worker, part, code);
  else
    start_part(worker, part);
  return true;
}

/* An operation may end while it is cut: then it is in no list of these. */
static bool cut_all(struct worker *worker) {
  bool moved = false;
  while (!list_empty(&worker->cutting)) {
    struct operation *operation = list_entry(worker->cutting.next, struct operation, link);
    bool last = operation->length - operation->cut <= part_most(operation);
    if (last)
      list_remove(&operation->link);
    if (!cut_one(worker, operation)) {
      if (last)
        list_prepend(&worker->cutting, &operation->link);
      return moved;
    }
    moved = true;
  }
  return moved;
}

bool operations_turn(struct worker *worker) {
  struct list done = LIST_INIT(done);
  pthread_mutex_lock(&worker->lock);
  list_splice(&done, &worker->copied);
  pthread_mutex_unlock(&worker->lock);
  bool moved = !list_empty(&done);
  for (struct list *item; (item = list_take(&done));) {
    struct part *part = list_entry(list_entry(item, struct moving, link), struct part, moving);
    ssize_t result = part->moving.result;
    if (part->moving.far && result > 0)
      worker_count(&worker->workers->counters.far, (uint64_t)result);
    if (part->moving.far)
      part_proceed(worker, part, (int)result);
    else
      end_copy(worker, part);
  }
  return cut_all(worker) || moved;
}

/* ---- The beginning ---- */

/* What lies beyond the end of the file is no hole. */
static int look_for_holes(const struct operation *operation) {
  int fd = operation->file->fd[FILE_READS];
  off_t hole = lseek(fd, (off_t)operation->offset, SEEK_HOLE);
  if (hole < 0)
    return errno == ENXIO ? 0 : -errno;
  if ((uint64_t)hole >= operation->offset + operation->length)
    return 0;
  off_t data = lseek(fd, hole, SEEK_DATA), size = lseek(fd, 0, SEEK_END);
  return data < 0 && hole == size ? 0 : -ENODATA;
}

static int check_range(const struct ring_record *record, const struct buffer *buffer) {
  if (record->buffer_offset > buffer->length ||
      record->length > buffer->length - record->buffer_offset)
    return -EINVAL;
  return 0;
}

/* Nothing of the record has been looked at before. */
static int check(struct worker *worker, const struct ring_record *record,
                 struct operation *operation) {
  const struct served *served = operation->served;
  struct workers *workers = worker->workers;
  if (record->length == 0 || record->offset > INT64_MAX ||
      record->length > INT64_MAX - record->offset)
    return -EINVAL;
  int code = buffers_get(workers->buffers, record->buffer, served->uid, &operation->buffer);
  if (code == 0)
    code = check_range(record, operation->buffer);
  if (code == 0)
    code = files_get(workers->files, record->file, served->uid, served->way, &operation->file,
                     &operation->far);
  if (code == 0 && served->no_holes && served->way == FILE_READS && !operation->far)
    code = look_for_holes(operation);
  return code;
}

/* Behind those of its priority, and before lower ones. */
static void wait_for_parts(struct worker *worker, struct operation *operation) {
  struct list *before = worker->cutting.previous;
  while (before != &worker->cutting &&
         list_entry(before, struct operation, link)->served->priority > operation->served->priority)
    before = before->previous;
  list_prepend(before, &operation->link);
}

void operation_begin(struct worker *worker, struct served *served,
                     const struct intake_entry *entry) {
  struct operation *operation = list_entry(list_take(&worker->free), struct operation, link);
  *operation = (struct operation){.served = served,
                                  .userdata = entry->userdata,
                                  .at = entry->record.buffer_offset,
                                  .offset = entry->record.offset,
                                  .length = entry->record.length,
                                  .asked = entry->record.length,
                                  .index = entry->index};
  list_init(&operation->link);
  worker->under_way++;
  worker->shares[served->priority].operations++;
  worker->shares[served->priority].bytes += operation->asked;
  worker_count(&worker->workers->counters.operations, 1);
  operation->code = check(worker, &entry->record, operation);
  if (operation->code) {
    operation->end = operation->offset;
    finish(worker, operation);
    return;
  }
  operation->end = operation->offset + operation->length;
  atomic_fetch_add_explicit(&operation->buffer->used, operation->length, memory_order_relaxed);
  wait_for_parts(worker, operation);
  cut_all(worker);
}

/* ---- Life ---- */

int operations_open(struct worker *worker) {
  list_init(&worker->free);
  list_init(&worker->free_parts);
  list_init(&worker->cutting);
  list_init(&worker->stages);
  list_init(&worker->copied);
  worker->operations = calloc(OPERATIONS, sizeof *worker->operations);
  worker->parts = calloc(OPERATIONS, sizeof *worker->parts);
  if (!worker->operations || !worker->parts) {
    operations_close(worker);
    return -ENOMEM;
  }
  for (unsigned i = 0; i < OPERATIONS; i++) {
    list_append(&worker->free, &worker->operations[i].link);
    list_append(&worker->free_parts, &worker->parts[i].link);
  }
  return 0;
}

void operations_close(struct worker *worker) {
  for (struct list *item; (item = list_take(&worker->stages));) {
    struct bounce *stage = list_entry(item, struct bounce, link);
    haul_region_release(stage->region);
    free(stage);
  }
  free(worker->operations);
  free(worker->parts);
}
