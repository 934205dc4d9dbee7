/* SPDX-License-Identifier: MIT
 *
 * haul trace: a timeline of what a node does, for chrome://tracing and Perfetto.
 */
#include <errno.h>
#include <haul/stats.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/outfile.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"
#include "trace_events.h"

#define SECONDS_NS INT64_C(5000000000)
#define PAUSE_NS   20000000 /* between two questions that were answered to the end */
#define PAGE       1024     /* events a question */
#define PEERS      256      /* that are named */

struct values {
  const char *output;
  int64_t seconds, timeout;
};

static const struct option_spec options[] = {
    {"output", OPTION_TEXT, offsetof(struct values, output), "FILE",
     "write the timeline there; - is standard output"},
    {"seconds", OPTION_SECONDS, offsetof(struct values, seconds), "SECONDS",
     "for so long, or until SIGINT (default: 5)"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "give up when the node does not answer in this time (default: 10)"},
    {0},
};

/* A node that is watched. */
struct watching {
  struct session session;
  int64_t wait_ns;
  struct haul_trace trace;
  struct timeline timeline;
  uint64_t events;
};

/* One question; *full: there may be more at once. */
static int look(struct watching *watching, bool *full) {
  static struct haul_trace_event events[PAGE];
  size_t count = PAGE;
  if (haul_peer_trace_of(watching->session.peer, haul_deadline_in(watching->wait_ns),
                         &watching->trace, events, &count))
    return fail_library("cannot see what the node is doing");
  for (size_t i = 0; i < count; i++)
    timeline_event(&watching->timeline, &events[i]);
  watching->events += count;
  *full = count == PAGE;
  return EXIT_DONE;
}

/* Who is still there at the end has a name; others have their numbers. */
static void name_peers(struct watching *watching) {
  static struct haul_peer_stats peers[PEERS];
  struct haul_node_stats stats;
  size_t count = PEERS;
  if (haul_peer_stats_of(watching->session.peer, haul_deadline_in(watching->wait_ns), &stats, peers,
                         &count))
    return;
  for (size_t i = 0; i < count && i < PEERS; i++)
    timeline_name(&watching->timeline, &peers[i]);
}

/* A node that ends meanwhile has told what it did until then. */
static int watch(struct watching *watching, int64_t nanoseconds) {
  int64_t until = now_ns() + nanoseconds;
  bool full = true;
  int status = EXIT_DONE;
  while (status == EXIT_DONE && !interrupted() && now_ns() < until) {
    if (!full)
      nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    status = look(watching, &full);
  }
  full = true; /* what came since the last question */
  for (int64_t end = now_ns(); status == EXIT_DONE && full && now_ns() - end < SECONDS_NS;)
    status = look(watching, &full);
  if (status == EXIT_DONE)
    name_peers(watching);
  return status;
}

/* The file's own failures are told by outfile. */
static ssize_t write_to(void *cookie, const char *bytes, size_t length) {
  return outfile_write(cookie, bytes, length) == EXIT_DONE ? (ssize_t)length : 0;
}

static int record(struct watching *watching, struct outfile *file, int64_t nanoseconds) {
  size_t none = 0;
  /* The recording begins with the first question, and so does the timeline. */
  if (haul_peer_trace_of(watching->session.peer, haul_deadline_in(watching->wait_ns),
                         &watching->trace, NULL, &none))
    return fail_library("cannot see what the node is doing");
  FILE *out = fopencookie(file, "w", (cookie_io_functions_t){.write = write_to});
  if (!out)
    return fail_system(errno, "cannot write %s", file->label);
  timeline_begin(&watching->timeline, out, haul_peer_name(watching->session.peer),
                 watching->trace.clock_ns);
  fprintf(stderr, "watching %s\n", haul_peer_name(watching->session.peer));
  int status = watch(watching, nanoseconds);
  timeline_end(&watching->timeline, watching->trace.clock_ns, watching->trace.lost);
  int failed = ferror(out);
  if (fclose(out) || failed)
    return EXIT_FAILED;
  int written = outfile_commit(file);
  if (written == EXIT_DONE)
    fprintf(stderr, "%" PRIu64 " events, %" PRIu64 " lost\n", watching->events,
            watching->trace.lost);
  return status ? status : written;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {0};
  struct watching watching = {0};
  struct outfile file;
  char address[ADDRESS_MAX];
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){1, 1}, &operands, &status))
    return status;
  if (!values.output)
    return options_wrong(self, "-o says which file is written");
  if (!options_address(self, operands[0], DEFAULT_PORT, address))
    return EXIT_USAGE;
  watching.wait_ns = values.timeout ? values.timeout : CONNECT_TIMEOUT_NS;
  interrupt_catch();
  status = outfile_open(&file, values.output, 0);
  if (status == EXIT_DONE)
    status = session_open(&watching.session, NULL, address, values.timeout);
  if (status == EXIT_DONE)
    status = record(&watching, &file, values.seconds ? values.seconds : SECONDS_NS);
  session_close(&watching.session);
  outfile_discard(&file);
  return status;
}

const struct command trace_command = {
    .name = "trace",
    .summary = "Write a timeline of what a node does",
    .usage = "NODE -o FILE [OPTIONS]",
    .about =
        "Watches the node for some seconds, and writes what it did in the Chrome trace event\n"
        "format, which chrome://tracing and https://ui.perfetto.dev open. There is a track for\n"
        "each peer and path: transfers of the node's own, their slices, and, over tcp, what\n"
        "peers write there and read (\"for PEER\"). The node records while it is watched, and\n"
        "tells those whom it tells `haul top`.",
    .options = options,
    .letters = "o",
    .examples = "  haul trace 10.0.0.2 -o timeline.json\n"
                "  haul trace unix:///run/haul.sock -o - --seconds 1 | gzip >timeline.json.gz\n",
    .run = run,
};
