/* SPDX-License-Identifier: MIT
 * Shared by the files of this folder. */
#ifndef HAUL_CORE_TLS_SESSION_H
#define HAUL_CORE_TLS_SESSION_H

#include <pthread.h>

#include "core/tls/keys.h"
#include "core/tls/openssl.h"
#include "core/tls/tls.h"

#define TLS_SECRET 32 /* bytes; SHA-256 */
#define TLS_RECORD 16384u

struct tls_context {
  const struct openssl *openssl;
  ssl_context *ssl;
  ssl_bio_method *bio;
  struct keys keys; /* empty: certificates alone */
  char name[KEY_NAME_MAX + 1];
  bool kernel;
};

struct tls {
  struct tls_context *context;
  pthread_mutex_t lock; /* guards the rest; no lock is taken after it */
  ssl_session *ssl;
  int fd;
  bool server;
  char identity[KEY_NAME_MAX + 1];
  struct {
    bool known;
    uint8_t bytes[TLS_SECRET];
  } secrets[2];      /* client's, server's; kept until the kernel has them */
  bool no_memory;    /* a callback of the handshake found none */
  bool full;         /* the socket took nothing of OpenSSL's last write */
  int system;        /* errno of the call that ended the session */
  bool looked, bare; /* the server's first byte was peeked; it is not a TLS record */
  bool holds;
  bool unsafe;       /* process_vm_readv is not permitted; use memcpy */
  uint8_t *in, *out; /* encrypted; NULL until tls_buffer */
  char *clear; /* copy of the plain bytes, as the caller's may be unmapped; NULL: not needed */
  size_t in_start, in_end, out_start, out_end;
  bool updates;  /* the peer accepts KeyUpdate */
  uint64_t left; /* bytes until the next KeyUpdate */
};

extern ssl_bio_method *tls_bio_method(const struct openssl *openssl);
void tls_forget_secrets(struct tls *tls);

#endif
