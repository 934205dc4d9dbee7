/* SPDX-License-Identifier: MIT
 * Waiting, so that Ctrl-C works and other threads run. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "haulpy.h"

#define SLICE_NS 100000000 /* how late a signal is seen at most */

bool nanoseconds_from(double seconds, int64_t *nanoseconds) {
  if (isnan(seconds) || seconds < 0) {
    PyErr_SetString(PyExc_ValueError, "a time is a number of seconds, 0 or more");
    return false;
  }
  *nanoseconds = seconds >= 9e9 ? INT64_MAX : (int64_t)(seconds * 1e9);
  return true;
}

bool deadline_from(PyObject *timeout, double seconds, haul_deadline *until) {
  int64_t nanoseconds;
  if (timeout && timeout != Py_None) {
    seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1 && PyErr_Occurred())
      return false;
  }
  if (!nanoseconds_from(seconds, &nanoseconds))
    return false;
  *until = nanoseconds == 0 ? HAUL_NO_WAIT : haul_deadline_in(nanoseconds);
  return true;
}

/* ---- What can be taken up again ---- */

int wait_in_steps(struct object *object, const char *call,
                  int (*step)(void *user, haul_deadline until), void *user, haul_deadline until) {
  for (;;) {
    haul_deadline slice = haul_deadline_in(SLICE_NS);
    int code;
    if (slice > until)
      slice = until;
    Py_BEGIN_ALLOW_THREADS;
    code = step(user, slice);
    Py_END_ALLOW_THREADS;
    if (code != STEP_AGAIN)
      return code;
    if (slice == until)
      return HAUL_ETIMEDOUT;
    if (PyErr_CheckSignals() != 0)
      return WAIT_RAISED;
    if (object->closed || (object->node && object->node->base.closed)) {
      const struct object *closed = object->closed ? object : &object->node->base;
      raise_own(HAUL_ECLOSED, call, closed->noun, "it was closed meanwhile",
                "close it when no other thread waits");
      return WAIT_RAISED;
    }
  }
}

/* ---- What cannot ---- */

/* `lock` guards `ended` and `abandoned`; the rest belongs to the thread until it has ended. */
struct job_state {
  pthread_mutex_t lock;
  pthread_cond_t end;
  bool ended, abandoned;
  int code;
  struct haul_error error;
};

void *job_new(size_t size) {
  struct job *job = calloc(1, size);
  struct job_state *state = calloc(1, sizeof *state);
  pthread_condattr_t clock;
  if (!job || !state) {
    free(job);
    free(state);
    return PyErr_NoMemory();
  }
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_mutex_init(&state->lock, NULL);
  pthread_cond_init(&state->end, &clock);
  pthread_condattr_destroy(&clock);
  job->state = state;
  return job;
}

void job_free(struct job *job) {
  pthread_cond_destroy(&job->state->end);
  pthread_mutex_destroy(&job->state->lock);
  free(job->state);
  free(job);
}

static void run(struct job *job) {
  job->state->code = job->run(job);
  if (job->state->code)
    job->state->error = *haul_error_last();
}

static void leave_used(struct job *job) {
  for (size_t i = 0; i < sizeof job->used / sizeof *job->used; i++)
    if (job->used[i]) {
      object_leave(job->used[i]);
      Py_DECREF((PyObject *)job->used[i]);
    }
}

/* Nobody waits any more. Where the interpreter has ended meanwhile the process is about to. */
static void discard(struct job *job) {
  if (job->state->code == 0 && job->undo)
    job->undo(job);
  PyGILState_STATE state;
  if (!foreign_enter(&state))
    return;
  leave_used(job);
  foreign_leave(state);
  job_free(job);
}

static void *thread_main(void *argument) {
  struct job *job = argument;
  run(job);
  pthread_mutex_lock(&job->state->lock);
  bool abandoned = job->state->abandoned;
  job->state->ended = true;
  pthread_cond_signal(&job->state->end);
  pthread_mutex_unlock(&job->state->lock);
  if (abandoned)
    discard(job);
  return NULL;
}

/* Signals are for the interpreter's threads. */
static bool start(struct job *job) {
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&thread, NULL, thread_main, job) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (started)
    pthread_detach(thread);
  return started;
}

/* Whether it ended within a slice. Without the interpreter's lock. */
static bool ended_in_slice(struct job_state *state) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += SLICE_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  int status = 0;
  pthread_mutex_lock(&state->lock);
  while (!state->ended && status == 0)
    status = pthread_cond_timedwait(&state->end, &state->lock, &until);
  bool ended = state->ended;
  pthread_mutex_unlock(&state->lock);
  return ended;
}

/* False with an exception: a signal's handler raised. The job has then been left to its thread, or
 * undone. */
static bool await(struct job *job) {
  for (;;) {
    bool ended;
    Py_BEGIN_ALLOW_THREADS;
    ended = ended_in_slice(job->state);
    Py_END_ALLOW_THREADS;
    if (ended)
      return true;
    if (PyErr_CheckSignals() != 0)
      break;
  }
  pthread_mutex_lock(&job->state->lock);
  bool ended = job->state->ended;
  job->state->abandoned = true;
  pthread_mutex_unlock(&job->state->lock);
  if (ended)
    discard(job);
  return false;
}

int job_run(struct job *job) {
  for (size_t i = 0; i < sizeof job->used / sizeof *job->used; i++)
    Py_XINCREF((PyObject *)job->used[i]);
  if (gettid() != getpid() || !start(job)) { /* other threads get no signals */
    Py_BEGIN_ALLOW_THREADS;
    run(job);
    Py_END_ALLOW_THREADS;
  } else if (!await(job)) {
    return -1;
  }
  leave_used(job);
  if (job->state->code == 0)
    return 0;
  raise_error(&job->state->error);
  job_free(job);
  return -1;
}
