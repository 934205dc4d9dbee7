/* SPDX-License-Identifier: MIT */
#include <uapi/hlthunk.h>
