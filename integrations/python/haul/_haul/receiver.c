/* SPDX-License-Identifier: MIT
 * haul.broadcast.Receiver: receives versions, and passes them on. */
#include <stdlib.h>

#include "broadcast.h"

#define STEP_NS 1000000000 /* upper bound of the delay of a signal */

struct receiver {
  struct broadcast broadcast;
  uint64_t last;               /* the version that was received last */
  PyObject *report;            /* a reference; of the last receive, or None */
  struct receiving *receiving; /* set by its thread, for on_progress */
};

/* ---- Join ---- */

enum { TEXT_ROOM = 257 }; /* the library refuses longer ones than fit */

struct joining {
  struct job job;
  struct haul_broadcast_options options;
  haul_deadline until;
  haul_broadcast *broadcast;
  char address[TEXT_ROOM], name[TEXT_ROOM], advertise[TEXT_ROOM], member[TEXT_ROOM];
};

static int run_join(struct job *job) {
  struct joining *joining = (struct joining *)job;
  return haul_broadcast_join(job->handle, joining->address, joining->name, &joining->options,
                             joining->until, &joining->broadcast);
}

static void undo_join(struct job *job) {
  haul_broadcast_close(((struct joining *)job)->broadcast);
}

/* The arguments of Receiver. */
struct invitation {
  struct node *node;
  const char *address, *name, *advertise, *member;
  unsigned in_flight;
  haul_deadline until;
};

static bool read_invitation(PyObject *args, PyObject *keywords, struct invitation *given) {
  static char *names[] = {"node",   "address",   "name",    "advertise",
                          "member", "in_flight", "timeout", NULL};
  PyObject *timeout = Py_None;
  return PyArg_ParseTupleAndKeywords(args, keywords, "O!ss|$zzO&O", names, haulpy.node,
                                     &given->node, &given->address, &given->name, &given->advertise,
                                     &given->member, uint32_from, &given->in_flight, &timeout) &&
         deadline_from(timeout, given->node->timeout, &given->until);
}

/* The copy, or NULL for NULL. */
static const char *copy_text(char to[TEXT_ROOM], const char *from) {
  if (from)
    PyOS_snprintf(to, TEXT_ROOM, "%s", from);
  return from ? to : NULL;
}

static int on_progress(void *user, uint64_t bytes);

/* `receiver` is passed to on_progress. NULL with an exception. */
static haul_broadcast *join(struct receiver *receiver, const struct invitation *given) {
  struct joining *joining =
      job_new(sizeof *joining, &given->node->base, "Receiver", run_join, undo_join);
  if (!joining)
    return NULL;
  joining->until = given->until;
  joining->options = (struct haul_broadcast_options)HAUL_BROADCAST_OPTIONS_INIT;
  joining->options.in_flight = given->in_flight;
  joining->options.progress = on_progress;
  joining->options.user = receiver;
  copy_text(joining->address, given->address);
  copy_text(joining->name, given->name);
  joining->options.address = copy_text(joining->advertise, given->advertise);
  joining->options.member = copy_text(joining->member, given->member);
  if (job_run(&joining->job) != 0)
    return NULL;
  haul_broadcast *broadcast = joining->broadcast;
  job_free(&joining->job);
  return broadcast;
}

static PyObject *receiver_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  struct invitation given = {.node = NULL};
  if (!read_invitation(args, keywords, &given))
    return NULL;
  struct object *object = object_new(type, "receiver", NULL, broadcast_release, given.node);
  if (!object)
    return NULL;
  struct receiver *receiver = (struct receiver *)object;
  receiver->report = Py_NewRef(Py_None);
  object->released = broadcast_released;
  object->handle = join(receiver, &given);
  object->identity = (uintptr_t)object->handle;
  if (!object->handle)
    Py_CLEAR(object);
  return (PyObject *)object;
}

/* ---- The next version ---- */

struct asking {
  haul_broadcast *broadcast;
  uint64_t after;
  haul_deadline until;
  struct haul_broadcast_version version;
  struct haul_error error; /* of the last look; code 0: none yet */
};

/* A step has a deadline of its own, as a connection to the source that it has begun ends with it. A
 * source that is away may come back. */
static int step_next(void *user, haul_deadline until) {
  struct asking *asking = user;
  haul_deadline end = haul_deadline_in(STEP_NS);
  if (asking->error.code && end - STEP_NS >= asking->until)
    return STEP_AGAIN; /* the deadline has passed */
  (void)until;
  int code = haul_broadcast_next(asking->broadcast, asking->after,
                                 end < asking->until ? end : asking->until, &asking->version);
  if (code)
    asking->error = *haul_error_last();
  return code && code != HAUL_ECLOSED ? STEP_AGAIN : code;
}

static PyObject *version_object(const struct haul_broadcast_version *version) {
  return data_make("Version", Py_BuildValue("(KKK)", (unsigned long long)version->number,
                                            (unsigned long long)version->length,
                                            (unsigned long long)version->chunk));
}

static PyObject *receiver_next(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"after", "timeout", NULL};
  struct receiver *receiver = (struct receiver *)self;
  struct object *object = (struct object *)self;
  struct asking asking = {.after = receiver->last};
  PyObject *after = Py_None, *timeout = Py_None, *version = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$O", names, &after, &timeout) ||
      !deadline_from(timeout, object->node->timeout, &asking.until))
    return NULL;
  if (after != Py_None && !uint64_from(after, &asking.after))
    return NULL;
  asking.broadcast = broadcast_begin(&receiver->broadcast, "next");
  if (!asking.broadcast)
    return NULL;
  int code = wait_in_steps(object, "next", step_next, &asking, asking.until);
  if (code == 0)
    version = version_object(&asking.version);
  else if (code != WAIT_RAISED)
    raise_error(&asking.error);
  broadcast_end(&receiver->broadcast);
  return version;
}

/* ---- Receive ---- */

struct receiving {
  struct sharing sharing;
  struct haul_broadcast_version version;
  unsigned flags;
  struct haul_broadcast_report report;
  struct haul_broadcast_feeder *feeders; /* allocated, or NULL */
  size_t feeder_count;
  PyObject *progress; /* a reference to its argument; NULL: none */
  PyObject *ended;    /* a reference to a list that the caller has, too. The call ends once it is
                         not empty: an exception of `progress`, or None after an interrupt */
};

static bool should_end(const struct receiver *receiver) {
  const struct object *object = &receiver->broadcast.base;
  return object->closed || object->node->base.closed || PyList_Size(receiver->receiving->ended) > 0;
}

/* Moves the exception that is set into the list. */
static void keep_exception(PyObject *list) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace)
    PyException_SetTraceback(value, trace);
  PyList_Append(list, value ? value : Py_None);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

/* Called during a receive, in its thread. Other than 0 ends it. */
static int on_progress(void *user, uint64_t bytes) {
  const struct receiver *receiver = user;
  PyGILState_STATE state;
  if (!foreign_enter(&state))
    return 1;
  PyObject *progress = receiver->receiving->progress;
  if (progress && !should_end(receiver)) {
    PyObject *result = PyObject_CallFunction(progress, "K", (unsigned long long)bytes);
    if (!result)
      keep_exception(receiver->receiving->ended);
    Py_XDECREF(result);
  }
  int end = should_end(receiver);
  foreign_leave(state);
  return end;
}

static void list_feeders(struct receiving *receiving, haul_broadcast *handle) {
  size_t count = 0;
  if (haul_broadcast_feeders(handle, NULL, &count))
    return;
  receiving->feeders = calloc(count + 1, sizeof *receiving->feeders);
  if (receiving->feeders && haul_broadcast_feeders(handle, receiving->feeders, &count) == 0)
    receiving->feeder_count = count;
}

static int run_receive(struct job *job) {
  struct receiving *receiving = (struct receiving *)job;
  struct receiver *receiver = (struct receiver *)job->used[0];
  receiver->receiving = receiving;
  int code = haul_broadcast_receive(job->handle, &receiving->version, receiving->sharing.region,
                                    receiving->flags, receiving->sharing.until, &receiving->report);
  if (!code)
    receiving->sharing.version = receiving->version.number;
  list_feeders(receiving, job->handle);
  return code;
}

static PyObject *feeder_object(const struct haul_broadcast_feeder *feeder) {
  return data_make("Feeder",
                   Py_BuildValue("(O&O&OKKO&)", TEXT(feeder->name), TEXT(feeder->path),
                                 TRUTH(feeder->source), (unsigned long long)feeder->bytes,
                                 (unsigned long long)feeder->retries, TEXT(feeder->reason)));
}

static PyObject *feeders_item(void *given) {
  const struct receiving *receiving = given;
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < receiving->feeder_count; i++)
    list_append(&list, feeder_object(&receiving->feeders[i]));
  PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
  Py_XDECREF(list);
  return tuple;
}

static PyObject *report_object_of(struct receiving *receiving) {
  const struct haul_broadcast_report *report = &receiving->report;
  return data_make(
      "BroadcastReport",
      Py_BuildValue("(KKKKKLO&)", (unsigned long long)report->version,
                    (unsigned long long)report->bytes, (unsigned long long)report->kept,
                    (unsigned long long)report->retries, (unsigned long long)report->corrupt,
                    (long long)report->duration_ns, feeders_item, (void *)receiving));
}

static void receive_left(struct job *job) {
  struct receiving *receiving = (struct receiving *)job;
  struct receiver *receiver = (struct receiver *)job->used[0];
  PyObject *before = receiver->report, *report = report_object_of(receiving);
  if (!report)
    PyErr_Clear(); /* no memory: there is no report */
  receiver->report = report ? report : Py_NewRef(Py_None);
  receiver->receiving = NULL;
  if (receiving->sharing.version)
    receiver->last = receiving->sharing.version;
  free(receiving->feeders);
  Py_XDECREF(before);
  Py_XDECREF(receiving->progress);
  Py_XDECREF(receiving->ended);
  sharing_left(job);
}

/* The arguments of receive. */
struct wanted {
  struct haul_broadcast_version version;
  PyObject *tensor, *progress;
  haul_deadline until;
  unsigned flags;
};

static bool read_wanted(PyObject *self, PyObject *args, PyObject *keywords, struct wanted *wanted) {
  static char *names[] = {"version", "tensor", "keep", "newer", "progress", "timeout", NULL};
  PyObject *version, *timeout = Py_None;
  uint64_t number, length, chunk;
  int kept = 0, newer = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O|$ppOO", names, &PyTuple_Type, &version,
                                   &wanted->tensor, &kept, &newer, &wanted->progress, &timeout) ||
      !PyArg_ParseTuple(version, "O&O&O&;invalid version: expected a Version of next", uint64_from,
                        &number, uint64_from, &length, uint64_from, &chunk) ||
      !deadline_from(timeout, ((struct object *)self)->node->timeout, &wanted->until))
    return false;
  wanted->version = (struct haul_broadcast_version){number, length, chunk};
  wanted->flags = (kept ? HAUL_BROADCAST_KEEP : 0) | (newer ? HAUL_BROADCAST_NEWER : 0);
  if (wanted->progress == Py_None || PyCallable_Check(wanted->progress))
    return true;
  PyErr_Format(PyExc_TypeError, "invalid progress %R: expected a function of a number of bytes",
               wanted->progress);
  return false;
}

static struct receiving *receiving_new(struct broadcast *broadcast, const struct wanted *wanted,
                                       PyObject *ended) {
  struct receiving *receiving =
      sharing_new(sizeof *receiving, broadcast, wanted->tensor, "receive", run_receive);
  if (!receiving)
    return NULL;
  const struct region *region = receiving->sharing.pinned;
  if (region && !region_must_be_writable(region, "receive")) {
    job_drop(&receiving->sharing.job);
    return NULL;
  }
  receiving->sharing.job.left = receive_left;
  receiving->sharing.until = wanted->until;
  receiving->version = wanted->version;
  receiving->flags = wanted->flags;
  receiving->report = (struct haul_broadcast_report)HAUL_BROADCAST_REPORT_INIT;
  receiving->progress = wanted->progress == Py_None ? NULL : Py_NewRef(wanted->progress);
  receiving->ended = Py_NewRef(ended);
  return receiving;
}

/* The exception that is set, unless on_progress ended the call: then why. An interrupted call goes
 * on, and ends soon. */
static void raise_reason(PyObject *ended) {
  PyObject *type, *value, *trace, *canceled = NULL;
  PyErr_Fetch(&type, &value, &trace);
  canceled = PyObject_GetAttrString(haulpy.data, "Canceled");
  bool is_canceled = canceled && PyErr_GivenExceptionMatches(type, canceled);
  Py_XDECREF(canceled);
  PyErr_Clear();
  if (!is_canceled) {
    PyList_Append(ended, Py_None);
    PyErr_Restore(type, value, trace);
    return;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  PyObject *raised = PyList_GetItem(ended, 0);
  if (raised) {
    PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    return;
  }
  PyErr_Clear();
  raise_own(HAUL_ECLOSED, "receive", "receiver", "another thread closed it during the call",
            "close it when no other thread waits");
}

static PyObject *receiver_receive(PyObject *self, PyObject *args, PyObject *keywords) {
  struct receiver *receiver = (struct receiver *)self;
  struct wanted wanted = {.progress = Py_None};
  PyObject *report = NULL;
  if (!read_wanted(self, args, keywords, &wanted))
    return NULL;
  PyObject *ended = PyList_New(0);
  struct receiving *receiving = ended ? receiving_new(&receiver->broadcast, &wanted, ended) : NULL;
  if (receiving && job_run(&receiving->sharing.job) == 0) {
    job_free(&receiving->sharing.job);
    report = Py_NewRef(receiver->report);
  } else if (receiving) {
    raise_reason(ended);
  }
  Py_XDECREF(ended);
  return report;
}

static PyMethodDef methods[] = {
    {"next", METHOD_WITH_KEYWORDS(receiver_next),
     DOC("next($self, after=None, *, timeout=None)",
         "Wait for a version that is newer than the last one.\n"
         "\n"
         "after    the number of that version; 0: any is newer; None: the one that was received "
         "last\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a Version. Blocks; looks ten times a second, and connects to the source again "
         "after a\n"
         "loss. Raises TimedOut, or at the timeout what the last look failed with, such as\n"
         "ConnectFailed or NoSuchName (the source ended the broadcast); Busy (another thread is in "
         "a\n"
         "call). Ctrl-C ends it within a second.")},
    {"receive", METHOD_WITH_KEYWORDS(receiver_receive),
     DOC("receive($self, version, tensor, *, keep=False, newer=False, progress=None, timeout=None)",
         "Receive a version, and pass it on from now on.\n"
         "\n"
         "version   a Version, as next returned it last\n"
         "tensor    gets its bytes: a Region of the node, its first bytes; or what Node.wrap "
         "takes\n"
         "          (numpy, PyTorch, buffers), contiguous; or None for a version without bytes\n"
         "keep      keep chunks of the tensor that are right already\n"
         "newer     fail with Stale once the source has a newer version\n"
         "progress  a function that is called ten times a second with the number of bytes that "
         "are\n"
         "          there, in any thread; its exception ends the call\n"
         "timeout   in seconds; None: the node's\n"
         "\n"
         "Returns a BroadcastReport. Blocks until all bytes are there, with right checksums: the "
         "tensor\n"
         "never has parts of two versions then. After an error its bytes are undefined.\n"
         "\n"
         "Other receivers read the tensor until withdraw, close, a call for the same memory, or "
         "the "
         "second\n"
         "next call. Until then it must not change, and its region cannot be closed "
         "(BufferError).\n"
         "Receive into two tensors in turn, so that one is whole at any time; or into the same "
         "one.\n"
         "\n"
         "Raises Stale (neither the source nor a receiver has the version any more), TimedOut,\n"
         "OutOfRange (the tensor is too short), AccessDenied (it is read-only), ValueError (it is "
         "not\n"
         "contiguous, or of another node), Invalid (another version), NameInUse (the version is "
         "in\n"
         "another tensor), ChecksumMismatch, PeerGone, Busy (another thread is in a call). "
         "`report` has\n"
         "the report after an error, too. An interrupted call ends soon, in the background, and "
         "withdraws\n"
         "its version.")},
    {"withdraw", METHOD_WITH_KEYWORDS(broadcast_withdraw),
     DOC("withdraw($self, version=0)",
         "Stop passing on a version and all older ones.\n"
         "\n"
         "version  its number; 0: all\n"
         "\n"
         "Afterwards no peer accesses their memory. Blocks as Region.unpublish. Raises Busy "
         "(another\n"
         "thread is in a call).")},
    OBJECT_CLOSE("Leave the broadcast.\n\n"
                 "Withdraws all versions and ends a call in progress; blocks as Region.unpublish, "
                 "and up to a\n"
                 "second for the source."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

static void dealloc(PyObject *self) {
  PyObject *report = ((struct receiver *)self)->report;
  broadcast_free(self);
  Py_XDECREF(report);
}

static const char text[] = DOC(
    "Receiver(node, address, name, *, advertise=None, member=None, in_flight=0, timeout=None)",
    "A receiver of a broadcast.\n"
    "\n"
    "node       of this process; if it listens, it passes on what it receives\n"
    "address    of the source's node, as of Node.connect\n"
    "name       of the broadcast\n"
    "advertise  where other receivers reach the node; None: the first address that it listens "
    "on\n"
    "member     its name in lists, 1 to 63 bytes; None: HOST:PID. It replaces an earlier receiver "
    "of\n"
    "           that name on its host\n"
    "in_flight  chunks that are read at a time, at most 64; 0: 4 MiB, 4 to 16\n"
    "timeout    in seconds; None: the node's\n"
    "\n"
    "Blocks until the source has responded. Close it before the node. Raises NoSuchName (that "
    "node is\n"
    "not the source), LimitReached (it has no room for a member more), ProtocolViolated, "
    "Invalid,\n"
    "TimedOut, and as Node.connect.");

PyTypeObject *receiver_type(void) {
  static PyMemberDef members[] = {
      OBJECT_MEMBERS,
      MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
      MEMBER("report", T_OBJECT_EX, struct receiver, report,
             "The BroadcastReport of the last receive, also of one that failed; None: none yet."),
      {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_new, receiver_new),
                                SLOT(Py_tp_dealloc, dealloc),
                                SLOT(Py_tp_traverse, broadcast_traverse),
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {Py_tp_doc, (void *)(uintptr_t)text},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.broadcast.Receiver", sizeof(struct receiver), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
