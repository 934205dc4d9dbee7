/* SPDX-License-Identifier: MIT
 * The structures of dlpack.h 1.1 and of its Python specification. */
#ifndef HAULPY_DLPACK_H
#define HAULPY_DLPACK_H

#include <stdint.h>

/* DLDeviceType */
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };

struct dl_tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t type, bits;
  uint16_t lanes;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL: dense, in C order */
  uint64_t byte_offset;
};

/* In a capsule "dltensor", until the consumer renames that to "used_dltensor". Its owner then calls
 * the deleter, once. */
struct dl_managed {
  struct dl_tensor tensor;
  void *context;
  void (*deleter)(struct dl_managed *self);
};

/* In a capsule "dltensor_versioned". The first four members are the same in every version. */
struct dl_managed_versioned {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct dl_managed_versioned *self);
  uint64_t flags;
  struct dl_tensor tensor;
};

#define DL_MAJOR          1u
#define DL_MINOR          1u
#define DL_FLAG_READ_ONLY 1u

#endif
