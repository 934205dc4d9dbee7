/* SPDX-License-Identifier: MIT */
#include "integrations/ucx/hlthunk.h"
