/* SPDX-License-Identifier: MIT
 * The first bytes on every connection, little-endian.
 *
 *   hello    magic 8, lowest version u16, highest version u16, body length u16, zero u16; body
 *   welcome  magic 8, version u16 (0: refused), lowest u16, highest u16, body length u16; body
 *
 * These 16 bytes are the same in every version, so that two versions that cannot speak to each
 * other can say so. A connection is a control connection, or a channel of a transport that belongs
 * to one. Who the other side is was proved before, by TLS, where it is proved. */
#ifndef HAUL_NODE_HANDSHAKE_H
#define HAUL_NODE_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_LOWEST  4
#define PROTOCOL_HIGHEST 4
#define HANDSHAKE_HEAD   16u
#define HANDSHAKE_MAX    512u

enum role { ROLE_CONTROL = 1, ROLE_CHANNEL = 2 };

struct hello {
  uint16_t lowest, highest;
  uint8_t role;
  bool plain;   /* channel: what follows the welcome is not to be encrypted */
  bool updates; /* a change of TLS keys can be read here */
  uint8_t node_id[16], boot[16];
  /* control */
  char name[64];
  uint32_t message_window;
  uint16_t window; /* requests over tcp that the other side may have unanswered: 1 to 128 */
  /* channel */
  uint8_t token[16];
  char transport[16];
  uint16_t index;
};

struct welcome {
  uint16_t version, lowest, highest;
  /* accepted */
  uint8_t node_id[16], boot[16], token[16];
  char name[64], companion[64];
  uint32_t message_window;
  uint16_t window;
  bool updates;
  /* refused */
  int32_t code;
  char reason[160];
};

/* Return the length, at most HANDSHAKE_MAX. */
size_t hello_pack(const struct hello *hello, uint8_t *bytes);
size_t welcome_pack(const struct welcome *welcome, uint8_t *bytes);

/* Length of the body that a head announces: 0 to HANDSHAKE_MAX - HANDSHAKE_HEAD, or -1 for a head
 * that is not ours. */
int hello_body(const uint8_t head[HANDSHAKE_HEAD]);
int welcome_body(const uint8_t head[HANDSHAKE_HEAD]);

/* Parse a whole hello or welcome: 0, HAUL_EVERSION (the versions are set, nothing else), or
 * HAUL_EPROTO. */
int hello_parse(const uint8_t *bytes, size_t length, struct hello *hello);
int welcome_parse(const uint8_t *bytes, size_t length, struct welcome *welcome);

#endif
