/* SPDX-License-Identifier: MIT
 * The paths in words: what each would cost, and why it is not taken. */
#include <stdio.h>
#include <string.h>

#include "transfer/transfer.h"

/* The slices of a pipeline, of which there are several. */
static void say_slices(struct route *route, size_t i, uint64_t bytes,
                       const struct constraints *constraints, struct haul_path *path) {
  const struct tune *slices = route_slices(route, i);
  size_t at = strlen(path->detail);
  if (!slices)
    return;
  uint32_t slice = constraints->slice ? constraints->slice : slice_best(slices, bytes);
  if (path->open && bytes > slice)
    snprintf(path->detail + at, sizeof path->detail - at, "%sslices of %u %s", at ? ", " : "",
             slice >> 20 ? slice >> 20 : slice >> 10, slice >> 20 ? "MiB" : "KiB");
}

static enum send_mode mode_of(const struct haul_remote *remote, size_t i,
                              const struct estimate *estimate, uint64_t bytes, uint64_t pieces) {
  enum send_mode mode = lines_mode(estimate->lines, bytes);
  bool as_small = bytes < pieces * estimate->small_piece ||
                  atomic_load(&remote->link->endpoints[i]->no_zero_copy);
  return mode == SEND_ZERO_COPY && as_small && estimate->lines[SEND_BUFFERED].most ? SEND_BUFFERED
                                                                                   : mode;
}

static void say_cost(const struct route *route, size_t i, uint64_t bytes, struct haul_path *path) {
  bool known;
  path->cost_ns = route_cost(route, i, bytes, &known);
  path->estimate_ns = lines_ns(route->estimates[i].lines, bytes);
  path->measured = known;
}

static void describe(const struct haul_remote *remote, size_t i, struct route *route,
                     uint64_t bytes, uint64_t pieces, const struct constraints *constraints,
                     int chosen, struct haul_path *path) {
  static const char *const words[] = {"short", "buffered", "direct"};
  const struct estimate *estimate = &route->estimates[i];
  enum send_mode mode = mode_of(remote, i, estimate, bytes, pieces);
  bool again = mode == SEND_BUFFERED && estimate->lines[SEND_ZERO_COPY].most;
  const char *reason = route_refusal(remote, route, i, constraints);
  memset(path, 0, sizeof *path);
  snprintf(path->name, sizeof path->name, "%s", transport_at(i)->name);
  path->chosen = (int)i == chosen;
  path->open = reason[0] == '\0' || path->chosen;
  path->copies_cpu = estimate->copies_cpu;
  path->copies_kernel = estimate->copies_kernel + (again ? estimate->copies_kernel_buffered : 0);
  path->copies_dma = estimate->copies_dma;
  path->zero_copy = estimate->zero_copy;
  snprintf(path->detail, sizeof path->detail, "%s", estimate->detail);
  if (path->open) {
    snprintf(path->send, sizeof path->send, "%s", words[mode]);
    say_cost(route, i, bytes, path);
  } else {
    snprintf(path->reason, sizeof path->reason, "%s", reason);
  }
  say_slices(route, i, bytes, constraints, path);
}

/* The chosen one first, then the open ones by cost, then the closed ones. */
static bool goes_before(const struct haul_path *a, const struct haul_path *b) {
  if (a->chosen != b->chosen)
    return a->chosen;
  if (a->open != b->open)
    return a->open;
  return a->open && a->cost_ns < b->cost_ns;
}

/* Why an open one is not taken. `set`: who said that another is, or "". */
static void compare(const struct haul_path *chosen, const char *set, struct haul_path *path) {
  double times = path->cost_ns / (chosen->cost_ns > 0 ? chosen->cost_ns : 1);
  const char *how = path->measured && chosen->measured ? "measured" : "estimated";
  if (times < 0.95)
    snprintf(path->reason, sizeof path->reason, "%s %.1f times faster%s%s", how, 1 / times,
             *set ? ", but another is set by " : " since", set);
  else if (times < 1.05)
    snprintf(path->reason, sizeof path->reason, "%s about as fast", how);
  else
    snprintf(path->reason, sizeof path->reason, "%s %.1f times slower", how, times);
}

/* Why it is taken, where it is not what one would expect by the estimates. */
static void say_why(const struct haul_path *paths, size_t count, bool any, bool estimates_only,
                    const char *set, struct haul_path *chosen) {
  bool expected = true;
  for (size_t i = 0; i < count; i++)
    expected &= !paths[i].open || paths[i].estimate_ns >= chosen->estimate_ns;
  if (*set)
    snprintf(chosen->reason, sizeof chosen->reason, "set by %s", set);
  else if (any && !expected && chosen->measured)
    snprintf(chosen->reason, sizeof chosen->reason, "by what was measured");
  else if (any && estimates_only)
    snprintf(chosen->reason, sizeof chosen->reason, "by estimates alone, as set");
}

size_t route_paths(const struct haul_remote *remote, struct route *route, uint64_t bytes,
                   uint64_t pieces, const struct constraints *constraints, int chosen,
                   struct haul_path *paths) {
  bool ruled = chosen >= 0 && route_rule(remote, bytes, constraints) == chosen;
  const char *set = ruled ? remote->transfers->rules.origin : "";
  size_t count = 0;
  for (size_t i = 0; transport_at(i); i++) {
    struct haul_path path;
    describe(remote, i, route, bytes, pieces, constraints, chosen, &path);
    size_t at = count++;
    for (; at > 0 && goes_before(&path, &paths[at - 1]); at--)
      paths[at] = paths[at - 1];
    paths[at] = path;
  }
  if (!paths[0].chosen)
    return count;
  for (size_t i = 1; i < count; i++)
    if (paths[i].open)
      compare(&paths[0], set, &paths[i]);
  say_why(paths, count, !constraints->only, remote->transfers->estimates_only, set, &paths[0]);
  return count;
}
