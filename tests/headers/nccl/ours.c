/* SPDX-License-Identifier: MIT */
#include "integrations/nccl/interface.h"
