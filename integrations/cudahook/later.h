/* SPDX-License-Identifier: MIT
 * What cudaFreeAsync took: memory that a stream may still use. Not for a forked child. */
#ifndef HAUL_CUDAHOOK_LATER_H
#define HAUL_CUDAHOOK_LATER_H

#include "blocks.h"
#include "runtime.h"

/* Ends the block once the stream has done what it was given until now. Takes the block over unless
 * it returns an error. Waits for the stream where it cannot be told by an event, and for all that
 * is waiting when that is too much. */
cudaError_t later_add(const struct runtime *calls, struct block *block, cudaStream_t stream);

/* Ends the blocks whose streams have come there, without waiting. */
void later_poll(const struct runtime *calls);
/* Waits for all of them; false: there was none. */
bool later_wait(const struct runtime *calls);

#endif
