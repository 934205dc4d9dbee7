/* SPDX-License-Identifier: MIT
 * haul.broadcast.Source: publishes versions, and lists the receivers. */
#include "broadcast.h"

static PyObject *source_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"node", "name", "members", "chunk", NULL};
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  haul_broadcast *handle = NULL;
  struct node *node;
  const char *name;
  int code;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!s|$O&O&", names, haulpy.node, &node, &name,
                                   uint32_from, &options.members, uint64_from, &options.chunk))
    return NULL;
  haul_node *opened = object_enter(&node->base, "Source");
  if (!opened)
    return NULL;
  WITHOUT_GIL(code = haul_broadcast_open(opened, name, &options, &handle));
  struct object *source = NULL;
  if (code)
    raise_last();
  else
    source = object_new(type, "source", handle, broadcast_release, node);
  if (source)
    source->released = broadcast_released;
  object_leave(&node->base);
  return (PyObject *)source;
}

static int run_publish(struct job *job) {
  struct sharing *sharing = (struct sharing *)job;
  return haul_broadcast_publish(job->handle, sharing->region, sharing->until, &sharing->version);
}

static PyObject *source_publish(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"tensor", "timeout", NULL};
  struct broadcast *source = (struct broadcast *)self;
  PyObject *tensor, *timeout = Py_None;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$O", names, &tensor, &timeout) ||
      !deadline_from(timeout, source->base.node->timeout, &until))
    return NULL;
  struct sharing *sharing = sharing_new(sizeof *sharing, source, tensor, "publish", run_publish);
  if (!sharing)
    return NULL;
  sharing->until = until;
  if (job_run(&sharing->job) != 0)
    return NULL;
  PyObject *version = PyLong_FromUnsignedLongLong(sharing->version);
  job_free(&sharing->job);
  return version;
}

static PyObject *member_object(const struct haul_broadcast_member *member) {
  static const char *const states[] = {"waiting", "receiving", "complete", "silent", "left"};
  int state = member->state;
  return data_make(
      "Member",
      Py_BuildValue("(O&O&sKKKLO&O&)", TEXT(member->name), TEXT(member->address),
                    state >= 1 && state <= 5 ? states[state - 1] : "unknown",
                    (unsigned long long)member->version, (unsigned long long)member->bytes,
                    (unsigned long long)member->retries, (long long)member->duration_ns,
                    TEXT(member->feeder), TEXT(member->path)));
}

static PyObject *members_list(haul_broadcast *handle) {
  struct haul_broadcast_member *members = NULL;
  size_t count = 0, room = 0;
  PyObject *list = NULL;
  int code;
  do { /* more may join meanwhile */
    room = count;
    PyMem_Free(members);
    members = PyMem_Calloc(room + 1, sizeof *members);
    if (!members)
      return PyErr_NoMemory();
    count = room;
    code = haul_broadcast_members(handle, members, &count);
  } while (!code && count > room);
  list = code ? raise_last() : PyList_New(0);
  for (size_t i = 0; list && i < count; i++)
    list_append(&list, member_object(&members[i]));
  PyMem_Free(members);
  return list;
}

static PyObject *source_members(PyObject *self, PyObject *none) {
  struct broadcast *source = (struct broadcast *)self;
  haul_broadcast *handle = broadcast_begin(source, "members");
  (void)none;
  if (!handle)
    return NULL;
  PyObject *list = members_list(handle);
  broadcast_end(source);
  return list;
}

static PyMethodDef methods[] = {
    {"publish", METHOD_WITH_KEYWORDS(source_publish),
     DOC("publish($self, tensor, *, timeout=None)",
         "Make a tensor's bytes the next version.\n"
         "\n"
         "tensor   a Region of the node, all of it; or what Node.wrap takes (numpy, PyTorch, "
         "buffers),\n"
         "         contiguous; or None: a version without bytes\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns the version, a number that grows, also over restarts of the source. Blocks while "
         "the\n"
         "checksums are computed. The version before stays available, as receivers may still read "
         "it;\n"
         "the one before that is withdrawn. The bytes of an available version must not change, and "
         "its\n"
         "region cannot be closed (BufferError): call withdraw first.\n"
         "\n"
         "Raises Busy (the memory is that of an available version), TimedOut, ValueError (it is "
         "not\n"
         "contiguous, or of another node), and as Region.publish. An interrupted call may end all\n"
         "versions.")},
    {"withdraw", METHOD_WITH_KEYWORDS(broadcast_withdraw),
     DOC("withdraw($self, version=0)",
         "End the service of a version and of all older ones.\n"
         "\n"
         "version  as of publish; 0: all\n"
         "\n"
         "Afterwards no peer accesses their memory. Receivers that lack chunks find them at other\n"
         "receivers. Blocks as Region.unpublish. Raises Busy (another thread is in a call).")},
    {"members", source_members, METH_NOARGS,
     DOC("members($self, /)",
         "List the receivers, as Member, in the order of the chain.\n"
         "\n"
         "Receivers report twice a second, unverified. Those that left come last, until others "
         "take\n"
         "their places. Does not wait. Raises Busy (another thread is in a call).")},
    OBJECT_CLOSE("End the broadcast: receivers that have the bytes go on among themselves.\n\n"
                 "Withdraws all versions; blocks as Region.unpublish."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

static const char text[] =
    DOC("Source(node, name, *, members=0, chunk=0)",
        "The source of a broadcast, for those peers that may use the node.\n"
        "\n"
        "node     of this process, which listens\n"
        "name     1 to 200 printable ASCII characters without blanks\n"
        "members  receivers at a time, at most 65,536; 0: 1,024\n"
        "chunk    in bytes, a power of two from 4 KiB to 1 GiB; 0: by the length, 64 KiB to 4 MiB\n"
        "\n"
        "Close it before the node. Does not wait. Raises NameInUse (this node takes part in a "
        "broadcast of\n"
        "that name), Invalid, LimitReached.");

PyTypeObject *source_type(void) {
  static PyMemberDef members[] = {OBJECT_MEMBERS,
                                  MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
                                  {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_new, source_new),
                                SLOT(Py_tp_dealloc, broadcast_free),
                                SLOT(Py_tp_traverse, broadcast_traverse),
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {Py_tp_doc, (void *)(uintptr_t)text},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.broadcast.Source", sizeof(struct broadcast), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
