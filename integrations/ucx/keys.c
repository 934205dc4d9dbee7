/* SPDX-License-Identifier: MIT
 * Remote keys, and imports of the memory that they name. */
#include "module.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MAGIC   UINT32_C(0x69647567) /* "gudi" */
#define KEY_VERSION 1

static struct cache imports;

const char *gaudi_name_of(uint64_t id, char name[GAUDI_NAME_ROOM]) {
  snprintf(name, GAUDI_NAME_ROOM, "ucx.%016" PRIx64, id);
  return name;
}

/* FNV-1a: detects truncated and damaged keys, not forged ones. */
static uint64_t check_of(const struct gaudi_key *key) {
  const uint8_t *at = (const uint8_t *)key;
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < offsetof(struct gaudi_key, check); i++)
    sum = (sum ^ at[i]) * UINT64_C(0x100000001b3);
  return sum;
}

/* Lets other processes look it up. */
static ucs_status_t publish(struct gaudi_memh *memh) {
  char name[GAUDI_NAME_ROOM];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* two threads may pack one memh */
  static _Atomic uint64_t last_id;
  uint64_t id = ++last_id;
  int code = 0;
  pthread_mutex_lock(&lock);
  if (memh->id == 0)
    code = haul_region_publish(memh->region, gaudi_name_of(id, name), HAUL_READ | HAUL_WRITE);
  if (memh->id == 0 && code == 0)
    memh->id = id;
  pthread_mutex_unlock(&lock);
  return code ? gaudi_failed("cannot publish device memory", UCS_LOG_LEVEL_ERROR) : UCS_OK;
}

ucs_status_t gaudi_key_pack(struct gaudi_memh *memh, void *buffer) {
  struct gaudi_key key = {.magic = KEY_MAGIC,
                          .version = KEY_VERSION,
                          .device = memh->place.device,
                          .host = gaudi_host(),
                          .process = gaudi_process(),
                          .start = memh->start,
                          .length = memh->length};
  if (memh->place.kind == HAUL_GAUDI) { /* other processes cannot reach host memory */
    ucs_status_t status = gaudi_node_listen();
    if (status == UCS_OK)
      status = publish(memh);
    if (status != UCS_OK)
      return status;
  }
  key.id = memh->id;
  key.check = check_of(&key);
  memcpy(buffer, &key, sizeof key);
  return UCS_OK;
}

static ucs_status_t refuse(const char *why) {
  ucs_error("gaudi: invalid remote key: %s", why);
  return UCS_ERR_INVALID_PARAM;
}

ucs_status_t gaudi_key_unpack(const void *buffer, struct gaudi_key **out) {
  struct gaudi_key *key = malloc(sizeof *key);
  const char *why = NULL;
  if (!key)
    return UCS_ERR_NO_MEMORY;
  memcpy(key, buffer, sizeof *key);
  if (key->magic != KEY_MAGIC)
    why = "not of this component";
  else if (key->version != KEY_VERSION)
    why = "of another version of this component";
  else if (key->check != check_of(key))
    why = "truncated or damaged";
  else if (key->host != gaudi_host())
    why = "of another host, or of an earlier boot";
  else if (key->start + key->length < key->start)
    why = "its range wraps around";
  if (why) {
    free(key);
    return refuse(why);
  }
  *out = key;
  return UCS_OK;
}

bool gaudi_key_covers(const struct gaudi_key *key, uint64_t address, size_t length) {
  return address >= key->start && length <= key->length &&
         address - key->start <= key->length - length;
}

static void drop_remote(void *value) {
  haul_remote_release(value);
}

void gaudi_imports_open(unsigned most) {
  cache_open(&imports, most, drop_remote);
}

void gaudi_imports_close(void) {
  cache_close(&imports);
}

void gaudi_imports_counters(struct cache_counters *counters) {
  *counters = cache_counters_of(&imports);
}

static ucs_status_t look_up(haul_peer *peer, const struct gaudi_key *key, haul_deadline until,
                            haul_remote **remote) {
  char name[GAUDI_NAME_ROOM];
  if (haul_peer_lookup(peer, gaudi_name_of(key->id, name), until, remote))
    return gaudi_failed("cannot look up another process's memory", UCS_LOG_LEVEL_ERROR);
  if (haul_remote_length(*remote) == key->length && haul_remote_place(*remote).kind == HAUL_GAUDI)
    return UCS_OK;
  haul_remote_release(*remote);
  return refuse("it does not match the published memory");
}

ucs_status_t gaudi_import(haul_peer *peer, uint64_t connection, const struct gaudi_key *key,
                          haul_deadline until, struct cache_entry **entry) {
  const struct cache_key of = {{key->process, key->id, connection}};
  haul_remote *remote;
  *entry = cache_find(&imports, of);
  if (*entry)
    return UCS_OK;
  ucs_status_t status = look_up(peer, key, until, &remote);
  if (status != UCS_OK)
    return status;
  *entry = cache_insert(&imports, of, remote);
  return *entry ? UCS_OK : UCS_ERR_NO_MEMORY;
}

void gaudi_import_release(struct cache_entry *entry, bool invalid) {
  if (invalid)
    cache_forget(&imports, entry);
  cache_release(&imports, entry);
}
