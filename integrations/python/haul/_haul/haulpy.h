/* SPDX-License-Identifier: MIT
 *
 * What the files of the extension share. Each stands for one noun of haul.h and uses nothing of
 * haul but that header, and of CPython its stable interface of 3.11.
 *
 * Unless a comment says otherwise the interpreter's lock is held, and guards every field here. */
#ifndef HAULPY_H
#define HAULPY_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include <haul/access.h>
#include <haul/haul.h>

/* ISO C has no conversion of functions to void *; POSIX has, and a type's slots need it. */
#define SLOT(id, function)                                                                         \
  { (id), __extension__(void *)(function) }
#define METHOD_WITH_KEYWORDS(function)                                                             \
  ((PyCFunction)(void (*)(void))(function)), METH_VARARGS | METH_KEYWORDS

/* Made once, with the module, and never freed. */
struct haulpy {
  PyTypeObject *node, *region, *tensor, *peer, *remote, *transfer;
  PyObject *data; /* the module haul._data: plain classes that results are made of */
};
extern struct haulpy haulpy;

/* A new object of the class `name` of haul._data. Takes `values`, a tuple of its fields; with NULL,
 * an error set, it returns NULL. */
PyObject *data_make(const char *name, PyObject *values);

/* ---- error.c ---- */

/* Set the exception and return NULL. raise_last() takes the calling thread's last failure. */
PyObject *raise_last(void);
PyObject *raise_error(const struct haul_error *error);
PyObject *raise_own(int code, const char *call, const char *object, const char *text,
                    const char *hint);

/* Text of the library's, which may quote anything, also what is no UTF-8. */
PyObject *text_of(const char *text);

/* Items for Py_BuildValue's "O&" and "O". It makes them one after the other and knows what to do
 * once one has failed; made before the call, the next would be made with an exception set. */
#define TEXT(text)   text_item, (void *)(uintptr_t)(text)
#define PLACE(place) place_item, (void *)(uintptr_t) & (place)
#define TRUTH(value) ((value) ? Py_True : Py_False)
PyObject *text_item(void *text);
PyObject *place_item(void *place);

/* ---- object.c: what Node, Region, Peer, Remote and Transfer have in common ---- */

struct node;

struct object {
  PyObject_HEAD const char *noun; /* "region" */
  void *handle;                   /* the library's; NULL once its release has returned */
  uintptr_t identity;             /* the address of the handle, also afterwards */
  void (*release)(void *);
  void (*released)(struct object *); /* called once there is no handle, maybe again; or NULL */
  unsigned users;    /* calls under way, most of them without the interpreter's lock; a release is
                        one of the object and of its node */
  pid_t releasing;   /* the process that has a thread in `release`, or 0: a fork loses the thread */
  unsigned exports;  /* buffers and tensors of its memory that somebody holds */
  bool closed;       /* no further call may begin; the last user or export releases the handle */
  struct node *node; /* a reference; NULL in a node */
};

struct node {
  struct object base;
  double timeout;  /* seconds, of calls and transfers that name none */
  PyObject *watch; /* haul.aio's, or NULL */
};

/* A zeroed object with a reference to `node`, which a node itself has not. Without memory it
 * releases the handle. */
struct object *object_new(PyTypeObject *type, const char *noun, void *handle,
                          void (*release)(void *), struct node *node);

/* Between the two neither the object nor its node lose their handles. object_enter raises
 * HAUL_ECLOSED in the name of `call` and returns NULL where one of them is closed; else the handle.
 */
void *object_enter(struct object *object, const char *call);
void object_leave(struct object *object);

/* No call begins any more. Waits, without the interpreter's lock, up to a second for calls under
 * way in other threads, a release among them; the last of them releases the handle. */
void object_close(struct object *object);

/* Counts an export of the object's, and so of its node's. The caller has entered the object. */
void object_lend(struct object *object);
void object_returned(struct object *object);

/* For tp_dealloc, before what the type has of its own. */
void object_free(struct object *object);

/* For tp_traverse, besides what the type refers to itself. A task that waits for news of a node is
 * known to the node (haul.aio), and may hold whatever came from it: so all of that tells the
 * garbage collector what it refers to. */
int object_traverse(PyObject *self, visitproc visit, void *arg);

PyObject *object_method_close(PyObject *self, PyObject *none);
PyObject *object_method_enter(PyObject *self, PyObject *none);
PyObject *object_method_exit(PyObject *self, PyObject *args);
PyObject *object_get_closed(PyObject *self, void *none);

#define OBJECT_METHODS                                                                             \
  {"__enter__", object_method_enter, METH_NOARGS, NULL}, {                                         \
    "__exit__", object_method_exit, METH_VARARGS,                                                  \
        "Close it. An exception of the with statement goes on, whatever is still in use: then no " \
        "call begins any more, and the last buffer or tensor that is given back closes it."        \
  }
#define OBJECT_CLOSE                                                                               \
  { "close", object_method_close, METH_NOARGS, "Release what stands behind this object." }
#define OBJECT_GETTERS                                                                             \
  { "closed", object_get_closed, NULL, "Whether it was closed.", NULL }

/* A millisecond without the interpreter's lock. */
void pause_for_others(void);

/* ---- foreign.c: threads that the interpreter does not know ---- */

/* Takes the interpreter's lock, in any thread, with it or without. False where the interpreter has
 * ended, or is about to: then nothing of Python's may be touched, and the process goes soon. */
bool foreign_enter(PyGILState_STATE *state);
void foreign_leave(PyGILState_STATE state);

/* Once, with the module. False with an exception. */
bool foreign_watch(void);

/* ---- wait.c ---- */

/* From seconds: None is `seconds`, infinity is for ever. False with an exception for what is no
 * time. */
bool deadline_from(PyObject *timeout, double seconds, haul_deadline *until);
bool nanoseconds_from(double seconds, int64_t *nanoseconds);

/* Waits until `step` returns something else than STEP_AGAIN, which it does when the deadline it is
 * given passed first. It is called without the interpreter's lock. Looks for signals, and for a
 * close, ten times a second. The result is step's; HAUL_ETIMEDOUT at `until`; or WAIT_RAISED with
 * an exception set. The object was entered in the name of `call`. */
#define STEP_AGAIN  1
#define WAIT_RAISED 2
int wait_in_steps(struct object *object, const char *call,
                  int (*step)(void *user, haul_deadline until), void *user, haul_deadline until);

/* A call that can be neither interrupted nor taken up again. In the main thread it is made by a
 * thread of its own, so that a signal can end the wait for it. */
struct job {
  int (*run)(struct job *job); /* without the interpreter's lock; what it needs is in the job */
  void (*undo)(
      struct job *job);   /* with or without it: takes back what run made, when nobody wants it */
  struct object *used[2]; /* entered by the caller; left when the call has ended */
  struct job_state *state;
};

/* Runs the job, which was allocated with job_new, and takes the objects it uses. 0 and the job is
 * to be freed by job_free, or -1 with an exception: then it is gone, or will be. */
void *job_new(size_t size);
int job_run(struct job *job);
void job_free(struct job *job);

/* ---- place.c ---- */

bool place_from(const char *text, struct haul_place *place);
PyObject *place_text(struct haul_place place);

/* ---- layout.c ---- */

size_t layout_item_size(const struct haul_tensor *layout);
uint64_t layout_bytes(const struct haul_tensor *layout);

/* A range of bytes as a tensor of one dimension. */
struct haul_tensor layout_flat(size_t length);

/* Strides of a dense tensor, the last dimension the fastest. */
void layout_fill_strides(struct haul_tensor *layout);

/* The range of bytes that the elements lie in, relative to the first one: low is not positive.
 * False where it, its length or its elements cannot be counted. An empty tensor has an empty range.
 */
bool layout_extent(const struct haul_tensor *layout, int64_t *low, int64_t *high);

/* Whether the elements lie next to each other, the last dimension the fastest. The layout passed
 * layout_check. */
bool layout_is_contiguous(const struct haul_tensor *layout);

/* Raises ValueError where the elements do not lie within `length` bytes. */
bool layout_check(const struct haul_tensor *layout, uint64_t length);

/* To and from haul.Layout, a tuple of dtype, shape, strides, offset. */
PyObject *layout_object(const struct haul_tensor *layout);
bool layout_from(PyObject *object, struct haul_tensor *layout);

/* From "float32", numpy.float32, numpy.dtype("float32") or torch.float32. */
bool layout_dtype(PyObject *dtype, struct haul_tensor *layout);
bool layout_shape(PyObject *shape, PyObject *strides, struct haul_tensor *layout);

/* The struct module's code for the type, NULL where it has none; and back, false where DLPack has
 * none. */
const char *layout_format(const struct haul_tensor *layout);
bool layout_from_format(const char *format, Py_ssize_t size, struct haul_tensor *layout);

/* ---- region.c ---- */

struct region {
  struct object base;
  bool readonly;
  struct haul_tensor layout; /* flat where nobody gave one */
  bool has_layout;
  struct kept *kept; /* what is wrapped, NULL for memory of haul's own */
};

/* A tensor within a region: no memory of its own. */
struct tensor {
  PyObject_HEAD struct region *region; /* a reference */
  struct haul_tensor layout;
};

PyTypeObject *region_type(void);
PyObject *region_object(struct node *node, haul_region *handle, const struct haul_tensor *layout,
                        struct kept *kept, bool readonly);

/* Raises HAUL_EACCESS where it may only be read. The library sees pages, which are often writable
 * below an object that is not. */
bool region_must_be_writable(const struct region *region, const char *call);

/* How it would have become writable: half a sentence. */
const char *region_writable_hint(const struct region *region);

/* The region stays, and its node too, until region_returned. The exception is haul.Error. */
bool region_lend(struct region *region, const char *call, char **address);
void region_returned(struct region *region);

/* ---- tensor.c ---- */

PyTypeObject *tensor_type(void);
PyObject *tensor_object(struct region *region, const struct haul_tensor *layout);

/* The local end of a transfer: a region, or the contiguous bytes of a tensor in it. */
struct local {
  struct region *region;
  const struct tensor *tensor; /* NULL: all of the region */
};

/* For PyArg_Parse's "O&", of a struct local, in which nothing is a reference. */
int local_from(PyObject *object, void *local);

/* Its bytes. The region is entered. */
uint64_t local_length(const struct local *local);

/* From an offset in it to one in the region. Raises HAUL_ERANGE where `length` bytes there do not
 * lie within the tensor; what does not lie within a region the library refuses. */
bool local_offset(const struct local *local, const char *call, uint64_t length, uint64_t *offset);

/* ---- buffer.c ---- */

/* bf_getbuffer and bf_releasebuffer of `owner`, over `layout` in the region. */
int buffer_fill(PyObject *owner, struct region *region, const struct haul_tensor *layout,
                Py_buffer *view, int flags);
void buffer_done(struct region *region, Py_buffer *view);

/* __array__(dtype=None, copy=None). numpy asks for it when it got no buffer, whatever the reason
 * was, and would make an array of one Python object otherwise. So this raises the reason. */
PyObject *buffer_array(PyObject *self, PyObject *args, PyObject *keywords);

/* ---- dlpack.c: tensors handed out ---- */

PyObject *dlpack_capsule(struct region *region, const struct haul_tensor *layout, PyObject *args,
                         PyObject *keywords);
PyObject *dlpack_device(struct region *region);

/* ---- wrap.c: tensors taken in ---- */

PyObject *wrap_object(struct node *node, PyObject *object);

/* Gives a wrapped object back, after its region's release has returned. */
void kept_release(struct kept *kept);
int kept_traverse(struct kept *kept, visitproc visit, void *arg);

/* ---- node.c, peer.c, message.c, remote.c, transfer.c, report.c, info.c ---- */

PyTypeObject *node_type(void);

PyTypeObject *peer_type(void);
PyObject *peer_object(struct node *node, haul_peer *handle);

PyObject *message_receive(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *message_send(PyObject *self, PyObject *args, PyObject *keywords);

struct remote {
  struct object base;
  struct object *peer; /* a reference */
  PyObject *name;
};

PyTypeObject *remote_type(void);
PyObject *remote_object(struct object *peer, haul_remote *handle, const char *name);

PyTypeObject *transfer_type(void);

/* Methods of Remote. */
PyObject *transfer_write(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_read(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_fetch_add(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_compare_swap(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *transfer_explain(PyObject *self, PyObject *args, PyObject *keywords);

PyObject *report_object(const struct haul_report *report);
PyObject *report_paths(const struct haul_path *paths, size_t count);

/* Methods of Node. */
PyObject *info_devices(PyObject *self, PyObject *none);
PyObject *info_checks(PyObject *self, PyObject *none);
PyObject *info_counters(PyObject *self, PyObject *none);

#endif
