/* SPDX-License-Identifier: MIT
 * The buffer protocol: host memory as numpy.asarray, memoryview and readinto take it; and why there
 * is none, for numpy. */
#include <string.h>

#include "haulpy.h"

/* What a Py_buffer refers to; freed with it. */
struct shape {
  Py_ssize_t shape[HAUL_TENSOR_DIMENSIONS], strides[HAUL_TENSOR_DIMENSIONS];
};

static int refuse(const char *why) {
  PyErr_SetString(PyExc_BufferError, why);
  return -1;
}

static void describe(struct shape *shape, const struct haul_tensor *layout, Py_buffer *view) {
  const Py_ssize_t size = (Py_ssize_t)layout_item_size(layout);
  for (uint32_t i = 0; i < layout->dimensions; i++) {
    shape->shape[i] = (Py_ssize_t)layout->shape[i];
    shape->strides[i] = (Py_ssize_t)layout->strides[i] * size;
  }
  view->itemsize = size;
  view->len = (Py_ssize_t)layout_bytes(layout);
  view->ndim = (int)layout->dimensions;
  view->shape = view->ndim ? shape->shape : NULL;
  view->strides = view->ndim ? shape->strides : NULL;
  view->format = (char *)(uintptr_t)layout_format(layout); /* not written to */
  view->internal = shape;
}

/* Whether the caller, who asked with `flags`, can do with it, and takes away what it did not ask
 * for. */
static int match(Py_buffer *view, int flags) {
  if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'C'))
    return refuse("the tensor is not contiguous in C's order");
  if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'F'))
    return refuse("the tensor is not contiguous in Fortran's order");
  if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'A'))
    return refuse("the tensor is not contiguous");
  if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES) {
    if (!PyBuffer_IsContiguous(view, 'C'))
      return refuse("the tensor has strides, which were not asked for");
    view->strides = NULL;
  }
  if ((flags & PyBUF_ND) != PyBUF_ND)
    view->shape = NULL;
  if ((flags & PyBUF_FORMAT) != PyBUF_FORMAT)
    view->format = NULL;
  return 0;
}

int buffer_fill(PyObject *owner, struct region *region, const struct haul_tensor *layout,
                Py_buffer *view, int flags) {
  char *address;
  view->obj = NULL;
  if (!region_lend(region, "buffer", &address)) {
    /* Whoever asks for a buffer expects this error alone. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_Format(PyExc_BufferError, "%S", value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
  }
  struct shape *shape = PyMem_Calloc(1, sizeof *shape);
  int status = -1;
  if (!shape)
    PyErr_NoMemory();
  else if (haul_region_place(region->base.handle).kind != HAUL_HOST &&
           haul_region_place(region->base.handle).kind != HAUL_DPDK)
    refuse("the CPU cannot touch this memory: copy it to a region of host memory, or take it "
           "through DLPack");
  else if ((flags & PyBUF_WRITABLE) && region->readonly)
    refuse("the memory may only be read");
  else if (!layout_format(layout))
    refuse(
        "a buffer cannot say this type: take the tensor through DLPack, or the region's bytes()");
  else {
    describe(shape, layout, view);
    view->buf = address + layout->offset;
    view->readonly = region->readonly;
    view->suboffsets = NULL;
    status = match(view, flags);
  }
  if (status != 0) {
    PyMem_Free(shape);
    region_returned(region);
    return -1;
  }
  Py_INCREF(owner);
  view->obj = owner;
  return 0;
}

void buffer_done(struct region *region, Py_buffer *view) {
  PyMem_Free(view->internal);
  region_returned(region);
}

PyObject *buffer_array(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"dtype", "copy", NULL};
  PyObject *dtype = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO", names, &dtype, &copy))
    return NULL;
  PyObject *view = PyMemoryView_FromObject(self);
  PyObject *array =
      view ? PyObject_CallMethod(haulpy.data, "array_of", "OOO", view, dtype, copy) : NULL;
  Py_XDECREF(view);
  return array;
}
