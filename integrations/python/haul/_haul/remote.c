/* SPDX-License-Identifier: MIT
 * Remote: a region that a peer publishes. */
#include "haulpy.h"

static void release_remote(void *handle) {
  haul_remote_release(handle);
}

PyObject *remote_object(struct object *peer, haul_remote *handle, const char *name) {
  struct object *object = object_new(haulpy.remote, "remote", handle, release_remote, peer->node);
  struct remote *remote = (struct remote *)object;
  if (!remote)
    return NULL;
  Py_INCREF((PyObject *)peer);
  remote->peer = peer;
  remote->name = text_of(name);
  if (!remote->name) {
    Py_DECREF((PyObject *)remote);
    return NULL;
  }
  return (PyObject *)remote;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT((PyObject *)((struct remote *)self)->peer);
  return object_traverse(self, visit, arg);
}

static void dealloc(PyObject *self) {
  struct remote *remote = (struct remote *)self;
  PyObject *peer = (PyObject *)remote->peer, *name = remote->name;
  object_free(&remote->base);
  Py_XDECREF(name);
  Py_DECREF(peer);
}

static PyObject *get_length(PyObject *self, void *none) {
  struct object *remote = (struct object *)self;
  (void)none;
  haul_remote *handle = object_enter(remote, "length");
  if (!handle)
    return NULL;
  PyObject *length = PyLong_FromUnsignedLongLong(haul_remote_length(handle));
  object_leave(remote);
  return length;
}

static PyObject *get_place(PyObject *self, void *none) {
  struct object *remote = (struct object *)self;
  (void)none;
  haul_remote *handle = object_enter(remote, "place");
  if (!handle)
    return NULL;
  PyObject *place = place_text(haul_remote_place(handle));
  object_leave(remote);
  return place;
}

static PyObject *get_rights(PyObject *self, void *none) {
  struct object *remote = (struct object *)self;
  (void)none;
  haul_remote *handle = object_enter(remote, "rights");
  if (!handle)
    return NULL;
  PyObject *rights = data_make("Rights", Py_BuildValue("(I)", haul_remote_rights(handle)));
  object_leave(remote);
  return rights;
}

static PyObject *get_peer(PyObject *self, void *none) {
  PyObject *peer = (PyObject *)((struct remote *)self)->peer;
  (void)none;
  Py_INCREF(peer);
  return peer;
}

static PyObject *get_name(PyObject *self, void *none) {
  PyObject *name = ((struct remote *)self)->name;
  (void)none;
  Py_INCREF(name);
  return name;
}

static PyObject *repr(PyObject *self) {
  struct remote *remote = (struct remote *)self;
  const haul_remote *handle = remote->base.handle;
  char place[32];
  if (remote->base.closed || remote->base.node->base.closed)
    return PyUnicode_FromFormat("<haul.Remote %U, closed>", remote->name);
  return PyUnicode_FromFormat("<haul.Remote %U of %llu bytes at %s>", remote->name,
                              (unsigned long long)haul_remote_length(handle),
                              haul_place_format(haul_remote_place(handle), place, sizeof place));
}

PyTypeObject *remote_type(void) {
  static PyMethodDef methods[] = {
      {"write", METHOD_WITH_KEYWORDS(transfer_write),
       "write(region, pieces=None, *, timeout=None, only=None, zero_copy=False, checksum=False, "
       "priority=0): "
       "start to write from the region, or from a tensor whose elements lie next to each other: "
       "its "
       "bytes then count from 0. Pieces are (local, remote, length); None is all of it. Of those "
       "that "
       "wait for a path one of priority 1 goes first, one of -1 last. Keep the "
       "transfer, or the region, until it has ended."},
      {"read", METHOD_WITH_KEYWORDS(transfer_read),
       "read(...): start to read into the region or tensor."},
      {"fetch_add", METHOD_WITH_KEYWORDS(transfer_fetch_add),
       "fetch_add(result, offset, value, *, result_offset=0, timeout=None, only=None): add to the "
       "8 bytes at the offset; what was there lands in the region or tensor `result`."},
      {"compare_swap", METHOD_WITH_KEYWORDS(transfer_compare_swap),
       "compare_swap(result, offset, expected, desired, *, result_offset=0, timeout=None, "
       "only=None): put a number in place of the expected one; what was there lands in `result`."},
      {"explain", METHOD_WITH_KEYWORDS(transfer_explain),
       "explain(region, operation=\"write\", length=None, *, only=None, zero_copy=False, "
       "checksum=False): the paths that a transfer would have, the chosen one first."},
      OBJECT_CLOSE,
      OBJECT_METHODS,
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef getters[] = {
      {"length", get_length, NULL, "Its bytes.", NULL},
      {"place", get_place, NULL, "Where it is, in its owner's numbers.", NULL},
      {"rights", get_rights, NULL, "READ, WRITE or both.", NULL},
      {"peer", get_peer, NULL, "Its owner.", NULL},
      {"name", get_name, NULL, "What it was looked up by.", NULL},
      OBJECT_GETTERS,
      {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, dealloc),
      SLOT(Py_tp_traverse, traverse),
      SLOT(Py_tp_repr, repr),
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_doc, "A region that a peer publishes: Peer.lookup gives it."},
      {0, NULL}};
  static PyType_Spec spec = {
      "haul.Remote", sizeof(struct remote), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
