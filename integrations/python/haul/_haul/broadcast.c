/* SPDX-License-Identifier: MIT
 * The regions of a broadcast. The library uses them until their version ends, and does not tell
 * when: kept[] has those of the two latest calls that succeeded, which are at least the library's.
 * An export keeps each of them from being closed. */
#include "broadcast.h"

haul_broadcast *broadcast_begin(struct broadcast *broadcast, const char *call) {
  if (broadcast->busy) {
    raise_own(HAUL_EBUSY, call, broadcast->base.noun, "another call is in progress",
              "use it in one thread at a time; an interrupted call ends soon");
    return NULL;
  }
  haul_broadcast *handle = object_enter(&broadcast->base, call);
  broadcast->busy = handle;
  return handle;
}

void broadcast_end(struct broadcast *broadcast) {
  broadcast->busy = false;
  object_leave(&broadcast->base);
}

/* ---- Regions ---- */

static void unpin(struct region *region) {
  if (!region)
    return;
  object_end_export(&region->base);
  Py_DECREF((PyObject *)region);
}

static void forget(struct kept *kept) {
  struct region *region = kept->region;
  *kept = (struct kept){0}; /* first, as a release may run any code */
  unpin(region);
}

static void forget_until(struct broadcast *broadcast, uint64_t version) {
  for (int i = 0; i < 2; i++)
    if (!version || broadcast->kept[i].version <= version)
      forget(&broadcast->kept[i]);
}

/* Takes the pinned region. A region has one version at a time. */
static void keep(struct broadcast *broadcast, struct region *region, uint64_t version) {
  struct kept *kept = broadcast->kept, dropped[2] = {{0, NULL}, {0, NULL}};
  for (int i = 0; i < 2; i++)
    if (region && kept[i].region == region) {
      dropped[0] = kept[i];
      kept[i] = (struct kept){0};
    }
  if (kept[1].version) {
    dropped[1] = kept[0];
    kept[0] = kept[1];
  }
  kept[1] = (struct kept){version, region};
  forget(&dropped[0]);
  forget(&dropped[1]);
}

static bool is_same_memory(const struct region *one, const struct region *other) {
  const haul_region *a = one->base.handle, *b = other->base.handle;
  struct haul_place here = haul_region_place(a), there = haul_region_place(b);
  return haul_region_address(a) == haul_region_address(b) &&
         haul_region_length(a) == haul_region_length(b) && here.kind == there.kind &&
         here.device == there.device;
}

/* Takes a region that wraps memory. The library tells by the region whether memory is in use: so
 * memory that is has the same region again. */
static struct region *region_in_use(struct broadcast *broadcast, struct region *wrapped) {
  for (int i = 0; i < 2; i++) {
    struct region *kept = broadcast->kept[i].region;
    if (kept && is_same_memory(kept, wrapped)) {
      Py_INCREF((PyObject *)kept);
      Py_DECREF((PyObject *)wrapped);
      return kept;
    }
  }
  return wrapped;
}

/* A new reference; NULL with an exception. */
static struct region *region_from(struct broadcast *broadcast, PyObject *object) {
  struct node *node = broadcast->base.node;
  if (Py_TYPE(object) == haulpy.region && ((struct object *)object)->node == node)
    return (struct region *)Py_NewRef(object);
  if (Py_TYPE(object) == haulpy.region) {
    PyErr_SetString(PyExc_ValueError, "the region is one of another node");
    return NULL;
  }
  struct region *wrapped = (struct region *)wrap_object((PyObject *)node, object);
  if (!wrapped || layout_is_contiguous(&wrapped->layout))
    return wrapped ? region_in_use(broadcast, wrapped) : NULL;
  PyErr_SetString(PyExc_ValueError,
                  "the tensor is not contiguous in C's order: pass a contiguous copy");
  Py_DECREF((PyObject *)wrapped);
  return NULL;
}

/* ---- Calls with a region ---- */

/* Of an interrupted call that succeeded: its caller does not know the version. */
static void undo(struct job *job) {
  struct sharing *sharing = (struct sharing *)job;
  haul_broadcast_withdraw(job->handle, sharing->version);
  sharing->version = 0;
}

void sharing_left(struct job *job) {
  struct sharing *sharing = (struct sharing *)job;
  struct broadcast *broadcast = (struct broadcast *)job->used[0];
  if (sharing->version)
    keep(broadcast, sharing->pinned, sharing->version);
  else
    unpin(sharing->pinned);
  broadcast->busy = false; /* job.used[0] is left by the job */
}

static bool pin(struct sharing *sharing, struct broadcast *broadcast, PyObject *object,
                const char *call) {
  char *address;
  if (object == Py_None)
    return true;
  struct region *region = region_from(broadcast, object);
  if (!region)
    return false;
  if (!region_begin_export(region, call, &address)) {
    Py_DECREF((PyObject *)region);
    return false;
  }
  sharing->pinned = region;
  sharing->region = region->base.handle;
  return true;
}

void *sharing_new(size_t size, struct broadcast *broadcast, PyObject *object, const char *call,
                  int (*run)(struct job *job)) {
  if (!broadcast_begin(broadcast, call))
    return NULL;
  struct sharing *sharing = job_new(size, &broadcast->base, call, run, undo);
  broadcast_end(broadcast);
  if (!sharing)
    return NULL;
  broadcast->busy = true;
  sharing->job.left = sharing_left;
  if (pin(sharing, broadcast, object, call))
    return sharing;
  job_drop(&sharing->job);
  return NULL;
}

PyObject *broadcast_withdraw(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"version", NULL};
  struct broadcast *broadcast = (struct broadcast *)self;
  uint64_t version = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&", names, uint64_from, &version))
    return NULL;
  haul_broadcast *handle = broadcast_begin(broadcast, "withdraw");
  if (!handle)
    return NULL;
  WITHOUT_GIL(haul_broadcast_withdraw(handle, version));
  forget_until(broadcast, version);
  broadcast_end(broadcast);
  Py_RETURN_NONE;
}

/* ---- The object ---- */

void broadcast_release(void *handle) {
  haul_broadcast_close(handle);
}

void broadcast_released(struct object *object) {
  forget_until((struct broadcast *)object, 0);
}

int broadcast_traverse(PyObject *self, visitproc visit, void *arg) {
  struct broadcast *broadcast = (struct broadcast *)self;
  for (int i = 0; i < 2; i++)
    Py_VISIT((PyObject *)broadcast->kept[i].region);
  return object_traverse(self, visit, arg);
}

void broadcast_free(PyObject *self) {
  struct broadcast *broadcast = (struct broadcast *)self;
  struct kept kept[2] = {broadcast->kept[0], broadcast->kept[1]};
  object_free(self);
  forget(&kept[0]);
  forget(&kept[1]);
}
