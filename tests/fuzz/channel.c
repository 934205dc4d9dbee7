/* SPDX-License-Identifier: MIT
 * The map channel: records, each behind a byte that says which descriptors come with it, while a
 * request of ours waits for its answer. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric/map/map.h"
#include "rig.h"

enum attached { BOARD, HAZARDS_SHM, UNSEALED, NO_MEMORY };

/* What a peer may have: its board, its hazards, and descriptors that are neither. */
static struct {
  int fds[4];
  struct shm hazards;
} own;

static void make_descriptors(void) {
  uint32_t slots;
  uint8_t capability[16];
  if (own.fds[UNSEALED] > 0)
    return;
  RIG_ASSERT(exports_validity_page(rig_node()->exports, &own.fds[BOARD], &slots, capability) == 0);
  RIG_ASSERT(shm_create("haul-hazards", sizeof(struct hazards), &own.hazards) == 0);
  own.fds[HAZARDS_SHM] = own.hazards.fd;
  own.fds[UNSEALED] = memfd_create("haul-fuzz", MFD_CLOEXEC);
  own.fds[NO_MEMORY] = open("/dev/null", O_RDWR | O_CLOEXEC);
  RIG_ASSERT(own.fds[UNSEALED] > 0 && own.fds[NO_MEMORY] > 0);
}

/* Two bits a descriptor, and in the upper half how many. */
static void send_one(int end, const uint8_t *bytes, size_t length) {
  int fds[3];
  size_t count = bytes[0] >> 6;
  for (size_t i = 0; i < count; i++)
    fds[i] = own.fds[bytes[0] >> (2 * i) & 3];
  if (length > 1)
    sock_send_record(end, bytes + 1, length - 1, fds, count);
}

static void use(struct endpoint *endpoint, const struct remote_key *key, void *binding) {
  struct haul_piece piece = {0, 0, 64};
  struct estimate estimate = {.refusal = 0};
  struct memory *local = &rig_local()->memory;
  map_transport.estimate(endpoint, key, binding, local, HAUL_OP_READ, &estimate);
  if (estimate.open && !((struct map_binding *)binding)->attached)
    map_transport.now(endpoint, key, binding, rig_local(), &piece, 1, 64, HAUL_OP_READ);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  const size_t each = MAP_RECORD + 1;
  int end, channel;
  void *binding = NULL;
  struct remote_key key = {
      .handle = RIG_HANDLE(1), .length = RIG_BYTES, .place = {HAUL_HOST, 0}, .rights = HAUL_READ};
  if (length < 1 || length > 16 * each)
    return 0;
  make_descriptors();
  struct haul_peer *peer = rig_peer(false, &end);
  struct endpoint *endpoint = peer->base.endpoints[map_transport.index];
  rig_channel(peer, "map", &channel);
  for (size_t at = 0; at < length; at += each) {
    send_one(channel, bytes + at, length - at < each ? length - at : each);
    if (at == 0)
      rig_progress(2); /* a greeting opens the endpoint */
  }
  shutdown(channel, SHUT_WR);
  if (map_transport.bind(endpoint, &key, haul_deadline_in(1000000), &binding) == 0) {
    if (atomic_load(&endpoint->open))
      use(endpoint, &key, binding);
    map_transport.unbind(endpoint, binding);
  }
  rig_progress(16);
  close(channel);
  rig_drop(peer, end);
  return 0;
}
