/* SPDX-License-Identifier: MIT
 * Transfer: bytes on their way. The methods of Remote that start one, and what can be done with it.
 */
#include <string.h>

#include "haulpy.h"

struct transfer {
  struct object base;
  PyObject *region, *remote; /* references: without them the transfer would be canceled */
};

static void release_transfer(void *handle) {
  haul_transfer_release(handle);
}

/* ---- Starting ---- */

struct wishes {
  PyObject *timeout;
  const char *only;
  int zero_copy, checksum, priority;
};

#define NO_WISHES                                                                                  \
  { Py_None, NULL, 0, 0, 0 }

static bool read_wishes(const struct wishes *wishes, struct haul_transfer_options *options) {
  options->only = wishes->only;
  options->priority = wishes->priority;
  options->flags =
      (wishes->zero_copy ? HAUL_REQUIRE_ZERO_COPY : 0) | (wishes->checksum ? HAUL_CHECKSUM : 0);
  if (wishes->timeout == Py_None)
    return true;
  if (!deadline_from(wishes->timeout, 0, &options->deadline))
    return false;
  if (options->deadline == HAUL_NO_WAIT)
    options->deadline = 1; /* 0 would be the node's default */
  return true;
}

/* Both entered, or none. */
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
  Py_INCREF((PyObject *)region);
  Py_INCREF((PyObject *)remote);
  transfer->region = (PyObject *)region;
  transfer->remote = (PyObject *)remote;
  return (PyObject *)transfer;
}

static bool read_number(PyObject *tuple, Py_ssize_t index, uint64_t *number) {
  PyObject *item = PySequence_GetItem(tuple, index);
  PyObject *integer = item ? PyNumber_Index(item) : NULL;
  *number = integer ? PyLong_AsUnsignedLongLong(integer) : 0;
  Py_XDECREF(integer);
  Py_XDECREF(item);
  return !PyErr_Occurred();
}

static bool read_piece(PyObject *item, struct haul_piece *piece) {
  Py_ssize_t size = PySequence_Size(item);
  if (size >= 0 && size != 3)
    PyErr_SetString(PyExc_ValueError, "a piece is (local offset, remote offset, length)");
  return size == 3 && read_number(item, 0, &piece->local) && read_number(item, 1, &piece->remote) &&
         read_number(item, 2, &piece->length);
}

/* An array of PyMem's; NULL with an exception. */
static struct haul_piece *read_pieces(PyObject *given, const struct local *local, const char *call,
                                      size_t *count) {
  PyObject *list = given == Py_None ? NULL : PySequence_Tuple(given);
  if (given != Py_None && !list)
    return NULL;
  *count = list ? (size_t)PyTuple_Size(list) : 1;
  struct haul_piece *pieces = PyMem_Calloc(*count ? *count : 1, sizeof *pieces);
  bool read = pieces;
  if (!pieces)
    PyErr_NoMemory();
  else if (!list)
    pieces->length = local_length(local);
  for (size_t i = 0; read && i < *count; i++)
    read = (!list || read_piece(PyTuple_GetItem(list, (Py_ssize_t)i), &pieces[i])) &&
           local_offset(local, call, pieces[i].length, &pieces[i].local);
  Py_XDECREF(list);
  if (read)
    return pieces;
  PyMem_Free(pieces);
  return NULL;
}

static PyObject *start(struct remote *remote, const struct local *local, bool writes,
                       PyObject *given, const struct haul_transfer_options *options) {
  haul_region *near = local->region->base.handle;
  haul_remote *far = remote->base.handle;
  haul_transfer *handle = NULL;
  size_t count;
  int code;
  struct haul_piece *pieces = read_pieces(given, local, writes ? "write" : "read", &count);
  if (!pieces)
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  code = writes ? haul_write(far, near, pieces, count, options, &handle)
                : haul_read(near, far, pieces, count, options, &handle);
  Py_END_ALLOW_THREADS;
  PyMem_Free(pieces);
  return code ? raise_last() : transfer_object(remote, local->region, handle);
}

static PyObject *move(PyObject *self, PyObject *args, PyObject *keywords, bool writes) {
  static char *names[] = {"region",    "pieces",   "timeout",  "only",
                          "zero_copy", "checksum", "priority", NULL};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct wishes wishes = NO_WISHES;
  struct remote *remote = (struct remote *)self;
  struct local local;
  PyObject *pieces = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|O$Ozppi", names, local_from, &local, &pieces,
                                   &wishes.timeout, &wishes.only, &wishes.zero_copy,
                                   &wishes.checksum, &wishes.priority) ||
      !read_wishes(&wishes, &options) ||
      !(writes || region_must_be_writable(local.region, "read")) ||
      !enter_ends(remote, local.region, writes ? "write" : "read"))
    return NULL;
  PyObject *transfer = start(remote, &local, writes, pieces, &options);
  leave_ends(remote, local.region);
  return transfer;
}

PyObject *transfer_write(PyObject *self, PyObject *args, PyObject *keywords) {
  return move(self, args, keywords, true);
}

PyObject *transfer_read(PyObject *self, PyObject *args, PyObject *keywords) {
  return move(self, args, keywords, false);
}

/* ---- Atomic operations ---- */

/* Numbers modulo 2^64: -1 is as good as 2^64 - 1. */
static bool read_word(PyObject *given, uint64_t *word) {
  PyObject *integer = PyNumber_Index(given);
  *word = integer ? PyLong_AsUnsignedLongLongMask(integer) : 0;
  Py_XDECREF(integer);
  return !PyErr_Occurred();
}

/* Both entered, or none. `place` becomes an offset in the region. */
static bool enter_result(struct remote *remote, const struct local *result, const char *call,
                         uint64_t *place) {
  return region_must_be_writable(result->region, call) &&
         local_offset(result, call, sizeof(uint64_t), place) &&
         enter_ends(remote, result->region, call);
}

PyObject *transfer_fetch_add(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"result", "offset", "value", "result_offset", "timeout", "only", NULL};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct wishes wishes = NO_WISHES;
  struct remote *remote = (struct remote *)self;
  struct local result;
  PyObject *value;
  unsigned long long offset, result_offset = 0;
  haul_transfer *handle = NULL;
  uint64_t word;
  int code;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&KO|$KOz", names, local_from, &result, &offset,
                                   &value, &result_offset, &wishes.timeout, &wishes.only) ||
      !read_word(value, &word) || !read_wishes(&wishes, &options))
    return NULL;
  uint64_t place = result_offset;
  if (!enter_result(remote, &result, "fetch_add", &place))
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_fetch_add(result.region->base.handle, place, remote->base.handle, offset, word,
                        &options, &handle);
  Py_END_ALLOW_THREADS;
  PyObject *transfer = code ? raise_last() : transfer_object(remote, result.region, handle);
  leave_ends(remote, result.region);
  return transfer;
}

PyObject *transfer_compare_swap(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"result",        "offset",  "expected", "desired",
                          "result_offset", "timeout", "only",     NULL};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct wishes wishes = NO_WISHES;
  struct remote *remote = (struct remote *)self;
  struct local result;
  PyObject *expected, *desired;
  unsigned long long offset, result_offset = 0;
  haul_transfer *handle = NULL;
  uint64_t before, after;
  int code;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&KOO|$KOz", names, local_from, &result,
                                   &offset, &expected, &desired, &result_offset, &wishes.timeout,
                                   &wishes.only) ||
      !read_word(expected, &before) || !read_word(desired, &after) ||
      !read_wishes(&wishes, &options))
    return NULL;
  uint64_t place = result_offset;
  if (!enter_result(remote, &result, "compare_swap", &place))
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_compare_swap(result.region->base.handle, place, remote->base.handle, offset, before,
                           after, &options, &handle);
  Py_END_ALLOW_THREADS;
  PyObject *transfer = code ? raise_last() : transfer_object(remote, result.region, handle);
  leave_ends(remote, result.region);
  return transfer;
}

/* ---- Explaining ---- */

static int operation_from(const char *text) {
  if (strcmp(text, "write") == 0)
    return HAUL_OP_WRITE;
  if (strcmp(text, "read") == 0)
    return HAUL_OP_READ;
  if (strcmp(text, "fetch_add") == 0)
    return HAUL_OP_FETCH_ADD;
  if (strcmp(text, "compare_swap") == 0)
    return HAUL_OP_COMPARE_SWAP;
  PyErr_SetString(PyExc_ValueError,
                  "an operation is \"write\", \"read\", \"fetch_add\" or \"compare_swap\"");
  return 0;
}

static PyObject *explain(struct remote *remote, struct region *region, int operation,
                         uint64_t length, const struct haul_transfer_options *options) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  int code;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_explain(region->base.handle, remote->base.handle, (enum haul_operation)operation,
                      length, options, paths, &count);
  Py_END_ALLOW_THREADS;
  return code ? raise_last() : report_paths(paths, count);
}

PyObject *transfer_explain(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"region", "operation", "length", "only", "zero_copy", "checksum", NULL};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct wishes wishes = NO_WISHES;
  struct remote *remote = (struct remote *)self;
  struct local local;
  PyObject *length = Py_None;
  const char *text = "write";
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|sO$zpp", names, local_from, &local, &text,
                                   &length, &wishes.only, &wishes.zero_copy, &wishes.checksum))
    return NULL;
  int operation = operation_from(text);
  uint64_t bytes = length == Py_None ? 0 : PyLong_AsUnsignedLongLong(length);
  if (PyErr_Occurred() || !read_wishes(&wishes, &options))
    return NULL;
  if (!enter_ends(remote, local.region, "explain"))
    return NULL;
  if (length == Py_None)
    bytes = operation == HAUL_OP_WRITE || operation == HAUL_OP_READ ? local_length(&local) : 8;
  PyObject *paths = explain(remote, local.region, operation, bytes, &options);
  leave_ends(remote, local.region);
  return paths;
}

/* ---- What can be done with it ---- */

static int traverse(PyObject *self, visitproc visit, void *arg) {
  struct transfer *transfer = (struct transfer *)self;
  Py_VISIT(transfer->region);
  Py_VISIT(transfer->remote);
  return object_traverse(self, visit, arg);
}

static void dealloc(PyObject *self) {
  struct transfer *transfer = (struct transfer *)self;
  PyObject *region = transfer->region, *remote = transfer->remote;
  object_free(&transfer->base);
  Py_XDECREF(region);
  Py_XDECREF(remote);
}

static PyObject *transfer_done(PyObject *self, PyObject *none) {
  struct object *transfer = (struct object *)self;
  (void)none;
  haul_transfer *handle = object_enter(transfer, "done");
  if (!handle)
    return NULL;
  int code = haul_transfer_test(handle);
  object_leave(transfer);
  return PyBool_FromLong(code != 1);
}

/* A transfer may itself have ended with HAUL_ETIMEDOUT. */
static int step_wait(void *user, haul_deadline until) {
  int code = haul_transfer_wait(user, until);
  return code == HAUL_ETIMEDOUT && haul_transfer_test(user) == 1 ? STEP_AGAIN : code;
}

static PyObject *transfer_wait(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"timeout", NULL};
  struct object *transfer = (struct object *)self;
  PyObject *timeout = Py_None;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O", names, &timeout) ||
      !deadline_from(timeout, transfer->node->timeout, &until))
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
  Py_INCREF(self);
  return self;
}

static PyObject *transfer_cancel(PyObject *self, PyObject *none) {
  struct object *transfer = (struct object *)self;
  (void)none;
  haul_transfer *handle = object_enter(transfer, "cancel");
  if (!handle)
    return NULL;
  int code;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_transfer_cancel(handle);
  Py_END_ALLOW_THREADS;
  if (code)
    raise_last();
  object_leave(transfer);
  if (code)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *transfer_report(PyObject *self, PyObject *none) {
  struct object *transfer = (struct object *)self;
  struct haul_report report = HAUL_REPORT_INIT;
  (void)none;
  haul_transfer *handle = object_enter(transfer, "report");
  if (!handle)
    return NULL;
  int code = haul_transfer_report(handle, &report);
  if (code)
    raise_last();
  object_leave(transfer);
  return code ? NULL : report_object(&report);
}

static PyObject *await(PyObject *self) {
  PyObject *aio = PyImport_ImportModule("haul.aio");
  PyObject *coroutine = aio ? PyObject_CallMethod(aio, "finish", "O", self) : NULL;
  PyObject *iterator = coroutine ? PyObject_CallMethod(coroutine, "__await__", NULL) : NULL;
  Py_XDECREF(aio);
  Py_XDECREF(coroutine);
  return iterator;
}

static PyObject *get_region(PyObject *self, void *none) {
  PyObject *region = ((struct transfer *)self)->region;
  (void)none;
  Py_INCREF(region);
  return region;
}

static PyObject *get_remote(PyObject *self, void *none) {
  PyObject *remote = ((struct transfer *)self)->remote;
  (void)none;
  Py_INCREF(remote);
  return remote;
}

static PyObject *get_node(PyObject *self, void *none) {
  PyObject *node = (PyObject *)((struct object *)self)->node;
  (void)none;
  Py_INCREF(node);
  return node;
}

PyTypeObject *transfer_type(void) {
  static PyMethodDef methods[] = {
      {"done", transfer_done, METH_NOARGS, "Whether it has ended, well or not."},
      {"wait", METHOD_WITH_KEYWORDS(transfer_wait),
       "wait(timeout=None): wait for the end and return the transfer. Raises what it ended with, "
       "or "
       "TimedOut when the time passed first: then done() is still False."},
      {"cancel", transfer_cancel, METH_NOARGS, "Ask for an early end; wait for it."},
      {"report", transfer_report, METH_NOARGS, "What is known of it: path, copies, reasons."},
      OBJECT_CLOSE,
      OBJECT_METHODS,
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef getters[] = {{"region", get_region, NULL, "The local end.", NULL},
                                  {"remote", get_remote, NULL, "The other end.", NULL},
                                  {"node", get_node, NULL, "The node that moves it.", NULL},
                                  OBJECT_GETTERS,
                                  {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, dealloc),
      SLOT(Py_tp_traverse, traverse),
      SLOT(Py_am_await, await),
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_doc,
       "Bytes on their way, from the call that made it on. It can be awaited, in the background by "
       "asyncio.ensure_future(transfer); it keeps its region and its remote."},
      {0, NULL}};
  static PyType_Spec spec = {
      "haul.Transfer", sizeof(struct transfer), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
