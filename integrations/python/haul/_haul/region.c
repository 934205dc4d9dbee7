/* SPDX-License-Identifier: MIT
 * Region: a range of bytes at a place, and a tensor if it has a layout. */
#include <sys/stat.h>
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
  if (region->from_file)
    return "use memory, and write the file from it";
  return region->wrapped ? "wrap a writable object" : "export it with WRITE too";
}

static const char *origin_of(const struct region *region) {
  if (region->from_file)
    return "wrapped file";
  return region->wrapped ? "wrapped memory" : "imported memory";
}

bool region_must_be_writable(const struct region *region, const char *call) {
  if (region->readonly)
    raise_own(HAUL_EACCESS, call, origin_of(region), "the memory is read-only",
              region_writable_hint(region));
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
  PyObject *dtype, *shape, *strides = Py_None;
  uint64_t offset = 0;
  size_t length;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O$O&", names, &dtype, &shape, &strides,
                                   uint64_from, &offset) ||
      !layout_dtype(dtype, &layout) || !layout_shape(shape, strides, &layout))
    return NULL;
  layout.offset = offset;
  if (!length_of(region, "tensor", &length) || !layout_check(&layout, length))
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
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO&", names, &given, uint32_from, &rights))
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
    if (!grants[*count].who || !uint32_from(what, &grants[*count].rights))
      return false;
    *rights |= grants[*count].rights;
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
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|O&$O", names, &name, uint32_from, &rights,
                                   &to) ||
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
  uint64_t to_offset = 0, from_offset = 0;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!|$O&O&OO", names, haulpy.region, &source,
                                   uint64_from, &to_offset, uint64_from, &from_offset, &length,
                                   &timeout) ||
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

/* The rest of the file from `offset` on. False with an exception. */
static bool rest_of_file(int descriptor, uint64_t offset, size_t *length) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    return false;
  }
  uint64_t size = status.st_size > 0 ? (uint64_t)status.st_size : 0;
  *length = offset < size ? (size_t)(size - offset) : 0;
  return true;
}

PyObject *node_wrap_file(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"file", "offset", "length", NULL};
  struct node *node = (struct node *)self;
  PyObject *file, *given = Py_None;
  uint64_t offset = 0;
  haul_region *region;
  size_t length;
  int code;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O&O", names, &file, uint64_from, &offset,
                                   &given))
    return NULL;
  int descriptor = PyObject_AsFileDescriptor(file);
  if (descriptor < 0)
    return NULL;
  if (given != Py_None)
    length = PyLong_AsSize_t(given);
  else if (!rest_of_file(descriptor, offset, &length))
    return NULL;
  haul_node *handle = PyErr_Occurred() ? NULL : object_enter(&node->base, "wrap_file");
  if (!handle)
    return NULL;
  WITHOUT_GIL(code = haul_region_wrap_file(handle, descriptor, offset, length, &region));
  PyObject *made = code ? raise_last() : region_object(node, region, NULL, NULL, true);
  if (made)
    ((struct region *)made)->from_file = true;
  object_leave(&node->base);
  return made;
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

static PyMethodDef methods[] = {
    {"tensor", METHOD_WITH_KEYWORDS(region_tensor),
     DOC("tensor($self, dtype, shape, strides=None, *, offset=0)",
         "Give a part of the region a type and a shape.\n"
         "\n"
         "dtype    \"float32\", \"bfloat16\", numpy.float32, torch.float32, "
         "\"dlpack:TYPE:BITS:LANES\"\n"
         "shape    at most 8 numbers of elements\n"
         "strides  in elements; None: dense, in C order\n"
         "offset   of the first element, in bytes from the region's start\n"
         "\n"
         "Returns a Tensor. Does not wait. Raises ValueError for an unknown type, and for "
         "elements\n"
         "beyond the region.")},
    {"bytes", region_bytes, METH_NOARGS,
     DOC("bytes($self, /)", "Return all bytes as a memoryview, whatever the layout. Does not wait. "
                            "Raises BufferError\n"
                            "for device memory; Closed.")},
    {"export", METHOD_WITH_KEYWORDS(region_export),
     DOC("export($self, layout=None, rights=1)",
         "Make a ticket for Node.import_ in another process of this host.\n"
         "\n"
         "layout  a Layout for the importer; None: the region's, if it has one\n"
         "rights  of the importer: READ, or READ | WRITE\n"
         "\n"
         "Returns (ticket, descriptor); the caller closes the descriptor. Does not wait. Raises\n"
         "NotSupported (private, wrapped or imported memory), Invalid, Stale, LimitReached.")},
    {"ticket", METHOD_WITH_KEYWORDS(region_ticket),
     DOC("ticket($self, layout=None, rights=1)",
         "Make a further ticket, for a process that imported an earlier one of the same rights "
         "with\n"
         "its descriptor.\n"
         "\n"
         "layout  as of export\n"
         "rights  as of export\n"
         "\n"
         "Returns the ticket, bytes. Does not wait. Raises as export.")},
    {"publish", METHOD_WITH_KEYWORDS(region_publish),
     DOC("publish($self, name, rights=1, *, to=None)",
         "Let peers look the region up.\n"
         "\n"
         "name    1 to 255 printable ASCII characters without blanks\n"
         "rights  of peers: READ, WRITE or both\n"
         "to      a dict of rights by identity (Peer.identity, or \"*\": every peer), instead of\n"
         "        `rights` for every peer\n"
         "\n"
         "Does not wait. Raises NameInUse, AccessDenied (WRITE of read-only memory), LimitReached\n"
         "(max_regions), Invalid, Stale.")},
    {"unpublish", region_unpublish, METH_VARARGS,
     DOC("unpublish($self, name, /)",
         "Withdraw a name: remotes of it fail with Stale from now on.\n"
         "\n"
         "name  as published\n"
         "\n"
         "Blocks until peers have ended their copies, at most the liveness. Raises NoSuchName.")},
    {"copy_from", METHOD_WITH_KEYWORDS(region_copy_from),
     DOC("copy_from($self, source, *, offset=0, source_offset=0, length=None, timeout=None)",
         "Copy from another region of the same node, at any two places.\n"
         "\n"
         "source         a Region\n"
         "offset         in this region, in bytes\n"
         "source_offset  in the source, in bytes\n"
         "length         in bytes; None: the rest of the source\n"
         "timeout        in seconds; None: the node's\n"
         "\n"
         "Blocks until the bytes are in place. Raises TimedOut (undefined contents), OutOfRange,\n"
         "AccessDenied (read-only), Invalid (the ranges overlap), Stale, NotSupported.")},
    BUFFER_METHODS,
    OBJECT_CLOSE("Withdraw its names, cancel its transfers and release it.\n\n"
                 "Blocks until peers have ended their copies, at most the liveness. Raises "
                 "BufferError while\n"
                 "a buffer or a tensor of it is in use."),
    OBJECT_METHODS,
    {NULL, NULL, 0, NULL}};

PyTypeObject *region_type(void) {
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
      {Py_tp_doc, "A range of bytes at a place, from Node.alloc, Node.wrap, Node.wrap_file or "
                  "Node.import_. It keeps its node."},
      {0, NULL}};
  static PyType_Spec spec = {"haul.Region", sizeof(struct region), 0, HANDLE_TYPE, slots};
  return (PyTypeObject *)PyType_FromSpec(&spec);
}
