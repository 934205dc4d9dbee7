/* SPDX-License-Identifier: MIT
 * World: the processes that a launcher started together. */
#include <haul/world.h>

#include "haulpy.h"

static void release_world(void *handle) {
  haul_world_leave(handle);
}

struct joining {
  struct job job;
  haul_deadline until;
  haul_world *world;
};

static int run_join(struct job *job) {
  struct joining *joining = (struct joining *)job;
  return haul_world_join(job->handle, joining->until, &joining->world);
}

static void undo_join(struct job *job) {
  haul_world_leave(((struct joining *)job)->world);
}

PyObject *node_join(PyObject *self, PyObject *args, PyObject *keywords) {
  struct node *node = (struct node *)self;
  haul_deadline until;
  if (!deadline_argument(args, keywords, "|$O", node->timeout, &until))
    return NULL;
  struct joining *joining = job_new(sizeof *joining, &node->base, "join", run_join, undo_join);
  if (!joining)
    return NULL;
  joining->until = until;
  if (job_run(&joining->job) != 0)
    return NULL;
  PyObject *made =
      (PyObject *)object_new(haulpy.world, "world", joining->world, release_world, node);
  job_free(&joining->job);
  return made;
}

struct meeting {
  struct job job;
  haul_deadline until;
  unsigned rank;
  haul_peer *peer;
};

static int run_peer(struct job *job) {
  struct meeting *meeting = (struct meeting *)job;
  return haul_world_peer(job->handle, meeting->rank, meeting->until, &meeting->peer);
}

static void undo_peer(struct job *job) {
  haul_peer_close(((struct meeting *)job)->peer);
}

static PyObject *world_peer(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"rank", "timeout", NULL};
  struct object *world = (struct object *)self;
  PyObject *timeout = Py_None;
  unsigned rank;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|$O", names, uint32_from, &rank, &timeout) ||
      !deadline_from(timeout, world->node->timeout, &until))
    return NULL;
  struct meeting *meeting = job_new(sizeof *meeting, world, "peer", run_peer, undo_peer);
  if (!meeting)
    return NULL;
  meeting->rank = rank;
  meeting->until = until;
  if (job_run(&meeting->job) != 0)
    return NULL;
  PyObject *peer = peer_object(world->node, meeting->peer);
  job_free(&meeting->job);
  return peer;
}

static PyObject *get_rank(void *handle) {
  return PyLong_FromUnsignedLong(haul_world_rank(handle));
}
GETTER(rank);

static PyObject *get_size(void *handle) {
  return PyLong_FromUnsignedLong(haul_world_size(handle));
}
GETTER(size);

static PyObject *get_addresses(void *handle) {
  PyObject *list = PyList_New(0);
  for (unsigned i = 0; list && i < haul_world_size(handle); i++)
    list_append(&list, text_of(haul_world_address(handle, i)));
  return list;
}
GETTER(addresses);

static PyMethodDef methods[] = {
    {"peer", METHOD_WITH_KEYWORDS(world_peer),
     DOC("peer($self, rank, *, timeout=None)",
         "Return the Peer of a rank.\n"
         "\n"
         "rank     of another process, counted from 0\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Connects on first use, and again after the connection has ended; blocks for that. "
         "Raises\n"
         "OutOfRange (no such rank, or this process's), TimedOut, and as Node.connect.")},
    OBJECT_CLOSE("Close the connections that the world made, except those whose Peer is in use. "
                 "The\nnode stays. Does not wait."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

PyTypeObject *world_type(void) {
  static PyGetSetDef getters[] = {PROPERTY(rank, "This process's number, counted from 0."),
                                  PROPERTY(size, "The number of processes."),
                                  PROPERTY(addresses, "The address of each rank: list of str."),
                                  {NULL, NULL, NULL, NULL, NULL}};
  static PyMemberDef members[] = {OBJECT_MEMBERS,
                                  MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
                                  {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, object_free),
      SLOT(Py_tp_traverse, object_traverse),
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_members, members},
      {Py_tp_doc, "The processes that a launcher started together, from Node.join."},
      {0, NULL}};
  static PyType_Spec spec = {"haul.World", sizeof(struct object), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
