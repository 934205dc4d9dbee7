/* SPDX-License-Identifier: MIT
 * Sends, receives and their ends. A send answers the oldest receive that has been asked for and not
 * been answered whole, so what belongs to different calls is never mixed. */
#include <string.h>

#include "plugin.h"

static struct request *free_request(struct comm *comm) {
  for (unsigned i = 0; i < comm->request_count; i++)
    if (comm->requests[i].state == REQUEST_FREE)
      return &comm->requests[i];
  return NULL;
}

/* The range's offset in the memory; false: it does not lie in it. */
static bool locate(const struct memory *memory, const void *data, size_t size, uint64_t *offset) {
  uintptr_t at = (uintptr_t)data, start = (uintptr_t)memory->address;
  *offset = at - start;
  return at >= start && *offset <= memory->size && size <= memory->size - *offset;
}

/* ---- Receiving ---- */

static bool fill_group(struct comm *comm, struct group *group, void **data, const size_t *sizes,
                       const int *tags, void **memories) {
  for (unsigned i = 0; i < group->count; i++) {
    const struct memory *memory = memories[i];
    struct entry *entry = &group->entries[i];
    *entry = (struct entry){.size = sizes[i], .data = data[i], .tag = tags[i]};
    if (sizes[i] == 0)
      continue; /* it may have no memory */
    if (!memory || memory->comm != comm || !locate(memory, data[i], sizes[i], &entry->offset))
      return false;
    entry->memory = memory->id;
    entry->eager = memory->host;
  }
  return true;
}

/* Memory that could not be told of when it was registered. */
static int tell_memories(struct comm *comm) {
  list_each(item, &comm->memories) {
    struct memory *memory = list_entry(item, struct memory, link);
    int code = memory->told ? 0 : message_memory(comm, memory);
    if (code)
      return code;
    memory->told = true;
  }
  return 0;
}

static int ask(struct comm *comm, struct request *request) {
  int code = tell_memories(comm);
  if (code == 0)
    code = message_ask(comm, request->group, comm->id);
  if (code < 0) {
    comm_fail(comm, NCCL_REMOTE_ERROR);
    return warn_of_library("cannot ask the sender");
  }
  if (code == 0) {
    comm->next_sequence++;
    request->state = REQUEST_UNDER_WAY;
  }
  return NCCL_SUCCESS;
}

static int receive(struct comm *comm, int count, void **data, const size_t *sizes, const int *tags,
                   void **memories, void **out) {
  if (comm->failed)
    return comm->failed;
  struct request *request = free_request(comm);
  if (!request)
    return NCCL_SUCCESS; /* more than was announced: later */
  *request->group = (struct group){.sequence = comm->next_sequence,
                                   .slot = (uint32_t)(request - comm->requests),
                                   .count = (unsigned)count};
  if (!fill_group(comm, request->group, data, sizes, tags, memories)) {
    WARN("NET/haul: what is to be received does not lie in the memory that it names");
    return NCCL_INVALID_ARGUMENT;
  }
  int result = ask(comm, request);
  *out = request->state == REQUEST_FREE ? NULL : request;
  return result;
}

int transfer_receive(void *of, int count, void **data, const size_t *sizes, const int *tags,
                     void **memories, void **request) {
  struct comm *comm = of;
  *request = NULL;
  if (count < 1 || count > GROUP_MAX || comm->sends)
    return NCCL_INVALID_ARGUMENT;
  messages_pump();
  pthread_mutex_lock(&comm->lock);
  int result = receive(comm, count, data, sizes, tags, memories, request);
  pthread_mutex_unlock(&comm->lock);
  return result;
}

static void complete(struct request *request, int result) {
  request->state = REQUEST_DONE;
  request->result = result;
}

static bool uses(const struct request *request, uint64_t memory) {
  const struct group *group = request->group;
  for (unsigned i = 0; request->state == REQUEST_UNDER_WAY && i < group->count; i++)
    if (!group->entries[i].used && group->entries[i].memory == memory)
      return true;
  return false;
}

void transfer_forget(struct comm *comm, uint64_t memory) {
  for (unsigned i = 0; i < comm->request_count && !comm->sends; i++)
    if (uses(&comm->requests[i], memory)) {
      complete(&comm->requests[i], NCCL_INVALID_USAGE);
      comm_fail(comm, NCCL_INVALID_USAGE); /* what is sent for it is lost */
    }
}

void on_done(struct comm *comm, const struct message_done *done, const void *bytes, size_t length) {
  if (done->slot >= comm->request_count)
    return;
  struct request *request = &comm->requests[done->slot];
  struct group *group = request->group;
  if (request->state != REQUEST_UNDER_WAY || group->sequence != done->sequence ||
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

/* ---- Sending ---- */

void on_ask(struct comm *comm, const struct group *group) {
  if (comm->asked_count == GROUPS_MAX) {
    WARN("NET/haul: the receiver asks for more than it may");
    comm_fail(comm, NCCL_REMOTE_ERROR);
    return;
  }
  comm->groups[(comm->asked_first + comm->asked_count++) % GROUPS_MAX] = *group;
}

static struct target *find_target(struct comm *comm, uint64_t id) {
  list_each(item, &comm->targets) {
    struct target *target = list_entry(item, struct target, link);
    if (target->id == id)
      return target;
  }
  return NULL;
}

static struct entry *match(struct comm *comm, int tag, unsigned *index) {
  struct group *group = &comm->groups[comm->asked_first];
  if (comm->asked_count == 0)
    return NULL;
  for (*index = 0; *index < group->count; ++*index) {
    struct entry *entry = &group->entries[*index];
    if (!entry->used && entry->tag == tag)
      return entry;
  }
  return NULL;
}

static void answer_entry(struct comm *comm, struct entry *entry) {
  struct group *group = &comm->groups[comm->asked_first];
  entry->used = true;
  if (++group->used < group->count)
    return;
  comm->asked_first = (comm->asked_first + 1) % GROUPS_MAX;
  comm->asked_count--;
}

static int tell(struct request *request, const void *bytes) {
  const struct message_done done = {.sequence = request->sequence,
                                    .size = request->size,
                                    .slot = request->slot,
                                    .index = request->index};
  int code = message_done(request->comm, &done, bytes);
  if (code == 1)
    request->state = REQUEST_UNTOLD;
  else
    complete(request, code ? NCCL_REMOTE_ERROR : NCCL_SUCCESS);
  if (code < 0) {
    if (!request->comm->closing && !request->comm->failed)
      warn_of_library("cannot tell the receiver that its bytes are there");
    comm_fail(request->comm, NCCL_REMOTE_ERROR);
  }
  return code;
}

/* Why the path that was taken before is closed; NULL: it is not, or was this one. */
static const char *fell_back(const struct comm *comm, const struct haul_report *report) {
  for (size_t i = 1; i < report->path_count; i++)
    if (strcmp(comm->path, report->paths[i].name) == 0 && !report->paths[i].open)
      return report->paths[i].reason;
  return NULL;
}

/* Which path it is, and why not another one: once for each comm, and when that changes. */
static void report_path(struct comm *comm, haul_transfer *transfer) {
  struct haul_report report = HAUL_REPORT_INIT;
  if (haul_transfer_report(transfer, &report) || report.path_count == 0)
    return;
  const struct haul_path *chosen = &report.paths[0];
  if (strcmp(comm->path, chosen->name) == 0)
    return;
  const char *why = fell_back(comm, &report);
  if (why)
    WARN("NET/haul: to %s over %s (%s), as %s is closed: %s", report.peer, chosen->name,
         chosen->detail, comm->path, why);
  else
    INFO("NET/haul: to %s over %s (%s)", report.peer, chosen->name, chosen->detail);
  for (size_t i = 1; i < report.path_count; i++)
    INFO("NET/haul:   not %s: %s", report.paths[i].name, report.paths[i].reason);
  memcpy(comm->path, chosen->name, sizeof comm->path);
}

static void has_ended(void *user, haul_transfer *transfer) {
  struct request *request = user;
  struct comm *comm = request->comm;
  int code = haul_transfer_test(transfer);
  pthread_mutex_lock(&comm->lock);
  request->transfer = NULL;
  if (code) {
    if (!comm->closing && !comm->failed)
      WARN("NET/haul: a send of %llu bytes failed: %s", (unsigned long long)request->size,
           haul_error_text(code));
    comm_fail(comm, NCCL_REMOTE_ERROR);
    complete(request, NCCL_REMOTE_ERROR);
  } else {
    report_path(comm, transfer);
    tell(request, NULL);
  }
  haul_transfer_release(transfer);
  comm->under_way--;
  pthread_cond_broadcast(&comm->quiet);
  pthread_mutex_unlock(&comm->lock);
}

/* 1: not now. */
static int move(struct comm *comm, struct request *request, const struct entry *entry,
                const struct target *target, struct memory *memory, uint64_t from) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {from, entry->offset, request->size};
  options.done = has_ended;
  options.user = request;
  request->state = REQUEST_UNDER_WAY;
  comm->under_way++;
  int code = haul_write(target->remote, memory->region, &piece, 1, &options, &request->transfer);
  if (code == 0)
    return NCCL_SUCCESS;
  comm->under_way--;
  request->transfer = NULL;
  request->state = REQUEST_FREE;
  if (code == HAUL_ELIMIT)
    return 1;
  comm_fail(comm, NCCL_REMOTE_ERROR);
  return warn_of_library("cannot send");
}

static int send_now(struct comm *comm, struct request *request, struct entry *entry,
                    const void *data, struct memory *memory) {
  uint64_t from = 0;
  if (request->size == 0 || (request->size <= EAGER_MAX && entry->eager && memory->host)) {
    int code = tell(request, request->size ? data : NULL);
    if (code == 1)
      request->state = REQUEST_FREE; /* the bytes have to go with it */
    return code < 0 ? warn_of_library("cannot send") : code;
  }
  const struct target *target = find_target(comm, entry->memory);
  if (!target || target->failed) {
    WARN("NET/haul: the receiver has taken back the memory that it asked to be filled");
    comm_fail(comm, NCCL_REMOTE_ERROR);
    return NCCL_REMOTE_ERROR;
  }
  if (!target->remote)
    return 1; /* it is being looked up */
  locate(memory, data, request->size, &from);
  return move(comm, request, entry, target, memory, from);
}

static int send(struct comm *comm, void *data, size_t size, int tag, struct memory *memory,
                void **out) {
  unsigned index = 0;
  uint64_t offset;
  if (comm->failed)
    return comm->failed;
  struct entry *entry = match(comm, tag, &index);
  struct request *request = free_request(comm);
  if (!entry || !request)
    return NCCL_SUCCESS;
  if (size > 0 && (!memory || memory->comm != comm || !locate(memory, data, size, &offset))) {
    WARN("NET/haul: what is to be sent does not lie in the memory that it names");
    return NCCL_INVALID_ARGUMENT;
  }
  if (size > entry->size) {
    WARN("NET/haul: %zu bytes are sent to a receive of %llu: do all ranks make the same calls, "
         "with the same settings?",
         size, (unsigned long long)entry->size);
    return NCCL_INVALID_USAGE;
  }
  request->size = size;
  request->sequence = comm->groups[comm->asked_first].sequence;
  request->slot = comm->groups[comm->asked_first].slot;
  request->index = index;
  int result = send_now(comm, request, entry, data, memory);
  if (result == 1)
    return NCCL_SUCCESS;
  if (result == NCCL_SUCCESS) {
    answer_entry(comm, entry);
    *out = request;
  } else {
    request->state = REQUEST_FREE;
  }
  return result;
}

int transfer_send(void *of, void *data, size_t size, int tag, void *memory, void **request) {
  struct comm *comm = of;
  *request = NULL;
  if (!comm->sends)
    return NCCL_INVALID_ARGUMENT;
  messages_pump();
  pthread_mutex_lock(&comm->lock);
  int result = send(comm, data, size, tag, memory, request);
  pthread_mutex_unlock(&comm->lock);
  return result;
}

/* ---- Ends ---- */

static void give_sizes(const struct request *request, int *sizes) {
  if (!sizes)
    return;
  if (request->comm->sends)
    sizes[0] = (int)request->size;
  for (unsigned i = 0; !request->comm->sends && i < request->group->count; i++)
    sizes[i] = (int)request->group->entries[i].moved;
}

int transfer_test(void *of, int *done, int *sizes) {
  struct request *request = of;
  struct comm *comm = request->comm;
  int result = NCCL_SUCCESS;
  *done = 0;
  messages_pump();
  pthread_mutex_lock(&comm->lock);
  if (request->state == REQUEST_UNTOLD)
    tell(request, NULL);
  if (request->state == REQUEST_DONE) {
    result = request->result;
    *done = result == NCCL_SUCCESS;
    if (*done)
      give_sizes(request, sizes);
    request->state = REQUEST_FREE;
  } else if (request->state == REQUEST_FREE) {
    result = NCCL_INVALID_USAGE;
  } else if (comm->failed) {
    result = comm->failed; /* it ends with its comm */
  }
  pthread_mutex_unlock(&comm->lock);
  return result;
}
