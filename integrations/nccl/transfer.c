/* SPDX-License-Identifier: MIT
 * Sends, receives and completions. A send matches only the oldest posted group that is incomplete,
 * so that data of different receive calls never mixes. */
#include <string.h>

#include "plugin.h"

static struct request *free_request(struct comm *comm) {
  for (unsigned i = 0; i < comm->request_count; i++)
    if (comm->requests[i].state == REQUEST_FREE)
      return &comm->requests[i];
  return NULL;
}

/* The offset of the range in the memory; false if it exceeds the memory. */
static bool locate(const struct memory *memory, const void *data, size_t size, uint64_t *offset) {
  uintptr_t at = (uintptr_t)data, start = (uintptr_t)memory->address;
  *offset = at - start;
  return at >= start && *offset <= memory->size && size <= memory->size - *offset;
}

static bool fill_group(struct comm *comm, struct group *group, void **data, const size_t *sizes,
                       const int *tags, void **memories) {
  for (unsigned i = 0; i < group->count; i++) {
    const struct memory *memory = memories[i];
    struct entry *entry = &group->entries[i];
    *entry = (struct entry){.size = sizes[i], .data = data[i], .tag = tags[i]};
    if (sizes[i] == 0)
      continue; /* it may come without memory */
    if (!memory || memory->comm != comm || !locate(memory, data[i], sizes[i], &entry->offset))
      return false;
    entry->memory = memory->id;
    entry->eager = memory->host;
  }
  return true;
}

/* Sends the MEMORY messages that found no room at the registration. */
static int send_memories(struct comm *comm) {
  list_each(item, &comm->memories) {
    struct memory *memory = list_entry(item, struct memory, link);
    int code = memory->sent ? 0 : message_memory(comm, memory);
    if (code)
      return code;
    memory->sent = true;
  }
  return 0;
}

static int post(struct comm *comm, struct request *request) {
  int code = send_memories(comm);
  if (code == 0)
    code = message_post(comm, request->group, comm->id);
  if (code < 0) {
    comm_fail(comm, NCCL_REMOTE_ERROR);
    return warn_library("cannot post a receive");
  }
  if (code == 0) {
    comm->next_sequence++;
    request->state = REQUEST_IN_FLIGHT;
  }
  return NCCL_SUCCESS;
}

static int receive_locked(struct comm *comm, int count, void **data, const size_t *sizes,
                          const int *tags, void **memories, void **out) {
  if (comm->failed)
    return comm->failed;
  struct request *request = free_request(comm);
  if (!request)
    return NCCL_SUCCESS; /* all are in use: NCCL retries */
  *request->group = (struct group){.sequence = comm->next_sequence,
                                   .slot = (uint32_t)(request - comm->requests),
                                   .count = (unsigned)count};
  if (!fill_group(comm, request->group, data, sizes, tags, memories)) {
    WARN("NET/haul: cannot receive: the range exceeds its registered memory");
    return NCCL_INVALID_ARGUMENT;
  }
  int result = post(comm, request);
  *out = request->state == REQUEST_FREE ? NULL : request;
  return result;
}

int transfer_receive(void *handle, int count, void **data, size_t *sizes, int *tags,
                     void **memories, void **request) {
  struct comm *comm = handle;
  *request = NULL;
  if (count < 1 || count > GROUP_MAX || comm->sends)
    return NCCL_INVALID_ARGUMENT;
  messages_pump();
  pthread_mutex_lock(&comm->lock);
  int result = receive_locked(comm, count, data, sizes, tags, memories, request);
  pthread_mutex_unlock(&comm->lock);
  return result;
}

static void complete(struct request *request, int result) {
  request->state = REQUEST_DONE;
  request->result = result;
}

static bool request_uses(const struct request *request, uint64_t memory) {
  const struct group *group = request->group;
  for (unsigned i = 0; request->state == REQUEST_IN_FLIGHT && i < group->count; i++)
    if (!group->entries[i].used && group->entries[i].memory == memory)
      return true;
  return false;
}

void transfer_forget(struct comm *comm, uint64_t memory) {
  for (unsigned i = 0; i < comm->request_count && !comm->sends; i++)
    if (request_uses(&comm->requests[i], memory)) {
      complete(&comm->requests[i], NCCL_INVALID_USAGE);
      comm_fail(comm, NCCL_INVALID_USAGE); /* the sender's data has no destination */
    }
}

void on_done(struct comm *comm, const struct message_done *done, const void *bytes, size_t length) {
  if (done->slot >= comm->request_count)
    return;
  struct request *request = &comm->requests[done->slot];
  struct group *group = request->group;
  if (request->state != REQUEST_IN_FLIGHT || group->sequence != done->sequence ||
      done->index >= group->count)
    return;
  struct entry *entry = &group->entries[done->index];
  bool fits = done->size <= entry->size && (length == 0 || (length == done->size && entry->eager));
  if (entry->used || !fits)
    return;
  if (length > 0)
    memcpy(entry->data, bytes, length);
  entry->used = true;
  entry->moved = done->size;
  if (++group->used == group->count)
    complete(request, NCCL_SUCCESS);
}

void on_post(struct comm *comm, const struct group *group) {
  if (comm->posted_count == GROUPS_MAX) {
    WARN("NET/haul: the receiver posted more than %u receives", GROUPS_MAX);
    comm_fail(comm, NCCL_REMOTE_ERROR);
    return;
  }
  comm->groups[(comm->posted_first + comm->posted_count++) % GROUPS_MAX] = *group;
}

static struct entry *match(struct comm *comm, int tag, unsigned *index) {
  struct group *group = &comm->groups[comm->posted_first];
  if (comm->posted_count == 0)
    return NULL;
  for (*index = 0; *index < group->count; ++*index) {
    struct entry *entry = &group->entries[*index];
    if (!entry->used && entry->tag == tag)
      return entry;
  }
  return NULL;
}

static void consume_entry(struct comm *comm, struct entry *entry) {
  struct group *group = &comm->groups[comm->posted_first];
  entry->used = true;
  if (++group->used < group->count)
    return;
  comm->posted_first = (comm->posted_first + 1) % GROUPS_MAX;
  comm->posted_count--;
}

static int notify_receiver(struct request *request, const void *bytes) {
  int code = message_done(request->comm, &request->done, bytes);
  if (code == 1)
    request->state = REQUEST_NOTIFY;
  else
    complete(request, code ? NCCL_REMOTE_ERROR : NCCL_SUCCESS);
  if (code < 0) {
    if (!request->comm->closing && !request->comm->failed)
      warn_library("cannot notify the receiver");
    comm_fail(request->comm, NCCL_REMOTE_ERROR);
  }
  return code;
}

/* Why the previous path is closed; NULL if it is open or still in use. */
static const char *closed_reason(const struct comm *comm, const struct haul_report *report) {
  for (size_t i = 1; i < report->path_count; i++)
    if (strcmp(comm->path, report->paths[i].name) == 0 && !report->paths[i].open)
      return report->paths[i].reason;
  return NULL;
}

/* Logs the path and why others are not used: once for each comm, and after each change. */
static void report_path(struct comm *comm, haul_transfer *transfer) {
  struct haul_report report = HAUL_REPORT_INIT;
  if (haul_transfer_report(transfer, &report) || report.path_count == 0)
    return;
  const struct haul_path *chosen = &report.paths[0];
  if (strcmp(comm->path, chosen->name) == 0)
    return;
  const char *why = closed_reason(comm, &report);
  if (why)
    WARN("NET/haul: path to %s: %s (%s), as %s is closed: %s", report.peer, chosen->name,
         chosen->detail, comm->path, why);
  else
    INFO("NET/haul: path to %s: %s (%s)", report.peer, chosen->name, chosen->detail);
  for (size_t i = 1; i < report.path_count; i++)
    INFO("NET/haul:   not %s: %s", report.paths[i].name, report.paths[i].reason);
  memcpy(comm->path, chosen->name, sizeof comm->path);
}

static void write_ended(void *user, haul_transfer *transfer) {
  struct request *request = user;
  struct comm *comm = request->comm;
  int code = haul_transfer_test(transfer);
  pthread_mutex_lock(&comm->lock);
  request->transfer = NULL;
  if (code) {
    if (!comm->closing && !comm->failed)
      WARN("NET/haul: a send of %llu bytes failed: %s", (unsigned long long)request->done.size,
           haul_error_text(code));
    comm_fail(comm, NCCL_REMOTE_ERROR);
    complete(request, NCCL_REMOTE_ERROR);
  } else {
    report_path(comm, transfer);
    notify_receiver(request, NULL);
  }
  haul_transfer_release(transfer);
  comm->in_flight--;
  pthread_cond_broadcast(&comm->idle);
  pthread_mutex_unlock(&comm->lock);
}

/* 1: retry later. */
static int start_write(struct comm *comm, struct request *request, const struct entry *entry,
                       const struct target *target, struct memory *memory, uint64_t from) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {from, entry->offset, request->done.size};
  options.done = write_ended;
  options.user = request;
  request->state = REQUEST_IN_FLIGHT;
  comm->in_flight++;
  int code = haul_write(target->remote, memory->region, &piece, 1, &options, &request->transfer);
  if (code == 0)
    return NCCL_SUCCESS;
  comm->in_flight--;
  request->transfer = NULL;
  request->state = REQUEST_FREE;
  if (code == HAUL_ELIMIT)
    return 1;
  comm_fail(comm, NCCL_REMOTE_ERROR);
  return warn_library("cannot send");
}

static int send_start(struct comm *comm, struct request *request, struct entry *entry,
                      const void *data, struct memory *memory, uint64_t from) {
  if (request->done.size == 0 ||
      (request->done.size <= EAGER_MAX && entry->eager && memory->host)) {
    int code = notify_receiver(request, request->done.size ? data : NULL);
    if (code == 1)
      request->state = REQUEST_FREE; /* NCCL retries the whole send */
    return code < 0 ? warn_library("cannot send") : code;
  }
  const struct target *target = target_find(comm, entry->memory);
  if (!target || target->failed) {
    WARN("NET/haul: cannot send: the receiver deregistered the memory of a posted receive");
    comm_fail(comm, NCCL_REMOTE_ERROR);
    return NCCL_REMOTE_ERROR;
  }
  if (!target->remote)
    return 1; /* the lookup is in progress */
  return start_write(comm, request, entry, target, memory, from);
}

static int send_locked(struct comm *comm, void *data, size_t size, int tag, struct memory *memory,
                       void **out) {
  unsigned index = 0;
  uint64_t from = 0;
  if (comm->failed)
    return comm->failed;
  struct entry *entry = match(comm, tag, &index);
  struct request *request = free_request(comm);
  if (!entry || !request)
    return NCCL_SUCCESS;
  if (size > 0 && (!memory || memory->comm != comm || !locate(memory, data, size, &from))) {
    WARN("NET/haul: cannot send: the range exceeds its registered memory");
    return NCCL_INVALID_ARGUMENT;
  }
  if (size > entry->size) {
    WARN(
        "NET/haul: cannot send %zu bytes to a receive of %llu (hint: check that all ranks make the "
        "same calls with the same settings)",
        size, (unsigned long long)entry->size);
    return NCCL_INVALID_USAGE;
  }
  const struct group *group = &comm->groups[comm->posted_first];
  request->done = (struct message_done){group->sequence, size, group->slot, index};
  int result = send_start(comm, request, entry, data, memory, from);
  if (result == 1)
    return NCCL_SUCCESS;
  if (result == NCCL_SUCCESS) {
    consume_entry(comm, entry);
    *out = request;
  } else {
    request->state = REQUEST_FREE;
  }
  return result;
}

int transfer_send(void *handle, void *data, size_t size, int tag, void *memory, void **request) {
  struct comm *comm = handle;
  *request = NULL;
  if (!comm->sends)
    return NCCL_INVALID_ARGUMENT;
  messages_pump();
  pthread_mutex_lock(&comm->lock);
  int result = send_locked(comm, data, size, tag, memory, request);
  pthread_mutex_unlock(&comm->lock);
  return result;
}

static void write_sizes(const struct request *request, int *sizes) {
  if (!sizes)
    return;
  if (request->comm->sends)
    sizes[0] = (int)request->done.size;
  for (unsigned i = 0; !request->comm->sends && i < request->group->count; i++)
    sizes[i] = (int)request->group->entries[i].moved;
}

int transfer_test(void *handle, int *done, int *sizes) {
  struct request *request = handle;
  struct comm *comm = request->comm;
  int result = NCCL_SUCCESS;
  *done = 0;
  messages_pump();
  pthread_mutex_lock(&comm->lock);
  if (request->state == REQUEST_NOTIFY)
    notify_receiver(request, NULL);
  if (request->state == REQUEST_DONE) {
    result = request->result;
    *done = result == NCCL_SUCCESS;
    if (*done)
      write_sizes(request, sizes);
    request->state = REQUEST_FREE;
  } else if (request->state == REQUEST_FREE) {
    result = NCCL_INVALID_USAGE;
  } else if (comm->failed) {
    result = comm->failed; /* the request fails with its comm */
  }
  pthread_mutex_unlock(&comm->lock);
  return result;
}
