/* SPDX-License-Identifier: MIT
 * Messages and peer events. */
#include "haulpy.h"

struct receiving {
  haul_node *node;
  struct haul_message message;
};

static int step_receive(void *user, haul_deadline until) {
  struct receiving *receiving = user;
  int code = haul_message_receive(receiving->node, &receiving->message, until);
  return code == HAUL_ETIMEDOUT ? STEP_AGAIN : code;
}

static const char *kind_of(int kind) {
  switch (kind) {
  case HAUL_PEER_JOINED:
    return "joined";
  case HAUL_PEER_LEFT:
    return "left";
  case HAUL_MESSAGE_OFFER: /* refused by the release */
    return "offer";
  default:
    return "message";
  }
}

struct sender {
  struct node *node;
  haul_peer *peer;
};

static PyObject *sender_item(void *given) {
  const struct sender *sender = given;
  return peer_object(sender->node, haul_peer_retain(sender->peer));
}

static PyObject *message_object(struct node *node, struct haul_message *message) {
  struct sender sender = {node, message->peer};
  PyObject *made =
      data_make("Message", Py_BuildValue("(sO&Ky#)", kind_of(message->kind), sender_item,
                                         (void *)&sender, (unsigned long long)message->tag,
                                         message->length && message->bytes ? message->bytes : "",
                                         (Py_ssize_t)(message->bytes ? message->length : 0)));
  haul_message_release(message);
  return made;
}

static PyObject *receive_until(struct node *node, haul_deadline until, uint64_t *tag) {
  struct receiving receiving = {.node = object_enter(&node->base, "receive")};
  PyObject *made = NULL;
  if (!receiving.node)
    return NULL;
  int code = wait_in_steps(&node->base, "receive", step_receive, &receiving, until);
  if (code == 0) {
    *tag = receiving.message.tag;
    made = message_object(node, &receiving.message);
  } else if (code != WAIT_RAISED) {
    raise_last();
  }
  object_leave(&node->base);
  return made;
}

PyObject *message_receive_any(PyObject *self, PyObject *args, PyObject *keywords) {
  struct node *node = (struct node *)self;
  haul_deadline until;
  uint64_t tag;
  if (!deadline_argument(args, keywords, "|$O", node->timeout, &until))
    return NULL;
  return receive_until(node, until, &tag);
}

/* Gives a message to the inbox of haul._inbox, which it makes. False with an exception. */
static bool hold(struct node *node, PyObject *message) {
  PyObject *module = PyImport_ImportModule("haul._inbox");
  PyObject *held = module ? PyObject_CallMethod(module, "hold", "OO", node, message) : NULL;
  Py_XDECREF(module);
  Py_XDECREF(held);
  return held;
}

static double seconds_until(haul_deadline until) {
  haul_deadline now = haul_deadline_in(0);
  return until == HAUL_FOREVER ? Py_HUGE_VAL : until > now ? (double)(until - now) / 1e9 : 0;
}

/* With an inbox all messages go through it, as other threads may receive them for this one. */
PyObject *message_receive(PyObject *self, PyObject *args, PyObject *keywords) {
  struct node *node = (struct node *)self;
  haul_deadline until;
  uint64_t tag = 0;
  if (!deadline_argument(args, keywords, "|$O", node->timeout, &until))
    return NULL;
  if (!node->inbox || node->inbox == Py_None) {
    PyObject *message = receive_until(node, until, &tag);
    if (!message || tag != TENSOR_TAG)
      return message;
    bool held = hold(node, message);
    Py_DECREF(message);
    if (!held)
      return NULL;
  }
  return PyObject_CallMethod(node->inbox, "receive", "Od", node, seconds_until(until));
}

struct sending {
  haul_peer *peer;
  uint64_t tag;
  Py_buffer bytes;
};

/* A message that timed out was not sent. */
static int step_send(void *user, haul_deadline until) {
  const struct sending *sending = user;
  int code = haul_message_send(sending->peer, sending->tag, sending->bytes.buf,
                               (size_t)sending->bytes.len, until);
  return code == HAUL_ETIMEDOUT ? STEP_AGAIN : code;
}

PyObject *message_send(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"data", "tag", "timeout", NULL};
  struct object *peer = (struct object *)self;
  PyObject *data = NULL, *timeout = Py_None;
  struct sending sending = {0};
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$O&O", names, &data, uint64_from,
                                   &sending.tag, &timeout) ||
      !deadline_from(timeout, peer->node->timeout, &until))
    return NULL;
  if (data && PyObject_GetBuffer(data, &sending.bytes, PyBUF_SIMPLE) != 0)
    return NULL;
  sending.peer = object_enter(peer, "send");
  int code = WAIT_RAISED;
  if (sending.peer) {
    code = wait_in_steps(peer, "send", step_send, &sending, until);
    if (code < 0)
      raise_last();
    object_leave(peer);
  }
  if (data)
    PyBuffer_Release(&sending.bytes);
  if (code)
    return NULL;
  Py_RETURN_NONE;
}
