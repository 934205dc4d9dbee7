/* SPDX-License-Identifier: MIT
 *
 * The library gives its advice to programs. Here what it says is put in the command's own terms.
 */
#ifndef HAUL_COMMAND_WORDS_H
#define HAUL_COMMAND_WORDS_H

#include <stddef.h>

/* Replaces, in place, each thing of the C API by what does the same on the command line; cut where
 * that does not fit. */
void words_of_command(char *text, size_t size);

#endif
