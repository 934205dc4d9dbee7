/* SPDX-License-Identifier: MIT
 * The module haul._haul: its types, errors, text and places. */
#include <haul/cache.h>
#include <string.h>

#include "haulpy.h"

struct haulpy haulpy;

PyObject *data_make(const char *name, PyObject *values) {
  PyObject *made = NULL;
  if (!values)
    return NULL;
  PyObject *class = PyObject_GetAttrString(haulpy.data, name);
  if (class)
    made = PyObject_CallObject(class, values);
  Py_XDECREF(class);
  Py_DECREF(values);
  return made;
}

bool list_append(PyObject **list, PyObject *item) {
  if (!item || PyList_Append(*list, item) != 0)
    Py_CLEAR(*list);
  Py_XDECREF(item);
  return *list;
}

/* False with an exception. */
static bool unsigned_from(PyObject *given, unsigned long long most, unsigned long long *number) {
  PyObject *integer = PyNumber_Index(given);
  if (!integer)
    return false;
  *number = PyLong_AsUnsignedLongLong(integer);
  Py_DECREF(integer);
  if (!PyErr_Occurred() && *number <= most)
    return true;
  PyErr_Clear();
  PyErr_Format(PyExc_OverflowError, "integer out of range: expected 0 to %llu", most);
  return false;
}

int uint64_from(PyObject *given, void *number) {
  unsigned long long read;
  if (!unsigned_from(given, UINT64_MAX, &read))
    return 0;
  *(uint64_t *)number = read;
  return 1;
}

int uint32_from(PyObject *given, void *number) {
  unsigned long long read;
  if (!unsigned_from(given, UINT32_MAX, &read))
    return 0;
  *(uint32_t *)number = (uint32_t)read;
  return 1;
}

PyObject *text_of(const char *text) {
  return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *text_item(void *text) {
  return text_of(text);
}

bool place_from(const char *text, struct haul_place *place) {
  if (haul_place_parse(text, place) == 0)
    return true;
  raise_last();
  return false;
}

PyObject *place_text(struct haul_place place) {
  char text[32];
  return text_of(haul_place_format(place, text, sizeof text));
}

PyObject *place_item(void *place) {
  return place_text(*(const struct haul_place *)place);
}

PyObject *rights_of(unsigned rights) {
  return data_make("Rights", Py_BuildValue("(I)", rights));
}

PyObject *error_object(const struct haul_error *error) {
  return PyObject_CallMethod(haulpy.data, "error_of", "iiO&O&O&O&", error->code, error->system,
                             TEXT(error->call), TEXT(error->object), TEXT(error->text),
                             TEXT(error->hint));
}

PyObject *raise_error(const struct haul_error *error) {
  PyObject *exception = error_object(error);
  if (exception) {
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
  }
  return NULL;
}

PyObject *raise_last(void) {
  return raise_error(haul_error_last());
}

PyObject *raise_own(int code, const char *call, const char *object, const char *text,
                    const char *hint) {
  struct haul_error error = {.code = code};
  PyOS_snprintf(error.call, sizeof error.call, "%s", call);
  PyOS_snprintf(error.object, sizeof error.object, "%s", object);
  PyOS_snprintf(error.text, sizeof error.text, "%s", text);
  PyOS_snprintf(error.hint, sizeof error.hint, "%s", hint);
  return raise_error(&error);
}

static PyObject *version(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  return text_of(haul_version());
}

/* {"EINVAL": (-1, "invalid", "an argument is not valid"), ...} */
static PyObject *codes(PyObject *module, PyObject *none) {
  static const struct {
    const char *symbol;
    int value;
  } list[] = {
#define CODE(symbol, value, name, text) {#symbol, value},
    HAUL_ERROR_LIST(CODE)
#undef CODE
  };
  (void)module, (void)none;
  PyObject *all = PyDict_New();
  for (size_t i = 0; all && i < sizeof list / sizeof *list; i++) {
    PyObject *one = Py_BuildValue("(iss)", list[i].value, haul_error_name(list[i].value),
                                  haul_error_text(list[i].value));
    if (!one || PyDict_SetItemString(all, list[i].symbol + sizeof "HAUL_" - 1, one) != 0)
      Py_CLEAR(all);
    Py_XDECREF(one);
  }
  return all;
}

static PyMethodDef functions[] = {
    {"version", version, METH_NOARGS,
     DOC("version($module, /)", "Return the version of the loaded library. Does not wait.")},
    {"codes", codes, METH_NOARGS,
     DOC("codes($module, /)",
         "Return all error codes: by name the number, the short name and the text.")},
    {"dtypes", layout_dtypes, METH_NOARGS,
     DOC("dtypes($module, /)", "Return the names of types: DLPack's code, bits and lanes.")},
    {"layout_of", wrap_layout, METH_O,
     DOC("layout_of($module, object, /)",
         "Return the Layout of an object that Node.wrap takes, or of one without bytes.")},
    {"wait_all", METHOD_WITH_KEYWORDS(wait_all),
     DOC("wait_all($module, transfers, *, timeout=None)",
         "Wait until all transfers have ended, whatever their results.\n"
         "\n"
         "transfers  an iterable of Transfer, all of one node\n"
         "timeout    in seconds; None: the node's\n"
         "\n"
         "Blocks. Raises TimedOut if the timeout passes first; else the error of the first in the\n"
         "order of `transfers` that failed (Remote.write). Raises Invalid for transfers of "
         "several\n"
         "nodes.")},
    {"wait_any", METHOD_WITH_KEYWORDS(wait_any),
     DOC("wait_any($module, transfers, *, timeout=None)",
         "Wait until at least one transfer has ended.\n"
         "\n"
         "transfers  an iterable of Transfer, all of one node\n"
         "timeout    in seconds; None: the node's\n"
         "\n"
         "Returns the first in the order of `transfers` that has ended, successfully or not: its "
         "wait()\n"
         "raises its error. Leave it out of the next call. Blocks. Raises TimedOut if the timeout\n"
         "passes first; Invalid for no transfer, and for those of several nodes.")},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "haul._haul",
                                        .m_doc = "libhaul for Python; import haul instead.",
                                        .m_size = -1,
                                        .m_methods = functions};

static bool add_type(PyObject *module, PyTypeObject **type, PyTypeObject *(*make)(void)) {
  *type = make();
  return *type && PyModule_AddType(module, *type) == 0;
}

static bool fill(PyObject *module) {
  haulpy.data = PyImport_ImportModule("haul._data");
  return haulpy.data && foreign_watch() && add_type(module, &haulpy.node, node_type) &&
         add_type(module, &haulpy.region, region_type) &&
         add_type(module, &haulpy.tensor, tensor_type) &&
         add_type(module, &haulpy.peer, peer_type) &&
         add_type(module, &haulpy.remote, remote_type) &&
         add_type(module, &haulpy.transfer, transfer_type) &&
         add_type(module, &haulpy.directory, directory_type) &&
         add_type(module, &haulpy.world, world_type) && add_type(module, &haulpy.file, file_type) &&
         add_type(module, &haulpy.cache, cache_type) &&
         add_type(module, &haulpy.store, store_type) &&
         PyModule_AddIntConstant(module, "CACHE_KEY_MAX", HAUL_CACHE_KEY_MAX) == 0 &&
         add_type(module, &haulpy.source, source_type) &&
         add_type(module, &haulpy.receiver, receiver_type) &&
         PyModule_AddIntConstant(module, "MESSAGE_MAX", HAUL_MESSAGE_MAX) == 0 &&
         PyModule_AddIntConstant(module, "TENSOR_TAG", TENSOR_TAG) == 0;
}

PyMODINIT_FUNC PyInit__haul(void);
PyMODINIT_FUNC PyInit__haul(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && !fill(module))
    Py_CLEAR(module);
  return module;
}
