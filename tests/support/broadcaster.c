/* SPDX-License-Identifier: MIT */
#include "support/broadcaster.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "support/check.h"
#include "support/child.h"
#include "support/owner.h"

#define NAME  "weights"
#define BOUND (100 * S)

enum kind { NODE, SOURCE, PUBLISH, WITHDRAW, JOIN, NEXT, RECEIVE, HAS, SPOIL, LEAVE };

struct task {
  enum kind kind;
  unsigned slot, flags;
  uint64_t length, seed, number;
  size_t tcp_rate;
  char paths[16];
  struct haul_place place;
  uint64_t chunk;
  char address[160], name[64];
};

struct response {
  int code;
  char text[192];
  struct received received;
};

/* ---- The process ---- */

static struct {
  haul_node *node;
  haul_broadcast *broadcast;
  struct haul_place place;
  uint64_t chunk;
  haul_region *regions[2];
  struct haul_broadcast_version version;
} mine;

static haul_region *region_of(unsigned slot, uint64_t length) {
  haul_region **region = &mine.regions[slot];
  if (*region && haul_region_length(*region) != length) {
    haul_broadcast_withdraw(mine.broadcast, 0);
    haul_region_release(*region);
    *region = NULL;
  }
  if (!*region && length && haul_region_alloc(mine.node, mine.place, length, 0, region))
    abort();
  return length ? *region : NULL;
}

/* Copies between the region and host memory, whatever its place. */
static void move(haul_region *region, void *bytes, uint64_t length, bool out) {
  haul_region *host;
  if (haul_region_wrap(mine.node, bytes, length, &host))
    abort();
  int code = out ? haul_region_copy(host, 0, region, 0, length, haul_deadline_in(BOUND))
                 : haul_region_copy(region, 0, host, 0, length, haul_deadline_in(BOUND));
  if (code)
    abort();
  haul_region_release(host);
}

static int open_node(const struct task *task, struct response *response) {
  struct haul_node_config config = patient_config();
  config.tcp_rate = task->tcp_rate;
  config.tcp_rails = 1;
  config.paths = task->paths[0] ? task->paths : NULL;
  mine.place = task->place.kind ? task->place : (struct haul_place){HAUL_HOST, 0};
  mine.chunk = task->chunk;
  int code = haul_node_open(&config, &mine.node);
  if (!code)
    code = haul_node_listen(mine.node, "tcp://127.0.0.1:0");
  return code ? code : haul_node_address(mine.node, 0, response->text, sizeof response->text);
}

static int open_source(void) {
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  options.chunk = mine.chunk;
  return haul_broadcast_open(mine.node, NAME, &options, &mine.broadcast);
}

static int publish(const struct task *task) {
  haul_region *region = region_of(task->slot, task->length);
  if (region) {
    char *bytes = malloc(task->length);
    pattern_fill(bytes, task->length, task->seed);
    for (uint64_t i = 0; i < task->number; i++)
      bytes[task->length / 2 + i] = (char)~bytes[task->length / 2 + i];
    move(region, bytes, task->length, false);
    free(bytes);
  }
  return haul_broadcast_publish(mine.broadcast, region, haul_deadline_in(BOUND), NULL);
}

static int join(const struct task *task) {
  struct haul_broadcast_options options = HAUL_BROADCAST_OPTIONS_INIT;
  options.member = task->name;
  return haul_broadcast_join(mine.node, task->address, NAME, &options, haul_deadline_in(BOUND),
                             &mine.broadcast);
}

static int next(const struct task *task, struct received *received) {
  int code =
      haul_broadcast_next(mine.broadcast, task->number, haul_deadline_in(BOUND), &mine.version);
  received->version = mine.version;
  return code;
}

static int receive_version(const struct task *task, struct received *received) {
  received->version = mine.version;
  received->report = (struct haul_broadcast_report)HAUL_BROADCAST_REPORT_INIT;
  int code = haul_broadcast_receive(mine.broadcast, &mine.version,
                                    region_of(task->slot, mine.version.length), task->flags,
                                    haul_deadline_in(BOUND), &received->report);
  received->feeder_count = FEEDERS_ROOM;
  haul_broadcast_feeders(mine.broadcast, received->feeders, &received->feeder_count);
  return code;
}

static int has(const struct task *task) {
  int same = 1;
  if (task->length) {
    char *bytes = malloc(task->length), *expected = malloc(task->length);
    move(mine.regions[task->slot], bytes, task->length, true);
    pattern_fill(expected, task->length, task->seed);
    same = memcmp(bytes, expected, task->length) == 0;
    free(bytes);
    free(expected);
  }
  return same;
}

static int spoil(const struct task *task) {
  uint64_t length = haul_region_length(mine.regions[task->slot]);
  char *bytes = malloc(length);
  move(mine.regions[task->slot], bytes, length, true);
  bytes[task->number] = (char)~bytes[task->number];
  move(mine.regions[task->slot], bytes, length, false);
  free(bytes);
  return 0;
}

static int execute(const struct task *task, struct response *response) {
  switch (task->kind) {
  case NODE:
    return open_node(task, response);
  case SOURCE:
    return open_source();
  case PUBLISH:
    return publish(task);
  case WITHDRAW:
    return haul_broadcast_withdraw(mine.broadcast, task->number);
  case JOIN:
    return join(task);
  case NEXT:
    return next(task, &response->received);
  case RECEIVE:
    return receive_version(task, &response->received);
  case HAS:
    return has(task);
  case SPOIL:
    return spoil(task);
  case LEAVE:
    haul_broadcast_close(mine.broadcast);
    mine.broadcast = NULL;
    return 0;
  }
  return HAUL_EINVAL;
}

int broadcaster_main(void) {
  struct task task;
  while (recv(3, &task, sizeof task, 0) == sizeof task) {
    struct response response = {0};
    response.code = execute(&task, &response);
    if (response.code < 0)
      memcpy(response.text, haul_error_last()->text, sizeof response.text);
    child_send(3, &response, sizeof response, -1);
  }
  haul_broadcast_close(mine.broadcast);
  haul_region_release(mine.regions[0]);
  haul_region_release(mine.regions[1]);
  haul_node_close(mine.node);
  return 0;
}

/* ---- The test ---- */

static struct response answer(struct broadcaster *one) {
  struct response response;
  child_receive(one->socket, &response, sizeof response);
  return response;
}

static struct response call(struct broadcaster *one, const struct task *task) {
  child_send(one->socket, task, sizeof *task, -1);
  return answer(one);
}

void broadcaster_start(struct broadcaster *one, const struct setup *setup) {
  struct task task = {.kind = NODE};
  if (setup) {
    task.tcp_rate = setup->tcp_rate;
    task.place = setup->place;
    task.chunk = setup->chunk;
    snprintf(task.paths, sizeof task.paths, "%s", setup->paths ? setup->paths : "");
  }
  one->pid = child_start(BROADCASTER_MODE, &one->socket);
  struct response response = call(one, &task);
  assert_int_equal(response.code, 0);
  snprintf(one->address, sizeof one->address, "%.159s", response.text);
}

void broadcaster_kill(struct broadcaster *one) {
  kill(one->pid, SIGKILL);
  assert_int_equal(child_end(one->pid, one->socket), 128 + SIGKILL);
}

void broadcaster_end(struct broadcaster *one) {
  assert_int_equal(child_end(one->pid, one->socket), 0);
}

int source_open(struct broadcaster *one) {
  return call(one, &(struct task){.kind = SOURCE}).code;
}

int source_publish(struct broadcaster *one, unsigned slot, uint64_t length, uint64_t seed,
                   uint64_t different) {
  return call(one, &(struct task){.kind = PUBLISH,
                                  .slot = slot,
                                  .length = length,
                                  .seed = seed,
                                  .number = different})
      .code;
}

int broadcaster_withdraw(struct broadcaster *one, uint64_t version) {
  return call(one, &(struct task){.kind = WITHDRAW, .number = version}).code;
}

int receiver_join(struct broadcaster *one, const char *source, const char *name) {
  struct task task = {.kind = JOIN};
  snprintf(task.address, sizeof task.address, "%s", source);
  snprintf(task.name, sizeof task.name, "%s", name);
  return call(one, &task).code;
}

int receiver_next(struct broadcaster *one, uint64_t after) {
  struct response response = call(one, &(struct task){.kind = NEXT, .number = after});
  one->version = response.received.version.number;
  return response.code;
}

void receive_begin(struct broadcaster *one, unsigned slot, unsigned flags) {
  struct task task = {.kind = RECEIVE, .slot = slot, .flags = flags};
  child_send(one->socket, &task, sizeof task, -1);
}

int receive_end(struct broadcaster *one, struct received *received) {
  struct response response = answer(one);
  *received = response.received;
  memcpy(received->text, response.text, sizeof received->text);
  return response.code;
}

int receive(struct broadcaster *one, unsigned slot, unsigned flags, struct received *received) {
  receive_begin(one, slot, flags);
  return receive_end(one, received);
}

bool receiver_has(struct broadcaster *one, unsigned slot, uint64_t length, uint64_t seed) {
  return call(one, &(struct task){.kind = HAS, .slot = slot, .length = length, .seed = seed})
             .code == 1;
}

void receiver_spoil(struct broadcaster *one, unsigned slot, uint64_t offset) {
  call(one, &(struct task){.kind = SPOIL, .slot = slot, .number = offset});
}

void receiver_leave(struct broadcaster *one) {
  call(one, &(struct task){.kind = LEAVE});
}

static const struct haul_broadcast_feeder *feeder_of(const struct received *received,
                                                     const char *name) {
  for (size_t i = 0; i < received->feeder_count && i < FEEDERS_ROOM; i++) {
    const struct haul_broadcast_feeder *feeder = &received->feeders[i];
    if (name ? !feeder->source && strcmp(feeder->name, name) == 0 : feeder->source)
      return feeder;
  }
  return NULL;
}

uint64_t bytes_from(const struct received *received, const char *name) {
  const struct haul_broadcast_feeder *feeder = feeder_of(received, name);
  return feeder ? feeder->bytes : 0;
}

const char *reason_of(const struct received *received, const char *name) {
  const struct haul_broadcast_feeder *feeder = feeder_of(received, name);
  return feeder ? feeder->reason : "";
}
