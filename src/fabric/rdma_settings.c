/* SPDX-License-Identifier: MIT */
#include "fabric/rdma_settings.h"

#include <stdlib.h>
#include <string.h>

struct entry {
  char nic[64]; /* "": the others */
  uint64_t number;
};

static bool take_name(const char *text, size_t length, struct entry *entry) {
  if (length == 0 || length >= sizeof entry->nic)
    return false;
  memcpy(entry->nic, text, length);
  entry->nic[length] = '\0';
  return true;
}

/* Reads the entry at the start of the text. Returns the comma or the end behind it; NULL: it is
 * invalid. */
static const char *read_entry(enum rdma_setting which, const char *text, struct entry *entry) {
  text += which == RDMA_NICS && *text == '^';
  size_t length = strcspn(text, ":,^ ");
  char *end = (char *)text + length;
  *entry = (struct entry){.number = 0};
  if ((which == RDMA_NICS || *end == ':') && !take_name(text, length, entry))
    return NULL;
  if (which != RDMA_NICS) {
    text = *end == ':' ? end + 1 : text;
    if (*text < '0' || *text > '9')
      return NULL;
    entry->number = strtoull(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
  }
  return *end == ',' || *end == '\0' ? end : NULL;
}

bool rdma_setting_assign(struct rdma_settings *settings, enum rdma_setting which, const char *text,
                         uint64_t min, uint64_t max) {
  char *into = settings->texts[which];
  struct entry entry;
  bool automatic = strcmp(text, "auto") == 0;
  if (strlen(text) >= sizeof settings->texts[0] || strstr(text, ",^"))
    return false;
  for (const char *at = text; !automatic; at++) {
    at = read_entry(which, at, &entry);
    if (!at || entry.number < min || entry.number > max ||
        (which == RDMA_MTU && entry.number & (entry.number - 1)))
      return false;
    if (*at == '\0')
      break;
  }
  text = automatic ? "" : text;
  memcpy(into, text, strlen(text) + 1);
  return true;
}

int rdma_setting_of(const struct rdma_settings *settings, enum rdma_setting which,
                    const char *nic) {
  const char *text = settings ? settings->texts[which] : "", *at = text;
  bool excludes = *text == '^';
  int others = which == RDMA_NICS ? excludes || !*text : RDMA_AUTO;
  struct entry entry;
  for (; *at && (at = read_entry(which, at, &entry)); at += *at == ',') {
    if (strcmp(entry.nic, nic) == 0)
      return which == RDMA_NICS ? !excludes : (int)entry.number;
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
  for (; *at && (at = read_entry(which, at, &entry)); at += *at == ',') {
    memcpy(name, entry.nic, sizeof entry.nic);
    if (*name && !is_nic(user, name))
      return true;
  }
  return false;
}

bool rdma_settings_need_nic(const struct rdma_settings *settings) {
  for (unsigned i = 0; i < RDMA_SETTINGS; i++)
    if ((i >= RDMA_NICS && i <= RDMA_MTU && *settings->texts[i]) || strchr(settings->texts[i], ':'))
      return true;
  return false;
}

const char *rdma_setting_name(enum rdma_setting which) {
  static const char *const names[] = {"rdma_traffic_class", "rdma_service_level", "rdma_nics",
                                      "rdma_gid",           "rdma_pkey",          "rdma_mtu",
                                      "rdma_timeout",       "rdma_retry_count"};
  return names[which];
}
