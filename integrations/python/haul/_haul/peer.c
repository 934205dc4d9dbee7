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

static PyMethodDef peer_methods[] = {
    {"lookup", METHOD_WITH_KEYWORDS(peer_lookup),
     DOC("lookup($self, name, *, timeout=None)",
         "Find a region that the peer publishes.\n"
         "\n"
         "name     of the region\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a Remote. Blocks for the response, and over rdma until its owner has pinned it.\n"
         "Raises NoSuchName, LimitReached (max_lookups there), TimedOut, PeerGone.")},
    {"list", METHOD_WITH_KEYWORDS(peer_list),
     DOC("list($self, *, timeout=None)", "List the regions that the peer publishes to this node.\n"
                                         "\n"
                                         "timeout  in seconds; None: the node's\n"
                                         "\n"
                                         "Returns a list of Published, by name. Blocks for the "
                                         "response. Raises TimedOut, PeerGone.")},
    {"send", METHOD_WITH_KEYWORDS(message_send),
     DOC("send($self, data=b\"\", *, tag=0, timeout=None)",
         "Send a message. It arrives after the writes to the peer that were started before.\n"
         "\n"
         "data     a buffer of at most MESSAGE_MAX bytes\n"
         "tag      a number from 0 to 2^64 - 1 for the receiver\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Blocks for those writes and for room at the receiver. Raises TimedOut (nothing was "
         "sent),\n"
         "LimitReached (too long), PeerGone; OverflowError for a tag.")},
    {"check", peer_check, METH_NOARGS,
     DOC("check($self, /)", "Raise PeerGone, ProtocolViolated or Closed, with the reason, if the "
                            "connection has ended.\n"
                            "Does not wait.")},
    OBJECT_CLOSE("Drop this reference; the connection ends with the last one of the side "
                 "that\nconnected. Does not wait."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

PyTypeObject *peer_type(void) {
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
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, object_free),
      SLOT(Py_tp_traverse, object_traverse),
      SLOT(Py_tp_repr, peer_repr),
      SLOT(Py_tp_richcompare, peer_compare),
      SLOT(Py_tp_hash, peer_hash),
      {Py_tp_methods, peer_methods},
      {Py_tp_getset, getters},
      {Py_tp_members, members},
      {Py_tp_doc, "Another node, from Node.connect, World.peer or a message."},
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

/* Of the docstrings of write and read. */
#define MOVE_ARGUMENTS                                                                             \
  "region     a Region of the same node, or a contiguous Tensor: then local offsets count "        \
  "from\n"                                                                                         \
  "           its first byte\n"                                                                    \
  "pieces     (local offset, remote offset, length) in bytes each, or for evenly spaced ones\n"    \
  "           (local offset, remote offset, length, count, local step, remote step); None: all\n"  \
  "           of the region, at the remote's start\n"                                              \
  "timeout    in seconds, until the transfer ends with TimedOut; None: the node's\n"               \
  "only       use only this path: \"map\", \"rdma\", \"tcp\"\n"                                    \
  "zero_copy  require one movement from source to destination\n"                                   \
  "checksum   verify each slice at the destination, by XXH3\n"                                     \
  "priority   1, 0 or -1: the order among transfers that wait for a path\n"                        \
  "cpu_time   measure the CPU time for the report\n"                                               \
  "more       more transfers follow at once: it may be batched with them\n"                        \
  "notify     a buffer of at most MESSAGE_MAX bytes: a message that the peer receives when "       \
  "all\n"                                                                                          \
  "           bytes are in place, and never if the transfer fails; None: no message\n"             \
  "tag        of that message, from 0 to 2^64 - 1\n"                                               \
  "after      a torch.cuda.Event, or the handle of an event of the region's GPU: the local "       \
  "memory\n"                                                                                       \
  "           is accessed once it has completed. Do not record it again before the end, nor "      \
  "drop\n"                                                                                         \
  "           the Transfer, which keeps it\n"                                                      \
  "\n"                                                                                             \
  "Returns a Transfer. Does not wait; small ones over map have ended on return. Until its "        \
  "end\n"
#define MOVE_RAISES                                                                                \
  "Raises OutOfRange, AccessDenied, NoPath (the hint has each path's reason), Stale, "             \
  "PeerGone,\n"                                                                                    \
  "LimitReached, Invalid; ValueError for a tag without a message; later, from "                    \
  "Transfer.wait,\n"                                                                               \
  "also TimedOut, Canceled, ChecksumMismatch, PathBroke."

static PyMethodDef remote_methods[] = {
    {"write", METHOD_WITH_KEYWORDS(transfer_write),
     DOC("write($self, region, pieces=None, *, timeout=None, only=None, zero_copy=False, "
         "checksum=False, priority=0, cpu_time=False, more=False, notify=None, tag=0, after=None)",
         "Start a write: local bytes to the remote.\n"
         "\n" MOVE_ARGUMENTS "the local bytes must not change.\n" MOVE_RAISES)},
    {"read", METHOD_WITH_KEYWORDS(transfer_read),
     DOC("read($self, region, pieces=None, *, timeout=None, only=None, zero_copy=False, "
         "checksum=False, priority=0, cpu_time=False, more=False, notify=None, tag=0, after=None)",
         "Start a read: bytes of the remote to local memory.\n"
         "\n" MOVE_ARGUMENTS "the local bytes are undefined.\n" MOVE_RAISES)},
    {"fetch_add", METHOD_WITH_KEYWORDS(transfer_fetch_add),
     DOC("fetch_add($self, result, offset, value, *, result_offset=0, timeout=None, only=None, "
         "notify=None, tag=0)",
         "Start an atomic addition to 8 bytes of the remote.\n"
         "\n"
         "result         a Region or a contiguous Tensor, whose 8 bytes get the old value\n"
         "offset         of the remote's 8 bytes, a multiple of 8\n"
         "value          to add, modulo 2^64\n"
         "result_offset  of the 8 bytes in `result`, a multiple of 8\n"
         "timeout        in seconds; None: the node's\n"
         "only           use only this path\n"
         "notify         as of write\n"
         "tag            as of write\n"
         "\n"
         "Returns a Transfer. Does not wait. The remote needs READ and WRITE. Raises as write.")},
    {"compare_swap", METHOD_WITH_KEYWORDS(transfer_compare_swap),
     DOC("compare_swap($self, result, offset, expected, desired, *, result_offset=0, timeout=None, "
         "only=None, notify=None, tag=0)",
         "Start an atomic exchange of 8 bytes of the remote, if they have the expected value.\n"
         "\n"
         "result         a Region or a contiguous Tensor, whose 8 bytes get the old value\n"
         "offset         of the remote's 8 bytes, a multiple of 8\n"
         "expected       the value that is replaced\n"
         "desired        the new value; both modulo 2^64\n"
         "result_offset  of the 8 bytes in `result`, a multiple of 8\n"
         "timeout        in seconds; None: the node's\n"
         "only           use only this path\n"
         "notify         as of write\n"
         "tag            as of write\n"
         "\n"
         "Returns a Transfer. Does not wait. The remote needs READ and WRITE. Raises as write.")},
    {"explain", METHOD_WITH_KEYWORDS(transfer_explain),
     DOC("explain($self, region, operation=\"write\", length=None, *, only=None, zero_copy=False, "
         "checksum=False)",
         "List the paths that a transfer would have, without moving a byte.\n"
         "\n"
         "region     the local Region or contiguous Tensor\n"
         "operation  \"write\", \"read\", \"fetch_add\", \"compare_swap\"\n"
         "length     in bytes; None: that of the region\n"
         "only       as of write\n"
         "zero_copy  as of write\n"
         "checksum   as of write\n"
         "\n"
         "Returns a tuple of Path: the chosen one first, then the open ones by cost, then the "
         "closed\n"
         "ones. Does not wait. Raises AccessDenied, Invalid, ValueError (the operation).")},
    OBJECT_CLOSE("Release it; transfers in flight continue. Does not wait."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

PyTypeObject *remote_type(void) {
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
                                {Py_tp_methods, remote_methods},
                                {Py_tp_getset, getters},
                                {Py_tp_members, members},
                                {Py_tp_doc, "A region that a peer publishes, from Peer.lookup."},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.Remote", sizeof(struct remote), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
