/* SPDX-License-Identifier: MIT
 * Writes to the memory of another node. The other node gets a message with each block. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <haul/haul.h>

enum { BLOCKS = 4, BLOCK = 1 << 20 };

static void check(int code) {
  const struct haul_error *error = haul_error_last();
  if (code == 0)
    return;
  fprintf(stderr, "%s: %s: %s (%s)\n", error->call, error->object, error->text, error->hint);
  exit(1);
}

int main(void) {
  haul_node *owner, *writer;
  haul_region *memory, *source;
  haul_peer *peer;
  haul_remote *remote;
  haul_transfer *transfers[BLOCKS];
  struct haul_report report = HAUL_REPORT_INIT;
  char address[160], text[2048];
  int wrong = 0;
  haul_deadline until = haul_deadline_in(10 * HAUL_SECOND);

  check(haul_node_open(NULL, &owner));
  check(haul_node_listen(owner, "tcp://127.0.0.1:0"));
  check(haul_node_address(owner, 0, address, sizeof address));
  check(haul_region_alloc(owner, (struct haul_place){HAUL_HOST, 0}, BLOCKS * BLOCK, 0, &memory));
  check(haul_region_publish(memory, "blocks", HAUL_READ | HAUL_WRITE));
  check(haul_node_open(NULL, &writer));
  check(haul_peer_connect(writer, address, until, &peer));
  check(haul_peer_lookup(peer, "blocks", until, &remote));
  check(haul_region_alloc(writer, (struct haul_place){HAUL_HOST, 0}, BLOCKS * BLOCK, 0, &source));
  memset(haul_region_address(source), 7, BLOCKS * BLOCK);
  for (uint64_t i = 0; i < BLOCKS; i++) {
    const struct haul_piece piece = {i * BLOCK, i * BLOCK, BLOCK};
    const struct haul_notification ready = {.tag = i};
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    options.notify = &ready;
    check(haul_write(remote, source, &piece, 1, &options, &transfers[i]));
  }
  for (int i = 0; i < BLOCKS; i++) { /* in any order; the bytes of the block are there */
    struct haul_message message;
    check(haul_message_receive(owner, &message, until));
    const char *block = (char *)haul_region_address(memory) + message.tag * BLOCK;
    printf("block %d is %s\n", (int)message.tag, block[BLOCK - 1] == 7 ? "complete" : "damaged");
    wrong += block[0] != 7 || block[BLOCK - 1] != 7;
    haul_message_release(&message);
  }
  check(haul_transfer_wait_all(transfers, BLOCKS, until, NULL));
  check(haul_transfer_report(transfers[0], &report));
  haul_report_format(&report, text, sizeof text);
  fputs(text, stdout);
  for (int i = 0; i < BLOCKS; i++)
    haul_transfer_release(transfers[i]);
  haul_remote_release(remote);
  haul_region_release(source);
  haul_region_release(memory);
  haul_peer_close(peer);
  haul_node_close(writer);
  haul_node_close(owner);
  return wrong;
}
