/* SPDX-License-Identifier: MIT
 * haul trace: a timeline of the activity of a node, for chrome://tracing and Perfetto. */
#include <errno.h>
#include <haul/stats.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
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
#define PAUSE_NS   20000000 /* between requests, after a response that was not full */
#define PAGE       1024     /* events a request */
#define PEERS      256      /* with names in the timeline */

struct values {
  const char *output;
  int64_t seconds, timeout;
};

static struct values given;

static const struct option_spec options[] = {
    {"output", OPTION_TEXT, offsetof(struct values, output), "FILE",
     "write the timeline to FILE; - is standard output"},
    {"seconds", OPTION_SECONDS, offsetof(struct values, seconds), "SECONDS",
     "record for this time, or until SIGINT (default: 5)"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "limit the wait for a response (default: 10)"},
    {0},
};

/* A recording of a node. */
struct recording {
  struct session session;
  struct haul_trace trace;
  struct timeline timeline;
  uint64_t events;
  uint64_t mapped; /* bytes that peers copied over map, until the start */
};

/* Requests events; *full: more events are ready. */
static int receive_events(struct recording *recording, bool *full) {
  static struct haul_trace_event events[PAGE];
  size_t count = PAGE;
  if (haul_peer_trace_of(recording->session.peer, connect_deadline(given.timeout),
                         &recording->trace, events, &count))
    return fail_library("cannot read the trace of the node");
  for (size_t i = 0; i < count; i++)
    timeline_event(&recording->timeline, &events[i]);
  recording->events += count;
  *full = count == PAGE;
  return EXIT_DONE;
}

/* Bytes that peers' transfers copied over map, since the node was opened. */
static uint64_t mapped_bytes(const struct haul_node_stats *stats) {
  for (int i = 0; i < HAUL_STATS_PATHS; i++)
    if (strcmp(stats->paths[i].path, "map") == 0)
      return stats->paths[i].served_in + stats->paths[i].served_out;
  return 0;
}

static void note_start(struct recording *recording) {
  struct haul_node_stats stats;
  size_t none = 0;
  if (haul_peer_stats_of(recording->session.peer, connect_deadline(given.timeout), &stats, NULL,
                         &none) == 0)
    recording->mapped = mapped_bytes(&stats);
}

/* Names the peers still connected at the end; others keep their numbers. Then `mapped` has the
 * bytes since the start. */
static void note_end(struct recording *recording) {
  static struct haul_peer_stats peers[PEERS];
  struct haul_node_stats stats;
  size_t count = PEERS;
  if (haul_peer_stats_of(recording->session.peer, connect_deadline(given.timeout), &stats, peers,
                         &count)) {
    recording->mapped = 0;
    return;
  }
  for (size_t i = 0; i < count && i < PEERS; i++)
    timeline_name(&recording->timeline, &peers[i]);
  uint64_t now = mapped_bytes(&stats), then = recording->mapped;
  recording->mapped = now > then ? now - then : 0;
}

/* If the node ends meanwhile, the timeline has its events until then. */
static int record_events(struct recording *recording, int64_t nanoseconds) {
  int64_t until = now_ns() + nanoseconds;
  bool full = true;
  int status = EXIT_DONE;
  while (status == EXIT_DONE && !interrupted() && now_ns() < until) {
    if (!full)
      nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    status = receive_events(recording, &full);
  }
  full = true; /* events since the last request */
  for (int64_t end = now_ns(); status == EXIT_DONE && full && now_ns() - end < SECONDS_NS;)
    status = receive_events(recording, &full);
  if (status == EXIT_DONE)
    note_end(recording);
  else
    recording->mapped = 0;
  return status;
}

/* outfile_write prints its own errors. */
static ssize_t write_to(void *cookie, const char *bytes, size_t length) {
  return outfile_write(cookie, bytes, length) == EXIT_DONE ? (ssize_t)length : 0;
}

static int record(struct recording *recording, struct outfile *file, int64_t nanoseconds) {
  size_t none = 0;
  /* The first request starts the recording and the timeline. */
  if (haul_peer_trace_of(recording->session.peer, connect_deadline(given.timeout),
                         &recording->trace, NULL, &none))
    return fail_library("cannot read the trace of the node");
  note_start(recording);
  FILE *out = fopencookie(file, "w", (cookie_io_functions_t){.write = write_to});
  if (!out)
    return fail_system(errno, "cannot write %s", file->label);
  timeline_begin(&recording->timeline, out, haul_peer_name(recording->session.peer),
                 recording->trace.clock_ns);
  fprintf(stderr, "watching %s\n", haul_peer_name(recording->session.peer));
  int status = record_events(recording, nanoseconds);
  timeline_end(&recording->timeline, recording->trace.clock_ns, recording->trace.lost);
  int failed = ferror(out);
  if (fclose(out) || failed)
    return EXIT_FAILED;
  int written = outfile_commit(file);
  if (written == EXIT_DONE)
    fprintf(stderr, "%" PRIu64 " events, %" PRIu64 " lost\n", recording->events,
            recording->trace.lost);
  if (written == EXIT_DONE && recording->mapped > 0)
    fail_note("peers moved %s over map meanwhile, which only traces of their own nodes show",
              size_text(recording->mapped).text);
  return status ? status : written;
}

static int run_trace(const struct command *self, char **operands) {
  struct recording recording = {0};
  struct outfile file;
  char address[ADDRESS_MAX];
  if (!given.output)
    return options_wrong(self, "missing option -o FILE");
  if (!options_address(self, operands[0], DEFAULT_PORT, address))
    return EXIT_USAGE;
  interrupt_catch();
  int status = outfile_open(&file, given.output, 0);
  if (status == EXIT_DONE)
    status = session_open(&recording.session, NULL, address, given.timeout);
  if (status == EXIT_DONE)
    status = record(&recording, &file, given.seconds ? given.seconds : SECONDS_NS);
  session_close(&recording.session);
  outfile_discard(&file);
  return status;
}

const struct command trace_command = {
    .name = "trace",
    .summary = "Write a timeline of the activity of a node",
    .usage = "NODE -o FILE [OPTIONS]",
    .about =
        "Records the activity of the node for some seconds in the Chrome trace event format, "
        "which\n"
        "chrome://tracing and https://ui.perfetto.dev open. Each peer and path has a track with\n"
        "the node's own transfers, their slices and, over tcp, writes and reads of the peer\n"
        "(\"for PEER\"). Copies of peers over map are not recorded: a note has their bytes. The "
        "node\n"
        "records only meanwhile, for peers that may use `haul top`.",
    .options = options,
    .letters = "o",
    .examples = "  haul trace 10.0.0.2 -o timeline.json\n"
                "  haul trace unix:///run/haul.sock -o - --seconds 1 | gzip >timeline.json.gz\n",
    .values = &given,
    .least = 1,
    .most = 1,
    .run = run_trace,
};
