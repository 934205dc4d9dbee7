/* SPDX-License-Identifier: MIT
 * TLS 1.3 over sockets that do not block: OpenSSL makes the handshake, and moves the bytes where
 * the kernel does not. Both sides prove that they have the same key, or that an authority knows
 * them; sessions are not resumed.
 *
 *   openssl.h  the library's calls
 *   keys.c     key files
 *   context.c  what a node proves itself with, and accepts
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
  bool user; /* also where the kernel could, the process encrypts */
};

bool tls_is_wanted(const struct tls_settings *settings);
/* HAUL_ENOTSUP: no OpenSSL; HAUL_EINVAL, HAUL_EINSECURE: of the files; HAUL_ENOMEM. */
int tls_context_open(const struct tls_settings *settings, struct tls_context **context);
void tls_context_close(struct tls_context *context);
/* The name that this side shows when it connects. */
const char *tls_context_name(const struct tls_context *context);

/* What a handshake waits for. TLS_BARE: a server answers without TLS, and nothing of that was read.
 */
enum tls_wants { TLS_DONE = 0, TLS_READ = 1, TLS_WRITE = 2, TLS_BARE = 3 };

/* A session over a connected socket, which stays the caller's. The context outlives it. */
int tls_open(struct tls_context *context, int descriptor, bool server, struct tls **tls);
/* Goes on with the handshake: enum tls_wants, or a code with the detail: HAUL_EAUTH (one side does
 * not know the other), HAUL_EPEER, HAUL_EPROTO; `object` names the peer. */
int tls_handshake(struct tls *tls, const char *object);
void tls_free(struct tls *tls);

/* On a server since the first call of tls_handshake, on a client after the last one: the other side
 * has shown that it has a key. */
bool tls_is_keyed(struct tls *tls);
/* After the handshake: who the peer is, by its key or its certificate. Valid as long as `tls`. */
const char *tls_identity(const struct tls *tls);
/* Whether a change of keys (KeyUpdate) can be read here: the kernel cannot. Each side tells the
 * other, and changes its own only where that takes it. */
bool tls_takes_updates(const struct tls_context *context);
void tls_may_update(struct tls *tls, bool may);
/* For tests, which have less: the key is changed after so many bytes; how often one was. */
extern uint64_t tls_key_lasts;
extern _Atomic uint64_t tls_keys_changed;
/* Whether the kernel takes connections' keys; its module is loaded where this process may. */
bool tls_kernel_is_there(void);
/* After the handshake and one record each way: the kernel encrypts from now on, and `tls` is of no
 * use any more. False where it does not. */
bool tls_to_kernel(struct tls *tls);
/* From now on sockets that are full delay nobody in the middle of a record; `reads`: and many bytes
 * will come, so they are read ahead. Before, no byte is, so that the connection may go on without
 * TLS. False for want of memory. */
bool tls_buffer(struct tls *tls, bool reads);

/* As sendmsg and recvmsg that do not block, by any thread: -1 with errno; EBADMSG for what was
 * forged. What was sent may lie here until tls_flush has it out; `tls_owes` tells. */
ssize_t tls_send(struct tls *tls, const struct msghdr *message);
ssize_t tls_receive(struct tls *tls, const struct msghdr *message);
/* 0, or -1 with errno: EAGAIN when something is left. */
int tls_flush(struct tls *tls);
bool tls_owes(struct tls *tls);
/* Whether the last tls_receive left bytes here: no event will tell of them. */
bool tls_holds(struct tls *tls);
/* How many bytes are here to be received without a look at the socket. */
size_t tls_pending(struct tls *tls);

#endif
