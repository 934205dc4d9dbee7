/* SPDX-License-Identifier: MIT */
#include <cufile.h>
