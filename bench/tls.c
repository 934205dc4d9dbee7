/* SPDX-License-Identifier: MIT
 * tls SIZE SECONDS: peer of encrypted writes: SSL_write and SSL_read over loopback, TLS 1.3 with
 * the same cipher, one call per buffer of SIZE bytes. Prints GB/s. */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const unsigned char key[32] = {1, 2, 3}, cipher[2] = {0x13, 0x01};

static SSL_SESSION *session_of(SSL *ssl) {
  SSL_SESSION *session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(session, key, sizeof key);
  SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, cipher));
  SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
  return session;
}

static int use_key(SSL *ssl, const EVP_MD *digest, const unsigned char **name, size_t *length,
                   SSL_SESSION **session) {
  (void)digest;
  *name = (const unsigned char *)"bench";
  *length = 5;
  *session = session_of(ssl);
  return 1;
}

static int find_key(SSL *ssl, const unsigned char *name, size_t length, SSL_SESSION **session) {
  (void)name, (void)length;
  *session = session_of(ssl);
  return 1;
}

static SSL *open_tls(int fd) {
  int one = 1;
  SSL_CTX *context = SSL_CTX_new(TLS_method());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_psk_use_session_callback(context, use_key);
  SSL_CTX_set_psk_find_session_callback(context, find_key);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  SSL *ssl = SSL_new(context);
  SSL_set_fd(ssl, fd);
  return ssl;
}

static char *buffer(size_t size) {
  char *bytes = malloc(size);
  need(bytes != NULL, "memory");
  memset(bytes, 1, size);
  return bytes;
}

static void receive(int fd, size_t size) {
  SSL *ssl = open_tls(fd);
  char *to = buffer(size);
  size_t at = 0, got;
  if (SSL_accept(ssl) != 1)
    _exit(1);
  while (SSL_read_ex(ssl, to + at, size - at, &got) == 1)
    at = (at + got) % size;
  _exit(0);
}

static void send_all(int fd, size_t size, double seconds, pid_t child) {
  SSL *ssl = open_tls(fd);
  char *from = buffer(size);
  size_t put, moved = 0;
  need(SSL_connect(ssl) == 1, "SSL_connect");
  struct meter meter = meter_begin(child);
  int64_t end = meter.began + (int64_t)(seconds * 1e9);
  while (now_ns() < end) {
    need(SSL_write_ex(ssl, from, size, &put) == 1, "SSL_write");
    moved += put;
  }
  meter_end(&meter, moved);
}

int main(int argc, char **argv) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  if (argc != 3)
    return fputs("usage: tls SIZE SECONDS\n", stderr), 2;
  size_t size = (size_t)parse_size(argv[1]);
  int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
  need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0,
       "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    receive(accept(listener, NULL, NULL), size);
  }
  need(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
  send_all(fd, size, strtod(argv[2], NULL), child);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  return 0;
}
