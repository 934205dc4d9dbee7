/* SPDX-License-Identifier: MIT */
#include "served.h"

#include "note.h"
#include "storage/service/remote.h"
#include "storage/source.h"
#include "support/check.h"
#include <haul/storage.h>

extern const struct haul_storage_service haul_storage_service;

void served_open(struct served *served, const char *folder, bool writable) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_storage_error error;
  const struct haul_storage_export export = {
      .name = SERVED_EXPORT, .path = folder, .writable = writable};
  config.progress = HAUL_PROGRESS_CALLER;
  config.peer_events = 1;
  haul_storage_service.prepare();
  assert_works(haul_node_open(&config, &served->node));
  const struct haul_storage_serving serving = {
      .size = sizeof serving, .node = served->node, .exports = &export, .count = 1};
  assert_int_equal(haul_storage_service.open(&serving, &served->service, &error), 0);
  assert_works(haul_node_listen(served->node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(served->node, 0, served->address, sizeof served->address));
}

void served_close(struct served *served) {
  haul_storage_service.stop(served->service);
  haul_node_close(served->node);
  assert_int_equal(haul_storage_service.close(served->service), 0);
}

static struct note note = NOTE_INIT;

const char *served_note(void) {
  return note_text(&note);
}

struct source *served_connect(const struct served *served, bool read_only) {
  const struct remote_config config = {
      .rpc = {.address = served->address,
              .export = SERVED_EXPORT,
              .timeout_ns = INT64_C(10000000000)},
      .read_only = read_only,
      .log = note_keep,
      .user = &note,
  };
  struct haul_storage_error error;
  note_keep(&note, 0, "");
  struct source *source = NULL;
  if (remote_source_open(&config, &source, &error))
    fail_msg("%s", error.text);
  return source;
}

struct source *served_open_source(struct served *served, const char *folder, bool read_only) {
  served_open(served, folder, !read_only);
  return served_connect(served, false);
}
