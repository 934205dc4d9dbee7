/* SPDX-License-Identifier: MIT */
#include "directory/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool word_escape(const char *word, char *text, size_t size) {
  size_t used = 0;
  for (; *word; word++) {
    unsigned char byte = (unsigned char)*word;
    if (used + 4 > size)
      return false;
    if (byte > ' ' && byte < 0x7f && byte != '/' && byte != '%')
      text[used++] = (char)byte;
    else
      used += (size_t)snprintf(text + used, size - used, "%%%02X", byte);
  }
  text[used] = '\0';
  return true;
}

static int hex_digit(char text) {
  if (text >= '0' && text <= '9')
    return text - '0';
  if (text >= 'A' && text <= 'F')
    return text - 'A' + 10;
  return text >= 'a' && text <= 'f' ? text - 'a' + 10 : -1;
}

bool word_unescape(const char *text, size_t length, char *word, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < length; i++) {
    int byte = (unsigned char)text[i];
    if (byte == '%') {
      int high = i + 2 < length ? hex_digit(text[i + 1]) : -1;
      int low = high < 0 ? -1 : hex_digit(text[i + 2]);
      byte = low < 0 ? 0 : high << 4 | low;
      i += 2;
    }
    if (byte == 0 || used + 1 >= size)
      return false;
    word[used++] = (char)byte;
  }
  word[used] = '\0';
  return used > 0;
}

void key_of(const char *prefix, const struct haul_directory_entry *entry, char key[KEY_MAX]) {
  char node[3 * sizeof entry->node + 1], name[3 * sizeof entry->name + 1];
  word_escape(entry->node, node, sizeof node);
  word_escape(entry->name, name, sizeof name);
  if (entry->kind == HAUL_DIRECTORY_NODE)
    snprintf(key, KEY_MAX, "%s/node/%s", prefix, node);
  else
    snprintf(key, KEY_MAX, "%s/name/%s/%s", prefix, name, node);
}

bool key_parse(const char *prefix, const char *key, size_t length,
               struct haul_directory_entry *entry) {
  size_t start = strlen(prefix) + strlen("/node/");
  if (length <= start || strncmp(key, prefix, strlen(prefix)) != 0)
    return false;
  const char *kind = key + strlen(prefix), *rest = key + start, *end = key + length;
  if (strncmp(kind, "/node/", 6) == 0) {
    entry->kind = HAUL_DIRECTORY_NODE;
    entry->name[0] = '\0';
    return word_unescape(rest, (size_t)(end - rest), entry->node, sizeof entry->node);
  }
  const char *slash = memchr(rest, '/', (size_t)(end - rest));
  if (strncmp(kind, "/name/", 6) != 0 || !slash)
    return false;
  entry->kind = HAUL_DIRECTORY_REGION;
  return word_unescape(rest, (size_t)(slash - rest), entry->name, sizeof entry->name) &&
         word_unescape(slash + 1, (size_t)(end - slash - 1), entry->node, sizeof entry->node);
}

static void hex_of(const uint8_t bytes[16], char text[33]) {
  for (int i = 0; i < 16; i++)
    snprintf(text + 2 * (size_t)i, 3, "%02x", bytes[i]);
}

static bool hex_parse(const char *text, uint8_t bytes[16]) {
  if (!text || strlen(text) != 32)
    return false;
  for (size_t i = 0; i < 16; i++) {
    int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0)
      return false;
    bytes[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}

static const char *const rights_text[] = {"", "r", "w", "rw"}; /* HAUL_READ | HAUL_WRITE */

/* NULL: no memory. */
static json_t *addresses_of(const struct haul_directory_entry *entry) {
  json_t *addresses = json_array();
  for (unsigned i = 0; addresses && i < entry->address_count; i++)
    if (json_array_append_new(addresses, json_string(entry->addresses[i])) != 0) {
      json_decref(addresses);
      addresses = NULL;
    }
  return addresses;
}

/* False: no memory. */
static bool add_region(const struct directory_library *library,
                       const struct haul_directory_entry *entry, json_t *value) {
  char place[16];
  library->place_format(entry->place, place, sizeof place);
  return json_object_set_new(value, "bytes", json_integer((json_int_t)entry->length)) == 0 &&
         json_object_set_new(value, "place", json_string(place)) == 0 &&
         json_object_set_new(value, "rights", json_string(rights_text[entry->rights & 3])) == 0;
}

char *value_of(const struct directory_library *library, const struct haul_directory_entry *entry) {
  char id[33], boot[33];
  hex_of(entry->id, id);
  hex_of(entry->boot, boot);
  json_t *value = json_pack("{ss, ss, sI, so}", "id", id, "boot", boot, "network",
                            (json_int_t)entry->network, "addresses", addresses_of(entry));
  bool whole = value && (entry->kind != HAUL_DIRECTORY_REGION || add_region(library, entry, value));
  char *text = whole ? json_dumps(value, JSON_COMPACT) : NULL;
  json_decref(value);
  return text;
}

static bool addresses_parse(const json_t *list, struct haul_directory_entry *entry) {
  entry->address_count = 0;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const char *address = json_string_value(json_array_get(list, i));
    if (!address || strlen(address) >= sizeof entry->addresses[0])
      return false;
    if (entry->address_count < HAUL_DIRECTORY_ADDRESSES)
      strcpy(entry->addresses[entry->address_count++], address);
  }
  return entry->address_count > 0;
}

static bool region_parse(const struct directory_library *library, const json_t *value,
                         struct haul_directory_entry *entry) {
  json_int_t bytes = json_integer_value(json_object_get(value, "bytes"));
  const char *place = json_string_value(json_object_get(value, "place"));
  const char *rights = json_string_value(json_object_get(value, "rights"));
  entry->length = (uint64_t)bytes;
  entry->rights = 0;
  for (unsigned i = 1; rights && i < 4; i++)
    if (strcmp(rights, rights_text[i]) == 0)
      entry->rights = i;
  return bytes > 0 && entry->rights && place && library->place_parse(place, &entry->place) == 0;
}

bool value_parse(const struct directory_library *library, const char *text, size_t length,
                 struct haul_directory_entry *entry) {
  json_t *value = json_loadb(text, length, 0, NULL);
  entry->network = (uint64_t)json_integer_value(json_object_get(value, "network"));
  bool valid = hex_parse(json_string_value(json_object_get(value, "id")), entry->id) &&
               hex_parse(json_string_value(json_object_get(value, "boot")), entry->boot) &&
               addresses_parse(json_object_get(value, "addresses"), entry) &&
               (entry->kind == HAUL_DIRECTORY_NODE || region_parse(library, value, entry));
  json_decref(value);
  return valid;
}

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

json_t *json_bytes(const char *bytes, size_t length) {
  char *text = malloc((length + 2) / 3 * 4 + 1);
  size_t used = 0;
  if (!text)
    return NULL;
  for (size_t i = 0; i < length; i += 3) {
    size_t left = length - i;
    uint32_t group = (uint32_t)(uint8_t)bytes[i] << 16;
    group |= left > 1 ? (uint32_t)(uint8_t)bytes[i + 1] << 8 : 0;
    group |= left > 2 ? (uint8_t)bytes[i + 2] : 0;
    text[used++] = letters[group >> 18];
    text[used++] = letters[group >> 12 & 63];
    text[used++] = left > 1 ? letters[group >> 6 & 63] : '=';
    text[used++] = left > 2 ? letters[group & 63] : '=';
  }
  text[used] = '\0';
  json_t *string = json_string_nocheck(text);
  free(text);
  return string;
}

/* Strict, as RFC 4648 4: whole groups, padding at the end only, unused bits 0. */
char *bytes_of_json(const json_t *string, size_t *length) {
  const char *text = json_string_value(string);
  size_t size = text ? strlen(text) : 0, used = 0, padding = 0;
  uint32_t group = 0;
  unsigned bits = 0;
  char *bytes = text && size % 4 == 0 ? malloc(size / 4 * 3 + 1) : NULL;
  if (!bytes)
    return NULL;
  while (padding < 2 && padding < size && text[size - 1 - padding] == '=')
    padding++;
  for (size_t i = 0; i < size - padding; i++) {
    const char *digit = strchr(letters, text[i]);
    if (!digit)
      goto malformed;
    group = group << 6 | (uint32_t)(digit - letters);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      bytes[used++] = (char)(group >> bits & 255);
    }
  }
  if (group & ((1u << bits) - 1))
    goto malformed;
  bytes[used] = '\0';
  *length = used;
  return bytes;

malformed:
  free(bytes);
  return NULL;
}

json_t *json_number(int64_t number) {
  char text[24];
  snprintf(text, sizeof text, "%lld", (long long)number);
  return json_string(text);
}

int64_t number_of_json(const json_t *text) {
  const char *digits = json_string_value(text);
  int64_t number = digits ? strtoll(digits, NULL, 10) : json_integer_value(text);
  return number > 0 && number < INT64_MAX ? number : 0;
}
