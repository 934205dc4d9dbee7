/* SPDX-License-Identifier: MIT
 * Names that are unique to a run of the tests on this machine. */
#ifndef HAUL_TESTS_NAMES_H
#define HAUL_TESTS_NAMES_H

/* "unix://@haul-test-…": this program's abstract socket, the same for each call. Other programs
 * that it starts have another. */
const char *own_socket(void);

#endif
