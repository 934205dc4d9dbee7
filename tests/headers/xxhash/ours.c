/* SPDX-License-Identifier: MIT */
#include "core/compat/xxhash.h"
