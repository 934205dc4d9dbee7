/* SPDX-License-Identifier: MIT
 *
 * What --all-paths measures.
 */
#include <string.h>

#include "bench.h"
#include "command.h"
#include "common/fail.h"
#include "common/words.h"

/* The library puts the best one first, which may be another one from run to run. */
static bool goes_before(const struct haul_path *a, const struct haul_path *b) {
  if (a->open != b->open)
    return a->open;
  return strcmp(a->name, b->name) < 0;
}

static void add(struct bench_paths *paths, const struct haul_path *path) {
  size_t at = paths->count++;
  for (; at > 0 && goes_before(path, &paths->list[at - 1]); at--)
    paths->list[at] = paths->list[at - 1];
  paths->list[at] = *path;
  paths->open += path->open != 0;
}

int bench_paths_find(struct bench *bench) {
  struct haul_path found[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  enum haul_operation operation = bench->operation == BENCH_WRITE ? HAUL_OP_WRITE : HAUL_OP_READ;
  /* Which are open is the same for all sizes. */
  if (haul_explain(bench->local, bench->session.remote, operation, bench->sizes.list[0],
                   &bench->options, found, &count))
    return fail_library("cannot tell the paths to '%s'", bench->region);
  bench->paths.open = bench->paths.count = 0;
  for (size_t i = 0; i < count && i < HAUL_PATHS_MAX; i++) {
    words_of_command(found[i].reason, sizeof(found[i].reason));
    add(&bench->paths, &found[i]);
  }
  for (size_t i = bench->paths.open; i < bench->paths.count; i++)
    fail_note("%s is not measured: %s", bench->paths.list[i].name, bench->paths.list[i].reason);
  return bench->paths.open ? EXIT_DONE
                           : fail_because(NULL, "no path to '%s' is open", bench->region);
}
