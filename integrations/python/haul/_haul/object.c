/* SPDX-License-Identifier: MIT
 * Handles of the library, and when each is released.
 *
 * In C no call may use a handle during its release. In Python another thread may close an object
 * during a call on it. So calls are counted, and the last one that leaves a closed object releases
 * its handle. Buffers and tensors of its memory count like calls. */
#include <unistd.h>

#include "haulpy.h"

#define CLOSE_WAITS_MS 1000

static void leave(struct object *object);
static void end_export(struct object *object);

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
  raise_own(HAUL_ECLOSED, call, object->noun, text, "create a new one");
  return false;
}

static bool enter(struct object *object, const char *call) {
  if (object->closed)
    return raise_closed(object, call);
  object->users++;
  return true;
}

/* The close of a node waits for copies that peers make in wrapped memory; the release of a region
 * during that close would not. The wait ends with the interpreter, whose end stops the thread that
 * would clear `releasing`. */
static void await_release(const struct object *node) {
  while (node->releasing == getpid() && Py_IsInitialized())
    pause_for_others();
}

/* A release may block, so it counts as a call of the object and of its node: until it has returned
 * the handle is in use. */
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
  WITHOUT_GIL(object->release(handle));
  object->handle = NULL;
  object->releasing = 0;
  object->users--;
  if (node)
    leave(node);
  if (node && object->holds_node) {
    object->holds_node = false;
    object->node->served = false;
    end_export(node);
  }
}

static void release_unused(struct object *object) {
  if (object->closed && object->users == 0 && object->exports == 0)
    release(object);
}

static void leave(struct object *object) {
  object->users--;
  release_unused(object);
}

/* Called last, as `released` may run any code. */
static void notify_released(struct object *object) {
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
  notify_released(object);
}

void object_close(struct object *object) {
  object->closed = true;
  for (int i = 0; object->users && i < CLOSE_WAITS_MS; i++)
    pause_for_others();
  release_unused(object);
  notify_released(object);
}

static void end_export(struct object *object) {
  object->exports--;
  release_unused(object);
}

void object_begin_export(struct object *object) {
  object->exports++;
  object->node->base.exports++;
}

void object_end_export(struct object *object) {
  end_export(object);
  end_export(&object->node->base);
  notify_released(object);
}

void object_hold_node(struct object *object) {
  object->holds_node = true;
  object->node->base.exports++;
}

int object_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT((PyObject *)((struct object *)self)->node);
  return 0;
}

void object_free(PyObject *self) {
  struct object *object = (struct object *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(object);
  object->closed = true;
  release(object);
  Py_XDECREF((PyObject *)object->node);
  PyObject_GC_Del(object);
  Py_DECREF((PyObject *)type);
}

PyObject *object_get(PyObject *self, void *closure) {
  const struct getter *getter = closure;
  struct object *object = (struct object *)self;
  void *handle = object_enter(object, getter->name);
  if (!handle)
    return NULL;
  PyObject *value = getter->get(handle);
  object_leave(object);
  return value;
}

PyObject *object_method_close(PyObject *self, PyObject *none) {
  struct object *object = (struct object *)self;
  (void)none;
  if (object->exports) {
    PyErr_Format(PyExc_BufferError,
                 "%u buffers, tensors, caches or versions use the %s: release them first",
                 object->exports, object->noun);
    return NULL;
  }
  object_close(object);
  Py_RETURN_NONE;
}

PyObject *object_method_enter(PyObject *self, PyObject *none) {
  struct object *object = (struct object *)self;
  (void)none;
  if (object->closed) {
    raise_closed(object, "__enter__");
    return NULL;
  }
  return Py_NewRef(self);
}

/* After an exception the traceback keeps the frame and its arrays alive. A BufferError of close()
 * would replace that exception. */
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
