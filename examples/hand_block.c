/* SPDX-License-Identifier: MIT
 * Hands the KV cache of a sequence from a prefill process to a decode process: the decoder
 * publishes device memory, the prefiller writes the scattered blocks in one transfer, and the
 * following message notifies the decoder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <haul/haul.h>

#define LAYERS      32
#define BLOCK       ((size_t)64 << 10) /* bytes of one layer's keys and values, per sequence */
#define SEQUENCE    7
#define MARK(layer) (SEQUENCE * 31 + (layer)) /* the fill byte of a layer's block */

static void check(int code, const char *who) {
  const struct haul_error *error = haul_error_last();
  if (code >= 0)
    return;
  fprintf(stderr, "%s: %s: %s (%s)\n", who, error->call, error->text, error->hint);
  exit(1);
}

static int prefill(const char *address) {
  haul_node *node;
  haul_peer *peer;
  haul_remote *cache;
  haul_region *local;
  haul_transfer *transfer;
  struct haul_piece pieces[LAYERS];
  struct haul_report report = HAUL_REPORT_INIT;
  char text[2048];
  check(haul_node_open(NULL, &node), "prefill");
  check(haul_peer_connect(node, address, haul_deadline_in(5 * HAUL_SECOND), &peer), "prefill");
  check(haul_peer_lookup(peer, "kv", haul_deadline_in(5 * HAUL_SECOND), &cache), "prefill");
  check(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, LAYERS * BLOCK, 0, &local),
        "prefill");
  /* The layers are contiguous here; the decoder's cache has 16 sequences per layer. */
  for (int layer = 0; layer < LAYERS; layer++) {
    memset((char *)haul_region_address(local) + (size_t)layer * BLOCK, MARK(layer), BLOCK);
    pieces[layer] = (struct haul_piece){.local = (size_t)layer * BLOCK,
                                        .remote = ((size_t)layer * 16 + SEQUENCE) * BLOCK,
                                        .length = BLOCK};
  }
  check(haul_write(cache, local, pieces, LAYERS, NULL, &transfer), "prefill");
  check(haul_message_send(peer, SEQUENCE, "ready", 5, haul_deadline_in(5 * HAUL_SECOND)),
        "prefill");
  check(haul_transfer_wait(transfer, haul_deadline_in(5 * HAUL_SECOND)), "prefill");
  check(haul_transfer_report(transfer, &report), "prefill");
  haul_report_format(&report, text, sizeof text);
  fputs(text, stdout);
  haul_transfer_release(transfer);
  haul_region_release(local);
  haul_remote_release(cache);
  haul_peer_close(peer);
  haul_node_close(node);
  return 0;
}

int main(void) {
  int to_prefill[2], status, wrong = 0;
  char address[128] = "";
  static unsigned char block[BLOCK];
  haul_node *node;
  haul_region *cache, *host;
  struct haul_message message;
  const struct haul_place device = {HAUL_SIM, 0};
  if (pipe(to_prefill) != 0)
    return 1;
  if (fork() == 0) /* before a node is opened: a child cannot use it */
    return close(to_prefill[1]) || read(to_prefill[0], address, sizeof address) <= 0 ||
           prefill(address);

  check(haul_node_open(NULL, &node), "decode");
  check(haul_region_alloc(node, device, LAYERS * 16 * BLOCK, 0, &cache), "decode");
  check(haul_region_publish(cache, "kv", HAUL_READ | HAUL_WRITE), "decode");
  check(haul_node_listen(node, "tcp://127.0.0.1:0"), "decode");
  check(haul_node_address(node, 0, address, sizeof address), "decode");
  if (write(to_prefill[1], address, sizeof address) != sizeof address)
    return 1;
  check(haul_message_receive(node, &message, haul_deadline_in(10 * HAUL_SECOND)), "decode");

  /* The CPU cannot access device memory: copy each block to the host to verify it. */
  check(haul_region_wrap(node, block, BLOCK, &host), "decode");
  for (size_t layer = 0; layer < LAYERS; layer++) {
    check(haul_region_copy(host, 0, cache, (layer * 16 + message.tag) * BLOCK, BLOCK, HAUL_FOREVER),
          "decode");
    for (size_t i = 0; i < BLOCK; i++)
      wrong += block[i] != (unsigned char)MARK(layer);
  }
  printf("decode: sequence %d is %s\n", (int)message.tag, wrong ? "damaged" : "complete");
  haul_message_release(&message);
  haul_region_release(host);
  haul_region_release(cache);
  haul_node_close(node);
  return wait(&status) < 0 || status != 0 || wrong != 0;
}
