/* SPDX-License-Identifier: MIT
 * Messages between the two sides of a comm. Both run this plugin, with the same byte order.
 * Malformed messages, and messages from another peer than the comm's, are dropped. */
#include <string.h>

#include "plugin.h"

#define TAG     UINT64_C(0x4e43434c68617531) /* "NCCLhau1" */
#define VERSION 1

enum type { HELLO = 1, MEMORY, FORGET, POST, DONE, BYE };

struct head {
  uint64_t tag;
  uint32_t version, type;
  uint64_t comm; /* id at the destination; 0 in HELLO */
};

struct hello {
  struct head head;
  uint64_t from;
  uint8_t secret[16];
};

struct memory_message { /* and FORGET */
  struct head head;
  uint64_t id;
  char name[NAME_ROOM];
};

struct post_entry {
  uint64_t memory, offset, size;
  int32_t tag;
  uint32_t eager;
};

struct post {
  struct head head;
  uint64_t from, sequence;
  uint32_t slot, count;
  struct post_entry entries[GROUP_MAX];
};

struct done {
  struct head head;
  struct message_done done;
  uint8_t bytes[EAGER_MAX];
};

static struct head head_for(const struct comm *comm, enum type type) {
  return (struct head){TAG, VERSION, type, comm->other};
}

static haul_peer *peer_of(const struct comm *comm) {
  return comm->sends ? comm->route->messages : comm->messages;
}

static int send_message(struct comm *comm, const void *bytes, size_t length) {
  int code = haul_message_send(peer_of(comm), TAG, bytes, length, HAUL_NO_WAIT);
  return code == HAUL_ETIMEDOUT ? 1 : code;
}

int message_hello(struct comm *comm) {
  struct hello hello = {.head = head_for(comm, HELLO), .from = comm->id};
  memcpy(hello.secret, comm->secret, sizeof hello.secret);
  return send_message(comm, &hello, sizeof hello);
}

int message_memory(struct comm *comm, const struct memory *memory) {
  struct memory_message message = {.head = head_for(comm, MEMORY), .id = memory->id};
  memcpy(message.name, memory->name, sizeof message.name);
  return send_message(comm, &message, sizeof message);
}

int message_forget(struct comm *comm, uint64_t memory) {
  const struct memory_message message = {.head = head_for(comm, FORGET), .id = memory};
  return send_message(comm, &message, sizeof message);
}

int message_post(struct comm *comm, const struct group *group, uint64_t self) {
  struct post post = {.head = head_for(comm, POST),
                      .from = self,
                      .sequence = group->sequence,
                      .slot = group->slot,
                      .count = group->count};
  for (unsigned i = 0; i < group->count; i++) {
    const struct entry *entry = &group->entries[i];
    post.entries[i] =
        (struct post_entry){entry->memory, entry->offset, entry->size, entry->tag, entry->eager};
  }
  return send_message(comm, &post,
                      offsetof(struct post, entries) + group->count * sizeof post.entries[0]);
}

int message_done(struct comm *comm, const struct message_done *done, const void *bytes) {
  struct done message = {.head = head_for(comm, DONE), .done = *done};
  size_t length = bytes ? done->size : 0;
  if (length > 0)
    memcpy(message.bytes, bytes, length);
  return send_message(comm, &message, offsetof(struct done, bytes) + length);
}

int message_bye(struct comm *comm) {
  const struct head head = head_for(comm, BYE);
  return send_message(comm, &head, sizeof head);
}

/* With plugin.lock. */
static struct listener *listener_of(const uint8_t secret[16]) {
  list_each(item, &plugin.listeners) {
    struct listener *listener = list_entry(item, struct listener, link);
    if (memcmp(listener->secret, secret, sizeof listener->secret) == 0)
      return listener;
  }
  return NULL;
}

static bool is_listening(const uint8_t secret[16]) {
  pthread_mutex_lock(&plugin.lock);
  bool found = listener_of(secret);
  pthread_mutex_unlock(&plugin.lock);
  return found;
}

/* A peer without a listener's secret gets no comm. */
static void on_hello(const struct haul_message *message) {
  const struct hello *hello = message->bytes;
  if (message->length != sizeof *hello || !is_listening(hello->secret))
    return;
  struct comm *comm = comm_new(false);
  if (!comm)
    return;
  comm->other = hello->from;
  comm->messages = haul_peer_retain(message->peer);
  comm->state = COMM_READY;
  pthread_mutex_lock(&plugin.lock);
  struct listener *listener = listener_of(hello->secret);
  if (listener)
    list_append(&listener->waiting, &comm->waiting);
  pthread_mutex_unlock(&plugin.lock);
  if (!listener)
    comm_close(comm);
}

static bool is_name(const char name[NAME_ROOM]) {
  return name[0] && memchr(name, 0, NAME_ROOM);
}

static void on_post_message(struct comm *comm, const struct post *post, size_t length) {
  struct group group = {.sequence = post->sequence, .slot = post->slot, .count = post->count};
  if (post->count == 0 || post->count > GROUP_MAX || post->slot >= GROUPS_MAX ||
      length != offsetof(struct post, entries) + post->count * sizeof post->entries[0])
    return;
  for (unsigned i = 0; i < post->count; i++) {
    const struct post_entry *entry = &post->entries[i];
    group.entries[i] = (struct entry){.memory = entry->memory,
                                      .offset = entry->offset,
                                      .size = entry->size,
                                      .tag = entry->tag,
                                      .eager = entry->eager != 0};
  }
  comm->other = post->from;
  on_post(comm, &group);
}

static void to_sender(struct comm *comm, const struct head *head, size_t length) {
  const void *bytes = head;
  const struct memory_message *memory = bytes;
  if (head->type == POST && length >= offsetof(struct post, entries))
    on_post_message(comm, bytes, length);
  else if (head->type == MEMORY && length == sizeof *memory && is_name(memory->name))
    on_memory(comm, memory->id, memory->name);
  else if (head->type == FORGET && length == sizeof *memory)
    on_forget(comm, memory->id);
}

static void to_receiver(struct comm *comm, const struct head *head, size_t length) {
  const struct done *done = (const void *)head;
  if (head->type == DONE && length >= offsetof(struct done, bytes) && length <= sizeof *done)
    on_done(comm, &done->done, done->bytes, length - offsetof(struct done, bytes));
}

static void dispatch(const struct haul_message *message) {
  const struct head *head = message->bytes;
  if (message->tag != TAG || message->length < sizeof *head || head->tag != TAG ||
      head->version != VERSION)
    return;
  if (head->type == HELLO) {
    on_hello(message);
    return;
  }
  struct comm *comm = comm_find(head->comm);
  if (!comm)
    return;
  if (comm->state == COMM_READY && peer_of(comm) == message->peer) {
    if (head->type == BYE)
      comm_fail(comm, NCCL_REMOTE_ERROR);
    else if (comm->sends)
      to_sender(comm, head, message->length);
    else
      to_receiver(comm, head, message->length);
  }
  pthread_mutex_unlock(&comm->lock);
}

static bool comm_uses(const struct comm *comm, const haul_peer *peer) {
  if (comm->state != COMM_READY)
    return false;
  return comm->sends ? comm->route->messages == peer || comm->route->bytes == peer
                     : comm->messages == peer;
}

static void on_peer_left(const haul_peer *peer) {
  bool warned = false;
  pthread_mutex_lock(&plugin.lock);
  list_each(item, &plugin.comms) {
    struct comm *comm = list_entry(item, struct comm, link);
    pthread_mutex_lock(&comm->lock);
    if (comm_uses(comm, peer) && !comm->failed) {
      if (!warned)
        WARN("NET/haul: peer %s disconnected: its connections fail", haul_peer_name(peer));
      warned = true;
      comm_fail(comm, NCCL_REMOTE_ERROR);
    }
    pthread_mutex_unlock(&comm->lock);
  }
  pthread_mutex_unlock(&plugin.lock);
}

#define BATCH 64 /* messages per call */

void messages_pump(void) {
  struct haul_message message;
  if (pthread_mutex_trylock(&plugin.pumping) != 0)
    return;
  atomic_store_explicit(&plugin.polled, true, memory_order_relaxed);
  haul_node_progress(plugin.node, HAUL_NO_WAIT);
  for (unsigned i = 0; i < BATCH; i++) {
    if (haul_message_receive(plugin.node, &message, HAUL_NO_WAIT) != 0)
      break;
    if (message.kind == HAUL_MESSAGE)
      dispatch(&message);
    else if (message.kind == HAUL_PEER_LEFT)
      on_peer_left(message.peer);
    haul_message_release(&message);
  }
  pthread_mutex_unlock(&plugin.pumping);
}
