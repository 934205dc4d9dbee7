/* SPDX-License-Identifier: MIT
 * Memory of others taken in: buffers, and tensors through DLPack. */
#include "dlpack.h"

#include "haulpy.h"

/* What was taken in; one of the three is there. */
struct kept {
  bool has_buffer;
  Py_buffer buffer;
  struct dl_managed *older;
  struct dl_managed_versioned *versioned;
};

/* Often on the way of an exception, and what is called here may be Python. */
void kept_release(struct kept *kept) {
  PyObject *type, *value, *trace;
  if (!kept)
    return;
  PyErr_Fetch(&type, &value, &trace);
  if (kept->has_buffer)
    PyBuffer_Release(&kept->buffer);
  if (kept->older && kept->older->deleter)
    kept->older->deleter(kept->older);
  if (kept->versioned && kept->versioned->deleter)
    kept->versioned->deleter(kept->versioned);
  PyMem_Free(kept);
  PyErr_Restore(type, value, trace);
}

int kept_traverse(struct kept *kept, visitproc visit, void *arg) {
  if (kept && kept->has_buffer)
    Py_VISIT(kept->buffer.obj);
  return 0;
}

/* Takes `kept`. `first` is the address of the first element; the region reaches from the lowest to
 * the highest one. Where addresses wrap around, the library refuses the range. */
static PyObject *make_region(struct node *node, struct kept *kept, uintptr_t first,
                             struct haul_tensor layout, bool readonly) {
  haul_region *handle = NULL;
  int64_t low, high;
  if (!layout_extent(&layout, &low, &high) || high <= low) {
    PyErr_SetString(PyExc_ValueError, high == low ? "there are no bytes to wrap"
                                                  : "the tensor's size cannot be counted");
    kept_release(kept);
    return NULL;
  }
  haul_node *opened = object_enter(&node->base, "wrap");
  if (!opened) {
    kept_release(kept);
    return NULL;
  }
  int code;
  void *lowest = (void *)(first + (uintptr_t)low);
  layout.offset = (uint64_t)-low;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_region_wrap(opened, lowest, (size_t)(high - low), &handle);
  Py_END_ALLOW_THREADS;
  PyObject *region = NULL;
  if (code) {
    raise_last();
    kept_release(kept);
  } else {
    region = region_object(node, handle, &layout, kept, readonly);
  }
  object_leave(&node->base);
  return region;
}

/* ---- Buffers ---- */

/* Names of fields stand between colons. */
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
    PyErr_SetString(PyExc_ValueError, "the elements are Python objects: addresses, which mean "
                                      "nothing in another process");
  else
    PyErr_Format(PyExc_ValueError,
                 "haul has no type for a buffer's format \"%.100s\": wrap its bytes, in numpy "
                 "array.view(\"uint8\")",
                 format);
  return false;
}

/* Taking what cannot be said for bytes would lose, in silence, the type that the object has. */
static bool layout_of_buffer(const Py_buffer *view, struct haul_tensor *layout) {
  *layout = (struct haul_tensor){0};
  if (!layout_from_format(view->format, view->itemsize, layout))
    return refuse_format(view->format ? view->format : "B");
  bool said =
      view->ndim <= HAUL_TENSOR_DIMENSIONS && !view->suboffsets && (view->ndim == 0 || view->shape);
  layout->dimensions = (uint32_t)view->ndim;
  for (int i = 0; said && i < view->ndim; i++)
    layout->shape[i] = view->shape[i];
  for (int i = 0; said && view->strides && i < view->ndim; i++) {
    said = view->strides[i] % view->itemsize == 0;
    layout->strides[i] = view->strides[i] / view->itemsize;
  }
  if (said && !view->strides) /* as ctypes has it */
    layout_fill_strides(layout);
  if (!said)
    PyErr_Format(PyExc_BufferError,
                 "the buffer has more than %d dimensions, or strides that are no multiples of its "
                 "elements' size",
                 HAUL_TENSOR_DIMENSIONS);
  return said;
}

static PyObject *wrap_buffer(struct node *node, PyObject *object) {
  struct haul_tensor layout;
  struct kept *kept = PyMem_Calloc(1, sizeof *kept);
  if (!kept)
    return PyErr_NoMemory();
  if (PyObject_GetBuffer(object, &kept->buffer, PyBUF_FULL_RO) != 0) {
    PyMem_Free(kept);
    return NULL;
  }
  kept->has_buffer = true;
  if (!layout_of_buffer(&kept->buffer, &layout)) {
    kept_release(kept);
    return NULL;
  }
  return make_region(node, kept, (uintptr_t)kept->buffer.buf, layout, kept->buffer.readonly);
}

/* ---- DLPack ---- */

static bool layout_of_tensor(const struct dl_tensor *tensor, struct haul_tensor *layout) {
  *layout =
      (struct haul_tensor){.type = tensor->type, .bits = tensor->bits, .lanes = tensor->lanes};
  if (tensor->device_type != DL_CPU && tensor->device_type != DL_CUDA &&
      tensor->device_type != DL_CUDA_HOST && tensor->device_type != DL_CUDA_MANAGED) {
    PyErr_Format(PyExc_BufferError, "haul knows no memory of DLPack's device type %d",
                 (int)tensor->device_type);
    return false;
  }
  if (tensor->dimensions < 0 || tensor->dimensions > HAUL_TENSOR_DIMENSIONS ||
      (tensor->dimensions > 0 && !tensor->shape)) {
    PyErr_Format(PyExc_BufferError, "a tensor has at most %d dimensions here",
                 HAUL_TENSOR_DIMENSIONS);
    return false;
  }
  if (tensor->lanes == 0 || tensor->bits == 0 || tensor->bits % 8 != 0) {
    PyErr_SetString(PyExc_BufferError, "elements are no whole bytes");
    return false;
  }
  layout->dimensions = (uint32_t)tensor->dimensions;
  for (int32_t i = 0; i < tensor->dimensions; i++) {
    layout->shape[i] = tensor->shape[i];
    if (tensor->strides)
      layout->strides[i] = tensor->strides[i];
    if (tensor->shape[i] < 0) {
      PyErr_SetString(PyExc_BufferError, "a shape has no negative numbers");
      return false;
    }
  }
  if (!tensor->strides)
    layout_fill_strides(layout);
  return true;
}

/* A capsule that is renamed is ours, and the deleter ours to call. */
static struct kept *take_capsule(PyObject *capsule) {
  bool versioned = PyCapsule_IsValid(capsule, DL_NAME_VERSIONED);
  if (!versioned && !PyCapsule_IsValid(capsule, DL_NAME)) {
    PyErr_SetString(PyExc_BufferError,
                    "__dlpack__ gave no capsule of a tensor, or one that was used already");
    return NULL;
  }
  struct kept *kept = PyMem_Calloc(1, sizeof *kept);
  if (!kept) {
    PyErr_NoMemory();
    return NULL;
  }
  void *managed = PyCapsule_GetPointer(capsule, versioned ? DL_NAME_VERSIONED : DL_NAME);
  if (PyCapsule_SetName(capsule, versioned ? DL_NAME_VERSIONED_USED : DL_NAME_USED) != 0) {
    PyMem_Free(kept);
    return NULL;
  }
  kept->older = versioned ? NULL : managed;
  kept->versioned = versioned ? managed : NULL;
  return kept;
}

static PyObject *wrap_capsule(struct node *node, PyObject *capsule) {
  struct haul_tensor layout;
  struct kept *kept = take_capsule(capsule);
  if (!kept)
    return NULL;
  if (kept->versioned && kept->versioned->major != DL_MAJOR) {
    PyErr_Format(PyExc_BufferError, "a tensor of DLPack %u, and haul knows 1",
                 (unsigned)kept->versioned->major);
    kept_release(kept);
    return NULL;
  }
  const struct dl_tensor *tensor =
      kept->versioned ? &kept->versioned->tensor : &kept->older->tensor;
  if (!layout_of_tensor(tensor, &layout)) {
    kept_release(kept);
    return NULL;
  }
  bool readonly = kept->versioned && kept->versioned->flags & DL_FLAG_READ_ONLY;
  return make_region(node, kept, (uintptr_t)tensor->data + tensor->byte_offset, layout, readonly);
}

/* Without a stream the producer orders its work before the default stream; before a transfer of
 * what kernels are still writing the caller synchronises. */
static PyObject *ask_for_capsule(PyObject *object) {
  PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
  PyObject *none = PyTuple_New(0);
  PyObject *version = Py_BuildValue("{s(ii)}", "max_version", (int)DL_MAJOR, (int)DL_MINOR);
  PyObject *capsule = NULL;
  if (method && none && version) {
    capsule = PyObject_Call(method, none, version);
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { /* from before there were versions */
      PyErr_Clear();
      capsule = PyObject_Call(method, none, NULL);
    }
  }
  Py_XDECREF(method);
  Py_XDECREF(none);
  Py_XDECREF(version);
  return capsule;
}

PyObject *wrap_object(struct node *node, PyObject *object) {
  if (PyObject_CheckBuffer(object)) /* first: says more about what is read-only */
    return wrap_buffer(node, object);
  PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
  if (!method) {
    PyErr_Format(PyExc_TypeError, "%.100R is neither a buffer nor has it __dlpack__", object);
    return NULL;
  }
  Py_DECREF(method);
  PyObject *capsule = ask_for_capsule(object);
  PyObject *region = capsule ? wrap_capsule(node, capsule) : NULL;
  Py_XDECREF(capsule);
  return region;
}
