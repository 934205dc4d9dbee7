/* SPDX-License-Identifier: MIT
 * Prints the stacks of a hanging test's threads and children before ctest kills it: by gdb if
 * installed, else from /proc. */
#ifndef HAUL_TEST_SUPPORT_STUCK_H
#define HAUL_TEST_SUPPORT_STUCK_H

/* Sets the time limit; 0: none. Programs with the tests' support start with STUCK_SECONDS, which is
 * less than ctest's timeout. */
void stuck_after(unsigned seconds);

#define STUCK_SECONDS 270u

#endif
