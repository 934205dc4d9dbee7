/* SPDX-License-Identifier: MIT
 * What the two ends of a broadcast share: Source and Receiver. */
#ifndef HAULPY_BROADCAST_H
#define HAULPY_BROADCAST_H

#include <haul/broadcast.h>

#include "haulpy.h"

/* A version whose region the library uses. */
struct kept {
  uint64_t version;      /* 0: none */
  struct region *region; /* a reference, exported; NULL: the version has no bytes */
};

struct broadcast {
  struct object base;
  bool busy;           /* a call uses the handle, which is for one thread at a time */
  struct kept kept[2]; /* at least those that the library has; the older one first */
};

/* Enters it for a call that no other thread may interleave. NULL: raises HAUL_EBUSY or HAUL_ECLOSED
 * in the name of `call`. */
haul_broadcast *broadcast_begin(struct broadcast *broadcast, const char *call);
void broadcast_end(struct broadcast *broadcast);

/* A call that makes a region the memory of a version. */
struct sharing {
  struct job job;
  struct region *pinned; /* as in struct kept */
  haul_region *region;   /* its handle, or NULL */
  haul_deadline until;
  uint64_t version; /* set by `run` if it succeeds, else 0 */
};

/* Makes a job of `size` bytes for the memory of `object`: a region, what Node.wrap takes, or None.
 * NULL with an exception. */
void *sharing_new(size_t size, struct broadcast *broadcast, PyObject *object, const char *call,
                  int (*run)(struct job *job));
/* The job's `left`. */
void sharing_left(struct job *job);

/* For object_new and the type's slots. */
void broadcast_release(void *handle);
void broadcast_released(struct object *object);
void broadcast_free(PyObject *self);
int broadcast_traverse(PyObject *self, visitproc visit, void *arg);

/* A method. */
PyObject *broadcast_withdraw(PyObject *self, PyObject *args, PyObject *keywords);

#endif
