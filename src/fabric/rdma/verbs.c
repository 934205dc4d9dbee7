/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/verbs.h"

#include <string.h>

static struct verbs table;

#define SYMBOL(field, symbol) {#symbol, offsetof(struct verbs, field)},
static const struct library_symbol required[] = {VERBS_REQUIRED(SYMBOL)};
static const struct library_symbol optional[] = {VERBS_OPTIONAL(SYMBOL)};
#undef SYMBOL

/* Before Linux 5.12 a fork takes registered pages away from the parent, unless the library keeps
 * them from its children. Later it is not needed, and does harm: children lack all that is
 * registered, each registration costs an madvise, and one that fails leaves that call's errno. It
 * fails where the application registered memory before us, and then what the application chose
 * stands. */
static void guard_against_forks(void) {
  if (!table.is_fork_initialized || table.is_fork_initialized() != IBV_FORK_UNNEEDED)
    table.fork_init();
}

struct library verbs_library = {
    .title = "libibverbs",
    .names = {"libibverbs.so.1"},
    .since = "rdma-core 32",
    .packages = "libibverbs1 ibverbs-providers",
    .required = required,
    .required_count = LIBRARY_COUNT(required),
    .optional = optional,
    .optional_count = LIBRARY_COUNT(optional),
    .table = &table,
    .opened = guard_against_forks,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

const struct verbs *verbs_open(void) {
  return library_open(&verbs_library);
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
