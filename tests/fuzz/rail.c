/* SPDX-License-Identifier: MIT
 * A rail of tcp: any bytes that a peer may send over it, while a write, a read and a fetch-add of
 * this side are in flight. The first byte chooses the size of the chunks and the side of the node.
 */
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/sys.h"
#include "rig.h"

static haul_transfer *start(haul_remote *remote, enum haul_operation operation) {
  struct haul_piece pieces[2] = {{0, 0, 100}, {200, 300, 28}};
  haul_transfer *transfer = NULL;
  int code = operation == HAUL_OP_WRITE
                 ? haul_write(remote, rig_local(), pieces, 2, NULL, &transfer)
                 : haul_read(rig_local(), remote, pieces, 2, NULL, &transfer);
  RIG_ASSERT(code == 0);
  return transfer;
}

static void feed(int end, const uint8_t *bytes, size_t length, size_t step) {
  for (size_t at = 0; at < length; at += step) {
    size_t part = length - at < step ? length - at : step;
    if (!rig_send(end, bytes + at, part))
      return;
    rig_progress(4);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  int end, rail;
  haul_remote *remote;
  struct remote_key key = {.handle = RIG_HANDLE(1),
                           .length = RIG_BYTES,
                           .place = {HAUL_HOST, 0},
                           .rights = HAUL_READ | HAUL_WRITE};
  if (length < 2 || length > RIG_INPUT)
    return 0;
  struct haul_peer *peer = rig_peer(bytes[0] % 4 != 1, &end);
  rig_channel(peer, "tcp", &rail);
  RIG_ASSERT(
      remote_open(&rig_node()->transfers, &peer->base, &key, "remote", HAUL_NO_WAIT, &remote) == 0);
  haul_transfer *write = start(remote, HAUL_OP_WRITE), *read = start(remote, HAUL_OP_READ), *add;
  RIG_ASSERT(haul_fetch_add(rig_local(), 512, remote, 64, 1, NULL, &add) == 0);
  rig_progress(4);
  size_t step = bytes[0] > length / 64 ? bytes[0] : length / 64 + 1;
  feed(rail, bytes + 1, length - 1, bytes[0] == 0 ? length : step);
  poll(NULL, 0, length > 4096 ? 1 : 0); /* for the emulated engine */
  rig_progress(16);
  shutdown(rail, SHUT_WR);
  rig_progress(16);
  haul_transfer_release(write);
  haul_transfer_release(read);
  haul_transfer_release(add);
  haul_remote_release(remote);
  close(rail);
  rig_drop(peer, end);
  return 0;
}
