/* SPDX-License-Identifier: MIT
 * The data connections of tcp, which the first transfer opens. */
#ifndef HAUL_TESTS_RAILS_H
#define HAUL_TESTS_RAILS_H

#include "haul/haul.h"

/* Reads a byte over tcp, and waits until all rails are open. For the side that connected. */
void open_rails(struct haul_remote *remote, struct haul_region *local);

#endif
