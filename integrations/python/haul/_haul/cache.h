/* SPDX-License-Identifier: MIT
 * The methods of Cache in files of their own. */
#ifndef HAULPY_CACHE_H
#define HAULPY_CACHE_H

#include "haulpy.h"

PyObject *cache_put(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *cache_get(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *cache_exists(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *cache_remove(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *cache_pin(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *cache_repair(PyObject *self, PyObject *args, PyObject *keywords);

/* Runs the job that opens a store or a client. One of them alone may have the messages of a node:
 * marks it as served. False with an exception; the job is freed. */
bool serve_node(struct node *node, struct job *job, const char *call);

/* NULL: of an item without one. */
const char *tier_name(unsigned tier);

#endif
