/* SPDX-License-Identifier: MIT
 * Node: this process's end. */
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "haulpy.h"

#define DEFAULT_TIMEOUT 60.0 /* seconds */

static void release_node(void *handle) {
  haul_node_close(handle);
}

enum unit { SECONDS, COUNT, BYTES };

/* Settings that are numbers. The library judges their range; its fields are int64_t nanoseconds,
 * unsigned, and size_t. */
static const struct setting {
  const char *name;
  enum unit unit;
  size_t field;
  unsigned long long zero; /* the library's number for "none", which is 0 in Python */
} settings[] = {
#define SETTING(name, unit, field, zero)                                                           \
  { name, unit, offsetof(struct haul_node_config, field), zero }
    SETTING("timeout", SECONDS, transfer_ns, 0),
    SETTING("spin", SECONDS, spin_ns, 0),
    SETTING("liveness", SECONDS, liveness_ns, 0),
    SETTING("tcp_rails", COUNT, tcp_rails, 0),
    SETTING("copy_threads", COUNT, copy_threads, UINT_MAX),
    SETTING("message_window", BYTES, message_window, 0),
    SETTING("pool_bytes", BYTES, pool_bytes, SIZE_MAX),
    SETTING("max_peers", COUNT, max_peers, 0),
    SETTING("max_regions", COUNT, max_regions, 0),
    SETTING("max_transfers", COUNT, max_transfers, 0),
    SETTING("staging_bytes", BYTES, staging_bytes, 0),
    SETTING("tcp_rate", BYTES, tcp_rate, SIZE_MAX),
    SETTING("tcp_zero_copy", BYTES, tcp_zero_copy, SIZE_MAX),
    SETTING("handshake", SECONDS, handshake_ns, 0),
    SETTING("max_peers_each", COUNT, max_peers_each, 0),
    SETTING("max_lookups", COUNT, max_lookups, UINT_MAX),
    SETTING("peer_bytes", BYTES, peer_bytes, 0),
    SETTING("idle_rails", SECONDS, idle_rails_ns, 0),
    SETTING("warm_bytes", BYTES, warm_bytes, 0),
#undef SETTING
};
enum { NUMBERS = sizeof settings / sizeof *settings, FILES = 5 };

/* Larger numbers than the field holds become its maximum but one, as the maximum may mean "none".
 */
static bool count_from(const struct setting *setting, PyObject *given, unsigned long long *count) {
  const unsigned long long most = (setting->unit == COUNT ? UINT_MAX : SIZE_MAX) - 1;
  int overflow;
  PyObject *integer = PyNumber_Index(given);
  if (!integer) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      PyErr_Format(PyExc_TypeError, "invalid %s %R: expected an integer", setting->name, given);
    }
    return false;
  }
  long long number = PyLong_AsLongLongAndOverflow(integer, &overflow);
  Py_DECREF(integer);
  if (overflow < 0 || (overflow == 0 && number < 0)) {
    PyErr_Format(PyExc_ValueError, "invalid %s %R: expected an integer, 0 or more", setting->name,
                 given);
    return false;
  }
  *count = overflow || (unsigned long long)number > most ? most : (unsigned long long)number;
  if (*count == 0)
    *count = setting->zero;
  return true;
}

/* None is the library's default. */
static bool read_number(const struct setting *setting, PyObject *given,
                        struct haul_node_config *config) {
  void *field = (char *)config + setting->field;
  unsigned long long count;
  if (!given || given == Py_None)
    return true;
  if (setting->unit == SECONDS)
    return nanoseconds_from(given, setting->name, field);
  if (!count_from(setting, given, &count))
    return false;
  if (setting->unit == COUNT)
    *(unsigned *)field = (unsigned)count;
  else
    *(size_t *)field = (size_t)count;
  return true;
}

static bool read_settings(PyObject *const numbers[NUMBERS], const char *progress,
                          struct haul_node_config *config) {
  for (size_t i = 0; i < NUMBERS; i++)
    if (!read_number(&settings[i], numbers[i], config))
      return false;
  if (numbers[0] && numbers[0] != Py_None && config->transfer_ns == 0) {
    PyErr_SetString(PyExc_ValueError, "invalid timeout 0: expected seconds greater than 0");
    return false;
  }
  if (strcmp(progress, "caller") == 0)
    config->progress = HAUL_PROGRESS_CALLER;
  else if (strcmp(progress, "thread") != 0) {
    PyErr_Format(PyExc_ValueError, "invalid progress \"%.40s\": expected \"thread\" or \"caller\"",
                 progress);
    return false;
  }
  return true;
}

/* None is no path. The caller frees `bytes` even after a failure. */
static bool read_paths(PyObject *const given[FILES], PyObject *bytes[FILES]) {
  static const char *const names[FILES] = {"key", "certificate", "private_key", "authority",
                                           "directory_login"};
  for (size_t i = 0; i < FILES; i++)
    if (given[i] && given[i] != Py_None && !PyUnicode_FSConverter(given[i], &bytes[i])) {
      if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "invalid %s %R: expected a path", names[i], given[i]);
      }
      return false;
    }
  return true;
}

/* The node, or NULL with an exception. The files are bytes, or NULL. */
static PyObject *open_node(PyTypeObject *type, struct haul_node_config *config,
                           PyObject *const files[FILES], double timeout) {
  const char **const paths[FILES] = {&config->key, &config->certificate, &config->private_key,
                                     &config->authority, &config->directory_login};
  haul_node *handle;
  int code;
  for (size_t i = 0; i < FILES; i++)
    *paths[i] = files[i] ? PyBytes_AsString(files[i]) : NULL;
  WITHOUT_GIL(code = haul_node_open(config, &handle));
  if (code)
    return raise_last();
  struct node *node = (struct node *)object_new(type, "node", handle, release_node, NULL);
  if (node)
    node->timeout = timeout;
  return (PyObject *)node;
}

static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {
      "name",        "timeout",     "progress",       "insecure",        "spin",
      "liveness",    "tcp_rails",   "copy_threads",   "peer_events",     "message_window",
      "pool_bytes",  "max_peers",   "max_regions",    "max_transfers",   "staging_bytes",
      "tcp_rate",    "paths",       "estimates_only", "tcp_zero_copy",   "key",
      "certificate", "private_key", "authority",      "directory_login", "plain_data",
      "process_tls", "any_user",    "any_observer",   "handshake",       "max_peers_each",
      "max_lookups", "peer_bytes",  "idle_rails",     "warm_bytes",      NULL};
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  PyObject *n[NUMBERS] = {NULL}; /* as in settings[] */
  PyObject *paths[FILES] = {NULL}, *files[FILES] = {NULL}, *node = NULL;
  const char *progress = "thread";
  if (PyArg_ParseTupleAndKeywords(
          args, keywords, "|z$OspOOOOpOOOOOOOzpOOOOOOppppOOOOOO", names, &config.name, &n[0],
          &progress, &config.insecure, &n[1], &n[2], &n[3], &n[4], &config.peer_events, &n[5],
          &n[6], &n[7], &n[8], &n[9], &n[10], &n[11], &config.paths, &config.estimates_only, &n[12],
          &paths[0], &paths[1], &paths[2], &paths[3], &paths[4], &config.plain_data,
          &config.process_tls, &config.any_user, &config.any_observer, &n[13], &n[14], &n[15],
          &n[16], &n[17], &n[18]) &&
      read_settings(n, progress, &config) && read_paths(paths, files)) {
    double timeout = n[0] && n[0] != Py_None ? PyFloat_AsDouble(n[0]) : DEFAULT_TIMEOUT;
    if (!PyErr_Occurred())
      node = open_node(type, &config, files, timeout);
  }
  for (size_t i = 0; i < FILES; i++)
    Py_CLEAR(files[i]);
  return node;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((struct node *)self)->watch);
  Py_VISIT(((struct node *)self)->inbox);
  return object_traverse(self, visit, arg);
}

static int clear(PyObject *self) {
  Py_CLEAR(((struct node *)self)->watch);
  Py_CLEAR(((struct node *)self)->inbox);
  return 0;
}

static void dealloc(PyObject *self) {
  PyObject *watch = ((struct node *)self)->watch, *inbox = ((struct node *)self)->inbox;
  object_free(self);
  Py_XDECREF(watch);
  Py_XDECREF(inbox);
}

struct listening {
  struct job job;
  char address[256];
};

/* Blocks for the resolver, up to ten seconds. */
static int run_listen(struct job *job) {
  return haul_node_listen(job->handle, ((struct listening *)job)->address);
}

static PyObject *get_addresses(void *handle) {
  char text[192];
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && haul_node_address(handle, i, text, sizeof text) == 0; i++)
    list_append(&list, text_of(text));
  return list;
}
GETTER(addresses);

static PyObject *node_listen(PyObject *self, PyObject *args) {
  struct object *node = (struct object *)self;
  const char *address;
  if (!PyArg_ParseTuple(args, "s", &address))
    return NULL;
  struct listening *listening = job_new(sizeof *listening, node, "listen", run_listen, NULL);
  if (!listening)
    return NULL;
  /* Longer addresses are invalid even when cut. */
  PyOS_snprintf(listening->address, sizeof listening->address, "%s", address);
  if (job_run(&listening->job) != 0)
    return NULL;
  job_free(&listening->job);
  PyObject *list = object_get(self, &addresses_getter);
  PyObject *last = list ? PySequence_GetItem(list, PyList_Size(list) - 1) : NULL;
  Py_XDECREF(list);
  return last;
}

struct connecting {
  struct job job;
  haul_deadline until;
  haul_peer *peer;
  char address[256];
};

static int run_connect(struct job *job) {
  struct connecting *connecting = (struct connecting *)job;
  return haul_peer_connect(job->handle, connecting->address, connecting->until, &connecting->peer);
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
  struct connecting *connecting =
      job_new(sizeof *connecting, &node->base, "connect", run_connect, undo_connect);
  if (!connecting)
    return NULL;
  connecting->until = until;
  PyOS_snprintf(connecting->address, sizeof connecting->address, "%s", address);
  if (job_run(&connecting->job) != 0)
    return NULL;
  PyObject *peer = peer_object(node, connecting->peer);
  job_free(&connecting->job);
  return peer;
}

static int step_progress(void *user, haul_deadline until) {
  int events = haul_node_progress(user, until);
  return events == 0 ? STEP_AGAIN : events < 0 ? events : 0;
}

static PyObject *node_progress(PyObject *self, PyObject *args, PyObject *keywords) {
  struct node *node = (struct node *)self;
  haul_deadline until;
  if (!deadline_argument(args, keywords, "|O", 0, &until))
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

static PyObject *fileno_of(void *handle) {
  int descriptor = haul_node_fd(handle);
  return descriptor < 0 ? raise_last() : PyLong_FromLong(descriptor);
}
METHOD(node, fileno)

/* The node keeps its descriptor open while it is entered. */
static PyObject *_dup_of(void *handle) {
  int descriptor = haul_node_fd(handle);
  int copy = descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0)
    return raise_last();
  return copy < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(copy);
}
METHOD(node, _dup)

METHOD(node, devices)
METHOD(node, checks)
METHOD(node, counters)

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
  WITHOUT_GIL(code = haul_region_alloc(handle, place, length,
                                       (private ? HAUL_REGION_PRIVATE : 0) |
                                           (pinned ? HAUL_REGION_PINNED : 0),
                                       &region));
  PyObject *made = code ? raise_last() : region_object(node, region, NULL, NULL, false);
  object_leave(&node->base);
  return made;
}

/* A layout with elements of less than a byte is ignored: then the region is bytes. */
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
  WITHOUT_GIL(code = haul_region_import(handle, ticket, descriptor, &region));
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
    return raise_own(HAUL_ETICKET, "import_", "ticket", "the ticket does not have 256 bytes",
                     "send all of what export returned");
  int descriptor = file == Py_None ? -1 : PyObject_AsFileDescriptor(file);
  return descriptor < 0 && file != Py_None
             ? NULL
             : import_ticket((struct node *)self, &ticket, descriptor);
}

static PyMethodDef methods[] = {
    {"listen", node_listen, METH_VARARGS,
     DOC("listen($self, address, /)",
         "Accept connections. Can be called for several addresses.\n"
         "\n"
         "address  \"tcp://127.0.0.1:0\" (port 0: any free port), \"unix:///path\", "
         "\"unix://@name\"\n"
         "         (abstract), or \"fd://3\", a listening socket that the process inherited\n"
         "\n"
         "Returns the address with the actual port. Blocks for the resolver, at most 10 seconds.\n"
         "Raises BadAddress, AddressInUse, LimitReached; Insecure for an address beyond loopback\n"
         "without a key.")},
    {"connect", METHOD_WITH_KEYWORDS(node_connect),
     DOC("connect($self, address, *, timeout=None)",
         "Connect to another node.\n"
         "\n"
         "address  as of listen, or \"etcd://HOST/PREFIX/NAME\"\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a Peer. Blocks until the peer has responded. Raises TimedOut, ConnectFailed,\n"
         "BadAddress, NotAuthenticated, VersionMismatch, ProtocolViolated, PeerGone, "
         "LimitReached.")},
    {"alloc", METHOD_WITH_KEYWORDS(node_alloc),
     DOC("alloc($self, length, place=\"host\", *, private=False, pinned=False)",
         "Allocate memory, with undefined contents.\n"
         "\n"
         "length   in bytes\n"
         "place    \"host\", \"cuda:0\", \"sim:0\"\n"
         "private  without a descriptor: it cannot be exported\n"
         "pinned   host memory that GPUs copy directly\n"
         "\n"
         "Returns a Region. Does not wait for other processes. Raises NoSuchPlace, OutOfMemory,\n"
         "LimitReached (descriptors), Invalid.")},
    {"wrap", wrap_object, METH_O,
     DOC("wrap($self, object, /)",
         "Make a region of the memory of an object, which the region keeps.\n"
         "\n"
         "object  a tensor (__dlpack__) or a buffer, contiguous or not\n"
         "\n"
         "Returns a Region from its lowest to its highest byte, with its layout. Does not wait.\n"
         "Raises ValueError for element types that haul does not have (Python objects, "
         "structures,\n"
         "strings, foreign byte order: wrap array.view(\"uint8\")) and for an object without "
         "bytes;\n"
         "BufferError for a tensor of a foreign device; TypeError.")},
    {"wrap_file", METHOD_WITH_KEYWORDS(node_wrap_file),
     DOC("wrap_file($self, file, offset=0, length=None)",
         "Make a read-only region of a range of a regular file: bytes go from the page cache.\n"
         "\n"
         "file    a descriptor, or an object with fileno(), open for reading; it may be closed\n"
         "        afterwards\n"
         "offset  of the first byte\n"
         "length  in bytes; None: to the end of the file\n"
         "\n"
         "Returns a Region. Blocks as open does. A byte that the file has lost since then raises\n"
         "SIGBUS. Raises Invalid (not a regular file, not readable, no bytes), OutOfRange (the "
         "file\n"
         "is shorter), NotSupported (no mmap), SystemFailed.")},
    {"import_", METHOD_WITH_KEYWORDS(node_import),
     DOC("import_($self, ticket, fd=None)",
         "Map a region of another process of this host.\n"
         "\n"
         "ticket  the bytes that Region.export or Region.ticket returned there\n"
         "fd      the descriptor, or an object with fileno(); the caller keeps it. None for a\n"
         "        further ticket of a region that was imported with a descriptor\n"
         "\n"
         "Returns a Region. Does not wait. Raises BadTicket, Stale (its owner released it),\n"
         "NoSuchPlace, LimitReached, NotSupported.")},
    {"register", METHOD_WITH_KEYWORDS(node_register),
     DOC("register($self, directory, *, lease=10, advertise=None, timeout=None)",
         "Register the node and the regions that it publishes to everyone in a directory, until "
         "it\n"
         "is closed. A thread of the library keeps the entries current.\n"
         "\n"
         "directory  \"etcd://HOST[:PORT]/PREFIX\"\n"
         "lease      whole seconds until the entries of a dead node expire, 2 to 3600\n"
         "advertise  up to four addresses, separated by commas; None: those that it listens on\n"
         "timeout    in seconds; None: the node's\n"
         "\n"
         "Blocks until it is registered. Raises NameInUse (another node has the name), Invalid "
         "(it\n"
         "does not listen, or is registered), BadAddress, ConnectFailed, TimedOut, PeerGone,\n"
         "ProtocolViolated (not etcd), NotAuthenticated, Insecure, NotSupported (no module).")},
    {"find", METHOD_WITH_KEYWORDS(node_find),
     DOC("find($self, address, *, timeout=None)", "Look a name up in a directory.\n"
                                                  "\n"
                                                  "address  \"etcd://HOST/PREFIX/NAME\"\n"
                                                  "timeout  in seconds; None: the node's\n"
                                                  "\n"
                                                  "Returns a list of Entry: a node first, then "
                                                  "regions; at most 64. Blocks for etcd. Raises\n"
                                                  "NoSuchName, TimedOut, and as register.")},
    {"directory", METHOD_WITH_KEYWORDS(node_directory),
     DOC("directory($self, address, *, timeout=None)",
         "Begin a walk over the entries of a directory and over their changes.\n"
         "\n"
         "address  \"etcd://HOST/PREFIX\"\n"
         "timeout  in seconds, to read the login file; None: the node's\n"
         "\n"
         "Returns a Directory, which contacts etcd at its first next(). Raises BadAddress, "
         "Invalid,\n"
         "Insecure, NotSupported (no module), TimedOut.")},
    {"join", METHOD_WITH_KEYWORDS(node_join),
     DOC("join($self, *, timeout=None)",
         "Meet the processes that torchrun, MPI or Slurm started together: see haul_world(3).\n"
         "\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a World. Blocks until all ranks have arrived. Raises TimedOut (with the number "
         "of\n"
         "ranks that arrived), NotSupported (no launcher set its variables), Invalid (their "
         "values),\n"
         "NameInUse (another process has the rank), ProtocolViolated (another number of ranks), "
         "and\n"
         "as listen and connect.")},
    {"receive", METHOD_WITH_KEYWORDS(message_receive),
     DOC("receive($self, *, timeout=None)",
         "Receive the next message of any peer.\n"
         "\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a Message. Blocks. Raises TimedOut, Closed; LimitReached once, with the number "
         "of\n"
         "messages that were dropped because nothing received them.")},
    {"_receive", METHOD_WITH_KEYWORDS(message_receive_any),
     DOC("_receive($self, *, timeout=None)",
         "For haul._inbox: receive also the messages of haul.send and haul.receive.")},
    {"progress", METHOD_WITH_KEYWORDS(node_progress),
     DOC("progress($self, timeout=0)",
         "Make progress until an event; with progress=\"thread\", wait for one.\n"
         "\n"
         "timeout  in seconds\n"
         "\n"
         "Returns whether there was an event. Blocks for at most the timeout. Raises Closed; "
         "never\n"
         "TimedOut.")},
    {"fileno", node_fileno, METH_NOARGS,
     DOC("fileno($self, /)", "Return a descriptor that is readable after an event: then call "
                             "progress, and ask transfers\n"
                             "and receive. The node owns it. Does not wait. Raises Closed.")},
    {"_dup", node__dup, METH_NOARGS,
     DOC("_dup($self, /)", "For haul.aio: return a copy of fileno(), which the caller closes.")},
    {"devices", node_devices, METH_NOARGS,
     DOC("devices($self, /)", "Return a list of Device: the places of memory on this host. May "
                              "block in drivers. Raises\n"
                              "Closed.")},
    {"ports", METHOD_WITH_KEYWORDS(node_ports),
     DOC("ports($self, place=\"host\")",
         "Return a list of Port: the ports of NICs, the usable ones first, of which the best for\n"
         "memory at the place first.\n"
         "\n"
         "place  \"host\", \"cuda:0\"\n"
         "\n"
         "Opens the NICs, which may block in their drivers. Raises NoSuchPlace.")},
    {"checks", node_checks, METH_NOARGS,
     DOC("checks($self, /)",
         "Return a list of Check: the requirements of each path and place. May block in drivers.\n"
         "Raises Closed.")},
    {"counters", node_counters, METH_NOARGS,
     DOC("counters($self, /)",
         "Return all counters by name, haul_counter(3). Does not wait. Raises Closed.")},
    OBJECT_CLOSE(
        "Cancel transfers and disconnect from all peers.\n\n"
        "Blocks for microseconds; up to the liveness where a peer must end a copy, and 2 seconds\n"
        "more for a registered node if etcd does not respond. Raises BufferError while a buffer "
        "or\n"
        "a tensor of its regions is in use."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

static const char text[] = DOC(
    "Node(name=None, *, timeout=60, progress=\"thread\", insecure=False, spin=0, liveness=0, "
    "tcp_rails=None, copy_threads=None, peer_events=False, message_window=None, pool_bytes=None, "
    "max_peers=None, max_regions=None, max_transfers=None, staging_bytes=None, tcp_rate=None, "
    "paths=None, estimates_only=False, tcp_zero_copy=None, key=None, certificate=None, "
    "private_key=None, authority=None, directory_login=None, plain_data=False, process_tls=False, "
    "any_user=False, any_observer=False, handshake=0, max_peers_each=None, max_lookups=None, "
    "peer_bytes=None, idle_rails=0, warm_bytes=None)",
    "This process as a peer.\n"
    "\n"
    "Times are seconds, sizes bytes. None, and 0 for a time, is the value of haul.conf(5). 0 for\n"
    "a number or size that has \"none\" means none.\n"
    "\n"
    "name             for peers: 1 to 63 printable ASCII characters; None: HOST:PID\n"
    "timeout          of calls and transfers that set none\n"
    "progress         \"thread\", or \"caller\": only calls of the caller make progress\n"
    "insecure         listen beyond loopback even without a key\n"
    "spin             poll this long before sleeping; math.inf: never sleep\n"
    "liveness         drop a peer that is silent this long\n"
    "tcp_rails        data connections to a peer over tcp\n"
    "copy_threads     helpers for large copies between host memories\n"
    "peer_events      receive \"joined\" and \"left\" as messages\n"
    "message_window   bytes of unread messages kept for each peer\n"
    "pool_bytes       pool of freed regions\n"
    "max_peers        connections\n"
    "max_regions      published names\n"
    "max_transfers    in flight to one peer\n"
    "staging_bytes    limit of pinned bounce buffers\n"
    "tcp_rate         bytes per second of each rail\n"
    "paths            \"tcp\", or by size \"tcp:64K,rdma\"; None: the fastest\n"
    "estimates_only   choose paths without measured costs\n"
    "tcp_zero_copy    smallest write over tcp that passes pages by reference\n"
    "key              file with keys: peers authenticate, and tcp uses TLS 1.3\n"
    "certificate      PEM file; instead of a key, with private_key and authority\n"
    "private_key      PEM file of the certificate's key\n"
    "authority        PEM file of the trusted authorities\n"
    "directory_login  file with the login for etcd\n"
    "plain_data       no encryption of tcp data where both sides set it\n"
    "process_tls      encrypt in the process even where the kernel could\n"
    "any_user         Unix sockets accept any user\n"
    "any_observer     every peer may read statistics\n"
    "handshake        time for an incoming connection to authenticate\n"
    "max_peers_each   peers of one identity from one address\n"
    "max_lookups      regions known to one peer\n"
    "peer_bytes       in flight over tcp from a peer\n"
    "idle_rails       close rails that are unused this long\n"
    "warm_bytes       of the pool, filled when the node opens\n"
    "\n"
    "Blocks for the file system, and for the pages of warm_bytes. Raises Invalid (the object is\n"
    "the argument, the variable, or FILE:LINE), LimitReached, Insecure (others can read a file\n"
    "of secrets), NotSupported (a key without OpenSSL); TypeError and ValueError.");

PyTypeObject *node_type(void) {
  static PyGetSetDef getters[] = {
      PROPERTY(addresses,
               "Addresses that it listens on, in the order of the calls of listen: list of str."),
      {NULL, NULL, NULL, NULL, NULL}};
  static PyMemberDef members[] = {
      OBJECT_MEMBERS,
      MEMBER("timeout", T_DOUBLE, struct node, timeout,
             "Default of calls and transfers, in seconds."),
      {"_watch", T_OBJECT, offsetof(struct node, watch), 0,
       "For haul.aio."}, /* None if it is NULL */
      {"_inbox", T_OBJECT, offsetof(struct node, inbox), 0, "For haul._inbox."},
      {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_new, node_new),
                                SLOT(Py_tp_dealloc, dealloc),
                                SLOT(Py_tp_traverse, traverse),
                                SLOT(Py_tp_clear, clear),
                                {Py_tp_methods, methods},
                                {Py_tp_getset, getters},
                                {Py_tp_members, members},
                                {Py_tp_doc, (void *)(uintptr_t)text},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.Node", sizeof(struct node), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
