/* SPDX-License-Identifier: MIT
 * Libraries that are opened at run time: nothing links them, and a host without one has less to
 * offer. */
#ifndef HAUL_CORE_LIBRARY_H
#define HAUL_CORE_LIBRARY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct library_symbol {
  const char *name;
  size_t slot; /* its offset in the table */
};

#define LIBRARY_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* One library, described where its table is; static. Threads share it. */
struct library {
  const char *title;    /* "libibverbs" */
  const char *names[3]; /* for the loader, or paths; tried in turn, closed by NULL */
  const char *since;    /* the release that has all of `required`: "rdma-core 32" */
  const char *packages; /* that bring it: "libibverbs1 ibverbs-providers" */
  const char *note;     /* NULL, or what else to say to who has none */
  const struct library_symbol *required, *optional;
  size_t required_count, optional_count;
  void *table;          /* of function pointers; NULL where an optional one is missing */
  void (*opened)(void); /* NULL, or called once the table is full, before anybody gets it */

  pthread_mutex_t lock; /* guards the table and `handle` until published */
  void *handle;
  _Atomic(void *) published; /* the table */
  _Atomic unsigned long long looked_at;
};

/* The table, once all that is required is in it. The first call that succeeds opens the library,
 * for good: drivers keep threads and handlers that outlive any use. A failure is not kept, so a
 * package that was installed meanwhile is found. May block for the loader, which looks through the
 * file system. NULL with the detail, HAUL_ENOTSUP: no library (system: ENOENT), or one too old. */
void *library_open(struct library *library);

/* Whether somebody in this process has it already. Costs next to nothing where nothing was loaded
 * since the last look. Sets no detail. */
bool library_is_loaded(struct library *library);

/* For tests: closes it. Nobody uses the table any more. */
void library_forget(struct library *library);

#endif
