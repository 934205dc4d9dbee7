/* SPDX-License-Identifier: MIT
 * Handles of the library's, and who may use them when.
 *
 * In C a handle must not be used while it is released. Here another thread can close an object
 * while a call on it is under way; so calls are counted, and the last one that leaves a closed
 * object releases its handle. Who holds a buffer or a tensor of its memory counts alike. */
#include <time.h>
#include <unistd.h>

#include "haulpy.h"

#define CLOSE_WAITS_MS 1000

static void leave(struct object *object);

struct object *object_new(PyTypeObject *type, const char *noun, void *handle,
                          void (*release)(void *), struct node *node) {
  struct object *object = (struct object *)PyType_GenericAlloc(type, 0);
  if (!object) {
    if (handle)
      release(handle);
    return NULL;
  }
  object->noun = noun;
  object->handle = handle;
  object->identity = (uintptr_t)handle;
  object->release = release;
  object->node = node;
  Py_XINCREF((PyObject *)node);
  return object;
}

static bool raise_closed(const struct object *object, const char *call) {
  char text[64];
  PyOS_snprintf(text, sizeof text, "the %s is closed", object->noun);
  raise_own(HAUL_ECLOSED, call, object->noun, text, "open or make a new one");
  return false;
}

static bool enter(struct object *object, const char *call) {
  if (object->closed)
    return raise_closed(object, call);
  object->users++;
  return true;
}

void pause_for_others(void) {
  static const struct timespec pause = {0, 1000000};
  Py_BEGIN_ALLOW_THREADS;
  nanosleep(&pause, NULL);
  Py_END_ALLOW_THREADS;
}

/* A node that is being closed waits for copies that peers make on wrapped memory. A region that is
 * released meanwhile would not. Threads that the interpreter's end leaves behind tell nothing. */
static void await_release(const struct object *node) {
  while (node->releasing == getpid() && Py_IsInitialized())
    pause_for_others();
}

/* It is a call like others, of the object and of its node, and may take a while: until it has
 * returned nobody takes the handle for released. */
static void release(struct object *object) {
  struct object *node = (struct object *)object->node;
  void *handle = object->handle;
  if (!handle)
    return;
  object->users++;
  object->releasing = getpid();
  if (node) {
    node->users++;
    await_release(node);
  }
  Py_BEGIN_ALLOW_THREADS;
  object->release(handle);
  Py_END_ALLOW_THREADS;
  object->handle = NULL;
  object->releasing = 0;
  object->users--;
  if (node)
    leave(node);
}

static void release_unused(struct object *object) {
  if (object->closed && object->users == 0 && object->exports == 0)
    release(object);
}

static void leave(struct object *object) {
  object->users--;
  release_unused(object);
}

/* Last, since it may do anything. */
static void tell_released(struct object *object) {
  if (!object->handle && object->released)
    object->released(object);
}

void *object_enter(struct object *object, const char *call) {
  struct object *node = (struct object *)object->node;
  if (node && !enter(node, call))
    return NULL;
  if (!enter(object, call)) {
    if (node)
      leave(node);
    return NULL;
  }
  return object->handle;
}

void object_leave(struct object *object) {
  leave(object);
  if (object->node)
    leave(&object->node->base);
  tell_released(object);
}

void object_close(struct object *object) {
  object->closed = true;
  for (int i = 0; object->users && i < CLOSE_WAITS_MS; i++)
    pause_for_others();
  release_unused(object);
  tell_released(object);
}

static void returned(struct object *object) {
  object->exports--;
  release_unused(object);
}

void object_lend(struct object *object) {
  object->exports++;
  object->node->base.exports++;
}

void object_returned(struct object *object) {
  returned(object);
  returned(&object->node->base);
  tell_released(object);
}

int object_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT((PyObject *)((struct object *)self)->node);
  return 0;
}

void object_free(struct object *object) {
  PyTypeObject *type = Py_TYPE((PyObject *)object);
  PyObject_GC_UnTrack(object);
  object->closed = true;
  release(object);
  Py_XDECREF((PyObject *)object->node);
  PyObject_GC_Del(object);
  Py_DECREF((PyObject *)type);
}

PyObject *object_method_close(PyObject *self, PyObject *none) {
  (void)none;
  object_close((struct object *)self);
  Py_RETURN_NONE;
}

PyObject *object_method_enter(PyObject *self, PyObject *none) {
  struct object *object = (struct object *)self;
  (void)none;
  if (object->closed) {
    raise_closed(object, "__enter__");
    return NULL;
  }
  Py_INCREF(self);
  return self;
}

/* The frame that failed is still there, and so are its arrays: a close that refused would put its
 * own exception in the place of the one that matters. */
PyObject *object_method_exit(PyObject *self, PyObject *args) {
  struct object *object = (struct object *)self;
  PyObject *kind, *error, *trace;
  if (!PyArg_ParseTuple(args, "OOO", &kind, &error, &trace))
    return NULL;
  if (kind == Py_None || object->exports == 0)
    return PyObject_CallMethod(self, "close", NULL);
  object->closed = true;
  Py_RETURN_NONE;
}

PyObject *object_get_closed(PyObject *self, void *none) {
  (void)none;
  return PyBool_FromLong(((struct object *)self)->closed);
}
