/* SPDX-License-Identifier: MIT
 * Made-up files below a folder of the test, such as /sys. */
#ifndef HAUL_TESTS_TREE_H
#define HAUL_TESTS_TREE_H

/* Create below the root, with parent folders. */
void tree_file(const char *root, const char *path, const char *text);
void tree_folder(const char *root, const char *path);
/* A link to another path below the root. */
void tree_link(const char *root, const char *path, const char *to);
/* Removes the root, too. */
void tree_remove(const char *root);

#endif
