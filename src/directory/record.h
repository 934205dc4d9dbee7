/* SPDX-License-Identifier: MIT
 * The format of entries in etcd. Keys are PREFIX/node/NODE and PREFIX/name/REGION/NODE; in each
 * part '/', '%' and bytes that do not print are escaped as %XX. Values are JSON. Other processes
 * write to etcd too, so an entry that does not parse is ignored. */
#ifndef HAUL_DIRECTORY_RECORD_H
#define HAUL_DIRECTORY_RECORD_H

#include <jansson.h>

#include "directory/module.h"

#define KEY_MAX 1280 /* a prefix and two names with every byte escaped */

/* False: the result does not fit, or the text is malformed. */
bool word_escape(const char *word, char *text, size_t size);
bool word_unescape(const char *text, size_t length, char *word, size_t size);

void key_of(const char *prefix, const struct haul_directory_entry *entry, char key[KEY_MAX]);
/* Sets only kind, node and name. */
bool key_parse(const char *prefix, const char *key, size_t length,
               struct haul_directory_entry *entry);

/* The value, which the caller frees; NULL: no memory. */
char *value_of(const struct directory_library *library, const struct haul_directory_entry *entry);
bool value_parse(const struct directory_library *library, const char *value, size_t length,
                 struct haul_directory_entry *entry);

/* Bytes as base64, as etcd's JSON has them. NULL: no memory. */
json_t *json_bytes(const char *bytes, size_t length);
/* Decodes strict base64; the caller frees the bytes, which a NUL follows. NULL: malformed. */
char *bytes_of_json(const json_t *text, size_t *length);
/* A 64-bit number, which etcd's JSON writes as a string and omits if it is 0. NULL: no memory;
 * number_of_json returns 0 for numbers outside 1 to INT64_MAX - 1, which etcd does not use. */
json_t *json_number(int64_t number);
int64_t number_of_json(const json_t *text);

#endif
