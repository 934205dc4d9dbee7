/* SPDX-License-Identifier: MIT
 * Store: the blocks of a cache, in a file of this host. */
#include <haul/cache.h>
#include <string.h>

#include "cache.h"

static void release_store(void *handle) {
  haul_cache_store_close(handle);
}

struct opening {
  struct job job;
  struct haul_cache_store_config config;
  haul_cache_store *store;
  char paths[];
};

struct store_arguments {
  struct node *node;
  PyObject *path, *file; /* as bytes; file may be NULL */
  const char *device;    /* NULL: none */
  uint64_t capacity, blocks, file_capacity, file_blocks, device_capacity, device_blocks;
};

static int run_open(struct job *job) {
  struct opening *opening = (struct opening *)job;
  return haul_cache_store_open(job->handle, &opening->config, &opening->store);
}

static void undo_open(struct job *job) {
  haul_cache_store_close(((struct opening *)job)->store);
}

static struct opening *opening_new(const struct store_arguments *given) {
  const char *path = PyBytes_AsString(given->path);
  const char *file = given->file ? PyBytes_AsString(given->file) : "";
  size_t size = strlen(path) + 1, file_size = strlen(file) + 1;
  struct haul_place device = {0, 0};
  if (given->device && !place_from(given->device, &device))
    return NULL;
  struct opening *opening =
      job_new(sizeof *opening + size + file_size, &given->node->base, "Store", run_open, undo_open);
  if (!opening)
    return NULL;
  opening->config = (struct haul_cache_store_config)HAUL_CACHE_STORE_INIT;
  opening->config.path = memcpy(opening->paths, path, size);
  memcpy(opening->paths + size, file, file_size);
  opening->config.file_path = given->file ? opening->paths + size : NULL;
  opening->config.capacity = given->capacity;
  opening->config.blocks = given->blocks;
  opening->config.file_capacity = given->file_capacity;
  opening->config.file_blocks = given->file_blocks;
  opening->config.device = device;
  opening->config.device_capacity = given->device_capacity;
  opening->config.device_blocks = given->device_blocks;
  return opening;
}

static int optional_path(PyObject *given, void *path) {
  return given == Py_None ? 1 : PyUnicode_FSConverter(given, path);
}

static bool read_arguments(PyObject *args, PyObject *keywords, struct store_arguments *given) {
  static char *names[] = {
      "node",        "path",   "capacity",        "blocks",        "file", "file_capacity",
      "file_blocks", "device", "device_capacity", "device_blocks", NULL};
  return PyArg_ParseTupleAndKeywords(args, keywords, "O!O&|O&$O&O&O&O&zO&O&", names, haulpy.node,
                                     &given->node, PyUnicode_FSConverter, &given->path, uint64_from,
                                     &given->capacity, uint64_from, &given->blocks, optional_path,
                                     &given->file, uint64_from, &given->file_capacity, uint64_from,
                                     &given->file_blocks, &given->device, uint64_from,
                                     &given->device_capacity, uint64_from, &given->device_blocks);
}

bool serve_node(struct node *node, struct job *job, const char *call) {
  if (node->served) {
    raise_own(HAUL_EBUSY, call, NULL, "another cache or store receives the messages of this node",
              "open a node for each");
    job_drop(job);
    return false;
  }
  node->served = true;
  if (job_run(job) == 0)
    return true;
  node->served = false;
  return false;
}

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  struct store_arguments given = {0};
  struct opening *opening = read_arguments(args, keywords, &given) ? opening_new(&given) : NULL;
  Py_XDECREF(given.path);
  Py_XDECREF(given.file);
  if (!opening || !serve_node(given.node, &opening->job, "Store"))
    return NULL;
  struct object *made = object_new(type, "store", opening->store, release_store, given.node);
  job_free(&opening->job);
  if (made)
    object_hold_node(made);
  else
    given.node->served = false;
  return (PyObject *)made;
}

static PyObject *tier_object(const struct haul_cache_tier_stats *tier) {
  return data_make("TierStats",
                   Py_BuildValue("(KKKKKKKKK)", (unsigned long long)tier->capacity,
                                 (unsigned long long)tier->used, (unsigned long long)tier->pinned,
                                 (unsigned long long)tier->blocks, (unsigned long long)tier->room,
                                 (unsigned long long)tier->restored,
                                 (unsigned long long)tier->dropped, (unsigned long long)tier->puts,
                                 (unsigned long long)tier->evictions));
}

PyObject *cache_stats_object(const struct haul_cache_stats *stats) {
  PyObject *device = tier_object(&stats->device);
  PyObject *memory = device ? tier_object(&stats->memory) : NULL;
  PyObject *file = memory ? tier_object(&stats->file) : NULL;
  if (file)
    return data_make("Stats", Py_BuildValue("(NNN)", device, memory, file));
  Py_XDECREF(device);
  Py_XDECREF(memory);
  return NULL;
}

static PyObject *stat_of(void *handle) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  return haul_cache_store_stats(handle, &stats) ? raise_last() : cache_stats_object(&stats);
}
METHOD(store, stat)

static PyMethodDef methods[] = {
    {"stat", store_stat, METH_NOARGS,
     DOC("stat($self, /)", "Return Stats. Does not wait. Raises Closed.")},
    OBJECT_CLOSE("End the service; the file stays. Blocks for puts in progress, at most a minute."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

static const char text[] = DOC(
    "Store(node, path, capacity=0, *, blocks=0, file=None, file_capacity=0, file_blocks=0, "
    "device=None, device_capacity=0, device_blocks=0)",
    "A store of a cache: serves the blocks of a file to the peers of a node.\n"
    "\n"
    "node      which the caller lets listen; from now on it receives messages for this store "
    "alone\n"
    "path      of the file, for example in /dev/shm; created if it does not exist\n"
    "capacity  bytes for blocks, each rounded up to 4096; 0: that of the existing file\n"
    "blocks    about the number of blocks that fit; 0: one for each 64 KiB\n"
    "file      the file tier: a second file, for example on an NVMe drive, to which evicted "
    "blocks move\n"
    "device    the device tier, for example \"cuda:0\": puts go to memory of this device, and "
    "evicted\n"
    "          blocks move from there to that of path\n"
    "\n"
    "Blocks survive the process, but for those of the device. The node needs "
    "progress=\"thread\", and\n"
    "cannot be closed before the store. Blocks until the blocks in the files are verified, some "
    "0.1 s\n"
    "a GiB in memory. Raises Invalid (no file and no capacity, another capacity, no store), "
    "NoSuchPlace\n"
    "(there is no such device), Insecure (others than its owner can write the file), Busy "
    "(another\n"
    "process has it), SystemFailed, and as Region.publish.");

PyTypeObject *store_type(void) {
  static PyMemberDef members[] = {OBJECT_MEMBERS,
                                  MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
                                  {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {SLOT(Py_tp_new, store_new),
                                SLOT(Py_tp_dealloc, object_free),
                                SLOT(Py_tp_traverse, object_traverse),
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {Py_tp_doc, (void *)(uintptr_t)text},
                                {0, NULL}};
  static PyType_Spec spec = {"haul.cache.Store", sizeof(struct object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
