/* SPDX-License-Identifier: MIT
 * DLPack, both ways: regions as tensors for others, and wrapped tensors. */
#include <stdlib.h>

#include "dlpack.h"
#include "haulpy.h"

#define DL_NAME                "dltensor"
#define DL_NAME_USED           "used_dltensor"
#define DL_NAME_VERSIONED      "dltensor_versioned"
#define DL_NAME_VERSIONED_USED "used_dltensor_versioned"

/* Owned by a capsule or by its consumer. */
struct export {
  struct region *region; /* a reference */
  union {
    struct dl_managed older;
    struct dl_managed_versioned versioned;
  } managed;
  int64_t shape[HAUL_TENSOR_DIMENSIONS], strides[HAUL_TENSOR_DIMENSIONS];
};

/* Consumers call this from any thread, with the GIL or without, and even after the interpreter's
 * end: then the process ends soon, and the region with it. */
static void export_free(struct export *export) {
  PyGILState_STATE state;
  if (!foreign_enter(&state))
    return;
  object_end_export(&export->region->base);
  Py_DECREF((PyObject *)export->region);
  free(export);
  foreign_leave(state);
}

static void delete_older(struct dl_managed *managed) {
  export_free(managed->context);
}

static void delete_versioned(struct dl_managed_versioned *managed) {
  export_free(managed->context);
}

/* A capsule without a consumer still has its first name. */
static void drop(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, DL_NAME))
    delete_older(PyCapsule_GetPointer(capsule, DL_NAME));
  else if (PyCapsule_IsValid(capsule, DL_NAME_VERSIONED))
    delete_versioned(PyCapsule_GetPointer(capsule, DL_NAME_VERSIONED));
}

/* False for places without a DLPack device type that covers haul's addresses. */
static bool device_of(struct haul_place place, int32_t *type, int32_t *number) {
  *type = place.kind == HAUL_CUDA ? DL_CUDA : DL_CPU;
  *number = place.device;
  return place.kind == HAUL_HOST || place.kind == HAUL_DPDK || place.kind == HAUL_CUDA;
}

static void *refuse(const char *why) {
  PyErr_SetString(PyExc_BufferError, why);
  return NULL;
}

static struct export *export_new(struct region *region, const struct haul_tensor *layout,
                                 struct dl_tensor *tensor) {
  char *address;
  struct export *export = calloc(1, sizeof *export);
  if (!export) {
    PyErr_NoMemory();
    return NULL;
  }
  if (!region_begin_export(region, "__dlpack__", &address)) {
    free(export);
    return NULL;
  }
  Py_INCREF((PyObject *)region);
  export->region = region;
  for (uint32_t i = 0; i < layout->dimensions; i++) {
    export->shape[i] = layout->shape[i];
    export->strides[i] = layout->strides[i];
  }
  /* byte_offset stays 0: some consumers ignore it. */
  *tensor = (struct dl_tensor){.data = address + layout->offset,
                               .dimensions = (int32_t)layout->dimensions,
                               .type = layout->type,
                               .bits = layout->bits,
                               .lanes = layout->lanes,
                               .shape = export->shape,
                               .strides = export->strides};
  device_of(haul_region_place(region->base.handle), &tensor->device_type, &tensor->device_id);
  return export;
}

static PyObject *capsule_new(struct region *region, const struct haul_tensor *layout,
                             bool versioned) {
  struct dl_tensor tensor;
  struct export *export = export_new(region, layout, &tensor);
  if (!export)
    return NULL;
  if (versioned)
    export->managed.versioned =
        (struct dl_managed_versioned){.major = DL_MAJOR,
                                      .minor = DL_MINOR,
                                      .context = export,
                                      .deleter = delete_versioned,
                                      .flags = region->readonly ? DL_FLAG_READ_ONLY : 0,
                                      .tensor = tensor};
  else
    export->managed.older =
        (struct dl_managed){.tensor = tensor, .context = export, .deleter = delete_older};
  PyObject *capsule =
      PyCapsule_New(&export->managed, versioned ? DL_NAME_VERSIONED : DL_NAME, drop);
  if (!capsule)
    export_free(export);
  return capsule;
}

/* None: an unversioned capsule. */
static bool major_of(PyObject *version, long *major) {
  int minor;
  *major = 0;
  if (version == Py_None)
    return true;
  if (PyTuple_Check(version) && PyArg_ParseTuple(version, "li", major, &minor))
    return true;
  if (!PyErr_Occurred())
    PyErr_SetString(PyExc_TypeError,
                    "invalid max_version: expected a tuple of two numbers, or None");
  return false;
}

static bool is_there(PyObject *device, struct haul_place place) {
  int32_t type, number;
  int wanted_type, wanted_number;
  device_of(place, &type, &number);
  if (device == Py_None)
    return true;
  if (!PyTuple_Check(device)) {
    PyErr_SetString(PyExc_TypeError, "invalid dl_device: expected a tuple of two numbers, or None");
    return false;
  }
  if (!PyArg_ParseTuple(device, "ii", &wanted_type, &wanted_number))
    return false;
  if (wanted_type != type || wanted_number != number) {
    refuse("the tensor is on another device, and __dlpack__ does not copy");
    return false;
  }
  return true;
}

static bool place_now(struct region *region, struct haul_place *place) {
  haul_region *handle = object_enter(&region->base, "__dlpack__");
  if (!handle)
    return false;
  *place = haul_region_place(handle);
  object_leave(&region->base);
  int32_t type, number;
  if (device_of(*place, &type, &number))
    return true;
  char text[32];
  PyErr_Format(PyExc_BufferError,
               "DLPack has no device for %s: copy the region to host memory first",
               haul_place_format(*place, text, sizeof text));
  return false;
}

static void *refuse_older(const struct region *region) {
  PyErr_Format(PyExc_BufferError,
               "the memory is read-only, which DLPack before 1.0 cannot express: %s, or copy it to "
               "another region (copy_from)",
               region_writable_hint(region));
  return NULL;
}

/* The stream does not matter: after a transfer its bytes are visible to the whole device. In the
 * other direction the caller synchronizes before haul reads.
 *
 * An unversioned capsule cannot express read-only memory, and a write there raises SIGSEGV. So
 * there is no such capsule. */
PyObject *dlpack_capsule(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
  PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
  struct region *region = region_of(self);
  struct haul_place place;
  long major;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO", names, &stream, &version, &device,
                                   &copy) ||
      !major_of(version, &major) || !place_now(region, &place) || !is_there(device, place))
    return NULL;
  if (stream != Py_None && !PyLong_Check(stream)) {
    PyErr_SetString(PyExc_TypeError, "invalid stream: expected an integer or None");
    return NULL;
  }
  int copies = PyObject_IsTrue(copy);
  if (copies < 0)
    return NULL;
  if (copies)
    return refuse("__dlpack__ does not copy: copy the tensor instead");
  if (major < 1 && region->readonly)
    return refuse_older(region);
  return capsule_new(region, layout_of(self), major >= 1);
}

PyObject *dlpack_device(PyObject *self, PyObject *none) {
  struct haul_place place;
  int32_t type, number;
  (void)none;
  if (!place_now(region_of(self), &place))
    return NULL;
  device_of(place, &type, &number);
  return Py_BuildValue("(ii)", (int)type, (int)number);
}

static bool layout_of_tensor(const struct dl_tensor *tensor, struct haul_tensor *layout) {
  *layout =
      (struct haul_tensor){.type = tensor->type, .bits = tensor->bits, .lanes = tensor->lanes};
  if (tensor->device_type != DL_CPU && tensor->device_type != DL_CUDA &&
      tensor->device_type != DL_CUDA_HOST && tensor->device_type != DL_CUDA_MANAGED) {
    PyErr_Format(PyExc_BufferError, "haul does not support DLPack device type %d",
                 (int)tensor->device_type);
    return false;
  }
  if (tensor->dimensions < 0 || tensor->dimensions > HAUL_TENSOR_DIMENSIONS ||
      (tensor->dimensions > 0 && !tensor->shape)) {
    PyErr_Format(PyExc_BufferError, "the tensor has no valid shape of at most %d dimensions",
                 HAUL_TENSOR_DIMENSIONS);
    return false;
  }
  if (tensor->lanes == 0 || tensor->bits == 0 || tensor->bits % 8 != 0) {
    PyErr_SetString(PyExc_BufferError, "the elements are not whole bytes");
    return false;
  }
  layout->dimensions = (uint32_t)tensor->dimensions;
  for (int32_t i = 0; i < tensor->dimensions; i++) {
    layout->shape[i] = tensor->shape[i];
    if (tensor->strides)
      layout->strides[i] = tensor->strides[i];
    if (tensor->shape[i] < 0) {
      PyErr_SetString(PyExc_BufferError, "the shape has a negative number");
      return false;
    }
  }
  if (!tensor->strides)
    layout_fill_strides(layout);
  return true;
}

static void delete_wrapped(void *given) {
  struct dl_managed *managed = given;
  if (managed->deleter)
    managed->deleter(managed);
}

static void delete_wrapped_versioned(void *given) {
  struct dl_managed_versioned *managed = given;
  if (managed->deleter)
    managed->deleter(managed);
}

/* Renaming the capsule makes this the owner, which calls the deleter. */
static struct wrapped *take_capsule(PyObject *capsule, bool versioned) {
  struct wrapped *wrapped = PyMem_Calloc(1, sizeof *wrapped);
  if (!wrapped) {
    PyErr_NoMemory();
    return NULL;
  }
  wrapped->managed = PyCapsule_GetPointer(capsule, versioned ? DL_NAME_VERSIONED : DL_NAME);
  wrapped->delete = versioned ? delete_wrapped_versioned : delete_wrapped;
  if (PyCapsule_SetName(capsule, versioned ? DL_NAME_VERSIONED_USED : DL_NAME_USED) == 0)
    return wrapped;
  PyMem_Free(wrapped);
  return NULL;
}

static PyObject *wrap_capsule(struct node *node, PyObject *capsule) {
  struct haul_tensor layout;
  bool is_versioned = PyCapsule_IsValid(capsule, DL_NAME_VERSIONED);
  if (!is_versioned && !PyCapsule_IsValid(capsule, DL_NAME)) {
    PyErr_SetString(PyExc_BufferError,
                    "__dlpack__ returned no capsule with a tensor, or one that was used before");
    return NULL;
  }
  struct wrapped *wrapped = take_capsule(capsule, is_versioned);
  if (!wrapped)
    return NULL;
  const struct dl_managed_versioned *versioned = is_versioned ? wrapped->managed : NULL;
  if (versioned && versioned->major != DL_MAJOR) {
    PyErr_Format(PyExc_BufferError, "the tensor has DLPack version %u, and haul supports 1",
                 (unsigned)versioned->major);
    wrapped_release(wrapped);
    return NULL;
  }
  const struct dl_tensor *tensor =
      versioned ? &versioned->tensor : &((const struct dl_managed *)wrapped->managed)->tensor;
  if (!layout_of_tensor(tensor, &layout)) {
    wrapped_release(wrapped);
    return NULL;
  }
  return wrap_memory(node, wrapped, (uintptr_t)tensor->data + tensor->byte_offset, layout,
                     versioned && versioned->flags & DL_FLAG_READ_ONLY);
}

/* Without a stream the producer orders its work before the default stream; the caller synchronizes
 * before a transfer of memory that kernels write. */
static PyObject *get_capsule(PyObject *method) {
  PyObject *none = PyTuple_New(0);
  PyObject *version = Py_BuildValue("{s(ii)}", "max_version", (int)DL_MAJOR, (int)DL_MINOR);
  PyObject *capsule = none && version ? PyObject_Call(method, none, version) : NULL;
  if (none && version && !capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear(); /* a producer of unversioned capsules */
    capsule = PyObject_Call(method, none, NULL);
  }
  Py_XDECREF(none);
  Py_XDECREF(version);
  return capsule;
}

PyObject *dlpack_wrap(struct node *node, PyObject *object) {
  PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
  if (!method) {
    PyErr_Format(PyExc_TypeError, "%.100R is not a buffer and has no __dlpack__", object);
    return NULL;
  }
  PyObject *capsule = get_capsule(method);
  PyObject *region = capsule ? wrap_capsule(node, capsule) : NULL;
  Py_DECREF(method);
  Py_XDECREF(capsule);
  return region;
}
