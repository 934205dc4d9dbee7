/* SPDX-License-Identifier: MIT
 * What the fuzz targets share. A target is one LLVMFuzzerTestOneInput: libFuzzer calls it in the
 * preset `fuzz`, replay.c elsewhere. Randomness is fixed, so that seeds can name handles, tokens
 * and capabilities. */
#ifndef HAUL_TESTS_RIG_H
#define HAUL_TESTS_RIG_H

#include <stddef.h>
#include <stdint.h>

#include "node/handshake.h"
#include "node/peer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

/* Every random byte is this one. */
#define RIG_RANDOM 0x5a
/* The handle of the region published in the slot. */
#define RIG_HANDLE(slot) (UINT64_C(0x5a5a5a5a5a500000) | (slot))
/* What tcp calls the first request of an endpoint. */
#define RIG_REQUEST (UINT64_C(1) << 32)

#define RIG_BYTES ((size_t)64 << 10) /* of each region */
#define RIG_INPUT ((size_t)96 << 10) /* bytes of an input that are used: they fit a socket */

enum rig_slot { RIG_HOST = 1, RIG_READ_ONLY = 2, RIG_SIM = 3, RIG_WRAPPED = 4 };

/* Ends the program with its line if the condition does not hold: that is a finding. */
#define RIG_ASSERT(condition)                                                                      \
  do {                                                                                             \
    if (!(condition))                                                                              \
      rig_fail(#condition, __FILE__, __LINE__);                                                    \
  } while (0)
_Noreturn void rig_fail(const char *condition, const char *file, int line);

/* The node, driven by its caller, with the regions published; opened once. */
haul_node *rig_node(void);
/* A private host region of RIG_BYTES. */
haul_region *rig_local(void);

/* A peer whose control connection ends at *end. */
struct haul_peer *rig_peer(bool initiator, int *end);
/* A connection that the transport's endpoint adopts; *end is the other end. */
void rig_channel(struct haul_peer *peer, const char *transport, int *end);
/* Drops the peer, closes `end` and empties the inbox. */
void rig_drop(struct haul_peer *peer, int end);
/* Lets the node do what there is to do. */
void rig_progress(unsigned rounds);
/* As much as the socket takes at once; false when it takes less. */
bool rig_send(int end, const uint8_t *bytes, size_t length);

#endif
