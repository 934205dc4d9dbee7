/* SPDX-License-Identifier: MIT
 * Connections to the listener of a node, and their bytes, in any order. The input is a sequence of
 * steps: a byte (connection, and whether it ends), a length u16, bytes. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/wire.h"
#include "rig.h"

#define CONNECTIONS 4
#define ENDS        0x80u

static struct address address;

static void listen_once(void) {
  char text[64];
  if (address.length > 0)
    return;
  snprintf(text, sizeof text, "unix://@haul-fuzz-%d", (int)getpid());
  RIG_ASSERT(haul_node_listen(rig_node(), text) == 0 &&
             address_parse(text, haul_deadline_in(20000000000), &address) == 0);
}

static void drop_peers(void) {
  struct haul_message message;
  haul_node *node = rig_node();
  loop_lock(node->loop);
  list_each_safe(item, &node->peers) {
    peer_drop(list_entry(item, struct haul_peer, list), HAUL_EPEER, "the input is at its end");
  }
  loop_unlock(node->loop);
  while (haul_message_receive(node, &message, HAUL_NO_WAIT) == 0)
    haul_message_release(&message);
}

static void connect_to_node(int *fd) {
  RIG_ASSERT(sock_open(&address, "node", fd) == 0);
  if (sock_connect_start(*fd, &address) == 0)
    return;
  close(*fd);
  *fd = -1;
}

static void step(int *fds, struct wire *wire) {
  uint8_t head = wire_get8(wire);
  size_t length = wire_get16(wire);
  int *fd = &fds[head % CONNECTIONS];
  length = length < wire_left(wire) ? length : wire_left(wire);
  const uint8_t *bytes = wire_take(wire, length);
  if (*fd < 0)
    connect_to_node(fd);
  if (*fd >= 0 && bytes)
    rig_send(*fd, bytes, length);
  if (*fd >= 0 && (head & ENDS)) {
    close(*fd);
    *fd = -1;
  }
  rig_progress(8);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  int fds[CONNECTIONS] = {-1, -1, -1, -1};
  if (length > RIG_INPUT)
    return 0;
  struct wire wire = wire_over(bytes, length);
  listen_once();
  while (wire_left(&wire) > 0 && !wire.failed)
    step(fds, &wire);
  for (int i = 0; i < CONNECTIONS; i++)
    if (fds[i] >= 0)
      close(fds[i]);
  rig_progress(16);
  drop_peers();
  return 0;
}
