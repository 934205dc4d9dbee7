/* SPDX-License-Identifier: MIT
 * The library's failures as exceptions. */
#include <string.h>

#include "haulpy.h"

PyObject *text_of(const char *text) {
  return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *text_item(void *text) {
  return text_of(text);
}

PyObject *raise_error(const struct haul_error *error) {
  PyObject *exception = PyObject_CallMethod(haulpy.data, "error_of", "iiO&O&O&O&", error->code,
                                            error->system, TEXT(error->call), TEXT(error->object),
                                            TEXT(error->text), TEXT(error->hint));
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
