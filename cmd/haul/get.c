/* SPDX-License-Identifier: MIT
 *
 * haul get: a published region, or an exported file, into a file.
 */
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/interrupt.h"
#include "common/json.h"
#include "common/options.h"
#include "common/outfile.h"
#include "common/ring.h"
#include "common/session.h"
#include "common/units.h"
#include "exported.h"

struct values {
  uint64_t offset, length; /* length 0: not given */
  struct transfer_choices transfer;
  int json, quiet;
};

static const struct option_spec options[] = {
    {"offset", OPTION_SIZE, offsetof(struct values, offset), "SIZE",
     "begin this far into the region"},
    {"length", OPTION_LENGTH, offsetof(struct values, length), "SIZE",
     "take this many bytes (default: up to the region's end)"},
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
  uint64_t length;
  struct outfile outfile;
  struct session session;
  struct ring ring;
};

static int check_range(struct job *job) {
  const struct values *values = job->values;
  uint64_t size = haul_remote_length(job->session.remote);
  uint64_t room = values->offset < size ? size - values->offset : 0;
  job->length = values->length ? values->length : room;
  if (job->length == 0 || job->length > room)
    return fail_because("`haul ls` shows the sizes of regions",
                        "cannot read from %s: %llu bytes from offset %llu do not lie within its "
                        "%llu bytes",
                        job->target_text, (unsigned long long)job->length,
                        (unsigned long long)values->offset, (unsigned long long)size);
  return EXIT_DONE;
}

/* Part `turn` of the range into the slot; false past the last. */
static bool aim(const struct job *job, struct slot *slot, uint64_t turn) {
  uint64_t start = turn * RING_CHUNK;
  if (start >= job->length)
    return false;
  uint64_t left = job->length - start;
  slot->piece.local = 0;
  slot->piece.remote = job->values->offset + start;
  slot->piece.length = left < RING_CHUNK ? left : RING_CHUNK;
  return true;
}

static int empty_slot(struct job *job, struct slot *slot) {
  int status = ring_settle(&job->ring, slot);
  if (status)
    return status;
  return outfile_write(&job->outfile, haul_region_address(slot->buffer),
                       (size_t)slot->piece.length);
}

static int move_all(struct job *job) {
  struct ring *ring = &job->ring;
  uint64_t turns = (job->length + RING_CHUNK - 1) / RING_CHUNK;
  int status = EXIT_DONE;
  for (uint64_t turn = 0; turn < turns + RING_SLOTS && status == EXIT_DONE; turn++) {
    struct slot *slot = &ring->slots[turn % RING_SLOTS];
    if (slot->transfer)
      status = empty_slot(job, slot);
    if (status == EXIT_DONE && aim(job, slot, turn))
      status = ring_start(ring, slot);
  }
  return status;
}

static void print_json(const struct job *job) {
  struct json json;
  json_begin(&json, stdout);
  json_object(&json, NULL);
  json_text(&json, "command", "get");
  json_text(&json, "target", job->target_text);
  json_text(&json, "file", job->file);
  json_number(&json, "offset", job->values->offset);
  tally_to_json(&job->ring.tally, &json);
  json_end_object(&json);
}

/* Where the bytes themselves go to standard output, the report goes to standard error. */
static void print_report(const struct job *job) {
  FILE *out = strcmp(job->file, "-") == 0 ? stderr : stdout;
  fprintf(out, "get %s (%s) at %s -> host, %s\n", job->target_text, size_text(job->ring.done).text,
          place_text(haul_remote_place(job->session.remote)).text, job->file);
  tally_print(&job->ring.tally, out);
}

static int get(struct job *job) {
  struct ring *ring = &job->ring;
  ring->session = &job->session;
  ring->operation = HAUL_OP_READ;
  ring->target = job->target_text;
  ring->options = transfer_options(&job->values->transfer);
  progress_begin(&ring->progress, job->target.name, job->length, job->values->quiet);
  int status = ring_open(ring, false);
  if (status == EXIT_DONE)
    status = move_all(job);
  tally_end(&ring->tally);
  ring_close(ring);
  return status;
}

/* Options about the path are for regions: a file's bytes go as the server sends them. */
static int get_exported(const struct job *job) {
  const struct values *values = job->values;
  if (values->transfer.only || values->transfer.zero_copy)
    return fail_because("leave --only and --require-zero-copy out",
                        "%s is an exported file, whose server chooses the path", job->target_text);
  const struct exported exported = {.target = &job->target,
                                    .text = job->target_text,
                                    .file = job->file,
                                    .offset = values->offset,
                                    .length = values->length,
                                    .timeout = values->transfer.timeout,
                                    .json = values->json,
                                    .quiet = values->quiet};
  return exported_get(&exported);
}

static int work(struct job *job) {
  int64_t timeout = job->values->transfer.timeout;
  int status = session_open(&job->session, NULL, job->target.address, timeout);
  if (status == EXIT_DONE && session_is_file(&job->session, job->target.name, timeout)) {
    session_close(&job->session);
    return get_exported(job);
  }
  if (status == EXIT_DONE)
    status = session_lookup(&job->session, job->target.name, timeout);
  if (status == EXIT_DONE)
    status = check_range(job);
  if (status == EXIT_DONE)
    status = outfile_open(&job->outfile, job->file, job->length);
  if (status == EXIT_DONE)
    status = get(job);
  if (status == EXIT_DONE)
    status = outfile_commit(&job->outfile);
  if (status == EXIT_DONE && job->values->json)
    print_json(job);
  else if (status == EXIT_DONE && !job->values->quiet)
    print_report(job);
  outfile_discard(&job->outfile);
  session_close(&job->session);
  return status;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {0};
  struct job job = {.values = &values, .outfile = {.descriptor = -1}};
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){2, 2}, &operands, &status))
    return status;
  job.target_text = operands[0];
  job.file = operands[1];
  if (!target_parse(job.target_text, &job.target))
    return options_wrong(self, "'%s' is not NODE/NAME", job.target_text);
  if (values.json && strcmp(job.file, "-") == 0)
    return options_wrong(self, "--json and '-' both want standard output");
  interrupt_catch();
  return work(&job);
}

const struct command get_command = {
    .name = "get",
    .summary = "Read a published region or an exported file into a file",
    .usage = "NODE/NAME FILE [OPTIONS]",
    .about =
        "Moves the bytes of the region NAME of the node into FILE ('-': standard output) and\n"
        "prints which path they took, and why a better one was closed. FILE appears when it is\n"
        "whole: until then the bytes are in a temporary file beside it, and a failure leaves\n"
        "nothing behind. Where no region has that name, NAME is EXPORT/PATH: a file that\n"
        "`haul serve --export` exports.",
    .options = options,
    .examples = "  haul get 127.0.0.1:7420/weights copy.bin\n"
                "  haul get 127.0.0.1:7420/weights - --offset 1M --length 64K | xxd | head\n"
                "  haul get 10.0.0.2/weights/llama/part-1 part-1\n"
                "  haul get unix:///run/haul.sock/weights copy.bin --only map --checksum\n",
    .run = run,
};
