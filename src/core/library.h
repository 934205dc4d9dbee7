/* SPDX-License-Identifier: MIT
 * Libraries that are opened at run time, so that haul links against none of them. */
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

/* Members of a struct library: its calls as arrays of library_symbol, and the table they fill. */
#define LIBRARY_REQUIRED(calls, filled)                                                            \
  .required = (calls), .required_count = LIBRARY_COUNT(calls), .table = &(filled),                 \
  .lock = PTHREAD_MUTEX_INITIALIZER
#define LIBRARY_OPTIONAL(calls) .optional = (calls), .optional_count = LIBRARY_COUNT(calls)

/* One library; a static object that threads share. */
struct library {
  const char *title;    /* "libibverbs" */
  const char *names[3]; /* names for dlopen, tried in order; NULL ends them */
  /* 0; else the first name is a file's in the folder haul/ beside this library, and its one symbol
   * is a table that begins with this size. */
  size_t module;
  const char *since;    /* the release that has all of `required`: "rdma-core 32" */
  const char *packages; /* Debian packages: "libibverbs1 ibverbs-providers" */
  const char *note;     /* NULL, or text behind the hint to install the packages */
  const struct library_symbol *required, *optional;
  size_t required_count, optional_count;
  void *table;          /* function pointers; NULL for a missing optional one */
  void (*opened)(void); /* NULL, or called once the table is filled, before it is published */

  pthread_mutex_t lock; /* guards the table and `handle` until published */
  void *handle;
  _Atomic(void *) published;              /* the table */
  _Atomic unsigned long long searched_at; /* dl_phdr_info.dlpi_adds at the last search */
};

/* The filled table. The first call that succeeds opens the library for good, as drivers keep
 * threads and handlers that outlive any use. A failure is not cached: a package that is installed
 * later is found. May block while the loader searches the file system. NULL with the detail
 * HAUL_ENOTSUP: no library (system: ENOENT), one without a required call, or a module of another
 * release. */
void *library_open(struct library *library);

/* The table if the library is loaded in this process already, by haul or by others, else NULL.
 * Cheap when no object was loaded since the last call. Sets no detail. */
void *library_loaded(struct library *library);

/* For tests: closes the library. The table must be out of use. */
void library_forget(struct library *library);

#endif
