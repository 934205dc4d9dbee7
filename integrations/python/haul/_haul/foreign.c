/* SPDX-License-Identifier: MIT
 * Threads that the interpreter does not know, and its end.
 *
 * One that waits for the interpreter's lock when the interpreter ends is ended by it, or hangs, in
 * the middle of another library's work. That the interpreter is there may change between the
 * question and the wait. So those that wait are counted: a hook of atexit's lets no further one in
 * and waits for them. */
#include <pthread.h>
#include <stdatomic.h>

#include "haulpy.h"

#define END_WAITS_MS 1000

static _Atomic unsigned inside;
static _Atomic bool ending;
static pthread_t ender; /* the thread that ends the interpreter; written before `ending` */

/* Whoever sees `ending` unset was counted before interpreter_ends looks at the count. */
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

/* It does not wait for ever: one may have to wait for the library, and a forked child has lost
 * those that were inside. What takes longer meets the interpreter's end. */
static PyObject *interpreter_ends(PyObject *module, PyObject *none) {
  (void)module;
  (void)none;
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
