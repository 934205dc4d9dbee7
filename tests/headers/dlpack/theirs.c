/* SPDX-License-Identifier: MIT */
#include <dlpack/dlpack.h>
