/* SPDX-License-Identifier: MIT
 * Tensors handed out through DLPack. */
#include "dlpack.h"

#include <stdlib.h>

#include "haulpy.h"

/* What a capsule, or its consumer, holds. */
struct lent {
  struct region *region; /* a reference */
  union {
    struct dl_managed older;
    struct dl_managed_versioned versioned;
  } managed;
  int64_t shape[HAUL_TENSOR_DIMENSIONS], strides[HAUL_TENSOR_DIMENSIONS];
};

/* Consumers call this from any thread, with the interpreter's lock or without, also when the
 * interpreter is gone: then the process is about to be, and takes the region along. */
static void give_back(struct lent *lent) {
  PyGILState_STATE state;
  if (!foreign_enter(&state))
    return;
  region_returned(lent->region);
  Py_DECREF((PyObject *)lent->region);
  free(lent);
  foreign_leave(state);
}

static void delete_older(struct dl_managed *managed) {
  give_back(managed->context);
}

static void delete_versioned(struct dl_managed_versioned *managed) {
  give_back(managed->context);
}

/* A capsule that nobody consumed still has its first name. */
static void drop_older(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, DL_NAME)) {
    struct dl_managed *managed = PyCapsule_GetPointer(capsule, DL_NAME);
    managed->deleter(managed);
  }
}

static void drop_versioned(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, DL_NAME_VERSIONED)) {
    struct dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, DL_NAME_VERSIONED);
    managed->deleter(managed);
  }
}

/* False where DLPack has no such device, or none that haul's addresses mean anything to. */
static bool device_of(struct haul_place place, int32_t *type, int32_t *number) {
  *type = place.kind == HAUL_CUDA ? DL_CUDA : DL_CPU;
  *number = place.device;
  return place.kind == HAUL_HOST || place.kind == HAUL_DPDK || place.kind == HAUL_CUDA;
}

static void *refuse(const char *why) {
  PyErr_SetString(PyExc_BufferError, why);
  return NULL;
}

static bool refuse_place(struct haul_place place) {
  char text[32];
  PyErr_Format(PyExc_BufferError,
               "DLPack knows no tensors at %s: copy the region to host memory first",
               haul_place_format(place, text, sizeof text));
  return false;
}

static struct lent *lend(struct region *region, const struct haul_tensor *layout,
                         struct dl_tensor *tensor) {
  char *address;
  struct lent *lent = calloc(1, sizeof *lent);
  if (!lent) {
    PyErr_NoMemory();
    return NULL;
  }
  if (!region_lend(region, "__dlpack__", &address)) {
    free(lent);
    return NULL;
  }
  Py_INCREF((PyObject *)region);
  lent->region = region;
  for (uint32_t i = 0; i < layout->dimensions; i++) {
    lent->shape[i] = layout->shape[i];
    lent->strides[i] = layout->strides[i];
  }
  /* byte_offset stays 0: some consumers do not look at it. */
  *tensor = (struct dl_tensor){.data = address + layout->offset,
                               .dimensions = (int32_t)layout->dimensions,
                               .type = layout->type,
                               .bits = layout->bits,
                               .lanes = layout->lanes,
                               .shape = lent->shape,
                               .strides = lent->strides};
  device_of(haul_region_place(region->base.handle), &tensor->device_type, &tensor->device_id);
  return lent;
}

static PyObject *capsule_older(struct region *region, const struct haul_tensor *layout) {
  struct dl_tensor tensor;
  struct lent *lent = lend(region, layout, &tensor);
  if (!lent)
    return NULL;
  struct dl_managed *managed = &lent->managed.older;
  *managed = (struct dl_managed){.tensor = tensor, .context = lent, .deleter = delete_older};
  PyObject *capsule = PyCapsule_New(managed, DL_NAME, drop_older);
  if (!capsule)
    give_back(lent);
  return capsule;
}

static PyObject *capsule_versioned(struct region *region, const struct haul_tensor *layout) {
  struct dl_tensor tensor;
  struct lent *lent = lend(region, layout, &tensor);
  if (!lent)
    return NULL;
  struct dl_managed_versioned *managed = &lent->managed.versioned;
  *managed = (struct dl_managed_versioned){.major = DL_MAJOR,
                                           .minor = DL_MINOR,
                                           .context = lent,
                                           .deleter = delete_versioned,
                                           .flags = region->readonly ? DL_FLAG_READ_ONLY : 0,
                                           .tensor = tensor};
  PyObject *capsule = PyCapsule_New(managed, DL_NAME_VERSIONED, drop_versioned);
  if (!capsule)
    give_back(lent);
  return capsule;
}

/* None: nothing newer than what there was before versions. */
static bool major_of(PyObject *version, long *major) {
  int minor;
  *major = 0;
  if (version == Py_None)
    return true;
  if (PyTuple_Check(version) && PyArg_ParseTuple(version, "li", major, &minor))
    return true;
  if (!PyErr_Occurred())
    PyErr_SetString(PyExc_TypeError, "max_version is a tuple of two numbers, or None");
  return false;
}

static bool is_there(PyObject *device, struct haul_place place) {
  int32_t type, number;
  int wanted_type, wanted_number;
  device_of(place, &type, &number);
  if (device == Py_None)
    return true;
  if (!PyTuple_Check(device)) {
    PyErr_SetString(PyExc_TypeError, "dl_device is a tuple of two numbers, or None");
    return false;
  }
  if (!PyArg_ParseTuple(device, "ii", &wanted_type, &wanted_number))
    return false;
  if (wanted_type != type || wanted_number != number) {
    refuse("the tensor is on another device, and __dlpack__ copies nothing");
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
  return device_of(*place, &type, &number) || refuse_place(*place);
}

static void *refuse_older(const struct region *region) {
  PyErr_Format(PyExc_BufferError,
               "the memory may only be read, which DLPack before 1.0 cannot say: %s, or copy it to "
               "a region of your own (copy_from)",
               region_writable_hint(region));
  return NULL;
}

/* Any stream will do: what haul wrote to a GPU is visible to all of it when the transfer is
 * complete, so there is nothing that the consumer's stream would have to wait for. The other way it
 * is the caller who sees to it that his kernels are done before haul reads what they wrote.
 *
 * An older capsule cannot say that memory is read-only, and who writes to such memory gets SIGSEGV.
 * So there is none. */
PyObject *dlpack_capsule(struct region *region, const struct haul_tensor *layout, PyObject *args,
                         PyObject *keywords) {
  static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
  PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
  struct haul_place place;
  long major;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO", names, &stream, &version, &device,
                                   &copy) ||
      !major_of(version, &major) || !place_now(region, &place) || !is_there(device, place))
    return NULL;
  if (stream != Py_None && !PyLong_Check(stream)) {
    PyErr_SetString(PyExc_TypeError, "stream is a number or None");
    return NULL;
  }
  int copies = PyObject_IsTrue(copy);
  if (copies < 0)
    return NULL;
  if (copies)
    return refuse("__dlpack__ copies nothing: copy the tensor that it gives");
  if (major >= 1)
    return capsule_versioned(region, layout);
  if (region->readonly)
    return refuse_older(region);
  return capsule_older(region, layout);
}

PyObject *dlpack_device(struct region *region) {
  struct haul_place place;
  int32_t type, number;
  if (!place_now(region, &place))
    return NULL;
  device_of(place, &type, &number);
  return Py_BuildValue("(ii)", (int)type, (int)number);
}
