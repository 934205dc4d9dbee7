/* SPDX-License-Identifier: MIT
 * Copies by the GPUs' DMA engines. A copy takes a lane of its device and runs in chunks, two in
 * flight, each followed by an event, after which a callback of the driver has the copy polled, if
 * the caller asked for it: a callback comes 20 us late (H200, driver 580), an event's query takes
 * 0.2.
 *
 * The driver's "asynchronous" copies of unpinned host memory block. So the CPU copies such memory
 * to or from bounce buffers, in slices of the measured best size. HAUL_REGION_PINNED memory is
 * pinned at its first copy. */

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/sum.h"
#include "core/sys.h"
#include "core/tune.h"
#include "memory/copy.h"
#include "memory/cuda/cuda.h"
#include "memory/staging.h"

enum way { INTO, OUT, INSIDE, ACROSS };

/* Bytes. A cancel waits for two chunks, and the second must outlast the way from the first one's
 * callback to the third, 20 to 400 us (the latter in a busy virtual machine): each takes 70 to
 * 1300 us, at 2 TB/s inside, 450 GB/s over NVLink, and 25 GB/s over PCIe. */
static const uint64_t chunks[] = {
    [INTO] = 32 << 20, [OUT] = 32 << 20, [INSIDE] = 256 << 20, [ACROSS] = 32 << 20};

/* Guards lanes and waiting copies of all devices. Callbacks take it, so no driver call is made
 * with it. */
static pthread_mutex_t lanes_lock = PTHREAD_MUTEX_INITIALIZER;

/* Engine state in struct copy. Polls and cancels of a copy are serialised by the caller. */
struct job {
  struct list link;         /* device->waiting, until it is woken to take a lane */
  struct cuda_lane *lane;   /* NULL: waits for a free one */
  uint64_t issued, arrived; /* chunks */
  uint64_t called;          /* chunks before this one need no callback any more */
  uint32_t generation;      /* of the context at the start */
  int64_t began;            /* staged: when the copy got its lane */
  uint16_t device;
  uint8_t way;
  bool staged;
  uint8_t slice; /* staged: index of the slice size */
  bool wakes;    /* copy->wakes, for other threads; with the lock */
};
_Static_assert(sizeof(struct job) <= sizeof((struct copy *)0)->engine, "struct copy is too small");

static struct job *job_of(struct copy *copy) {
  return (struct job *)(void *)copy->engine;
}

bool cuda_reaches(const struct memory *own, const struct memory *other) {
  (void)own;
  return other->view || other->provider == &provider_cuda;
}

static struct copy *copy_of(struct list *link) {
  return (struct copy *)(void *)((char *)link - offsetof(struct copy, engine) -
                                 offsetof(struct job, link));
}

/* False: all are busy, and the copy is woken when one is free. */
static bool take_lane(struct copy *copy, struct job *job) {
  struct cuda_device *device = cuda_device(job->device);
  pthread_mutex_lock(&lanes_lock);
  job->wakes = copy->wakes;
  for (unsigned i = 0; i < CUDA_LANES && !job->lane; i++)
    if (!device->lanes[i].busy)
      job->lane = &device->lanes[i];
  if (job->lane) {
    list_remove(&job->link);
    job->lane->busy = true;
    job->lane->wake = copy->wake;
    job->lane->user = copy->user;
  } else if (list_empty(&job->link)) {
    list_append(&device->waiting, &job->link);
  }
  pthread_mutex_unlock(&lanes_lock);
  return job->lane;
}

/* Returns the lane or leaves the queue. Afterwards `wake` does not come. */
static void leave(struct job *job) {
  pthread_mutex_lock(&lanes_lock);
  if (job->lane) {
    job->lane->busy = false;
    job->lane->wake = NULL;
  }
  job->lane = NULL;
  list_remove(&job->link);
  struct list *next = list_take(&cuda_device(job->device)->waiting);
  if (next && job_of(copy_of(next))->wakes)
    copy_of(next)->wake(copy_of(next)->user);
  pthread_mutex_unlock(&lanes_lock);
}

/* In a thread of the driver, which must not be called. */
static void on_chunk(void *argument) {
  struct cuda_lane *lane = argument;
  pthread_mutex_lock(&lanes_lock);
  if (lane->wake)
    lane->wake(lane->user);
  pthread_mutex_unlock(&lanes_lock);
}

static void on_chunk_or_error(CUstream stream, CUresult result, void *argument) {
  (void)stream;
  (void)result; /* a poll gets it */
  on_chunk(argument);
}

/* Has the driver call on_chunk after the event. Only the older call does so after an error, too. */
static CUresult call_after(CUstream stream, CUevent event, struct cuda_lane *lane) {
  CUresult result = cuda_driver->stream_wait_event(stream, event, 0);
  if (result != CUDA_SUCCESS)
    return result;
  return cuda_driver->add_callback ? cuda_driver->add_callback(stream, on_chunk_or_error, lane, 0)
                                   : cuda_driver->launch_host(stream, on_chunk, lane);
}

static uint64_t chunk_bytes(const struct job *job) {
  return job->staged ? BOUNCE_BYTES >> job->slice : chunks[job->way];
}

/* The chunk's offset in the copy, and its length. */
static uint64_t chunk_at(const struct copy *copy, const struct job *job, uint64_t chunk,
                         uint64_t *length) {
  uint64_t at = chunk * chunk_bytes(job), left = copy->length - at;
  *length = left < chunk_bytes(job) ? left : chunk_bytes(job);
  return at;
}

static bool is_issued(const struct copy *copy, const struct job *job) {
  return job->issued * chunk_bytes(job) >= copy->length;
}

static CUstream stream_of(const struct job *job) {
  return cuda_device(job->device)->streams[job->way == OUT ? CUDA_OUT : CUDA_INTO];
}

static CUresult give_to_driver(struct copy *copy, struct job *job,
                               const struct copy_segment *segment) {
  CUstream stream = stream_of(job);
  uint64_t length = segment->length;
  void *buffer = job->staged ? copy->through[job->issued % 2]->view : NULL;
  CUdeviceptr to = cuda_address(copy->to, segment->to_offset);
  CUdeviceptr from = cuda_address(copy->from, segment->from_offset);
  char *host_to = (char *)copy->to->view + segment->to_offset;
  const char *host_from = (const char *)copy->from->view + segment->from_offset;
  switch ((enum way)job->way) {
  case INTO:
    if (job->staged)
      copy_slice(buffer, host_from, length, copy->length);
    return cuda_driver->copy_in(to, job->staged ? buffer : host_from, length, stream);
  case OUT:
    return cuda_driver->copy_out(job->staged ? buffer : host_to, from, length, stream);
  case INSIDE:
    return cuda_driver->copy_inside(to, from, length, stream);
  case ACROSS:
    return cuda_driver->copy_across(to, cuda_device(copy->to->place.device)->context, from,
                                    cuda_device(copy->from->place.device)->context, length, stream);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

/* In the device's context. */
static CUresult chunk_issue(struct copy *copy, struct job *job) {
  struct copy_segment segment;
  uint64_t at = chunk_at(copy, job, job->issued, &segment.length);
  segment.to_offset = copy->to_offset + at;
  segment.from_offset = copy->from_offset + at;
  uint32_t more = copy->gathers ? copy->more_count : 0;
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i <= more && result == CUDA_SUCCESS; i++)
    result = give_to_driver(copy, job, i == 0 ? &segment : &copy->more[i - 1]);
  if (result == CUDA_SUCCESS)
    result = cuda_driver->event_record(job->lane->events[job->issued % 2], stream_of(job));
  if (result == CUDA_SUCCESS)
    job->issued++;
  return result;
}

/* In the device's context. Has `wake` called for the chunks in flight. */
static CUresult call_for_chunks(struct job *job) {
  const struct cuda_device *device = cuda_device(job->device);
  CUstream ends = device->streams[job->way == OUT ? CUDA_OUT_ENDS : CUDA_INTO_ENDS];
  CUresult result = CUDA_SUCCESS;
  if (job->called < job->arrived)
    job->called = job->arrived;
  for (; result == CUDA_SUCCESS && job->called < job->issued; job->called++)
    result = call_after(ends, job->lane->events[job->called % 2], job->lane);
  return result;
}

/* In the device's context. CUDA_ERROR_NOT_READY while the oldest chunk is in flight. */
static CUresult chunk_receive(struct copy *copy, struct job *job) {
  CUresult result = cuda_driver->event_query(job->lane->events[job->arrived % 2]);
  if (result != CUDA_SUCCESS)
    return result;
  if (job->way == OUT && job->staged) {
    uint64_t length, at = chunk_at(copy, job, job->arrived, &length);
    copy_slice((char *)copy->to->view + copy->to_offset + at, copy->through[job->arrived % 2]->view,
               length, copy->length);
  }
  job->arrived++;
  return CUDA_SUCCESS;
}

/* In the device's context. Ends all chunks that have arrived and starts at most two, so that no
 * call takes long. */
static CUresult copy_advance(struct copy *copy, struct job *job) {
  CUresult result = CUDA_SUCCESS;
  while (job->arrived < job->issued && result == CUDA_SUCCESS)
    result = chunk_receive(copy, job);
  if (result == CUDA_ERROR_NOT_READY)
    result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS && !is_issued(copy, job) && job->issued - job->arrived < 2)
    result = chunk_issue(copy, job);
  return result == CUDA_SUCCESS && copy->wakes ? call_for_chunks(job) : result;
}

#define MEASURED_LEAST ((uint64_t)2 << 20) /* shorter ones hardly overlap slices */

/* Slice sizes of staged copies, by direction. */
static struct tune slices[2];
_Static_assert(INTO < 2 && OUT < 2, "only these pass the host");

static bool is_measured(const struct copy *copy, const struct job *job) {
  return job->staged && copy->length >= MEASURED_LEAST;
}

static int set_status(struct copy *copy, int status) {
  atomic_store_explicit(&copy->status, status, memory_order_release);
  return status;
}

/* In the device's context. Waits until the driver has finished with buffers and blocks. A destroyed
 * context has no copies in flight. */
static void wait_for_chunks(struct job *job) {
  for (; job->arrived < job->issued; job->arrived++)
    cuda_driver->event_wait(job->lane->events[job->arrived % 2]);
}

static int end_well(struct copy *copy, struct job *job) {
  leave(job);
  if (is_measured(copy, job))
    tune_record(&slices[job->way], job->slice, copy->length, clock_now() - job->began);
  return set_status(copy, 0);
}

/* In the device's context. Also waits for chunks that have no event. */
static int end_badly(struct copy *copy, struct job *job, CUresult result) {
  int code = cuda_failed(job->device, result, "the copy");
  if (cuda_is_current(job->device, job->generation))
    cuda_driver->stream_wait(stream_of(job));
  wait_for_chunks(job);
  leave(job);
  return set_status(copy, code);
}

/* In the device's context. */
static int advance_or_end(struct copy *copy, struct job *job) {
  int code = 0;
  if (!job->lane && !take_lane(copy, job))
    return 1;
  if (job->lane->generation != job->generation)
    code = cuda_lane_build(job->device, job->lane);
  if (code) {
    leave(job);
    return set_status(copy, code);
  }
  if (job->issued == 0 && is_measured(copy, job)) {
    job->slice = (uint8_t)tune_next(&slices[job->way]);
    job->began = clock_now();
  }
  CUresult result = copy_advance(copy, job);
  if (result != CUDA_SUCCESS)
    return end_badly(copy, job, result);
  return is_issued(copy, job) && job->arrived == job->issued ? end_well(copy, job) : 1;
}

static int move_on(struct copy *copy, struct job *job) {
  int code = cuda_is_current(job->device, job->generation) ? cuda_enter_again(job->device)
                                                           : cuda_gone(job->device);
  if (code) { /* the context was destroyed, with its copies in flight */
    leave(job);
    return set_status(copy, code);
  }
  code = advance_or_end(copy, job);
  cuda_leave();
  return code;
}

/* Is the memory pinned or managed? Then the driver copies it directly. */
static bool is_pinned(const char *address, uint64_t length) {
  struct cuda_pointer first, last;
  cuda_pointer(cuda_driver, address, &first);
  cuda_pointer(cuda_driver, address + length - 1, &last);
  return (first.type == CU_MEMORYTYPE_HOST || first.managed) &&
         (last.type == CU_MEMORYTYPE_HOST || last.managed);
}

static enum way way_of(const struct copy *copy) {
  if (copy->from->provider != &provider_cuda)
    return INTO;
  if (copy->to->provider != &provider_cuda)
    return OUT;
  return copy->to->place.device == copy->from->place.device ? INSIDE : ACROSS;
}

bool cuda_needs_cpu(const struct memory *host) {
  return !host->may_pin && !(cuda_driver && is_pinned(host->view, host->length));
}

/* In the device's context, with the lock. */
static int pin_now(unsigned device, struct memory *host) {
  if (is_pinned(host->view, host->length))
    return 0; /* pinned by another copy */
  CUresult result =
      cuda_driver->host_register(host->view, host->length, CU_MEMHOSTREGISTER_PORTABLE);
  if (result != CUDA_SUCCESS)
    return cuda_failed(device, result, "cuMemHostRegister");
  host->pinned_for = (uint16_t)device;
  host->pinned_generation = atomic_load(&cuda_device(device)->generation);
  atomic_store_explicit(&host->pinned_by, &provider_cuda, memory_order_release);
  return 0;
}

/* Pins the memory for all GPUs, once; again after its context was reset. */
static int pin(unsigned device, struct memory *host) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  int code = cuda_enter_again(device);
  if (code)
    return code;
  pthread_mutex_lock(&lock);
  code = pin_now(device, host);
  pthread_mutex_unlock(&lock);
  cuda_leave();
  return code;
}

int cuda_pin(unsigned device, struct memory *host) {
  int code = cuda_enter(device); /* the context may not exist yet */
  if (code)
    return code;
  code = pin(device, host);
  cuda_leave();
  return code;
}

/* If the context is destroyed, the pinning is gone, too. */
void cuda_unpin(struct memory *host) {
  host->pinned_by = NULL;
  if (fork_is_child() || cuda_enter_again(host->pinned_for) != 0)
    return;
  cuda_driver->host_unregister(host->view);
  cuda_leave();
}

/* As known here; the driver is not asked. */
static bool is_pinned_here(struct memory *host) {
  return atomic_load_explicit(&host->pinned_by, memory_order_acquire) == &provider_cuda &&
         cuda_is_current(host->pinned_for, host->pinned_generation);
}

/* 0: the driver reaches the memory; 1: the CPU must copy it through buffers; or a code. */
static int look_at_host(struct memory *host, uint64_t offset, uint64_t length, unsigned device) {
  if (length == 0 || is_pinned_here(host) || is_pinned((const char *)host->view + offset, length))
    return 0;
  return host->may_pin ? pin(device, host) : 1;
}

static int look_at_sides(const struct copy *copy, const struct job *job) {
  if (job->way == INTO)
    return look_at_host(copy->from, copy->from_offset, copy->length, job->device);
  if (job->way == OUT)
    return look_at_host(copy->to, copy->to_offset, copy->length, job->device);
  return 0;
}

/* 1: the copy has no buffers. */
static int look_at_buffers(const struct copy *copy, const struct job *job) {
  int code = copy->through[0] ? 0 : 1;
  for (unsigned i = 0; i < 2 && code == 0; i++)
    code = look_at_host(copy->through[i], 0, copy->through[i]->length, job->device);
  return code;
}

/* Further segments are in the only chunk, and of host memory that the driver reaches wherever they
 * lie. */
static bool may_gather(const struct copy *copy, const struct job *job) {
  struct memory *host = job->way == INTO ? copy->from : job->way == OUT ? copy->to : NULL;
  return copy->more_count > 0 && !job->staged && copy->length <= chunk_bytes(job) &&
         (!host || is_pinned_here(host) || is_pinned(host->view, host->length));
}

int cuda_copy_start(struct copy *copy) {
  struct job *job = job_of(copy);
  enum way way = way_of(copy);
  int code = copy_may_start(copy, &provider_cuda);
  if (code == 0 && way != OUT)
    code = cuda_check(copy->to);
  if (code == 0 && way != INTO)
    code = cuda_check(copy->from);
  if (code)
    return code;
  unsigned device = (way == OUT ? copy->from : copy->to)->place.device;
  *job = (struct job){.device = (uint16_t)device,
                      .generation = atomic_load(&cuda_device(device)->generation),
                      .way = (uint8_t)way};
  list_init(&job->link);
  code = look_at_sides(copy, job);
  job->staged = code == 1;
  if (job->staged)
    code = look_at_buffers(copy, job);
  if (code)
    return code;
  if (copy->length == 0)
    return set_status(copy, 0);
  copy->gathers = may_gather(copy, job);
  set_status(copy, 1);
  code = move_on(copy, job);
  return code < 0 ? code : 0;
}

int cuda_copy_poll(struct copy *copy) {
  int status = atomic_load_explicit(&copy->status, memory_order_acquire);
  return status == 1 && !fork_is_child() ? move_on(copy, job_of(copy)) : status;
}

void cuda_copy_cancel(struct copy *copy) {
  struct job *job = job_of(copy);
  if (atomic_load(&copy->status) != 1)
    return;
  if (!fork_is_child()) {
    if (job->issued > job->arrived && cuda_is_current(job->device, job->generation) &&
        cuda_enter_again(job->device) == 0) {
      wait_for_chunks(job);
      cuda_leave();
    }
    leave(job);
  }
  set_status(copy, HAUL_ECANCELED);
}

/* A reset destroys the event, which the driver must not be asked about then. */
int cuda_event_look(unsigned device, void *event, bool again) {
  int code = again ? cuda_enter_again(device) : cuda_enter(device);
  if (code)
    return code;
  CUresult result = cuda_driver->event_query(event);
  cuda_leave();
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
    return result == CUDA_ERROR_NOT_READY;
  return cuda_failed(device, result, "cuEventQuery");
}

#define SUM_BYTES ((uint64_t)1 << 20)

/* In the device's context. An unpinned buffer is filled when the call returns or the stream is
 * idle. */
static int sum_up(struct memory *memory, uint64_t offset, uint64_t length, char *buffer,
                  XXH3_state_t *state) {
  CUstream stream = cuda_device(memory->place.device)->streams[CUDA_OUT];
  for (uint64_t at = 0; at < length; at += SUM_BYTES) {
    uint64_t bytes = length - at < SUM_BYTES ? length - at : SUM_BYTES;
    CUresult result =
        cuda_driver->copy_out(buffer, cuda_address(memory, offset + at), bytes, stream);
    if (result == CUDA_SUCCESS)
      result = cuda_driver->stream_wait(stream);
    if (result != CUDA_SUCCESS)
      return cuda_failed(memory->place.device, result, "cuMemcpyDtoHAsync");
    XXH3_64bits_update(state, buffer, bytes);
  }
  return 0;
}

int cuda_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum) {
  int code = cuda_enter_for(memory);
  if (code)
    return code;
  char *buffer = alloc_zero(1, SUM_BYTES);
  XXH3_state_t *state = XXH3_createState();
  if (buffer && state) {
    XXH3_64bits_reset(state);
    code = sum_up(memory, offset, length, buffer, state);
    *sum = XXH3_64bits_digest(state);
  } else {
    code = error_memory("the sum of GPU memory");
  }
  cuda_leave();
  XXH3_freeState(state);
  alloc_free(buffer);
  return code;
}
