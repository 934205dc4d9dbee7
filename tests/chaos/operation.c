/* SPDX-License-Identifier: MIT
 * Transfers of random blocks over random paths, and checks of their results. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"
#include "support/check.h"

#define IN_FLIGHT 12u
#define SEGMENTS  4u
/* An operation may end this long after its deadline: the machine may be busy, the process stopped,
 * and the clock jumps ahead meanwhile. */
#define LATENESS (SANITIZED ? 60 * S : 20 * S)

enum action { NONE, WRITE, READ, ADD };

struct operation {
  enum action action;
  unsigned owner, kind, count;
  unsigned blocks[SEGMENTS];
  uint64_t region, generations[SEGMENTS], adds_before;
  struct haul_piece pieces[SEGMENTS];
  struct haul_transfer *transfer;
  haul_deadline deadline;
};

static struct {
  struct operation operation;
  struct haul_region *bytes;
  enum memory_kind kind;
} slots[IN_FLIGHT];

static bool in_use[NODES][KINDS][BLOCKS + 1]; /* the last: the counter */
static struct haul_region *host_copy;         /* of a device's bytes */
static size_t room;

void operations_open(void) {
  struct haul_place host = {HAUL_HOST, 0};
  size_t largest = 0;
  for (unsigned i = 0; i < BLOCKS; i++)
    largest = block_size(i) > largest ? block_size(i) : largest;
  room = SEGMENTS * (largest + 64);
  memset(in_use, 0, sizeof in_use);
  for (unsigned i = 0; i < IN_FLIGHT; i++) {
    slots[i].kind = (enum memory_kind)(i % KINDS);
    slots[i].bytes = region_make(self.node, slots[i].kind, room);
  }
  if (haul_region_alloc(self.node, host, room, HAUL_REGION_PRIVATE, &host_copy) != 0)
    violation("haul_region_alloc: %s", haul_error_last()->text);
}

void operations_close(void) {
  for (unsigned i = 0; i < IN_FLIGHT; i++)
    region_drop(slots[i].bytes, slots[i].kind);
  haul_region_release(host_copy);
}

static struct lane *lane_of(const struct operation *operation) {
  return &self.shared->lanes[self.number][operation->owner][operation->kind];
}

static void mark(const struct operation *operation, bool used) {
  bool *blocks = in_use[operation->owner][operation->kind];
  if (operation->action == ADD)
    blocks[BLOCKS] = used;
  for (unsigned i = 0; operation->action != ADD && i < operation->count; i++)
    blocks[operation->blocks[i]] = used;
}

/* Unused blocks; for a read, known ones. */
static void pick_blocks(struct operation *operation) {
  struct lane *lane = lane_of(operation);
  uint64_t local = chance(64);
  unsigned wanted = 1 + (unsigned)chance(SEGMENTS);
  operation->count = 0;
  for (unsigned tries = 0; tries < 8 && operation->count < wanted; tries++) {
    unsigned block = (unsigned)chance(BLOCKS), n = operation->count;
    if (in_use[operation->owner][operation->kind][block])
      continue;
    if (operation->action == READ && !atomic_load(&lane->blocks[block].known))
      continue;
    in_use[operation->owner][operation->kind][block] = true;
    operation->blocks[n] = block;
    operation->generations[n] =
        atomic_load(&lane->blocks[block].generation) + (operation->action == WRITE);
    operation->pieces[n] =
        (struct haul_piece){local, block_offset(self.number, block), block_size(block)};
    local += block_size(block) + chance(16);
    operation->count++;
  }
}

static uint64_t seed_of(const struct operation *operation, unsigned i) {
  return block_seed(operation->region, self.number, operation->blocks[i],
                    operation->generations[i]);
}

/* Fills the source of a write; false when memory was refused. */
static bool fill(struct haul_region *bytes, const struct operation *operation) {
  char *at = haul_region_address(host_copy);
  bool direct = haul_region_place(bytes).kind == HAUL_HOST;
  if (direct)
    at = haul_region_address(bytes);
  for (unsigned i = 0; i < operation->count; i++)
    pattern_fill(at + operation->pieces[i].local, operation->pieces[i].length,
                 seed_of(operation, i));
  if (direct)
    return true;
  int code = haul_region_copy(bytes, 0, host_copy, 0, room, haul_deadline_in(10 * S));
  may_fail(code, "haul_region_copy");
  return code == 0;
}

static void begin_writing(const struct operation *operation) {
  struct lane *lane = lane_of(operation);
  for (unsigned i = 0; i < operation->count; i++) {
    struct block *block = &lane->blocks[operation->blocks[i]];
    atomic_store(&block->known, false);
    atomic_store(&block->generation, operation->generations[i]);
  }
}

static struct haul_transfer_options some_options(struct operation *operation) {
  static const char *const paths[] = {NULL, NULL, "map", "rdma", "tcp", "tcp"};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = paths[chance(COUNT(paths))];
  options.flags = chance(3) || operation->action == ADD ? 0 : HAUL_CHECKSUM;
  options.flags |= chance(4) ? 0 : HAUL_MORE;
  options.priority = (int)chance(3) - 1;
  options.deadline = haul_deadline_in(chance(20) ? 5 * S : (int64_t)chance(3) * MS);
  operation->deadline = options.deadline;
  return options;
}

static int start(struct operation *operation, struct haul_remote *remote,
                 struct haul_region *bytes) {
  struct haul_transfer_options options = some_options(operation);
  struct haul_transfer **transfer = &operation->transfer;
  switch (operation->action) {
  case WRITE:
    begin_writing(operation);
    return haul_write(remote, bytes, operation->pieces, operation->count, &options, transfer);
  case READ:
    return haul_read(bytes, remote, operation->pieces, operation->count, &options, transfer);
  default:
    operation->adds_before = atomic_fetch_add(&lane_of(operation)->adds_begun, 1);
    return haul_fetch_add(bytes, 0, remote, lane_offset(self.number), 1, &options, transfer);
  }
}

static void begin(struct operation *operation, struct haul_region *bytes) {
  static const enum action actions[] = {WRITE, WRITE, WRITE, READ, READ, READ, ADD};
  *operation = (struct operation){.action = actions[chance(COUNT(actions))],
                                  .owner = (unsigned)chance(NODES),
                                  .kind = (unsigned)chance(KINDS)};
  struct haul_remote *remote = link_remote(operation->owner, operation->kind);
  bool counter_used = in_use[operation->owner][operation->kind][BLOCKS];
  if (!remote || (operation->action == ADD && counter_used)) {
    operation->action = NONE;
    return;
  }
  operation->region = atomic_load(&lane_of(operation)->region);
  if (operation->action != ADD)
    pick_blocks(operation);
  int code = -1;
  bool filled = operation->action == ADD || operation->count > 0;
  if (filled && operation->action == WRITE)
    filled = fill(bytes, operation);
  if (filled) {
    code = start(operation, remote, bytes);
    may_fail(code, "to begin a transfer");
  }
  mark(operation, code == 0);
  if (code == HAUL_ESTALE)
    link_forget(operation->owner, operation->kind);
  if (code)
    operation->action = NONE;
  else
    link_hold(operation->owner);
}

static const char *bytes_of(struct haul_region *bytes) {
  if (haul_region_place(bytes).kind == HAUL_HOST)
    return haul_region_address(bytes);
  int code = haul_region_copy(host_copy, 0, bytes, 0, room, haul_deadline_in(10 * S));
  may_fail(code, "haul_region_copy");
  return code ? NULL : haul_region_address(host_copy);
}

static void check_read(const struct operation *operation, const char *bytes,
                       const struct haul_report *report) {
  for (unsigned i = 0; bytes && i < operation->count; i++) {
    const struct haul_piece *piece = &operation->pieces[i];
    size_t at;
    if (!pattern_holds(bytes + piece->local, piece->length, seed_of(operation, i), &at))
      violation(
          "a read from node %u over %s, region %u, block %u, generation %llu: wrong from byte "
          "%zu of %llu",
          operation->owner, report->paths[0].name, operation->kind, operation->blocks[i],
          (unsigned long long)operation->generations[i], at, (unsigned long long)piece->length);
  }
}

static void check_add(const struct operation *operation, struct haul_region *bytes) {
  struct lane *lane = lane_of(operation);
  const char *at = bytes_of(bytes);
  uint64_t before, done = atomic_fetch_add(&lane->adds_done, 1);
  if (!at)
    return;
  memcpy(&before, at, sizeof before);
  if (before < done || before > operation->adds_before)
    violation(
        "a counter at node %u was %llu before an addition; %llu additions were done, %llu begun",
        operation->owner, (unsigned long long)before, (unsigned long long)done,
        (unsigned long long)operation->adds_before);
}

static void on_success(const struct operation *operation, struct haul_region *bytes,
                       const struct haul_report *report) {
  struct counts *counts = &self.process->counts;
  struct lane *lane = lane_of(operation);
  atomic_fetch_add(&counts->bytes, report->bytes);
  if (operation->action == WRITE) {
    atomic_fetch_add(&counts->writes, 1);
    for (unsigned i = 0; i < operation->count; i++)
      atomic_store(&lane->blocks[operation->blocks[i]].known, true);
  } else if (operation->action == READ) {
    atomic_fetch_add(&counts->reads, 1);
    check_read(operation, bytes_of(bytes), report);
  } else {
    atomic_fetch_add(&counts->adds, 1);
    check_add(operation, bytes);
  }
}

static void end(struct operation *operation, struct haul_region *bytes, int code) {
  struct haul_report report = HAUL_REPORT_INIT;
  may_end(code, "a transfer");
  haul_transfer_report(operation->transfer, &report);
  if (code == 0)
    on_success(operation, bytes, &report);
  mark(operation, false);
  link_release(operation->owner);
  if (code == HAUL_ESTALE)
    link_forget(operation->owner, operation->kind);
  haul_transfer_release(operation->transfer);
  operation->action = NONE;
}

static void poll_operation(struct operation *operation, struct haul_region *bytes) {
  int code = haul_transfer_test(operation->transfer);
  if (code <= 0) {
    end(operation, bytes, code);
    return;
  }
  if (chance(300) == 0)
    haul_transfer_cancel(operation->transfer);
  if (skewed_now() > operation->deadline + LATENESS)
    violation("an operation on node %u has not ended %lld s after its deadline", operation->owner,
              LATENESS / S);
}

unsigned operations_step(bool may_begin) {
  unsigned count = 0;
  for (unsigned i = 0; i < IN_FLIGHT; i++) {
    struct operation *operation = &slots[i].operation;
    if (operation->action == NONE && may_begin)
      begin(operation, slots[i].bytes);
    if (operation->action != NONE)
      poll_operation(operation, slots[i].bytes);
    count += operation->action != NONE;
  }
  return count;
}

struct note {
  uint64_t from, life, number;
};

static uint64_t notes;

void message_send(void) {
  unsigned owner = (unsigned)chance(NODES);
  struct haul_peer *peer = link_peer(owner);
  struct note note = {self.number, self.life, ++notes};
  if (!peer)
    return;
  int code = haul_message_send(peer, note.number, &note, sizeof note,
                               haul_deadline_in((int64_t)chance(200) * MS));
  may_fail(code, "haul_message_send");
}

/* Over one connection, the numbers of a sender's life increase. */
static void check_note(const struct haul_message *message) {
  static struct {
    haul_peer *peer;
    struct note last;
  } seen[64];
  static unsigned next;
  struct note note;
  unsigned i = 0;
  if (message->length != sizeof note)
    violation("received a message of %zu bytes", message->length);
  memcpy(&note, message->bytes, sizeof note);
  if (note.number != message->tag || note.from >= NODES)
    violation("received a message that no node sent");
  while (i < COUNT(seen) && (seen[i].peer != message->peer || seen[i].last.from != note.from ||
                             seen[i].last.life != note.life))
    i++;
  if (i < COUNT(seen) && note.number <= seen[i].last.number)
    violation("a message of node %llu came twice or out of order: %llu after %llu",
              (unsigned long long)note.from, (unsigned long long)note.number,
              (unsigned long long)seen[i].last.number);
  if (i == COUNT(seen))
    i = next++ % COUNT(seen);
  seen[i].peer = message->peer;
  seen[i].last = note;
}

void messages_receive(void) {
  struct haul_message message;
  while (haul_message_receive(self.node, &message, HAUL_NO_WAIT) == 0) {
    check_note(&message);
    haul_message_release(&message);
    atomic_fetch_add(&self.process->counts.messages, 1);
  }
}
