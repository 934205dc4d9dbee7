/* SPDX-License-Identifier: MIT
 * Tiers and keys as text. */
#include <stdio.h>

#include "cache.h"
#include "common/text.h"

const char *cache_tier_text(unsigned tier) {
  return tier == HAUL_CACHE_DEVICE ? "device" : tier == HAUL_CACHE_FILE ? "file" : "memory";
}

static bool is_json_text(const char *key, size_t length) {
  size_t at = 0;
  for (size_t step; at < length && key[at] && (step = text_character(key + at)) > 0;)
    at += step;
  return at == length;
}

void cache_key_json(struct json *json, const char *key, size_t length) {
  char hex[2 * HAUL_CACHE_KEY_MAX + 1];
  json_text(json, "key", key);
  if (is_json_text(key, length))
    return;
  for (size_t i = 0; i < length; i++)
    snprintf(hex + 2 * i, 3, "%02x", (unsigned char)key[i]);
  json_text(json, "key_hex", hex);
}
