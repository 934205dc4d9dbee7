/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/verbs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"

#define PACKAGES "sudo apt-get install libibverbs1 ibverbs-providers"

const char *verbs_library = "libibverbs.so.1";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below until published */
static void *library;
static struct verbs table;
static _Atomic(const struct verbs *) published;

struct symbol {
  const char *name;
  size_t slot; /* its offset in the table */
};

#define SYMBOL(field, symbol) {#symbol, offsetof(struct verbs, field)},
static const struct symbol required[] = {VERBS_REQUIRED(SYMBOL)};
static const struct symbol optional[] = {VERBS_OPTIONAL(SYMBOL)};
#undef SYMBOL

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Without a version the loader gives the symbol's default one, which is what a program that is
 * linked today gets. */
static void *look_up(void *from, const struct symbol *symbol) {
  void *found = dlsym(from, symbol->name);
  memcpy((char *)&table + symbol->slot, &found, sizeof found);
  return found;
}

static int fill_table(void *from) {
  for (size_t i = 0; i < COUNT(required); i++)
    if (!look_up(from, &required[i]))
      return error_set(HAUL_ENOTSUP, 0, verbs_library,
                       "libibverbs has no %s: it is older than rdma-core 32|install a newer "
                       "one: " PACKAGES,
                       required[i].name);
  for (size_t i = 0; i < COUNT(optional); i++)
    look_up(from, &optional[i]);
  return 0;
}

static const char *loader_words(void) {
  const char *words = dlerror();
  return words ? words : "the loader does not say why";
}

/* Before Linux 5.12 a fork takes registered pages away from the parent, unless the library keeps
 * them from its children. Later it is not needed, and does harm: children lack all that is
 * registered, each registration costs an madvise, and one that fails leaves that call's errno. It
 * fails where the application registered memory before us, and then what the application chose
 * stands. */
static void guard_against_forks(void) {
  if (!table.is_fork_initialized || table.is_fork_initialized() != IBV_FORK_UNNEEDED)
    table.fork_init();
}

/* With the lock. */
static int open_library(void) {
  void *opened = dlopen(verbs_library, RTLD_NOW | RTLD_LOCAL);
  if (!opened)
    return error_set(HAUL_ENOTSUP, 0, verbs_library,
                     "libibverbs cannot be opened: %.120s|" PACKAGES, loader_words());
  int code = fill_table(opened);
  if (code) {
    dlclose(opened);
    return code;
  }
  library = opened;
  guard_against_forks();
  atomic_store_explicit(&published, &table, memory_order_release);
  return 0;
}

int verbs_open(const struct verbs **verbs) {
  *verbs = atomic_load_explicit(&published, memory_order_acquire);
  if (*verbs)
    return 0;
  pthread_mutex_lock(&lock);
  int code = library ? 0 : open_library();
  pthread_mutex_unlock(&lock);
  if (code == 0)
    *verbs = &table;
  return code;
}

void verbs_forget(void) {
  pthread_mutex_lock(&lock);
  atomic_store(&published, NULL);
  if (library)
    dlclose(library);
  library = NULL;
  pthread_mutex_unlock(&lock);
}

/* The symbol knows the shorter struct of the first libraries, which ends before the fields that
 * the context's own call fills. */
int verbs_query_port(const struct verbs *verbs, struct ibv_context *context, unsigned port,
                     struct ibv_port_attr *attributes) {
  struct verbs_context *extended = __extension__ verbs_get_ctx_op(context, query_port);
  memset(attributes, 0, sizeof *attributes);
  if (extended)
    return extended->query_port(context, (uint8_t)port, attributes, sizeof *attributes);
  return verbs->query_port_short(context, (uint8_t)port,
                                 (struct _compat_ibv_port_attr *)(void *)attributes);
}
