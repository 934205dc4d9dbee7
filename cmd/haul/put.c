/* SPDX-License-Identifier: MIT
 *
 * haul put: a file into a published region, or into an exported tree of files.
 */
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/interrupt.h"
#include "common/json.h"
#include "common/options.h"
#include "common/ring.h"
#include "common/session.h"
#include "common/source.h"
#include "common/units.h"
#include "exported.h"

struct values {
  uint64_t offset;
  struct transfer_choices transfer;
  int json, quiet;
};

static const struct option_spec options[] = {
    {"offset", OPTION_SIZE, offsetof(struct values, offset), "SIZE",
     "begin this far into the region"},
    OPTION_ENTRY_ONLY(values),
    OPTION_ENTRY_CHECKSUM(values),
    OPTION_ENTRY_ZERO_COPY(values),
    OPTION_ENTRY_TIMEOUT(values),
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print the report as JSON"},
    {"quiet", OPTION_FLAG, offsetof(struct values, quiet), NULL, "no report, no progress bar"},
    {0},
};

/* One run of the command. */
struct job {
  const struct values *values;
  const char *file, *target_text;
  struct target target;
  struct source source;
  struct session session;
  bool is_file; /* an exported one: there is no such region */
  struct ring ring;
};

static int fail_too_large(const struct job *job) {
  uint64_t room = haul_remote_length(job->session.remote);
  if (job->values->offset > room)
    return fail_because("nothing was moved", "offset %llu lies beyond the end of %s, at %llu",
                        (unsigned long long)job->values->offset, job->target_text,
                        (unsigned long long)room);
  return fail_because("`haul ls` shows the sizes of regions",
                      "cannot write to %s: %s does not fit: the region has room for %llu bytes "
                      "from offset %llu",
                      job->target_text, job->source.label,
                      (unsigned long long)(room - job->values->offset),
                      (unsigned long long)job->values->offset);
}

/* Before a byte is moved, as far as the length is known. */
static int check_room(const struct job *job) {
  uint64_t room = haul_remote_length(job->session.remote);
  uint64_t length = job->source.length;
  if (job->values->offset > room)
    return fail_too_large(job);
  if (length != SOURCE_LENGTH_UNKNOWN && length > room - job->values->offset)
    return fail_too_large(job);
  return EXIT_DONE;
}

static int move_all(struct job *job) {
  struct ring *ring = &job->ring;
  uint64_t end = haul_remote_length(job->session.remote);
  uint64_t at = job->values->offset;
  haul_deadline until = ring->options.deadline ? ring->options.deadline : HAUL_FOREVER;
  for (unsigned turn = 0;; turn++) {
    struct slot *slot = &ring->slots[turn % RING_SLOTS];
    int status = ring_settle(ring, slot);
    if (status == EXIT_DONE)
      status = source_next(&job->source, slot, job->session.peer, until);
    if (status || slot->piece.length == 0)
      return status;
    if (slot->piece.length > end - at)
      return fail_too_large(job);
    slot->piece.remote = at;
    at += slot->piece.length;
    status = ring_start(ring, slot);
    if (status)
      return status;
  }
}

static int settle_all(struct ring *ring) {
  int status = EXIT_DONE;
  for (int i = 0; i < RING_SLOTS && status == EXIT_DONE; i++)
    status = ring_settle(ring, &ring->slots[i]);
  return status;
}

static void print_json(const struct job *job) {
  struct json json;
  json_begin(&json, stdout);
  json_object(&json, NULL);
  json_text(&json, "command", "put");
  json_text(&json, "file", job->file);
  json_text(&json, "target", job->target_text);
  json_number(&json, "offset", job->values->offset);
  json_text(&json, "source", job->source.region ? "mapped" : "read");
  tally_to_json(&job->ring.tally, &json);
  json_end_object(&json);
}

static void print_report(const struct job *job) {
  printf("put %s (%s) host -> %s at %s\n", job->file, size_text(job->ring.done).text,
         job->target_text, place_text(haul_remote_place(job->session.remote)).text);
  if (job->ring.tally.transfers == 0) {
    printf("  nothing to move\n");
    return;
  }
  tally_print(&job->ring.tally, stdout);
  printf("  source: %s\n", job->source.region ? "the file's own pages, mapped"
                                              : "read into host buffers: kernel 1 more copy");
}

static int put(struct job *job) {
  struct ring *ring = &job->ring;
  ring->session = &job->session;
  ring->operation = HAUL_OP_WRITE;
  ring->target = job->target_text;
  ring->options = transfer_options(&job->values->transfer);
  uint64_t length = job->source.length;
  progress_begin(&ring->progress, job->source.label, length == SOURCE_LENGTH_UNKNOWN ? 0 : length,
                 job->values->quiet);
  int status = ring_open(ring, job->source.region != NULL);
  if (status == EXIT_DONE)
    status = move_all(job);
  if (status == EXIT_DONE)
    status = settle_all(ring);
  tally_end(&ring->tally);
  ring_close(ring);
  if (status)
    source_note_change(&job->source);
  return status;
}

/* Options about the path are for regions: the server of a file fetches its bytes as it likes. */
static int put_exported(const struct job *job) {
  const struct values *values = job->values;
  if (values->transfer.only || values->transfer.zero_copy)
    return fail_because("leave --only and --require-zero-copy out",
                        "%s is an exported file, whose server chooses the path", job->target_text);
  const struct exported exported = {.target = &job->target,
                                    .text = job->target_text,
                                    .file = job->file,
                                    .offset = values->offset,
                                    .timeout = values->transfer.timeout,
                                    .json = values->json,
                                    .quiet = values->quiet};
  return exported_put(&exported);
}

static int prepare(struct job *job) {
  const struct values *values = job->values;
  int64_t timeout = values->transfer.timeout;
  int status = session_open(&job->session, NULL, job->target.address, timeout);
  job->is_file = status == EXIT_DONE && session_is_file(&job->session, job->target.name, timeout);
  if (job->is_file)
    return EXIT_DONE;
  if (status == EXIT_DONE)
    status = session_lookup(&job->session, job->target.name, timeout);
  if (status == EXIT_DONE)
    status = check_room(job);
  if (status == EXIT_DONE)
    status = source_map(&job->source, job->session.node);
  return status;
}

static int work(struct job *job) {
  /* The file first: where it is missing, the peer is not troubled. */
  int status = source_open(&job->source, job->file);
  if (status == EXIT_DONE)
    status = prepare(job);
  if (job->is_file) {
    source_close(&job->source);
    session_close(&job->session);
    return put_exported(job);
  }
  if (status == EXIT_DONE)
    status = put(job);
  if (status == EXIT_DONE && job->values->json)
    print_json(job);
  else if (status == EXIT_DONE && !job->values->quiet)
    print_report(job);
  source_close(&job->source);
  session_close(&job->session);
  return status;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {0};
  struct job job = {.values = &values};
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){2, 2}, &operands, &status))
    return status;
  job.file = operands[0];
  job.target_text = operands[1];
  if (!target_parse(job.target_text, &job.target))
    return options_wrong(self, "'%s' is not NODE/NAME", job.target_text);
  interrupt_catch();
  return work(&job);
}

const struct command put_command = {
    .name = "put",
    .summary = "Write a file into a published region or an exported folder",
    .usage = "FILE NODE/NAME [OPTIONS]",
    .about =
        "Moves the bytes of FILE ('-': standard input) into the region NAME of the node and\n"
        "prints which path they took, and why a better one was closed. A file larger\n"
        "than the region is refused before a byte is moved. Where no region has that name, NAME\n"
        "is EXPORT/PATH: a file in what `haul serve --export` exports, which is new, or replaced "
        "once\n"
        "all of it is there.",
    .options = options,
    .examples = "  haul put weights.bin 127.0.0.1:7420/weights\n"
                "  haul put weights.bin unix:///run/haul.sock/weights --only map --checksum\n"
                "  haul put part-1 10.0.0.2/scratch/llama/part-1\n"
                "  tar c model | haul put - 127.0.0.1:7420/scratch --offset 1M --json\n",
    .run = run,
};
