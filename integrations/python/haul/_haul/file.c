/* SPDX-License-Identifier: MIT
 * File: a file of this host, read into regions. */
#include <haul/file.h>

#include "haulpy.h"

static void release_file(void *handle) {
  haul_file_close(handle);
}

/* It has no node: the region of a read has. */
static PyObject *file_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"file", NULL};
  PyObject *file;
  haul_file *handle;
  int code;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O", names, &file))
    return NULL;
  int descriptor = PyObject_AsFileDescriptor(file);
  if (descriptor < 0)
    return NULL;
  WITHOUT_GIL(code = haul_file_open(descriptor, &handle));
  return code ? raise_last() : (PyObject *)object_new(type, "file", handle, release_file, NULL);
}

struct reading {
  struct job job;
  haul_region *to;
  uint64_t offset, to_offset;
  size_t length;
  unsigned flags;
  struct haul_file_report report;
};

static int run_read(struct job *job) {
  struct reading *reading = (struct reading *)job;
  return haul_file_read(job->handle, reading->offset, reading->to, reading->to_offset,
                        reading->length, reading->flags, &reading->report);
}

/* Sets the range of the region. False with an exception. */
static bool set_range(struct reading *reading, const struct local *local, PyObject *length) {
  reading->to = object_enter(&local->region->base, "read");
  if (!reading->to)
    return false;
  reading->job.used[1] = (struct object *)Py_NewRef((PyObject *)local->region);
  uint64_t all = local_length(local), at = reading->to_offset;
  reading->length = length != Py_None ? PyLong_AsSize_t(length) : at < all ? all - at : 0;
  return !PyErr_Occurred() && local_offset(local, "read", reading->length, &reading->to_offset);
}

static PyObject *file_report(const struct haul_file_report *report) {
  return data_make("FileReport",
                   Py_BuildValue("(KKO&O&O&)", (unsigned long long)report->bytes,
                                 (unsigned long long)report->direct, TEXT(report->path),
                                 TEXT(report->detail), TEXT(report->reason)));
}

static PyObject *file_read(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"region", "offset", "region_offset", "length", "zero_copy", NULL};
  struct local local;
  uint64_t offset = 0, to_offset = 0;
  PyObject *length = Py_None;
  int zero_copy = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|O&$O&Op", names, local_from, &local,
                                   uint64_from, &offset, uint64_from, &to_offset, &length,
                                   &zero_copy) ||
      !region_must_be_writable(local.region, "read"))
    return NULL;
  struct reading *reading = job_new(sizeof *reading, (struct object *)self, "read", run_read, NULL);
  if (!reading)
    return NULL;
  reading->offset = offset;
  reading->to_offset = to_offset;
  reading->flags = zero_copy ? HAUL_REQUIRE_ZERO_COPY : 0;
  reading->report = (struct haul_file_report)HAUL_FILE_REPORT_INIT;
  if (!set_range(reading, &local, length)) {
    job_drop(&reading->job);
    return NULL;
  }
  if (job_run(&reading->job) != 0)
    return NULL;
  PyObject *report = file_report(&reading->report);
  job_free(&reading->job);
  return report;
}

static PyMethodDef methods[] = {
    {"read", METHOD_WITH_KEYWORDS(file_read),
     DOC("read($self, region, offset=0, *, region_offset=0, length=None, zero_copy=False)",
         "Read into memory of any place, by the way with the fewest copies.\n"
         "\n"
         "region         a Region, or a contiguous Tensor\n"
         "offset         in the file, in bytes\n"
         "region_offset  in the region or tensor, in bytes\n"
         "length         in bytes; None: the rest of the region or tensor\n"
         "zero_copy      fail rather than copy a byte in host memory\n"
         "\n"
         "Returns a FileReport. Blocks as read(2) does, until the bytes are in place. Raises\n"
         "OutOfRange (beyond the region, or the file ends earlier), AccessDenied (read-only "
         "memory),\n"
         "NoPath (with zero_copy: the reason), Stale, SystemFailed, and as Region.copy_from. After "
         "an\n"
         "error the bytes of the range are undefined.")},
    OBJECT_CLOSE("Close it. Does not wait."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

static const char text[] =
    DOC("File(file)", "A regular file of this host, to be read into regions.\n"
                      "\n"
                      "file  a descriptor, or an object with fileno(), open for reading; it may be "
                      "closed\n"
                      "      afterwards\n"
                      "\n"
                      "Blocks as open does. Raises Invalid (not a regular file, not readable), "
                      "LimitReached\n"
                      "(descriptors), NotSupported (the library's module for files is missing), "
                      "SystemFailed.");

PyTypeObject *file_type(void) {
  static PyMemberDef members[] = {OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_new, file_new),
                                SLOT(Py_tp_dealloc, object_free),
                                SLOT(Py_tp_traverse, object_traverse),
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {Py_tp_doc, (void *)(uintptr_t)text},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.File", sizeof(struct object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
