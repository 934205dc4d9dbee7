/* SPDX-License-Identifier: MIT
 * Streams, captures, and events. */
#include <stdlib.h>

#include "inside.h"

struct event {
  CUevent theirs;
  int device;
};

pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all streams */
static struct stream *streams;
static struct stream *defaults[DEVICES_MAX][2]; /* legacy and per-thread */
static _Thread_local int mode;                  /* cudaStreamCaptureMode… */

static cudaError_t make_stream(unsigned flags, struct stream **stream) {
  struct stream *made = calloc(1, sizeof *made);
  if (!made)
    abort();
  made->device = current_device();
  made->flags = flags;
  cudaError_t error = driver.stream_create(&made->theirs, CU_STREAM_NON_BLOCKING);
  if (error != cudaSuccess) {
    free(made);
    return error;
  }
  made->next = streams;
  streams = made;
  *stream = made;
  return cudaSuccess;
}

cudaError_t find_stream(cudaStream_t name, struct stream **stream) {
  struct stream **mine = &defaults[current_device()][name == cudaStreamPerThread];
  if (!name || name == cudaStreamLegacy || name == cudaStreamPerThread) {
    *stream = *mine;
    cudaError_t error = *mine ? cudaSuccess : make_stream(cudaStreamDefault, mine);
    *stream = *mine;
    return error;
  }
  struct stream *one = streams;
  while (one && one != (struct stream *)(void *)name)
    one = one->next;
  *stream = one;
  return one ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

static bool is_legacy(const struct stream *stream) {
  return stream == defaults[stream->device][0];
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  struct stream *made;
  if (!stream || flags > cudaStreamNonBlocking)
    return done(cudaErrorInvalidValue);
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  pthread_mutex_lock(&streams_lock);
  error = make_stream(flags, &made);
  pthread_mutex_unlock(&streams_lock);
  leave();
  if (error == cudaSuccess)
    *stream = (cudaStream_t)(void *)made;
  return done(error);
}

static void drop(struct stream *stream) {
  struct stream **at = &streams;
  while (*at != stream)
    at = &(*at)->next;
  *at = stream->next;
  free(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t name) {
  struct stream *stream;
  if ((uintptr_t)name <= 2)
    return done(cudaErrorInvalidResourceHandle);
  pthread_mutex_lock(&streams_lock);
  cudaError_t error = find_stream(name, &stream);
  if (error == cudaSuccess && (error = enter(stream->device)) == cudaSuccess) {
    error = driver.stream_destroy(stream->theirs);
    drop(stream);
    leave();
  }
  pthread_mutex_unlock(&streams_lock);
  return done(error);
}

void forget_streams(int device) {
  pthread_mutex_lock(&streams_lock);
  defaults[device][0] = defaults[device][1] = NULL;
  for (struct stream *one = streams, *next; one; one = next) {
    next = one->next;
    if (one->device == device)
      drop(one);
  }
  pthread_mutex_unlock(&streams_lock);
}

static bool ends_capture(struct stream *stream, bool forbidden) {
  bool ends = stream->status != cudaStreamCaptureStatusNone && forbidden;
  if (ends)
    stream->status = cudaStreamCaptureStatusInvalidated;
  return ends;
}

/* cudaThreadExchangeStreamCaptureMode's rules. */
static bool forbids(const struct stream *stream) {
  bool own = pthread_equal(stream->capturer, pthread_self());
  if (mode == cudaStreamCaptureModeRelaxed)
    return false;
  return (own && stream->mode != cudaStreamCaptureModeRelaxed) ||
         (mode == cudaStreamCaptureModeGlobal && stream->mode == cudaStreamCaptureModeGlobal);
}

cudaError_t refuse_unsafe(void) {
  cudaError_t error = start_once();
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&streams_lock);
  for (struct stream *one = streams; one; one = one->next)
    if (ends_capture(one, forbids(one)))
      error = cudaErrorStreamCaptureUnsupported;
  pthread_mutex_unlock(&streams_lock);
  return error;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(int *wanted) {
  int before = mode;
  if (!wanted || *wanted < 0 || *wanted > cudaStreamCaptureModeRelaxed)
    return done(cudaErrorInvalidValue);
  mode = *wanted;
  *wanted = before;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t name, int wanted) {
  struct stream *stream;
  pthread_mutex_lock(&streams_lock);
  cudaError_t error = (uintptr_t)name <= 1 ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
  if (error == cudaSuccess)
    error = find_stream(name, &stream);
  if (error == cudaSuccess) {
    stream->status = cudaStreamCaptureStatusActive;
    stream->mode = wanted;
    stream->capturer = pthread_self();
  }
  pthread_mutex_unlock(&streams_lock);
  return done(error);
}

cudaError_t cudaStreamEndCapture(cudaStream_t name, cudaGraph_t *graph) {
  static char nothing;
  struct stream *stream;
  pthread_mutex_lock(&streams_lock);
  cudaError_t error = find_stream(name, &stream);
  if (error == cudaSuccess && stream->status != cudaStreamCaptureStatusActive)
    error = cudaErrorStreamCaptureInvalidated;
  if (error != cudaErrorInvalidResourceHandle)
    stream->status = cudaStreamCaptureStatusNone;
  *graph = error == cudaSuccess ? (cudaGraph_t)(void *)&nothing : NULL;
  pthread_mutex_unlock(&streams_lock);
  return done(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return done(graph ? cudaSuccess : cudaErrorInvalidValue);
}

/* With the lock. */
static bool is_blocking_capture(const struct stream *stream, int device) {
  return stream->device == device && stream->flags == cudaStreamDefault &&
         stream->status != cudaStreamCaptureStatusNone;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t name, int *status) {
  struct stream *stream;
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  pthread_mutex_lock(&streams_lock);
  error = find_stream(name, &stream);
  if (error == cudaSuccess)
    *status = stream->status;
  for (struct stream *one = streams; one && error == cudaSuccess; one = one->next)
    if (is_legacy(stream) && is_blocking_capture(one, stream->device))
      error = cudaErrorStreamCaptureImplicit;
  pthread_mutex_unlock(&streams_lock);
  leave();
  return done(error);
}

/* In the device's context. */
static cudaError_t wait_for(int device, bool all, cudaError_t refusal) {
  cudaError_t error = cudaSuccess;
  pthread_mutex_lock(&streams_lock);
  for (struct stream *one = streams; one; one = one->next)
    if (one->device == device && (all || one->flags == cudaStreamDefault) &&
        ends_capture(one, true))
      error = refusal;
  for (struct stream *one = streams; one && error == cudaSuccess; one = one->next)
    if (one->device == device && (all || one->flags == cudaStreamDefault))
      error = driver.stream_wait(one->theirs);
  pthread_mutex_unlock(&streams_lock);
  return error;
}

cudaError_t wait_for_device(int device) {
  return wait_for(device, true, cudaErrorStreamCaptureUnsupported);
}

cudaError_t wait_for_blocking(int device) {
  return wait_for(device, false, cudaErrorStreamCaptureImplicit);
}

cudaError_t cudaStreamSynchronize(cudaStream_t name) {
  struct stream *stream;
  CUstream theirs = NULL;
  pthread_mutex_lock(&streams_lock);
  cudaError_t error = find_stream(name, &stream);
  if (error == cudaSuccess && ends_capture(stream, true))
    error = cudaErrorStreamCaptureUnsupported;
  if (error == cudaSuccess) {
    theirs = stream->theirs;
    error = enter(stream->device);
  }
  pthread_mutex_unlock(&streams_lock);
  if (error != cudaSuccess)
    return done(error);
  error = driver.stream_wait(theirs);
  leave();
  return done(error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  struct event *made = calloc(1, sizeof *made);
  if (!made)
    abort();
  made->device = current_device();
  cudaError_t error = enter(made->device);
  if (error == cudaSuccess) {
    error = driver.event_create(&made->theirs, flags);
    leave();
  }
  if (error != cudaSuccess) {
    free(made);
    return done(error);
  }
  atomic_fetch_add(&cudart_double.events, 1);
  *event = (cudaEvent_t)(void *)made;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t name) {
  struct event *event = (struct event *)(void *)name;
  cudaError_t error = enter(event->device);
  if (error != cudaSuccess)
    return done(error);
  error = driver.event_destroy(event->theirs);
  leave();
  free(event);
  atomic_fetch_sub(&cudart_double.events, 1);
  return done(error);
}

cudaError_t cudaEventRecord(cudaEvent_t name, cudaStream_t stream_name) {
  const struct event *event = (struct event *)(void *)name;
  struct stream *stream;
  cudaError_t error = enter(event->device);
  if (error != cudaSuccess)
    return done(error);
  pthread_mutex_lock(&streams_lock);
  error = find_stream(stream_name, &stream);
  if (error == cudaSuccess && stream->device != event->device)
    error = cudaErrorInvalidResourceHandle;
  if (error == cudaSuccess && stream->status == cudaStreamCaptureStatusNone)
    error = driver.event_record(event->theirs, stream->theirs);
  pthread_mutex_unlock(&streams_lock);
  leave();
  return done(error);
}

/* Not in a captured stream, which these tests do not need. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream_name, cudaEvent_t name, unsigned flags) {
  const struct event *event = (struct event *)(void *)name;
  struct stream *stream;
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  pthread_mutex_lock(&streams_lock);
  error = find_stream(stream_name, &stream);
  if (error == cudaSuccess && stream->status != cudaStreamCaptureStatusNone)
    error = cudaErrorStreamCaptureUnsupported;
  if (error == cudaSuccess)
    error = driver.stream_wait_event(stream->theirs, event->theirs, flags);
  pthread_mutex_unlock(&streams_lock);
  leave();
  return done(error);
}

static cudaError_t ask(cudaEvent_t name, CUresult (*call)(CUevent event)) {
  const struct event *event = (struct event *)(void *)name;
  cudaError_t error = refuse_unsafe();
  if (error == cudaSuccess)
    error = enter(event->device);
  if (error != cudaSuccess)
    return done(error);
  error = call(event->theirs);
  leave();
  return done(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return ask(event, driver.event_query);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return ask(event, driver.event_wait);
}
