/* SPDX-License-Identifier: MIT
 * The library has all calls, and works until the process ends. tests/headers compares the
 * declarations. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/tls/openssl.h"

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
                                     cmocka_unit_test(the_library_has_all_calls)};
  return cmocka_run_group_tests_name("unit/tls_openssl", tests, NULL, NULL);
}
