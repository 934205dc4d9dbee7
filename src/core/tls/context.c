/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/tls/session.h"

/* Its hash is SHA-256, which fits 32-byte keys; it is the fastest cipher with AES instructions. */
#define CIPHER "TLS_AES_128_GCM_SHA256"
static const unsigned char cipher_id[2] = {0x13, 0x01}; /* RFC 8446, B.4 */

/* Session id context; both sides must agree. */
static const unsigned char use_id[] = "haul";

static bool is_given(const char *path) {
  return path && *path;
}

bool tls_is_wanted(const struct tls_settings *settings) {
  return is_given(settings->key) || is_given(settings->certificate) ||
         is_given(settings->private_key) || is_given(settings->authority);
}

static struct tls *session_of(const ssl_session *ssl) {
  return openssl_open()->session_get(ssl, 0);
}

/* OpenSSL takes an external PSK as a session to resume. */
static ssl_resumption *as_session(struct tls *tls, const struct key *key) {
  const struct openssl *openssl = tls->context->openssl;
  const ssl_cipher *cipher = openssl->cipher_find(tls->ssl, cipher_id);
  ssl_resumption *session = openssl->resumption_new();
  if (cipher && session && openssl->resumption_key(session, key->secret, KEY_BYTES) &&
      openssl->resumption_cipher(session, cipher) &&
      openssl->resumption_id(session, use_id, sizeof use_id - 1) &&
      openssl->resumption_version(session, OPENSSL_TLS13)) {
    memcpy(tls->identity, key->name, sizeof tls->identity);
    return session;
  }
  openssl->resumption_free(session);
  tls->no_memory = true;
  return NULL;
}

static int psk_use(ssl_session *ssl, const ssl_digest *digest, const unsigned char **name,
                   size_t *length, ssl_resumption **session) {
  struct tls *tls = session_of(ssl);
  const struct keys *keys = &tls->context->keys;
  *name = NULL;
  *session = NULL;
  if (keys->count == 0 || (digest && digest != tls->context->openssl->sha256()))
    return 1;
  *session = as_session(tls, &keys->list[0]);
  *name = (const unsigned char *)keys->list[0].name;
  *length = strlen(keys->list[0].name);
  return *session != NULL;
}

static int psk_find(ssl_session *ssl, const unsigned char *name, size_t length,
                    ssl_resumption **session) {
  struct tls *tls = session_of(ssl);
  const struct key *key = keys_find(&tls->context->keys, name, length);
  *session = key ? as_session(tls, key) : NULL;
  return !key || *session;
}

static int from_hex(char digit) {
  return digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10;
}

static void keep_secret(struct tls *tls, unsigned of, const char *hex) {
  if (strlen(hex) != (size_t)2 * TLS_SECRET)
    return;
  for (size_t i = 0; i < TLS_SECRET; i++)
    tls->secrets[of].bytes[i] = (uint8_t)(from_hex(hex[2 * i]) << 4 | from_hex(hex[2 * i + 1]));
  tls->secrets[of].known = true;
}

/* A keylog line: LABEL CLIENT-RANDOM SECRET. */
static void on_keylog(const ssl_session *ssl, const char *line) {
  struct tls *tls = session_of(ssl);
  const char *secret = strrchr(line, ' ');
  if (secret && strncmp(line, "CLIENT_TRAFFIC_SECRET_0 ", 24) == 0)
    keep_secret(tls, 0, secret + 1);
  else if (secret && strncmp(line, "SERVER_TRAFFIC_SECRET_0 ", 24) == 0)
    keep_secret(tls, 1, secret + 1);
}

static int cannot_use(const struct openssl *openssl, const char *path, const char *hint) {
  return error_set(HAUL_EINVAL, 0, path, hint, "OpenSSL cannot use it: %s",
                   openssl_reason(openssl, NULL));
}

static int use_certificates(struct tls_context *context, const struct tls_settings *settings) {
  const struct openssl *openssl = context->openssl;
  ssl_context *ssl = context->ssl;
  if (!is_given(settings->certificate) && !is_given(settings->private_key) &&
      !is_given(settings->authority))
    return 0;
  if (!is_given(settings->certificate) || !is_given(settings->private_key) ||
      !is_given(settings->authority))
    return error_set(HAUL_EINVAL, 0, NULL,
                     "set all three: own certificate, its private key, and the trusted authority",
                     "of certificate, private_key and authority some are not set");
  openssl->error_clear();
  int code = keys_guard(settings->private_key, "private key");
  if (code)
    return code;
  if (!openssl->context_chain(ssl, settings->certificate))
    return cannot_use(openssl, settings->certificate, "a certificate in PEM is needed");
  if (!openssl->context_private(ssl, settings->private_key, OPENSSL_FILE_PEM))
    return cannot_use(openssl, settings->private_key, "the certificate's key in PEM is needed");
  if (!openssl->context_authority(ssl, settings->authority))
    return cannot_use(openssl, settings->authority,
                      "certificates of authorities in PEM are needed");
  return 0;
}

static bool configure(struct tls_context *context, bool kernel) {
  const struct openssl *openssl = context->openssl;
  ssl_context *ssl = context->ssl = openssl->context_new(openssl->method());
  long modes = OPENSSL_PARTIAL_WRITE | OPENSSL_MOVING_WRITE | OPENSSL_RELEASE_BUFFERS;
  context->bio = tls_bio_method(openssl);
  if (!ssl || !context->bio)
    return false;
  context->kernel = kernel && tls_kernel_is_there();
  if (context->kernel)
    openssl->context_key_log(ssl, on_keylog);
  openssl->context_options(ssl, OPENSSL_OPTIONS);
  openssl->context_control(ssl, OPENSSL_SET_MODE, modes, NULL);
  openssl->context_control(ssl, OPENSSL_SET_CACHE, 0, NULL);
  openssl->context_verify(ssl, OPENSSL_VERIFY, NULL);
  openssl->context_key_use(ssl, psk_use);
  openssl->context_key_find(ssl, psk_find);
  return openssl->context_control(ssl, OPENSSL_SET_LOWEST, OPENSSL_TLS13, NULL) &&
         openssl->context_ciphers(ssl, CIPHER) && openssl->context_tickets(ssl, 0) &&
         openssl->context_id(ssl, use_id, sizeof use_id - 1);
}

int tls_context_open(const struct tls_settings *settings, struct tls_context **out) {
  const struct openssl *openssl = openssl_open();
  if (!openssl)
    return haul_error_last()->code;
  struct tls_context *context = alloc_zero(1, sizeof *context);
  if (!context)
    return error_memory("keys");
  context->openssl = openssl;
  int code = configure(context, !settings->user) ? 0 : error_memory("TLS");
  if (code == 0 && is_given(settings->key))
    code = keys_read(settings->key, &context->keys);
  if (code == 0)
    code = use_certificates(context, settings);
  if (code) {
    tls_context_close(context);
    return code;
  }
  snprintf(context->name, sizeof context->name, "%s",
           context->keys.count ? context->keys.list[0].name : "its certificate");
  *out = context;
  return 0;
}

void tls_context_close(struct tls_context *context) {
  if (!context)
    return;
  if (context->ssl)
    context->openssl->context_free(context->ssl);
  if (context->bio)
    context->openssl->bio_method_free(context->bio);
  keys_free(&context->keys);
  alloc_free(context);
}
