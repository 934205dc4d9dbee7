/* SPDX-License-Identifier: MIT */
#include "fabric/rdma_settings.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct entry {
  char nic[64]; /* "": the others */
  uint64_t number;
};

/* Reads the entry at the start of the text. Returns the comma or the end behind it; NULL: it is
 * invalid. */
static const char *read_entry(const char *text, struct entry *entry) {
  size_t length = strcspn(text, ":,");
  char *end;
  if (text[length] == ':') {
    if (length == 0 || length >= sizeof entry->nic)
      return NULL;
  } else {
    length = 0;
  }
  memcpy(entry->nic, text, length);
  entry->nic[length] = '\0';
  text += length + (length > 0);
  if (!isdigit((unsigned char)*text))
    return NULL;
  entry->number = strtoull(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
  return *end == ',' || *end == '\0' ? end : NULL;
}

bool rdma_setting_assign(struct rdma_settings *settings, enum rdma_setting which, const char *text,
                         uint64_t min, uint64_t max) {
  char *into = settings->texts[which];
  struct entry entry;
  bool automatic = strcmp(text, "auto") == 0;
  if (strlen(text) >= sizeof settings->texts[0])
    return false;
  for (const char *at = text; !automatic; at++) {
    at = read_entry(at, &entry);
    if (!at || entry.number < min || entry.number > max ||
        (which == RDMA_MTU && entry.number & (entry.number - 1)))
      return false;
    if (*at == '\0')
      break;
  }
  strcpy(into, automatic ? "" : text);
  return true;
}

int rdma_setting_of(const struct rdma_settings *settings, enum rdma_setting which,
                    const char *nic) {
  const char *at = settings ? settings->texts[which] : "";
  int others = RDMA_AUTO;
  struct entry entry;
  for (; *at && (at = read_entry(at, &entry)); at += *at == ',') {
    if (strcmp(entry.nic, nic) == 0)
      return (int)entry.number;
    if (!*entry.nic)
      others = (int)entry.number;
  }
  return others;
}

bool rdma_setting_finds_stranger(const struct rdma_settings *settings, enum rdma_setting which,
                                 bool (*is_nic)(const void *user, const char *name),
                                 const void *user, char name[64]) {
  const char *at = settings ? settings->texts[which] : "";
  struct entry entry;
  for (; *at && (at = read_entry(at, &entry)); at += *at == ',') {
    strcpy(name, entry.nic);
    if (*name && !is_nic(user, name))
      return true;
  }
  return false;
}

bool rdma_settings_need_nic(const struct rdma_settings *settings) {
  for (unsigned i = 0; i < RDMA_SETTINGS; i++)
    if ((i >= RDMA_GID && i <= RDMA_MTU && *settings->texts[i]) || strchr(settings->texts[i], ':'))
      return true;
  return false;
}

const char *rdma_setting_name(enum rdma_setting which) {
  static const char *const names[] = {"rdma_traffic_class", "rdma_service_level", "rdma_gid",
                                      "rdma_pkey",          "rdma_mtu",           "rdma_timeout",
                                      "rdma_retry_count"};
  return names[which];
}
