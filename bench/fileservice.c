/* SPDX-License-Identifier: MIT
 * fileservice FILE SECONDS: reads the file repeatedly from another process, which exports its
 * folder, into a region: 4 MiB per request, four in flight. Prints GB/s. */
#include "common.h"

#include <haul/storage.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct haul_storage_service haul_storage_service;
extern const struct haul_storage_tree haul_storage_tree;

#define WARM_NS INT64_C(300000000)

static void demand(int status, const struct haul_storage_error *error) {
  if (status) {
    fprintf(stderr, "fileservice: %s\n", error->text);
    exit(1);
  }
}

/* Runs until it is killed. */
static _Noreturn void serve(char *file) {
  struct haul_storage_error error;
  struct service *service;
  char address[160];
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char *slash = strrchr(file, '/');
  need(slash != NULL, "a whole path");
  *slash = '\0';
  const struct haul_storage_export export = {.name = "bench", .path = file};
  haul_storage_node_config(&config);
  haul_storage_service.prepare();
  haul_node *node;
  must(haul_node_open(&config, &node), "node");
  const struct haul_storage_serving serving = {
      .size = sizeof serving, .node = node, .exports = &export, .count = 1};
  demand(haul_storage_service.open(&serving, &service, &error), &error);
  must(haul_node_listen(node, listen_address("tcp")), "listen");
  must(haul_node_address(node, 0, address, sizeof address), "address");
  say_line(address);
  for (;;)
    pause();
}

struct reading {
  int64_t warm, end;
  pid_t child;
  bool began;
  struct meter meter;
  uint64_t moved;
};

static bool begin(void *user, uint64_t length) {
  (void)user;
  return length > 0;
}

static bool take(void *user, const void *bytes, size_t length) {
  struct reading *reading = user;
  int64_t now = now_ns();
  (void)bytes;
  if (reading->began)
    reading->moved += length;
  else if (now > reading->warm) {
    reading->end += now - reading->warm;
    reading->began = true;
    reading->meter = meter_begin(reading->child);
  }
  return !reading->began || now < reading->end;
}

static void hear(void *user, const struct haul_report *report, uint64_t pages) {
  (void)user, (void)report, (void)pages;
}

static void run(struct tree *tree, const char *name, double seconds, pid_t child) {
  struct haul_storage_error error;
  struct reading reading = {.warm = now_ns() + WARM_NS, .child = child};
  const struct haul_storage_stream stream = {
      .begin = begin, .write = take, .report = hear, .user = &reading};
  reading.end = reading.warm + (int64_t)(seconds * 1e9);
  int status;
  do
    status = haul_storage_tree.get(tree, name, 0, 0, &stream, &error);
  while (!status);
  if (now_ns() < reading.end)
    demand(status, &error);
  meter_end(&reading.meter, reading.moved);
}

int main(int argc, char **argv) {
  struct haul_storage_error error;
  struct tree *tree;
  char address[160];
  if (argc < 3) {
    fprintf(stderr, "usage: fileservice FILE SECONDS\n");
    return 2;
  }
  if (is_child(argc, argv))
    serve(argv[1]);
  pid_t child = start_child(argc, argv, address, sizeof address);
  const struct haul_storage_remote reach = {
      .size = sizeof reach, .address = address, .export = "bench"};
  demand(haul_storage_tree.open(&reach, &tree, &error), &error);
  const char *slash = strrchr(argv[1], '/');
  need(slash != NULL, "a whole path");
  run(tree, slash + 1, atof(argv[2]), child);
  haul_storage_tree.close(tree);
  end_child(child);
  return 0;
}
