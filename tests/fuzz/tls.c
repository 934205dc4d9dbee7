/* SPDX-License-Identifier: MIT
 * A TLS handshake over sockets with an attacker on the path. The input is a sequence of edits (a
 * byte: direction and kind, an offset u16 in that direction's bytes, a value). The first byte
 * chooses whether the server sees a client, or the rest of the input. Without a changed byte the
 * handshake succeeds. If both sides succeed, the identity is right and bytes pass. Only the version
 * in the head of a record may change unnoticed (RFC 8446, 5.1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/tls/tls.h"
#include "core/wire.h"
#include "haul/access.h"
#include "rig.h"

#define ROUNDS 16

static struct tls_context *context;

static void open_once(void) {
  char folder[] = "/tmp/haul-fuzz-tls-XXXXXX", path[64];
  if (context)
    return;
  RIG_ASSERT(mkdtemp(folder) != NULL);
  snprintf(path, sizeof path, "%s/key", folder);
  RIG_ASSERT(haul_key_new(path, "alice") == 0);
  RIG_ASSERT(tls_context_open(&(struct tls_settings){.key = path}, &context) == 0);
  unlink(path);
  rmdir(folder);
}

struct side {
  int fd, wire; /* the session's end, and the attacker's end */
  struct tls *tls;
  int state;
  unsigned sent; /* bytes of it that passed */
};

static void open_side(struct side *side, bool server) {
  int ends[2];
  RIG_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  *side = (struct side){.fd = ends[0], .wire = ends[1], .state = TLS_READ};
  RIG_ASSERT(tls_open(context, side->fd, server, &side->tls) == 0);
}

static void close_side(struct side *side) {
  tls_free(side->tls);
  close(side->fd);
  close(side->wire);
}

static bool waits(const struct side *side) {
  return side->state == TLS_READ || side->state == TLS_WRITE;
}

static void step(struct side *side) {
  if (waits(side))
    side->state = tls_handshake(side->tls, "fuzzed");
}

/* Whether one of the edits is for these bytes; makes it. */
static bool edit(const uint8_t *edits, size_t length, unsigned direction, unsigned at,
                 uint8_t *bytes, size_t *count) {
  bool changed = false;
  struct wire wire = wire_over(edits, length);
  while (wire_left(&wire) >= 4) {
    uint8_t head = wire_get8(&wire);
    unsigned offset = wire_get16(&wire);
    uint8_t value = wire_get8(&wire);
    if ((head & 1) != direction || offset < at || offset - at >= *count)
      continue;
    if (head & 2) { /* the rest of it is lost */
      *count = offset - at;
      return true;
    }
    bytes[offset - at] ^= value;
    changed = changed || value;
  }
  return changed;
}

/* From one side to the other. */
static bool carry(struct side *from, struct side *to, unsigned direction, const uint8_t *edits,
                  size_t length) {
  uint8_t bytes[16384];
  ssize_t got = recv(from->wire, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got <= 0)
    return false;
  size_t count = (size_t)got;
  bool changed = edit(edits, length, direction, from->sent, bytes, &count);
  from->sent += (unsigned)got;
  rig_send(to->wire, bytes, count);
  return changed;
}

static void exchange(struct side *from, struct side *to, unsigned direction) {
  char sent[100] = "what is said", got[100] = "";
  struct iovec out = {sent, sizeof sent}, in = {got, sizeof got};
  struct msghdr message = {.msg_iov = &out, .msg_iovlen = 1};
  RIG_ASSERT(tls_send(from->tls, &message) == sizeof sent);
  carry(from, to, direction, (const uint8_t *)"", 0);
  message.msg_iov = &in;
  RIG_ASSERT(tls_receive(to->tls, &message) == sizeof got && memcmp(sent, got, sizeof got) == 0);
}

static void with_a_client(const uint8_t *edits, size_t length) {
  struct side client, server;
  bool changed = false;
  open_side(&client, false);
  open_side(&server, true);
  for (int i = 0; i < ROUNDS && (waits(&client) || waits(&server)); i++) {
    step(&client);
    changed |= carry(&client, &server, 0, edits, length);
    step(&server);
    changed |= carry(&server, &client, 1, edits, length);
  }
  RIG_ASSERT(changed || (client.state == 0 && server.state == 0));
  if (server.state == 0)
    RIG_ASSERT(strcmp(tls_identity(server.tls), "alice") == 0);
  if (client.state == 0 && server.state == 0) {
    exchange(&client, &server, 0);
    exchange(&server, &client, 1);
  }
  close_side(&client);
  close_side(&server);
}

static void with_anything(const uint8_t *bytes, size_t length) {
  struct side server;
  open_side(&server, true);
  rig_send(server.wire, bytes, length);
  shutdown(server.wire, SHUT_WR);
  for (int i = 0; i < ROUNDS; i++)
    step(&server);
  RIG_ASSERT(server.state < 0);
  close_side(&server);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  if (length < 1 || length > RIG_INPUT)
    return 0;
  open_once();
  if (bytes[0] & 1)
    with_anything(bytes + 1, length - 1);
  else
    with_a_client(bytes + 1, length - 1);
  return 0;
}
