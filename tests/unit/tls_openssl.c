/* SPDX-License-Identifier: MIT
 * The numbers that are declared for OpenSSL are those of its headers, and the library has all
 * calls. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/tls/openssl.h"

#if __has_include(<openssl/ssl.h>)
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

static void the_numbers_are_its_own(void **state) {
  (void)state;
  assert_int_equal(OPENSSL_NO_ATEXIT, OPENSSL_INIT_NO_ATEXIT);
  assert_int_equal(OPENSSL_FILE_PEM, SSL_FILETYPE_PEM);
  assert_int_equal(OPENSSL_SET_MODE, SSL_CTRL_MODE);
  assert_int_equal(OPENSSL_SET_CACHE, SSL_CTRL_SET_SESS_CACHE_MODE);
  assert_int_equal(0, SSL_SESS_CACHE_OFF);
  assert_int_equal(OPENSSL_SET_LOWEST, SSL_CTRL_SET_MIN_PROTO_VERSION);
  assert_int_equal(OPENSSL_PARTIAL_WRITE, SSL_MODE_ENABLE_PARTIAL_WRITE);
  assert_int_equal(OPENSSL_MOVING_WRITE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  assert_int_equal(OPENSSL_RELEASE_BUFFERS, SSL_MODE_RELEASE_BUFFERS);
  assert_int_equal(OPENSSL_VERIFY, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT);
  assert_int_equal(OPENSSL_TLS13, TLS1_3_VERSION);
  assert_int_equal(OPENSSL_ERROR_SSL, SSL_ERROR_SSL);
  assert_int_equal(OPENSSL_WANT_READ, SSL_ERROR_WANT_READ);
  assert_int_equal(OPENSSL_WANT_WRITE, SSL_ERROR_WANT_WRITE);
  assert_int_equal(OPENSSL_SYSCALL, SSL_ERROR_SYSCALL);
  assert_int_equal(OPENSSL_CLOSED, SSL_ERROR_ZERO_RETURN);
  assert_int_equal(OPENSSL_BIO_SOURCE_SINK, BIO_TYPE_SOURCE_SINK);
  assert_int_equal(OPENSSL_BIO_FLUSH, BIO_CTRL_FLUSH);
  assert_int_equal(OPENSSL_BIO_READ, BIO_FLAGS_READ);
  assert_int_equal(OPENSSL_BIO_WRITE, BIO_FLAGS_WRITE);
  assert_int_equal(OPENSSL_BIO_RETRY, BIO_FLAGS_SHOULD_RETRY);
  assert_int_equal(OPENSSL_COMMON_NAME, NID_commonName);
  assert_int_equal(OPENSSL_UPDATE_OWN, SSL_KEY_UPDATE_NOT_REQUESTED);
  assert_int_equal(OPENSSL_NO_MEMORY, ERR_R_MALLOC_FAILURE);
  assert_int_equal(OPENSSL_INTERNAL, ERR_R_INTERNAL_ERROR);
  assert_int_equal(OPENSSL_INTERNAL_ALERT, SSL_R_TLSV1_ALERT_INTERNAL_ERROR);
  assert_true(OPENSSL_OPTIONS ==
              (SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_COMPRESSION));
}
#else
static void the_numbers_are_its_own(void **state) {
  (void)state;
  printf("skipped OpenSSL's numbers: no headers of it (libssl-dev)\n");
  skip();
}
#endif

static void the_library_has_all_calls(void **state) {
  (void)state;
  assert_non_null(openssl_open());
}

/* Handlers run in reverse: this one after OpenSSL's, if there were one. */
static void look_at_the_end(void) {
  const struct openssl *openssl = openssl_open();
  ssl_context *context = openssl->context_new(openssl->method());
  _exit(context ? 0 : 9);
}

/* In a process that has not used it yet. */
static void it_works_until_the_process_has_ended(void **state) {
  int status;
  pid_t child = fork();
  (void)state;
  if (child == 0) {
    atexit(look_at_the_end);
    const struct openssl *openssl = openssl_open();
    openssl->context_free(openssl->context_new(openssl->method()));
    exit(1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(it_works_until_the_process_has_ended),
                                     cmocka_unit_test(the_numbers_are_its_own),
                                     cmocka_unit_test(the_library_has_all_calls)};
  return cmocka_run_group_tests_name("unit/tls_openssl", tests, NULL, NULL);
}
