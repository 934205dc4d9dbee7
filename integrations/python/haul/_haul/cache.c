/* SPDX-License-Identifier: MIT
 * Cache: blocks by key in the stores of several nodes. */
#include <haul/cache.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

struct cache {
  struct object base;
  PyObject *attached; /* list of regions, which cannot be closed meanwhile */
};

static void release_cache(void *handle) {
  haul_cache_close(handle);
}

static void end_attachments(PyObject *regions) {
  for (Py_ssize_t i = 0; regions && i < PyList_Size(regions); i++)
    object_end_export((struct object *)PyList_GetItem(regions, i));
  Py_XDECREF(regions);
}

/* haul_cache_close has detached all regions. */
static void released(struct object *object) {
  struct cache *cache = (struct cache *)object;
  PyObject *regions = cache->attached;
  cache->attached = NULL;
  end_attachments(regions);
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((struct cache *)self)->attached);
  return object_traverse(self, visit, arg);
}

static void dealloc(PyObject *self) {
  PyObject *regions = ((struct cache *)self)->attached;
  object_free(self);
  end_attachments(regions);
}

/* ---- Open ---- */

/* The texts lie behind it. */
struct opening {
  struct job job;
  struct haul_cache_config config;
  const char *members[HAUL_CACHE_MEMBERS_MAX];
  haul_deadline until;
  haul_cache *cache;
  size_t used;
  char texts[];
};

static int run_open(struct job *job) {
  struct opening *opening = (struct opening *)job;
  return haul_cache_open(job->handle, &opening->config, opening->until, &opening->cache);
}

static void undo_open(struct job *job) {
  haul_cache_close(((struct opening *)job)->cache);
}

/* A copy that lives as long as the job. The room was computed from the same texts. */
static const char *keep(struct opening *opening, const char *text) {
  if (!text)
    return NULL;
  size_t size = strlen(text) + 1;
  char *kept = memcpy(opening->texts + opening->used, text, size);
  opening->used += size;
  return kept;
}

/* The bytes of all texts; -1 with an exception. */
static Py_ssize_t measure(PyObject *members, const char *directory, const char *only) {
  size_t size = (directory ? strlen(directory) + 1 : 0) + (only ? strlen(only) + 1 : 0);
  for (Py_ssize_t i = 0; i < PyTuple_Size(members); i++) {
    PyObject *member = PyTuple_GetItem(members, i);
    Py_ssize_t length;
    if (!PyUnicode_Check(member)) {
      PyErr_Format(PyExc_TypeError, "invalid members: expected addresses, not %R", member);
      return -1;
    }
    if (!PyUnicode_AsUTF8AndSize(member, &length))
      return -1;
    size += (size_t)length + 1;
  }
  return (Py_ssize_t)size;
}

static struct opening *opening_new(struct node *node, PyObject *members, const char *directory,
                                   const char *only) {
  Py_ssize_t size = measure(members, directory, only), count = PyTuple_Size(members);
  struct opening *opening =
      size < 0 ? NULL
               : job_new(sizeof *opening + (size_t)size, &node->base, "Cache", run_open, undo_open);
  if (!opening)
    return NULL;
  opening->config = (struct haul_cache_config)HAUL_CACHE_INIT;
  for (Py_ssize_t i = 0; i < count && i < HAUL_CACHE_MEMBERS_MAX; i++)
    opening->members[i] = keep(opening, PyUnicode_AsUTF8AndSize(PyTuple_GetItem(members, i), NULL));
  opening->config.members = opening->members;
  opening->config.member_count = (size_t)count; /* the library refuses too many */
  opening->config.directory = keep(opening, directory);
  opening->config.only = keep(opening, only);
  return opening;
}

static PyObject *cache_object(PyTypeObject *type, struct node *node, haul_cache *handle) {
  struct object *object = object_new(type, "cache", handle, release_cache, node);
  if (!object) {
    node->served = false;
    return NULL;
  }
  object_hold_node(object);
  object->released = released;
  ((struct cache *)object)->attached = PyList_New(0);
  if (((struct cache *)object)->attached)
    return (PyObject *)object;
  Py_DECREF((PyObject *)object);
  return NULL;
}

static bool duration_from(PyObject *given, int64_t *nanoseconds) {
  return given == Py_None || nanoseconds_from(given, "connect_timeout", nanoseconds);
}

static PyObject *cache_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"node", "members", "directory", "replicas", "connect_timeout",
                          "only", "timeout", NULL};
  struct node *node;
  PyObject *given = Py_None, *connect = Py_None, *timeout = Py_None;
  const char *directory = NULL, *only = NULL;
  unsigned replicas = 1;
  int64_t connect_ns = 0;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!|O$zO&OzO", names, haulpy.node, &node, &given,
                                   &directory, uint32_from, &replicas, &connect, &only, &timeout) ||
      !deadline_from(timeout, node->timeout, &until) || !duration_from(connect, &connect_ns))
    return NULL;
  if (PyUnicode_Check(given))
    return PyErr_Format(PyExc_TypeError, "invalid members %R: expected several addresses", given);
  PyObject *members = given == Py_None ? PyTuple_New(0) : PySequence_Tuple(given);
  struct opening *opening = members ? opening_new(node, members, directory, only) : NULL;
  Py_XDECREF(members);
  if (!opening)
    return NULL;
  opening->config.replicas = replicas;
  opening->config.connect_ns = connect_ns;
  opening->until = until;
  if (!serve_node(node, &opening->job, "Cache"))
    return NULL;
  PyObject *made = cache_object(type, node, opening->cache);
  job_free(&opening->job);
  return made;
}

static PyObject *get_members(void *handle) {
  const char *address;
  PyObject *list = PyList_New(0);
  for (unsigned i = 0; list && (address = haul_cache_member(handle, i)); i++)
    list_append(&list, text_of(address));
  return list;
}
GETTER(members);

/* ---- Regions that stores read ---- */

/* -1: it is not attached. */
static Py_ssize_t place_of(const struct cache *cache, const PyObject *region) {
  Py_ssize_t count = cache->attached ? PyList_Size(cache->attached) : 0;
  for (Py_ssize_t i = 0; i < count; i++)
    if (PyList_GetItem(cache->attached, i) == region)
      return i;
  return -1;
}

/* Both are entered. */
static PyObject *attach(struct cache *cache, struct object *region) {
  haul_cache *handle = cache->base.handle;
  int code;
  WITHOUT_GIL(code = haul_cache_attach(handle, region->handle));
  if (code)
    return raise_last();
  if (PyList_Append(cache->attached, (PyObject *)region) != 0) {
    WITHOUT_GIL(haul_cache_detach(handle, region->handle));
    return NULL;
  }
  object_begin_export(region);
  Py_RETURN_NONE;
}

static PyObject *cache_attach(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"region", NULL};
  struct object *region;
  PyObject *result = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!", names, haulpy.region, &region) ||
      !object_enter((struct object *)self, "attach"))
    return NULL;
  if (object_enter(region, "attach")) {
    result = attach((struct cache *)self, region);
    object_leave(region);
  }
  object_leave((struct object *)self);
  return result;
}

/* The attachment keeps the region's handle, also if the region is closed. The library detaches it
 * even if it reports an error. */
static PyObject *detach(struct cache *cache, PyObject *given) {
  struct object *region = (struct object *)given;
  haul_cache *handle = cache->base.handle;
  Py_ssize_t place = place_of(cache, given);
  int code;
  if (place < 0)
    return raise_own(HAUL_EINVAL, "detach", "region", "the region is not attached",
                     "detach attached regions");
  Py_INCREF(given);
  PyList_SetSlice(cache->attached, place, place + 1, NULL);
  WITHOUT_GIL(code = haul_cache_detach(handle, region->handle));
  PyObject *result = code ? raise_last() : Py_NewRef(Py_None);
  object_end_export(region);
  Py_DECREF(given);
  return result;
}

static PyObject *cache_detach(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"region", NULL};
  PyObject *region;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!", names, haulpy.region, &region) ||
      !object_enter((struct object *)self, "detach"))
    return NULL;
  PyObject *result = detach((struct cache *)self, region);
  object_leave((struct object *)self);
  return result;
}

/* ---- Calls with a member ---- */

struct asking {
  struct job job;
  unsigned member;
  haul_deadline until;
  struct haul_cache_stats stats;
  struct haul_cache_entry *entries;
  size_t count, room;
  bool short_of_memory;
};

static void undo_asking(struct job *job) {
  free(((struct asking *)job)->entries);
}

static void add_entry(void *user, const struct haul_cache_entry *entry) {
  struct asking *asking = user;
  if (asking->count == asking->room) {
    size_t room = asking->room ? 2 * asking->room : 64;
    void *more = realloc(asking->entries, room * sizeof *asking->entries);
    asking->short_of_memory |= !more;
    if (!more)
      return;
    asking->entries = more;
    asking->room = room;
  }
  asking->entries[asking->count++] = *entry;
}

static int run_list(struct job *job) {
  struct asking *asking = (struct asking *)job;
  int code = haul_cache_list(job->handle, asking->member, asking->until, add_entry, asking);
  if (code)
    undo_asking(job);
  return code;
}

static int run_stat(struct job *job) {
  struct asking *asking = (struct asking *)job;
  return haul_cache_stat(job->handle, asking->member, asking->until, &asking->stats);
}

/* The arguments `member` and `timeout`; runs the job, which the caller frees. NULL with an
 * exception. */
static struct asking *ask(PyObject *self, PyObject *args, PyObject *keywords, const char *call,
                          int (*run)(struct job *job)) {
  static char *names[] = {"member", "timeout", NULL};
  PyObject *timeout = Py_None;
  unsigned member;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|$O", names, uint32_from, &member,
                                   &timeout) ||
      !deadline_from(timeout, ((struct object *)self)->node->timeout, &until))
    return NULL;
  struct asking *asking = job_new(sizeof *asking, (struct object *)self, call, run, undo_asking);
  if (!asking)
    return NULL;
  asking->member = member;
  asking->until = until;
  asking->stats = (struct haul_cache_stats)HAUL_CACHE_STATS_INIT;
  return job_run(&asking->job) == 0 ? asking : NULL;
}

static PyObject *block_object(const struct haul_cache_entry *entry) {
  return data_make("Block", Py_BuildValue("(y#KKKiz)", entry->key, (Py_ssize_t)entry->key_length,
                                          (unsigned long long)entry->length,
                                          (unsigned long long)entry->checksum,
                                          (unsigned long long)entry->version, entry->priority,
                                          tier_name(entry->tier)));
}

static PyObject *cache_list(PyObject *self, PyObject *args, PyObject *keywords) {
  struct asking *asking = ask(self, args, keywords, "list", run_list);
  if (!asking)
    return NULL;
  PyObject *list = asking->short_of_memory ? PyErr_NoMemory() : PyList_New(0);
  for (size_t i = 0; list && i < asking->count; i++)
    list_append(&list, block_object(&asking->entries[i]));
  undo_asking(&asking->job);
  job_free(&asking->job);
  return list;
}

static PyObject *cache_stat(PyObject *self, PyObject *args, PyObject *keywords) {
  struct asking *asking = ask(self, args, keywords, "stat", run_stat);
  if (!asking)
    return NULL;
  PyObject *stats = cache_stats_object(&asking->stats);
  job_free(&asking->job);
  return stats;
}

static PyMethodDef methods[] = {
    {"attach", METHOD_WITH_KEYWORDS(cache_attach),
     DOC("attach($self, region)",
         "Let stores read a region, as put needs it, until it is detached or the cache is closed.\n"
         "\n"
         "region  a Region of the node of the cache; meanwhile close() of it raises BufferError\n"
         "\n"
         "Does not wait. Raises NameInUse (it is attached), and as Region.publish.")},
    {"detach", METHOD_WITH_KEYWORDS(cache_detach),
     DOC("detach($self, region)",
         "End attach.\n"
         "\n"
         "region  an attached Region\n"
         "\n"
         "Blocks for stores that read it, as Region.unpublish. Raises Invalid (it is not "
         "attached).")},
    {"put", METHOD_WITH_KEYWORDS(cache_put),
     DOC("put($self, region, blocks, *, if_absent=False, priority=0, timeout=None)",
         "Store blocks from an attached region: the stores read the bytes.\n"
         "\n"
         "region     a Region, or a contiguous Tensor in one\n"
         "blocks     an iterable of (key, offset, length), in bytes of the region or tensor\n"
         "if_absent  leave a key that exists: NameInUse\n"
         "priority   -1, 0 or 1: stores evict lower ones first\n"
         "timeout    in seconds; None: the node's\n"
         "\n"
         "Returns a list of Item, one for each key, whose `error` is None if at least one store "
         "has\n"
         "the block, else LimitReached (there is no room), OutOfRange, Invalid (the key, or an "
         "empty\n"
         "block), TimedOut, PeerGone, ConnectFailed. Blocks; afterwards no store reads the bytes. "
         "Raises\n"
         "Invalid (the region is not attached), OutOfRange (beyond the tensor).")},
    {"get", METHOD_WITH_KEYWORDS(cache_get),
     DOC("get($self, region, blocks, *, timeout=None)",
         "Read blocks straight into a region of any place, which need not be attached.\n"
         "\n"
         "region   a writable Region, or a contiguous Tensor in one\n"
         "blocks   an iterable of (key, offset, length): the room for the block, in bytes\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a list of Item, one for each key, with the length of the block, which may be "
         "less than\n"
         "the room. `error` is None, or NoSuchName (no store has the key), OutOfRange (the room "
         "is\n"
         "shorter than the block), Busy (the block was replaced meanwhile), TimedOut, PeerGone,\n"
         "ConnectFailed; the bytes are undefined then. Blocks. Raises AccessDenied (read-only\n"
         "memory), OutOfRange (beyond the tensor).")},
    {"exists", METHOD_WITH_KEYWORDS(cache_exists),
     DOC("exists($self, keys, *, timeout=None)",
         "Look keys up without moving blocks.\n"
         "\n"
         "keys     an iterable of str or bytes\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a list of Item, one for each key, with the length of the block; `error` is "
         "None, or\n"
         "NoSuchName, TimedOut, PeerGone, ConnectFailed. Blocks.")},
    {"remove", METHOD_WITH_KEYWORDS(cache_remove),
     DOC("remove($self, keys, *, timeout=None)",
         "Remove blocks from all of their stores.\n"
         "\n"
         "keys     an iterable of str or bytes\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a list of Item, one for each key; `error` is None, or NoSuchName, TimedOut, "
         "PeerGone,\n"
         "ConnectFailed. Blocks.")},
    {"pin", METHOD_WITH_KEYWORDS(cache_pin),
     DOC("pin($self, keys, seconds, *, timeout=None)",
         "Keep blocks from eviction; puts and removes still replace and remove them.\n"
         "\n"
         "keys     an iterable of str or bytes\n"
         "seconds  whole seconds from now, at most 86,400; 0 ends all pins of the keys\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Returns a list of Item, one for each key; `error` is None, LimitReached (over half of "
         "the\n"
         "capacity would be pinned), NoSuchName, TimedOut, PeerGone, ConnectFailed. Blocks. "
         "Raises\n"
         "Invalid (too long).")},
    {"list", METHOD_WITH_KEYWORDS(cache_list),
     DOC("list($self, member, *, timeout=None)",
         "Return a list of Block: what a store has. Blocks that come or leave meanwhile may be "
         "missing.\n"
         "\n"
         "member   the store's number in `members`\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "Blocks. Raises OutOfRange (no such member), TimedOut, PeerGone, ConnectFailed.")},
    {"stat", METHOD_WITH_KEYWORDS(cache_stat),
     DOC("stat($self, member, *, timeout=None)", "Return Stats: what a store has and has done.\n"
                                                 "\n"
                                                 "member   the store's number in `members`\n"
                                                 "timeout  in seconds; None: the node's\n"
                                                 "\n"
                                                 "Blocks. Raises as list, TimedOut included.")},
    {"repair", METHOD_WITH_KEYWORDS(cache_repair),
     DOC("repair($self, *, dry_run=False, timeout=None)",
         "Copy blocks to those of their stores that lack them, or have an older block of the key; "
         "return\nRepair.\n"
         "\n"
         "dry_run  only count\n"
         "timeout  in seconds; None: the node's\n"
         "\n"
         "As after a store was lost, came back or was added. The bytes pass through this process. "
         "No block is\n"
         "lost to it; a key that is removed meanwhile may come back. Stores that cannot be reached "
         "are\n"
         "skipped and counted. Blocks. Raises TimedOut, and ConnectFailed and others of "
         "Transfer.wait (no\n"
         "store can be reached).")},
    OBJECT_CLOSE("Detach all regions and end the connections. Blocks for stores that read the "
                 "regions, as\nRegion.unpublish."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

static const char text[] =
    DOC("Cache(node, members=None, *, directory=None, replicas=1, connect_timeout=None, only=None, "
        "timeout=None)",
        "A client of a cache: places each key on stores, and moves blocks to and from them.\n"
        "\n"
        "node             without a store; from now on it receives messages for this cache alone\n"
        "members          the addresses of all nodes with stores; all clients need the same texts\n"
        "directory        instead: \"etcd://HOST/PREFIX\", in which the stores are registered\n"
        "replicas         stores that get each block\n"
        "connect_timeout  in seconds, to a store; None: 1\n"
        "only             use only this path: \"tcp\"; None: the best one\n"
        "timeout          in seconds, to read the directory; None: the node's\n"
        "\n"
        "A key that fails is no exception: the calls return a list of Item, each with its `error`. "
        "The\n"
        "node cannot be closed before the cache. Connects at first use; blocks for the directory "
        "alone.\n"
        "Raises BadAddress (no member, too many, one twice), NoSuchName (the directory has none),\n"
        "TimedOut, and as Node.directory.");

PyTypeObject *cache_type(void) {
  static PyGetSetDef getters[] = {
      PROPERTY(members, "The addresses of the stores, in the order of their numbers: list of str."),
      {NULL, NULL, NULL, NULL, NULL}};
  static PyMemberDef members[] = {OBJECT_MEMBERS,
                                  MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
                                  {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_new, cache_new),
                                SLOT(Py_tp_dealloc, dealloc),
                                SLOT(Py_tp_traverse, traverse),
                                {Py_tp_methods, methods},
                                {Py_tp_getset, getters},
                                {Py_tp_members, members},
                                {Py_tp_doc, (void *)(uintptr_t)text},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.cache.Cache", sizeof(struct cache), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
