/* SPDX-License-Identifier: MIT
 * Tiers as text. */
#include "cache.h"

const char *cache_tier_text(unsigned tier) {
  return tier == HAUL_CACHE_DEVICE ? "device" : tier == HAUL_CACHE_FILE ? "file" : "memory";
}
