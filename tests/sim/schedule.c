/* SPDX-License-Identifier: MIT
 * Random numbers, virtual time, events and fibers. */
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "atomics.h"
#include "sim.h"

uint64_t sim_seed, sim_faults, sim_switches, sim_hash_value;
int64_t sim_now;
bool sim_tracing, sim_many;
int sim_atomics_left, sim_atomics_share;
unsigned sim_preempt_share, sim_copy_share;

/* Random numbers: xoshiro256** by Blackman and Vigna (public domain algorithm) */

static uint64_t state[4];

static uint64_t rotate(uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}

uint64_t sim_random(void) {
  uint64_t result = rotate(state[1] * 5, 7) * 9, shifted = state[1] << 17;
  state[2] ^= state[0];
  state[3] ^= state[1];
  state[1] ^= state[2];
  state[0] ^= state[3];
  state[2] ^= shifted;
  state[3] = rotate(state[3], 45);
  return result;
}

/* splitmix64 fills the state. */
static void seed_random(uint64_t seed) {
  for (int i = 0; i < 4; i++) {
    uint64_t mixed = seed += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    state[i] = mixed ^ mixed >> 31;
  }
}

uint64_t sim_below(uint64_t bound) {
  return (sim_random() >> 11) % bound; /* bounds are far below 2^53 */
}

int64_t sim_between(int64_t low, int64_t high) {
  return low + (int64_t)sim_below((uint64_t)(high - low) + 1);
}

bool sim_chance(unsigned in_a_million) {
  return in_a_million && sim_below(1000000) < in_a_million;
}

void sim_hash(uint64_t what, uint64_t value) {
  sim_hash_value = rotate(sim_hash_value ^ what * 0x9e3779b97f4a7c15, 27) * 0x94d049bb133111eb;
  sim_hash_value = rotate(sim_hash_value ^ value, 31) * 0xbf58476d1ce4e5b9;
}

/* Events: a heap, four children each, whose keys lie together */

static struct entry {
  int64_t at;
  uint64_t order;
  struct event *event;
} * heap; /* from 1 */
static size_t events, room;
static uint64_t orders;

static bool is_before(const struct entry *one, const struct entry *other) {
  return one->at != other->at ? one->at < other->at : one->order < other->order;
}

static size_t parent_of(size_t place) {
  return (place + 2) / 4;
}

static void heap_put(size_t place, struct entry entry) {
  heap[place] = entry;
  entry.event->place = place;
}

static void heap_rise(size_t place, struct entry entry) {
  for (; place > 1 && is_before(&entry, &heap[parent_of(place)]); place = parent_of(place))
    heap_put(place, heap[parent_of(place)]);
  heap_put(place, entry);
}

static size_t least_child(size_t place) {
  size_t first = place * 4 - 2, child = first;
  for (size_t i = first + 1; i < first + 4 && i <= events; i++)
    if (is_before(&heap[i], &heap[child]))
      child = i;
  return child;
}

static void heap_sink(size_t place, struct entry entry) {
  while (place * 4 - 2 <= events) {
    size_t child = least_child(place);
    if (!is_before(&heap[child], &entry))
      break;
    heap_put(place, heap[child]);
    place = child;
  }
  heap_put(place, entry);
}

void event_cancel(struct event *event) {
  size_t place = event->place;
  if (!place)
    return;
  event->place = 0;
  struct entry last = heap[events--];
  if (last.event == event)
    return;
  if (place > 1 && is_before(&last, &heap[parent_of(place)]))
    heap_rise(place, last);
  else
    heap_sink(place, last);
}

void event_schedule(struct event *event, int64_t at, void (*happen)(struct event *event)) {
  event_cancel(event);
  if (events + 2 > room) {
    room = room ? room * 2 : 1024;
    heap = realloc(heap, room * sizeof *heap);
  }
  event->happen = happen;
  heap_rise(++events, (struct entry){at > sim_now ? at : sim_now, ++orders, event});
}

/* Saves the registers that a call preserves (x86-64 psABI) and continues on the other stack. */
void sim_switch(void **saved, void *to);
__asm__(".text\n"
        ".globl sim_switch\n"
        ".type sim_switch,@function\n"
        "sim_switch:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp,(%rdi)\n"
        "  mov %rsi,%rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
        "  ret\n"
        ".size sim_switch,.-sim_switch\n");

static void *scheduler;       /* its stack pointer */
static struct fiber *current; /* NULL: the scheduler runs */
static struct fiber **runnable;
static size_t runnable_count, runnable_room;
static uint64_t fibers;
static int64_t quantum_end;

/* The program's own thread-local variables, which are the library's. */
static char *locals, *first_locals;
static size_t locals_size;

static int find_locals(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_TLS) {
      locals = info->dlpi_tls_data;
      locals_size = info->dlpi_phdr[i].p_memsz;
    }
  return 1; /* the program is first */
}

struct fiber *fiber_current(void) {
  return current;
}

static void make_runnable(struct fiber *fiber) {
  if (fiber->runnable || fiber->ended)
    return;
  fiber->runnable = true;
  if (fiber->process->frozen) { /* process_thaw gives it back */
    fiber->place = SIZE_MAX;
    return;
  }
  if (runnable_count == runnable_room) {
    runnable_room = runnable_room ? runnable_room * 2 : 256;
    runnable = realloc(runnable, runnable_room * sizeof(struct fiber *));
  }
  fiber->place = runnable_count;
  runnable[runnable_count++] = fiber;
}

static void make_idle(struct fiber *fiber) {
  if (!fiber->runnable)
    return;
  fiber->runnable = false;
  if (fiber->place == SIZE_MAX)
    return;
  struct fiber *last = runnable[--runnable_count];
  runnable[fiber->place] = last;
  last->place = fiber->place;
}

void fibers_freeze(struct process *process) {
  list_each(item, &process->fibers) {
    struct fiber *fiber = list_entry(item, struct fiber, link);
    if (fiber->runnable) {
      make_idle(fiber);
      fiber->runnable = true;
      fiber->place = SIZE_MAX;
    }
  }
}

void fibers_thaw(struct process *process) {
  list_each(item, &process->fibers) {
    struct fiber *fiber = list_entry(item, struct fiber, link);
    if (fiber->runnable) {
      fiber->runnable = false;
      make_runnable(fiber);
    }
  }
}

static void leave(void) {
  struct fiber *fiber = current;
  if (sim_is_closed())
    return;
  fiber->error = errno;
  sim_switch(&fiber->saved, scheduler);
  errno = fiber->error;
}

static void enter(struct fiber *fiber) {
  sim_switches++;
  sim_hash(fiber->id, (uint64_t)sim_now);
  process_enter(fiber->process);
  memcpy(locals, fiber->locals, locals_size);
  current = fiber;
  quantum_end = sim_now + sim_between(1 * US, 40 * US);
  sim_atomics_left = (int)sim_below((uint64_t)sim_atomics_share) + 1;
  sim_switch(&scheduler, fiber->saved);
  current = NULL;
  memcpy(fiber->locals, locals, locals_size);
  if (fiber->ended && fiber->detached)
    fiber_release(fiber);
}

static void *spare_stacks[4096];
static size_t spare_count;

/* Many at a time without guard pages: mappings are limited (vm.max_map_count). */
static void make_stacks(void) {
  size_t many = sim_many ? 256 : 1;
  char *stacks = mmap(NULL, FIBER_STACK * many, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED)
    sim_fail("simulator", "no memory for a stack");
  if (!sim_many)
    mprotect(stacks, 4096, PROT_NONE);
  for (size_t i = 0; i < many; i++)
    spare_stacks[spare_count++] = stacks + i * FIBER_STACK;
}

static void *take_stack(void) {
  if (spare_count == 0)
    make_stacks();
  return spare_stacks[--spare_count];
}

static void give_stack(void *stack) {
  if (spare_count < sizeof spare_stacks / sizeof spare_stacks[0])
    spare_stacks[spare_count++] = stack;
  else
    munmap(stack, FIBER_STACK);
}

static void fiber_main(void) {
  struct fiber *fiber = current;
  errno = 0;
  fiber->result = fiber->run(fiber->argument);
  fiber->ended = true;
  make_idle(fiber);
  queue_wake(&fiber->process->joining, SIZE_MAX);
  leave();
}

struct fiber *fiber_start(struct process *process, void *(*run)(void *argument), void *argument) {
  struct fiber *fiber = calloc(1, sizeof *fiber);
  fiber->process = process;
  fiber->run = run;
  fiber->argument = argument;
  fiber->id = ++fibers;
  fiber->stack = take_stack();
  fiber->locals = malloc(locals_size + 1);
  memcpy(fiber->locals, first_locals, locals_size);
  for (size_t i = 0; i < WAITERS; i++)
    list_init(&fiber->waiters[i].link);
  /* Aligned as by a call. At different places, or all stacks would share a few sets of the cache.
   */
  void **top = (void **)(void *)((char *)fiber->stack + FIBER_STACK - fiber->id % 32 * 256) - 3;
  *top = NULL;
  *--top = (void *)(uintptr_t)fiber_main;
  for (int i = 0; i < 6; i++)
    *--top = NULL;
  fiber->saved = top;
  list_append(&process->fibers, &fiber->link);
  make_runnable(fiber);
  return fiber;
}

static void stop_waiting(struct fiber *fiber) {
  event_cancel(&fiber->timeout);
  for (size_t i = 0; i < WAITERS; i++)
    list_remove(&fiber->waiters[i].link);
}

void fiber_release(struct fiber *fiber) {
  list_remove(&fiber->link);
  give_stack(fiber->stack);
  free(fiber->locals);
  free(fiber);
}

void fiber_end(struct fiber *fiber) {
  stop_waiting(fiber);
  make_idle(fiber);
  fiber_release(fiber);
}

void sim_yield(void) {
  if (current)
    leave();
}

void sim_point(int64_t cost) {
  if (!current)
    return;
  sim_now += cost;
  if (sim_now >= quantum_end || (events && heap[1].at <= sim_now))
    leave();
}

static void lose_processor(void) {
  struct list nothing;
  list_init(&nothing);
  fiber_wait_one(&nothing, sim_now + sim_between(1 * US, sim_chance(50000) ? 20 * MS : 1 * MS));
}

void sim_copy_point(void) {
  if (current && !sim_is_closed() && sim_chance(sim_copy_share))
    lose_processor();
  else
    sim_atomic_point();
}

void sim_atomic_switch(void) {
  sim_atomics_left = (int)sim_below((uint64_t)sim_atomics_share) + 1;
  if (!current)
    return;
  sim_now += 20;
  if (sim_is_closed() || !sim_chance(sim_preempt_share)) {
    leave();
    return;
  }
  lose_processor();
}

static void on_timeout(struct event *event) {
  struct fiber *fiber = list_entry(event, struct fiber, timeout);
  fiber->timed_out = true;
  stop_waiting(fiber);
  make_runnable(fiber);
}

bool fiber_wait(struct list *const *queues, size_t count, int64_t until) {
  struct fiber *fiber = current;
  if (until <= sim_now) {
    sim_yield();
    return false;
  }
  if (sim_is_closed())
    sim_fail("simulator", "a callback of OpenSSL sleeps");
  for (size_t i = 0; i < count; i++) {
    fiber->waiters[i].fiber = fiber;
    list_append(queues[i], &fiber->waiters[i].link);
  }
  if (until != NEVER)
    event_schedule(&fiber->timeout, until, on_timeout);
  fiber->timed_out = false;
  make_idle(fiber);
  leave();
  return !fiber->timed_out;
}

bool fiber_wait_one(struct list *queue, int64_t until) {
  return fiber_wait(&queue, 1, until);
}

void queue_wake(struct list *queue, size_t most) {
  for (; most > 0 && !list_empty(queue); most--) {
    struct fiber *fiber = list_entry(queue->next, struct waiter, link)->fiber;
    stop_waiting(fiber);
    make_runnable(fiber);
  }
}

static void fire_events(void) {
  while (events && heap[1].at <= sim_now) {
    struct event *event = heap[1].event;
    event_cancel(event);
    event->happen(event);
  }
}

void sim_run(bool (*done)(void)) {
  while (!done()) {
    fire_events();
    if (runnable_count)
      enter(runnable[sim_below(runnable_count)]);
    else if (events)
      sim_now = heap[1].at;
    else
      sim_fail("liveness", "nothing can happen any more");
  }
}

void sim_start(uint64_t seed) {
  sim_seed = seed;
  seed_random(seed);
  dl_iterate_phdr(find_locals, NULL);
  first_locals = malloc(locals_size + 1);
  memcpy(first_locals, locals, locals_size);
}

void *sim_viewer;

void sim_viewer_open(const char *path) {
  sim_viewer = fopen(path, "w");
  if (!sim_viewer)
    sim_fail("simulator", "%s: %s", path, strerror(errno));
  fputs("[\n", sim_viewer);
}

void sim_viewer_close(void) {
  if (!sim_viewer)
    return;
  fprintf(sim_viewer,
          "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":"
          "\"seed %llu\"}}\n]\n",
          (unsigned long long)sim_seed);
  fclose(sim_viewer);
  sim_viewer = NULL;
}

static void view(char phase, const char *name) {
  if (sim_viewer)
    fprintf(sim_viewer, "{\"ph\":\"%c\",\"ts\":%.3f,\"pid\":%d,\"tid\":%llu,\"name\":\"%s\"%s},\n",
            phase, (double)sim_now / US, current ? (int)current->process->pid : 0,
            current ? (unsigned long long)current->id : 0, name,
            phase == 'i' ? ",\"s\":\"g\"" : "");
}

void sim_span_begin(const char *name) {
  view('B', name);
}

void sim_span_end(const char *name) {
  view('E', name);
}

void sim_instant(const char *name) {
  view('i', name);
}

static void print_place(FILE *to) {
  const struct process *process = current ? current->process : NULL;
  fprintf(to, "%lld.%09lld ", (long long)(sim_now / S), (long long)(sim_now % S));
  if (process)
    fprintf(to, "host %u pid %d fiber %llu: ", process->host->number, (int)process->pid,
            (unsigned long long)current->id);
}

void sim_print(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_place(stdout);
  vprintf(format, arguments);
  putchar('\n');
  va_end(arguments);
}

void sim_fail(const char *oracle, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fflush(stdout);
  sim_instant(oracle);
  sim_viewer_close();
  fprintf(stderr, "FAILED  seed %llu, oracle %s, ", (unsigned long long)sim_seed, oracle);
  print_place(stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  _Exit(1);
}
