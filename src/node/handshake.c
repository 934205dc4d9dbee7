/* SPDX-License-Identifier: MIT */
#include "node/handshake.h"

#include "core/wire.h"
#include "fabric/transport.h"
#include "haul/haul.h"

#define FLAG_PLAIN   1u
#define FLAG_UPDATES 2u
#define FLAGS_KNOWN  (FLAG_PLAIN | FLAG_UPDATES)

static const uint8_t hello_magic[8] = "haul-hi\n";
static const uint8_t welcome_magic[8] = "haul-ok\n";

static size_t finish_pack(struct wire *wire, uint8_t *bytes, size_t length_at) {
  size_t length = (size_t)(wire->at - bytes);
  struct wire at = wire_over(bytes + length_at, 2);
  wire_put16(&at, (uint16_t)(length - HANDSHAKE_HEAD));
  return length;
}

/* Behind the lengths. */
static void hello_fields(struct wire *wire, struct hello *hello, uint8_t *flags) {
  WIRE(wire, 8, hello->role);
  WIRE(wire, 8, *flags);
  wire_bytes(wire, hello->node_id, 16);
  wire_bytes(wire, hello->boot, 16);
  if (hello->role == ROLE_CONTROL) {
    wire_string(wire, hello->name, sizeof hello->name);
    WIRE(wire, 32, hello->message_window);
    WIRE(wire, 16, hello->window);
  } else {
    wire_bytes(wire, hello->token, 16);
    wire_string(wire, hello->transport, sizeof hello->transport);
    WIRE(wire, 16, hello->index);
  }
}

size_t hello_pack(const struct hello *hello, uint8_t *bytes) {
  struct hello copy = *hello;
  uint8_t flags = (uint8_t)((hello->plain ? FLAG_PLAIN : 0) | (hello->updates ? FLAG_UPDATES : 0));
  struct wire wire = wire_over(bytes, HANDSHAKE_MAX);
  wire_put_bytes(&wire, hello_magic, 8);
  wire_put16(&wire, hello->lowest);
  wire_put16(&wire, hello->highest);
  wire_put32(&wire, 0);
  hello_fields(&wire, &copy, &flags);
  return finish_pack(&wire, bytes, 12);
}

static void welcome_fields(struct wire *wire, struct welcome *welcome, uint8_t *flags) {
  wire_bytes(wire, welcome->node_id, 16);
  wire_bytes(wire, welcome->boot, 16);
  wire_bytes(wire, welcome->token, 16);
  wire_bytes(wire, welcome->share, 16);
  wire_bytes(wire, welcome->shared, 16);
  wire_string(wire, welcome->name, sizeof welcome->name);
  wire_string(wire, welcome->companion, sizeof welcome->companion);
  WIRE(wire, 32, welcome->message_window);
  WIRE(wire, 16, welcome->window);
  WIRE(wire, 8, *flags);
}

size_t welcome_pack(const struct welcome *welcome, uint8_t *bytes) {
  struct welcome copy = *welcome;
  uint8_t flags = welcome->updates ? FLAG_UPDATES : 0;
  struct wire wire = wire_over(bytes, HANDSHAKE_MAX);
  wire_put_bytes(&wire, welcome_magic, 8);
  wire_put16(&wire, welcome->version);
  wire_put16(&wire, welcome->lowest);
  wire_put16(&wire, welcome->highest);
  wire_put16(&wire, 0);
  if (welcome->version == 0) {
    wire_put32(&wire, (uint32_t)welcome->code);
    wire_put_string(&wire, welcome->reason);
  } else {
    welcome_fields(&wire, &copy, &flags);
  }
  return finish_pack(&wire, bytes, 14);
}

static int body_length(const uint8_t head[HANDSHAKE_HEAD], const uint8_t magic[8], size_t at) {
  struct wire wire = wire_over(head + at, 2);
  unsigned length = wire_get16(&wire);
  if (memcmp(head, magic, 8) != 0 || length > HANDSHAKE_MAX - HANDSHAKE_HEAD)
    return -1;
  return (int)length;
}

int hello_body(const uint8_t head[HANDSHAKE_HEAD]) {
  return body_length(head, hello_magic, 12);
}

int welcome_body(const uint8_t head[HANDSHAKE_HEAD]) {
  return body_length(head, welcome_magic, 14);
}

static bool is_window(uint16_t window) {
  return window >= 1 && window <= REQUESTS_MAX;
}

int hello_parse(const uint8_t *bytes, size_t length, struct hello *hello) {
  memset(hello, 0, sizeof *hello);
  if (length < HANDSHAKE_HEAD || hello_body(bytes) != (int)(length - HANDSHAKE_HEAD))
    return HAUL_EPROTO;
  struct wire wire = wire_from(bytes + 8, length - 8);
  hello->lowest = wire_get16(&wire);
  hello->highest = wire_get16(&wire);
  wire_get32(&wire);
  if (hello->lowest > PROTOCOL_HIGHEST || hello->highest < PROTOCOL_LOWEST)
    return HAUL_EVERSION;
  uint8_t flags = 0;
  hello_fields(&wire, hello, &flags);
  hello->plain = flags & FLAG_PLAIN;
  hello->updates = flags & FLAG_UPDATES;
  if (hello->role == ROLE_CONTROL ? !is_window(hello->window) : hello->role != ROLE_CHANNEL)
    return HAUL_EPROTO;
  if ((flags & ~FLAGS_KNOWN) || (hello->plain && hello->role != ROLE_CHANNEL))
    return HAUL_EPROTO;
  return wire.failed || wire_left(&wire) > 0 ? HAUL_EPROTO : 0;
}

int welcome_parse(const uint8_t *bytes, size_t length, struct welcome *welcome) {
  memset(welcome, 0, sizeof *welcome);
  if (length < HANDSHAKE_HEAD || welcome_body(bytes) != (int)(length - HANDSHAKE_HEAD))
    return HAUL_EPROTO;
  struct wire wire = wire_from(bytes + 8, length - 8);
  welcome->version = wire_get16(&wire);
  welcome->lowest = wire_get16(&wire);
  welcome->highest = wire_get16(&wire);
  wire_get16(&wire);
  if (welcome->version == 0) {
    welcome->code = (int32_t)wire_get32(&wire);
    wire_get_string(&wire, welcome->reason, sizeof welcome->reason);
    if (welcome->code >= 0 || welcome->code < HAUL_EAUTH)
      return HAUL_EPROTO;
  } else {
    if (welcome->version < PROTOCOL_LOWEST || welcome->version > PROTOCOL_HIGHEST)
      return HAUL_EVERSION;
    uint8_t flags = 0;
    welcome_fields(&wire, welcome, &flags);
    welcome->updates = flags & FLAG_UPDATES;
    if (!is_window(welcome->window) || (flags & ~FLAG_UPDATES))
      return HAUL_EPROTO;
  }
  return wire.failed || wire_left(&wire) > 0 ? HAUL_EPROTO : 0;
}
