/* SPDX-License-Identifier: MIT
 * The simulator: several processes with haul's whole core library in one real thread, under a
 * virtual clock, over a modelled network. One seed decides the schedule, the network and all
 * faults, so that a run repeats exactly.
 *
 * The library runs as it is. `product` links its objects into one, renames its calls of libc
 * (calls.list) to world_NAME, which this folder defines, and puts its variables into the sections
 * sim_data and sim_bss, of which each simulated process has a copy.
 *
 * Words: a host has processes, a process has fibers (its threads). */
#ifndef HAUL_SIM_SIM_H
#define HAUL_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/list.h"

#define US 1000LL
#define MS 1000000LL
#define S  1000000000LL

#define NEVER INT64_MAX

/* Random numbers, trace, failures (schedule.c) */

uint64_t sim_random(void);
uint64_t sim_below(uint64_t bound); /* 0 … bound - 1 */
int64_t sim_between(int64_t low, int64_t high);
bool sim_chance(unsigned in_a_million);

/* Mixes the words into the hash of the run: equal seeds give equal hashes. */
void sim_hash(uint64_t what, uint64_t value);
extern uint64_t sim_hash_value;

/* Prints a line of the trace, if one is wanted. */
extern bool sim_tracing;
#define sim_trace(...)                                                                             \
  do {                                                                                             \
    if (sim_tracing)                                                                               \
      sim_print(__VA_ARGS__);                                                                      \
  } while (0)
void sim_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for trace viewers: writes the run as JSON (Chrome's trace event format, which Perfetto
 * opens), a track for each fiber. NULL: nothing is written. */
extern void *sim_viewer; /* FILE */
void sim_span_begin(const char *name);
void sim_span_end(const char *name);
void sim_instant(const char *name);
void sim_viewer_open(const char *path);
void sim_viewer_close(void);

/* An oracle found a defect: prints it with the seed, and ends the program with status 1. */
_Noreturn void sim_fail(const char *oracle, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

extern uint64_t sim_seed;
extern uint64_t sim_faults;   /* injected so far */
extern uint64_t sim_switches; /* of fibers */

extern int64_t sim_now; /* nanoseconds since the run's start */

/* Something that happens at a time. Zeroed: not scheduled. */
struct event {
  void (*happen)(struct event *event);
  size_t place; /* in the heap, from 1; 0: not scheduled */
};

void event_schedule(struct event *event, int64_t at, void (*happen)(struct event *event));
void event_cancel(struct event *event);

#define FIBER_STACK (256u << 10)
#define WAITERS     9 /* queues that one fiber waits in at a time */

#define LIBRARY_ERRORS 16

struct process;

struct waiter {
  struct list link;
  struct fiber *fiber;
  uint64_t key;
};

struct fiber {
  struct process *process;
  struct list link; /* in process->fibers */
  void *saved;      /* stack pointer */
  void *stack;
  char *locals; /* copy of the thread-local variables */
  int error;    /* errno */
  uint64_t id;
  void *(*run)(void *argument);
  void *argument, *result;
  bool ended, detached, runnable, timed_out;
  size_t place; /* in the list of runnable fibers */
  struct event timeout;
  struct waiter waiters[WAITERS];
  uint32_t library_errors[LIBRARY_ERRORS]; /* OpenSSL's error queue */
  unsigned library_error_count;
};

extern bool sim_many; /* thousands of processes: stacks have no guard pages */

struct fiber *fiber_start(struct process *process, void *(*run)(void *argument), void *argument);
struct fiber *fiber_current(void);
void fiber_end(struct fiber *fiber); /* not the current one */
void fiber_release(struct fiber *fiber);

/* A call of the library into the world: takes `cost` of virtual time, and lets others run once the
 * fiber's quantum is over. */
void sim_point(int64_t cost);
void sim_yield(void);
/* A library that is not simulated runs: nothing switches (openssl.c). */
bool sim_is_closed(void);
extern int sim_atomics_share;      /* atomic operations of a fiber until another runs, at most */
extern unsigned sim_preempt_share; /* of these, in a million, it loses its processor for long */
extern unsigned sim_copy_share;    /* the same, of copies */
/* Another fiber may run in the middle of a copy. */
void sim_copy_point(void);

/* Sleeps in `count` queues until one is woken or the time comes. False: the time came. */
bool fiber_wait(struct list *const *queues, size_t count, int64_t until);
bool fiber_wait_one(struct list *queue, int64_t until);
void queue_wake(struct list *queue, size_t most);

/* Runs fibers and events until `done` returns true, asked after each. */
void sim_run(bool (*done)(void));
void sim_start(uint64_t seed);

/* Hosts and processes (process.c) */

struct host {
  unsigned number;
  uint8_t boot_id[16];
  uint32_t address; /* 10.x.y.z, host byte order */
  int64_t offset;   /* of its clocks */
  int64_t drift;    /* parts per million */
  uint16_t next_port;
  unsigned side;      /* of a partition */
  int64_t busy_until; /* its network card */
  unsigned slow;      /* times as long as others, its bytes leave; 0: as others */
  struct list bound;  /* struct socket */
  struct list files;  /* in /store, which outlive processes (files.c) */
};

struct block; /* of a heap */
struct image; /* of the library's variables (process.c) */

struct process {
  struct host *host;
  pid_t pid;
  unsigned program; /* of the load */
  unsigned life;
  bool dead, frozen;
  int64_t frozen_at, frozen_for; /* all pauses */
  struct image *image;           /* of the library's variables; NULL: it does not use them */
  struct list fibers;
  struct list joining; /* fibers that wait for another's end */
  struct list blocks;
  size_t block_count, block_bytes;
  struct file **descriptors;
  size_t descriptor_room, descriptor_count, descriptor_free; /* none is free below the last */
  struct mapping *mappings;
  size_t mapping_count, mapping_room;
  unsigned refuse_memory, refuse_descriptors; /* in a million */
  unsigned refused_threads;
  /* Until one is refused, after others that are not; 0: none. */
  unsigned next_memory, next_descriptor;
  uint64_t inside; /* calls of the world that must not be refused */
};

struct host *host_create(unsigned number);
int64_t host_clock(const struct host *host, int64_t at);          /* its CLOCK_MONOTONIC */
int64_t host_time_to_world(const struct host *host, int64_t own); /* the inverse */

struct process *process_start(struct host *host, unsigned program, unsigned life,
                              void *(*run)(void *argument), void *argument);
void process_kill(struct process *process, bool silent);
void process_freeze(struct process *process);
void process_thaw(struct process *process);
struct process *process_current(void);
struct process *process_find(pid_t pid);
/* Is it the process's memory; whole pages? */
bool process_has(const struct process *process, const void *from, size_t length);
bool process_has_pages(const struct process *process, const void *from, size_t length);
void processes_start(void);

/* The image of the variables in memory is that of `process` from now on. */
void process_enter(struct process *process);

/* May the library call fail for want of memory or descriptors now? Counts the fault. */
bool refuses_memory(void);
bool refuses_descriptor(void);

/* Descriptors (process.c) */

enum file_kind {
  FILE_SOCKET = 1,
  FILE_EPOLL,
  FILE_EVENT,
  FILE_TIMER,
  FILE_MEMORY,  /* a memfd */
  FILE_TEXT,    /* of /proc or /sys */
  FILE_PROCESS, /* a pidfd */
  FILE_PIPE,
  FILE_NIC /* events of a NIC (completions.c) */
};

struct file {
  enum file_kind kind;
  unsigned references;
  int64_t opened;
  bool nonblocking;
  struct list waiting; /* fibers */
  struct list watches; /* entries of epolls (poll.c) */
};

void file_init(struct file *file, enum file_kind kind);
void file_drop(struct file *file);   /* a reference */
int file_install(struct file *file); /* takes the reference; -1 and errno */
/* Fails for the oracle `leaks` if a descriptor is open. */
void files_check_closed(const struct process *process);
struct file *file_of(int descriptor); /* NULL and EBADF */
void file_changed(struct file *file); /* what is ready has changed */
uint32_t file_ready(struct file *file);

#endif
