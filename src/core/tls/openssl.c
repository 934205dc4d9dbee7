/* SPDX-License-Identifier: MIT */
#include "core/tls/openssl.h"

static struct openssl table;

#define SYMBOL(slot, symbol, result, parameters) {#symbol, offsetof(struct openssl, slot)},
static const struct library_symbol required[] = {OPENSSL_CALLS(SYMBOL)};
#undef SYMBOL

static struct library library = {
    .title = "OpenSSL",
    .names = {"libssl.so.3"},
    .since = "3.0",
    .packages = "libssl3",
    LIBRARY_REQUIRED(required, table),
};

/* No atexit handler: a process may exit with open nodes, whose threads still use OpenSSL. No effect
 * if the application has initialised OpenSSL before. */
static void leave_at_exit(void) {
  table.init(OPENSSL_NO_ATEXIT, NULL);
}

const struct openssl *openssl_open(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const struct openssl *openssl = library_open(&library);
  if (openssl)
    pthread_once(&once, leave_at_exit);
  return openssl;
}

const char *openssl_reason(const struct openssl *openssl, int *number) {
  const char *reason = NULL;
  int last = 0;
  for (unsigned long error; (error = openssl->error_get());) {
    reason = openssl->error_reason(error);
    last = last == OPENSSL_NO_MEMORY ? last : (int)(error & 0x7fffff);
  }
  if (number)
    *number = last;
  return reason ? reason : "no reason given";
}
