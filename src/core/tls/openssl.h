/* SPDX-License-Identifier: MIT
 * OpenSSL 3, opened at run time. */
#ifndef HAUL_CORE_TLS_OPENSSL_H
#define HAUL_CORE_TLS_OPENSSL_H

#include "core/library.h"
#include "core/tls/openssl_api.h"

struct openssl {
#define OPENSSL_SLOT(slot, symbol, result, parameters) result(*slot) parameters;
  OPENSSL_CALLS(OPENSSL_SLOT)
#undef OPENSSL_SLOT
};

/* The table, or NULL with the detail, HAUL_ENOTSUP. */
const struct openssl *openssl_open(void);

/* The text of the thread's latest OpenSSL error; clears the error queue. `number`, unless NULL: its
 * ERR_GET_REASON, or OPENSSL_NO_MEMORY if that began it. */
const char *openssl_reason(const struct openssl *openssl, int *number);

#endif
