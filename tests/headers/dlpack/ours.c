/* SPDX-License-Identifier: MIT */
#include "integrations/python/haul/_haul/dlpack.h"
