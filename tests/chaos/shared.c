/* SPDX-License-Identifier: MIT */
#include "shared.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"
#include "support/owner.h"

struct shared *shared_open(int descriptor) {
  void *got = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (got == MAP_FAILED)
    abort();
  return got;
}

struct shared *shared_create(int *descriptor) {
  int first = memfd_create("chaos", MFD_CLOEXEC);
  *descriptor = fcntl(first, F_DUPFD, 10); /* children have their socket at 3 */
  close(first);
  if (*descriptor < 0 || ftruncate(*descriptor, sizeof(struct shared)) != 0)
    abort();
  return shared_open(*descriptor);
}

/* Small and large, mostly odd, so that neighbours share cache lines. */
static const size_t sizes[BLOCKS] = {8,     64,    1,      200,    3,      1000,   4096,   5001,
                                     16384, 40000, 65536,  100001, 262144, 300007, 9,      77,
                                     513,   7777,  131072, 12345,  2,      33000,  524288, 65537};

size_t block_size(unsigned block) {
  return sizes[block];
}

static size_t lane_size(void) {
  size_t size = LANE_HEADER;
  for (unsigned i = 0; i < BLOCKS; i++)
    size += sizes[i];
  return (size + 63) & ~(size_t)63;
}

uint64_t lane_offset(unsigned writer) {
  return REGION_HEADER + writer * lane_size();
}

uint64_t block_offset(unsigned writer, unsigned block) {
  uint64_t offset = lane_offset(writer) + LANE_HEADER;
  for (unsigned i = 0; i < block; i++)
    offset += sizes[i];
  return offset;
}

uint64_t region_size(void) {
  return lane_offset(NODES);
}

uint64_t block_seed(uint64_t region, unsigned writer, unsigned block, uint64_t generation) {
  return region * 0x9e3779b97f4a7c15u ^ (uint64_t)writer << 56 ^ (uint64_t)block << 48 ^
         generation * 0xff51afd7ed558ccdu;
}

void lane_begin(struct lane *lane, uint64_t region) {
  for (unsigned i = 0; i < BLOCKS; i++)
    atomic_store(&lane->blocks[i].known, false);
  atomic_store(&lane->adds_begun, 0);
  atomic_store(&lane->adds_done, 0);
  atomic_store(&lane->region, region);
}

void rest(int64_t nanoseconds) {
  struct timespec time = {nanoseconds / S, nanoseconds % S};
  nanosleep(&time, NULL);
}

bool pattern_holds(const void *bytes, size_t length, uint64_t seed, size_t *at) {
  uint8_t *wanted = malloc(length);
  const uint8_t *found = bytes;
  if (!wanted)
    abort();
  pattern_fill(wanted, length, seed);
  bool same = memcmp(found, wanted, length) == 0;
  for (*at = 0; !same && found[*at] == wanted[*at];)
    ++*at;
  free(wanted);
  return same;
}
