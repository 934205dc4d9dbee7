/* SPDX-License-Identifier: MIT
 * Peer: another node. Remote: a region that it publishes. */
#include <stdlib.h>

#include "haulpy.h"

static void release_peer(void *handle) {
  haul_peer_close(handle);
}

PyObject *peer_object(struct node *node, haul_peer *handle) {
  return (PyObject *)object_new(haulpy.peer, "peer", handle, release_peer, node);
}

/* Several objects may stand for one peer: each message creates one. */
static PyObject *peer_compare(PyObject *self, PyObject *other, int operation) {
  if (Py_TYPE(other) != Py_TYPE(self) || (operation != Py_EQ && operation != Py_NE))
    Py_RETURN_NOTIMPLEMENTED;
  const void *ours = ((struct object *)self)->handle, *theirs = ((struct object *)other)->handle;
  bool same = self == other || (ours && ours == theirs);
  return PyBool_FromLong(same == (operation == Py_EQ));
}

static void release_remote(void *handle) {
  haul_remote_release(handle);
}

static PyObject *remote_object(struct object *peer, haul_remote *handle, const char *name) {
  struct object *object = object_new(haulpy.remote, "remote", handle, release_remote, peer->node);
  struct remote *remote = (struct remote *)object;
  if (!remote)
    return NULL;
  remote->peer = Py_NewRef((PyObject *)peer);
  remote->name = text_of(name);
  if (remote->name)
    return (PyObject *)remote;
  Py_DECREF((PyObject *)remote);
  return NULL;
}

struct lookup {
  struct job job;
  haul_deadline until;
  haul_remote *remote;
  char name[320]; /* longer names are too long for the library even when cut */
};

static int run_lookup(struct job *job) {
  struct lookup *lookup = (struct lookup *)job;
  return haul_peer_lookup(job->handle, lookup->name, lookup->until, &lookup->remote);
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
  struct lookup *lookup = job_new(sizeof *lookup, peer, "lookup", run_lookup, undo_lookup);
  if (!lookup)
    return NULL;
  lookup->until = until;
  PyOS_snprintf(lookup->name, sizeof lookup->name, "%s", name);
  if (job_run(&lookup->job) != 0)
    return NULL;
  PyObject *remote = remote_object(peer, lookup->remote, name);
  job_free(&lookup->job);
  return remote;
}

struct listing {
  struct job job;
  haul_deadline until;
  struct haul_published *entries; /* freed by undo_list once run_list has succeeded */
  size_t count;
};

static void undo_list(struct job *job) {
  free(((struct listing *)job)->entries);
}

/* Retries until all fit: the peer may publish more between two calls. */
static int run_list(struct job *job) {
  struct listing *listing = (struct listing *)job;
  size_t room = 64;
  for (;;) {
    free(listing->entries);
    listing->entries = calloc(room, sizeof *listing->entries);
    if (!listing->entries)
      room = 0; /* list_of raises MemoryError */
    listing->count = room;
    int code = haul_peer_list(job->handle, listing->until, listing->entries, &listing->count);
    if (code)
      undo_list(job);
    if (code || listing->count <= room || !listing->entries)
      return code;
    room = listing->count + 64;
  }
}

static PyObject *rights_item(void *rights) {
  return rights_of(*(const unsigned *)rights);
}

static PyObject *list_of(const struct listing *listing) {
  if (!listing->entries)
    return PyErr_NoMemory();
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < listing->count; i++) {
    const struct haul_published *entry = &listing->entries[i];
    PyObject *values =
        Py_BuildValue("(O&KO&O&)", TEXT(entry->name), (unsigned long long)entry->length,
                      PLACE(entry->place), rights_item, (void *)(uintptr_t)&entry->rights);
    list_append(&list, data_make("Published", values));
  }
  return list;
}

static PyObject *peer_list(PyObject *self, PyObject *args, PyObject *keywords) {
  struct object *peer = (struct object *)self;
  haul_deadline until;
  if (!deadline_argument(args, keywords, "|$O", peer->node->timeout, &until))
    return NULL;
  struct listing *listing = job_new(sizeof *listing, peer, "list", run_list, undo_list);
  if (!listing)
    return NULL;
  listing->until = until;
  if (job_run(&listing->job) != 0)
    return NULL;
  PyObject *list = list_of(listing);
  undo_list(&listing->job);
  job_free(&listing->job);
  return list;
}

static PyObject *check_of(void *handle) {
  return haul_peer_status(handle) ? raise_last() : Py_NewRef(Py_None);
}
METHOD(peer, check)

/* Equal peers are open and have one handle. */
static Py_hash_t peer_hash(PyObject *self) {
  return (Py_hash_t)(((struct object *)self)->identity >> 4);
}

static PyObject *peer_repr(PyObject *self) {
  struct object *peer = (struct object *)self;
  if (peer->closed || peer->node->base.closed)
    return PyUnicode_FromString("<haul.Peer, closed>");
  return PyUnicode_FromFormat("<haul.Peer %s%s>", haul_peer_name(peer->handle),
                              haul_peer_status(peer->handle) == 0 ? "" : ", gone");
}

static PyObject *get_name(void *handle) {
  return text_of(haul_peer_name(handle));
}
GETTER(name);

static PyObject *get_identity(void *handle) {
  return text_of(haul_peer_identity(handle));
}
GETTER(identity);

static PyObject *get_alive(void *handle) {
  return PyBool_FromLong(haul_peer_status(handle) == 0);
}
GETTER(alive);

PyTypeObject *peer_type(void) {
  static PyMethodDef methods[] = {
      {"lookup", METHOD_WITH_KEYWORDS(peer_lookup),
       "lookup(name, *, timeout=None): the region that it publishes under the name."},
      {"list", METHOD_WITH_KEYWORDS(peer_list),
       "list(*, timeout=None): the regions that it publishes."},
      {"send", METHOD_WITH_KEYWORDS(message_send),
       "send(data=b\"\", *, tag=0, timeout=None): send a message. It arrives after the writes to "
       "the peer that were started before."},
      {"check", peer_check, METH_NOARGS, "Raise PeerGone, with the reason, if it is gone."},
      OBJECT_CLOSE,
      OBJECT_METHODS,
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef getters[] = {
      PROPERTY(name, "The name that it gave itself."),
      PROPERTY(identity, "Authenticated identity: the name of its key or certificate, uid:N over a "
                         "Unix socket; '' without authentication."),
      PROPERTY(alive, "Whether it is connected."),
      {NULL, NULL, NULL, NULL, NULL}};
  static PyMemberDef members[] = {
      OBJECT_MEMBERS,
      MEMBER("node", T_OBJECT_EX, struct object, node, "The node that is connected to it."),
      {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_dealloc, object_free),
                                SLOT(Py_tp_traverse, object_traverse),
                                SLOT(Py_tp_repr, peer_repr),
                                SLOT(Py_tp_richcompare, peer_compare),
                                SLOT(Py_tp_hash, peer_hash),
                                {Py_tp_methods, methods},
                                {Py_tp_getset, getters},
                                {Py_tp_members, members},
                                {Py_tp_doc, "Another node, from Node.connect or a message."},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.Peer", sizeof(struct object), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}

static int remote_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((struct remote *)self)->peer);
  return object_traverse(self, visit, arg);
}

static void remote_dealloc(PyObject *self) {
  struct remote *remote = (struct remote *)self;
  PyObject *peer = remote->peer, *name = remote->name;
  object_free(self);
  Py_XDECREF(name);
  Py_DECREF(peer);
}

static PyObject *get_length(void *handle) {
  return PyLong_FromUnsignedLongLong(haul_remote_length(handle));
}
GETTER(length);

static PyObject *get_place(void *handle) {
  return place_text(haul_remote_place(handle));
}
GETTER(place);

static PyObject *get_rights(void *handle) {
  return rights_of(haul_remote_rights(handle));
}
GETTER(rights);

static PyObject *remote_repr(PyObject *self) {
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
       "priority=0, cpu_time=False): start a write from a region, or from a contiguous tensor: "
       "then local offsets "
       "count from its first byte. Pieces are (local offset, remote offset, length); None writes "
       "all of it. Of the transfers that wait for a path, priority 1 goes first and -1 last. With "
       "cpu_time "
       "the report has the CPU time. Keep "
       "the transfer or the region until it has ended."},
      {"read", METHOD_WITH_KEYWORDS(transfer_read),
       "read(...): start a read into the region or tensor."},
      {"fetch_add", METHOD_WITH_KEYWORDS(transfer_fetch_add),
       "fetch_add(result, offset, value, *, result_offset=0, timeout=None, only=None): add to the "
       "8 bytes at the offset; store their old value in the region or tensor `result`."},
      {"compare_swap", METHOD_WITH_KEYWORDS(transfer_compare_swap),
       "compare_swap(result, offset, expected, desired, *, result_offset=0, timeout=None, "
       "only=None): replace the expected number by the desired one; store the old value in "
       "`result`."},
      {"explain", METHOD_WITH_KEYWORDS(transfer_explain),
       "explain(region, operation=\"write\", length=None, *, only=None, zero_copy=False, "
       "checksum=False): the paths that a transfer would have, the chosen one first."},
      OBJECT_CLOSE,
      OBJECT_METHODS,
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef getters[] = {PROPERTY(length, "In bytes."),
                                  PROPERTY(place, "Its place, as numbered by its owner."),
                                  PROPERTY(rights, "READ, WRITE or both."),
                                  {NULL, NULL, NULL, NULL, NULL}};
  static PyMemberDef members[] = {
      OBJECT_MEMBERS,
      MEMBER("peer", T_OBJECT_EX, struct remote, peer, "Its owner."),
      MEMBER("name", T_OBJECT_EX, struct remote, name, "The name that was looked up."),
      {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_dealloc, remote_dealloc),
                                SLOT(Py_tp_traverse, remote_traverse),
                                SLOT(Py_tp_repr, remote_repr),
                                {Py_tp_methods, methods},
                                {Py_tp_getset, getters},
                                {Py_tp_members, members},
                                {Py_tp_doc, "A region that a peer publishes, from Peer.lookup."},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.Remote", sizeof(struct remote), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
