/* SPDX-License-Identifier: MIT
 * A test that hangs says where, before ctest ends it without a word: the stacks of its threads and
 * of its children's, by gdb where that is installed, else what the kernel knows of them. */
#ifndef HAUL_TEST_SUPPORT_STUCK_H
#define HAUL_TEST_SUPPORT_STUCK_H

/* From now on; 0: never. Each program that has the tests' support starts with STUCK_SECONDS, which
 * is shorter than what ctest waits. */
void stuck_after(unsigned seconds);

#define STUCK_SECONDS 270u

#endif
