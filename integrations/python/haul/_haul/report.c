/* SPDX-License-Identifier: MIT
 * Reports and paths as Python has them. */
#include <string.h>

#include "haulpy.h"

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

static const char *operation_name(int operation) {
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
    text[length - 1] = 0; /* print() has its own */
  return data_make(
      "Report",
      Py_BuildValue("(isKKKIOLLLO&O&O&O&O&O&)", report->status, operation_name(report->operation),
                    (unsigned long long)report->bytes, (unsigned long long)report->pieces,
                    (unsigned long long)report->slices, report->retries, TRUTH(report->checksum),
                    (long long)report->queued_ns, (long long)report->wire_ns,
                    (long long)report->setup_ns, paths_item, (void *)(uintptr_t)report,
                    PLACE(report->from), PLACE(report->to), TEXT(report->peer), TEXT(report->name),
                    TEXT(text)));
}
