/* SPDX-License-Identifier: MIT
 * Shared by the files of the extension: one file a noun of haul.h. They use the public header and
 * CPython's limited API of 3.11. The GIL guards every field, and callers hold it unless a comment
 * says otherwise. */
#ifndef HAULPY_H
#define HAULPY_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <structmember.h>

#include <haul/access.h>
#include <haul/haul.h>

/* ISO C does not convert functions to void *, which a type's slots need; POSIX does. */
#define SLOT(id, function)                                                                         \
  { (id), __extension__(void *)(function) }
#define METHOD_WITH_KEYWORDS(function)                                                             \
  ((PyCFunction)(void (*)(void))(function)), METH_VARARGS | METH_KEYWORDS
/* A docstring that inspect.signature understands. */
#define DOC(signature, text) signature "\n--\n\n" text
#define MEMBER(name, type, structure, field, doc)                                                  \
  { name, type, offsetof(structure, field), READONLY, doc }
#define HANDLE_TYPE Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION

/* module.c: errors and plain values */

/* Created once, with the module, and never freed. */
struct haulpy {
  PyTypeObject *node, *region, *tensor, *peer, *remote, *transfer, *directory, *world, *file,
      *cache, *store, *source, *receiver;
  PyObject *data; /* the module haul._data: plain classes of results */
};
extern struct haulpy haulpy;

/* Creates an object of class `name` of haul._data. Takes `values`, the tuple of its fields; returns
 * NULL if that is NULL, with the error set. */
PyObject *data_make(const char *name, PyObject *values);
/* Appends `item`, which it takes; clears *list with the error set if that fails or `item` is NULL.
 */
bool list_append(PyObject **list, PyObject *item);

/* An exception, to be returned as a value. */
PyObject *error_object(const struct haul_error *error);

/* Set the exception and return NULL. raise_last() uses the calling thread's last failure. */
PyObject *raise_last(void);
PyObject *raise_error(const struct haul_error *error);
PyObject *raise_own(int code, const char *call, const char *object, const char *text,
                    const char *hint);

/* Converters for PyArg_Parse's "O&": to uint64_t and to unsigned. Other numbers raise
 * OverflowError, where "K" and "I" would take them modulo. */
int uint64_from(PyObject *given, void *number);
int uint32_from(PyObject *given, void *number);

/* A string of the library's, with U+FFFD for bytes that are not UTF-8. */
PyObject *text_of(const char *text);
bool place_from(const char *text, struct haul_place *place);
PyObject *place_text(struct haul_place place);
PyObject *rights_of(unsigned rights);

/* Arguments for Py_BuildValue's "O&" and "O". It converts them in order and stops at the first
 * failure; items converted before the call would run with that exception set. */
#define TEXT(text)   text_item, (void *)(uintptr_t)(text)
#define PLACE(place) place_item, (void *)(uintptr_t) & (place)
#define TRUTH(value) ((value) ? Py_True : Py_False)
PyObject *text_item(void *text);
PyObject *place_item(void *place);

/* A statement that may wait: other threads run Python meanwhile. */
#define WITHOUT_GIL(statement)                                                                     \
  do {                                                                                             \
    Py_BEGIN_ALLOW_THREADS;                                                                        \
    statement;                                                                                     \
    Py_END_ALLOW_THREADS;                                                                          \
  } while (0)

/* object.c: base of all types but Tensor */

struct node;

struct object {
  PyObject_HEAD const char *noun; /* "region" */
  void *handle;                   /* of the library; NULL once its release has returned */
  uintptr_t identity;             /* address of the handle, also after the release */
  void (*release)(void *);
  void (*released)(struct object *); /* called without a handle, maybe twice; or NULL */
  unsigned users;    /* calls in progress, mostly without the GIL; a release is a call of the
                        object and of its node */
  pid_t releasing;   /* the process with a thread in `release`, or 0: a fork loses that thread */
  unsigned exports;  /* buffers and tensors of its memory in use */
  bool closed;       /* calls fail from now on; the last user or export releases the handle */
  bool holds_node;   /* one of the node's exports, until the handle is released */
  struct node *node; /* a reference; NULL in a node and a file */
};

struct node {
  struct object base;
  double timeout;  /* seconds, of calls and transfers that set none */
  PyObject *watch; /* owned by haul.aio; or NULL */
  PyObject *inbox; /* owned by haul._inbox; or NULL */
  bool served;     /* a cache or a store has its messages, or is being opened */
};

/* A zeroed object with a reference to `node`, NULL for a node or a file. Releases the handle if it
 * fails. */
struct object *object_new(PyTypeObject *type, const char *noun, void *handle,
                          void (*release)(void *), struct node *node);

/* Between the two calls the object and its node keep their handles. object_enter returns the
 * handle, or NULL and raises HAUL_ECLOSED in the name of `call` if one of them is closed. */
void *object_enter(struct object *object, const char *call);
void object_leave(struct object *object);

/* Rejects new calls. Waits up to a second, without the GIL, for calls in progress in other threads,
 * including a release; the last of them releases the handle. */
void object_close(struct object *object);

/* Counts an export of the object and of its node. The caller has entered the object. */
void object_begin_export(struct object *object);
void object_end_export(struct object *object);

/* For what the library wants to be released before its node: until then the node's close() raises
 * BufferError. Its node has been marked `served`. */
void object_hold_node(struct object *object);

/* For tp_dealloc, before it frees the type's own fields. */
void object_free(PyObject *self);

/* For tp_traverse, besides the type's own references. haul.aio lets a node know the tasks that wait
 * for it, and a task may refer to any object of that node: so all types support cycles. */
int object_traverse(PyObject *self, visitproc visit, void *arg);

/* A property or a method that needs only the handle; the closure is a struct getter. */
struct getter {
  const char *name;
  PyObject *(*get)(void *handle);
};
PyObject *object_get(PyObject *self, void *getter);
#define GETTER(name) static struct getter name##_getter = {#name, get_##name}
/* Defines NOUN_NAME, a method without arguments, by NAME_of(handle). */
#define METHOD(noun, name)                                                                         \
  static PyObject *noun##_##name(PyObject *self, PyObject *none) {                                 \
    static struct getter getter = {#name, name##_of};                                              \
    (void)none;                                                                                    \
    return object_get(self, &getter);                                                              \
  }
#define PROPERTY(name, doc)                                                                        \
  { #name, object_get, NULL, doc, &name##_getter }

/* BufferError while exports are in use. */
PyObject *object_method_close(PyObject *self, PyObject *none);
PyObject *object_method_enter(PyObject *self, PyObject *none);
PyObject *object_method_exit(PyObject *self, PyObject *args);

/* Methods of what numpy and DLPack see as memory: Region and Tensor. */
#define BUFFER_METHODS                                                                             \
  {"__array__", METHOD_WITH_KEYWORDS(buffer_array),                                                \
   DOC("__array__($self, dtype=None, copy=None)",                                                  \
       "Return a numpy array over the memory.\n"                                                   \
       "\n"                                                                                        \
       "dtype  of numpy; another one than the memory's copies\n"                                   \
       "copy   True copies, False raises ValueError where a copy is needed; None: as needed\n"     \
       "\n"                                                                                        \
       "Does not wait. Raises BufferError for device memory, closed regions and types without a\n" \
       "buffer format.")},                                                                         \
      {"__dlpack__", METHOD_WITH_KEYWORDS(dlpack_capsule),                                         \
       DOC("__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)",       \
           "Return a capsule with the tensor, without a copy.\n"                                   \
           "\n"                                                                                    \
           "stream       accepted, not used: the bytes of completed transfers are visible "        \
           "everywhere\n"                                                                          \
           "max_version  of DLPack, (major, minor); None: before 1.0\n"                            \
           "dl_device    (type, number): must be the tensor's\n"                                   \
           "copy         True is refused\n"                                                        \
           "\n"                                                                                    \
           "Does not wait. Raises BufferError: another device, a copy, read-only memory before "   \
           "DLPack\n"                                                                              \
           "1.0, a place without a DLPack device. Raises Closed.")},                               \
  {                                                                                                \
    "__dlpack_device__", dlpack_device, METH_NOARGS,                                               \
        DOC("__dlpack_device__($self, /)",                                                         \
            "Return DLPack's type and number of the device. Does not "                             \
            "wait. Raises BufferError, Closed.")                                                   \
  }

#define OBJECT_METHODS                                                                             \
  {"__enter__", object_method_enter, METH_NOARGS,                                                  \
   DOC("__enter__($self, /)", "Return the object. Raises Closed.")},                               \
  {                                                                                                \
    "__exit__", object_method_exit, METH_VARARGS,                                                  \
        DOC("__exit__($self, kind, error, trace, /)",                                              \
            "Close it; kind, error and trace are those of the with statement's exception, or "     \
            "None.\n\n"                                                                            \
            "After an exception, buffers and tensors in use do not prevent that: calls fail\n"     \
            "from now on, and the last buffer or tensor that is released closes it.")              \
  }
/* `text`: a sentence, and what else it does. */
#define OBJECT_CLOSE(text)                                                                         \
  { "close", object_method_close, METH_NOARGS, DOC("close($self, /)", text) }
#define OBJECT_MEMBERS MEMBER("closed", T_BOOL, struct object, closed, "Whether it is closed.")

/* gil.c: waits without the GIL, and threads that the interpreter did not create */

/* Sleeps a millisecond without the GIL. */
void pause_for_others(void);

/* Acquires the GIL in any thread, with it or without. Returns false if the interpreter has ended or
 * is about to: then the caller must not touch Python objects, and the process ends soon. */
bool foreign_enter(PyGILState_STATE *state);
void foreign_leave(PyGILState_STATE state);

/* Registers the atexit hook, once. False with an exception. */
bool foreign_watch(void);

/* From a number of seconds; infinity is HAUL_FOREVER. False with an exception that names `name`. */
bool nanoseconds_from(PyObject *seconds, const char *name, int64_t *nanoseconds);
/* The same for an argument `timeout`: None stands for `seconds`. */
bool deadline_from(PyObject *timeout, double seconds, haul_deadline *until);
/* The same for a call with only that argument, by PyArg_Parse's `format`. */
bool deadline_argument(PyObject *args, PyObject *keywords, const char *format, double seconds,
                       haul_deadline *until);

/* Calls `step` without the GIL until it returns something else than STEP_AGAIN, which means that
 * its deadline passed. Checks for signals and for a close ten times a second. Returns step's
 * result, HAUL_ETIMEDOUT at `until`, or WAIT_RAISED with an exception set. The caller has entered
 * the object in the name of `call`. */
#define STEP_AGAIN  1 /* as haul_transfer_test of a transfer in flight */
#define WAIT_RAISED 2
int wait_in_steps(struct object *object, const char *call,
                  int (*step)(void *user, haul_deadline until), void *user, haul_deadline until);
/* The same for several objects, all entered. */
int wait_many_in_steps(struct object *const *objects, size_t count, const char *call,
                       int (*step)(void *user, haul_deadline until), void *user,
                       haul_deadline until);

/* A call that can be neither interrupted nor resumed. From the main thread it runs in a thread of
 * its own, so that a signal can end the wait for it. */
struct job {
  int (*run)(struct job *job);   /* without the GIL; uses only the job */
  void (*undo)(struct job *job); /* with or without the GIL: undoes an unused success */
  void (*left)(struct job *job); /* with the GIL, once, after the call has ended; or NULL */
  void *handle;                  /* of used[0] */
  struct object *used[2];        /* references, entered; left when the call has ended */
  struct job_state *state;
};

/* Allocates a job of `size` bytes and enters `object` in the name of `call`. `undo` may be NULL.
 * NULL with an exception. */
void *job_new(size_t size, struct object *object, const char *call, int (*run)(struct job *job),
              void (*undo)(struct job *job));
/* Runs the job and leaves the objects. 0: the caller frees the job. -1 with an exception: it is
 * freed, now or when its thread ends. */
int job_run(struct job *job);
void job_free(struct job *job);
/* Instead of job_run: leaves the objects and frees the job. */
void job_drop(struct job *job);

size_t layout_item_size(const struct haul_tensor *layout);
uint64_t layout_bytes(const struct haul_tensor *layout);

/* A range of bytes as a tensor of one dimension. */
struct haul_tensor layout_flat(size_t length);

/* Strides of a dense tensor in C order. */
void layout_fill_strides(struct haul_tensor *layout);

/* The range of bytes of the elements, relative to the first one, so *low <= 0. False if the range,
 * its length or the number of elements overflows. An empty tensor has an empty range. */
bool layout_extent(const struct haul_tensor *layout, int64_t *low, int64_t *high);

/* Whether the elements are dense, in C order. The layout passed layout_check. */
bool layout_is_contiguous(const struct haul_tensor *layout);

/* Raises ValueError unless the elements lie within `length` bytes. */
bool layout_check(const struct haul_tensor *layout, uint64_t length);

/* To and from haul.Layout, a tuple of dtype, shape, strides, offset. */
PyObject *layout_object(const struct haul_tensor *layout);
bool layout_from(PyObject *object, struct haul_tensor *layout);

/* {"float32": (2, 32, 1), ...}: the names, and DLPack's code, bits and lanes. */
PyObject *layout_dtypes(PyObject *module, PyObject *none);

/* From "float32", numpy.float32, numpy.dtype("float32") or torch.float32. */
bool layout_dtype(PyObject *dtype, struct haul_tensor *layout);
bool layout_shape(PyObject *shape, PyObject *strides, struct haul_tensor *layout);

/* The struct module's format of the type, or NULL; and back, false without a type of DLPack. */
const char *layout_format(const struct haul_tensor *layout);
bool layout_from_format(const char *format, Py_ssize_t size, struct haul_tensor *layout);

struct region {
  struct object base;
  bool readonly, from_file;
  struct haul_tensor layout; /* flat by default */
  bool has_layout;
  struct wrapped *wrapped; /* the wrapped object; NULL for memory of haul's own */
};

/* A tensor within a region: no memory of its own. */
struct tensor {
  PyObject_HEAD struct region *region; /* a reference */
  struct haul_tensor layout;
};

PyTypeObject *region_type(void);
PyObject *region_object(struct node *node, haul_region *handle, const struct haul_tensor *layout,
                        struct wrapped *wrapped, bool readonly);

/* Raises HAUL_EACCESS for read-only memory. The library sees only pages, which are often writable
 * although the Python object is not. */
bool region_must_be_writable(const struct region *region, const char *call);

/* How to get writable memory instead: an imperative clause. */
const char *region_writable_hint(const struct region *region);

/* Keeps the region and its node until object_end_export. Raises haul.Error. */
bool region_begin_export(struct region *region, const char *call, char **address);

PyTypeObject *tensor_type(void);
PyObject *tensor_object(struct region *region, const struct haul_tensor *layout);

/* Of a region, or of a tensor in it. */
struct region *region_of(PyObject *object);
const struct haul_tensor *layout_of(PyObject *object);
PyObject *tensor_get_layout(PyObject *self, void *none);

/* The local end of a transfer: a region, or the contiguous bytes of a tensor in it. */
struct local {
  struct region *region;
  const struct tensor *tensor; /* NULL: all of the region */
};

/* Converter for PyArg_Parse's "O&"; a struct local holds no references. */
int local_from(PyObject *object, void *local);

/* In bytes. The caller has entered the region. */
uint64_t local_length(const struct local *local);

/* Converts an offset in the local end to one in the region. Raises HAUL_ERANGE if `length` bytes
 * from there exceed the tensor; the library checks the region's bounds. */
bool local_offset(const struct local *local, const char *call, uint64_t length, uint64_t *offset);

/* buffer.c: the buffer protocol, both ways */

/* bf_getbuffer and bf_releasebuffer of regions and tensors. */
int buffer_get(PyObject *self, Py_buffer *view, int flags);
void buffer_release(PyObject *self, Py_buffer *view);

/* __array__(dtype=None, copy=None). numpy calls it when it got no buffer, and would otherwise make
 * an array of one Python object. So this raises the reason. */
PyObject *buffer_array(PyObject *self, PyObject *args, PyObject *keywords);

/* Memory of others that a region wraps: a buffer, or a tensor of DLPack. */
struct wrapped {
  Py_buffer buffer; /* without an `obj`: none */
  void *managed;
  void (*delete)(void *managed);
};

/* Node.wrap: a buffer, or through DLPack. */
PyObject *wrap_object(PyObject *node, PyObject *object);
/* haul.Layout of such an object, which may be empty. */
PyObject *wrap_layout(PyObject *module, PyObject *object);
/* Takes `wrapped`. `first` is the address of the first element; the region spans the lowest to the
 * highest one. The library refuses a range that wraps around. With `node` NULL only the layout. */
PyObject *wrap_memory(struct node *node, struct wrapped *wrapped, uintptr_t first,
                      struct haul_tensor layout, bool readonly);

/* Returns the memory to its owner, after the release of its region has returned. */
void wrapped_release(struct wrapped *wrapped);

/* dlpack.c: DLPack, both ways */

/* __dlpack__ and __dlpack_device__ of regions and tensors. */
PyObject *dlpack_capsule(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *dlpack_device(PyObject *self, PyObject *none);
PyObject *dlpack_wrap(struct node *node, PyObject *object);

PyTypeObject *node_type(void);

PyTypeObject *peer_type(void);
PyObject *peer_object(struct node *node, haul_peer *handle);

/* Tag of the messages of haul._inbox: "haultens". */
#define TENSOR_TAG INT64_C(0x6861756c74656e73)

PyObject *message_receive_any(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *message_receive(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *message_send(PyObject *self, PyObject *args, PyObject *keywords);

struct remote {
  struct object base;
  PyObject *peer, *name; /* references */
};

PyTypeObject *remote_type(void);

PyTypeObject *transfer_type(void);

/* Methods of Remote. */
PyObject *transfer_write(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_read(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_fetch_add(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_compare_swap(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_explain(PyObject *self, PyObject *args, PyObject *keywords);

/* Functions of the module: wait.c. */
PyObject *wait_all(PyObject *module, PyObject *args, PyObject *keywords);
PyObject *wait_any(PyObject *module, PyObject *args, PyObject *keywords);

PyObject *report_object(const struct haul_report *report);
const char *operation_name(int operation);
PyObject *report_paths(const struct haul_path *paths, size_t count);

PyTypeObject *directory_type(void);
PyTypeObject *world_type(void);
PyTypeObject *file_type(void);
PyTypeObject *cache_type(void);
PyTypeObject *store_type(void);

struct haul_cache_stats;
PyObject *cache_stats_object(const struct haul_cache_stats *stats);
PyTypeObject *source_type(void);
PyTypeObject *receiver_type(void);

/* Methods of Node. */
PyObject *node_wrap_file(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *node_register(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *node_find(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *node_directory(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *node_join(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *node_ports(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *devices_of(void *node);
PyObject *checks_of(void *node);
PyObject *counters_of(void *node);

#endif
