/* SPDX-License-Identifier: MIT
 * Key files (haul/access.h). */
#include <haul/access.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "core/tls/keys.h"
#include "node/node.h"

HAUL_API int haul_key_new(const char *path, const char *name) {
  struct key key = {.name = ""};
  int code = node_enter("haul_key_new", path && name, "path or name is NULL");
  if (code)
    return code;
  if (!key_name_is_valid(name))
    return key_name_refused(name);
  memcpy(key.name, name, strlen(name) + 1);
  random_bytes(key.secret, sizeof key.secret);
  code = keys_create(path, &key);
  explicit_bzero(&key, sizeof key);
  return code;
}

HAUL_API int haul_key_list(const char *path, struct haul_key *listed, size_t *count) {
  struct keys keys;
  int code = node_enter("haul_key_list", path && count && (*count == 0 || listed),
                        "path, keys or count is NULL");
  if (code)
    return code;
  code = keys_read(path, &keys);
  if (code)
    return code;
  for (size_t i = 0; i < keys.count && i < *count; i++) {
    memcpy(listed[i].name, keys.list[i].name, sizeof listed[i].name);
    key_fingerprint(&keys.list[i], listed[i].fingerprint);
  }
  *count = keys.count;
  keys_free(&keys);
  return 0;
}
