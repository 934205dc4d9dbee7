/* SPDX-License-Identifier: MIT
 * Node: this process's end. */
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "haulpy.h"

static void release_node(void *handle) {
  haul_node_close(handle);
}

/* ---- Opening ---- */

/* None where the library's default is wanted; `none` is what says "none at all" for 0. */
static bool count_from(PyObject *given, unsigned long long most, unsigned long long none,
                       const char *what, unsigned long long *count) {
  *count = 0;
  if (given == Py_None)
    return true;
  *count = PyLong_AsUnsignedLongLong(given);
  if (PyErr_Occurred())
    return false;
  if (*count > most) {
    PyErr_Format(PyExc_ValueError, "%s is at most %llu", what, most);
    return false;
  }
  if (*count == 0)
    *count = none;
  return true;
}

/* What is given as seconds, as numbers, or as paths, before the library sees it. */
struct wishes {
  double timeout, spin, liveness, handshake;
  PyObject *rails, *copy_threads, *window, *pool, *peers, *regions, *transfers, *staging, *rate,
      *zero_copy, *peers_each, *lookups, *peer_bytes;
  PyObject *key, *certificate, *private_key, *authority, *login; /* bytes, ours; or NULL */
};

/* As PyUnicode_FSConverter, and None is no path. */
static int path_from(PyObject *given, void *path) {
  return given == Py_None || !given ? 1 : PyUnicode_FSConverter(given, path);
}

static void forget_paths(struct wishes *wishes) {
  Py_CLEAR(wishes->key);
  Py_CLEAR(wishes->certificate);
  Py_CLEAR(wishes->private_key);
  Py_CLEAR(wishes->authority);
  Py_CLEAR(wishes->login);
}

static const char *path_text(PyObject *path) {
  return path ? PyBytes_AsString(path) : NULL;
}

static void read_paths(const struct wishes *wishes, struct haul_node_config *config) {
  config->key = path_text(wishes->key);
  config->certificate = path_text(wishes->certificate);
  config->private_key = path_text(wishes->private_key);
  config->authority = path_text(wishes->authority);
  config->directory_login = path_text(wishes->login);
}

static bool read_times(const struct wishes *wishes, struct haul_node_config *config) {
  return nanoseconds_from(wishes->timeout, &config->transfer_ns) &&
         nanoseconds_from(wishes->spin, &config->spin_ns) &&
         nanoseconds_from(wishes->liveness, &config->liveness_ns) &&
         nanoseconds_from(wishes->handshake, &config->handshake_ns);
}

static bool read_counts(const struct wishes *wishes, struct haul_node_config *config) {
  unsigned long long rails, threads, window, pool, peers, regions, transfers, staging, rate,
      zero_copy, each, lookups, peer_bytes;
  if (!count_from(wishes->rails, UINT_MAX, 0, "tcp_rails", &rails) ||
      !count_from(wishes->copy_threads, UINT_MAX, UINT_MAX, "copy_threads", &threads) ||
      !count_from(wishes->window, SIZE_MAX, 0, "message_window", &window) ||
      !count_from(wishes->pool, SIZE_MAX, SIZE_MAX, "pool_bytes", &pool) ||
      !count_from(wishes->peers, UINT_MAX, 0, "max_peers", &peers) ||
      !count_from(wishes->regions, UINT_MAX, 0, "max_regions", &regions) ||
      !count_from(wishes->transfers, UINT_MAX, 0, "max_transfers", &transfers) ||
      !count_from(wishes->staging, SIZE_MAX, 0, "staging_bytes", &staging) ||
      !count_from(wishes->rate, SIZE_MAX, SIZE_MAX, "tcp_rate", &rate) ||
      !count_from(wishes->zero_copy, SIZE_MAX, SIZE_MAX, "tcp_zero_copy", &zero_copy) ||
      !count_from(wishes->peers_each, UINT_MAX, 0, "max_peers_each", &each) ||
      !count_from(wishes->lookups, UINT_MAX, UINT_MAX, "max_lookups", &lookups) ||
      !count_from(wishes->peer_bytes, SIZE_MAX, 0, "peer_bytes", &peer_bytes))
    return false;
  config->tcp_rails = (unsigned)rails;
  config->copy_threads = (unsigned)threads;
  config->message_window = (size_t)window;
  config->pool_bytes = (size_t)pool;
  config->max_peers = (unsigned)peers;
  config->max_regions = (unsigned)regions;
  config->max_transfers = (unsigned)transfers;
  config->staging_bytes = (size_t)staging;
  config->tcp_rate = (size_t)rate;
  config->tcp_zero_copy = (size_t)zero_copy;
  config->max_peers_each = (unsigned)each;
  config->max_lookups = (unsigned)lookups;
  config->peer_bytes = (size_t)peer_bytes;
  return true;
}

static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"name",        "timeout",        "progress",      "insecure",
                          "spin",        "liveness",       "tcp_rails",     "copy_threads",
                          "peer_events", "message_window", "pool_bytes",    "max_peers",
                          "max_regions", "max_transfers",  "staging_bytes", "tcp_rate",
                          "paths",       "estimates_only", "tcp_zero_copy", "key",
                          "certificate", "private_key",    "authority",     "directory_login",
                          "plain_data",  "process_tls",    "any_user",      "any_observer",
                          "handshake",   "max_peers_each", "max_lookups",   "peer_bytes",
                          NULL};
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct wishes wishes = {60,      0,       0,       0,       Py_None, Py_None, Py_None, Py_None,
                          Py_None, Py_None, Py_None, Py_None, Py_None, Py_None, Py_None, Py_None,
                          Py_None, NULL,    NULL,    NULL,    NULL,    NULL};
  const char *progress = "thread";
  haul_node *handle;
  int code;
  if (!PyArg_ParseTupleAndKeywords(
          args, keywords, "|z$dspddOOpOOOOOOOzpOO&O&O&O&O&ppppdOOO", names, &config.name,
          &wishes.timeout, &progress, &config.insecure, &wishes.spin, &wishes.liveness,
          &wishes.rails, &wishes.copy_threads, &config.peer_events, &wishes.window, &wishes.pool,
          &wishes.peers, &wishes.regions, &wishes.transfers, &wishes.staging, &wishes.rate,
          &config.paths, &config.estimates_only, &wishes.zero_copy, path_from, &wishes.key,
          path_from, &wishes.certificate, path_from, &wishes.private_key, path_from,
          &wishes.authority, path_from, &wishes.login, &config.plain_data, &config.process_tls,
          &config.any_user, &config.any_observer, &wishes.handshake, &wishes.peers_each,
          &wishes.lookups, &wishes.peer_bytes) ||
      !read_times(&wishes, &config) || !read_counts(&wishes, &config)) {
    forget_paths(&wishes);
    return NULL;
  }
  bool caller = strcmp(progress, "caller") == 0;
  if (wishes.timeout == 0)
    PyErr_SetString(PyExc_ValueError, "a node's timeout is more than 0");
  else if (!caller && strcmp(progress, "thread") != 0)
    PyErr_SetString(PyExc_ValueError, "progress is \"thread\" or \"caller\"");
  if (PyErr_Occurred()) {
    forget_paths(&wishes);
    return NULL;
  }
  if (caller)
    config.progress = HAUL_PROGRESS_CALLER;
  read_paths(&wishes, &config);
  Py_BEGIN_ALLOW_THREADS;
  code = haul_node_open(&config, &handle);
  Py_END_ALLOW_THREADS;
  forget_paths(&wishes);
  if (code)
    return raise_last();
  struct node *node = (struct node *)object_new(type, "node", handle, release_node, NULL);
  if (node)
    node->timeout = wishes.timeout;
  return (PyObject *)node;
}

/* ---- Its end ---- */

static PyObject *node_close(PyObject *self, PyObject *none) {
  struct node *node = (struct node *)self;
  (void)none;
  if (node->base.exports) {
    PyErr_Format(PyExc_BufferError, "%u buffers or tensors of the node's regions are still in use",
                 node->base.exports);
    return NULL;
  }
  object_close(&node->base);
  Py_RETURN_NONE;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((struct node *)self)->watch);
  return object_traverse(self, visit, arg);
}

static int clear(PyObject *self) {
  Py_CLEAR(((struct node *)self)->watch);
  return 0;
}

static void dealloc(PyObject *self) {
  PyObject *watch = ((struct node *)self)->watch;
  object_free((struct object *)self);
  Py_XDECREF(watch);
}

/* ---- Listening ---- */

struct listening {
  struct job job;
  haul_node *node;
  char address[256];
};

/* A host's name may take up to ten seconds to find. */
static int run_listen(struct job *job) {
  struct listening *listening = (struct listening *)job;
  return haul_node_listen(listening->node, listening->address);
}

static PyObject *addresses_of(haul_node *handle) {
  char text[192];
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && haul_node_address(handle, i, text, sizeof text) == 0; i++) {
    PyObject *address = text_of(text);
    if (!address || PyList_Append(list, address) != 0)
      Py_CLEAR(list);
    Py_XDECREF(address);
  }
  return list;
}

static PyObject *node_get_addresses(PyObject *self, void *none) {
  struct object *node = (struct object *)self;
  haul_node *handle = object_enter(node, "addresses");
  (void)none;
  if (!handle)
    return NULL;
  PyObject *list = addresses_of(handle);
  object_leave(node);
  return list;
}

static PyObject *node_listen(PyObject *self, PyObject *args) {
  struct object *node = (struct object *)self;
  const char *address;
  if (!PyArg_ParseTuple(args, "s", &address))
    return NULL;
  struct listening *listening = job_new(sizeof *listening);
  if (!listening)
    return NULL;
  listening->job.run = run_listen;
  listening->job.used[0] = node;
  /* What does not fit is too long for any address, also when it is cut. */
  PyOS_snprintf(listening->address, sizeof listening->address, "%s", address);
  listening->node = object_enter(node, "listen");
  if (!listening->node) {
    job_free(&listening->job);
    return NULL;
  }
  if (job_run(&listening->job) != 0)
    return NULL;
  job_free(&listening->job);
  PyObject *list = node_get_addresses(self, NULL);
  PyObject *last = list ? PySequence_GetItem(list, PyList_Size(list) - 1) : NULL;
  Py_XDECREF(list);
  return last;
}

/* ---- Connecting ---- */

struct connecting {
  struct job job;
  haul_node *node;
  haul_deadline until;
  haul_peer *peer;
  char address[256];
};

static int run_connect(struct job *job) {
  struct connecting *connecting = (struct connecting *)job;
  return haul_peer_connect(connecting->node, connecting->address, connecting->until,
                           &connecting->peer);
}

static void undo_connect(struct job *job) {
  haul_peer_close(((struct connecting *)job)->peer);
}

static PyObject *node_connect(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"address", "timeout", NULL};
  struct node *node = (struct node *)self;
  PyObject *timeout = Py_None;
  const char *address;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|$O", names, &address, &timeout) ||
      !deadline_from(timeout, node->timeout, &until))
    return NULL;
  struct connecting *connecting = job_new(sizeof *connecting);
  if (!connecting)
    return NULL;
  connecting->job.run = run_connect;
  connecting->job.undo = undo_connect;
  connecting->job.used[0] = &node->base;
  connecting->until = until;
  PyOS_snprintf(connecting->address, sizeof connecting->address, "%s", address);
  connecting->node = object_enter(&node->base, "connect");
  if (!connecting->node) {
    job_free(&connecting->job);
    return NULL;
  }
  if (job_run(&connecting->job) != 0)
    return NULL;
  PyObject *peer = peer_object(node, connecting->peer);
  job_free(&connecting->job);
  return peer;
}

/* ---- Progress ---- */

static int step_progress(void *user, haul_deadline until) {
  int events = haul_node_progress(user, until);
  return events == 0 ? STEP_AGAIN : events < 0 ? events : 0;
}

static PyObject *node_progress(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"timeout", NULL};
  struct node *node = (struct node *)self;
  PyObject *timeout = NULL;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O", names, &timeout) ||
      !deadline_from(timeout, 0, &until))
    return NULL;
  haul_node *handle = object_enter(&node->base, "progress");
  if (!handle)
    return NULL;
  int code = wait_in_steps(&node->base, "progress", step_progress, handle, until);
  if (code < 0 && code != HAUL_ETIMEDOUT)
    raise_last();
  object_leave(&node->base);
  if (PyErr_Occurred())
    return NULL;
  return PyBool_FromLong(code == 0);
}

static PyObject *node_fileno(PyObject *self, PyObject *none) {
  struct object *node = (struct object *)self;
  (void)none;
  haul_node *handle = object_enter(node, "fileno");
  if (!handle)
    return NULL;
  int descriptor = haul_node_fd(handle);
  if (descriptor < 0)
    raise_last();
  object_leave(node);
  return descriptor < 0 ? NULL : PyLong_FromLong(descriptor);
}

/* While the node is entered its descriptor is its own. */
static PyObject *node_dup(PyObject *self, PyObject *none) {
  struct object *node = (struct object *)self;
  (void)none;
  haul_node *handle = object_enter(node, "fileno");
  if (!handle)
    return NULL;
  int descriptor = haul_node_fd(handle);
  int copy = descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0)
    raise_last();
  else if (copy < 0)
    PyErr_SetFromErrno(PyExc_OSError);
  object_leave(node);
  return copy < 0 ? NULL : PyLong_FromLong(copy);
}

/* ---- Regions ---- */

static PyObject *node_alloc(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"length", "place", "private", "pinned", NULL};
  struct node *node = (struct node *)self;
  haul_region *region = NULL;
  const char *text = "host";
  struct haul_place place;
  PyObject *number;
  int code, private = 0, pinned = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|s$pp", names, &number, &text, &private,
                                   &pinned))
    return NULL;
  size_t length = PyLong_AsSize_t(number);
  if (PyErr_Occurred() || !place_from(text, &place))
    return NULL;
  haul_node *handle = object_enter(&node->base, "alloc");
  if (!handle)
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_region_alloc(handle, place, length,
                           (private ? HAUL_REGION_PRIVATE : 0) | (pinned ? HAUL_REGION_PINNED : 0),
                           &region);
  Py_END_ALLOW_THREADS;
  PyObject *made = code ? raise_last() : region_object(node, region, NULL, NULL, false);
  object_leave(&node->base);
  return made;
}

static PyObject *node_wrap(PyObject *self, PyObject *object) {
  return wrap_object((struct node *)self, object);
}

/* A layout of elements that are no whole bytes has no use here: then it is bytes. */
static bool read_layout(const struct haul_ticket *ticket, struct haul_tensor *layout) {
  int64_t low, high;
  return haul_ticket_layout(ticket, layout) == 0 && layout->bits % 8 == 0 &&
         layout_extent(layout, &low, &high);
}

static PyObject *import_ticket(struct node *node, const struct haul_ticket *ticket,
                               int descriptor) {
  struct haul_tensor layout;
  haul_region *region;
  int code;
  haul_node *handle = object_enter(&node->base, "import_");
  if (!handle)
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  code = haul_region_import(handle, ticket, descriptor, &region);
  Py_END_ALLOW_THREADS;
  PyObject *made = NULL;
  if (code)
    raise_last();
  else
    made = region_object(node, region, read_layout(ticket, &layout) ? &layout : NULL, NULL, false);
  object_leave(&node->base);
  return made;
}

static PyObject *node_import(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"ticket", "fd", NULL};
  struct haul_ticket ticket;
  Py_buffer bytes;
  PyObject *file = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "y*|O", names, &bytes, &file))
    return NULL;
  bool whole = bytes.len == (Py_ssize_t)sizeof ticket.bytes;
  if (whole)
    memcpy(ticket.bytes, bytes.buf, sizeof ticket.bytes);
  PyBuffer_Release(&bytes);
  if (!whole)
    return raise_own(HAUL_ETICKET, "import_", "ticket", "a ticket has 256 bytes",
                     "send it whole, as export gave it");
  int descriptor = file == Py_None ? -1 : PyObject_AsFileDescriptor(file);
  return descriptor < 0 && file != Py_None
             ? NULL
             : import_ticket((struct node *)self, &ticket, descriptor);
}

/* ---- What it is ---- */

static PyObject *get_timeout(PyObject *self, void *none) {
  (void)none;
  return PyFloat_FromDouble(((struct node *)self)->timeout);
}

static PyObject *get_watch(PyObject *self, void *none) {
  PyObject *watch = ((struct node *)self)->watch;
  (void)none;
  if (!watch)
    Py_RETURN_NONE;
  Py_INCREF(watch);
  return watch;
}

static int set_watch(PyObject *self, PyObject *value, void *none) {
  struct node *node = (struct node *)self;
  PyObject *before = node->watch;
  (void)none;
  Py_XINCREF(value);
  node->watch = value;
  Py_XDECREF(before);
  return 0;
}

PyTypeObject *node_type(void) {
  static PyMethodDef methods[] = {
      {"listen", node_listen, METH_VARARGS,
       "listen(address): take connections at \"tcp://127.0.0.1:0\" or \"unix:///path\". Returns "
       "the "
       "address, with the port that was chosen."},
      {"connect", METHOD_WITH_KEYWORDS(node_connect),
       "connect(address, *, timeout=None): the peer that listens there."},
      {"alloc", METHOD_WITH_KEYWORDS(node_alloc),
       "alloc(length, place=\"host\", *, private=False, pinned=False): a region of new memory; "
       "pinned for GPUs, which then copy host memory straight."},
      {"wrap", node_wrap, METH_O,
       "wrap(object): a region over the memory of a tensor (__dlpack__) or a buffer, which it "
       "keeps. ValueError for elements of a type that haul does not know: Python objects, and "
       "structures, strings, other byte orders, which array.view(\"uint8\") makes bytes of."},
      {"import_", METHOD_WITH_KEYWORDS(node_import),
       "import_(ticket, fd=None): another process's region. The descriptor stays the caller's; "
       "none "
       "is needed for a further ticket of a region that was imported with one."},
      {"receive", METHOD_WITH_KEYWORDS(message_receive),
       "receive(*, timeout=None): the next message of any peer."},
      {"progress", METHOD_WITH_KEYWORDS(node_progress),
       "progress(timeout=0): move on until something happened; False where nothing did."},
      {"fileno", node_fileno, METH_NOARGS, "A descriptor that is readable when there is news."},
      {"_dup", node_dup, METH_NOARGS, "For haul.aio: a copy of fileno, the caller's to close."},
      {"devices", info_devices, METH_NOARGS, "The places that memory can be at here."},
      {"checks", info_checks, METH_NOARGS,
       "What each path and place needs, and whether it is here."},
      {"counters", info_counters, METH_NOARGS, "All counters, by name."},
      {"close", node_close, METH_NOARGS,
       "End transfers, leave peers. BufferError while a buffer or a tensor of a region is in use."},
      OBJECT_METHODS,
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef getters[] = {
      {"addresses", node_get_addresses, NULL, "Where it listens.", NULL},
      {"timeout", get_timeout, NULL, "Seconds, of calls and transfers that name none.", NULL},
      {"_watch", get_watch, set_watch, "For haul.aio.", NULL},
      OBJECT_GETTERS,
      {NULL, NULL, NULL, NULL, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_new, node_new),
      SLOT(Py_tp_dealloc, dealloc),
      SLOT(Py_tp_traverse, traverse),
      SLOT(Py_tp_clear, clear),
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_doc, "This process's end. Times are seconds; None is the library's default."},
      {0, NULL}};
  static PyType_Spec spec = {"haul.Node", sizeof(struct node), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
