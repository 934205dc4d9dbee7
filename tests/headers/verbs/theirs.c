/* SPDX-License-Identifier: MIT */
#include <infiniband/verbs.h>
