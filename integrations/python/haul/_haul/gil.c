/* SPDX-License-Identifier: MIT
 * The GIL: waits that release it, so that Ctrl-C works and other threads run, and threads that the
 * interpreter did not create.
 *
 * A thread that waits for the GIL when the interpreter ends is killed or hangs, in the middle of
 * another library's work. A check beforehand may be outdated when the wait begins. So an atexit
 * hook waits for the threads that wait, and rejects further ones. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "haulpy.h"

#define SLICE_NS     100000000  /* upper bound of the delay of a signal */
#define OTHERS_NS    1000000000 /* of a close by another thread, in threads that get no signals */
#define END_WAITS_MS 1000

void pause_for_others(void) {
  static const struct timespec pause = {0, 1000000};
  WITHOUT_GIL(nanosleep(&pause, NULL));
}

static _Atomic unsigned inside;
static _Atomic bool ending;
static pthread_t ender; /* the thread that ends the interpreter; written before `ending` */

/* A thread that sees `ending` unset was counted before interpreter_ends reads the count. */
static bool may_enter(void) {
  return Py_IsInitialized() && (!atomic_load(&ending) || pthread_equal(pthread_self(), ender));
}

bool foreign_enter(PyGILState_STATE *state) {
  atomic_fetch_add(&inside, 1);
  if (!may_enter()) {
    atomic_fetch_sub(&inside, 1);
    return false;
  }
  *state = PyGILState_Ensure();
  return true;
}

void foreign_leave(PyGILState_STATE state) {
  PyGILState_Release(state);
  atomic_fetch_sub(&inside, 1);
}

/* Bounded, as a thread may itself wait for the library, and a forked child has lost the counted
 * threads. */
static PyObject *interpreter_ends(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  ender = pthread_self();
  atomic_store(&ending, true);
  for (int i = 0; atomic_load(&inside) && i < END_WAITS_MS; i++)
    pause_for_others();
  Py_RETURN_NONE;
}

bool foreign_watch(void) {
  static PyMethodDef hook = {"interpreter_ends", interpreter_ends, METH_NOARGS, NULL};
  atomic_store(&ending, false);
  PyObject *atexit = PyImport_ImportModule("atexit");
  PyObject *function = atexit ? PyCFunction_New(&hook, NULL) : NULL;
  PyObject *registered = function ? PyObject_CallMethod(atexit, "register", "O", function) : NULL;
  bool watched = registered != NULL;
  Py_XDECREF(atexit);
  Py_XDECREF(function);
  Py_XDECREF(registered);
  return watched;
}

static int64_t nanoseconds_of(double seconds) {
  return seconds >= 9e9 ? INT64_MAX : (int64_t)(seconds * 1e9);
}

bool nanoseconds_from(PyObject *given, const char *name, int64_t *nanoseconds) {
  double seconds = PyFloat_AsDouble(given);
  if (seconds == -1 && PyErr_Occurred()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      PyErr_Format(PyExc_TypeError, "invalid %s %R: expected a number of seconds", name, given);
    }
    return false;
  }
  if (isnan(seconds) || seconds < 0) {
    PyErr_Format(PyExc_ValueError, "invalid %s %R: expected seconds, 0 or more", name, given);
    return false;
  }
  *nanoseconds = nanoseconds_of(seconds);
  return true;
}

bool deadline_from(PyObject *timeout, double seconds, haul_deadline *until) {
  int64_t nanoseconds = nanoseconds_of(seconds);
  if (timeout && timeout != Py_None && !nanoseconds_from(timeout, "timeout", &nanoseconds))
    return false;
  *until = nanoseconds == 0 ? HAUL_NO_WAIT : haul_deadline_in(nanoseconds);
  return true;
}

bool deadline_argument(PyObject *args, PyObject *keywords, const char *format, double seconds,
                       haul_deadline *until) {
  static char *names[] = {"timeout", NULL};
  PyObject *timeout = Py_None;
  return PyArg_ParseTupleAndKeywords(args, keywords, format, names, &timeout) &&
         deadline_from(timeout, seconds, until);
}

static bool gets_signals(void) {
  return gettid() == getpid();
}

/* False with an exception. */
static bool check_open(struct object *const *objects, size_t count, const char *call) {
  for (size_t i = 0; i < count; i++) {
    const struct object *object = objects[i], *node = (const struct object *)object->node;
    const struct object *closed = object->closed ? object : node && node->closed ? node : NULL;
    if (!closed)
      continue;
    raise_own(HAUL_ECLOSED, call, closed->noun, "another thread closed it during the call",
              "close it when no other thread waits");
    return false;
  }
  return true;
}

int wait_in_steps(struct object *object, const char *call,
                  int (*step)(void *user, haul_deadline until), void *user, haul_deadline until) {
  return wait_many_in_steps(&object, 1, call, step, user, until);
}

int wait_many_in_steps(struct object *const *objects, size_t count, const char *call,
                       int (*step)(void *user, haul_deadline until), void *user,
                       haul_deadline until) {
  const int64_t longest = gets_signals() ? SLICE_NS : OTHERS_NS;
  for (;;) {
    haul_deadline slice = haul_deadline_in(longest);
    int code;
    if (slice > until)
      slice = until;
    WITHOUT_GIL(code = step(user, slice));
    if (code != STEP_AGAIN)
      return code;
    if (slice == until)
      return HAUL_ETIMEDOUT;
    if (PyErr_CheckSignals() != 0 || !check_open(objects, count, call))
      return WAIT_RAISED;
  }
}

/* `lock` guards `ended` and `abandoned`; the rest belongs to the thread until it has ended. */
struct job_state {
  pthread_mutex_t lock;
  pthread_cond_t end;
  bool ended, abandoned;
  int code;
  struct haul_error error;
};

void *job_new(size_t size, struct object *object, const char *call, int (*run)(struct job *job),
              void (*undo)(struct job *job)) {
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
  job->run = run;
  job->undo = undo;
  job->state = state;
  job->handle = object_enter(object, call);
  if (job->handle) {
    job->used[0] = (struct object *)Py_NewRef((PyObject *)object);
    return job;
  }
  job_free(job);
  return NULL;
}

void job_free(struct job *job) {
  pthread_cond_destroy(&job->state->end);
  pthread_mutex_destroy(&job->state->lock);
  free(job->state);
  free(job);
}

static void job_call(struct job *job) {
  job->state->code = job->run(job);
  if (job->state->code)
    job->state->error = *haul_error_last();
}

static void leave_used(struct job *job) {
  if (job->left) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    job->left(job);
    PyErr_Restore(type, value, trace);
  }
  for (size_t i = 0; i < sizeof job->used / sizeof *job->used; i++)
    if (job->used[i]) {
      object_leave(job->used[i]);
      Py_DECREF((PyObject *)job->used[i]);
    }
}

void job_drop(struct job *job) {
  leave_used(job);
  job_free(job);
}

/* Of an abandoned job. If the interpreter has ended, the process is about to. */
static void job_discard(struct job *job) {
  if (job->state->code == 0 && job->undo)
    job->undo(job);
  PyGILState_STATE state;
  if (!foreign_enter(&state))
    return;
  leave_used(job);
  foreign_leave(state);
  job_free(job);
}

static void *job_thread(void *argument) {
  struct job *job = argument;
  job_call(job);
  pthread_mutex_lock(&job->state->lock);
  bool abandoned = job->state->abandoned;
  job->state->ended = true;
  pthread_cond_signal(&job->state->end);
  pthread_mutex_unlock(&job->state->lock);
  if (abandoned)
    job_discard(job);
  return NULL;
}

/* With all signals blocked: they are for the interpreter's threads. */
static bool job_start(struct job *job) {
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&thread, NULL, job_thread, job) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (started)
    pthread_detach(thread);
  return started;
}

/* Whether it ended within a slice. Without the GIL. */
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

/* False with an exception: a signal handler raised. The job is undone, now or by its thread. */
static bool job_await(struct job *job) {
  for (;;) {
    bool ended;
    WITHOUT_GIL(ended = ended_in_slice(job->state));
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
    job_discard(job);
  return false;
}

int job_run(struct job *job) {
  if (!gets_signals() || !job_start(job)) {
    WITHOUT_GIL(job_call(job));
  } else if (!job_await(job)) {
    return -1;
  }
  leave_used(job);
  if (job->state->code == 0)
    return 0;
  raise_error(&job->state->error);
  job_free(job);
  return -1;
}
