/* SPDX-License-Identifier: MIT
 * What the files of this folder share. */
#ifndef HAUL_CORE_TLS_SESSION_H
#define HAUL_CORE_TLS_SESSION_H

#include <pthread.h>

#include "core/tls/keys.h"
#include "core/tls/openssl.h"
#include "core/tls/tls.h"

#define TLS_SECRET 32 /* bytes of a secret: of SHA-256 */
#define TLS_RECORD 16384u

struct tls_context {
  const struct openssl *openssl;
  ssl_context *ssl;
  ssl_bio_method *bio;
  struct keys keys; /* none: certificates alone */
  char name[KEY_NAME_MAX + 1];
  bool kernel;
};

struct tls {
  struct tls_context *context;
  pthread_mutex_t lock; /* the rest; nothing is taken after it */
  ssl_session *ssl;
  int fd;
  bool server;
  char identity[KEY_NAME_MAX + 1];
  struct {
    bool known;
    uint8_t bytes[TLS_SECRET];
  } secrets[2];      /* the client's, the server's; for the kernel, until it has them */
  int system;        /* of the call that ended it */
  bool looked, bare; /* at the first byte of what a server answers; it is none of TLS */
  bool holds;
  bool unsafe;       /* the system does not copy what may vanish */
  uint8_t *in, *out; /* encrypted; NULL until tls_buffer */
  char *clear;       /* what is to be encrypted, where it may vanish; NULL: it does not */
  size_t in_start, in_end, out_start, out_end;
  bool updates;  /* the peer can read it when the key is changed */
  uint64_t left; /* bytes that may be sent before it is */
};

extern ssl_bio_method *tls_bio_method(const struct openssl *openssl);
void tls_forget_secrets(struct tls *tls);

#endif
