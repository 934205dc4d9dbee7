/* SPDX-License-Identifier: MIT
 * The part of cuFile that haul uses, so that no toolkit is needed. Names and numbers are those of
 * cufile.h 1.14 (CUDA 12.9). */
#ifndef HAUL_FILE_CUFILE_API_H
#define HAUL_FILE_CUFILE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "memory/cuda/api.h"

/* CUfileOpError */
enum {
  CU_FILE_SUCCESS = 0,
  CU_FILE_DRIVER_NOT_INITIALIZED = 5001,
  CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
  CU_FILE_IO_NOT_SUPPORTED = 5008,
  CU_FILE_DEVICE_NOT_SUPPORTED = 5009,
  CU_FILE_CUDA_DRIVER_ERROR = 5011,
  CU_FILE_CUDA_MEMORY_TYPE_INVALID = 5013,
  CU_FILE_INVALID_FILE_OPEN_FLAG = 5019,
  CU_FILE_INVALID_VALUE = 5022,
  CU_FILE_MEMORY_ALREADY_REGISTERED = 5023,
  CU_FILE_MEMORY_NOT_REGISTERED = 5024,
  CU_FILE_DRIVER_ALREADY_OPEN = 5026,
  CU_FILE_INTERNAL_ERROR = 5030,
  CU_FILE_NVFS_SETUP_ERROR = 5033,
  CU_FILE_GPU_MEMORY_PINNING_FAILED = 5036
};

typedef struct CUfileError {
  int err; /* CUfileOpError */
  CUresult cu_err;
} CUfileError_t;

/* Bits of nvfs.dstatusflags, nvfs.dcontrolflags and fflags. */
enum { CU_FILE_NVME_SUPPORTED = 4, CU_FILE_NVME_P2P_SUPPORTED = 11 };
enum { CU_FILE_USE_POLL_MODE = 0, CU_FILE_ALLOW_COMPAT_MODE = 1 };
#define CUFILE_P2P_FEATURE 4 /* CU_FILE_P2P_SUPPORTED, since 1.16 */

typedef struct CUfileDrvProps {
  struct {
    unsigned major_version, minor_version; /* 0.0 without nvidia-fs */
    size_t poll_thresh_size, max_direct_io_size;
    unsigned dstatusflags, dcontrolflags;
  } nvfs;
  unsigned fflags;
  unsigned max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size; /* KiB */
  unsigned max_batch_io_size, max_batch_io_timeout_msecs;
  char later[256];
} CUfileDrvProps_t;

enum { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 };

typedef struct CUfileDescr_t {
  int type;
  union {
    int fd;
    void *handle;
  } handle;
  const void *fs_ops; /* NULL: the kernel's file systems */
} CUfileDescr_t;

typedef void *CUfileHandle_t;

/* CUFileBoolConfigParameter_t */
enum { CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1 };

/* X(slot, symbol, result, arguments). What is optional came with 1.14. */
#define CUFILE_REQUIRED(X)                                                                         \
  X(use_count, cuFileUseCount, long, (void))                                                       \
  X(driver_open, cuFileDriverOpen, CUfileError_t, (void))                                          \
  X(properties, cuFileDriverGetProperties, CUfileError_t, (CUfileDrvProps_t *))                    \
  X(handle_register, cuFileHandleRegister, CUfileError_t, (CUfileHandle_t *, CUfileDescr_t *))     \
  X(handle_deregister, cuFileHandleDeregister, void, (CUfileHandle_t))                             \
  X(buffer_register, cuFileBufRegister, CUfileError_t, (const void *, size_t, int))                \
  X(buffer_deregister, cuFileBufDeregister, CUfileError_t, (const void *))                         \
  X(read, cuFileRead, ssize_t, (CUfileHandle_t, void *, size_t, off_t, off_t))
#define CUFILE_OPTIONAL(X)                                                                         \
  X(get_bool, cuFileGetParameterBool, CUfileError_t, (int, bool *))                                \
  X(set_bool, cuFileSetParameterBool, CUfileError_t, (int, bool))

struct cufile_calls {
#define CUFILE_SLOT(slot, symbol, result, arguments) result(*slot) arguments;
  CUFILE_REQUIRED(CUFILE_SLOT)
  CUFILE_OPTIONAL(CUFILE_SLOT)
#undef CUFILE_SLOT
};

#endif
