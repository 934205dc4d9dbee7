/* SPDX-License-Identifier: MIT
 * Streams: a thread each, which executes copies in order at the configured speed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "inside.h"

#define SLICE ((size_t)256 << 10)

struct op {
  struct op *next;
  char *to;
  const char *from; /* NULL: a fill with `value` */
  size_t bytes;     /* 0: an event or a call */
  unsigned char value;
  struct range *uses[2];
  CUevent event;
  bool waits;                /* for the event's record; else it records */
  unsigned long long number; /* of the event record */
  void (*host)(void *user);
  void (*callback)(CUstream stream, CUresult result, void *user);
  void *user;
};

struct CUstream_st {
  struct CUstream_st *next;
  CUcontext context;
  unsigned generation;
  pthread_t thread;
  pthread_cond_t work;
  struct op *first, **last;
  unsigned long long given, done;
  _Atomic bool ending;
};

struct CUevent_st {
  struct CUevent_st *next;
  CUcontext context;
  unsigned generation;
  unsigned long long recorded, passed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all streams and events */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static CUstream streams;
static CUevent events;

/* With the lock. */
static bool is_event(CUevent event, CUcontext context) {
  CUevent one = events;
  while (one && one != event)
    one = one->next;
  return one && one->context == context && one->generation == context->generation;
}

static void sleep_ns(unsigned long long ns) {
  struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  if (ns > 0)
    nanosleep(&time, NULL);
}

static void move_slice(const struct op *op, size_t at, size_t bytes) {
  if (op->from)
    memmove(op->to + at, op->from + at, bytes);
  else
    memset(op->to + at, op->value, bytes);
}

/* Without the lock. False: an injected failure halfway. */
static bool move(CUstream stream, const struct op *op) {
  bool breaks = op->from && is_due(&cuda_double.copy);
  size_t end = breaks ? op->bytes / 2 : op->bytes;
  while (cuda_double.hold && !stream->ending)
    sleep_ns(1000000);
  sleep_ns(cuda_double.latency);
  if (!cuda_double.moves)
    return !breaks;
  for (size_t at = 0; at < end && !stream->ending; at += SLICE) {
    size_t bytes = end - at < SLICE ? end - at : SLICE;
    move_slice(op, at, bytes);
    if (cuda_double.bandwidth)
      sleep_ns(bytes * 1000000000ULL / cuda_double.bandwidth);
  }
  return !breaks;
}

/* With the lock, which is dropped meanwhile. An event may be destroyed while a stream waits for it.
 */
static void run_event(CUstream stream, const struct op *op) {
  if (!op->waits)
    op->event->passed = op->number > op->event->passed ? op->number : op->event->passed;
  while (op->waits && !stream->ending && is_event(op->event, stream->context) &&
         op->event->passed < op->number)
    pthread_cond_wait(&changed, &lock);
}

_Atomic unsigned host_functions;

static void run_host(const struct op *op) {
  atomic_fetch_add(&host_functions, 1);
  op->host(op->user);
  atomic_fetch_sub(&host_functions, 1);
}

/* Without the lock. After an error the driver calls callbacks and no host functions. */
static void run_call(CUstream stream, const struct op *op) {
  CUresult result = atomic_load(&stream->context->broken);
  if (stream->ending)
    return;
  in_callback = true;
  if (op->callback)
    op->callback(stream, result, op->user);
  else if (result == CUDA_SUCCESS)
    run_host(op);
  in_callback = false;
}

/* Without the lock. */
static void run_copy(CUstream stream, const struct op *op) {
  bool runs = !stream->ending && atomic_load(&stream->context->broken) == CUDA_SUCCESS;
  if (runs && !move(stream, op))
    atomic_store(&stream->context->broken, CUDA_ERROR_ILLEGAL_ADDRESS);
  range_release(op->uses[0]);
  range_release(op->uses[1]);
}

/* With the lock, which is dropped meanwhile. */
static void run(CUstream stream, struct op *op) {
  if (op->event) {
    run_event(stream, op);
  } else {
    pthread_mutex_unlock(&lock);
    if (op->host || op->callback)
      run_call(stream, op);
    else
      run_copy(stream, op);
    pthread_mutex_lock(&lock);
  }
  stream->done++;
  pthread_cond_broadcast(&changed);
  free(op);
}

static void *stream_main(void *argument) {
  CUstream stream = argument;
  pthread_mutex_lock(&lock);
  while (stream->first || !stream->ending) {
    struct op *op = stream->first;
    if (!op) {
      pthread_cond_wait(&stream->work, &lock);
      continue;
    }
    stream->first = op->next;
    if (!op->next)
      stream->last = &stream->first;
    run(stream, op);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* With the lock. */
static bool is_stream(CUstream stream, CUcontext context) {
  CUstream one = streams;
  while (one && one != stream)
    one = one->next;
  return one && one->context == context && one->generation == context->generation;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  if (flags > CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  CUstream made = calloc(1, sizeof *made);
  DEMAND(made != NULL);
  made->context = context;
  made->generation = context->generation;
  made->last = &made->first;
  pthread_cond_init(&made->work, NULL);
  pthread_mutex_lock(&lock);
  made->next = streams;
  streams = made;
  DEMAND(pthread_create(&made->thread, NULL, stream_main, made) == 0);
  pthread_mutex_unlock(&lock);
  atomic_fetch_add(&cuda_double.streams, 1);
  *stream = made;
  return CUDA_SUCCESS;
}

/* With the lock, which is dropped meanwhile. Queued work continues unless the context is destroyed.
 */
static void end_stream(CUstream stream, bool drop) {
  CUstream *at = &streams;
  while (*at != stream)
    at = &(*at)->next;
  *at = stream->next;
  while (!drop && stream->done < stream->given)
    pthread_cond_wait(&changed, &lock);
  stream->ending = true;
  pthread_cond_broadcast(&changed);
  pthread_cond_signal(&stream->work);
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
  pthread_cond_destroy(&stream->work);
  free(stream);
  atomic_fetch_sub(&cuda_double.streams, 1);
  pthread_mutex_lock(&lock);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  CUresult code;
  CUcontext context = current_or_broken(&code);
  if (!context)
    return code;
  pthread_mutex_lock(&lock);
  bool good = is_stream(stream, context);
  if (good)
    end_stream(stream, false);
  pthread_mutex_unlock(&lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* With the lock. */
static void give(CUstream stream, struct op *op) {
  *stream->last = op;
  stream->last = &op->next;
  stream->given++;
  pthread_cond_signal(&stream->work);
}

static void wait_for(CUstream stream, unsigned long long number) {
  while (stream->done < number)
    pthread_cond_wait(&changed, &lock);
}

CUresult cuStreamSynchronize(CUstream stream) {
  CUresult code;
  CUcontext context = current_or_broken(&code);
  if (!context)
    return code;
  pthread_mutex_lock(&lock);
  bool good = is_stream(stream, context);
  if (good)
    wait_for(stream, stream->given);
  pthread_mutex_unlock(&lock);
  return good ? atomic_load(&context->broken) : CUDA_ERROR_INVALID_HANDLE;
}

/* Takes over the uses of the ranges. */
static CUresult start(CUcontext context, CUstream stream, struct op op, bool wait) {
  struct op *made = malloc(sizeof *made);
  DEMAND(made != NULL);
  *made = op;
  pthread_mutex_lock(&lock);
  bool good = is_stream(stream, context);
  if (good) {
    give(stream, made);
    if (wait)
      wait_for(stream, stream->given);
  }
  pthread_mutex_unlock(&lock);
  if (good)
    return CUDA_SUCCESS;
  range_release(op.uses[0]);
  range_release(op.uses[1]);
  free(made);
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  struct op op = {.from = from, .bytes = bytes};
  op.to = range_map(to, bytes, context->gpu, true, &op.uses[0]);
  return op.to ? start(context, stream, op, !is_pinned(from)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  struct op op = {.to = to, .bytes = bytes};
  op.from = range_map(from, bytes, context->gpu, false, &op.uses[0]);
  return op.from ? start(context, stream, op, !is_pinned(to)) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_between(CUcontext context, CUdeviceptr to, unsigned to_gpu, CUdeviceptr from,
                             unsigned from_gpu, size_t bytes, CUstream stream) {
  struct op op = {.bytes = bytes};
  op.to = range_map(to, bytes, to_gpu, true, &op.uses[0]);
  op.from = range_map(from, bytes, from_gpu, false, &op.uses[1]);
  if (op.to && op.from)
    return start(context, stream, op, false);
  range_release(op.uses[0]);
  range_release(op.uses[1]);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  return copy_between(context, to, context->gpu, from, context->gpu, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  if (!to_context || !from_context || !atomic_load(&to_context->active) ||
      !atomic_load(&from_context->active))
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return copy_between(context, to, to_context->gpu, from, from_context->gpu, bytes, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  struct op op = {.bytes = bytes, .value = value};
  op.to = range_map(address, bytes, context->gpu, true, &op.uses[0]);
  return op.to ? start(context, stream, op, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  if (flags > 7)
    return CUDA_ERROR_INVALID_VALUE;
  CUevent made = calloc(1, sizeof *made);
  DEMAND(made != NULL);
  made->context = context;
  made->generation = context->generation;
  pthread_mutex_lock(&lock);
  made->next = events;
  events = made;
  pthread_mutex_unlock(&lock);
  atomic_fetch_add(&cuda_double.events, 1);
  *event = made;
  return CUDA_SUCCESS;
}

/* With the lock. */
static void end_event(CUevent event) {
  CUevent *at = &events;
  while (*at != event)
    at = &(*at)->next;
  *at = event->next;
  free(event);
  atomic_fetch_sub(&cuda_double.events, 1);
}

CUresult cuEventDestroy_v2(CUevent event) {
  CUresult code;
  CUcontext context = current_or_broken(&code);
  if (!context)
    return code;
  pthread_mutex_lock(&lock);
  bool good = is_event(event, context);
  if (good) {
    DEMAND(event->passed == event->recorded);
    end_event(event);
  }
  pthread_mutex_unlock(&lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult give_event(CUevent event, CUstream stream, bool waits) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  struct op *op = calloc(1, sizeof *op);
  DEMAND(op != NULL);
  pthread_mutex_lock(&lock);
  bool good = is_event(event, context) && is_stream(stream, context);
  if (good) {
    op->event = event;
    op->waits = waits;
    op->number = waits ? event->recorded : ++event->recorded;
    give(stream, op);
  }
  pthread_mutex_unlock(&lock);
  if (!good)
    free(op);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  cuda_double.records++;
  return give_event(event, stream, false);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return flags == 0 ? give_event(event, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult give_call(CUstream stream, struct op op) {
  cuda_double.callbacks++;
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  return op.host || op.callback ? start(context, stream, op, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchHostFunc(CUstream stream, void (*host)(void *user), void *user) {
  return give_call(stream, (struct op){.host = host, .user = user});
}

CUresult cuStreamAddCallback(CUstream stream, void (*callback)(CUstream, CUresult, void *),
                             void *user, unsigned flags) {
  return flags == 0 ? give_call(stream, (struct op){.callback = callback, .user = user})
                    : CUDA_ERROR_INVALID_VALUE;
}

static CUresult ask_event(CUevent event, bool wait) {
  CUresult code;
  CUcontext context = current_or_broken(&code);
  if (!context)
    return code;
  pthread_mutex_lock(&lock);
  if (!is_event(event, context))
    code = CUDA_ERROR_INVALID_HANDLE;
  while (wait && code == CUDA_SUCCESS && event->passed < event->recorded)
    pthread_cond_wait(&changed, &lock);
  if (code == CUDA_SUCCESS && event->passed < event->recorded)
    code = CUDA_ERROR_NOT_READY;
  pthread_mutex_unlock(&lock);
  CUresult broken = atomic_load(&context->broken);
  return broken != CUDA_SUCCESS ? broken : code;
}

CUresult cuEventQuery(CUevent event) {
  return ask_event(event, false);
}

CUresult cuEventSynchronize(CUevent event) {
  return ask_event(event, true);
}

/* The context is destroyed. */
void streams_reset(CUcontext context) {
  pthread_mutex_lock(&lock);
  for (CUstream stream = streams; stream;) {
    CUstream mine = stream->context == context ? stream : NULL;
    if (mine)
      end_stream(mine, true);
    stream = mine ? streams : stream->next;
  }
  for (CUevent event = events, next; event; event = next) {
    next = event->next;
    if (event->context == context)
      end_event(event);
  }
  pthread_mutex_unlock(&lock);
}
