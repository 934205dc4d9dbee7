/* SPDX-License-Identifier: MIT
 * Region: a range of bytes at a place, and a tensor if it has a layout. */
#include <unistd.h>

#include "haulpy.h"

static void release_region(void *handle) {
  haul_region_release(handle);
}

/* The wrapped object stays until no access through the region is possible. */
static void release_wrapped(struct object *object) {
  struct region *region = (struct region *)object;
  struct wrapped *wrapped = region->wrapped;
  region->wrapped = NULL;
  wrapped_release(wrapped);
}

PyObject *region_object(struct node *node, haul_region *handle, const struct haul_tensor *layout,
                        struct wrapped *wrapped, bool readonly) {
  struct object *object = object_new(haulpy.region, "region", handle, release_region, node);
  struct region *region = (struct region *)object;
  if (!region) {
    wrapped_release(wrapped);
    return NULL;
  }
  object->released = release_wrapped;
  region->wrapped = wrapped;
  region->has_layout = layout != NULL;
  region->layout = layout ? *layout : layout_flat(haul_region_length(handle));
  region->readonly = readonly || !(haul_region_rights(handle) & HAUL_WRITE);
  return (PyObject *)region;
}

const char *region_writable_hint(const struct region *region) {
  return region->wrapped ? "wrap a writable object" : "export it with WRITE too";
}

bool region_must_be_writable(const struct region *region, const char *call) {
  if (region->readonly)
    raise_own(HAUL_EACCESS, call, region->wrapped ? "wrapped memory" : "imported memory",
              "the memory is read-only", region_writable_hint(region));
  return !region->readonly;
}

bool region_begin_export(struct region *region, const char *call, char **address) {
  haul_region *handle = object_enter(&region->base, call);
  if (!handle)
    return false;
  *address = haul_region_address(handle);
  object_begin_export(&region->base);
  object_leave(&region->base);
  return true;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  const struct wrapped *wrapped = ((struct region *)self)->wrapped;
  if (wrapped)
    Py_VISIT(wrapped->buffer.obj);
  return object_traverse(self, visit, arg);
}

static void dealloc(PyObject *self) {
  struct wrapped *wrapped = ((struct region *)self)->wrapped;
  object_free(self);
  wrapped_release(wrapped);
}

static bool length_of(struct region *region, const char *call, size_t *length) {
  haul_region *handle = object_enter(&region->base, call);
  if (!handle)
    return false;
  *length = haul_region_length(handle);
  object_leave(&region->base);
  return true;
}

static PyObject *region_tensor(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"dtype", "shape", "strides", "offset", NULL};
  struct region *region = (struct region *)self;
  struct haul_tensor layout = {0};
  PyObject *dtype, *shape, *strides = Py_None, *offset = NULL;
  size_t length;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O$O", names, &dtype, &shape, &strides,
                                   &offset) ||
      !layout_dtype(dtype, &layout) || !layout_shape(shape, strides, &layout))
    return NULL;
  layout.offset = offset ? PyLong_AsUnsignedLongLong(offset) : 0;
  if (PyErr_Occurred() || !length_of(region, "tensor", &length) || !layout_check(&layout, length))
    return NULL;
  return tensor_object(region, &layout);
}

static PyObject *region_bytes(PyObject *self, PyObject *none) {
  struct region *region = (struct region *)self;
  size_t length;
  (void)none;
  if (!length_of(region, "bytes", &length))
    return NULL;
  const struct haul_tensor layout = layout_flat(length);
  PyObject *tensor = tensor_object(region, &layout);
  PyObject *view = tensor ? PyMemoryView_FromObject(tensor) : NULL;
  Py_XDECREF(tensor);
  return view;
}

/* The ticket, and the descriptor unless `descriptor` is NULL. */
static bool make_ticket(PyObject *self, PyObject *args, PyObject *keywords, const char *call,
                        struct haul_ticket *ticket, int *descriptor) {
  static char *names[] = {"layout", "rights", NULL};
  struct region *region = (struct region *)self;
  PyObject *given = Py_None;
  unsigned rights = HAUL_READ;
  struct haul_tensor layout = region->layout;
  bool has_layout = region->has_layout;
  int code;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OI", names, &given, &rights))
    return false;
  if (given != Py_None) {
    has_layout = true;
    if (!layout_from(given, &layout))
      return false;
  }
  haul_region *handle = object_enter(&region->base, call);
  if (!handle)
    return false;
  WITHOUT_GIL(
      code = haul_region_export(handle, rights, has_layout ? &layout : NULL, ticket, descriptor));
  if (code)
    raise_last();
  object_leave(&region->base);
  return code == 0;
}

static PyObject *region_export(PyObject *self, PyObject *args, PyObject *keywords) {
  struct haul_ticket ticket;
  int descriptor = -1;
  if (!make_ticket(self, args, keywords, "export", &ticket, &descriptor))
    return NULL;
  PyObject *shared = Py_BuildValue("(y#i)", (const char *)ticket.bytes,
                                   (Py_ssize_t)sizeof ticket.bytes, descriptor);
  if (!shared)
    close(descriptor);
  return shared;
}

static PyObject *region_ticket(PyObject *self, PyObject *args, PyObject *keywords) {
  struct haul_ticket ticket;
  if (!make_ticket(self, args, keywords, "ticket", &ticket, NULL))
    return NULL;
  return PyBytes_FromStringAndSize((const char *)ticket.bytes, (Py_ssize_t)sizeof ticket.bytes);
}

/* From a dict of names and rights. The dict owns the names; *rights is the union. */
static bool grants_from(PyObject *to, struct haul_grant *grants, size_t *count, unsigned *rights) {
  PyObject *who, *what;
  *rights = 0;
  *count = 0;
  if (!PyDict_Check(to)) {
    PyErr_Format(PyExc_TypeError, "invalid to %R: expected a dict of names and rights", to);
    return false;
  }
  for (Py_ssize_t at = 0; PyDict_Next(to, &at, &who, &what); (*count)++) {
    if (*count == HAUL_GRANTS_MAX) {
      PyErr_Format(PyExc_ValueError, "invalid to: expected at most %d names", HAUL_GRANTS_MAX);
      return false;
    }
    grants[*count].who = PyUnicode_AsUTF8AndSize(who, NULL);
    unsigned long granted = grants[*count].who ? PyLong_AsUnsignedLong(what) : 0;
    if (PyErr_Occurred())
      return false;
    if (granted > UINT_MAX) {
      PyErr_SetString(PyExc_ValueError, "invalid rights: expected READ, WRITE or both");
      return false;
    }
    grants[*count].rights = (unsigned)granted;
    *rights |= (unsigned)granted;
  }
  return true;
}

static PyObject *region_publish(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"name", "rights", "to", NULL};
  struct object *region = (struct object *)self;
  struct haul_grant grants[HAUL_GRANTS_MAX];
  PyObject *to = Py_None;
  const char *name;
  unsigned rights = HAUL_READ;
  size_t count = 0;
  int code;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|I$O", names, &name, &rights, &to) ||
      (to != Py_None && !grants_from(to, grants, &count, &rights)) ||
      (rights & HAUL_WRITE && !region_must_be_writable((struct region *)self, "publish")))
    return NULL;
  haul_region *handle = object_enter(region, "publish");
  if (!handle)
    return NULL;
  if (to != Py_None) /* with the GIL: another thread might change the dict, which owns the names */
    code = haul_region_publish_to(handle, name, grants, count);
  else
    WITHOUT_GIL(code = haul_region_publish(handle, name, rights));
  PyObject *result = code ? raise_last() : Py_NewRef(Py_None);
  object_leave(region);
  return result;
}

static PyObject *region_unpublish(PyObject *self, PyObject *args) {
  struct object *region = (struct object *)self;
  const char *name;
  int code;
  if (!PyArg_ParseTuple(args, "s", &name))
    return NULL;
  haul_region *handle = object_enter(region, "unpublish");
  if (!handle)
    return NULL;
  WITHOUT_GIL(code = haul_region_unpublish(handle, name));
  PyObject *result = code ? raise_last() : Py_NewRef(Py_None);
  object_leave(region);
  return result;
}

struct copy {
  struct job job;
  haul_region *from;
  uint64_t to_offset, from_offset;
  size_t length;
  haul_deadline until;
};

static int run_copy(struct job *job) {
  const struct copy *copy = (struct copy *)job;
  return haul_region_copy(job->handle, copy->to_offset, copy->from, copy->from_offset, copy->length,
                          copy->until);
}

/* By default the rest of the source from its offset on. */
static bool copy_length(struct copy *copy, PyObject *given) {
  if (given != Py_None) {
    copy->length = PyLong_AsSize_t(given);
    return !PyErr_Occurred();
  }
  size_t all = haul_region_length(copy->from);
  copy->length = copy->from_offset < all ? all - (size_t)copy->from_offset : 0;
  return true;
}

static PyObject *region_copy_from(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"source", "offset", "source_offset", "length", "timeout", NULL};
  struct object *to = (struct object *)self;
  PyObject *source, *length = Py_None, *timeout = Py_None;
  unsigned long long to_offset = 0, from_offset = 0;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!|$KKOO", names, haulpy.region, &source,
                                   &to_offset, &from_offset, &length, &timeout) ||
      !deadline_from(timeout, to->node->timeout, &until) ||
      !region_must_be_writable((struct region *)self, "copy_from"))
    return NULL;
  struct copy *copy = job_new(sizeof *copy, to, "copy_from", run_copy, NULL);
  if (!copy)
    return NULL;
  copy->to_offset = to_offset;
  copy->from_offset = from_offset;
  copy->until = until;
  copy->from = object_enter((struct object *)source, "copy_from");
  if (copy->from)
    copy->job.used[1] = (struct object *)Py_NewRef(source);
  if (!copy->from || !copy_length(copy, length)) {
    job_drop(&copy->job);
    return NULL;
  }
  if (job_run(&copy->job) != 0)
    return NULL;
  job_free(&copy->job);
  Py_RETURN_NONE;
}

static PyObject *repr(PyObject *self) {
  struct object *region = (struct object *)self;
  char place[32];
  if (region->closed || region->node->base.closed)
    return PyUnicode_FromString("<haul.Region, closed>");
  return PyUnicode_FromFormat(
      "<haul.Region of %zu bytes at %s>", haul_region_length(region->handle),
      haul_place_format(haul_region_place(region->handle), place, sizeof place));
}

static PyObject *get_length(void *handle) {
  return PyLong_FromSize_t(haul_region_length(handle));
}
GETTER(length);

static PyObject *get_address(void *handle) {
  return PyLong_FromVoidPtr(haul_region_address(handle));
}
GETTER(address);

static PyObject *get_place(void *handle) {
  return place_text(haul_region_place(handle));
}
GETTER(place);

PyTypeObject *region_type(void) {
  static PyMethodDef methods[] = {
      {"tensor", METHOD_WITH_KEYWORDS(region_tensor),
       "tensor(dtype, shape, strides=None, *, offset=0): a part of the region as a tensor."},
      {"bytes", region_bytes, METH_NOARGS, "All bytes as a memoryview, whatever the layout."},
      {"export", METHOD_WITH_KEYWORDS(region_export),
       "export(layout=None, rights=READ): a ticket and a descriptor for import_ in another "
       "process. "
       "The caller closes the descriptor."},
      {"ticket", METHOD_WITH_KEYWORDS(region_ticket),
       "ticket(layout=None, rights=READ): a further ticket, for a process that imported an earlier "
       "one of the same rights with its descriptor."},
      {"publish", METHOD_WITH_KEYWORDS(region_publish),
       "publish(name, rights=READ, *, to={}): let peers look it up; with a dict of identities and "
       "rights, only these peers."},
      {"unpublish", region_unpublish, METH_VARARGS, "unpublish(name): withdraw the name."},
      {"copy_from", METHOD_WITH_KEYWORDS(region_copy_from),
       "copy_from(source, *, offset=0, source_offset=0, length=None, timeout=None): copy from "
       "another region of the node, at any two places."},
      {"__array__", METHOD_WITH_KEYWORDS(buffer_array),
       "__array__(dtype=None, copy=None): a numpy array of the memory, or BufferError."},
      {"__dlpack__", METHOD_WITH_KEYWORDS(dlpack_capsule),
       "A capsule with the tensor, without a copy."},
      {"__dlpack_device__", dlpack_device, METH_NOARGS, "DLPack's type and number of the device."},
      {"close", object_method_close, METH_NOARGS,
       "Withdraw its names, cancel its transfers and release it. BufferError while a buffer or a "
       "tensor of it is in use."},
      OBJECT_METHODS,
      {NULL, NULL, 0, NULL}};
  static PyGetSetDef getters[] = {
      PROPERTY(length, "In bytes."),
      PROPERTY(address, "Its address at its place."),
      PROPERTY(place, "\"host\", \"sim:0\", \"cuda:1\"."),
      {"layout", tensor_get_layout, NULL, "The layout of its tensor; bytes by default.", NULL},
      {NULL, NULL, NULL, NULL, NULL}};
  static PyMemberDef members[] = {
      OBJECT_MEMBERS,
      MEMBER("node", T_OBJECT_EX, struct object, node, "Its node."),
      MEMBER("readonly", T_BOOL, struct region, readonly, "Whether this process can only read it."),
      {NULL, 0, 0, 0, NULL}};
  static PyType_Slot slots[] = {
      SLOT(Py_tp_dealloc, dealloc),
      SLOT(Py_tp_traverse, traverse),
      SLOT(Py_tp_repr, repr),
      SLOT(Py_bf_getbuffer, buffer_get),
      SLOT(Py_bf_releasebuffer, buffer_release),
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_members, members},
      {Py_tp_doc, "A range of bytes at a place, from Node.alloc, Node.wrap or Node.import_."},
      {0, NULL}};
  static PyType_Spec spec = {"haul.Region", sizeof(struct region), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
