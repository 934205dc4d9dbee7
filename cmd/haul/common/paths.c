/* SPDX-License-Identifier: MIT */
#include "paths.h"

const char *path_state(const struct haul_path *path) {
  return path->chosen ? "chosen" : path->open ? "open" : "closed";
}

void path_copies_to_json(struct json *json, const struct haul_path *path) {
  json_object(json, "copies");
  json_number(json, "cpu", path->copies_cpu);
  json_number(json, "kernel", path->copies_kernel);
  json_number(json, "dma", path->copies_dma);
  json_end_object(json);
  json_bool(json, "zero_copy", path->zero_copy);
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
    path_copies_to_json(json, path);
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
