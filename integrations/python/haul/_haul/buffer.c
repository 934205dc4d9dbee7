/* SPDX-License-Identifier: MIT
 * The buffer protocol: regions as buffers for numpy.asarray, memoryview and readinto, and wrapped
 * buffers. */

#include "haulpy.h"

/* Owned by a Py_buffer. */
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

/* Checks the view against the caller's `flags`, and removes the fields that they do not request. */
static int match(Py_buffer *view, int flags) {
  if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'C'))
    return refuse("the tensor is not contiguous in C's order");
  if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'F'))
    return refuse("the tensor is not contiguous in Fortran's order");
  if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'A'))
    return refuse("the tensor is not contiguous");
  if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES) {
    if (!PyBuffer_IsContiguous(view, 'C'))
      return refuse("the tensor has strides, and the buffer was requested without them");
    view->strides = NULL;
  }
  if ((flags & PyBUF_ND) != PyBUF_ND)
    view->shape = NULL;
  if ((flags & PyBUF_FORMAT) != PyBUF_FORMAT)
    view->format = NULL;
  return 0;
}

int buffer_get(PyObject *self, Py_buffer *view, int flags) {
  struct region *region = region_of(self);
  const struct haul_tensor *layout = layout_of(self);
  char *address;
  view->obj = NULL;
  if (!region_begin_export(region, "buffer", &address)) {
    /* Consumers of buffers expect only BufferError. */
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
    refuse("the CPU cannot access this memory: copy it to a region of host memory, or use DLPack");
  else if ((flags & PyBUF_WRITABLE) && region->readonly)
    refuse("the memory is read-only");
  else if (!layout_format(layout))
    refuse("a buffer cannot have this type: use DLPack, or the region's bytes()");
  else {
    describe(shape, layout, view);
    view->buf = address + layout->offset;
    view->readonly = region->readonly;
    view->suboffsets = NULL;
    status = match(view, flags);
  }
  if (status != 0) {
    PyMem_Free(shape);
    object_end_export(&region->base);
    return -1;
  }
  view->obj = Py_NewRef(self);
  return 0;
}

void buffer_release(PyObject *self, Py_buffer *view) {
  PyMem_Free(view->internal);
  object_end_export(&region_of(self)->base);
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

/* Saves the exception, as it often runs during one and the deleter may be Python code. */
void wrapped_release(struct wrapped *wrapped) {
  PyObject *type, *value, *trace;
  if (!wrapped)
    return;
  PyErr_Fetch(&type, &value, &trace);
  if (wrapped->buffer.obj)
    PyBuffer_Release(&wrapped->buffer);
  if (wrapped->delete)
    wrapped->delete (wrapped->managed);
  PyMem_Free(wrapped);
  PyErr_Restore(type, value, trace);
}

PyObject *wrap_memory(struct node *node, struct wrapped *wrapped, uintptr_t first,
                      struct haul_tensor layout, bool readonly) {
  haul_region *handle = NULL;
  int64_t low, high;
  bool fits = layout_extent(&layout, &low, &high);
  if (fits && !node) {
    PyObject *alone = layout_object(&layout);
    wrapped_release(wrapped);
    return alone;
  }
  if (!fits || high <= low) {
    PyErr_SetString(PyExc_ValueError, high == low ? "there are no bytes to wrap"
                                                  : "the size of the tensor overflows 63 bits");
    wrapped_release(wrapped);
    return NULL;
  }
  haul_node *opened = object_enter(&node->base, "wrap");
  if (!opened) {
    wrapped_release(wrapped);
    return NULL;
  }
  int code;
  void *lowest = (void *)(first + (uintptr_t)low);
  layout.offset = (uint64_t)-low;
  WITHOUT_GIL(code = haul_region_wrap(opened, lowest, (size_t)(high - low), &handle));
  PyObject *region = NULL;
  if (code) {
    raise_last();
    wrapped_release(wrapped);
  } else {
    region = region_object(node, handle, &layout, wrapped, readonly);
  }
  object_leave(&node->base);
  return region;
}

/* Field names are between colons. */
static bool has_objects(const char *format) {
  bool named = false;
  for (; *format; format++)
    if (*format == ':')
      named = !named;
    else if (*format == 'O' && !named)
      return true;
  return false;
}

static bool refuse_format(const char *format) {
  if (has_objects(format))
    PyErr_SetString(PyExc_ValueError, "the elements are Python objects, which are addresses "
                                      "within this process");
  else
    PyErr_Format(PyExc_ValueError,
                 "haul has no type for the buffer format \"%.100s\": wrap its bytes, with numpy "
                 "array.view(\"uint8\")",
                 format);
  return false;
}

/* Refuses unknown formats, as wrapping their bytes would silently lose the type. */
static bool layout_of_buffer(const Py_buffer *view, struct haul_tensor *layout) {
  *layout = (struct haul_tensor){0};
  if (!layout_from_format(view->format, view->itemsize, layout))
    return refuse_format(view->format ? view->format : "B");
  bool fits =
      view->ndim <= HAUL_TENSOR_DIMENSIONS && !view->suboffsets && (view->ndim == 0 || view->shape);
  layout->dimensions = (uint32_t)view->ndim;
  for (int i = 0; fits && i < view->ndim; i++)
    layout->shape[i] = view->shape[i];
  for (int i = 0; fits && view->strides && i < view->ndim; i++) {
    fits = view->strides[i] % view->itemsize == 0;
    layout->strides[i] = view->strides[i] / view->itemsize;
  }
  if (fits && !view->strides) /* as ctypes has it */
    layout_fill_strides(layout);
  if (!fits)
    PyErr_Format(PyExc_BufferError,
                 "the buffer has more than %d dimensions, or strides that are not multiples of the "
                 "element size",
                 HAUL_TENSOR_DIMENSIONS);
  return fits;
}

static PyObject *wrap_buffer(struct node *node, PyObject *object) {
  struct haul_tensor layout;
  struct wrapped *wrapped = PyMem_Calloc(1, sizeof *wrapped);
  if (!wrapped)
    return PyErr_NoMemory();
  if (PyObject_GetBuffer(object, &wrapped->buffer, PyBUF_FULL_RO) != 0) {
    PyMem_Free(wrapped);
    return NULL;
  }
  if (!layout_of_buffer(&wrapped->buffer, &layout)) {
    wrapped_release(wrapped);
    return NULL;
  }
  return wrap_memory(node, wrapped, (uintptr_t)wrapped->buffer.buf, layout,
                     wrapped->buffer.readonly);
}

/* A buffer is preferred, as it tells read-only memory where older DLPack cannot. */
PyObject *wrap_object(PyObject *self, PyObject *object) {
  struct node *node = (struct node *)self;
  return PyObject_CheckBuffer(object) ? wrap_buffer(node, object) : dlpack_wrap(node, object);
}

PyObject *wrap_layout(PyObject *module, PyObject *object) {
  (void)module;
  return wrap_object(NULL, object);
}
