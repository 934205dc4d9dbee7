/* SPDX-License-Identifier: MIT
 * Kernel TLS (Documentation/networking/tls.rst): the socket then reads and writes plain bytes, as
 * without TLS. The keys are derived from the handshake's traffic secrets (RFC 8446, 7.3), which
 * OpenSSL passes to its keylog callback. */
#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/tls/session.h"

#ifndef SOL_TLS
#define SOL_TLS 282 /* include/linux/socket.h */
#endif
#ifndef TCP_ULP
#define TCP_ULP 31 /* linux/tcp.h */
#endif

/* HKDF-Expand-Label(secret, label, "", length): one block of HMAC is enough. RFC 8446, 7.1. */
static void expand(const struct openssl *openssl, const uint8_t secret[TLS_SECRET],
                   const char *label, uint8_t *to, size_t length) {
  uint8_t info[32], block[32];
  unsigned size = sizeof block;
  size_t used = 0, name = strlen(label);
  info[used++] = 0;
  info[used++] = (uint8_t)length;
  info[used++] = (uint8_t)(6 + name);
  memcpy(info + used, "tls13 ", 6);
  memcpy(info + used + 6, label, name);
  used += 6 + name;
  info[used++] = 0; /* no context */
  info[used++] = 1; /* the block's number: RFC 5869, 2.3 */
  openssl->hmac(openssl->sha256(), secret, TLS_SECRET, info, used, block, &size);
  memcpy(to, block, length);
  explicit_bzero(block, sizeof block);
}

static bool give_key(const struct tls *tls, int way, const uint8_t secret[TLS_SECRET]) {
  struct tls12_crypto_info_aes_gcm_128 info = {
      .info = {.version = TLS_1_3_VERSION, .cipher_type = TLS_CIPHER_AES_GCM_128}};
  uint8_t iv[TLS_CIPHER_AES_GCM_128_SALT_SIZE + TLS_CIPHER_AES_GCM_128_IV_SIZE];
  info.rec_seq[sizeof info.rec_seq - 1] = 1;
  expand(tls->context->openssl, secret, "key", info.key, sizeof info.key);
  expand(tls->context->openssl, secret, "iv", iv, sizeof iv);
  memcpy(info.salt, iv, sizeof info.salt);
  memcpy(info.iv, iv + sizeof info.salt, sizeof info.iv);
  bool given = setsockopt(tls->fd, SOL_TLS, way, &info, sizeof info) == 0;
  explicit_bzero(&info, sizeof info);
  explicit_bzero(iv, sizeof iv);
  return given;
}

/* With the module an unconnected socket fails with ENOTCONN. */
bool tls_kernel_is_there(void) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool there = fd >= 0 && (setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") == 0 ||
                           errno == ENOTCONN);
  if (fd >= 0)
    close(fd);
  return there;
}

/* Called after one record each way (stream_settle), so the next record number is 1. A kernel that
 * took one key but not the other would break the connection; no such kernel is known. */
bool tls_to_kernel(struct tls *tls) {
  bool wanted = tls->context->kernel && tls->secrets[0].known && tls->secrets[1].known &&
                setsockopt(tls->fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") == 0;
  const uint8_t *own = tls->secrets[tls->server].bytes, *other = tls->secrets[!tls->server].bytes;
  bool given = wanted && give_key(tls, TLS_RX, other) && give_key(tls, TLS_TX, own);
  tls_forget_secrets(tls);
  return given;
}
