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
#define SETTLES  (SANITIZED ? 200 * S : 60 * S) /* time limit of a phase */

struct self self;

void violation(const char *format, ...) {
  va_list list;
  fprintf(stderr, "FAILED  node %u, life %llu: ", self.number, (unsigned long long)self.life);
  va_start(list, format);
  vfprintf(stderr, format, list);
  va_end(list);
  fputc('\n', stderr);
  abort();
}

uint64_t chance(uint64_t below) {
  return next_random(&self.random) % below;
}

/* The effects of the injected faults, of short deadlines and of replaced regions. */
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

void may_end(int code, const char *operation) {
  if (code == 0)
    return;
  if (!is_explained(code))
    violation("%s ended with %s: %s", operation, haul_error_name(code), haul_error_last()->text);
  atomic_fetch_add(&self.process->counts.failed[-code], 1);
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

struct resources {
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

static struct resources resources_now(void) {
  return (struct resources){open_descriptors(), haul_mappings(), count_threads()};
}

static uint64_t counter(const char *name) {
  uint64_t value = 0;
  haul_counter_read(self.node, name, &value);
  return value;
}

static void check_resources(const struct resources *before) {
  struct resources now = resources_now();
  if (now.descriptors > before->descriptors || now.mappings > before->mappings ||
      now.threads > before->threads)
    violation(
        "leaked: %u descriptors instead of %u, %u mappings instead of %u, %u threads instead of %u",
        now.descriptors, before->descriptors, now.mappings, before->mappings, now.threads,
        before->threads);
}

static void open_node(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char name[32], address[160];
  snprintf(name, sizeof name, "chaos-%u", self.number);
  config.name = name;
  config.liveness_ns = LIVENESS;
  config.pool_bytes = SIZE_MAX;
  config.progress = self.life % 3 == 2 ? HAUL_PROGRESS_CALLER : HAUL_PROGRESS_THREAD;
  config.tcp_rails = 1 + (unsigned)chance(3);
  snprintf(address, sizeof address, "unix://@haul-chaos-%d-%u", (int)getppid(), self.number);
  if (haul_node_open(&config, &self.node) != 0 || haul_node_listen(self.node, address) != 0 ||
      haul_node_listen(self.node, "tcp://127.0.0.1:0") != 0)
    violation("%s: %s", haul_error_last()->call, haul_error_last()->text);
  for (size_t i = 0; i < 2; i++)
    haul_node_address(self.node, i, self.process->addresses[i], sizeof self.process->addresses[i]);
}

/* Makes what a node creates at its first use and keeps. */
static void warm_up(void) {
  struct haul_place host = {HAUL_HOST, 0};
  struct haul_piece piece = {0, 0, region_size()};
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *bytes;
  if (haul_region_alloc(self.node, host, piece.length, 0, &bytes) != 0 ||
      haul_peer_connect(self.node, self.process->addresses[0], haul_deadline_in(SETTLES), &peer) !=
          0 ||
      haul_peer_lookup(peer, "host", haul_deadline_in(SETTLES), &remote) != 0 ||
      haul_read(bytes, remote, &piece, 1, NULL, NULL) != 0)
    violation("%s: %s", haul_error_last()->call, haul_error_last()->text);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(bytes);
}

static void wait_for_no_peers(void) {
  haul_deadline until = haul_deadline_in(SETTLES);
  while (counter("node.peers") > 0) {
    haul_node_progress(self.node, haul_deadline_in(10 * MS));
    messages_receive();
    if (skewed_now() > until)
      violation("%llu peers remain after all have left", (unsigned long long)counter("node.peers"));
  }
}

static void settle(void) {
  haul_deadline until = haul_deadline_in(SETTLES);
  while (operations_step(false) > 0) {
    haul_node_progress(self.node, haul_deadline_in(10 * MS));
    messages_receive();
    if (skewed_now() > until)
      violation("operations in flight do not end");
  }
}

static void done(enum phase phase) {
  atomic_store(&self.process->phase_done, phase);
}

/* Serves the others meanwhile. */
static void wait_for(enum phase phase) {
  while (atomic_load(&self.shared->phase) < (int)phase) {
    haul_node_progress(self.node, haul_deadline_in(10 * MS));
    messages_receive();
  }
}

static void live(void) {
  while (atomic_load(&self.shared->phase) == RUN) {
    operations_step(true);
    if (chance(4) == 0)
      message_send();
    messages_receive();
    if (chance(2000) == 0)
      regions_replace();
    haul_node_progress(self.node, haul_deadline_in((int64_t)chance(2) * MS));
  }
}

int node_main(void) {
  struct node_arguments arguments;
  child_receive(3, &arguments, sizeof arguments);
  self.shared = shared_open(arguments.shared);
  self.number = arguments.number;
  self.process = &self.shared->processes[arguments.number];
  self.life = arguments.life;
  self.random = arguments.seed | 1;
  open_node();
  regions_open();
  operations_open();
  warm_up();
  wait_for_no_peers();
  struct resources before = resources_now();
  links_open();
  atomic_store(&self.process->ready, self.life);
  faults_start();
  live();
  faults_stop();
  settle();
  done(SETTLE);
  wait_for(VERIFY);
  regions_verify();
  done(VERIFY);
  wait_for(LEAVE);
  links_close();
  wait_for_no_peers();
  check_resources(&before);
  operations_close();
  regions_close();
  haul_node_close(self.node);
  done(LEAVE);
  return 0;
}
