/* SPDX-License-Identifier: MIT */
#include "tally.h"

#include <string.h>

#include "session.h"
#include "text.h"

void tally_begin(struct tally *tally) {
  *tally = (struct tally){
      .sum = {.size = sizeof(struct haul_report)}, .started = now_ns(), .cpu = cpu_ns()};
}

static void count_path(struct tally *tally, const struct haul_report *report) {
  const char *name = report->path_count ? report->paths[0].name : "none";
  size_t at = 0;
  while (at < tally->path_count && strcmp(tally->paths[at].name, name) != 0)
    at++;
  if (at == HAUL_PATHS_MAX)
    return;
  if (at == tally->path_count) {
    snprintf(tally->paths[at].name, sizeof(tally->paths[at].name), "%s", name);
    tally->path_count++;
  }
  tally->paths[at].bytes += report->bytes;
  tally->paths[at].latest = *report;
}

void tally_add(struct tally *tally, const struct haul_report *report) {
  struct haul_report *sum = &tally->sum;
  if (tally->transfers++ == 0) {
    *sum = *report;
  } else {
    sum->bytes += report->bytes;
    sum->pieces += report->pieces;
    sum->slices += report->slices;
    sum->retries += report->retries;
    sum->checksum = sum->checksum && report->checksum;
  }
  count_path(tally, report);
}

/* The paths of the report are those of the path with the most bytes. */
static void choose_paths(struct tally *tally) {
  const struct tally_path *most = &tally->paths[0];
  for (size_t i = 1; i < tally->path_count; i++)
    if (tally->paths[i].bytes > most->bytes)
      most = &tally->paths[i];
  if (tally->path_count < 2)
    return;
  tally->sum.path_count = most->latest.path_count;
  memcpy(tally->sum.paths, most->latest.paths, sizeof(tally->sum.paths));
}

void tally_end(struct tally *tally) {
  int64_t elapsed = now_ns() - tally->started;
  if (tally->sum.queued_ns > elapsed)
    tally->sum.queued_ns = elapsed;
  if (tally->sum.setup_ns > tally->sum.queued_ns)
    tally->sum.setup_ns = tally->sum.queued_ns;
  tally->sum.wire_ns = elapsed - tally->sum.queued_ns;
  tally->sum.cpu_ns = cpu_ns() - tally->cpu;
  choose_paths(tally);
}

void tally_print(const struct tally *tally, FILE *out) {
  char text[4096];
  haul_report_format(&tally->sum, text, sizeof(text));
  const char *rest = strchr(text, '\n');
  fputs(rest ? rest + 1 : "", out);
  if (tally->path_count < 2)
    return;
  fputs("  the path changed during the transfer:", out);
  for (size_t i = 0; i < tally->path_count; i++)
    fprintf(out, "%s %s %s", i ? "," : "", size_text(tally->paths[i].bytes).text,
            tally->paths[i].name);
  fputc('\n', out);
}

/* "copies" and "zero_copy", as members of the open object. */
static void copies_to_json(struct json *json, const struct haul_path *path) {
  json_object(json, "copies");
  json_number(json, "cpu", path->copies_cpu);
  json_number(json, "kernel", path->copies_kernel);
  json_number(json, "dma", path->copies_dma);
  json_end_object(json);
  json_bool(json, "zero_copy", path->zero_copy);
}

void tally_to_json(const struct tally *tally, struct json *json) {
  const struct haul_report *sum = &tally->sum;
  int64_t elapsed = sum->queued_ns + sum->wire_ns;
  json_number(json, "bytes", sum->bytes);
  json_number(json, "transfers", tally->transfers);
  json_real(json, "seconds", (double)elapsed / 1e9);
  json_real(json, "gb_per_second", gigabytes_per_second(sum->bytes, elapsed));
  json_real(json, "cpu_seconds", (double)sum->cpu_ns / 1e9); /* of this process */
  if (tally->transfers == 0)
    return;
  json_text(json, "path", sum->path_count ? sum->paths[0].name : "");
  if (sum->path_count)
    copies_to_json(json, &sum->paths[0]);
  json_object(json, "bytes_by_path");
  for (size_t i = 0; i < tally->path_count; i++)
    json_number(json, tally->paths[i].name, tally->paths[i].bytes);
  json_end_object(json);
  json_number(json, "slices", sum->slices);
  json_number(json, "retries", sum->retries);
  json_bool(json, "checksum_verified", sum->checksum != 0);
  json_text(json, "from", place_text(sum->from).text);
  json_text(json, "to", place_text(sum->to).text);
  json_text(json, "peer", sum->peer);
  paths_to_json(json, "paths", sum->paths, sum->path_count);
}

const char *path_state(const struct haul_path *path) {
  return path->chosen ? "chosen" : path->open ? "open" : "closed";
}

static void path_to_json(struct json *json, const struct haul_path *path) {
  json_object(json, NULL);
  json_text(json, "name", path->name);
  json_text(json, "state", path_state(path));
  if (path->open) {
    json_real(json, "cost_ns", path->cost_ns);
    json_real(json, "estimate_ns", path->estimate_ns);
    json_bool(json, "measured", path->measured);
    json_text(json, "send", path->send);
    copies_to_json(json, path);
  }
  json_text(json, "detail", path->detail);
  json_text(json, "reason", path->reason);
  json_end_object(json);
}

void paths_to_json(struct json *json, const char *key, const struct haul_path *paths,
                   size_t count) {
  json_array(json, key);
  for (size_t i = 0; i < count; i++)
    path_to_json(json, &paths[i]);
  json_end_array(json);
}
