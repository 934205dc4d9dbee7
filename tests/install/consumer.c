/* SPDX-License-Identifier: MIT
 * A user of the installed library, in the common subset of C and C++: all initialisers, a node, a
 * region, a transfer to itself, the report. Compiled as both. */
#include <haul/directory.h>
#include <haul/haul.h>

#include <stdio.h>
#include <string.h>

static int fail(const char *what) {
  const struct haul_error *error = haul_error_last();
  fprintf(stderr, "%s: %s: %s: %s (%s)\n", what, error->call, error->object, error->text,
          error->hint);
  return 1;
}

static int move(haul_remote *remote, haul_region *region) {
  struct haul_piece piece = {0, 0, 4096};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_report report = HAUL_REPORT_INIT;
  haul_transfer *transfer = NULL;
  char text[2048];
  options.flags = HAUL_CHECKSUM;
  if (haul_write(remote, region, &piece, 1, &options, &transfer) != 0 ||
      haul_transfer_wait(transfer, haul_deadline_in(10000000000)) != 0 ||
      haul_transfer_report(transfer, &report) != 0)
    return fail("write");
  haul_transfer_release(transfer);
  haul_report_format(&report, text, sizeof text);
  puts(text);
  return report.bytes == 4096 ? 0 : fail("report");
}

int main(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_register_options options = HAUL_REGISTER_OPTIONS_INIT;
  struct haul_place place;
  char address[128];
  haul_node *node = NULL;
  haul_region *region = NULL, *local = NULL;
  haul_peer *peer = NULL;
  haul_remote *remote = NULL;
  if (strcmp(haul_version(), HAUL_EXPECTED_VERSION) != 0)
    return fail("version");
  if (options.size != sizeof options)
    return fail("options");
  if (haul_place_parse("sim:0", &place) != 0 || haul_node_open(&config, &node) != 0)
    return fail("open");
  if (haul_region_alloc(node, place, 4096, 0, &region) != 0 ||
      haul_region_publish(region, "block", HAUL_READ | HAUL_WRITE) != 0)
    return fail("publish");
  place.kind = HAUL_HOST;
  if (haul_region_alloc(node, place, 4096, 0, &local) != 0)
    return fail("alloc");
  memset(haul_region_address(local), 7, 4096);
  if (haul_node_listen(node, "tcp://127.0.0.1:0") != 0 ||
      haul_node_address(node, 0, address, sizeof address) != 0 ||
      haul_peer_connect(node, address, haul_deadline_in(10000000000), &peer) != 0 ||
      haul_peer_lookup(peer, "block", haul_deadline_in(10000000000), &remote) != 0)
    return fail("connect");
  int status = move(remote, local);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(local);
  haul_region_release(region);
  haul_node_close(node);
  return status;
}
