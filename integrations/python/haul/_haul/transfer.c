/* SPDX-License-Identifier: MIT
 * Transfer, and the methods of Remote that start one. */
#include <string.h>

#include "haulpy.h"

#define PIECES_MOST (1 << 28) /* 6 GiB of them */

struct transfer {
  struct object base;
  PyObject *region, *remote; /* references: their release would cancel the transfer */
  PyObject *after;           /* a reference to the event, or NULL */
};

static void release_transfer(void *handle) {
  haul_transfer_release(handle);
}

/* A new reference; None without the attribute. */
static PyObject *attribute(PyObject *object, const char *name) {
  PyObject *value = PyObject_GetAttrString(object, name);
  if (value || !PyErr_ExceptionMatches(PyExc_AttributeError))
    return value;
  PyErr_Clear();
  return Py_NewRef(Py_None);
}

/* The GPU of an event of PyTorch; by default the library takes that of the local memory. */
static bool read_event_place(PyObject *event, struct haul_place *place) {
  PyObject *device = attribute(event, "device");
  PyObject *index = device ? attribute(device, "index") : NULL;
  if (index && index != Py_None)
    *place = (struct haul_place){HAUL_CUDA, (uint16_t)PyLong_AsUnsignedLong(index)};
  Py_XDECREF(device);
  Py_XDECREF(index);
  return !PyErr_Occurred();
}

/* From an argument `after`: an event of PyTorch, or a handle of the driver. */
static bool read_event(PyObject *event, struct haul_transfer_options *options) {
  if (event == Py_None)
    return true;
  PyObject *handle = PyLong_Check(event) ? Py_NewRef(event) : attribute(event, "cuda_event");
  if (handle == Py_None)
    PyErr_Format(PyExc_TypeError,
                 "invalid after %R: expected a torch.cuda.Event, or the handle of an event", event);
  else if (handle)
    options->after = PyLong_AsVoidPtr(handle);
  Py_XDECREF(handle);
  if (PyErr_Occurred())
    return false;
  if (options->after)
    return read_event_place(event, &options->after_at);
  PyErr_SetString(PyExc_ValueError, "invalid after: the event was never recorded");
  return false;
}

struct constraints {
  PyObject *timeout, *after;
  const char *only;
  int zero_copy, checksum, priority, cpu_time, more;
};

#define NO_CONSTRAINTS                                                                             \
  { Py_None, Py_None, NULL, 0, 0, 0, 0, 0 }

static bool read_constraints(const struct constraints *given,
                             struct haul_transfer_options *options) {
  options->only = given->only;
  options->priority = given->priority;
  options->flags = (given->zero_copy ? HAUL_REQUIRE_ZERO_COPY : 0) |
                   (given->checksum ? HAUL_CHECKSUM : 0) | (given->cpu_time ? HAUL_CPU_TIME : 0) |
                   (given->more ? HAUL_MORE : 0);
  if (!read_event(given->after, options))
    return false;
  if (given->timeout == Py_None)
    return true;
  if (!deadline_from(given->timeout, 0, &options->deadline))
    return false;
  if (options->deadline == HAUL_NO_WAIT)
    options->deadline = 1; /* 0 would mean the node's default */
  return true;
}

/* The arguments `notify` and `tag`: a message that follows the transfer. */
struct notice {
  PyObject *data;
  Py_buffer bytes;
  struct haul_notification message;
};

#define NO_NOTICE                                                                                  \
  { .data = Py_None }

/* Sets the option. Call release_notice once the transfer has started, and after a failure. */
static bool read_notice(struct notice *notice, struct haul_transfer_options *options) {
  if (notice->data == Py_None) {
    if (notice->message.tag)
      PyErr_SetString(PyExc_ValueError, "invalid tag: only a message has one, pass notify too");
    return !notice->message.tag;
  }
  if (PyObject_GetBuffer(notice->data, &notice->bytes, PyBUF_SIMPLE) != 0)
    return false;
  notice->message.bytes = notice->bytes.buf;
  notice->message.length = (size_t)notice->bytes.len;
  options->notify = &notice->message;
  return true;
}

static void release_notice(struct notice *notice) {
  PyBuffer_Release(&notice->bytes);
}

/* Enters both or none. */
static bool enter_ends(struct remote *remote, struct region *region, const char *call) {
  if (!object_enter(&remote->base, call))
    return false;
  if (object_enter(&region->base, call))
    return true;
  object_leave(&remote->base);
  return false;
}

static void leave_ends(struct remote *remote, struct region *region) {
  object_leave(&region->base);
  object_leave(&remote->base);
}

static PyObject *transfer_object(struct remote *remote, struct region *region,
                                 haul_transfer *handle) {
  struct object *object =
      object_new(haulpy.transfer, "transfer", handle, release_transfer, remote->base.node);
  struct transfer *transfer = (struct transfer *)object;
  if (!transfer)
    return NULL;
  transfer->region = Py_NewRef((PyObject *)region);
  transfer->remote = Py_NewRef((PyObject *)remote);
  return (PyObject *)transfer;
}

static bool read_number(PyObject *tuple, Py_ssize_t index, uint64_t *number) {
  PyObject *item = PySequence_GetItem(tuple, index);
  bool read = item && uint64_from(item, number);
  Py_XDECREF(item);
  return read;
}

/* Evenly spaced pieces. */
struct run {
  struct haul_piece first;
  uint64_t count, local_step, remote_step;
};

static bool read_run(PyObject *item, struct run *run) {
  Py_ssize_t size = PySequence_Size(item);
  *run = (struct run){.count = 1};
  if (size >= 0 && size != 3 && size != 6)
    PyErr_SetString(PyExc_ValueError,
                    "invalid piece: expected (local offset, remote offset, length), or these with "
                    "count, local step and remote step");
  if ((size != 3 && size != 6) || !read_number(item, 0, &run->first.local) ||
      !read_number(item, 1, &run->first.remote) || !read_number(item, 2, &run->first.length))
    return false;
  return size == 3 ||
         (read_number(item, 3, &run->count) && read_number(item, 4, &run->local_step) &&
          read_number(item, 5, &run->remote_step));
}

/* An array that grows; NULL with an exception. */
struct pieces {
  struct haul_piece *all;
  size_t count, room;
};

static bool reserve(struct pieces *pieces, uint64_t more) {
  if (more <= pieces->room - pieces->count)
    return true;
  uint64_t room = pieces->count + more;
  if (more > PIECES_MOST || room > PIECES_MOST) {
    PyErr_Format(PyExc_ValueError, "invalid pieces: expected at most %d", PIECES_MOST);
    return false;
  }
  if (room < 2 * pieces->room)
    room = 2 * pieces->room;
  struct haul_piece *all = PyMem_Realloc(pieces->all, room * sizeof *all);
  if (!all) {
    PyErr_NoMemory();
    return false;
  }
  pieces->all = all;
  pieces->room = room;
  return true;
}

static bool add_run(struct pieces *pieces, const struct run *run, const struct local *local,
                    const char *call) {
  if (!reserve(pieces, run->count))
    return false;
  for (uint64_t i = 0; i < run->count; i++) {
    struct haul_piece *piece = &pieces->all[pieces->count++];
    uint64_t here, there;
    *piece = run->first;
    if (__builtin_mul_overflow(i, run->local_step, &here) ||
        __builtin_mul_overflow(i, run->remote_step, &there) ||
        __builtin_add_overflow(piece->local, here, &piece->local) ||
        __builtin_add_overflow(piece->remote, there, &piece->remote)) {
      PyErr_SetString(PyExc_OverflowError, "the offset of a piece exceeds 64 bits");
      return false;
    }
    if (!local_offset(local, call, piece->length, &piece->local))
      return false;
  }
  return true;
}

/* Allocated with PyMem; NULL with an exception. */
static struct haul_piece *read_pieces(PyObject *given, const struct local *local, const char *call,
                                      size_t *count) {
  struct pieces pieces = {0};
  struct run run = {.first.length = local_length(local), .count = 1};
  PyObject *list = given == Py_None ? NULL : PySequence_Tuple(given);
  if (given != Py_None && !list)
    return NULL;
  Py_ssize_t runs = list ? PyTuple_Size(list) : 1;
  bool read = reserve(&pieces, (uint64_t)runs + 1);
  for (Py_ssize_t i = 0; read && i < runs; i++)
    read =
        (!list || read_run(PyTuple_GetItem(list, i), &run)) && add_run(&pieces, &run, local, call);
  Py_XDECREF(list);
  *count = pieces.count;
  if (read)
    return pieces.all;
  PyMem_Free(pieces.all);
  return NULL;
}

static PyObject *start(struct remote *remote, const struct local *local, bool writes,
                       PyObject *given, const struct haul_transfer_options *options) {
  haul_region *local_handle = local->region->base.handle;
  haul_remote *remote_handle = remote->base.handle;
  haul_transfer *handle = NULL;
  size_t count;
  int code;
  struct haul_piece *pieces = read_pieces(given, local, writes ? "write" : "read", &count);
  if (!pieces)
    return NULL;
  WITHOUT_GIL(code = writes
                         ? haul_write(remote_handle, local_handle, pieces, count, options, &handle)
                         : haul_read(local_handle, remote_handle, pieces, count, options, &handle));
  PyMem_Free(pieces);
  return code ? raise_last() : transfer_object(remote, local->region, handle);
}

static PyObject *move(PyObject *self, PyObject *args, PyObject *keywords, bool writes) {
  static char *names[] = {"region",   "pieces",   "timeout",  "only", "zero_copy",
                          "checksum", "priority", "cpu_time", "more", "notify",
                          "tag",      "after",    NULL};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct constraints given = NO_CONSTRAINTS;
  struct notice notice = NO_NOTICE;
  struct remote *remote = (struct remote *)self;
  struct local local;
  PyObject *pieces = Py_None, *transfer = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|O$OzppippOO&O", names, local_from, &local,
                                   &pieces, &given.timeout, &given.only, &given.zero_copy,
                                   &given.checksum, &given.priority, &given.cpu_time, &given.more,
                                   &notice.data, uint64_from, &notice.message.tag, &given.after) ||
      !read_constraints(&given, &options) ||
      !(writes || region_must_be_writable(local.region, "read")))
    return NULL;
  if (read_notice(&notice, &options) &&
      enter_ends(remote, local.region, writes ? "write" : "read")) {
    transfer = start(remote, &local, writes, pieces, &options);
    if (transfer && options.after)
      ((struct transfer *)transfer)->after = Py_NewRef(given.after);
    leave_ends(remote, local.region);
  }
  release_notice(&notice);
  return transfer;
}

PyObject *transfer_write(PyObject *self, PyObject *args, PyObject *keywords) {
  return move(self, args, keywords, true);
}

PyObject *transfer_read(PyObject *self, PyObject *args, PyObject *keywords) {
  return move(self, args, keywords, false);
}

/* Modulo 2^64: -1 equals 2^64 - 1. */
static bool read_word(PyObject *given, uint64_t *word) {
  PyObject *integer = PyNumber_Index(given);
  *word = integer ? PyLong_AsUnsignedLongLongMask(integer) : 0;
  Py_XDECREF(integer);
  return !PyErr_Occurred();
}

struct atomic {
  const char *call;
  struct local result;
  uint64_t offset, result_offset;
  struct constraints given;
  struct notice notice;
  uint64_t words[2]; /* fetch_add: the value; compare_swap: expected and desired */
};

static PyObject *start_entered(struct remote *remote, const struct atomic *atomic, bool swaps,
                               uint64_t place, const struct haul_transfer_options *options) {
  struct region *region = atomic->result.region;
  haul_transfer *handle = NULL;
  int code;
  Py_BEGIN_ALLOW_THREADS;
  if (swaps)
    code = haul_compare_swap(region->base.handle, place, remote->base.handle, atomic->offset,
                             atomic->words[0], atomic->words[1], options, &handle);
  else
    code = haul_fetch_add(region->base.handle, place, remote->base.handle, atomic->offset,
                          atomic->words[0], options, &handle);
  Py_END_ALLOW_THREADS;
  return code ? raise_last() : transfer_object(remote, region, handle);
}

static PyObject *start_atomic(struct remote *remote, struct atomic *atomic, bool swaps) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct region *region = atomic->result.region;
  uint64_t place = atomic->result_offset;
  PyObject *transfer = NULL;
  if (!read_constraints(&atomic->given, &options) ||
      !region_must_be_writable(region, atomic->call) ||
      !local_offset(&atomic->result, atomic->call, sizeof(uint64_t), &place))
    return NULL;
  if (read_notice(&atomic->notice, &options) && enter_ends(remote, region, atomic->call)) {
    transfer = start_entered(remote, atomic, swaps, place, &options);
    leave_ends(remote, region);
  }
  release_notice(&atomic->notice);
  return transfer;
}

PyObject *transfer_fetch_add(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"result", "offset", "value", "result_offset", "timeout", "only",
                          "notify", "tag",    NULL};
  struct atomic atomic = {.call = "fetch_add", .given = NO_CONSTRAINTS, .notice = NO_NOTICE};
  PyObject *value;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&O|$O&OzOO&", names, local_from,
                                   &atomic.result, uint64_from, &atomic.offset, &value, uint64_from,
                                   &atomic.result_offset, &atomic.given.timeout, &atomic.given.only,
                                   &atomic.notice.data, uint64_from, &atomic.notice.message.tag) ||
      !read_word(value, &atomic.words[0]))
    return NULL;
  return start_atomic((struct remote *)self, &atomic, false);
}

PyObject *transfer_compare_swap(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"result",  "offset", "expected", "desired", "result_offset",
                          "timeout", "only",   "notify",   "tag",     NULL};
  struct atomic atomic = {.call = "compare_swap", .given = NO_CONSTRAINTS, .notice = NO_NOTICE};
  PyObject *expected, *desired;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&OO|$O&OzOO&", names, local_from,
                                   &atomic.result, uint64_from, &atomic.offset, &expected, &desired,
                                   uint64_from, &atomic.result_offset, &atomic.given.timeout,
                                   &atomic.given.only, &atomic.notice.data, uint64_from,
                                   &atomic.notice.message.tag) ||
      !read_word(expected, &atomic.words[0]) || !read_word(desired, &atomic.words[1]))
    return NULL;
  return start_atomic((struct remote *)self, &atomic, true);
}

static int operation_from(const char *text) {
  for (int i = HAUL_OP_WRITE; i <= HAUL_OP_COMPARE_SWAP; i++)
    if (strcmp(text, operation_name(i)) == 0)
      return i;
  PyErr_Format(PyExc_ValueError,
               "invalid operation \"%.40s\": expected \"write\", \"read\", \"fetch_add\" or "
               "\"compare_swap\"",
               text);
  return 0;
}

static PyObject *explain(struct remote *remote, struct region *region, int operation,
                         uint64_t length, const struct haul_transfer_options *options) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  int code;
  WITHOUT_GIL(code = haul_explain(region->base.handle, remote->base.handle,
                                  (enum haul_operation)operation, length, options, paths, &count));
  return code ? raise_last() : report_paths(paths, count);
}

PyObject *transfer_explain(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"region", "operation", "length", "only", "zero_copy", "checksum", NULL};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct constraints given = NO_CONSTRAINTS;
  struct remote *remote = (struct remote *)self;
  struct local local;
  PyObject *length = Py_None;
  const char *text = "write";
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|sO$zpp", names, local_from, &local, &text,
                                   &length, &given.only, &given.zero_copy, &given.checksum))
    return NULL;
  int operation = operation_from(text);
  uint64_t bytes = 0;
  if (!operation || (length != Py_None && !uint64_from(length, &bytes)) ||
      !read_constraints(&given, &options))
    return NULL;
  if (!enter_ends(remote, local.region, "explain"))
    return NULL;
  if (length == Py_None)
    bytes = operation == HAUL_OP_WRITE || operation == HAUL_OP_READ ? local_length(&local) : 8;
  PyObject *paths = explain(remote, local.region, operation, bytes, &options);
  leave_ends(remote, local.region);
  return paths;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  struct transfer *transfer = (struct transfer *)self;
  Py_VISIT(transfer->region);
  Py_VISIT(transfer->remote);
  Py_VISIT(transfer->after);
  return object_traverse(self, visit, arg);
}

static void dealloc(PyObject *self) {
  struct transfer *transfer = (struct transfer *)self;
  PyObject *region = transfer->region, *remote = transfer->remote, *after = transfer->after;
  object_free(self);
  Py_XDECREF(after);
  Py_XDECREF(region);
  Py_XDECREF(remote);
}

static PyObject *repr(PyObject *self) {
  const struct transfer *transfer = (struct transfer *)self;
  if (transfer->base.closed || transfer->base.node->base.closed)
    return PyUnicode_FromString("<haul.Transfer, closed>");
  struct haul_report report = HAUL_REPORT_INIT;
  if (haul_transfer_report(transfer->base.handle, &report))
    return raise_last();
  return PyUnicode_FromFormat("<haul.Transfer, %s of %llu bytes, %s>",
                              operation_name(report.operation), (unsigned long long)report.bytes,
                              report.status == 1   ? "in flight"
                              : report.status == 0 ? "complete"
                                                   : haul_error_name(report.status));
}

static PyObject *done_of(void *handle) {
  return PyBool_FromLong(haul_transfer_test(handle) != 1);
}
METHOD(transfer, done)

/* HAUL_ETIMEDOUT may also be the transfer's own, and it may have ended since then: test it. */
static int step_wait(void *user, haul_deadline until) {
  int code = haul_transfer_wait(user, until);
  return code == HAUL_ETIMEDOUT ? haul_transfer_test(user) : code;
}

static PyObject *transfer_wait(PyObject *self, PyObject *args, PyObject *keywords) {
  struct object *transfer = (struct object *)self;
  haul_deadline until;
  if (!deadline_argument(args, keywords, "|O", transfer->node->timeout, &until))
    return NULL;
  haul_transfer *handle = object_enter(transfer, "wait");
  if (!handle)
    return NULL;
  int code = wait_in_steps(transfer, "wait", step_wait, handle, until);
  if (code < 0)
    raise_last();
  object_leave(transfer);
  if (code)
    return NULL;
  return Py_NewRef(self);
}

static PyObject *cancel_of(void *handle) {
  int code;
  WITHOUT_GIL(code = haul_transfer_cancel(handle));
  return code ? raise_last() : Py_NewRef(Py_None);
}
METHOD(transfer, cancel)

static PyObject *report_of(void *handle) {
  struct haul_report report = HAUL_REPORT_INIT;
  return haul_transfer_report(handle, &report) ? raise_last() : report_object(&report);
}
METHOD(transfer, report)

static PyObject *await(PyObject *self) {
  PyObject *aio = PyImport_ImportModule("haul.aio");
  PyObject *coroutine = aio ? PyObject_CallMethod(aio, "finish", "O", self) : NULL;
  PyObject *iterator = coroutine ? PyObject_CallMethod(coroutine, "__await__", NULL) : NULL;
  Py_XDECREF(aio);
  Py_XDECREF(coroutine);
  return iterator;
}

static PyMethodDef methods[] = {
    {"done", transfer_done, METH_NOARGS,
     DOC("done($self, /)",
         "Return whether it has ended, successfully or not. Does not wait. Raises Closed.")},
    {"wait", METHOD_WITH_KEYWORDS(transfer_wait),
     DOC("wait($self, timeout=None)",
         "Wait for the end.\n"
         "\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns the transfer. Blocks. Raises TimedOut if the timeout passes first, when done() "
         "is\n"
         "still False; else the error of the transfer (Remote.write).")},
    {"cancel", transfer_cancel, METH_NOARGS,
     DOC("cancel($self, /)", "Request an early end; then wait for it, as the local memory is in "
                             "use until then. Does not\n"
                             "wait. Raises Closed.")},
    {"report", transfer_report, METH_NOARGS,
     DOC("report($self, /)",
         "Return a Report: path, copies, times, and why other paths are not used. Final after the\n"
         "end. Does not wait. Raises Closed.")},
    OBJECT_CLOSE("Release it; a transfer in flight continues. Does not wait."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

PyTypeObject *transfer_type(void) {
  static PyMemberDef members[] = {
      OBJECT_MEMBERS,
      MEMBER("region", T_OBJECT_EX, struct transfer, region, "The local end."),
      MEMBER("remote", T_OBJECT_EX, struct transfer, remote, "The remote end."),
      MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
      {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, dealloc),
      SLOT(Py_tp_traverse, traverse),
      SLOT(Py_tp_repr, repr),
      SLOT(Py_am_await, await),
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {Py_tp_doc, "A read, write or atomic operation in flight. Await it, in the background by "
                  "asyncio.ensure_future(transfer). It keeps its region and its remote."},
      {0, NULL}};
  static PyType_Spec spec = {"haul.Transfer", sizeof(struct transfer), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
