/* SPDX-License-Identifier: MIT
 * Structures of the library as Python objects: devices, ports, checks, counters, paths, reports. */
#include <string.h>

#include "haulpy.h"

static PyObject *check_object(const struct haul_check *check) {
  static const char *const states[] = {"ok", "limited", "missing"};
  const char *state = check->state >= 0 && check->state <= 2 ? states[check->state] : "missing";
  return data_make("Check",
                   Py_BuildValue("(sO&O&O&O&)", state, TEXT(check->backend), TEXT(check->name),
                                 TEXT(check->text), TEXT(check->remedy)));
}

PyObject *devices_of(void *node) {
  struct haul_device devices[64];
  size_t count = sizeof devices / sizeof *devices, room = count;
  int code;
  WITHOUT_GIL(code = haul_device_list(node, devices, &count));
  PyObject *list = code ? raise_last() : PyList_New(0);
  for (size_t i = 0; list && i < count && i < room; i++) {
    const struct haul_device *device = &devices[i];
    PyObject *values = Py_BuildValue(
        "(O&O&OiKO&O&)", PLACE(device->place), TEXT(device->name), TRUTH(device->emulated),
        device->numa, (unsigned long long)device->memory, TEXT(device->pci), TEXT(device->exports));
    list_append(&list, data_make("Device", values));
  }
  return list;
}

static PyObject *port_object(const struct haul_port *port) {
  return data_make(
      "Port",
      Py_BuildValue("(O&O&OOiiiKO&O&O&O&IIIIIIIOO&)", TEXT(port->path), TEXT(port->name),
                    TRUTH(port->usable), TRUTH(port->emulated), port->numa, port->bridges,
                    port->numa_distance, (unsigned long long)port->bits_per_second, TEXT(port->pci),
                    TEXT(port->interface), TEXT(port->address), TEXT(port->reason), port->mtu,
                    port->gid_index, port->pkey, port->traffic_class, port->service_level,
                    port->timeout, port->retry_count, TRUTH(port->chosen), TEXT(port->choice)));
}

static PyObject *ports_from(haul_node *node, struct haul_place from) {
  struct haul_port ports[64];
  size_t count = sizeof ports / sizeof *ports, room = count;
  int code;
  WITHOUT_GIL(code = haul_port_list(node, from, ports, &count));
  PyObject *list = code ? raise_last() : PyList_New(0);
  for (size_t i = 0; list && i < count && i < room; i++)
    list_append(&list, port_object(&ports[i]));
  return list;
}

PyObject *node_ports(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"place", NULL};
  struct object *node = (struct object *)self;
  const char *text = "host";
  struct haul_place from;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|s", names, &text) || !place_from(text, &from))
    return NULL;
  haul_node *handle = object_enter(node, "ports");
  if (!handle)
    return NULL;
  PyObject *list = ports_from(handle, from);
  object_leave(node);
  return list;
}

PyObject *checks_of(void *node) {
  enum { ROOM = 128 };
  size_t count = ROOM;
  int code;
  struct haul_check *checks = PyMem_Calloc(ROOM, sizeof *checks);
  if (!checks)
    return PyErr_NoMemory();
  WITHOUT_GIL(code = haul_check_list(node, checks, &count));
  PyObject *list = code ? raise_last() : PyList_New(0);
  for (size_t i = 0; list && i < count && i < ROOM; i++)
    list_append(&list, check_object(&checks[i]));
  PyMem_Free(checks);
  return list;
}

/* Called by haul_counter_list, in the calling thread and with the GIL. */
static void add_counter(void *user, const char *name, uint64_t value) {
  PyObject **counters = user;
  PyObject *number = *counters ? PyLong_FromUnsignedLongLong(value) : NULL;
  if (!number || PyDict_SetItemString(*counters, name, number) != 0)
    Py_CLEAR(*counters);
  Py_XDECREF(number);
}

PyObject *counters_of(void *node) {
  PyObject *counters = PyDict_New();
  if (counters && haul_counter_list(node, add_counter, &counters)) {
    raise_last();
    Py_CLEAR(counters);
  }
  return counters;
}

static PyObject *path_object(const struct haul_path *path) {
  return data_make("Path",
                   Py_BuildValue("(O&OOdIIIOO&O&dOO&)", TEXT(path->name), TRUTH(path->open),
                                 TRUTH(path->chosen), path->cost_ns, path->copies_cpu,
                                 path->copies_kernel, path->copies_dma, TRUTH(path->zero_copy),
                                 TEXT(path->detail), TEXT(path->reason), path->estimate_ns,
                                 TRUTH(path->measured), TEXT(path->send)));
}

PyObject *report_paths(const struct haul_path *paths, size_t count) {
  PyObject *tuple = PyTuple_New((Py_ssize_t)count);
  for (size_t i = 0; tuple && i < count; i++) {
    PyObject *path = path_object(&paths[i]);
    if (!path || PyTuple_SetItem(tuple, (Py_ssize_t)i, path) != 0)
      Py_CLEAR(tuple);
  }
  return tuple;
}

const char *operation_name(int operation) {
  switch (operation) {
  case HAUL_OP_WRITE:
    return "write";
  case HAUL_OP_READ:
    return "read";
  case HAUL_OP_FETCH_ADD:
    return "fetch_add";
  default:
    return "compare_swap";
  }
}

static PyObject *paths_item(void *given) {
  const struct haul_report *report = given;
  return report_paths(report->paths, report->path_count);
}

PyObject *report_object(const struct haul_report *report) {
  char text[4096];
  haul_report_format(report, text, sizeof text);
  size_t length = strlen(text);
  if (length && text[length - 1] == '\n')
    text[length - 1] = 0; /* print() adds one */
  return data_make(
      "Report",
      Py_BuildValue("(isKKKIOLLLLO&O&O&O&O&O&)", report->status, operation_name(report->operation),
                    (unsigned long long)report->bytes, (unsigned long long)report->pieces,
                    (unsigned long long)report->slices, report->retries, TRUTH(report->checksum),
                    (long long)report->queued_ns, (long long)report->wire_ns,
                    (long long)report->setup_ns, (long long)report->cpu_ns, paths_item,
                    (void *)(uintptr_t)report, PLACE(report->from), PLACE(report->to),
                    TEXT(report->peer), TEXT(report->name), TEXT(text)));
}
