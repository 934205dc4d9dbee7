/* SPDX-License-Identifier: MIT
 * Errors of the services, told like those of the library. */
#ifndef HAUL_SERVICES_FAIL_H
#define HAUL_SERVICES_FAIL_H

#include <haul/haul.h>

/* Sets the detail of this thread's last failure and returns `code`. `call` is the public call;
 * `object` may be NULL. Bytes of a peer must not enter the hint. */
int fail(int code, const char *call, const char *object, const char *hint, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* HAUL_ENOMEM. */
int fail_memory(const char *call);

#endif
