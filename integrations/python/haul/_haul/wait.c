/* SPDX-License-Identifier: MIT
 * Waits for many transfers, in one call of the library. */
#include "haulpy.h"

struct waiting {
  PyObject *transfers; /* a tuple */
  struct object **objects;
  haul_transfer **handles;
  size_t count, entered;
  bool any;
  size_t index; /* `count`: of no transfer */
  /* Of the last wait: a test of a transfer that failed replaces the thread's. */
  struct haul_error error;
};

static int wait_until(struct waiting *waiting, haul_deadline until) {
  waiting->index = waiting->count;
  int code = waiting->any
                 ? haul_transfer_wait_any(waiting->handles, waiting->count, until, &waiting->index)
                 : haul_transfer_wait_all(waiting->handles, waiting->count, until, &waiting->index);
  if (code)
    waiting->error = *haul_error_last();
  return code;
}

static bool is_over(const struct waiting *waiting) {
  for (size_t i = 0; i < waiting->count; i++)
    if ((haul_transfer_test(waiting->handles[i]) != STEP_AGAIN) == waiting->any)
      return waiting->any;
  return !waiting->any;
}

/* HAUL_ETIMEDOUT may also be a transfer's own, and it may be over since then. */
static int step(void *user, haul_deadline until) {
  struct waiting *waiting = user;
  int code = wait_until(waiting, until);
  if (code != HAUL_ETIMEDOUT)
    return code;
  return is_over(waiting) ? wait_until(waiting, HAUL_NO_WAIT) : STEP_AGAIN;
}

/* Any: whether a transfer has ended, successfully or not. */
static int step_any(void *user, haul_deadline until) {
  const struct waiting *waiting = user;
  int code = step(user, until);
  return code != STEP_AGAIN && waiting->index < waiting->count ? 0 : code;
}

static bool enter_all(struct waiting *waiting, const char *call) {
  for (; waiting->entered < waiting->count; waiting->entered++) {
    PyObject *item = PyTuple_GetItem(waiting->transfers, (Py_ssize_t)waiting->entered);
    if (Py_TYPE(item) != haulpy.transfer) {
      PyErr_Format(PyExc_TypeError, "invalid transfers: expected a Transfer, not %R",
                   Py_TYPE(item));
      return false;
    }
    struct object *object = (struct object *)item;
    waiting->objects[waiting->entered] = object;
    waiting->handles[waiting->entered] = object_enter(object, call);
    if (!waiting->handles[waiting->entered])
      return false;
  }
  return true;
}

static void leave_all(struct waiting *waiting) {
  while (waiting->entered > 0)
    object_leave(waiting->objects[--waiting->entered]);
}

/* With memory for the arrays. False with an exception. */
static bool run(struct waiting *waiting, PyObject *timeout, const char *call) {
  const struct node *node = NULL;
  haul_deadline until;
  bool entered = enter_all(waiting, call);
  if (waiting->count && entered)
    node = waiting->objects[0]->node;
  if (entered && deadline_from(timeout, node ? node->timeout : 0, &until)) {
    int code = wait_many_in_steps(waiting->objects, waiting->count, call,
                                  waiting->any ? step_any : step, waiting, until);
    if (code < 0)
      raise_error(&waiting->error);
  }
  leave_all(waiting);
  return !PyErr_Occurred();
}

static PyObject *wait_for(PyObject *args, PyObject *keywords, bool any, const char *call) {
  static char *names[] = {"transfers", "timeout", NULL};
  PyObject *given, *timeout = Py_None, *result = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$O", names, &given, &timeout))
    return NULL;
  struct waiting waiting = {.transfers = PySequence_Tuple(given), .any = any};
  if (!waiting.transfers)
    return NULL;
  waiting.count = (size_t)PyTuple_Size(waiting.transfers);
  waiting.objects = PyMem_Calloc(waiting.count + 1, sizeof *waiting.objects);
  waiting.handles = PyMem_Calloc(waiting.count + 1, sizeof *waiting.handles);
  if (!waiting.objects || !waiting.handles)
    PyErr_NoMemory();
  else if (run(&waiting, timeout, call))
    result = any ? (PyObject *)waiting.objects[waiting.index] : Py_None;
  Py_XINCREF(result);
  PyMem_Free(waiting.objects);
  PyMem_Free(waiting.handles);
  Py_DECREF(waiting.transfers);
  return result;
}

PyObject *wait_all(PyObject *module, PyObject *args, PyObject *keywords) {
  (void)module;
  return wait_for(args, keywords, false, "wait_all");
}

PyObject *wait_any(PyObject *module, PyObject *args, PyObject *keywords) {
  (void)module;
  return wait_for(args, keywords, true, "wait_any");
}
