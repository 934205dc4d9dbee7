/* SPDX-License-Identifier: MIT
 * haul bench: bandwidth and latency against a running node. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/gnuplot.h"
#include "common/options.h"
#include "common/output.h"
#include "common/progress.h"
#include "common/text.h"

#define DURATION_DEFAULT INT64_C(1000000000)
#define DEPTH_DEFAULT    8
#define LOCAL_MAX        (UINT64_C(64) << 20) /* slots share local memory beyond this */

struct values {
  const char *region, *operation, *sizes, *place, *plot;
  int64_t duration;
  unsigned depth;
  struct transfer_choices transfer;
  int all_paths, poll, json, csv;
};

static struct values given = {
    .operation = "write", .place = "host", .duration = DURATION_DEFAULT, .depth = DEPTH_DEFAULT};

static const struct option_spec options[] = {
    {"op", OPTION_TEXT, offsetof(struct values, operation), "write|read|message",
     "measure this operation (default: write)"},
    {"region", OPTION_TEXT, offsetof(struct values, region), "NAME",
     "use this region (default: the largest that allows the operation)"},
    {"sizes", OPTION_TEXT, offsetof(struct values, sizes), "LIST",
     "measure these sizes, for example 8,4K,1M or, doubling, 8..64M (default: 8..64M)"},
    {"duration", OPTION_SECONDS, offsetof(struct values, duration), "SECONDS",
     "measure each size for this time, half of it latency (default: 1)"},
    {"depth", OPTION_COUNT, offsetof(struct values, depth), "N",
     "keep N transfers in flight for the bandwidth (default: 8, at most 256)"},
    {"place", OPTION_TEXT, offsetof(struct values, place), "PLACE",
     "allocate the local memory at PLACE (default: host)"},
    OPTION_ENTRY_ONLY(values),
    {"all-paths", OPTION_FLAG, offsetof(struct values, all_paths), NULL,
     "measure each open path, and print why the others are closed"},
    OPTION_ENTRY_CHECKSUM(values),
    OPTION_ENTRY_ZERO_COPY(values),
    {"poll", OPTION_FLAG, offsetof(struct values, poll), NULL, "never sleep while waiting"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {"csv", OPTION_FLAG, offsetof(struct values, csv), NULL, "print comma-separated values"},
    {"plot", OPTION_TEXT, offsetof(struct values, plot), "FILE.svg",
     "plot bandwidth and latency over size, or the bandwidth of all paths, with gnuplot;\n"
     "                               -: the bandwidth as text, as on a terminal"},
    {0},
};

static const struct operation {
  const char *name;
  enum bench_operation operation;
  unsigned rights; /* needed rights; 0: no region */
  const char *sizes;
} operations[] = {
    {"write", BENCH_WRITE, HAUL_WRITE, "8..64M"},
    {"read", BENCH_READ, HAUL_READ, "8..64M"},
    {"message", BENCH_MESSAGE, 0, "8..1M"},
};

static const struct operation *find_operation(const char *name) {
  for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
    if (strcmp(operations[i].name, name) == 0)
      return &operations[i];
  return NULL;
}

struct job {
  const struct operation *operation;
  struct bench bench;
  struct gnuplot *plot;
};

static bool add_size(struct bench_sizes *sizes, uint64_t size) {
  if (size == 0 || sizes->count == BENCH_SIZES_MAX)
    return false;
  sizes->list[sizes->count++] = size;
  return true;
}

/* Adds doubled sizes from the first to the last, which is always included. */
static bool add_range(struct bench_sizes *sizes, uint64_t first, uint64_t last) {
  if (first == 0 || first > last)
    return false;
  for (uint64_t size = first; size < last; size *= 2) {
    if (!add_size(sizes, size))
      return false;
    if (size > UINT64_MAX / 2)
      break;
  }
  return add_size(sizes, last);
}

static bool add_item(struct bench_sizes *sizes, char *item) {
  uint64_t first, last;
  char *dots = strstr(item, "..");
  if (!dots)
    return size_parse(item, &first) && add_size(sizes, first);
  *dots = '\0';
  return size_parse(item, &first) && size_parse(dots + 2, &last) && add_range(sizes, first, last);
}

static bool parse_sizes(const char *text, struct bench_sizes *sizes) {
  char copy[512];
  size_t length = strlen(text);
  sizes->count = 0;
  if (length >= sizeof(copy))
    return false;
  memcpy(copy, text, length + 1);
  char *rest = copy;
  for (char *item; (item = strsep(&rest, ",")) != NULL;)
    if (!add_item(sizes, item))
      return false;
  return sizes->count > 0;
}

/* Orders by name, as the order of the library may change from run to run. */
static bool goes_before(const struct haul_path *a, const struct haul_path *b) {
  if (a->open != b->open)
    return a->open;
  return strcmp(a->name, b->name) < 0;
}

static void add_path(struct bench_paths *paths, const struct haul_path *path) {
  size_t at = paths->count++;
  for (; at > 0 && goes_before(path, &paths->list[at - 1]); at--)
    paths->list[at] = paths->list[at - 1];
  paths->list[at] = *path;
  paths->open += path->open != 0;
}

static int find_bench_paths(struct bench *bench) {
  struct haul_path found[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  enum haul_operation operation = bench->operation == BENCH_WRITE ? HAUL_OP_WRITE : HAUL_OP_READ;
  /* The set of open paths is the same for all sizes. */
  if (haul_explain(bench->local, bench->session.remote, operation, bench->sizes.list[0],
                   &bench->options, found, &count))
    return fail_library("cannot list the paths to '%s'", bench->region);
  bench->paths.open = bench->paths.count = 0;
  for (size_t i = 0; i < count && i < HAUL_PATHS_MAX; i++) {
    use_command_terms(found[i].reason, sizeof(found[i].reason));
    add_path(&bench->paths, &found[i]);
  }
  for (size_t i = bench->paths.open; i < bench->paths.count; i++)
    fail_note("%s is not measured: %s", bench->paths.list[i].name, bench->paths.list[i].reason);
  return bench->paths.open ? EXIT_DONE
                           : fail_because(NULL, "no path to '%s' is open", bench->region);
}

/* The larger region, of two of one size that in host memory. */
static bool is_better(const struct haul_published *one, const struct haul_published *other) {
  return !other || one->length > other->length ||
         (one->length == other->length && one->place.kind == HAUL_HOST &&
          other->place.kind != HAUL_HOST);
}

static int choose_region(struct job *job) {
  struct haul_published *entries, *best = NULL;
  size_t count;
  if (given.region) {
    snprintf(job->bench.region, sizeof(job->bench.region), "%s", given.region);
    return EXIT_DONE;
  }
  int status = session_list(&job->bench.session, 0, &entries, &count);
  if (status)
    return status;
  for (size_t i = 0; i < count; i++)
    if (entries[i].rights & job->operation->rights && is_better(&entries[i], best))
      best = &entries[i];
  bool found = best != NULL;
  if (found)
    snprintf(job->bench.region, sizeof(job->bench.region), "%s", best->name);
  free(entries);
  if (found)
    return EXIT_DONE;
  return fail_because("publish one: haul serve --region NAME=host:64M",
                      "the node has no region that allows %s", job->operation->name);
}

/* Sizes of the user must fit; the default sweep is cut. */
static int fit_sizes(struct job *job, uint64_t room) {
  struct bench_sizes *sizes = &job->bench.sizes;
  size_t kept = 0;
  for (size_t i = 0; i < sizes->count; i++) {
    if (sizes->list[i] <= room)
      sizes->list[kept++] = sizes->list[i];
    else if (given.sizes)
      return fail_because("choose smaller --sizes or another --region", "%s exceeds %s: %s",
                          size_text(sizes->list[i]).text,
                          job->operation->rights ? job->bench.region : "a message",
                          size_text(room).text);
  }
  sizes->count = kept;
  return kept ? EXIT_DONE
              : fail_because("choose another --region", "region '%s' is too small",
                             job->bench.region);
}

static int find_room(struct job *job) {
  if (!job->operation->rights)
    return fit_sizes(job, HAUL_MESSAGE_MAX);
  int status = choose_region(job);
  if (status == EXIT_DONE)
    status = session_lookup(&job->bench.session, job->bench.region, 0);
  if (status == EXIT_DONE)
    status = fit_sizes(job, haul_remote_length(job->bench.session.remote));
  return status;
}

/* Allocates all slots of the largest size, at most LOCAL_MAX. Messages need host memory. */
static int allocate(struct job *job) {
  const struct haul_place host = {HAUL_HOST, 0};
  struct bench *bench = &job->bench;
  bool message = job->operation->operation == BENCH_MESSAGE;
  uint64_t largest = 0, length = 0;
  for (size_t i = 0; i < job->bench.sizes.count; i++)
    largest = job->bench.sizes.list[i] > largest ? job->bench.sizes.list[i] : largest;
  if (!__builtin_mul_overflow(largest, bench->depth, &length) && length > LOCAL_MAX)
    length = LOCAL_MAX;
  if (length < largest)
    length = largest;
  struct haul_place place = message ? host : job->bench.place;
  if (haul_region_alloc(bench->session.node, place, (size_t)length, 0, &bench->local))
    return fail_library("cannot allocate %s at %s", size_text(length).text, place_text(place).text);
  if (place.kind == HAUL_HOST)
    memset(haul_region_address(bench->local), 0x5a, (size_t)length);
  return EXIT_DONE;
}

/* Measures each path in turn for one size: a machine that slows down during the sweep then affects
 * all of them. */
static int measure_size(struct job *job, uint64_t size, enum bench_form form) {
  struct bench *bench = &job->bench;
  size_t paths = bench->paths.open;
  for (size_t i = 0; i < (paths ? paths : 1); i++) {
    struct bench_row *row = &bench->rows[bench->row_count];
    if (paths)
      bench->options.only = bench->paths.list[i].name;
    int status = bench_measure(bench, size, row);
    if (status)
      return status;
    bench->row_count++;
    progress_hide();
    bench_print_row(row, form);
  }
  return EXIT_DONE;
}

static int sweep(struct job *job) {
  struct bench *bench = &job->bench;
  enum bench_form form = given.json ? FORM_JSON : given.csv ? FORM_CSV : FORM_TEXT;
  struct progress progress;
  progress_begin(&progress, "bench", 0, false);
  bench_print_heading(bench, form);
  for (size_t i = 0; i < bench->sizes.count; i++) {
    progress_step(&progress, i, bench->sizes.count, size_text(bench->sizes.list[i]).text);
    int status = measure_size(job, bench->sizes.list[i], form);
    if (status)
      return status;
  }
  bench_print_end(bench, form);
  return EXIT_DONE;
}

static bool plots_text(void) {
  return given.plot ? strcmp(given.plot, "-") == 0 : isatty(STDOUT_FILENO);
}

static int draw(struct job *job) {
  char title[1024];
  if (plots_text() && !given.json && !given.csv)
    bench_print_plot(&job->bench, terminal_columns());
  if (!job->plot)
    return EXIT_DONE;
  snprintf(title, sizeof(title), "haul bench: %s %s %s", job->operation->name, job->bench.address,
           job->bench.region);
  return bench_plot(job->plot, title, &job->bench);
}

static int measure(struct job *job) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER;
  config.spin_ns = given.poll ? HAUL_SPIN_ALWAYS : 0;
  int status = session_open(&job->bench.session, &config, job->bench.address, 0);
  if (status == EXIT_DONE)
    status = find_room(job);
  if (status == EXIT_DONE)
    status = allocate(job);
  if (status == EXIT_DONE && given.all_paths)
    status = find_bench_paths(&job->bench);
  if (status == EXIT_DONE && given.plot && !plots_text())
    status = gnuplot_open(given.plot, &job->plot);
  if (status == EXIT_DONE)
    status = sweep(job);
  if (status == EXIT_DONE)
    status = draw(job);
  gnuplot_close(job->plot);
  haul_region_release(job->bench.local);
  session_close(&job->bench.session);
  return status;
}

static int check_values(const struct command *self, struct job *job, const char *node) {
  job->operation = find_operation(given.operation);
  if (!job->operation)
    return options_wrong(self, "invalid --op '%s': expected write, read or message",
                         given.operation);
  if (!options_address(self, node, DEFAULT_PORT, job->bench.address) ||
      !options_place(self, given.place, &job->bench.place))
    return EXIT_USAGE;
  if (!parse_sizes(given.sizes ? given.sizes : job->operation->sizes, &job->bench.sizes))
    return options_wrong(self, "invalid --sizes '%s': expected for example 8,4K or 8..64M",
                         given.sizes);
  if (given.depth > BENCH_DEPTH_MAX)
    return options_wrong(self, "invalid --depth: expected at most %d", BENCH_DEPTH_MAX);
  if (given.json && given.csv)
    return options_wrong(self, "--json and --csv exclude each other");
  if ((given.json || given.csv) && given.plot && strcmp(given.plot, "-") == 0)
    return options_wrong(self, "--plot - excludes --json and --csv: standard output has one form");
  if (given.all_paths && given.transfer.only)
    return options_wrong(self, "--all-paths and --only exclude each other");
  if (given.all_paths && !job->operation->rights)
    return options_wrong(self, "--all-paths does not work with --op message");
  return EXIT_DONE;
}

static int run_bench(const struct command *self, char **operands) {
  struct job job = {0};
  int status = check_values(self, &job, operands[0]);
  if (status)
    return status;
  job.bench.operation = job.operation->operation;
  job.bench.operation_name = job.operation->name;
  job.bench.options = transfer_options(&given.transfer);
  job.bench.depth = given.depth;
  job.bench.duration = given.duration;
  return measure(&job);
}

const struct command bench_command = {
    .name = "bench",
    .summary = "Measure bandwidth and latency against a running node",
    .usage = "NODE [OPTIONS]",
    .about =
        "Measures for each size the latency of one operation at a time (a message: its round\n"
        "trip), then the bandwidth with --depth in flight. Writes overwrite the region. The\n"
        "latency of messages needs `haul serve --echo`; measure their rate without it. With\n"
        "--all-paths each size is measured over each open path, and --plot draws one curve a path.",
    .options = options,
    .examples = "  haul bench 127.0.0.1:7420\n"
                "  haul bench unix:///run/haul.sock --op read --sizes 4K,1M,64M --only map --json\n"
                "  haul bench 127.0.0.1:7420 --all-paths --plot paths.svg\n"
                "  haul bench 127.0.0.1:7420 --sizes 4K..64M --plot - >plot.txt\n"
                "  haul bench 127.0.0.1:7420 --op message --sizes 8..64K --plot messages.svg\n",
    .values = &given,
    .least = 1,
    .most = 1,
    .run = run_bench,
};
