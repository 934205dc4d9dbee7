/* SPDX-License-Identifier: MIT
 * The calls and constants of OpenSSL 3 that haul uses, declared without OpenSSL's headers. */
#ifndef HAUL_CORE_TLS_OPENSSL_API_H
#define HAUL_CORE_TLS_OPENSSL_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct ssl_ctx_st ssl_context;
typedef struct ssl_st ssl_session; /* of a connection */
typedef struct ssl_session_st ssl_resumption;
typedef struct ssl_method_st ssl_method;
typedef struct ssl_cipher_st ssl_cipher;
typedef struct bio_st ssl_bio;
typedef struct bio_method_st ssl_bio_method;
typedef struct evp_md_st ssl_digest;
typedef struct x509_st ssl_certificate;
typedef struct X509_name_st ssl_name;

enum openssl_number {
  OPENSSL_NO_ATEXIT = 0x00080000,   /* OPENSSL_INIT_NO_ATEXIT */
  OPENSSL_FILE_PEM = 1,             /* SSL_FILETYPE_PEM */
  OPENSSL_SET_MODE = 33,            /* SSL_CTRL_MODE */
  OPENSSL_SET_CACHE = 44,           /* SSL_CTRL_SET_SESS_CACHE_MODE; 0: off */
  OPENSSL_SET_LOWEST = 123,         /* SSL_CTRL_SET_MIN_PROTO_VERSION */
  OPENSSL_PARTIAL_WRITE = 1,        /* SSL_MODE_ENABLE_PARTIAL_WRITE */
  OPENSSL_MOVING_WRITE = 2,         /* SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER */
  OPENSSL_RELEASE_BUFFERS = 16,     /* SSL_MODE_RELEASE_BUFFERS */
  OPENSSL_VERIFY = 3,               /* SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT */
  OPENSSL_TLS13 = 0x0304,           /* TLS1_3_VERSION */
  OPENSSL_ERROR_SSL = 1,            /* SSL_ERROR_SSL */
  OPENSSL_WANT_READ = 2,            /* SSL_ERROR_WANT_READ */
  OPENSSL_WANT_WRITE = 3,           /* SSL_ERROR_WANT_WRITE */
  OPENSSL_SYSCALL = 5,              /* SSL_ERROR_SYSCALL */
  OPENSSL_CLOSED = 6,               /* SSL_ERROR_ZERO_RETURN */
  OPENSSL_BIO_SOURCE_SINK = 0x0400, /* BIO_TYPE_SOURCE_SINK */
  OPENSSL_BIO_FLUSH = 11,           /* BIO_CTRL_FLUSH */
  OPENSSL_BIO_READ = 0x01,          /* BIO_FLAGS_READ */
  OPENSSL_BIO_WRITE = 0x02,         /* BIO_FLAGS_WRITE */
  OPENSSL_BIO_RETRY = 0x08,         /* BIO_FLAGS_SHOULD_RETRY */
  OPENSSL_COMMON_NAME = 13,         /* NID_commonName */
  OPENSSL_UPDATE_OWN = 0,           /* SSL_KEY_UPDATE_NOT_REQUESTED */
  OPENSSL_NO_MEMORY = 0xc0100,      /* ERR_R_MALLOC_FAILURE */
  OPENSSL_INTERNAL = 0xc0103,       /* ERR_R_INTERNAL_ERROR */
  OPENSSL_INTERNAL_ALERT = 1080     /* SSL_R_TLSV1_ALERT_INTERNAL_ERROR */
};

/* SSL_OP_NO_RENEGOTIATION, SSL_OP_IGNORE_UNEXPECTED_EOF, SSL_OP_NO_COMPRESSION */
#define OPENSSL_OPTIONS (UINT64_C(1) << 30 | UINT64_C(1) << 7 | UINT64_C(1) << 17)

typedef int psk_use_fn(ssl_session *ssl, const ssl_digest *digest, const unsigned char **identity,
                       size_t *length, ssl_resumption **key);
typedef int psk_find_fn(ssl_session *ssl, const unsigned char *identity, size_t length,
                        ssl_resumption **key);

/* X(slot, symbol, result, parameters) */
#define OPENSSL_CALLS(X)                                                                           \
  X(init, OPENSSL_init_crypto, int, (uint64_t, const void *))                                      \
  X(method, TLS_method, const ssl_method *, (void))                                                \
  X(context_new, SSL_CTX_new, ssl_context *, (const ssl_method *))                                 \
  X(context_free, SSL_CTX_free, void, (ssl_context *))                                             \
  X(context_control, SSL_CTX_ctrl, long, (ssl_context *, int, long, void *))                       \
  X(context_options, SSL_CTX_set_options, uint64_t, (ssl_context *, uint64_t))                     \
  X(context_ciphers, SSL_CTX_set_ciphersuites, int, (ssl_context *, const char *))                 \
  X(context_tickets, SSL_CTX_set_num_tickets, int, (ssl_context *, size_t))                        \
  X(context_id, SSL_CTX_set_session_id_context, int,                                               \
    (ssl_context *, const unsigned char *, unsigned))                                              \
  X(context_verify, SSL_CTX_set_verify, void, (ssl_context *, int, void *))                        \
  X(context_key_use, SSL_CTX_set_psk_use_session_callback, void, (ssl_context *, psk_use_fn *))    \
  X(context_key_find, SSL_CTX_set_psk_find_session_callback, void, (ssl_context *, psk_find_fn *)) \
  X(context_key_log, SSL_CTX_set_keylog_callback, void,                                            \
    (ssl_context *, void (*)(const ssl_session *, const char *)))                                  \
  X(context_chain, SSL_CTX_use_certificate_chain_file, int, (ssl_context *, const char *))         \
  X(context_private, SSL_CTX_use_PrivateKey_file, int, (ssl_context *, const char *, int))         \
  X(context_authority, SSL_CTX_load_verify_file, int, (ssl_context *, const char *))               \
  X(session_new, SSL_new, ssl_session *, (ssl_context *))                                          \
  X(session_free, SSL_free, void, (ssl_session *))                                                 \
  X(session_bio, SSL_set_bio, void, (ssl_session *, ssl_bio *, ssl_bio *))                         \
  X(session_set, SSL_set_ex_data, int, (ssl_session *, int, void *))                               \
  X(session_get, SSL_get_ex_data, void *, (const ssl_session *, int))                              \
  X(session_accept, SSL_set_accept_state, void, (ssl_session *))                                   \
  X(session_connect, SSL_set_connect_state, void, (ssl_session *))                                 \
  X(session_handshake, SSL_do_handshake, int, (ssl_session *))                                     \
  X(session_read, SSL_read_ex, int, (ssl_session *, void *, size_t, size_t *))                     \
  X(session_write, SSL_write_ex, int, (ssl_session *, const void *, size_t, size_t *))             \
  X(session_error, SSL_get_error, int, (const ssl_session *, int))                                 \
  X(session_pending, SSL_pending, int, (const ssl_session *))                                      \
  X(session_by_key, SSL_session_reused, int, (const ssl_session *))                                \
  X(session_key_update, SSL_key_update, int, (ssl_session *, int))                                 \
  X(session_peer, SSL_get1_peer_certificate, ssl_certificate *, (const ssl_session *))             \
  X(cipher_find, SSL_CIPHER_find, const ssl_cipher *, (ssl_session *, const unsigned char *))      \
  X(resumption_new, SSL_SESSION_new, ssl_resumption *, (void))                                     \
  X(resumption_free, SSL_SESSION_free, void, (ssl_resumption *))                                   \
  X(resumption_key, SSL_SESSION_set1_master_key, int,                                              \
    (ssl_resumption *, const unsigned char *, size_t))                                             \
  X(resumption_cipher, SSL_SESSION_set_cipher, int, (ssl_resumption *, const ssl_cipher *))        \
  X(resumption_id, SSL_SESSION_set1_id_context, int,                                               \
    (ssl_resumption *, const unsigned char *, unsigned))                                           \
  X(resumption_version, SSL_SESSION_set_protocol_version, int, (ssl_resumption *, int))            \
  X(bio_method, BIO_meth_new, ssl_bio_method *, (int, const char *))                               \
  X(bio_method_free, BIO_meth_free, void, (ssl_bio_method *))                                      \
  X(bio_method_write, BIO_meth_set_write, int,                                                     \
    (ssl_bio_method *, int (*)(ssl_bio *, const char *, int)))                                     \
  X(bio_method_read, BIO_meth_set_read, int, (ssl_bio_method *, int (*)(ssl_bio *, char *, int)))  \
  X(bio_method_control, BIO_meth_set_ctrl, int,                                                    \
    (ssl_bio_method *, long (*)(ssl_bio *, int, long, void *)))                                    \
  X(bio_new, BIO_new, ssl_bio *, (const ssl_bio_method *))                                         \
  X(bio_set, BIO_set_data, void, (ssl_bio *, void *))                                              \
  X(bio_get, BIO_get_data, void *, (ssl_bio *))                                                    \
  X(bio_ready, BIO_set_init, void, (ssl_bio *, int))                                               \
  X(bio_flag, BIO_set_flags, void, (ssl_bio *, int))                                               \
  X(bio_unflag, BIO_clear_flags, void, (ssl_bio *, int))                                           \
  X(error_get, ERR_get_error, unsigned long, (void))                                               \
  X(error_clear, ERR_clear_error, void, (void))                                                    \
  X(error_reason, ERR_reason_error_string, const char *, (unsigned long))                          \
  X(certificate_free, X509_free, void, (ssl_certificate *))                                        \
  X(certificate_subject, X509_get_subject_name, ssl_name *, (const ssl_certificate *))             \
  X(name_text, X509_NAME_get_text_by_NID, int, (const ssl_name *, int, char *, int))               \
  X(sha256, EVP_sha256, const ssl_digest *, (void))                                                \
  X(hmac, HMAC, unsigned char *,                                                                   \
    (const ssl_digest *, const void *, int, const unsigned char *, size_t, unsigned char *,        \
     unsigned *))

#endif
