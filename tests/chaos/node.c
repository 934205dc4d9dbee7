/* SPDX-License-Identifier: MIT */
#include "node.h"

#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/child.h"
#include "support/seams.h"

#define LIVENESS (SANITIZED ? 6 * S : 1 * S)
#define SETTLES  (SANITIZED ? 200 * S : 60 * S) /* the longest that a phase may take */

struct me me;

void violation(const char *format, ...) {
  va_list list;
  fprintf(stderr, "FAILED  node %u, life %llu: ", me.number, (unsigned long long)me.life);
  va_start(list, format);
  vfprintf(stderr, format, list);
  va_end(list);
  fputc('\n', stderr);
  abort();
}

uint64_t chance(uint64_t below) {
  return next_random(&me.random) % below;
}

/* What killed, silent and cut off peers explain, a lack of memory or descriptors, short deadlines,
 * and regions that are replaced. */
static bool is_explained(int code) {
  switch (code) {
  case HAUL_ENOMEM:
  case HAUL_ETIMEDOUT:
  case HAUL_ECANCELED:
  case HAUL_EPEER:
  case HAUL_ENAME:
  case HAUL_ESTALE:
  case HAUL_EADDRESS:
  case HAUL_ECONNECT:
  case HAUL_ENOPATH:
  case HAUL_EPATH:
  case HAUL_ELIMIT:
    return true;
  }
  return false;
}

void may_end(int code, const char *what) {
  if (code == 0)
    return;
  if (!is_explained(code))
    violation("%s ended with %s: %s", what, haul_error_name(code), haul_error_last()->text);
  atomic_fetch_add(&me.seat->tally.ended[-code], 1);
}

void may_fail(int code, const char *call) {
  const struct haul_error *error = haul_error_last();
  if (code && (error->code != code || !error->text[0] || !error->hint[0]))
    violation("%s failed with %s, and its detail is %s: \"%s\", \"%s\"", call,
              haul_error_name(code), haul_error_name(error->code), error->text, error->hint);
  if (code && !is_explained(code))
    violation("%s failed with %s: %s: %s (%s)", call, haul_error_name(code), error->object,
              error->text, error->hint);
  may_end(code, call);
}

/* ---- What there is of this process ---- */

struct holdings {
  unsigned descriptors, mappings, threads;
};

static unsigned count_threads(void) {
  unsigned count = 0;
  DIR *folder = opendir("/proc/self/task");
  if (!folder)
    abort();
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

static struct holdings holdings_now(void) {
  return (struct holdings){open_descriptors(), haul_mappings(), count_threads()};
}

static uint64_t counter(const char *name) {
  uint64_t value = 0;
  haul_counter_read(me.node, name, &value);
  return value;
}

static void check_holdings(const struct holdings *before) {
  struct holdings now = holdings_now();
  if (now.descriptors > before->descriptors || now.mappings > before->mappings ||
      now.threads > before->threads)
    violation("left over: %u descriptors of %u, %u mappings of %u, %u threads of %u",
              now.descriptors, before->descriptors, now.mappings, before->mappings, now.threads,
              before->threads);
}

/* ---- A life ---- */

static void open_node(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char name[32], address[160];
  snprintf(name, sizeof name, "chaos-%u", me.number);
  config.name = name;
  config.liveness_ns = LIVENESS;
  config.pool_bytes = SIZE_MAX;
  config.progress = me.life % 3 == 2 ? HAUL_PROGRESS_CALLER : HAUL_PROGRESS_THREAD;
  config.tcp_rails = 1 + (unsigned)chance(3);
  snprintf(address, sizeof address, "unix://@haul-chaos-%d-%u", (int)getppid(), me.number);
  if (haul_node_open(&config, &me.node) != 0 || haul_node_listen(me.node, address) != 0 ||
      haul_node_listen(me.node, "tcp://127.0.0.1:0") != 0)
    violation("%s: %s", haul_error_last()->call, haul_error_last()->text);
  for (size_t i = 0; i < 2; i++)
    haul_node_address(me.node, i, me.seat->addresses[i], sizeof me.seat->addresses[i]);
}

/* What a node makes when it is first needed, and keeps. */
static void warm_up(void) {
  struct haul_place host = {HAUL_HOST, 0};
  struct haul_piece piece = {0, 0, region_size()};
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *bytes;
  if (haul_region_alloc(me.node, host, piece.length, 0, &bytes) != 0 ||
      haul_peer_connect(me.node, me.seat->addresses[0], haul_deadline_in(SETTLES), &peer) != 0 ||
      haul_peer_lookup(peer, "host", haul_deadline_in(SETTLES), &remote) != 0 ||
      haul_read(bytes, remote, &piece, 1, NULL, NULL) != 0)
    violation("%s: %s", haul_error_last()->call, haul_error_last()->text);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(bytes);
}

static void wait_until_left(void) {
  haul_deadline until = haul_deadline_in(SETTLES);
  while (counter("node.peers") > 0) {
    haul_node_progress(me.node, haul_deadline_in(10 * MS));
    messages_take();
    if (strained_now() > until)
      violation("%llu peers are left when all have gone",
                (unsigned long long)counter("node.peers"));
  }
}

static void settle(void) {
  haul_deadline until = haul_deadline_in(SETTLES);
  while (operations_step(false) > 0) {
    haul_node_progress(me.node, haul_deadline_in(10 * MS));
    messages_take();
    if (strained_now() > until)
      violation("operations are under way that will not end");
  }
}

static void done(enum phase phase) {
  atomic_store(&me.seat->phase_done, phase);
}

/* The others go on to ask this node meanwhile. */
static void wait_for(enum phase phase) {
  while (atomic_load(&me.board->phase) < (int)phase) {
    haul_node_progress(me.node, haul_deadline_in(10 * MS));
    messages_take();
  }
}

static void live(void) {
  while (atomic_load(&me.board->phase) == RUN) {
    operations_step(true);
    if (chance(4) == 0)
      message_send();
    messages_take();
    if (chance(2000) == 0)
      own_replace();
    haul_node_progress(me.node, haul_deadline_in((int64_t)chance(2) * MS));
  }
}

int node_main(void) {
  struct brief brief;
  child_receive(3, &brief, sizeof brief);
  me.board = board_open(brief.board);
  me.number = brief.seat;
  me.seat = &me.board->seats[brief.seat];
  me.life = brief.life;
  me.random = brief.seed | 1;
  open_node();
  own_open();
  operations_open();
  warm_up();
  wait_until_left();
  struct holdings before = holdings_now();
  links_open();
  atomic_store(&me.seat->ready, me.life);
  harm_start();
  live();
  harm_stop();
  settle();
  done(SETTLE);
  wait_for(VERIFY);
  own_verify();
  done(VERIFY);
  wait_for(LEAVE);
  links_close();
  wait_until_left();
  check_holdings(&before);
  operations_close();
  own_close();
  haul_node_close(me.node);
  done(LEAVE);
  return 0;
}
