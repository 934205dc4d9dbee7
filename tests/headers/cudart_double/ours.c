/* SPDX-License-Identifier: MIT */
#include "tests/doubles/cudart/cudart.h"
