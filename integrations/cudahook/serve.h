/* SPDX-License-Identifier: MIT
 * Memory from haul, for calls of the runtime's; what these have in common. */
#ifndef HAUL_CUDAHOOK_SERVE_H
#define HAUL_CUDAHOOK_SERVE_H

#include "blocks.h"
#include "log.h"
#include "runtime.h"

/* What a call returns that is passed on where there is no runtime. */
#define NO_RUNTIME cudaErrorSharedObjectSymbolNotFound

/* record->bytes on the current device, for work of the stream; NULL: the call is to be passed on,
 * and record->why has the reason. */
void *serve_alloc(struct record *record, cudaStream_t stream);

/* The block that starts there, which the caller ends or keeps; NULL: the call is to be passed on.
 */
struct block *serve_take(struct record *record, const void *address);
/* Waits for the block's device, as cudaFree does. After an error the memory is still there. */
cudaError_t serve_free(struct record *record, struct block *block);
/* Waits for nothing. */
cudaError_t serve_free_async(struct record *record, struct block *block, cudaStream_t stream);
/* The current device is about to be reset: all that was served on it goes, and what
 * serve_free_async did not wait for is waited for. */
void serve_reset(void);
/* Gives the memory to haul. */
void serve_end(struct block *block);

/* After an allocation was passed on: what lay at this address before is no more. NULL: nothing was
 * allocated. Returns `result`, once it is in the log. */
cudaError_t serve_passed_on(const struct record *record, void *address, cudaError_t result);

#endif
