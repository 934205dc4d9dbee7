/* SPDX-License-Identifier: MIT
 * Names that several runs of the tests on one machine do not share. */
#ifndef HAUL_TESTS_NAMES_H
#define HAUL_TESTS_NAMES_H

/* "unix://@haul-test-…": this program's own abstract socket, the same at each call. Its children
 * that run another program have another. */
const char *own_socket(void);

#endif
