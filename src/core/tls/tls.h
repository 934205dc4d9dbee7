/* SPDX-License-Identifier: MIT
 * TLS 1.3 over non-blocking sockets. OpenSSL does the handshake, and the encryption where the
 * kernel does not. Both sides authenticate with a pre-shared key or with certificates of one
 * authority. Sessions are not resumed.
 *
 *   openssl.h  the library's calls
 *   keys.c     key files
 *   context.c  a node's credentials
 *   session.c  one connection
 *   kernel.c   handing a connection's keys to the kernel */
#ifndef HAUL_CORE_TLS_TLS_H
#define HAUL_CORE_TLS_TLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

struct tls_context;
struct tls;

/* Paths, NULL or "" for those that are not used: a key file, or all of the other three (PEM). */
struct tls_settings {
  const char *key;
  const char *certificate, *private_key, *authority;
  bool user; /* encrypt in the process even if the kernel can */
};

bool tls_is_wanted(const struct tls_settings *settings);
/* HAUL_ENOTSUP: no OpenSSL; HAUL_EINVAL, HAUL_EINSECURE: bad files; HAUL_ENOMEM. */
int tls_context_open(const struct tls_settings *settings, struct tls_context **context);
void tls_context_close(struct tls_context *context);

/* What the handshake waits for. TLS_BARE: the server replied without TLS; its bytes are unread. */
enum tls_wants { TLS_DONE = 0, TLS_READ = 1, TLS_WRITE = 2, TLS_BARE = 3 };

/* A session over a connected socket, which stays the caller's. The context outlives it. */
int tls_open(struct tls_context *context, int descriptor, bool server, struct tls **tls);
/* Continues the handshake: enum tls_wants, or a code with the detail: HAUL_EAUTH (one side rejects
 * the other), HAUL_EPEER, HAUL_ENOMEM, HAUL_ESYSTEM; `object` names the peer. */
int tls_handshake(struct tls *tls, const char *object);
void tls_free(struct tls *tls);

/* Does the session use a pre-shared key? Valid on a server after the first tls_handshake, on a
 * client after the last one. */
bool tls_is_keyed(struct tls *tls);
/* After the handshake: the peer's identity, from its key or certificate. Valid as long as `tls`. */
const char *tls_identity(const struct tls *tls);
/* Can this side receive a KeyUpdate? The kernel cannot. Each side tells the other and updates its
 * own key only if the other accepts that. */
bool tls_takes_updates(const struct tls_context *context);
void tls_may_update(struct tls *tls, bool may);
/* Bytes after which the key is updated (tests set it lower), and the number of updates so far. */
extern uint64_t tls_key_lasts;
extern _Atomic uint64_t tls_keys_changed;
/* Does the kernel support TLS? Loads its module if this process may. */
bool tls_kernel_is_there(void);
/* Called after the handshake and one record each way: the kernel encrypts from now on, and only
 * tls_free may use `tls`. False: it does not. */
bool tls_to_kernel(struct tls *tls);
/* Adds buffers, so that a full socket stops no call within a record. `reads`: read ahead, too, as
 * much data will come. Before this call nothing is read ahead, so that the connection may continue
 * without TLS. False: no memory. */
bool tls_buffer(struct tls *tls, bool reads);

/* As non-blocking sendmsg and recvmsg, by any thread: -1 with errno, EBADMSG for forged records,
 * ENOMEM or EIO if OpenSSL fails. Sent bytes may stay buffered until tls_flush; then tls_owes is
 * true. */
ssize_t tls_send(struct tls *tls, const struct msghdr *message);
ssize_t tls_receive(struct tls *tls, const struct msghdr *message);
/* 0, or -1 with errno: EAGAIN when bytes are left. */
int tls_flush(struct tls *tls);
bool tls_owes(struct tls *tls);
/* Did the last tls_receive leave bytes buffered? No event reports them. */
bool tls_holds(struct tls *tls);
/* Decrypted bytes that can be received without the socket. */
size_t tls_pending(struct tls *tls);

#endif
