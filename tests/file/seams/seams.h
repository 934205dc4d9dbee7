/* SPDX-License-Identifier: MIT
 * The kernel's calls of the module that reads files, as the test program defines them: they watch
 * the real ones, or emulate an answer. */
#ifndef HAUL_TESTS_FILE_SEAMS_H
#define HAUL_TESTS_FILE_SEAMS_H

#include <stdbool.h>
#include <stddef.h>

extern struct seams {
  unsigned memory_align, offset_align; /* that statx gives; 0: the real ones */
  bool no_direct;                      /* statx says that the file system has no O_DIRECT */
  int no_open;                         /* errno of each open with O_DIRECT; 0: the real ones */
  int refusal; /* errno of reads with O_DIRECT, after `refuse_after` of them; 0: none */
  _Atomic unsigned refuse_after;
  bool all;         /* all other reads, too */
  size_t most;      /* bytes of a read; 0: unlimited */
  long file_system; /* that fstatfs gives for descriptors with O_DIRECT; 0: the real one */
  _Atomic size_t direct, cached; /* bytes that were read with O_DIRECT, and without */
} seams;

/* Does the folder's file system have O_DIRECT? */
bool seams_direct_works(const char *folder);

#endif
