/* SPDX-License-Identifier: MIT */
#include <cuda_runtime_api.h>
