/* SPDX-License-Identifier: MIT */
#include "storage/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int storage_fail(struct haul_storage_error *error, int status, const char *hint, const char *format,
                 ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(error->text, sizeof error->text, format, list);
  va_end(list);
  snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
  return status;
}

int storage_errno(int code) {
  switch (code) {
  case 0:
    return 0;
  case HAUL_EINVAL:
    return -EINVAL;
  case HAUL_ENOMEM:
    return -ENOMEM;
  case HAUL_ENOTSUP:
    return -ENOTSUP;
  case HAUL_ETIMEDOUT:
    return -ETIMEDOUT;
  case HAUL_ESTALE:
    return -ESTALE;
  case HAUL_EACCESS:
    return -EACCES;
  default:
    return -EIO;
  }
}
