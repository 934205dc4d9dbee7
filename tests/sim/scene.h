/* SPDX-License-Identifier: MIT
 * What a run simulates; and what scenes share (scene.c): participants, faults, phases, codes. */
#ifndef HAUL_SIM_SCENE_H
#define HAUL_SIM_SCENE_H

#include <haul/haul.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "sim.h"

struct scene {
  const char *name;               /* the argument that selects it */
  void (*draw)(void);             /* its plan, by the seed */
  bool (*set)(const char *field); /* "programs=2"; false: no such field, or value */
  void (*print_fields)(FILE *to); /* those that `set` knows */
  void (*print_plan)(void);
  void (*start)(void);
  bool (*is_over)(void); /* asked after each step */
  void (*print_history)(void);
  uint64_t (*operations)(void); /* done so far */
};

/* ---- Participants ---- */

/* A process that faults happen to, through all its lives. */
struct participant {
  char name[16], address[64];
  unsigned number, life;
  struct host *host;
  struct process *process; /* NULL: dead */
  void *(*run)(void *participant);
  struct list link; /* of all participants */
  struct event restart, end_of_pause, end_of_shortage;
  bool ended;
};

/* Its name is `kind` and the number, its address one of TCP. It starts after `delay`. */
void participant_add(struct participant *participant, const char *kind, unsigned number,
                     struct host *host, void *(*run)(void *participant), int64_t delay);
/* Kills its process, which starts again soon. */
void participant_kill(struct participant *participant, bool power);
void participant_freeze(struct participant *participant, int64_t until);
/* One request for memory is refused, or many are until then. */
void participant_run_short(struct participant *participant, int64_t until);
/* The end of its life. */
void participant_close(struct participant *participant, haul_node *node, int64_t liveness);

/* ---- Faults and phases ---- */

struct fault_plan {
  unsigned kinds; /* bits */
  int64_t lasts, interval;
};

/* Faults happen for a while; then none do, until `is_done`; then all participants end. */
struct course {
  unsigned kinds;
  void (*inject)(unsigned kind);
  void (*heal)(void);    /* the faults end; NULL: nothing more */
  bool (*is_done)(void); /* asked after each step */
  int64_t done_limit;    /* it is done that long after the last fault, */
  void (*late)(void);    /* or this fails */
  int64_t stop_limit;    /* all have ended that long after */
};

void course_start(const struct course *of_scene, const struct fault_plan *faults);
bool course_is_over(void);
/* From milliseconds to some seconds, shorter ones more often. */
int64_t faults_length(void);
void faults_print(const struct fault_plan *faults, const char *const *names, unsigned kinds);
/* Cuts two hosts of 0 … hosts - 1 off from each other, or one from the other. */
void faults_cut(unsigned hosts, bool both, int64_t until);

/* ---- Codes that calls return ---- */

struct results {
  uint64_t failed, codes[64];
  int64_t short_until; /* memory is refused somewhere */
};
extern struct results results;

/* Counts a code, and fails for those that only a defect gives. Not one for want of memory, while
 * some is refused, nor where it `may_be_full`: then a limit may be reached. */
void results_count(const char *call, int code, bool may_be_full);
_Noreturn void fail_code(const char *call, int code);
void errors_print(const uint64_t codes[64]);

#endif
