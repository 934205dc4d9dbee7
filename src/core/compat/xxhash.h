/* SPDX-License-Identifier: MIT
 * Declarations of the libxxhash 0.8 calls that haul uses, for hosts that have the library without
 * its header. */
#ifndef HAUL_COMPAT_XXHASH_H
#define HAUL_COMPAT_XXHASH_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t XXH64_hash_t;
typedef enum { XXH_OK = 0, XXH_ERROR } XXH_errorcode;
typedef struct XXH3_state_s XXH3_state_t; /* made by XXH3_createState */

XXH64_hash_t XXH3_64bits(const void *input, size_t length);

XXH3_state_t *XXH3_createState(void);
XXH_errorcode XXH3_freeState(XXH3_state_t *state);
XXH_errorcode XXH3_64bits_reset(XXH3_state_t *state);
XXH_errorcode XXH3_64bits_update(XXH3_state_t *state, const void *input, size_t length);
XXH64_hash_t XXH3_64bits_digest(const XXH3_state_t *state);

#endif
