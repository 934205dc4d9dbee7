/* SPDX-License-Identifier: MIT */
#include "integrations/usrbio/hf3fs_usrbio.h"
