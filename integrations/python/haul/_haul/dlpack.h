/* SPDX-License-Identifier: MIT
 *
 * DLPack's binary interface, of what haul needs (dlpack.h 1.1, and its Python specification). */
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
  int64_t *strides; /* in elements; NULL: dense, the last dimension the fastest */
  uint64_t byte_offset;
};

/* In a capsule "dltensor", until a consumer renames it to "used_dltensor". Whoever has it then
 * calls the deleter, once. */
struct dl_managed {
  struct dl_tensor tensor;
  void *context;
  void (*deleter)(struct dl_managed *self);
};

/* In a capsule "dltensor_versioned". Whatever the version, the first three members are these. */
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

#define DL_NAME                "dltensor"
#define DL_NAME_USED           "used_dltensor"
#define DL_NAME_VERSIONED      "dltensor_versioned"
#define DL_NAME_VERSIONED_USED "used_dltensor_versioned"

#endif
