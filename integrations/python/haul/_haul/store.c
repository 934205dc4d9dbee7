/* SPDX-License-Identifier: MIT
 * Store: the blocks of a cache, in a file of this host. */
#include <haul/cache.h>
#include <string.h>

#include "haulpy.h"

static void release_store(void *handle) {
  haul_cache_store_close(handle);
}

struct opening {
  struct job job;
  struct haul_cache_store_config config;
  haul_cache_store *store;
  char path[];
};

static int run_open(struct job *job) {
  struct opening *opening = (struct opening *)job;
  return haul_cache_store_open(job->handle, &opening->config, &opening->store);
}

static void undo_open(struct job *job) {
  haul_cache_store_close(((struct opening *)job)->store);
}

static struct opening *opening_new(struct node *node, const char *path) {
  size_t size = strlen(path) + 1;
  struct opening *opening =
      job_new(sizeof *opening + size, &node->base, "Store", run_open, undo_open);
  if (!opening)
    return NULL;
  opening->config = (struct haul_cache_store_config)HAUL_CACHE_STORE_INIT;
  opening->config.path = memcpy(opening->path, path, size);
  return opening;
}

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"node", "path", "capacity", "blocks", NULL};
  struct node *node;
  PyObject *path;
  unsigned long long capacity = 0, blocks = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O&|K$K", names, haulpy.node, &node,
                                   PyUnicode_FSConverter, &path, &capacity, &blocks))
    return NULL;
  struct opening *opening = opening_new(node, PyBytes_AsString(path));
  Py_DECREF(path);
  if (!opening)
    return NULL;
  opening->config.capacity = capacity;
  opening->config.blocks = blocks;
  if (job_run(&opening->job) != 0)
    return NULL;
  struct object *made = object_new(type, "store", opening->store, release_store, node);
  job_free(&opening->job);
  if (made)
    object_hold_node(made);
  return (PyObject *)made;
}

PyObject *cache_stats_object(const struct haul_cache_stats *stats) {
  return data_make(
      "Stats",
      Py_BuildValue("(KKKKKKKKK)", (unsigned long long)stats->capacity,
                    (unsigned long long)stats->used, (unsigned long long)stats->pinned,
                    (unsigned long long)stats->blocks, (unsigned long long)stats->room,
                    (unsigned long long)stats->restored, (unsigned long long)stats->dropped,
                    (unsigned long long)stats->puts, (unsigned long long)stats->evictions));
}

static PyObject *stat_of(void *handle) {
  struct haul_cache_stats stats;
  return haul_cache_store_stats(handle, &stats) ? raise_last() : cache_stats_object(&stats);
}
METHOD(store, stat)

static PyMethodDef methods[] = {
    {"stat", store_stat, METH_NOARGS,
     DOC("stat($self, /)", "Return Stats. Does not wait. Raises Closed.")},
    OBJECT_CLOSE("End the service; the file stays. Blocks for puts in progress, at most a minute."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

static const char text[] =
    DOC("Store(node, path, capacity=0, *, blocks=0)",
        "A store of a cache: serves the blocks of a file to the peers of a node.\n"
        "\n"
        "node      which the caller lets listen; from now on it receives messages for this store "
        "alone\n"
        "path      of the file, for example in /dev/shm; created if it does not exist\n"
        "capacity  bytes for blocks, each rounded up to 4096; 0: that of the existing file\n"
        "blocks    about the number of blocks that fit; 0: one for each 64 KiB\n"
        "\n"
        "Blocks survive the process. The node needs progress=\"thread\", and cannot be closed "
        "before the\n"
        "store. Blocks until the blocks in the file are verified, some 0.1 s a GiB. Raises Invalid "
        "(no\n"
        "file and no capacity, another capacity, no store), Insecure (others than its owner can "
        "write\n"
        "the file), Busy (another process has it), SystemFailed, and as Region.publish.");

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
