/* SPDX-License-Identifier: MIT
 * A program's life: it opens a node, publishes its memory, receives messages, and closes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "calls.h"
#include "cards.h"
#include "core/tls/tls.h"
#include "load.h"
#include "memory/region.h"
#include "memory/sim/sim.h"
#include "net.h"

#define SLACK       (2 * S) /* a call may end this much after its deadline */
#define SETTLING    (3 * S) /* until the ends of all connections have come */
#define WITHDRAWALS 30000   /* a chance, in a million, after each message or wait for one */
#define HOT         (20 * MS)
/* Then nothing but a withdrawal disturbs: a lookup or a copy that loses against it shows. */
#define CALM_WITHDRAWALS 300000
#define STATS            20000
#define REPLIES          300000
#define CLOSE_LIMIT                                                                                \
  (plan.liveness + 10 * S) /* for a close: the liveness timeout, and some seconds */

size_t lane_offset(unsigned writer, unsigned index) {
  return GUARD + ((size_t)writer * LANES + index) * (plan.lane + GUARD);
}

size_t counter_offset(unsigned adder) {
  return ((lane_offset(PROGRAMS, 0) + 7) & ~(size_t)7) + 8 * (size_t)adder;
}

size_t shared_offset(unsigned word) {
  return counter_offset(PROGRAMS) + 8 * (size_t)word;
}

size_t memory_size(void) {
  return shared_offset(HISTORY_WORDS) + GUARD;
}

void check_lane(const struct program *program, unsigned writer, unsigned index, const char *when) {
  const struct lane *lane = &program->lanes[writer][index];
  const uint8_t *bytes = program->memory + lane_offset(writer, index);
  if (lane->loose_until > sim_now || memcmp(bytes, lane->content, plan.lane) == 0)
    return;
  for (size_t i = 0; i < plan.lane; i++)
    if (bytes[i] != lane->content[i] && !lane->undefined[i])
      sim_fail("content", "%s: byte %zu of lane %u of program %u in program %u is %02x, not %02x",
               when, i, index, writer, program->number, bytes[i], lane->content[i]);
}

static void check_guard(const struct program *program, size_t from, const char *when) {
  for (size_t i = 0; i < GUARD; i++)
    if (program->memory[from + i] != GUARD_BYTE)
      sim_fail("stray bytes", "%s: byte %zu of program %u, between the lanes", when, from + i,
               program->number);
}

void check_memory(const struct program *program, const char *when) {
  for (unsigned writer = 0; writer < PROGRAMS; writer++)
    for (unsigned index = 0; index < LANES; index++) {
      if (writer < plan.programs && writer != program->number)
        check_lane(program, writer, index, when);
      check_guard(program, lane_offset(writer, index) - GUARD, when);
    }
}

int64_t own_clock(void) {
  return host_clock(process_current()->host, sim_now);
}

void pause_for(int64_t span) {
  struct list nothing;
  list_init(&nothing);
  fiber_wait_one(&nothing, sim_now + span);
}

struct limit limit_begin(const char *call, int64_t until) {
  sim_trace("%s begins", call);
  sim_span_begin(call);
  return (struct limit){call, until, process_current()->frozen_for};
}

void limit_end(const struct limit *limit) {
  int64_t paused = process_current()->frozen_for - limit->frozen_before;
  int64_t late = own_clock() - paused - limit->until;
  sim_trace("%s ends", limit->call);
  sim_span_end(limit->call);
  if (late > SLACK + cards_slack())
    sim_fail("deadline", "%s returned %.3f s after its deadline", limit->call, (double)late / S);
}

static void lanes_reset(struct program *program) {
  for (unsigned writer = 0; writer < PROGRAMS; writer++) {
    program->counters[writer] = (struct counter){0, 0};
    for (unsigned index = 0; index < LANES; index++) {
      struct lane *lane = &program->lanes[writer][index];
      if (!lane->content) {
        lane->content = malloc(plan.lane);
        lane->undefined = malloc(plan.lane);
      }
      memset(lane->content, 0, plan.lane);
      memset(lane->undefined, 0, plan.lane);
      lane->loose_until = 0;
      lane->missed = 0;
      memset(program->memory + lane_offset(writer, index), 0, plan.lane);
    }
  }
}

uint8_t *region_bytes(haul_region *region) {
  if (haul_region_place(region).kind == HAUL_SIM)
    return (uint8_t *)sim_view(&region->memory, 0);
  return haul_region_address(region);
}

static int make_region(struct program *program) {
  unsigned flags = plan.private_memory ? HAUL_REGION_PRIVATE : 0;
  if (plan.device_memory)
    return haul_region_alloc(program->node, (struct haul_place){HAUL_SIM, 0}, memory_size(), flags,
                             &program->region);
  if (!plan.wraps)
    return haul_region_alloc(program->node, (struct haul_place){HAUL_HOST, 0}, memory_size(), flags,
                             &program->region);
  void *memory =
      world_mmap(NULL, memory_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return HAUL_ENOMEM;
  int code = haul_region_wrap(program->node, memory, memory_size(), &program->region);
  if (code)
    world_munmap(memory, memory_size());
  return code;
}

static void region_reset(struct program *program) {
  memset(program->memory, GUARD_BYTE, memory_size());
  memset(program->memory + counter_offset(0), 0, 8 * PROGRAMS);
  memset(program->memory + shared_offset(0), 0, 8 * (size_t)HISTORY_WORDS);
  histories_reset(&program->histories, program->number);
  lanes_reset(program);
}

static int serve(struct program *program) {
  int code = make_region(program);
  if (code)
    return code;
  program->memory = region_bytes(program->region);
  region_reset(program);
  code = haul_region_publish(program->region, "memory", HAUL_READ | HAUL_WRITE);
  for (int i = 0; i < 2 && code == 0; i++)
    code = haul_node_listen(program->node, program->addresses[i]);
  return code;
}

static void release_region(struct program *program) {
  uint8_t *memory = program->memory;
  program->serves = false;
  if (!program->region)
    return;
  if (memory) {
    check_memory(program, "at the release");
    histories_reset(&program->histories, program->number);
  }
  program->memory = NULL;
  haul_region_release(program->region);
  program->region = NULL;
  if (plan.wraps && !plan.device_memory && memory)
    world_munmap(memory, memory_size());
}

/* The same region is published again, or a new one. False: the program ends before. */
static bool publish_again(struct program *program) {
  bool renews = sim_chance(500000);
  if (renews)
    release_region(program);
  program->serves = true;
  while (load.phase != STOPPING && !program->leaves) {
    if (!program->region && make_region(program) == 0) {
      program->memory = region_bytes(program->region);
      region_reset(program);
    }
    if (program->region &&
        haul_region_publish(program->region, "memory", HAUL_READ | HAUL_WRITE) == 0)
      return true;
    pause_for(sim_between(MS, 20 * MS)); /* memory is short */
  }
  return false;
}

/* Other names use up the slots of the table. */
static void publish_others(struct program *program) {
  char name[16];
  for (uint64_t i = 0, most = sim_below(40); i < most; i++) {
    snprintf(name, sizeof name, "other-%u", (unsigned)i);
    if (haul_region_publish(program->region, name, HAUL_READ) == 0 &&
        haul_region_unpublish(program->region, name) != 0)
      sim_fail("names", "%s cannot be withdrawn: %s", name, haul_error_last()->text);
  }
}

static void withdraw_once(struct program *program) {
  program->withdrawing = true;
  struct limit limit = limit_begin("haul_region_unpublish", own_clock() + plan.liveness);
  int code = haul_region_unpublish(program->region, "memory");
  limit_end(&limit);
  if (code)
    sim_fail("names", "the memory cannot be withdrawn: %s", haul_error_last()->text);
  program->publication++;
  program->withdrawn = realloc(program->withdrawn, memory_size());
  memcpy(program->withdrawn, program->memory, memory_size());
  check_memory(program, "after the withdrawal");
  if (sim_chance(500000))
    publish_others(program);
  program->withdrawing = !publish_again(program);
}

static void await_client(struct program *program) {
  program->amid = (enum amid)sim_between(AMID_LOOKUP, AMID_OPERATION);
  fiber_wait_one(&program->withdrawal, program->hot_until);
  pause_for(draw_moment());
}

/* At times again and again, amid the lookups of those who lost the memory. */
static void withdraw(struct program *program) {
  bool hot = sim_chance(700000);
  do {
    program->hot_until = hot ? sim_now + HOT : 0;
    if (hot)
      await_client(program);
    if (program->region)
      withdraw_once(program);
    pause_for(sim_between(0, 3 * (net.latency + net.jitter)));
  } while (sim_chance(600000) && load.phase != STOPPING && !program->leaves);
}

static struct inbox *inbox_of(struct program *program, unsigned from, uint64_t connection) {
  struct inbox *inboxes = program->inboxes[from];
  for (unsigned i = 0; i < INBOXES; i++)
    if (inboxes[i].connection == connection)
      return &inboxes[i];
  struct inbox *made = &inboxes[program->next_inbox[from]++ % INBOXES];
  *made = (struct inbox){.connection = connection};
  return made;
}

/* Messages of a connection come once, in order, and whole. */
static void on_message(struct program *program, const struct haul_message *message) {
  uint64_t head[8];
  unsigned from, life;
  if (message->length < sizeof head ||
      sscanf(haul_peer_name(message->peer), "p%u.%u", &from, &life) != 2)
    sim_fail("messages", "a message of %zu bytes", message->length);
  memcpy(head, message->bytes, sizeof head);
  struct inbox *inbox = inbox_of(program, from, head[0]);
  sim_trace("message %llu of connection %llx from p%u.%u", (unsigned long long)head[1],
            (unsigned long long)head[0], from, life);
  if (head[1] != message->tag || head[1] != inbox->sequence + 1)
    sim_fail("messages", "message %llu of program %u came after %llu", (unsigned long long)head[1],
             from, (unsigned long long)inbox->sequence);
  inbox->sequence++;
  for (size_t i = sizeof head; i < message->length; i++)
    if (((const uint8_t *)message->bytes)[i] != (uint8_t)(head[2] + i))
      sim_fail("messages", "byte %zu of %zu of a message is wrong", i, message->length);
  struct program *sender = &load.programs[from];
  if (head[3] == 0 || sender->life != life || !sender->process)
    return;
  struct link *link = &sender->links[program->number]; /* whose write has to be here */
  if (!program->memory || link->publication != program->publication)
    return;
  struct lane *lane = &program->lanes[from][head[3] - 1];
  if (link->bytes && link->connection == head[0] && link->generation == head[4] &&
      memcmp(program->memory + lane_offset(from, (unsigned)head[3] - 1) + head[5],
             link->bytes + head[5], head[6]) != 0)
    lane->missed = head[4];
}

/* All clients have ended, and what they sent last has come. */
static bool is_settled(int64_t *since) {
  if (load.phase != STOPPING || !all_links_ended())
    return false;
  if (*since == 0)
    *since = sim_now;
  return sim_now - *since > SETTLING;
}

/* Bytes. In calm the largest message has room, whatever happened to others, as in a shortage. */
size_t draw_message(void) {
  bool large = is_calm() || process_current()->refuse_memory > 0;
  size_t most = sim_chance(700000) ? 4096 : plan.message_most;
  return large && sim_chance(500000) ? most : MESSAGE_HEAD + sim_below(most - MESSAGE_HEAD);
}

/* Over the same connection. Its sender tells replies by their connection. */
static void reply(struct inbox *inbox, haul_peer *peer) {
  uint64_t head[8] = {~inbox->connection, inbox->replies + 1, sim_random()};
  size_t length = draw_message();
  uint8_t *bytes = malloc(length);
  memcpy(bytes, head, sizeof head);
  for (size_t i = sizeof head; i < length; i++)
    bytes[i] = (uint8_t)(head[2] + i);
  inbox->replies++;
  int64_t until = own_clock() + sim_between(0, 20 * MS);
  if (haul_message_send(peer, head[1], bytes, length, until) != 0)
    inbox->replies--; /* nothing was sent */
  free(bytes);
}

static void reply_to(struct program *program, const struct haul_message *message) {
  uint64_t connection;
  unsigned from;
  memcpy(&connection, message->bytes, sizeof connection);
  if (sscanf(haul_peer_name(message->peer), "p%u.", &from) == 1 && (connection & 1))
    reply(inbox_of(program, from, connection), message->peer);
}

static void receive_messages(struct program *program) {
  int64_t since = 0;
  while (!is_settled(&since) && !(program->leaves && load.phase != STOPPING)) {
    if (plan.withdraws && load.phase != STOPPING &&
        sim_chance(is_calm() ? CALM_WITHDRAWALS : WITHDRAWALS))
      withdraw(program);
    if (sim_chance(STATS))
      check_stats(program);
    /* Nothing but its client drives the node, or keeps its loop awake. */
    bool solo = solo_link() && solo_link()->from == program;
    if (solo && sim_chance(50000)) {
      int64_t began = sim_now;
      pause_for(solo_until() - sim_now);
      program->undriven += sim_now - began;
    }
    struct haul_message message;
    int64_t until = own_clock() + (solo ? sim_between(0, 2 * MS) : sim_between(10 * MS, 300 * MS));
    struct limit limit = limit_begin("haul_message_receive", until);
    int code = haul_message_receive(program->node, &message, until);
    limit_end(&limit);
    if (code == 0) {
      if (message.kind == HAUL_MESSAGE_OFFER)
        on_offer(program, &message);
      else
        on_message(program, &message);
      if (message.bytes && haul_peer_status(message.peer) == 0 && sim_chance(REPLIES))
        reply_to(program, &message);
      haul_message_release(&message);
    } else if (code != HAUL_ETIMEDOUT) {
      pause_for(5 * MS); /* memory is short */
    }
  }
}

static int open_node(struct program *program) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char name[32];
  snprintf(name, sizeof name, "p%u.%u", program->number, program->life);
  config.name = name;
  config.insecure = 1;
  config.progress = plan.caller_progress ? HAUL_PROGRESS_CALLER : HAUL_PROGRESS_THREAD;
  config.liveness_ns = plan.liveness;
  config.idle_rails_ns = plan.idle_rails;
  config.tcp_rails = plan.rails;
  config.copy_threads = plan.copy_threads;
  config.pool_bytes = plan.pool;
  config.paths = plan.paths;
  config.key = key_path(program);
  config.plain_data = plan.tls && plan.plain_data;
  config.process_tls = plan.tls && plan.process_tls;
  config.peer_bytes = plan.peer_bytes;
  config.message_window = plan.message_window;
  config.tcp_zero_copy = plan.zero_copy;
  program->written = program->read = program->seen_out = program->seen_in = 0;
  program->offering = 0;
  watch_log(program);
  return haul_node_open(&config, &program->node);
}

static void close_node(struct program *program) {
  struct limit limit = limit_begin("haul_node_close", own_clock() + CLOSE_LIMIT);
  haul_node_close(program->node);
  program->node = NULL;
  limit_end(&limit);
}

static void run_links(struct program *program) {
  for (unsigned i = 0; i < plan.programs; i++) {
    struct link *link = &program->links[i];
    *link = (struct link){.from = program, .to = &load.programs[i]};
    link->ended = i == program->number;
    if (!link->ended)
      fiber_start(program->process, link_main, link)->detached = true;
  }
}

static void await_links(struct program *program) {
  for (unsigned i = 0; i < plan.programs; i++)
    while (!program->links[i].ended) {
      if (plan.caller_progress && program->node)
        haul_node_progress(program->node, own_clock() + 10 * MS);
      pause_for(1 * MS);
    }
}

/* No client of the program is in a call with its node. */
static void await_idle(struct program *program) {
  for (unsigned i = 0; i < plan.programs; i++)
    while (program->links[i].busy) {
      if (plan.caller_progress)
        haul_node_progress(program->node, own_clock() + 10 * MS);
      pause_for(100 * US);
    }
}

/* From the first node to its close. */
static void run_node(struct program *program) {
  program->node = NULL;
  program->region = NULL;
  program->memory = NULL;
  tls_key_lasts = plan.key_lasts;
  while (load.phase != STOPPING) {
    if (open_node(program) == 0 && serve(program) == 0)
      break;
    sim_trace("cannot serve: %s (%s)", haul_error_last()->text, haul_error_last()->object);
    release_region(program);
    if (program->node)
      close_node(program);
    pause_for(sim_between(MS, 200 * MS));
  }
  if (program->node) {
    size_t descriptors = program->process->descriptor_count;
    program->serves = true;
    run_links(program);
    receive_messages(program);
    bool amid = program->leaves && load.phase != STOPPING && sim_chance(500000);
    if (amid) {
      await_idle(program);
      close_node(program);
    }
    await_links(program);
    if (plan.calm_for > 0 && !program->leaves)
      check_settled(program, descriptors);
    release_region(program);
    if (!amid)
      close_node(program);
  }
  pause_for(S); /* for threads that close descriptors */
  check_leaks(program);
}

void *program_main(void *argument) {
  struct program *program = argument;
  run_node(program);
  while (program->leaves && load.phase != STOPPING) {
    program->life++;
    program->leaves = false;
    run_node(program);
  }
  program->ended = true;
  return NULL;
}

void program_start(struct program *program) {
  program->life++;
  program->serves = program->ended = program->leaves = program->withdrawing = false;
  snprintf(program->addresses[0], sizeof program->addresses[0], "tcp://10.%u.%u.%u:%u",
           program->host->address >> 16 & 255, program->host->address >> 8 & 255,
           program->host->address & 255, 7000 + program->number);
  snprintf(program->addresses[1], sizeof program->addresses[1], "unix://@program-%u",
           program->number);
  list_init(&program->withdrawal);
  for (unsigned i = 0; i < PROGRAMS; i++)
    program->links[i] = (struct link){.from = program, .to = &load.programs[i], .ended = true};
  sim_trace("program %u starts its life %u", program->number, program->life);
  program->process =
      process_start(program->host, program->number, program->life, program_main, program);
  shortage_at_start(program);
}
