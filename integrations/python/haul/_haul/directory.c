/* SPDX-License-Identifier: MIT
 * Directories in etcd: registration, lookup, and Directory, a walk. */
#include <haul/directory.h>
#include <stdlib.h>
#include <string.h>

#include "haulpy.h"

#define FOUND_MAX 64         /* entries of a name */
#define STEP_NS   1000000000 /* upper bound of the delay of a signal */

/* A call with an address, which is cut nowhere, as a part of one may be valid, too. */
struct asking {
  struct job job;
  haul_deadline until;
  struct haul_register_options options; /* of register; its `advertise` lies behind the address */
  haul_directory *walk;                 /* of directory */
  struct haul_directory_entry *entries; /* of find */
  size_t count;
  char address[];
};

static struct asking *asking_new(struct node *node, const char *call, const char *address,
                                 const char *advertise, int (*run)(struct job *job),
                                 void (*undo)(struct job *job)) {
  size_t length = strlen(address) + 1, more = advertise ? strlen(advertise) + 1 : 0;
  struct asking *asking = job_new(sizeof *asking + length + more, &node->base, call, run, undo);
  if (!asking)
    return NULL;
  memcpy(asking->address, address, length);
  asking->options = (struct haul_register_options)HAUL_REGISTER_OPTIONS_INIT;
  if (advertise)
    asking->options.advertise = memcpy(asking->address + length, advertise, more);
  return asking;
}

static int run_register(struct job *job) {
  const struct asking *asking = (struct asking *)job;
  return haul_node_register(job->handle, asking->address, &asking->options, asking->until);
}

PyObject *node_register(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"directory", "lease", "advertise", "timeout", NULL};
  struct node *node = (struct node *)self;
  const char *address, *advertise = NULL;
  PyObject *timeout = Py_None;
  haul_deadline until;
  unsigned lease = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|$O&zO", names, &address, uint32_from, &lease,
                                   &advertise, &timeout) ||
      !deadline_from(timeout, node->timeout, &until))
    return NULL;
  struct asking *asking = asking_new(node, "register", address, advertise, run_register, NULL);
  if (!asking)
    return NULL;
  asking->options.lease_seconds = lease;
  asking->until = until;
  if (job_run(&asking->job) != 0)
    return NULL;
  job_free(&asking->job);
  Py_RETURN_NONE;
}

/* The constants of the C header, in lower case. */
static const char *name_of(int kind, const char *const *names, int count) {
  return kind >= 1 && kind <= count ? names[kind - 1] : "unknown";
}

static PyObject *addresses_item(void *given) {
  const struct haul_directory_entry *entry = given;
  PyObject *tuple = PyTuple_New((Py_ssize_t)entry->address_count);
  for (unsigned i = 0; tuple && i < entry->address_count; i++) {
    PyObject *address = text_of(entry->addresses[i]);
    if (!address || PyTuple_SetItem(tuple, (Py_ssize_t)i, address) != 0)
      Py_CLEAR(tuple);
  }
  return tuple;
}

static PyObject *place_or_none(void *given) {
  const struct haul_directory_entry *entry = given;
  return entry->place.kind ? place_text(entry->place) : Py_NewRef(Py_None);
}

static PyObject *granted_item(void *given) {
  return rights_of(((const struct haul_directory_entry *)given)->rights);
}

static PyObject *entry_object(const struct haul_directory_entry *entry) {
  static const char *const kinds[] = {"node", "region"};
  void *given = (void *)(uintptr_t)entry;
  return data_make(
      "Entry",
      Py_BuildValue("(sO&O&KO&O&y#y#KO&)", name_of(entry->kind, kinds, 2), TEXT(entry->node),
                    TEXT(entry->name), (unsigned long long)entry->length, place_or_none, given,
                    granted_item, given, (const char *)entry->id, (Py_ssize_t)sizeof entry->id,
                    (const char *)entry->boot, (Py_ssize_t)sizeof entry->boot,
                    (unsigned long long)entry->network, addresses_item, given));
}

static void undo_find(struct job *job) {
  free(((struct asking *)job)->entries);
}

static int run_find(struct job *job) {
  struct asking *asking = (struct asking *)job;
  asking->entries = calloc(FOUND_MAX, sizeof *asking->entries);
  asking->count = asking->entries ? FOUND_MAX : 0;
  int code = haul_directory_find(job->handle, asking->address, asking->until, asking->entries,
                                 &asking->count);
  if (code)
    undo_find(job);
  return code;
}

static PyObject *found_list(const struct asking *asking) {
  if (!asking->entries)
    return PyErr_NoMemory();
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < asking->count && i < FOUND_MAX; i++)
    list_append(&list, entry_object(&asking->entries[i]));
  return list;
}

/* The arguments `address` and `timeout`. */
static struct asking *asking_from(PyObject *self, PyObject *args, PyObject *keywords,
                                  const char *call, int (*run)(struct job *job),
                                  void (*undo)(struct job *job)) {
  static char *names[] = {"address", "timeout", NULL};
  struct node *node = (struct node *)self;
  PyObject *timeout = Py_None;
  const char *address;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|$O", names, &address, &timeout) ||
      !deadline_from(timeout, node->timeout, &until))
    return NULL;
  struct asking *asking = asking_new(node, call, address, NULL, run, undo);
  if (asking)
    asking->until = until;
  return asking;
}

PyObject *node_find(PyObject *self, PyObject *args, PyObject *keywords) {
  struct asking *asking = asking_from(self, args, keywords, "find", run_find, undo_find);
  if (!asking || job_run(&asking->job) != 0)
    return NULL;
  PyObject *list = found_list(asking);
  undo_find(&asking->job);
  job_free(&asking->job);
  return list;
}

struct directory {
  struct object base;
  bool walking; /* a thread is in haul_directory_next */
  bool told;    /* the entries of the start have ended: etcd's absence is no error from now on */
};

static void release_walk(void *handle) {
  haul_directory_close(handle);
}

static int run_open(struct job *job) {
  struct asking *asking = (struct asking *)job;
  return haul_directory_open(job->handle, asking->address, asking->until, &asking->walk);
}

static void undo_open(struct job *job) {
  haul_directory_close(((struct asking *)job)->walk);
}

PyObject *node_directory(PyObject *self, PyObject *args, PyObject *keywords) {
  struct asking *asking = asking_from(self, args, keywords, "directory", run_open, undo_open);
  if (!asking || job_run(&asking->job) != 0)
    return NULL;
  PyObject *made = (PyObject *)object_new(haulpy.directory, "directory", asking->walk, release_walk,
                                          (struct node *)self);
  job_free(&asking->job);
  return made;
}

struct stepping {
  haul_directory *walk;
  bool told;
  haul_deadline until;
  struct haul_directory_event event;
};

/* A step has a deadline of its own, as a connection to etcd that it has begun ends with it. */
static int step_next(void *user, haul_deadline until) {
  struct stepping *stepping = user;
  haul_deadline end = haul_deadline_in(STEP_NS);
  (void)until;
  int code = haul_directory_next(stepping->walk, end < stepping->until ? end : stepping->until,
                                 &stepping->event);
  bool away = stepping->told && (code == HAUL_ECONNECT || code == HAUL_EPEER);
  return code == HAUL_ETIMEDOUT || away ? STEP_AGAIN : code;
}

static PyObject *entry_or_none(void *given) {
  const struct haul_directory_event *event = given;
  return event->kind == HAUL_DIRECTORY_TOLD ? Py_NewRef(Py_None) : entry_object(&event->entry);
}

static PyObject *event_object(const struct haul_directory_event *event) {
  static const char *const kinds[] = {"holds", "told", "came", "went"};
  return data_make("Event", Py_BuildValue("(sO&)", name_of(event->kind, kinds, 4), entry_or_none,
                                          (void *)(uintptr_t)event));
}

/* At the deadline the error is that of the last step, which tells why etcd cannot be reached. */
static PyObject *next_until(struct directory *directory, haul_directory *walk,
                            haul_deadline until) {
  struct stepping stepping = {.walk = walk, .told = directory->told, .until = until};
  int code = wait_in_steps(&directory->base, "next", step_next, &stepping, until);
  if (code)
    return code == WAIT_RAISED ? NULL : raise_last();
  directory->told |= stepping.event.kind == HAUL_DIRECTORY_TOLD;
  return event_object(&stepping.event);
}

static PyObject *directory_next(PyObject *self, PyObject *args, PyObject *keywords) {
  struct directory *directory = (struct directory *)self;
  haul_deadline until;
  if (!deadline_argument(args, keywords, "|$O", directory->base.node->timeout, &until))
    return NULL;
  haul_directory *walk = object_enter(&directory->base, "next");
  if (!walk)
    return NULL;
  PyObject *event = NULL;
  if (directory->walking) {
    raise_own(HAUL_EBUSY, "next", "directory", "another thread waits for the next event",
              "use a directory in one thread at a time");
  } else {
    directory->walking = true;
    event = next_until(directory, walk, until);
    directory->walking = false;
  }
  object_leave(&directory->base);
  return event;
}

static PyMethodDef methods[] = {
    {"next", METHOD_WITH_KEYWORDS(directory_next),
     DOC("next($self, *, timeout=None)",
         "Return the next Event: \"holds\" for each entry that exists at the start, \"told\" at "
         "their\n"
         "end, then \"came\" for an entry that is new or changed, and \"went\".\n"
         "\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Blocks. While etcd is away after \"told\" it is retried, and no event is lost. Raises\n"
         "TimedOut, or at the timeout ConnectFailed or PeerGone if etcd is away; ProtocolViolated\n"
         "(it was away for so long that it has compacted the changes: begin a new walk); Busy (in\n"
         "another thread); and as Node.register. Ctrl-C ends it within a second.")},
    OBJECT_CLOSE("End the walk. Does not wait."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

PyTypeObject *directory_type(void) {
  static PyMemberDef members[] = {OBJECT_MEMBERS,
                                  MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
                                  {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, object_free),
      SLOT(Py_tp_traverse, object_traverse),
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {Py_tp_doc, "A walk over the entries of a directory, from Node.directory; for one thread at "
                  "a time."},
      {0, NULL}};
  static PyType_Spec spec = {"haul.Directory", sizeof(struct directory), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
