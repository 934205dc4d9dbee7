/* SPDX-License-Identifier: MIT
 * Layouts of tensors in memory: haul_tensor, haul.Layout, and the names of types. */
#include <string.h>

#include "haulpy.h"

/* Type codes: DLDataTypeCode of dlpack.h 1.1. Formats: Python's struct module, native sizes. */
static const struct type {
  const char *name;
  uint8_t type, bits;
  const char *format; /* NULL: none */
} types[] = {
    {"int8", 0, 8, "b"},
    {"int16", 0, 16, "h"},
    {"int32", 0, 32, "i"},
    {"int64", 0, 64, "l"},
    {"uint8", 1, 8, "B"},
    {"uint16", 1, 16, "H"},
    {"uint32", 1, 32, "I"},
    {"uint64", 1, 64, "L"},
    {"float16", 2, 16, "e"},
    {"float32", 2, 32, "f"},
    {"float64", 2, 64, "d"},
    {"bfloat16", 4, 16, NULL},
    {"complex64", 5, 64, "Zf"},
    {"complex128", 5, 128, "Zd"},
    {"bool", 6, 8, "?"},
    {"float8_e4m3fn", 10, 8, NULL},
    {"float8_e4m3fnuz", 11, 8, NULL},
    {"float8_e5m2", 12, 8, NULL},
    {"float8_e5m2fnuz", 13, 8, NULL},
    {"float8_e8m0fnu", 14, 8, NULL},
};
#define TYPES (sizeof types / sizeof *types)

size_t layout_item_size(const struct haul_tensor *layout) {
  return ((size_t)layout->bits * layout->lanes + 7) / 8;
}

static bool is_empty(const struct haul_tensor *layout) {
  for (uint32_t i = 0; i < layout->dimensions; i++)
    if (layout->shape[i] == 0)
      return true;
  return false;
}

uint64_t layout_bytes(const struct haul_tensor *layout) {
  uint64_t bytes = layout_item_size(layout);
  for (uint32_t i = 0; i < layout->dimensions; i++)
    bytes *= (uint64_t)layout->shape[i];
  return bytes;
}

struct haul_tensor layout_flat(size_t length) {
  struct haul_tensor layout = {.type = 1, .bits = 8, .lanes = 1, .dimensions = 1};
  layout.shape[0] = (int64_t)length;
  layout.strides[0] = 1;
  return layout;
}

void layout_fill_strides(struct haul_tensor *layout) {
  int64_t stride = 1;
  for (uint32_t i = layout->dimensions; i-- > 0;) {
    layout->strides[i] = stride;
    if (layout->shape[i] > 1 && __builtin_mul_overflow(stride, layout->shape[i], &stride))
      stride = 0; /* layout_check or layout_extent rejects the layout */
  }
}

bool layout_extent(const struct haul_tensor *layout, int64_t *low, int64_t *high) {
  const int64_t size = (int64_t)layout_item_size(layout);
  int64_t elements = 1;
  *low = 0;
  *high = 0;
  for (uint32_t i = 0; i < layout->dimensions; i++) {
    int64_t stride; /* in bytes, as in buffers, even of a single element */
    if (__builtin_mul_overflow(layout->strides[i], size, &stride))
      return false;
  }
  if (is_empty(layout))
    return true;
  for (uint32_t i = 0; i < layout->dimensions; i++) {
    int64_t reach;
    if (__builtin_mul_overflow(elements, layout->shape[i], &elements) ||
        __builtin_mul_overflow(layout->shape[i] - 1, layout->strides[i], &reach) ||
        __builtin_mul_overflow(reach, size, &reach) ||
        (reach < 0 ? __builtin_add_overflow(*low, reach, low)
                   : __builtin_add_overflow(*high, reach, high)))
      return false;
  }
  int64_t bytes, length; /* consumers compute these without checks */
  return !__builtin_mul_overflow(elements, size, &bytes) &&
         !__builtin_add_overflow(*high, size, high) &&
         !__builtin_sub_overflow(*high, *low, &length);
}

bool layout_is_contiguous(const struct haul_tensor *layout) {
  int64_t elements = 1;
  if (is_empty(layout))
    return true;
  for (uint32_t i = layout->dimensions; i-- > 0;) {
    if (layout->shape[i] > 1 && layout->strides[i] != elements)
      return false;
    elements *= layout->shape[i];
  }
  return true;
}

bool layout_check(const struct haul_tensor *layout, uint64_t length) {
  int64_t low, high;
  if (layout_extent(layout, &low, &high) && layout->offset <= length && length <= INT64_MAX &&
      (int64_t)layout->offset >= -low && high <= (int64_t)(length - layout->offset))
    return true;
  PyErr_Format(PyExc_ValueError, "the tensor exceeds the region's %llu bytes",
               (unsigned long long)length);
  return false;
}

static const struct type *type_of(const struct haul_tensor *layout) {
  for (size_t i = 0; i < TYPES; i++)
    if (types[i].type == layout->type && types[i].bits == layout->bits && layout->lanes == 1)
      return &types[i];
  return NULL;
}

PyObject *layout_dtypes(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  PyObject *all = PyDict_New();
  for (size_t i = 0; all && i < TYPES; i++) {
    PyObject *code = Py_BuildValue("(iii)", types[i].type, types[i].bits, 1);
    if (!code || PyDict_SetItemString(all, types[i].name, code) != 0)
      Py_CLEAR(all);
    Py_XDECREF(code);
  }
  return all;
}

static bool parse_number(const char **text, unsigned most, unsigned *number) {
  *number = 0;
  if (**text < '0' || **text > '9')
    return false;
  while (**text >= '0' && **text <= '9' && *number <= most)
    *number = *number * 10 + (unsigned)(*(*text)++ - '0');
  return *number <= most;
}

static bool parse_dlpack(const char *name, struct haul_tensor *layout) {
  unsigned type, bits, lanes;
  if (strncmp(name, "dlpack:", 7) != 0)
    return false;
  name += 7;
  if (!parse_number(&name, UINT8_MAX, &type) || *name++ != ':' ||
      !parse_number(&name, UINT8_MAX, &bits) || *name++ != ':' ||
      !parse_number(&name, UINT16_MAX, &lanes) || *name)
    return false;
  layout->type = (uint8_t)type;
  layout->bits = (uint8_t)bits;
  layout->lanes = (uint16_t)lanes;
  return lanes > 0 && bits > 0 && bits % 8 == 0; /* only whole bytes have an address */
}

static bool parse_dtype(const char *name, struct haul_tensor *layout) {
  const char *dot = strrchr(name, '.');
  if (dot)
    name = dot + 1; /* torch.float32 */
  if (strcmp(name, "bool_") == 0)
    name = "bool"; /* numpy.bool_ */
  for (size_t i = 0; i < TYPES; i++)
    if (strcmp(types[i].name, name) == 0) {
      layout->type = types[i].type;
      layout->bits = types[i].bits;
      layout->lanes = 1;
      return true;
    }
  return parse_dlpack(name, layout);
}

static void raise_unknown(PyObject *dtype) {
  char names[512];
  for (size_t i = 0, used = 0; i < TYPES && used < sizeof names; i++)
    used += (size_t)PyOS_snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                  types[i].name);
  PyErr_Format(PyExc_ValueError, "invalid dtype %R: expected %s, or dlpack:TYPE:BITS:LANES", dtype,
               names);
}

bool layout_dtype(PyObject *dtype, struct haul_tensor *layout) {
  PyObject *text =
      PyType_Check(dtype) ? PyObject_GetAttrString(dtype, "__name__") : PyObject_Str(dtype);
  const char *name = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
  bool known = name && parse_dtype(name, layout);
  if (name && !known)
    raise_unknown(dtype);
  Py_XDECREF(text);
  return known;
}

const char *layout_format(const struct haul_tensor *layout) {
  const struct type *type = type_of(layout);
  return type ? type->format : NULL;
}

/* The DLPack code of a format letter; the caller checks the size, as sizes differ between machines.
 */
static int code_of(char letter) {
  if (strchr("bhilqn", letter))
    return 0;
  if (strchr("BHILQNc", letter))
    return 1;
  if (strchr("efd", letter))
    return 2;
  return letter == '?' ? 6 : -1;
}

bool layout_from_format(const char *format, Py_ssize_t size, struct haul_tensor *layout) {
  if (!format)
    format = "B";
  if (*format == '@' || *format == '=' || *format == '<')
    format++;
  bool complex_number = *format == 'Z';
  if (complex_number)
    format++;
  if (!format[0] || format[1])
    return false;
  int code = code_of(format[0]);
  if (complex_number)
    code = code == 2 ? 5 : -1;
  struct haul_tensor found = {.type = (uint8_t)code, .bits = (uint8_t)(size * 8), .lanes = 1};
  if (code < 0 || size < 1 || size > 16 || !type_of(&found))
    return false;
  layout->type = found.type;
  layout->bits = found.bits;
  layout->lanes = 1;
  return true;
}

static PyObject *numbers(const int64_t *values, uint32_t count) {
  PyObject *tuple = PyTuple_New((Py_ssize_t)count);
  for (uint32_t i = 0; tuple && i < count; i++) {
    PyObject *number = PyLong_FromLongLong(values[i]);
    if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) != 0)
      Py_CLEAR(tuple);
  }
  return tuple;
}

static PyObject *dtype_item(void *layout) {
  const struct haul_tensor *tensor = layout;
  const struct type *type = type_of(tensor);
  if (type)
    return PyUnicode_FromString(type->name);
  return PyUnicode_FromFormat("dlpack:%u:%u:%u", (unsigned)tensor->type, (unsigned)tensor->bits,
                              (unsigned)tensor->lanes);
}

static PyObject *shape_item(void *layout) {
  const struct haul_tensor *tensor = layout;
  return numbers(tensor->shape, tensor->dimensions);
}

static PyObject *strides_item(void *layout) {
  const struct haul_tensor *tensor = layout;
  return numbers(tensor->strides, tensor->dimensions);
}

PyObject *layout_object(const struct haul_tensor *layout) {
  void *given = (void *)(uintptr_t)layout; /* Py_BuildValue takes no const */
  return data_make("Layout",
                   Py_BuildValue("(O&O&O&K)", dtype_item, given, shape_item, given, strides_item,
                                 given, (unsigned long long)layout->offset));
}

/* Returns the number of values, at most HAUL_TENSOR_DIMENSIONS; -1 with an exception. */
static int read_numbers(PyObject *sequence, const char *what, int64_t *values) {
  PyObject *tuple = PySequence_Tuple(sequence);
  if (!tuple)
    return -1;
  Py_ssize_t count = PyTuple_Size(tuple);
  if (count > HAUL_TENSOR_DIMENSIONS) {
    PyErr_Format(PyExc_ValueError, "invalid %s with %zd dimensions: expected at most %d", what,
                 count, HAUL_TENSOR_DIMENSIONS);
    count = -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *number = PyNumber_Index(PyTuple_GetItem(tuple, i));
    values[i] = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    if (values[i] == -1 && PyErr_Occurred()) {
      count = -1;
      break;
    }
  }
  Py_DECREF(tuple);
  return (int)count;
}

bool layout_shape(PyObject *shape, PyObject *strides, struct haul_tensor *layout) {
  int dimensions = read_numbers(shape, "shape", layout->shape);
  if (dimensions < 0)
    return false;
  for (int i = 0; i < dimensions; i++)
    if (layout->shape[i] < 0) {
      PyErr_SetString(PyExc_ValueError, "invalid shape: a number is negative");
      return false;
    }
  layout->dimensions = (uint32_t)dimensions;
  if (!strides || strides == Py_None) {
    layout_fill_strides(layout);
    return true;
  }
  int count = read_numbers(strides, "strides", layout->strides);
  if (count >= 0 && count != dimensions)
    PyErr_SetString(PyExc_ValueError, "invalid strides: shape and strides have different lengths");
  return count == dimensions;
}

bool layout_from(PyObject *object, struct haul_tensor *layout) {
  PyObject *dtype, *shape, *strides;
  if (!PyTuple_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "invalid layout: expected a haul.Layout");
    return false;
  }
  *layout = (struct haul_tensor){0};
  if (!PyArg_ParseTuple(object, "OOOO&;invalid layout: expected dtype, shape, strides and offset",
                        &dtype, &shape, &strides, uint64_from, &layout->offset))
    return false;
  return layout_dtype(dtype, layout) && layout_shape(shape, strides, layout);
}
