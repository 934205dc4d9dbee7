/* SPDX-License-Identifier: MIT
 * Cache: the calls with keys. */
#include <haul/cache.h>
#include <string.h>

#include "cache.h"

#define UNTOUCHED 1 /* no code: the call failed before it began with the keys */
#define NO_TIER   UINT_MAX

/* The keys' bytes lie behind the items, in rooms of HAUL_CACHE_KEY_MAX. */
struct batch {
  struct job job;
  haul_region *region; /* of used[1] */
  unsigned flags, seconds;
  int priority;
  haul_deadline until;
  struct haul_error error; /* of the first key that failed */
  size_t count;
  struct haul_cache_item items[];
};

/* Keys that failed are results. */
static int finish(struct batch *batch, int code) {
  if (code && (batch->count == 0 || batch->items[0].code == UNTOUCHED))
    return code;
  if (code)
    batch->error = *haul_error_last();
  return 0;
}

static int run_put(struct job *job) {
  struct batch *batch = (struct batch *)job;
  return finish(batch, haul_cache_put(job->handle, batch->region, batch->items, batch->count,
                                      batch->flags, batch->priority, batch->until));
}

static int run_get(struct job *job) {
  struct batch *batch = (struct batch *)job;
  return finish(
      batch, haul_cache_get(job->handle, batch->region, batch->items, batch->count, batch->until));
}

static int run_exists(struct job *job) {
  struct batch *batch = (struct batch *)job;
  return finish(batch, haul_cache_exists(job->handle, batch->items, batch->count, batch->until));
}

static int run_remove(struct job *job) {
  struct batch *batch = (struct batch *)job;
  return finish(batch, haul_cache_remove(job->handle, batch->items, batch->count, batch->until));
}

static int run_pin(struct job *job) {
  struct batch *batch = (struct batch *)job;
  return finish(
      batch, haul_cache_pin(job->handle, batch->items, batch->count, batch->seconds, batch->until));
}

const char *tier_name(unsigned tier) {
  static const char *const names[] = {
      [HAUL_CACHE_MEMORY] = "memory", [HAUL_CACHE_FILE] = "file", [HAUL_CACHE_DEVICE] = "device"};
  return tier < sizeof names / sizeof *names ? names[tier] : NULL;
}

/* A longer key keeps its length alone, with which the library refuses it. */
static bool read_key(PyObject *given, char *room, struct haul_cache_item *item) {
  Py_buffer view = {.obj = NULL};
  Py_ssize_t length;
  const char *bytes;
  if (PyUnicode_Check(given)) {
    bytes = PyUnicode_AsUTF8AndSize(given, &length);
    if (!bytes)
      return false;
  } else if (PyObject_CheckBuffer(given) && PyObject_GetBuffer(given, &view, PyBUF_SIMPLE) == 0) {
    bytes = view.buf;
    length = view.len;
  } else {
    if (!PyErr_Occurred())
      PyErr_Format(PyExc_TypeError, "invalid key %R: expected str or bytes", given);
    return false;
  }
  item->key = room;
  item->key_length = (size_t)length;
  memcpy(room, bytes, length < HAUL_CACHE_KEY_MAX ? (size_t)length : HAUL_CACHE_KEY_MAX);
  PyBuffer_Release(&view);
  return true;
}

/* From (key, offset, length) with a range in `local`, else from a key. Returns the key, or NULL. */
static PyObject *read_item(PyObject *given, const struct local *local, const char *call, char *room,
                           struct haul_cache_item *item) {
  uint64_t offset, length;
  PyObject *key = given, *parts = local ? PySequence_Tuple(given) : NULL;
  bool read =
      !local || (parts && PyArg_ParseTuple(parts, "OO&O&;a block is (key, offset, length)", &key,
                                           uint64_from, &offset, uint64_from, &length));
  item->code = UNTOUCHED;
  item->tier = NO_TIER;
  read = read && read_key(key, room, item);
  if (read && local) {
    item->offset = offset;
    item->length = length;
    read = local_offset(local, call, length, &item->offset);
  }
  if (read)
    Py_INCREF(key);
  Py_XDECREF(parts);
  return read ? key : NULL;
}

/* Appends the keys to *keys, which is NULL after a failure. */
static bool read_items(struct batch *batch, PyObject *given, const struct local *local,
                       const char *call, PyObject **keys) {
  char *rooms = (char *)&batch->items[batch->count];
  *keys = PyList_New(0);
  for (size_t i = 0; *keys && i < batch->count; i++)
    list_append(keys, read_item(PyTuple_GetItem(given, (Py_ssize_t)i), local, call,
                                rooms + i * HAUL_CACHE_KEY_MAX, &batch->items[i]));
  return *keys;
}

/* Enters the region for the job. */
static bool use_region(struct batch *batch, const struct local *local, const char *call) {
  if (!local)
    return true;
  batch->region = object_enter(&local->region->base, call);
  if (!batch->region)
    return false;
  batch->job.used[1] = (struct object *)Py_NewRef((PyObject *)local->region);
  return true;
}

/* With the keys, which the caller releases. NULL with an exception. */
static struct batch *batch_new(PyObject *self, PyObject *given, const struct local *local,
                               const char *call, int (*run)(struct job *job), PyObject **keys) {
  if (PyUnicode_Check(given) || PyBytes_Check(given)) {
    PyErr_Format(PyExc_TypeError, "invalid keys %R: expected several of them", given);
    return NULL;
  }
  PyObject *all = PySequence_Tuple(given);
  if (!all)
    return NULL;
  size_t count = (size_t)PyTuple_Size(all);
  size_t size =
      sizeof(struct batch) + count * (sizeof(struct haul_cache_item) + HAUL_CACHE_KEY_MAX);
  struct batch *batch = job_new(size, (struct object *)self, call, run, NULL);
  if (batch) {
    batch->count = count;
    if (!use_region(batch, local, call) || !read_items(batch, all, local, call, keys)) {
      job_drop(&batch->job);
      batch = NULL;
    }
  }
  Py_DECREF(all);
  return batch;
}

/* The library describes the first key that failed; the others have the text of their code. */
static PyObject *error_of(const struct batch *batch, const struct haul_cache_item *item,
                          bool first) {
  struct haul_error error = {.code = item->code};
  size_t length = item->key_length < HAUL_CACHE_KEY_MAX ? item->key_length : HAUL_CACHE_KEY_MAX;
  if (first)
    return error_object(&batch->error);
  PyOS_snprintf(error.call, sizeof error.call, "%s", batch->error.call);
  PyOS_snprintf(error.object, sizeof error.object, "%.*s", (int)length, (const char *)item->key);
  PyOS_snprintf(error.text, sizeof error.text, "%s", haul_error_text(item->code));
  PyOS_snprintf(error.hint, sizeof error.hint, "see the first key that failed");
  return error_object(&error);
}

static PyObject *member_of(const struct haul_cache_item *item) {
  return item->member == HAUL_CACHE_NO_MEMBER ? Py_NewRef(Py_None)
                                              : PyLong_FromUnsignedLong(item->member);
}

static PyObject *item_object(const struct batch *batch, size_t index, PyObject *key, bool first) {
  const struct haul_cache_item *item = &batch->items[index];
  bool known = item->code == 0 || item->code == HAUL_ERANGE;
  PyObject *error = item->code ? error_of(batch, item, first) : Py_NewRef(Py_None);
  PyObject *member = error ? member_of(item) : NULL;
  if (member)
    return data_make(
        "Item", Py_BuildValue("(OKNINz)", key, known ? (unsigned long long)item->length : 0, member,
                              item->replicas, error, item->code ? NULL : tier_name(item->tier)));
  Py_XDECREF(error);
  return NULL;
}

/* Runs the batch, and frees it and the keys. */
static PyObject *batch_run(struct batch *batch, PyObject *keys) {
  PyObject *list = NULL;
  bool failed = false;
  if (job_run(&batch->job) == 0) {
    list = PyList_New(0);
    for (size_t i = 0; list && i < batch->count; i++) {
      bool first = batch->items[i].code && !failed;
      failed |= first;
      list_append(&list, item_object(batch, i, PyList_GetItem(keys, (Py_ssize_t)i), first));
    }
    job_free(&batch->job);
  }
  Py_DECREF(keys);
  return list;
}

PyObject *cache_put(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"region", "blocks", "if_absent", "priority", "timeout", NULL};
  struct local local;
  PyObject *given, *keys, *timeout = Py_None;
  int if_absent = 0, priority = 0;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O|$piO", names, local_from, &local, &given,
                                   &if_absent, &priority, &timeout) ||
      !deadline_from(timeout, ((struct object *)self)->node->timeout, &until))
    return NULL;
  struct batch *batch = batch_new(self, given, &local, "put", run_put, &keys);
  if (!batch)
    return NULL;
  batch->flags = if_absent ? HAUL_CACHE_IF_ABSENT : 0;
  batch->priority = priority;
  batch->until = until;
  return batch_run(batch, keys);
}

PyObject *cache_get(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"region", "blocks", "timeout", NULL};
  struct local local;
  PyObject *given, *keys, *timeout = Py_None;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O|$O", names, local_from, &local, &given,
                                   &timeout) ||
      !deadline_from(timeout, ((struct object *)self)->node->timeout, &until) ||
      !region_must_be_writable(local.region, "get"))
    return NULL;
  struct batch *batch = batch_new(self, given, &local, "get", run_get, &keys);
  if (!batch)
    return NULL;
  batch->until = until;
  return batch_run(batch, keys);
}

/* The arguments `keys` and `timeout`. */
static PyObject *call_with_keys(PyObject *self, PyObject *args, PyObject *keywords,
                                const char *call, int (*run)(struct job *job)) {
  static char *names[] = {"keys", "timeout", NULL};
  PyObject *given, *keys, *timeout = Py_None;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$O", names, &given, &timeout) ||
      !deadline_from(timeout, ((struct object *)self)->node->timeout, &until))
    return NULL;
  struct batch *batch = batch_new(self, given, NULL, call, run, &keys);
  if (!batch)
    return NULL;
  batch->until = until;
  return batch_run(batch, keys);
}

PyObject *cache_exists(PyObject *self, PyObject *args, PyObject *keywords) {
  return call_with_keys(self, args, keywords, "exists", run_exists);
}

PyObject *cache_remove(PyObject *self, PyObject *args, PyObject *keywords) {
  return call_with_keys(self, args, keywords, "remove", run_remove);
}

PyObject *cache_pin(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"keys", "seconds", "timeout", NULL};
  PyObject *given, *keys, *timeout = Py_None;
  unsigned seconds;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO&|$O", names, &given, uint32_from, &seconds,
                                   &timeout) ||
      !deadline_from(timeout, ((struct object *)self)->node->timeout, &until))
    return NULL;
  struct batch *batch = batch_new(self, given, NULL, "pin", run_pin, &keys);
  if (!batch)
    return NULL;
  batch->seconds = seconds;
  batch->until = until;
  return batch_run(batch, keys);
}
