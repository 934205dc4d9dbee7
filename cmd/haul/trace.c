/* SPDX-License-Identifier: MIT
 * haul trace: a timeline of the activity of one or two nodes, for chrome://tracing and Perfetto. */
#include <errno.h>
#include <haul/stats.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/outfile.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"
#include "trace_clock.h"
#include "trace_events.h"
#include "trace_link.h"

#define SECONDS_NS  INT64_C(5000000000)
#define PAUSE_NS    20000000 /* between requests, after a response that was not full */
#define PAGE        1024     /* events a request */
#define PEERS       256      /* with names in the timeline */
#define NODES       2
#define CLOCK_READS 16

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

/* A node and its events. */
struct recording {
  struct session session;
  struct haul_trace trace;
  struct clock_fit clock;
  struct timeline timeline;
  uint64_t count;  /* of events */
  uint64_t mapped; /* bytes that peers copied over map: until the start, then since it */
  bool failed;     /* a request failed, which has been reported */
  /* Beside another node events are kept until both clocks are known; else `events` is NULL. */
  struct haul_trace_event *events;
  size_t room;
  struct haul_peer_stats peers[PEERS]; /* connected at the end; others have no name */
  struct links links;
};

struct file {
  unsigned count; /* of nodes */
  struct recording nodes[NODES];
  struct outfile out;
  struct json json;
};

static void keep_event(struct recording *node, const struct haul_trace_event *event) {
  if (node->timeline.processes == 1) {
    timeline_event(&node->timeline, event);
    return;
  }
  node->events = must_grow(node->events, node->count, &node->room, sizeof *node->events);
  node->events[node->count] = *event;
}

/* Requests events; *full: more events are ready. */
static int receive_events(struct recording *node, bool *full) {
  static struct haul_trace_event events[PAGE];
  size_t count = PAGE;
  if (haul_peer_trace_of(node->session.peer, connect_deadline(given.timeout), &node->trace, events,
                         &count)) {
    node->failed = true;
    return fail_library("cannot read the trace of the node");
  }
  for (size_t i = 0; i < count; i++, node->count++)
    keep_event(node, &events[i]);
  *full = count == PAGE;
  return EXIT_DONE;
}

/* Reads the clock of the node some times, and no events. The first request starts the recording. */
static int read_clock(struct recording *node, int times, struct clock_sample *best) {
  for (int i = 0; i < times; i++) {
    size_t none = 0;
    struct clock_sample sample = {.sent = now_ns()};
    if (haul_peer_trace_of(node->session.peer, connect_deadline(given.timeout), &node->trace, NULL,
                           &none)) {
      node->failed = true;
      return fail_library("cannot read the trace of the node");
    }
    sample.received = now_ns();
    sample.theirs = node->trace.clock_ns;
    clock_keep_shorter(best, sample);
  }
  return EXIT_DONE;
}

/* Bytes that peers' transfers copied over map, since the node was opened. */
static uint64_t mapped_bytes(const struct haul_node_stats *stats) {
  for (int i = 0; i < HAUL_STATS_PATHS; i++)
    if (strcmp(stats->paths[i].path, "map") == 0)
      return stats->paths[i].served_in + stats->paths[i].served_out;
  return 0;
}

static void note_start(struct recording *node) {
  struct haul_node_stats stats;
  size_t none = 0;
  node->mapped = UINT64_MAX;
  if (haul_peer_stats_of(node->session.peer, connect_deadline(given.timeout), &stats, NULL,
                         &none) == 0)
    node->mapped = mapped_bytes(&stats);
}

static void read_peers(struct recording *node) {
  struct haul_node_stats stats;
  size_t count = PEERS;
  uint64_t then = node->mapped;
  node->mapped = 0;
  if (haul_peer_stats_of(node->session.peer, connect_deadline(given.timeout), &stats, node->peers,
                         &count))
    return;
  uint64_t now = mapped_bytes(&stats);
  node->mapped = now > then ? now - then : 0;
  node->links.peers = node->peers;
  node->links.peer_count = count < PEERS ? count : PEERS;
}

static void name_peers(struct recording *node) {
  for (size_t i = 0; i < node->links.peer_count; i++)
    timeline_name(&node->timeline, &node->peers[i]);
}

/* Ends the recording: events since the last request, and what is read once. */
static int end_recording(struct recording *node) {
  bool full = true;
  int status = EXIT_DONE;
  for (int64_t end = now_ns(); status == EXIT_DONE && full && now_ns() - end < SECONDS_NS;)
    status = receive_events(node, &full);
  if (status == EXIT_DONE && node->timeline.processes > 1)
    status = read_clock(node, CLOCK_READS, &node->clock.last);
  if (status == EXIT_DONE)
    read_peers(node);
  return status;
}

/* If a node ends meanwhile, the timeline has the events until then. */
static int record_events(struct file *file, int64_t nanoseconds) {
  int64_t until = now_ns() + nanoseconds;
  bool full = true;
  int status = EXIT_DONE;
  while (status == EXIT_DONE && !interrupted() && now_ns() < until) {
    if (!full)
      nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    full = false;
    for (unsigned i = 0; status == EXIT_DONE && i < file->count; i++) {
      bool more = false;
      status = receive_events(&file->nodes[i], &more);
      full |= more;
    }
  }
  for (unsigned i = 0; i < file->count; i++)
    if (!file->nodes[i].failed && end_recording(&file->nodes[i]) != EXIT_DONE)
      status = EXIT_FAILED;
  return status;
}

/* outfile_write prints its own errors. */
static ssize_t write_to(void *cookie, const char *bytes, size_t length) {
  return outfile_write(cookie, bytes, length) == EXIT_DONE ? (ssize_t)length : 0;
}

static void name_process(const struct recording *node, int64_t error, char name[128]) {
  snprintf(name, 128, "haul %.64s", haul_peer_name(node->session.peer));
  if (error >= 0)
    snprintf(name + strlen(name), 128 - strlen(name), " (times +-%s)",
             time_text((double)error).text);
  text_clean(name);
}

static int record_one(struct file *file, int64_t nanoseconds) {
  struct recording *node = &file->nodes[0];
  char name[128];
  name_process(node, -1, name);
  timeline_begin(&node->timeline, name, node->trace.clock_ns);
  int status = record_events(file, nanoseconds);
  name_peers(node);
  timeline_end(&node->timeline, node->trace.clock_ns);
  timeline_file_end(&file->json);
  json_number(&file->json, "lost", node->trace.lost);
  return status;
}

/* The times of two nodes on one line. */
struct alignment {
  int64_t start;                  /* now_ns() at time 0 */
  int64_t shift;                  /* added to the times of the second node */
  int64_t error;                  /* bound of the error between the nodes */
  bool consistent;                /* with the slices that both nodes recorded */
  struct link_pairs pairs[NODES]; /* by their initiator */
};

static uint64_t convert(const struct file *file, const struct alignment *alignment, unsigned i,
                        uint64_t theirs) {
  int64_t at = clock_convert(&file->nodes[i].clock, theirs);
  return (uint64_t)at + (i > 0 ? (uint64_t)alignment->shift : 0);
}

/* Writes the events of all nodes, and collects the sides of their slices. */
static void write_nodes(struct file *file, const struct alignment *alignment) {
  for (unsigned i = 0; i < file->count; i++) {
    struct recording *node = &file->nodes[i];
    char name[128];
    name_process(node, i > 0 ? alignment->error : -1, name);
    node->links.sent.count = node->links.served.count = 0;
    timeline_begin(&node->timeline, name, (uint64_t)alignment->start);
    for (uint64_t j = 0; j < node->count; j++) {
      struct haul_trace_event event = node->events[j];
      event.at_ns = convert(file, alignment, i, event.at_ns);
      timeline_event(&node->timeline, &event);
    }
    name_peers(node);
    timeline_end(&node->timeline, convert(file, alignment, i, node->trace.clock_ns));
  }
}

/* Aligns by the clocks. Within their error, slices that both nodes recorded move the times as
 * little as is needed for each serving to lie between begin and end of its slice. */
static void align(struct file *file, struct alignment *alignment) {
  const struct links *links[NODES] = {&file->nodes[0].links, &file->nodes[1].links};
  int64_t error = clock_error(&file->nodes[0].clock) + clock_error(&file->nodes[1].clock);
  struct link_shift shift = {-error, error};
  for (unsigned i = 0; i < NODES; i++) {
    alignment->pairs[i] = links_find(links[i], links[!i], error);
    links_narrow(&shift, links[i], links[!i], &alignment->pairs[i], i > 0);
  }
  alignment->consistent = shift.least <= shift.most;
  if (alignment->consistent)
    alignment->shift = shift.least > 0 ? shift.least : shift.most < 0 ? shift.most : 0;
  alignment->error = error + llabs(alignment->shift);
}

/* An arrow goes with the bytes: from the begin of a write to its serving, from the serving of a
 * read to its end. Those that would go back in time are left out. */
static uint64_t write_arrows(struct file *file, const struct alignment *alignment) {
  uint64_t count = 0;
  for (unsigned i = 0; i < NODES; i++) {
    const struct recording *initiator = &file->nodes[i], *responder = &file->nodes[!i];
    for (size_t j = 0; j < alignment->pairs[i].count; j++) {
      const struct link *link = &alignment->pairs[i].list[j];
      const struct link_side *sent = &initiator->links.sent.list[link->sent];
      const struct link_side *served = &responder->links.served.list[link->served];
      bool writes = sent->operation == HAUL_OP_WRITE;
      struct arrow_end mine = {&initiator->timeline, sent->track,
                               writes ? sent->from : sent->to - 1};
      struct arrow_end other = {&responder->timeline, served->track, served->from};
      const struct arrow_end *from = writes ? &mine : &other, *to = writes ? &other : &mine;
      if (sent->track == UINT32_MAX || (int64_t)(to->at - from->at) < 0)
        continue;
      timeline_mark(&initiator->timeline, writes ? "post" : "done", sent->track, mine.at);
      timeline_arrow(operation_text((int)sent->operation), ++count, *from, *to);
    }
  }
  return count;
}

static void write_alignment(struct file *file, const struct alignment *alignment, uint64_t arrows) {
  struct json *json = &file->json;
  int64_t offset =
      (int64_t)((uint64_t)clock_offset(&file->nodes[1].clock) -
                (uint64_t)clock_offset(&file->nodes[0].clock) - (uint64_t)alignment->shift);
  timeline_file_end(json);
  json_number(json, "lost", file->nodes[0].trace.lost + file->nodes[1].trace.lost);
  json_number(json, "arrows", arrows);
  json_signed(json, "clock_offset_ns", offset);
  json_signed(json, "clock_error_ns", alignment->error);
  fprintf(stderr, "the clock of %s is %s %s that of %s, +-%s\n",
          haul_peer_name(file->nodes[1].session.peer), time_text(fabs((double)offset)).text,
          offset < 0 ? "behind" : "ahead of", haul_peer_name(file->nodes[0].session.peer),
          time_text((double)alignment->error).text);
  if (!alignment->consistent)
    fail_note("the recorded slices contradict the estimate of the clocks: did one of them jump?");
}

/* The first pass finds the slices that both nodes recorded, the second one writes. */
static int record_two(struct file *file, int64_t start, int64_t nanoseconds) {
  struct json json = file->json;
  struct alignment alignment = {.start = start};
  int status = EXIT_DONE;
  FILE *nowhere = fopen("/dev/null", "we");
  if (!nowhere)
    return fail_system(errno, "cannot open /dev/null");
  for (unsigned i = 0; status == EXIT_DONE && i < NODES; i++) {
    status = read_clock(&file->nodes[i], CLOCK_READS, &file->nodes[i].clock.first);
    file->nodes[i].clock.last = file->nodes[i].clock.first;
    file->nodes[i].links.name = haul_peer_name(file->nodes[i].session.peer);
    file->nodes[i].timeline.links = &file->nodes[i].links;
  }
  if (status == EXIT_DONE)
    status = record_events(file, nanoseconds);
  file->json.out = nowhere;
  write_nodes(file, &alignment);
  align(file, &alignment);
  file->json = json;
  write_nodes(file, &alignment);
  write_alignment(file, &alignment, write_arrows(file, &alignment));
  fclose(nowhere);
  for (unsigned i = 0; i < NODES; i++) {
    links_free(&file->nodes[i].links);
    free(alignment.pairs[i].list);
    free(file->nodes[i].events);
  }
  return status;
}

static void print_watched(const struct file *file) {
  fprintf(stderr, "watching %s%s%s\n", haul_peer_name(file->nodes[0].session.peer),
          file->count > 1 ? " and " : "",
          file->count > 1 ? haul_peer_name(file->nodes[1].session.peer) : "");
}

static int record(struct file *file, int64_t nanoseconds) {
  uint64_t count = 0, lost = 0;
  int64_t start = now_ns();
  for (unsigned i = 0; i < file->count; i++) { /* starts the recordings */
    struct clock_sample sample = {0};
    int status = read_clock(&file->nodes[i], 1, &sample);
    if (status)
      return status;
    note_start(&file->nodes[i]);
    file->nodes[i].timeline.json = &file->json;
    file->nodes[i].timeline.process = i + 1;
    file->nodes[i].timeline.processes = file->count;
  }
  FILE *out = fopencookie(&file->out, "w", (cookie_io_functions_t){.write = write_to});
  if (!out)
    return fail_system(errno, "cannot write %s", file->out.label);
  timeline_file_begin(&file->json, out);
  print_watched(file);
  int status =
      file->count > 1 ? record_two(file, start, nanoseconds) : record_one(file, nanoseconds);
  json_end_object(&file->json);
  json_end_object(&file->json);
  int failed = ferror(out);
  if (fclose(out) || failed)
    return EXIT_FAILED;
  int written = outfile_commit(&file->out);
  for (unsigned i = 0; i < file->count; i++) {
    count += file->nodes[i].timeline.written;
    lost += file->nodes[i].trace.lost;
  }
  if (written == EXIT_DONE)
    fprintf(stderr, "%" PRIu64 " events, %" PRIu64 " lost\n", count, lost);
  const struct recording *only = &file->nodes[0];
  if (written == EXIT_DONE && file->count == 1 && !only->failed && only->mapped > 0)
    fail_note("peers moved %s over map meanwhile, which only traces of their own nodes show",
              size_text(only->mapped).text);
  return status ? status : written;
}

static int run_trace(const struct command *self, char **operands) {
  static struct file file;
  char addresses[NODES][ADDRESS_MAX];
  if (!given.output)
    return options_wrong(self, "missing option -o FILE");
  for (; operands[file.count]; file.count++)
    if (!options_address(self, operands[file.count], DEFAULT_PORT, addresses[file.count]))
      return EXIT_USAGE;
  if (file.count == NODES && strcmp(addresses[0], addresses[1]) == 0)
    return options_wrong(self, "both nodes are %s: name it once, or another one", addresses[0]);
  interrupt_catch();
  int status = outfile_open(&file.out, given.output, 0, 0);
  for (unsigned i = 0; status == EXIT_DONE && i < file.count; i++)
    status = session_open(&file.nodes[i].session, NULL, addresses[i], given.timeout);
  if (status == EXIT_DONE)
    status = record(&file, given.seconds ? given.seconds : SECONDS_NS);
  for (unsigned i = 0; i < file.count; i++)
    session_close(&file.nodes[i].session);
  outfile_discard(&file.out);
  return status;
}

const struct command trace_command = {
    .name = "trace",
    .summary = "Write a timeline of the activity of one or two nodes",
    .usage = "NODE [NODE] -o FILE [OPTIONS]",
    .about =
        "Records the activity of the node for some seconds in the Chrome trace event format, "
        "which\n"
        "chrome://tracing and https://ui.perfetto.dev open. Each peer and path has a track with\n"
        "the node's own transfers, their slices and, over tcp, writes and reads of the peer\n"
        "(\"for PEER\"). Copies of peers over map are not recorded: a note has their bytes. The "
        "node\n"
        "records only meanwhile, for peers that may use `haul top`. Two nodes are put on one time\n"
        "line: their clocks are compared, and arrows lead from one side of a slice over tcp to "
        "the\n"
        "other.",
    .options = options,
    .letters = "o",
    .examples = "  haul trace 10.0.0.2 -o timeline.json\n"
                "  haul trace 10.0.0.2 10.0.0.3 -o both.json --seconds 1\n"
                "  haul trace unix:///run/haul.sock -o - --seconds 1 | gzip >timeline.json.gz\n",
    .values = &given,
    .least = 1,
    .most = NODES,
    .run = run_trace,
};
