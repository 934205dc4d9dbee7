/* SPDX-License-Identifier: MIT
 * What a node knows about this host: devices, checks, counters. */
#include "haulpy.h"

static PyObject *device_object(const struct haul_device *device) {
  return data_make("Device", Py_BuildValue("(O&O&OiKO&O&)", PLACE(device->place),
                                           TEXT(device->name), TRUTH(device->emulated),
                                           device->numa, (unsigned long long)device->memory,
                                           TEXT(device->pci), TEXT(device->exports)));
}

static PyObject *check_object(const struct haul_check *check) {
  static const char *const states[] = {"ok", "limited", "missing"};
  const char *state = check->state >= 0 && check->state <= 2 ? states[check->state] : "missing";
  return data_make("Check",
                   Py_BuildValue("(sO&O&O&O&)", state, TEXT(check->backend), TEXT(check->name),
                                 TEXT(check->text), TEXT(check->remedy)));
}

static bool append(PyObject **list, PyObject *item) {
  if (!item || PyList_Append(*list, item) != 0)
    Py_CLEAR(*list);
  Py_XDECREF(item);
  return *list;
}

PyObject *info_devices(PyObject *self, PyObject *none) {
  struct haul_device devices[64];
  size_t count = sizeof devices / sizeof *devices, room = count;
  struct object *node = (struct object *)self;
  int code;
  (void)none;
  haul_node *handle = object_enter(node, "devices");
  if (!handle)
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_device_list(handle, devices, &count);
  Py_END_ALLOW_THREADS;
  PyObject *list = code ? raise_last() : PyList_New(0);
  object_leave(node);
  for (size_t i = 0; list && i < count && i < room; i++)
    append(&list, device_object(&devices[i]));
  return list;
}

PyObject *info_checks(PyObject *self, PyObject *none) {
  enum { ROOM = 128 };
  struct object *node = (struct object *)self;
  size_t count = ROOM;
  int code;
  (void)none;
  struct haul_check *checks = PyMem_Calloc(ROOM, sizeof *checks);
  if (!checks)
    return PyErr_NoMemory();
  haul_node *handle = object_enter(node, "checks");
  if (!handle) {
    PyMem_Free(checks);
    return NULL;
  }
  Py_BEGIN_ALLOW_THREADS;
  code = haul_check_list(handle, checks, &count);
  Py_END_ALLOW_THREADS;
  PyObject *list = code ? raise_last() : PyList_New(0);
  object_leave(node);
  for (size_t i = 0; list && i < count && i < ROOM; i++)
    append(&list, check_object(&checks[i]));
  PyMem_Free(checks);
  return list;
}

/* Called with the interpreter's lock, in the thread that asked. */
static void add_counter(void *user, const char *name, uint64_t value) {
  PyObject **counters = user;
  PyObject *number = *counters ? PyLong_FromUnsignedLongLong(value) : NULL;
  if (!number || PyDict_SetItemString(*counters, name, number) != 0)
    Py_CLEAR(*counters);
  Py_XDECREF(number);
}

PyObject *info_counters(PyObject *self, PyObject *none) {
  struct object *node = (struct object *)self;
  (void)none;
  haul_node *handle = object_enter(node, "counters");
  if (!handle)
    return NULL;
  PyObject *counters = PyDict_New();
  int code = counters ? haul_counter_list(handle, add_counter, &counters) : 0;
  if (code) {
    raise_last();
    Py_CLEAR(counters);
  }
  object_leave(node);
  return counters;
}
