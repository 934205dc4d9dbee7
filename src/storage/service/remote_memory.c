/* SPDX-License-Identifier: MIT
 * Device memory of clients as the place of file data. The region is the client buffer: the server's
 * node moves the bytes by the path that it chooses, by its NIC without a copy where this host's NIC
 * can register the memory. libhaul stages what no NIC reaches; memory that the server cannot even
 * look up passes through the bounce buffers for reads and writes of host memory. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>

#include "storage/service/remote.h"

#define RETRY_NS INT64_C(1000000000) /* as libhaul's, for memory that a NIC refused */

haul_node *remote_node(struct source *source) {
  return rpc_node(remote_of(source)->rpc);
}

int remote_attach(struct source *source, haul_region *region, struct source_memory **out) {
  struct source_memory *memory = calloc(1, sizeof *memory);
  if (!memory)
    return -ENOMEM;
  client_buffer_open(&memory->buffer, remote_of(source)->rpc, region, haul_region_rights(region));
  *out = memory;
  return 0;
}

void remote_detach(struct source *source, struct source_memory *memory) {
  (void)source;
  client_buffer_close(&memory->buffer);
  free(memory);
}

/* Logs how device memory is reached whenever that changes. */
static void say(struct remote_source *remote, struct storage_note *note, const char *line) {
  pthread_mutex_lock(&remote->note_lock);
  bool changed = storage_note_changes(note, line);
  pthread_mutex_unlock(&remote->note_lock);
  if (changed && remote->log)
    remote->log(remote->user, LOG_INFO, line);
}

static const char *why_staged(const struct haul_report *report) {
  for (size_t i = 0; i < report->path_count; i++)
    if (strcmp(report->paths[i].name, "rdma") == 0 && *report->paths[i].reason)
      return report->paths[i].reason;
  return "rdma is not used";
}

/* Returns whether this host staged the bytes, by the server's report. */
static bool say_report(struct remote_source *remote, const struct haul_report *report) {
  const struct haul_path *path = report->paths;
  char line[sizeof remote->reports.line];
  if (path->zero_copy)
    snprintf(line, sizeof line, "device memory is reached without a copy: %s, %s", path->name,
             path->detail);
  else
    snprintf(line, sizeof line, "device memory is staged (%s, %s): the server reports: %s",
             path->name, path->detail, why_staged(report));
  say(remote, &remote->reports, line);
  return !path->zero_copy;
}

/* The server has room for some regions alone: the first are those without which nothing moves. */
static int announce_bounce(struct remote_source *remote, uint64_t generation) {
  int status = client_buffer_announce(&remote->in.buffer, generation);
  return status ? status : client_buffer_announce(&remote->out.buffer, generation);
}

static ssize_t move_direct(struct remote_source *remote, const struct remote_open_file *file,
                           struct source_memory *memory, struct source_move *move) {
  struct io_summary summary;
  struct buffer_io io = {.operation = move->write ? PROTOCOL_WRITE : PROTOCOL_READ,
                         .generation = file->generation,
                         .file = file->handle,
                         .offset = move->offset,
                         .at = move->at,
                         .length = move->length,
                         .flags = protocol_write_flags(move->flags),
                         .summary = &summary};
  struct rpc_call *call;
  bool in_use; /* withdrawing ends that */
  ssize_t moved = announce_bounce(remote, file->generation);
  if (moved == 0)
    moved = client_buffer_start(&memory->buffer, &io, &call);
  if (moved)
    return moved;
  move->registered = io.registered;
  move->found = !io.registered;
  moved = client_buffer_wait(&memory->buffer, &io, call, NULL, NULL, &in_use);
  if (moved < 0) /* data of a canceled transfer may still be on its way */
    client_buffer_withdraw(&memory->buffer);
  if (moved > 0)
    move->staged = say_report(remote, &summary.report);
  return moved;
}

/* The server's node cannot look the region up, or has no path to it. No byte of the file has
 * changed. */
static bool is_refusal(ssize_t status) {
  return status == -ENFILE || status == -ENOMEM || status == -ENXIO || status == -EREMOTEIO;
}

ssize_t remote_move(struct source *source, struct source_file *file, struct source_memory *memory,
                    struct source_move *move) {
  struct remote_source *remote = remote_of(source);
  char line[128];
  if (move->write && remote->read_only)
    return -EROFS;
  if (haul_deadline_in(0) >= atomic_load(&memory->retry_at)) {
    ssize_t moved = move_direct(remote, open_of(file), memory, move);
    if (!is_refusal(moved))
      return moved;
    atomic_store(&memory->retry_at, haul_deadline_in(RETRY_NS));
    snprintf(line, sizeof line, "device memory is staged: the server cannot use it: %s",
             strerror((int)-moved));
    say(remote, &remote->refusals, line);
  }
  move->staged = true;
  move->registered = move->found = false;
  return remote_move_staged(remote, open_of(file), memory->buffer.region, move);
}
