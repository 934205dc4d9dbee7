/* SPDX-License-Identifier: MIT
 * Oracles on a node as a whole: its log, its figures, the ends of its connections, and leaks. */
#include <haul/log.h>
#include <haul/stats.h>
#include <string.h>

#include "calls.h"
#include "cards.h"
#include "operations.h"

#define LOOK_EVERY (50 * MS)

/* What the library keeps for the next node: a long queue of core/deferred_close.c, the page of
 * core/fork.c. */
#define LEFT_BLOCKS   1
#define LEFT_MAPPINGS 1

/* A call said that the peer left, so the connection has to end. */
static void check_said(const struct link *link, const struct process *process) {
  int64_t paused = process->frozen_for - link->epeer_frozen;
  if (link->epeer_at && !process->frozen &&
      sim_now - link->epeer_at - paused > plan.liveness + 1 * S)
    sim_fail("codes",
             "a call of program %u ended with peer-gone, and program %u is still connected",
             link->from->number, link->to->number);
}

/* A program that died, or closed its node, is noticed, also if nothing is sent to it. */
static void check_gone(struct link *link, const struct process *process) {
  bool gone = link->life && (link->to->life != link->life || !link->to->process);
  if (!gone || process->frozen || plan.caller_progress)
    return;
  if (!link->gone_at) {
    link->gone_at = sim_now;
    link->gone_frozen = process->frozen_for;
  }
  if (sim_now - link->gone_at - (process->frozen_for - link->gone_frozen) > GONE_LIMIT)
    sim_fail("silence", "program %u is still connected to a life of program %u that has ended",
             link->from->number, link->to->number);
}

static void look_at(struct link *link) {
  const struct process *process = link->from->process;
  if (!process || !link->peer)
    return;
  if (!peer_has_ended(link->peer)) {
    check_said(link, process);
    check_gone(link, process);
  } else if (!link->down_at) {
    link->down_at = sim_now;
    link->down_frozen = process->frozen_for;
    if (process->frozen)
      link->down_frozen -= sim_now - process->frozen_at;
  }
}

static struct event look;

static void on_look(struct event *event) {
  for (unsigned i = 0; i < plan.programs; i++)
    for (unsigned j = 0; j < plan.programs; j++)
      look_at(&load.programs[i].links[j]);
  event_schedule(event, sim_now + LOOK_EVERY, on_look);
}

void watch_start(void) {
  event_schedule(&look, sim_now + LOOK_EVERY, on_look);
}

/* All nodes speak the protocol. */
static void on_line(void *user, const struct haul_log_line *line) {
  const struct program *program = user;
  const char *reason = "";
  for (size_t i = 0; i < line->count; i++)
    if (strcmp(line->fields[i].key, "reason") == 0)
      reason = line->fields[i].value;
  sim_trace("log: %s: %s", line->event, reason);
  if (strcmp(line->event, "dropped") == 0)
    sim_fail("log", "program %u drops a peer that broke the protocol: %s", program->number, reason);
}

void watch_log(struct program *program) {
  haul_log_set(HAUL_LOG_WARNING, on_line, program);
}

static void check_totals(struct program *program, const struct haul_node_stats *stats,
                         uint64_t written, uint64_t read) {
  uint64_t out = 0, in = 0;
  for (unsigned i = 0; i < HAUL_STATS_PATHS; i++) {
    out += stats->paths[i].bytes_out;
    in += stats->paths[i].bytes_in;
  }
  if (out < written || in < read)
    sim_fail("figures", "%llu bytes written and %llu read, at least %llu and %llu were",
             (unsigned long long)out, (unsigned long long)in, (unsigned long long)written,
             (unsigned long long)read);
  if (out < program->seen_out || in < program->seen_in)
    sim_fail("figures", "the bytes written and read have become fewer");
  program->seen_out = out;
  program->seen_in = in;
}

void check_stats(struct program *program) {
  struct haul_node_stats stats;
  struct haul_peer_stats peers[64];
  size_t count = 64;
  uint64_t written = program->written, read = program->read;
  if (haul_node_stats(program->node, &stats, peers, &count) != 0)
    sim_fail("figures", "haul_node_stats: %s", haul_error_last()->text);
  if (stats.peers != count)
    sim_fail("figures", "%u peers are counted, and %zu listed", stats.peers, count);
  /* What is withdrawn at the end is not published again. */
  bool serves = program->region && !program->withdrawing && load.phase != STOPPING;
  if (serves && (stats.published < 1 || stats.published > 1 + program->offering))
    sim_fail("figures", "%u regions are published", stats.published);
  if (stats.failed > stats.posted)
    sim_fail("figures", "%llu of %llu transfers failed", (unsigned long long)stats.failed,
             (unsigned long long)stats.posted);
  check_totals(program, &stats, written, read);
}

static void check_messages(const struct program *program, const struct link *from) {
  if (from->closed_connection == 0)
    return;
  const struct inbox *inboxes = program->inboxes[from->from->number];
  uint64_t came = 0;
  for (unsigned i = 0; i < INBOXES; i++)
    if (inboxes[i].connection == from->closed_connection)
      came = inboxes[i].sequence;
  if (came < from->closed_sequence)
    sim_fail("messages", "%llu of %llu messages came from program %u before it closed",
             (unsigned long long)came, (unsigned long long)from->closed_sequence,
             from->from->number);
}

/* `descriptors`: of the node without peers. Later it opens one for its validity page, and two for
 * each NIC. Pooled memory has others. */
void check_settled(struct program *program, size_t descriptors) {
  struct haul_node_stats stats;
  size_t none = 0;
  haul_node_stats(program->node, &stats, NULL, &none);
  if (stats.peers > 0)
    sim_fail("leaks", "%u peers are connected after all have closed", stats.peers);
  if (stats.transfers > 0)
    sim_fail("leaks", "%u transfers are left", stats.transfers);
  /* Without a thread foreign descriptors wait for the next one (core/deferred_close.h). */
  size_t open = program->process->descriptor_count, waiting = program->process->refused_threads;
  if (plan.pool == SIZE_MAX && open > descriptors + 1 + (size_t)cards.per_host * 2 + waiting)
    sim_fail("leaks", "%zu descriptors are open without a peer, %zu at the start", open,
             descriptors);
  for (unsigned i = 0; i < plan.programs; i++)
    if (i != program->number)
      check_messages(program, &load.programs[i].links[program->number]);
}

/* What the program still has once it has closed everything. */
void check_leaks(const struct program *program) {
  const struct process *process = program->process;
  files_check_closed(process);
  if (process->block_count > LEFT_BLOCKS || process->mapping_count > LEFT_MAPPINGS)
    sim_fail("leaks", "%zu blocks of %zu bytes and %zu mappings are left after the close",
             process->block_count, process->block_bytes, process->mapping_count);
  if (verbs_objects(process) > 0)
    sim_fail("leaks", "%zu objects of libibverbs are left after the close", verbs_objects(process));
  if (openssl_objects(process) > 0)
    sim_fail("leaks", "%zu objects of OpenSSL are left after the close", openssl_objects(process));
}
