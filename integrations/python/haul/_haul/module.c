/* SPDX-License-Identifier: MIT
 * The module haul._haul: types, and the codes of errors. */
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

static PyObject *version(PyObject *module, PyObject *none) {
  (void)module;
  (void)none;
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
  (void)module;
  (void)none;
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
    {"version", version, METH_NOARGS, "The version of the library that is loaded."},
    {"codes", codes, METH_NOARGS, "Every code of an error: name, number, short name, text."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "haul._haul",
                                        "libhaul for Python; use it through haul.",
                                        -1,
                                        functions,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

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
         PyModule_AddIntConstant(module, "MESSAGE_MAX", HAUL_MESSAGE_MAX) == 0;
}

PyMODINIT_FUNC PyInit__haul(void);
PyMODINIT_FUNC PyInit__haul(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && !fill(module))
    Py_CLEAR(module);
  return module;
}
