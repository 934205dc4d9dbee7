/* SPDX-License-Identifier: MIT
 * Writes and reads little-endian fields in a bounded buffer. A cursor that ran past the end stays
 * failed and yields zeros, so a parser checks once, at its end. */
#ifndef HAUL_CORE_WIRE_H
#define HAUL_CORE_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct wire {
  uint8_t *at, *end;
  bool failed;
  bool gets; /* WIRE and its like read, and do not write */
};

static inline struct wire wire_over(const void *bytes, size_t length) {
  uint8_t *at = (uint8_t *)(uintptr_t)bytes;
  return (struct wire){.at = at, .end = at + length};
}

static inline struct wire wire_from(const void *bytes, size_t length) {
  struct wire wire = wire_over(bytes, length);
  wire.gets = true;
  return wire;
}

static inline size_t wire_left(const struct wire *wire) {
  return (size_t)(wire->end - wire->at);
}

/* Returns `length` bytes and advances the cursor; NULL once failed. */
static inline uint8_t *wire_take(struct wire *wire, size_t length) {
  if (wire->failed || wire_left(wire) < length) {
    wire->failed = true;
    return NULL;
  }
  uint8_t *at = wire->at;
  wire->at += length;
  return at;
}

static inline void wire_put(struct wire *wire, uint64_t value, size_t bytes) {
  uint8_t *at = wire_take(wire, bytes);
  for (size_t i = 0; at && i < bytes; i++)
    at[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t wire_get(struct wire *wire, size_t bytes) {
  const uint8_t *at = wire_take(wire, bytes);
  uint64_t value = 0;
  if (at)
    memcpy(&value, at, bytes);
  return le64toh(value);
}

static inline void wire_put8(struct wire *w, uint8_t v) {
  wire_put(w, v, 1);
}
static inline void wire_put16(struct wire *w, uint16_t v) {
  wire_put(w, v, 2);
}
static inline void wire_put32(struct wire *w, uint32_t v) {
  wire_put(w, v, 4);
}
static inline void wire_put64(struct wire *w, uint64_t v) {
  wire_put(w, v, 8);
}
static inline uint8_t wire_get8(struct wire *w) {
  return (uint8_t)wire_get(w, 1);
}
static inline uint16_t wire_get16(struct wire *w) {
  return (uint16_t)wire_get(w, 2);
}
static inline uint32_t wire_get32(struct wire *w) {
  return (uint32_t)wire_get(w, 4);
}
static inline uint64_t wire_get64(struct wire *w) {
  return wire_get(w, 8);
}

static inline void wire_put_bytes(struct wire *wire, const void *bytes, size_t length) {
  uint8_t *at = wire_take(wire, length);
  if (at && length)
    memcpy(at, bytes, length);
}

static inline void wire_get_bytes(struct wire *wire, void *bytes, size_t length) {
  const uint8_t *at = wire_take(wire, length);
  if (at)
    memcpy(bytes, at, length);
  else
    memset(bytes, 0, length);
}

/* Strings may be printed to a terminal, so only printable ASCII is allowed. */
static inline bool wire_is_printable(char byte) {
  return byte >= ' ' && byte < 0x7f;
}

/* A 16-bit length and the bytes, without the terminator; '?' replaces other bytes. */
static inline void wire_put_string(struct wire *wire, const char *text) {
  size_t length = strlen(text);
  wire_put16(wire, (uint16_t)length);
  uint8_t *at = wire_take(wire, length);
  for (size_t i = 0; at && i < length; i++)
    at[i] = wire_is_printable(text[i]) ? (uint8_t)text[i] : '?';
}

/* Fails when string and terminator exceed `size`, or a byte is not printable. */
static inline void wire_get_string(struct wire *wire, char *text, size_t size) {
  size_t length = wire_get16(wire);
  text[0] = '\0';
  if (length >= size) {
    wire->failed = true;
    return;
  }
  const uint8_t *at = wire_take(wire, length);
  for (size_t i = 0; at && i < length; i++)
    if (!wire_is_printable((char)at[i]))
      at = NULL;
  if (!at) {
    wire->failed = true;
    return;
  }
  memcpy(text, at, length);
  text[length] = '\0';
}

static inline void wire_bytes(struct wire *wire, void *bytes, size_t length) {
  if (wire->gets)
    wire_get_bytes(wire, bytes, length);
  else
    wire_put_bytes(wire, bytes, length);
}

static inline void wire_string(struct wire *wire, char *text, size_t size) {
  if (wire->gets)
    wire_get_string(wire, text, size);
  else
    wire_put_string(wire, text);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "most fields go as they are");

/* A field of that many bits in either direction, so that one function lists the fields of a message
 * for its sender and its receiver. */
#define WIRE(wire, bits, field)                                                                    \
  (sizeof(field) * 8 == (bits)                                                                     \
       ? wire_bytes(wire, &(field), (bits) / 8)                                                    \
       : (void)((field) = (__typeof__(field))wire_field(wire, (uint64_t)(field), (bits) / 8)))

static inline uint64_t wire_field(struct wire *wire, uint64_t value, size_t bytes) {
  if (wire->gets)
    return wire_get(wire, bytes);
  wire_put(wire, value, bytes);
  return value;
}

#endif
