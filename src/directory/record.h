/* SPDX-License-Identifier: MIT
 * How entries stand in etcd: PREFIX/node/NODE and PREFIX/name/REGION/NODE, each part with '/', '%'
 * and what does not print as %XX; the values are JSON. What others wrote there is believed nowhere:
 * an entry that does not parse is none. */
#ifndef HAUL_DIRECTORY_RECORD_H
#define HAUL_DIRECTORY_RECORD_H

#include <jansson.h>

#include "directory/module.h"

#define KEY_MAX 1280 /* a prefix, and two names of which each byte takes three */

/* %XX and back; false: it does not fit, or is no such text. */
bool word_escape(const char *word, char *text, size_t size);
bool word_unescape(const char *text, size_t length, char *word, size_t size);

void key_of(const char *prefix, const struct haul_directory_entry *entry, char key[KEY_MAX]);
/* Sets kind, node and name alone. */
bool key_parse(const char *prefix, const char *key, size_t length,
               struct haul_directory_entry *entry);

/* The value, for free(3); NULL for want of memory. */
char *value_of(const struct directory_library *library, const struct haul_directory_entry *entry);
bool value_parse(const struct directory_library *library, const char *value, size_t length,
                 struct haul_directory_entry *entry);

/* As etcd's JSON has bytes: base64. NULL for want of memory. */
json_t *json_bytes(const char *bytes, size_t length);
/* For free(3), with a NUL behind; NULL where it is none. */
char *bytes_of_json(const json_t *text, size_t *length);
/* A 64-bit number, which is a string there; 0 where it is missing, as there, or no number that
 * etcd counts with: these are positive, and have a successor. */
int64_t number_of_json(const json_t *text);

#endif
