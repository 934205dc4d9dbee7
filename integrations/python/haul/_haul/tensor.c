/* SPDX-License-Identifier: MIT
 * Tensor: a part of a region with a type and a shape. */
#include "haulpy.h"

PyObject *tensor_object(struct region *region, const struct haul_tensor *layout) {
  struct tensor *tensor = (struct tensor *)PyType_GenericAlloc(haulpy.tensor, 0);
  if (!tensor)
    return NULL;
  tensor->region = (struct region *)Py_NewRef((PyObject *)region);
  tensor->layout = *layout;
  return (PyObject *)tensor;
}

struct region *region_of(PyObject *object) {
  return PyObject_TypeCheck(object, haulpy.tensor) ? ((struct tensor *)object)->region
                                                   : (struct region *)object;
}

const struct haul_tensor *layout_of(PyObject *object) {
  return PyObject_TypeCheck(object, haulpy.tensor) ? &((struct tensor *)object)->layout
                                                   : &((struct region *)object)->layout;
}

int local_from(PyObject *object, void *given) {
  struct local *local = given;
  if (PyObject_TypeCheck(object, haulpy.region)) {
    *local = (struct local){.region = (struct region *)object};
    return 1;
  }
  if (!PyObject_TypeCheck(object, haulpy.tensor)) {
    PyErr_Format(PyExc_TypeError,
                 "expected a haul.Region or a haul.Tensor, not %R: pass node.wrap(...) of memory "
                 "that is not haul's",
                 Py_TYPE(object));
    return 0;
  }
  struct tensor *tensor = (struct tensor *)object;
  *local = (struct local){.region = tensor->region, .tensor = tensor};
  if (layout_is_contiguous(&tensor->layout))
    return 1;
  PyErr_SetString(PyExc_ValueError, "the tensor is not contiguous: use pieces of its region");
  return 0;
}

uint64_t local_length(const struct local *local) {
  return local->tensor ? layout_bytes(&local->tensor->layout)
                       : haul_region_length(local->region->base.handle);
}

bool local_offset(const struct local *local, const char *call, uint64_t length, uint64_t *offset) {
  char text[80];
  if (!local->tensor)
    return true;
  uint64_t bytes = layout_bytes(&local->tensor->layout);
  if (*offset <= bytes && length <= bytes - *offset) {
    *offset += local->tensor->layout.offset;
    return true;
  }
  PyOS_snprintf(text, sizeof text, "a piece exceeds the tensor's %llu bytes",
                (unsigned long long)bytes);
  raise_own(HAUL_ERANGE, call, "tensor", text, "count offsets from the tensor's first byte");
  return false;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT((PyObject *)((struct tensor *)self)->region);
  return 0;
}

static void dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_DECREF((PyObject *)((struct tensor *)self)->region);
  PyObject_GC_Del(self);
  Py_DECREF((PyObject *)type);
}

PyObject *tensor_get_layout(PyObject *self, void *none) {
  (void)none;
  return layout_object(layout_of(self));
}

static PyObject *get_of_layout(PyObject *self, void *name) {
  PyObject *layout = tensor_get_layout(self, NULL);
  PyObject *value = layout ? PyObject_GetAttrString(layout, name) : NULL;
  Py_XDECREF(layout);
  return value;
}

static PyObject *repr(PyObject *self) {
  PyObject *layout = tensor_get_layout(self, NULL);
  PyObject *region = PyObject_Repr((PyObject *)((struct tensor *)self)->region);
  PyObject *text =
      layout && region ? PyUnicode_FromFormat("<haul.Tensor %R in %U>", layout, region) : NULL;
  Py_XDECREF(layout);
  Py_XDECREF(region);
  return text;
}

static PyObject *get_bytes(PyObject *self, void *none) {
  (void)none;
  return PyLong_FromUnsignedLongLong(layout_bytes(&((struct tensor *)self)->layout));
}

static char of_dtype[] = "dtype", of_shape[] = "shape", of_strides[] = "strides",
            of_offset[] = "offset";

static PyMethodDef methods[] = {BUFFER_METHODS, {NULL, NULL, 0, NULL}};

PyTypeObject *tensor_type(void) {
  static PyGetSetDef getters[] = {
      {"layout", tensor_get_layout, NULL, "Its type, shape, strides and offset.", NULL},
      {"dtype", get_of_layout, NULL, "\"float32\", \"bfloat16\", ...", of_dtype},
      {"shape", get_of_layout, NULL, "Elements in each dimension.", of_shape},
      {"strides", get_of_layout, NULL, "In elements.", of_strides},
      {"offset", get_of_layout, NULL, "Bytes from the start of the region to the first element.",
       of_offset},
      {"nbytes", get_bytes, NULL, "Bytes of all elements.", NULL},
      {NULL, NULL, NULL, NULL, NULL}};
  static PyMemberDef members[] = {
      MEMBER("region", T_OBJECT_EX, struct tensor, region, "The region that it lies in."),
      {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, dealloc),
      SLOT(Py_tp_traverse, traverse),
      SLOT(Py_tp_repr, repr),
      SLOT(Py_bf_getbuffer, buffer_get),
      SLOT(Py_bf_releasebuffer, buffer_release),
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_members, members},
      {Py_tp_doc, "A part of a region with a type and a shape. It keeps the region."},
      {0, NULL}};
  static PyType_Spec spec = {"haul.Tensor", sizeof(struct tensor), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
