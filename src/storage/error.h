/* SPDX-License-Identifier: MIT */
#ifndef HAUL_STORAGE_ERROR_H
#define HAUL_STORAGE_ERROR_H

#include <haul/storage.h>

/* Fills *error, with no hint where `hint` is NULL; returns `status`. */
int storage_fail(struct haul_storage_error *error, int status, const char *hint, const char *format,
                 ...) __attribute__((format(printf, 4, 5)));

/* The negative errno value for an error code of libhaul; 0 for success. */
int storage_errno(int code);

#endif
