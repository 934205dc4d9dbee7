/* SPDX-License-Identifier: MIT
 * Modules come from the folder haul/ beside the library alone, and from the same release. */
#include "support/check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/library.h"
#include "file/module.h"

static struct { const struct file_module *module; } table;

static const struct library_symbol symbols[] = {{"haul_file_module", 0}};

static struct library module_of(const char *name, size_t size) {
  return (struct library){.title = "the module",
                          .names = {name},
                          .module = size,
                          .since = "this haul",
                          .packages = "haul",
                          LIBRARY_REQUIRED(symbols, table)};
}

static void a_module_is_opened(void **state) {
  struct library library = module_of(FILE_MODULE, sizeof(struct file_module));
  (void)state;
  assert_non_null(library_open(&library));
  assert_int_equal(table.module->size, sizeof(struct file_module));
  library_forget(&library);
}

/* The loader would find this one. */
static void no_other_folder_is_searched(void **state) {
  struct library library = module_of("libc.so.6", sizeof(struct file_module));
  (void)state;
  assert_null(library_open(&library));
  assert_non_null(strstr(haul_error_last()->text, "/haul/libc.so.6"));
}

static void a_module_of_another_release_is_refused(void **state) {
  struct library library = module_of(FILE_MODULE, sizeof(struct file_module) + 8);
  (void)state;
  assert_null(library_open(&library));
  assert_int_equal(haul_error_last()->code, HAUL_ENOTSUP);
  assert_non_null(strstr(haul_error_last()->text, "of different releases"));
  assert_string_equal(haul_error_last()->hint, "install both from one release");
}

static void a_library_of_another_release_is_refused(void **state) {
  struct library library = module_of(FILE_MODULE, sizeof(struct file_module));
  struct file_library calls = {.size = sizeof calls + 8, .error = error_set};
  haul_file *file;
  (void)state;
  assert_non_null(library_open(&library));
  assert_int_equal(table.module->open(&calls, 0, &file), HAUL_ENOTSUP);
  assert_non_null(strstr(haul_error_last()->text, "of different releases"));
  library_forget(&library);
}

/* This program again, with any name and in any folder. */
static int run_as(const char *name, const char *mode) {
  char *arguments[] = {strdup(name), strdup(mode), NULL};
  pid_t child = fork();
  if (child == 0) {
    if (chdir("/") == 0)
      execv("/proc/self/exe", arguments);
    _exit(99);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  free(arguments[0]);
  free(arguments[1]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void the_name_of_the_program_does_not_matter(void **state) {
  const char *const names[] = {"name", "./name", "other/name", "/no/such/name"};
  (void)state;
  for (size_t i = 0; i < COUNT(names); i++)
    assert_int_equal(run_as(names[i], "open"), 0);
}

/* Later the working directory may be any other. */
static void a_relative_path_of_the_library_is_refused(void **state) {
  (void)state;
  assert_int_equal(run_as("name", "relative"), 0);
}

static int open_module(void) {
  struct library library = module_of(FILE_MODULE, sizeof(struct file_module));
  if (library_open(&library))
    return 0;
  fprintf(stderr, "%s\n", haul_error_last()->text);
  return 1;
}

/* The shared library, in its folder of the build tree. */
static int open_relative(void) {
  char path[PATH_MAX];
  haul_file *file;
  int (*open_file)(int, haul_file **);
  const struct haul_error *(*last)(void);
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);
  snprintf(strrchr((path[length > 0 ? length : 0] = '\0', path), '/'), 16, "/../src");
  if (chdir(path) != 0)
    return 2;
  void *haul = dlopen("./libhaul.so", RTLD_NOW | RTLD_LOCAL);
  void *found[2] = {haul ? dlsym(haul, "haul_file_open") : NULL,
                    haul ? dlsym(haul, "haul_error_last") : NULL};
  memcpy(&open_file, &found[0], sizeof open_file);
  memcpy(&last, &found[1], sizeof last);
  if (!found[0] || !found[1])
    return 3;
  int code = open_file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), &file);
  fprintf(stderr, "%s (hint: %s)\n", last()->text, last()->hint);
  return code == HAUL_ENOTSUP && strstr(last()->text, "relative") &&
                 strstr(last()->hint, "absolute path")
             ? 0
             : 4;
}

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_module_is_opened),
      cmocka_unit_test(no_other_folder_is_searched),
      cmocka_unit_test(a_module_of_another_release_is_refused),
      cmocka_unit_test(a_library_of_another_release_is_refused),
      cmocka_unit_test(the_name_of_the_program_does_not_matter),
      cmocka_unit_test(a_relative_path_of_the_library_is_refused),
  };
  if (count > 1)
    return strcmp(arguments[1], "open") == 0 ? open_module() : open_relative();
  return cmocka_run_group_tests_name("core/library", tests, NULL, NULL);
}
