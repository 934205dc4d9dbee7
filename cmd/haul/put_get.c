/* SPDX-License-Identifier: MIT
 * haul put and haul get: between a file and a published region, or an exported file. */
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/outfile.h"
#include "common/output.h"
#include "common/process.h"
#include "common/ring.h"
#include "common/session.h"
#include "common/source.h"
#include "common/text.h"
#include "exported.h"

struct values {
  uint64_t offset, length; /* length 0: up to the end */
  struct transfer_choices transfer;
  int json, quiet, force, partial;
};

static struct values given;

#define COMMON_OPTIONS                                                                             \
  {"offset", OPTION_SIZE, offsetof(struct values, offset), "SIZE",                                 \
   "start at this offset of the region (default: 0)"},                                             \
      OPTION_ENTRY_ONLY(values), OPTION_ENTRY_CHECKSUM(values), OPTION_ENTRY_ZERO_COPY(values),    \
      OPTION_ENTRY_TIMEOUT(values),                                                                \
      {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print the report as JSON"}, {    \
    "quiet", OPTION_FLAG, offsetof(struct values, quiet), NULL,                                    \
        "print no report and no progress bar"                                                      \
  }

static const struct option_spec put_options[] = {
    {"partial", OPTION_FLAG, offsetof(struct values, partial), NULL,
     "write input of unknown length as it arrives: if it does not fit, a part is written"},
    COMMON_OPTIONS,
    {0},
};

static const struct option_spec get_options[] = {
    {"length", OPTION_LENGTH, offsetof(struct values, length), "SIZE",
     "read this many bytes (default: up to the end of the region)"},
    {"force", OPTION_FLAG, offsetof(struct values, force), NULL,
     "write the bytes to standard output even if it is a terminal"},
    COMMON_OPTIONS,
    {0},
};

/* One run of either command. */
struct job {
  const char *file, *target_text;
  struct target target;
  struct session session;
  struct ring ring;
  struct source source;   /* put */
  struct outfile outfile; /* get */
  uint64_t length;        /* get: bytes to read */
};

static bool is_put(const struct job *job) {
  return job->ring.operation == HAUL_OP_WRITE;
}

static int fail_too_large(const struct job *job) {
  uint64_t room = haul_remote_length(job->session.remote);
  if (given.offset > room)
    return fail_because("`haul ls` shows the sizes of regions",
                        "cannot write to %s: offset %llu is beyond its end at %llu",
                        job->target_text, (unsigned long long)given.offset,
                        (unsigned long long)room);
  return fail_because("`haul ls` shows the sizes of regions",
                      "cannot write to %s: %s does not fit: the region has room for %llu bytes "
                      "from offset %llu",
                      job->target_text, job->source.label,
                      (unsigned long long)(room - given.offset), (unsigned long long)given.offset);
}

/* Checks the size before the first transfer. */
static int prepare_put(struct job *job) {
  struct source *source = &job->source;
  uint64_t room = haul_remote_length(job->session.remote);
  int status = EXIT_DONE;
  if (given.offset > room)
    return fail_too_large(job);
  room -= given.offset;
  if (source->length == SOURCE_LENGTH_UNKNOWN && !given.partial)
    status = source_keep(source, room, job->session.peer,
                         given.transfer.timeout ? haul_deadline_in(given.transfer.timeout)
                                                : HAUL_FOREVER);
  if (status)
    return status;
  if (source->length != SOURCE_LENGTH_UNKNOWN && source->length > room)
    return fail_too_large(job);
  return source_map(source, job->session.node);
}

/* For errors: the bytes before `at` have been handed to transfers. */
static void note_written(const struct job *job, uint64_t at) {
  unsigned long long written = job->ring.done, begun = at - given.offset - written;
  if (written + begun > 0)
    fail_leaves("%s now has %llu bytes of %s from offset %llu on, and %llu undefined ones behind "
                "them",
                job->target_text, written, job->source.label, (unsigned long long)given.offset,
                begun);
}

static int put_all(struct job *job) {
  struct ring *ring = &job->ring;
  uint64_t end = haul_remote_length(job->session.remote);
  uint64_t at = given.offset;
  haul_deadline until = ring->options.deadline ? ring->options.deadline : HAUL_FOREVER;
  for (unsigned turn = 0;; turn++) {
    struct slot *slot = &ring->slots[turn % RING_SLOTS];
    int status = ring_settle(ring, slot);
    note_written(job, at);
    if (status == EXIT_DONE)
      status = source_next(&job->source, slot, job->session.peer, until);
    if (status)
      return status;
    if (slot->piece.length == 0)
      break;
    if (slot->piece.length > end - at)
      return fail_too_large(job);
    slot->piece.remote = at;
    at += slot->piece.length;
    status = ring_start(ring, slot);
    if (status)
      return status;
  }
  int status = EXIT_DONE;
  for (int i = 0; i < RING_SLOTS && status == EXIT_DONE; i++) {
    status = ring_settle(ring, &ring->slots[i]);
    note_written(job, at);
  }
  return status;
}

static int prepare_get(struct job *job) {
  uint64_t size = haul_remote_length(job->session.remote);
  if (given.offset >= size)
    return fail_because("`haul ls` shows the sizes of regions",
                        "cannot read from %s: offset %llu is not below its end at %llu",
                        job->target_text, (unsigned long long)given.offset,
                        (unsigned long long)size);
  uint64_t room = size - given.offset;
  job->length = given.length ? given.length : room;
  if (job->length > room)
    return fail_because("`haul ls` shows the sizes of regions",
                        "cannot read from %s: %llu bytes from offset %llu exceed its %llu bytes",
                        job->target_text, (unsigned long long)job->length,
                        (unsigned long long)given.offset, (unsigned long long)size);
  return outfile_open(&job->outfile, job->file, job->length, given.transfer.timeout);
}

/* Sets the slot to chunk `turn` of the range; false past the last one. */
static bool set_piece(const struct job *job, struct slot *slot, uint64_t turn) {
  uint64_t start = turn * RING_CHUNK;
  if (start >= job->length)
    return false;
  uint64_t remaining = job->length - start;
  slot->piece = (struct haul_piece){.local = 0,
                                    .remote = given.offset + start,
                                    .length = remaining < RING_CHUNK ? remaining : RING_CHUNK};
  return true;
}

static int write_out(struct job *job, struct slot *slot) {
  int status = ring_settle(&job->ring, slot);
  if (status)
    return status;
  return outfile_write(&job->outfile, haul_region_address(slot->buffer),
                       (size_t)slot->piece.length);
}

static int get_all(struct job *job) {
  struct ring *ring = &job->ring;
  uint64_t turns = (job->length + RING_CHUNK - 1) / RING_CHUNK;
  int status = EXIT_DONE;
  for (uint64_t turn = 0; turn < turns + RING_SLOTS && status == EXIT_DONE; turn++) {
    struct slot *slot = &ring->slots[turn % RING_SLOTS];
    if (slot->transfer)
      status = write_out(job, slot);
    if (status == EXIT_DONE && set_piece(job, slot, turn))
      status = ring_start(ring, slot);
  }
  return status;
}

static void print_put_get_json(const struct job *job) {
  struct json json = json_open();
  json_text(&json, "command", is_put(job) ? "put" : "get");
  json_text(&json, "file", job->file);
  json_text(&json, "target", job->target_text);
  json_number(&json, "offset", given.offset);
  if (is_put(job))
    json_text(&json, "source", job->source.kept ? "kept" : job->source.region ? "mapped" : "read");
  tally_to_json(&job->ring.tally, &json);
  json_end_object(&json);
}

static void print_report(const struct job *job) {
  struct place_text place = place_text(haul_remote_place(job->session.remote));
  struct unit_text size = size_text(job->ring.done);
  /* Standard output may have the bytes. */
  FILE *out = !is_put(job) && strcmp(job->file, "-") == 0 ? stderr : stdout;
  if (is_put(job))
    print_clean(out, "put %s (%s) host -> %s at %s", job->file, size.text, job->target_text,
                place.text);
  else
    print_clean(out, "get %s (%s) at %s -> host, %s", job->target_text, size.text, place.text,
                job->file);
  if (job->ring.tally.transfers == 0) {
    fprintf(out, "  nothing to move\n");
    return;
  }
  tally_print(&job->ring.tally, out);
  if (is_put(job))
    fprintf(out, "  source: %s\n",
            job->source.kept     ? "kept in a temporary file first: 1 more copy, by the kernel"
            : job->source.region ? "the file's own pages, mapped"
                                 : "read into host buffers: 1 more copy, by the kernel");
}

static int move(struct job *job) {
  struct ring *ring = &job->ring;
  uint64_t length = is_put(job) ? job->source.length : job->length;
  ring->session = &job->session;
  ring->target = job->target_text;
  ring->options = transfer_options(&given.transfer);
  progress_begin(&ring->progress, is_put(job) ? job->source.label : job->target.name,
                 length == SOURCE_LENGTH_UNKNOWN ? 0 : length, given.quiet);
  int status = ring_open(ring, job->source.region != NULL);
  if (status == EXIT_DONE)
    status = is_put(job) ? put_all(job) : get_all(job);
  tally_end(&ring->tally);
  ring_close(ring);
  if (status && is_put(job))
    source_note_change(&job->source);
  return status;
}

static int move_region(struct job *job) {
  int status = session_lookup(&job->session, job->target.name, given.transfer.timeout);
  if (status == EXIT_DONE)
    status = is_put(job) ? prepare_put(job) : prepare_get(job);
  if (status == EXIT_DONE)
    status = move(job);
  if (status == EXIT_DONE && !is_put(job))
    status = outfile_commit(&job->outfile);
  if (status == EXIT_DONE && given.json)
    print_put_get_json(job);
  else if (status == EXIT_DONE && !given.quiet)
    print_report(job);
  return status;
}

/* The server of an exported file chooses the path. */
static int move_exported(const struct job *job) {
  if (given.transfer.only || given.transfer.zero_copy)
    return fail_because("leave --only and --require-zero-copy out",
                        "%s is an exported file, whose server chooses the path", job->target_text);
  const struct exported exported = {.target = &job->target,
                                    .text = job->target_text,
                                    .file = job->file,
                                    .offset = given.offset,
                                    .length = given.length,
                                    .timeout = given.transfer.timeout,
                                    .json = given.json,
                                    .quiet = given.quiet};
  return is_put(job) ? exported_put(&exported) : exported_get(&exported);
}

static int work(struct job *job) {
  int64_t timeout = given.transfer.timeout;
  bool is_file = false;
  /* The file first: if it is missing, no connection is made. */
  int status = is_put(job) ? source_open(&job->source, job->file) : EXIT_DONE;
  if (status == EXIT_DONE)
    status = session_open(&job->session, NULL, job->target.address, timeout);
  if (status == EXIT_DONE)
    is_file = session_is_file(&job->session, job->target.name, timeout);
  if (status == EXIT_DONE && !is_file)
    status = move_region(job);
  outfile_discard(&job->outfile);
  source_close(&job->source);
  session_close(&job->session);
  return is_file ? move_exported(job) : status;
}

static int run_put_get(const struct command *self, char **operands) {
  struct job job = {.source = {.descriptor = -1}, .outfile = {.descriptor = -1}};
  job.ring.operation = self == &put_command ? HAUL_OP_WRITE : HAUL_OP_READ;
  job.file = operands[is_put(&job) ? 0 : 1];
  job.target_text = operands[is_put(&job) ? 1 : 0];
  if (strchr(job.file, ':') && !target_parse(job.target_text, &job.target) &&
      target_parse(job.file, &job.target))
    return options_wrong(self, "invalid target '%s': are the operands in the wrong order?",
                         job.target_text);
  if (!options_target(self, job.target_text, &job.target))
    return EXIT_USAGE;
  if (!is_put(&job) && strcmp(job.file, "-") == 0) {
    if (given.json)
      return options_wrong(self,
                           "--json and '-' cannot be combined: both write to standard output");
    if (!given.force && isatty(STDOUT_FILENO))
      return fail_because("send it to a file or a pipe, or add --force",
                          "cannot write to standard output: it is a terminal");
  }
  interrupt_catch();
  return work(&job);
}

const struct command put_command = {
    .name = "put",
    .summary = "Write a file into a published region or an exported folder",
    .usage = "FILE NODE/NAME [OPTIONS]",
    .about =
        "Writes FILE ('-': standard input) into the region NAME of the node. Prints the path\n"
        "taken, and why each other path was not. A file larger than the region is rejected\n"
        "before any byte is moved; input of unknown length is kept in a temporary file until\n"
        "its end, unless --partial is given. If no region has that name, NAME is EXPORT/PATH: a "
        "file that\n"
        "`haul serve --export` exports. The file is created, or replaced once all bytes are there.",
    .options = put_options,
    .examples = "  haul put weights.bin 127.0.0.1:7420/weights\n"
                "  haul put weights.bin unix:///run/haul.sock/weights --only map --checksum\n"
                "  haul put part-1 10.0.0.2/scratch/llama/part-1\n"
                "  tar c model | haul put - 127.0.0.1:7420/scratch --offset 1M --json\n",
    .values = &given,
    .least = 2,
    .most = 2,
    .run = run_put_get,
};

const struct command get_command = {
    .name = "get",
    .summary = "Read a published region or an exported file into a file",
    .usage = "NODE/NAME FILE [OPTIONS]",
    .about =
        "Reads the region NAME of the node into FILE ('-': standard output). Prints the path\n"
        "taken, and why each other path was not. The bytes go to a temporary file beside FILE,\n"
        "which is renamed at the end and removed on a failure. If no region has that name, NAME\n"
        "is EXPORT/PATH: a file that `haul serve --export` exports.",
    .options = get_options,
    .examples = "  haul get 127.0.0.1:7420/weights copy.bin\n"
                "  haul get 127.0.0.1:7420/weights - --offset 1M --length 64K | xxd | head\n"
                "  haul get 10.0.0.2/weights/llama/part-1 part-1\n"
                "  haul get unix:///run/haul.sock/weights copy.bin --only map --checksum\n",
    .values = &given,
    .least = 2,
    .most = 2,
    .run = run_put_get,
};
