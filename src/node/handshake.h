/* SPDX-License-Identifier: MIT
 * The first bytes of every connection, after TLS where it is used; little-endian.
 *
 *   hello    magic 8, lowest version u16, highest version u16, length of the body u16, zero u16;
 * body welcome  magic 8, version u16 (0: refused), lowest u16, highest u16, length of the body u16;
 * body
 *
 * The 16 bytes of the head are the same in every version, so that any two versions can report a
 * mismatch. A connection is a control connection, or a channel: a further connection that belongs
 * to one and carries a transport's data. */
#ifndef HAUL_NODE_HANDSHAKE_H
#define HAUL_NODE_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_LOWEST  6
#define PROTOCOL_HIGHEST 8 /* 7 pairs rails of NICs (fabric/rdma/frame.h), 8 has offers */
#define HANDSHAKE_HEAD   16u
#define HANDSHAKE_MAX    512u

enum role { ROLE_CONTROL = 1, ROLE_CHANNEL = 2 };

struct hello {
  uint16_t lowest, highest;
  uint8_t role;
  bool plain;   /* of a channel: data follows the welcome unencrypted */
  bool updates; /* the sender accepts TLS key updates */
  uint8_t node_id[16], boot[16];
  /* ROLE_CONTROL */
  char name[64];
  uint32_t message_window;
  uint16_t window; /* outstanding requests over tcp that the sender accepts: 1 to 128 */
  /* ROLE_CHANNEL */
  uint8_t token[16];
  char transport[16];
  uint16_t index;
};

struct welcome {
  uint16_t version, lowest, highest;
  /* accepted */
  uint8_t node_id[16], boot[16], token[16];
  uint8_t share[16];  /* random; the name of this connection if it is shared */
  uint8_t shared[16]; /* the `share` of the listener's own connection to this node; zeros: none */
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

/* The length of the body: 0 to HANDSHAKE_MAX - HANDSHAKE_HEAD, or -1 for a foreign head. */
int hello_body(const uint8_t head[HANDSHAKE_HEAD]);
int welcome_body(const uint8_t head[HANDSHAKE_HEAD]);

/* Parse head and body: 0, HAUL_EVERSION (only the versions are set), or HAUL_EPROTO. */
int hello_parse(const uint8_t *bytes, size_t length, struct hello *hello);
int welcome_parse(const uint8_t *bytes, size_t length, struct welcome *welcome);

#endif
