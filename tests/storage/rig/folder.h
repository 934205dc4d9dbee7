/* SPDX-License-Identifier: MIT
 * A temporary folder of a test. */
#ifndef HAUL_TESTS_STORAGE_FOLDER_H
#define HAUL_TESTS_STORAGE_FOLDER_H

#include <stdbool.h>

#define FOLDER_ROOM 64

void folder_make(char path[FOLDER_ROOM]);
void folder_remove(const char *path);
/* The path of a file in it, in one of four static buffers. */
const char *folder_path(const char *folder, const char *name);
/* Creates a file with this text. */
void folder_put(const char *folder, const char *name, const char *text);

/* Whether other users can reach the folder: the root folder of some test systems is closed to them.
 */
bool folder_is_for_others(void);

#endif
