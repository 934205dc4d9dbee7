/* SPDX-License-Identifier: MIT
 * A folder of a test's own, with files in it. */
#ifndef HAUL_TESTS_STORAGE_FOLDER_H
#define HAUL_TESTS_STORAGE_FOLDER_H

#include <stdbool.h>

#define FOLDER_ROOM 64

void folder_make(char path[FOLDER_ROOM]);
void folder_remove(const char *path);
/* The whole path of what is in it; one of four places in turn. */
const char *folder_path(const char *folder, const char *name);
/* A file with this text. */
void folder_put(const char *folder, const char *name, const char *text);

/* Whether other users can come as far as to any folder: some systems are tried in a root folder
 * that is closed to them. */
bool folder_is_for_others(void);

#endif
