/* SPDX-License-Identifier: MIT
 * Peer: another node. */
#include <stdlib.h>

#include "haulpy.h"

static void release_peer(void *handle) {
  haul_peer_close(handle);
}

PyObject *peer_object(struct node *node, haul_peer *handle) {
  return (PyObject *)object_new(haulpy.peer, "peer", handle, release_peer, node);
}

static void dealloc(PyObject *self) {
  object_free((struct object *)self);
}

/* One peer may have several objects: each message brings one. */
static PyObject *compare(PyObject *self, PyObject *other, int operation) {
  if (Py_TYPE(other) != Py_TYPE(self) || (operation != Py_EQ && operation != Py_NE))
    Py_RETURN_NOTIMPLEMENTED;
  const void *ours = ((struct object *)self)->handle, *theirs = ((struct object *)other)->handle;
  bool same = self == other || (ours && ours == theirs);
  return PyBool_FromLong(same == (operation == Py_EQ));
}

/* ---- What it publishes ---- */

struct lookup {
  struct job job;
  haul_peer *peer;
  haul_deadline until;
  haul_remote *remote;
  char name[320]; /* what does not fit is too long for any name, also when it is cut */
};

static int run_lookup(struct job *job) {
  struct lookup *lookup = (struct lookup *)job;
  return haul_peer_lookup(lookup->peer, lookup->name, lookup->until, &lookup->remote);
}

static void undo_lookup(struct job *job) {
  haul_remote_release(((struct lookup *)job)->remote);
}

static PyObject *peer_lookup(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"name", "timeout", NULL};
  struct object *peer = (struct object *)self;
  PyObject *timeout = Py_None;
  const char *name;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|$O", names, &name, &timeout) ||
      !deadline_from(timeout, peer->node->timeout, &until))
    return NULL;
  struct lookup *lookup = job_new(sizeof *lookup);
  if (!lookup)
    return NULL;
  lookup->job.run = run_lookup;
  lookup->job.undo = undo_lookup;
  lookup->job.used[0] = peer;
  lookup->until = until;
  PyOS_snprintf(lookup->name, sizeof lookup->name, "%s", name);
  lookup->peer = object_enter(peer, "lookup");
  if (!lookup->peer) {
    job_free(&lookup->job);
    return NULL;
  }
  if (job_run(&lookup->job) != 0)
    return NULL;
  PyObject *remote = remote_object(peer, lookup->remote, name);
  job_free(&lookup->job);
  return remote;
}

struct listing {
  struct job job;
  haul_peer *peer;
  haul_deadline until;
  struct haul_published *entries; /* freed by undo_list, once run_list has succeeded */
  size_t count;
};

static void undo_list(struct job *job) {
  free(((struct listing *)job)->entries);
}

/* Until all fit: between two calls more may have been published. */
static int run_list(struct job *job) {
  struct listing *listing = (struct listing *)job;
  size_t room = 64;
  for (;;) {
    free(listing->entries);
    listing->entries = calloc(room, sizeof *listing->entries);
    if (!listing->entries)
      room = 0; /* the library says how many there are, and the caller that none fit */
    listing->count = room;
    int code = haul_peer_list(listing->peer, listing->until, listing->entries, &listing->count);
    if (code)
      undo_list(job);
    if (code || listing->count <= room || !listing->entries)
      return code;
    room = listing->count + 64;
  }
}

static PyObject *rights_item(void *rights) {
  return data_make("Rights", Py_BuildValue("(I)", *(const unsigned *)rights));
}

static PyObject *published(const struct haul_published *entry) {
  return data_make("Published",
                   Py_BuildValue("(O&KO&O&)", TEXT(entry->name), (unsigned long long)entry->length,
                                 PLACE(entry->place), rights_item,
                                 (void *)(uintptr_t)&entry->rights));
}

static PyObject *list_of(const struct listing *listing) {
  if (!listing->entries)
    return PyErr_NoMemory();
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < listing->count; i++) {
    PyObject *entry = published(&listing->entries[i]);
    if (!entry || PyList_Append(list, entry) != 0)
      Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  return list;
}

static PyObject *peer_list(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"timeout", NULL};
  struct object *peer = (struct object *)self;
  PyObject *timeout = Py_None;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O", names, &timeout) ||
      !deadline_from(timeout, peer->node->timeout, &until))
    return NULL;
  struct listing *listing = job_new(sizeof *listing);
  if (!listing)
    return NULL;
  listing->job.run = run_list;
  listing->job.undo = undo_list;
  listing->job.used[0] = peer;
  listing->until = until;
  listing->peer = object_enter(peer, "list");
  if (!listing->peer) {
    job_free(&listing->job);
    return NULL;
  }
  if (job_run(&listing->job) != 0)
    return NULL;
  PyObject *list = list_of(listing);
  undo_list(&listing->job);
  job_free(&listing->job);
  return list;
}

/* ---- What it is ---- */

static PyObject *peer_check(PyObject *self, PyObject *none) {
  struct object *peer = (struct object *)self;
  (void)none;
  haul_peer *handle = object_enter(peer, "check");
  if (!handle)
    return NULL;
  int code = haul_peer_status(handle);
  if (code)
    raise_last();
  object_leave(peer);
  if (code)
    return NULL;
  Py_RETURN_NONE;
}

/* Equal ones are open, and have one handle. */
static Py_hash_t hash(PyObject *self) {
  return (Py_hash_t)(((struct object *)self)->identity >> 4);
}

static PyObject *repr(PyObject *self) {
  struct object *peer = (struct object *)self;
  if (peer->closed || peer->node->base.closed)
    return PyUnicode_FromString("<haul.Peer, closed>");
  return PyUnicode_FromFormat("<haul.Peer %s%s>", haul_peer_name(peer->handle),
                              haul_peer_status(peer->handle) == 0 ? "" : ", gone");
}

static PyObject *get_name(PyObject *self, void *none) {
  struct object *peer = (struct object *)self;
  (void)none;
  haul_peer *handle = object_enter(peer, "name");
  if (!handle)
    return NULL;
  PyObject *name = text_of(haul_peer_name(handle));
  object_leave(peer);
  return name;
}

static PyObject *get_identity(PyObject *self, void *none) {
  struct object *peer = (struct object *)self;
  (void)none;
  haul_peer *handle = object_enter(peer, "identity");
  if (!handle)
    return NULL;
  PyObject *identity = text_of(haul_peer_identity(handle));
  object_leave(peer);
  return identity;
}

static PyObject *get_alive(PyObject *self, void *none) {
  struct object *peer = (struct object *)self;
  (void)none;
  haul_peer *handle = object_enter(peer, "alive");
  if (!handle)
    return NULL;
  bool alive = haul_peer_status(handle) == 0;
  object_leave(peer);
  return PyBool_FromLong(alive);
}

PyTypeObject *peer_type(void) {
  static PyMethodDef methods[] = {
      {"lookup", METHOD_WITH_KEYWORDS(peer_lookup),
       "lookup(name, *, timeout=None): the region that it publishes under the name."},
      {"list", METHOD_WITH_KEYWORDS(peer_list), "list(*, timeout=None): what it publishes."},
      {"send", METHOD_WITH_KEYWORDS(message_send),
       "send(data=b\"\", *, tag=0, timeout=None): a message, which arrives after the writes to the "
       "peer that were started before."},
      {"check", peer_check, METH_NOARGS, "Raise PeerGone, with the reason, once it is gone."},
      OBJECT_CLOSE,
      OBJECT_METHODS,
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef getters[] = {{"name", get_name, NULL, "The name that it gave itself.", NULL},
                                  {"identity", get_identity, NULL,
                                   "Who it proved to be: the name of its key or certificate, "
                                   "uid:N over a Unix socket; '' where nothing is proved.",
                                   NULL},
                                  {"alive", get_alive, NULL, "Whether it is there.", NULL},
                                  OBJECT_GETTERS,
                                  {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, dealloc),
      SLOT(Py_tp_traverse, object_traverse),
      SLOT(Py_tp_repr, repr),
      SLOT(Py_tp_richcompare, compare),
      SLOT(Py_tp_hash, hash),
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_doc, "Another node: Node.connect gives it, and so does each message."},
      {0, NULL}};
  static PyType_Spec spec = {
      "haul.Peer", sizeof(struct object), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
