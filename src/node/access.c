/* SPDX-License-Identifier: MIT
 * The public calls of haul/access.h. */
#include <haul/access.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "core/tls/keys.h"
#include "node/node.h"

HAUL_API int haul_key_new(const char *path, const char *name) {
  struct key key = {.name = ""};
  int code = error_enter("haul_key_new");
  if (code)
    return code;
  if (!path || !name)
    return error_set(HAUL_EINVAL, 0, path, NULL, "no path, or no name for the key");
  if (!key_name_is_valid(name))
    return key_name_refused(name);
  memcpy(key.name, name, strlen(name) + 1);
  random_bytes(key.secret, sizeof key.secret);
  code = keys_create(path, &key);
  explicit_bzero(&key, sizeof key);
  return code;
}

HAUL_API int haul_key_list(const char *path, struct haul_key *told, size_t *count) {
  struct keys keys;
  int code = error_enter("haul_key_list");
  if (code)
    return code;
  if (!path || !count || (*count > 0 && !told))
    return error_set(HAUL_EINVAL, 0, path, NULL, "no path, no room or no count");
  code = keys_read(path, &keys);
  if (code)
    return code;
  for (size_t i = 0; i < keys.count && i < *count; i++) {
    memcpy(told[i].name, keys.list[i].name, sizeof told[i].name);
    key_fingerprint(&keys.list[i], told[i].fingerprint);
  }
  *count = keys.count;
  keys_free(&keys);
  return 0;
}

HAUL_API const char *haul_peer_identity(const haul_peer *peer) {
  return peer ? peer->base.identity : "";
}
