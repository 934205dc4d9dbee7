/* SPDX-License-Identifier: MIT */
#include "memory/cuda/driver.h"

#include "core/error.h"

static struct cuda_driver table;

#define SYMBOL(slot, symbol, arguments) {#symbol, offsetof(struct cuda_driver, slot)},
static const struct library_symbol required[] = {CUDA_REQUIRED(SYMBOL)};
static const struct library_symbol optional[] = {CUDA_OPTIONAL(SYMBOL)};
#undef SYMBOL

struct library cuda_library = {
    .title = "NVIDIA's driver",
    .names = {"libcuda.so.1"},
    .since = "CUDA 10.2's",
    .packages = "nvidia-driver libcuda1",
    .note = "; a container is started with --gpus all",
    .required = required,
    .required_count = LIBRARY_COUNT(required),
    .optional = optional,
    .optional_count = LIBRARY_COUNT(optional),
    .table = &table,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

const struct cuda_driver *cuda_driver_open(void) {
  return library_open(&cuda_library);
}

const struct cuda_driver *cuda_driver_loaded(void) {
  struct haul_error before;
  if (!library_is_loaded(&cuda_library))
    return NULL;
  error_save(&before);
  const struct cuda_driver *driver = library_open(&cuda_library);
  if (!driver)
    error_restore(&before);
  return driver;
}

const char *cuda_driver_word(const struct cuda_driver *driver, CUresult result) {
  const char *word = NULL;
  if (driver->error_name(result, &word) != CUDA_SUCCESS || !word)
    return "an unknown error";
  return word;
}
