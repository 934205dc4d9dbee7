/* SPDX-License-Identifier: MIT */
#include "memory/gaudi/driver.h"

static struct gaudi_driver table;

#define SYMBOL(slot, result, arguments) {"hlthunk_" #slot, offsetof(struct gaudi_driver, slot)},
static const struct library_symbol required[] = {GAUDI_CALLS(SYMBOL)};
static const struct library_symbol optional[] = {GAUDI_OPTIONAL_CALLS(SYMBOL)};
#undef SYMBOL

struct library gaudi_library = {
    .title = "libhl-thunk",
    .names = {"libhl-thunk.so", "/usr/lib/habanalabs/libhl-thunk.so"},
    .since = "the driver of Linux 6.3",
    .packages = "habanalabs-thunk",
    .note = " (Intel's Gaudi repository)",
    .required = required,
    .required_count = LIBRARY_COUNT(required),
    .optional = optional,
    .optional_count = LIBRARY_COUNT(optional),
    .table = &table,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

const struct gaudi_driver *gaudi_driver_open(void) {
  return library_open(&gaudi_library);
}
