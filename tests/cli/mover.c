/* SPDX-License-Identifier: MIT
 * A node that listens and moves bytes on request, for trace.sh: haul serve starts no transfers, and
 * haul put does not listen.
 *
 *   cli_mover NAME NODE REGION ORDERS
 *
 * Prints "listening on ADDRESS" once it is connected to the node. Then each line of the file or
 * pipe ORDERS, "write BYTES" or "read BYTES", is a transfer with the region over tcp, after which
 * it prints "done". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <haul/haul.h>

#define MOST (8u << 20)

static void check(int code) {
  const struct haul_error *error = haul_error_last();
  if (code >= 0)
    return;
  fprintf(stderr, "haul: %s: %s: %s\n", error->call, error->object, error->text);
  exit(1);
}

static haul_deadline soon(void) {
  return haul_deadline_in(60000000000LL);
}

static void move(haul_region *local, haul_remote *remote, const char *operation, size_t length) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, length};
  haul_transfer *transfer;
  options.only = "tcp";
  if (strcmp(operation, "write") == 0)
    check(haul_write(remote, local, &piece, 1, &options, &transfer));
  else
    check(haul_read(local, remote, &piece, 1, &options, &transfer));
  check(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

int main(int argc, char **argv) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote;
  haul_region *local;
  char address[128], operation[16];
  size_t length;
  FILE *orders = argc == 5 ? fopen(argv[4], "r") : NULL;
  if (!orders)
    return 2;
  config.name = argv[1];
  check(haul_node_open(&config, &node));
  check(haul_node_listen(node, "tcp://127.0.0.1:0"));
  check(haul_node_address(node, 0, address, sizeof address));
  check(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, MOST, 0, &local));
  check(haul_peer_connect(node, argv[2], soon(), &peer));
  check(haul_peer_lookup(peer, argv[3], soon(), &remote));
  printf("listening on %s\n", address);
  fflush(stdout);
  while (fscanf(orders, "%15s %zu", operation, &length) == 2 && length <= MOST) {
    move(local, remote, operation, length);
    puts("done");
    fflush(stdout);
  }
  fclose(orders);
  haul_remote_release(remote);
  haul_region_release(local);
  haul_peer_close(peer);
  haul_node_close(node);
  return 0;
}
