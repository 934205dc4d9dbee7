/* SPDX-License-Identifier: MIT
 * latency PATH ROUNDS: 8-byte writes back and forth between two processes that poll their own
 * memory. Prints half the round trip in microseconds. */
#include "common.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct end {
  haul_node *node;
  haul_region *inbox, *outbox;
  const _Atomic uint64_t *seen; /* first word of the inbox; `said`: of the outbox */
  uint64_t *said;
  haul_remote *remote;
  int drive; /* the path needs this process to progress */
  struct haul_transfer_options options;
};

/* A pause in the spin loop: without it the CPU discards speculative loads at each change. */
static void spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static haul_region *alloc(haul_node *node, const char *name) {
  haul_region *region;
  must(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region), "region");
  memset(haul_region_address(region), 0, 4096);
  if (name)
    must(haul_region_publish(region, name, HAUL_READ | HAUL_WRITE), "publish");
  return region;
}

static void open_end(struct end *end, const char *path) {
  end->node = open_node(0, HAUL_SPIN_ALWAYS);
  end->inbox = alloc(end->node, "inbox");
  end->outbox = alloc(end->node, NULL);
  end->seen = haul_region_address(end->inbox);
  end->said = haul_region_address(end->outbox);
  end->drive = strcmp(path, "map") != 0;
  end->options = (struct haul_transfer_options)HAUL_TRANSFER_OPTIONS_INIT;
  end->options.only = path;
}

static void send_value(struct end *end, uint64_t value) {
  static const struct haul_piece piece = {0, 0, 8};
  haul_transfer *transfer = NULL;
  *end->said = value;
  if (!end->drive) {
    must(haul_write(end->remote, end->outbox, &piece, 1, NULL, NULL), "write");
    return;
  }
  must(haul_write(end->remote, end->outbox, &piece, 1, &end->options, &transfer), "write");
  haul_transfer_release(transfer); /* the response confirms the arrival */
}

static void await_value(struct end *end, uint64_t value) {
  while (atomic_load_explicit(end->seen, memory_order_acquire) != value)
    if (end->drive)
      haul_node_progress(end->node, HAUL_NO_WAIT);
    else
      spin_pause();
}

/* The listener gets its peer from a message. */
static void serve(const char *path, uint64_t rounds) {
  struct end end;
  char address[128];
  struct haul_message hello;
  open_end(&end, path);
  must(haul_node_listen(end.node, listen_address(path)), "listen");
  must(haul_node_address(end.node, 0, address, sizeof address), "address");
  say_line(address);
  must(haul_message_receive(end.node, &hello, haul_deadline_in(10000000000)), "hello");
  must(haul_peer_lookup(hello.peer, "inbox", haul_deadline_in(5000000000), &end.remote), "lookup");
  must(haul_message_send(hello.peer, 1, NULL, 0, haul_deadline_in(5000000000)), "ready");
  for (uint64_t i = 1; i <= rounds; i++) {
    await_value(&end, i);
    send_value(&end, i);
  }
  for (;;)
    haul_node_progress(end.node, HAUL_FOREVER);
}

static void hold_hands(struct end *end, haul_peer *peer) {
  struct haul_message ready;
  must(haul_peer_lookup(peer, "inbox", haul_deadline_in(5000000000), &end->remote), "lookup");
  must(haul_message_send(peer, 1, NULL, 0, haul_deadline_in(5000000000)), "hello");
  must(haul_message_receive(end->node, &ready, haul_deadline_in(10000000000)), "ready");
  haul_message_release(&ready);
}

int main(int argc, char **argv) {
  char address[128];
  if (argc < 3) {
    fprintf(stderr, "usage: latency PATH ROUNDS\n");
    return 2;
  }
  uint64_t rounds = strtoull(argv[2], NULL, 10);
  if (is_child(argc, argv))
    serve(argv[1], rounds);
  pid_t child = start_child(argc, argv, address, sizeof address);
  struct end end;
  haul_peer *peer;
  open_end(&end, argv[1]);
  must(haul_peer_connect(end.node, address, haul_deadline_in(5000000000), &peer), "connect");
  hold_hands(&end, peer);
  int64_t began = 0;
  uint64_t warm = rounds / 10;
  for (uint64_t i = 1; i <= rounds; i++) {
    if (i == warm + 1)
      began = now_ns();
    send_value(&end, i);
    await_value(&end, i);
  }
  printf("%.5f\n", (double)(now_ns() - began) / (double)(rounds - warm) / 2000);
  end_child(child);
  return 0;
}
