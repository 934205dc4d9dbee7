/* SPDX-License-Identifier: MIT */
#include "exported.h"

#include <errno.h>
#include <haul/storage.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/module.h"
#include "common/outfile.h"
#include "common/output.h"
#include "common/process.h"
#include "common/progress.h"
#include "common/source.h"
#include "common/tally.h"
#include "common/text.h"

struct job {
  const struct exported *exported;
  const struct haul_storage_tree *calls;
  struct tree *tree;
  char export[64];
  const char *path; /* in the export */
  struct outfile outfile;
  struct source source;
  struct progress progress;
  struct tally tally;
  uint64_t done, pages; /* bytes; bytes sent from the pages of the file */
  int failed;           /* exit status of a callback, whose error has been printed */
  struct haul_storage_error error;
};

static int split(struct job *job) {
  const char *name = job->exported->target->name;
  size_t length = strcspn(name, "/");
  if (length >= sizeof job->export)
    return fail_because("list the exports: haul ls NODE/", "invalid name of an export in '%s'",
                        job->exported->text);
  memcpy(job->export, name, length);
  job->path = name + length + strspn(name + length, "/");
  return EXIT_DONE;
}

/* Whether NODE/NAME is a region, which holds no files. */
static bool is_region(const struct job *job) {
  struct session session = {0};
  const struct target *target = job->exported->target;
  haul_deadline until = connect_deadline(job->exported->timeout);
  bool found = *job->export && !*job->path && haul_node_open(NULL, &session.node) == 0 &&
               haul_peer_connect(session.node, target->address, until, &session.peer) == 0 &&
               haul_peer_lookup(session.peer, job->export, until, &session.remote) == 0;
  session_close(&session);
  return found;
}

static int open_job(struct job *job, const struct exported *exported) {
  void *symbol;
  *job = (struct job){
      .exported = exported, .outfile = {.descriptor = -1}, .source = {.descriptor = -1}};
  int status = split(job);
  if (status == EXIT_DONE)
    status =
        module_symbol(&module_storage, HAUL_STORAGE_TREE_SYMBOL, "reach exported files", &symbol);
  if (status)
    return status;
  job->calls = symbol;
  const struct haul_storage_remote reach = {
      .size = sizeof reach,
      .address = exported->target->address,
      .export = job->export,
      .timeout_ns = exported->timeout,
  };
  if (job->calls->open(&reach, &job->tree, &job->error))
    return is_region(job) ? fail_because("`haul ls NODE` lists it; no '/' follows its name",
                                         "%s is a region, not a folder of files", exported->text)
                          : fail_because(job->error.hint, "%s", job->error.text);
  tally_begin(&job->tally);
  return EXIT_DONE;
}

static int close_job(struct job *job, int status) {
  if (job->tree)
    job->calls->close(job->tree);
  source_close(&job->source);
  outfile_discard(&job->outfile);
  return status;
}

static int finish(struct job *job, int failed) {
  progress_hide();
  if (interrupted() && failed && !job->failed)
    return fail_because(NULL, "interrupted");
  if (job->failed)
    return job->failed;
  return failed ? fail_because(job->error.hint, "%s", job->error.text) : EXIT_DONE;
}

/* Adds the report of the server. */
static void add_report(void *user, const struct haul_report *report, uint64_t pages) {
  struct job *job = user;
  struct haul_report copy = *report;
  snprintf(copy.peer, sizeof copy.peer, "%.63s", job->exported->target->address);
  if (pages < copy.bytes && copy.path_count > 0)
    copy.paths[0].zero_copy = 0; /* the server copied them */
  tally_add(&job->tally, &copy);
  job->pages += pages;
}

static void print_exported_json(const struct job *job, bool get) {
  const struct exported *exported = job->exported;
  struct json json = json_open();
  json_text(&json, "command", get ? "get" : "put");
  json_text(&json, "target", exported->text);
  json_text(&json, "file", exported->file);
  json_number(&json, "offset", exported->offset);
  json_number(&json, "bytes_from_pages", job->pages);
  tally_to_json(&job->tally, &json);
  json_end_object(&json);
}

static void print_words(const struct job *job, bool get) {
  const struct exported *exported = job->exported;
  FILE *out = get && strcmp(exported->file, "-") == 0 ? stderr : stdout;
  print_clean(out, "%s %s (%s) -> %s", get ? "get" : "put", get ? exported->text : exported->file,
              size_text(job->done).text, get ? exported->file : exported->text);
  if (job->done == 0) {
    fprintf(out, "  nothing to move\n");
    return;
  }
  tally_print(&job->tally, out);
  if (!get)
    fprintf(out, "  source: read into host buffers: 1 more copy, by the kernel\n"
                 "  target: written from host buffers: 1 more copy, by the kernel\n");
  else if (job->pages == job->done)
    fprintf(out, "  source: the file's own pages\n");
  else
    fprintf(out, "  source: read into host buffers: 1 more copy, by the kernel%s\n",
            job->pages ? ", in part" : "");
}

static void print_report(struct job *job, bool get) {
  tally_end(&job->tally);
  if (job->exported->json)
    print_exported_json(job, get);
  else if (!job->exported->quiet)
    print_words(job, get);
}

static bool begin_file(void *user, uint64_t length) {
  struct job *job = user;
  progress_begin(&job->progress, job->path, length, job->exported->quiet);
  job->failed = outfile_open(&job->outfile, job->exported->file, length, job->exported->timeout);
  return job->failed == EXIT_DONE;
}

static bool write_output(void *user, const void *bytes, size_t length) {
  struct job *job = user;
  job->failed = outfile_write(&job->outfile, bytes, length);
  job->done += length;
  progress_update(&job->progress, job->done);
  if (interrupted())
    job->failed = fail_because(NULL, "interrupted");
  return job->failed == EXIT_DONE;
}

int exported_get(const struct exported *exported) {
  struct job job;
  const struct haul_storage_stream stream = {
      .begin = begin_file, .write = write_output, .report = add_report, .user = &job};
  int status = open_job(&job, exported);
  if (status == EXIT_DONE)
    status = finish(&job, job.calls->get(job.tree, job.path, exported->offset, exported->length,
                                         &stream, &job.error));
  if (status == EXIT_DONE)
    status = outfile_commit(&job.outfile);
  if (status == EXIT_DONE)
    print_report(&job, true);
  return close_job(&job, status);
}

static ssize_t read_input(void *user, void *bytes, size_t room) {
  struct job *job = user;
  int64_t timeout = job->exported->timeout;
  job->failed = source_wait(&job->source, NULL, timeout ? haul_deadline_in(timeout) : HAUL_FOREVER);
  if (job->failed)
    return -1;
  ssize_t got = TEMP_FAILURE_RETRY(read(job->source.descriptor, bytes, room));
  if (got < 0)
    job->failed = fail_system(errno, "cannot read %s", job->source.label);
  else
    job->done += (uint64_t)got;
  progress_update(&job->progress, job->done);
  return got;
}

int exported_put(const struct exported *exported) {
  struct job job;
  const struct haul_storage_stream stream = {
      .read = read_input, .report = add_report, .user = &job};
  if (exported->offset)
    return fail_because("leave --offset out", "an exported file is written as a whole");
  int status = open_job(&job, exported);
  if (status == EXIT_DONE)
    status = source_open(&job.source, exported->file);
  if (status == EXIT_DONE) {
    uint64_t length = job.source.length;
    progress_begin(&job.progress, job.source.label, length == SOURCE_LENGTH_UNKNOWN ? 0 : length,
                   exported->quiet);
    status = finish(&job, job.calls->put(job.tree, job.path, &stream, &job.error));
  }
  if (status == EXIT_DONE)
    print_report(&job, false);
  return close_job(&job, status);
}

struct listed {
  char *name;
  mode_t mode;
  uint64_t size;
};

struct listing {
  struct listed *list;
  size_t count, room;
};

static void add_name(void *user, const struct haul_storage_name *name) {
  struct listing *listing = user;
  listing->list = must_grow(listing->list, listing->count, &listing->room, sizeof *listing->list);
  listing->list[listing->count++] =
      (struct listed){must_strdup(name->name), name->mode, name->size};
}

static int by_name(const void *one, const void *other) {
  return strcmp(((const struct listed *)one)->name, ((const struct listed *)other)->name);
}

static const char *type_text(mode_t mode) {
  switch (mode & S_IFMT) {
  case S_IFREG:
    return "file";
  case S_IFDIR:
    return "folder";
  case S_IFLNK:
    return "symlink";
  default:
    return "other";
  }
}

static void print_listing(const struct job *job, const struct listing *listing) {
  bool exports = !*job->export;
  struct table table =
      exports ? table_begin("ll", "EXPORT", "RIGHTS") : table_begin("lrl", "NAME", "SIZE", "TYPE");
  for (size_t i = 0; i < listing->count; i++) {
    struct listed *listed = &listing->list[i];
    text_clean(listed->name);
    if (exports)
      table_row(&table, listed->name, rights_text(listed->mode & 0200 ? 3 : 1));
    else
      table_row(&table, listed->name, size_text(listed->size).text, type_text(listed->mode));
  }
  table_end(&table);
}

static void print_listing_json(const struct job *job, const struct listing *listing) {
  struct json json = json_open();
  bool exports = !*job->export;
  json_text(&json, "target", job->exported->text);
  json_array(&json, exports ? "exports" : "files");
  for (size_t i = 0; i < listing->count; i++) {
    const struct listed *listed = &listing->list[i];
    json_object(&json, NULL);
    json_text(&json, "name", listed->name);
    if (exports) {
      json_text(&json, "rights", rights_text(listed->mode & 0200 ? 3 : 1));
    } else {
      json_number(&json, "bytes", listed->size);
      json_text(&json, "type", type_text(listed->mode));
    }
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

int exported_list(const struct exported *exported) {
  struct listing listing = {0};
  struct job job;
  int status = open_job(&job, exported);
  if (status == EXIT_DONE)
    status = finish(&job, job.calls->list(job.tree, job.path, add_name, &listing, &job.error));
  if (listing.count)
    qsort(listing.list, listing.count, sizeof *listing.list, by_name);
  if (status == EXIT_DONE && exported->json)
    print_listing_json(&job, &listing);
  else if (status == EXIT_DONE)
    print_listing(&job, &listing);
  for (size_t i = 0; i < listing.count; i++)
    free(listing.list[i].name);
  free(listing.list);
  return close_job(&job, status);
}
