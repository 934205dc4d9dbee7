/* SPDX-License-Identifier: MIT
 * Key files: created readable by the owner only, and rejected if other users can read them. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/tls/keys.h"
#include "support/seams.h"
#include "support/tree.h"

#define SECRET "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static char folder[64], file[96];

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/haul-keys-XXXXXX");
  snprintf(file, sizeof file, "%s/keys", mkdtemp(folder));
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  tree_remove(folder);
  return 0;
}

static void write_file(const char *text, size_t length, mode_t mode) {
  unlink(file);
  FILE *out = fopen(file, "w");
  assert_non_null(out);
  assert_int_equal(fwrite(text, 1, length, out), length);
  assert_int_equal(fclose(out), 0);
  assert_int_equal(chmod(file, mode), 0);
}

static int reads(const char *text, struct keys *keys) {
  write_file(text, strlen(text), 0600);
  return keys_read(file, keys);
}

static void a_new_key_file_can_be_read(void **state) {
  struct key key = {.name = "a"};
  struct keys keys;
  struct stat found;
  (void)state;
  unlink(file);
  memset(key.secret, 0xa5, sizeof key.secret);
  assert_works(keys_create(file, &key));
  assert_int_equal(stat(file, &found), 0);
  assert_int_equal(found.st_mode & 07777, 0600);
  assert_works(keys_read(file, &keys));
  assert_int_equal(keys.count, 1);
  assert_memory_equal(&keys.list[0], &key, sizeof key);
  keys_free(&keys);
  assert_fails(HAUL_EEXIST, keys_create(file, &key));
}

static void several_keys_comments_and_blanks(void **state) {
  struct keys keys;
  (void)state;
  assert_works(reads("# ours\n\n  a\t" SECRET "\r\n#b\nlong-name:7 " SECRET, &keys));
  assert_int_equal(keys.count, 2);
  assert_string_equal(keys.list[1].name, "long-name:7");
  assert_int_equal(keys.list[0].secret[31], 31);
  assert_ptr_equal(keys_find(&keys, "a", 1), &keys.list[0]);
  assert_null(keys_find(&keys, "a\0b", 3));
  assert_null(keys_find(&keys, "", 0));
  keys_free(&keys);
}

static void lines_that_are_no_keys_are_named(void **state) {
  static const char *const bad[] = {
      "a",
      "a ",
      "a " SECRET "0",
      "a 0001",
      "a " SECRET " b",
      "uid:0 " SECRET,
      "a#b " SECRET,
      "a 00010203040506070809ZZ0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
      "a " SECRET "\na " SECRET,
      "0123456789012345678901234567890123456789012345678901234567890123 " SECRET,
  };
  struct keys keys;
  (void)state;
  for (size_t i = 0; i < COUNT(bad); i++) {
    assert_fails(HAUL_EINVAL, reads(bad[i], &keys));
    assert_non_null(strstr(haul_error_last()->object, strchr(bad[i], '\n') ? ":2" : ":1"));
    assert_null(keys.list);
  }
  assert_fails(HAUL_EINVAL, reads("", &keys));
  assert_fails(HAUL_EINVAL, reads("# nothing\n", &keys));
  write_file("a\0b", 3, 0600);
  assert_fails(HAUL_EINVAL, keys_read(file, &keys));
  assert_fails(HAUL_EINVAL, keys_read(folder, &keys));
  assert_fails(HAUL_EINVAL, keys_read("/dev/zero", &keys));
}

static void files_that_others_can_read_or_change_are_refused(void **state) {
  static const mode_t bad[] = {0644, 0640, 0604, 0620, 0601, 0660};
  struct keys keys;
  (void)state;
  for (size_t i = 0; i < COUNT(bad); i++) {
    write_file("a " SECRET, strlen("a " SECRET), bad[i]);
    assert_fails(HAUL_EINSECURE, keys_read(file, &keys));
    assert_non_null(strstr(haul_error_last()->hint, "chmod 600"));
  }
  if (geteuid() != 0) {
    printf("skipped another owner's file: only root can make one\n");
    return;
  }
  write_file("a " SECRET, strlen("a " SECRET), 0400);
  assert_int_equal(chown(file, 65534, 65534), 0);
  assert_fails(HAUL_EINSECURE, keys_read(file, &keys));
}

static void too_many_are_refused(void **state) {
  size_t room = (KEYS_MAX + 1) * 80, used = 0;
  char *text = malloc(room);
  struct keys keys;
  (void)state;
  for (unsigned i = 0; i <= KEYS_MAX; i++)
    used += (size_t)snprintf(text + used, room - used, "k%u %s\n", i, SECRET);
  assert_fails(HAUL_ELIMIT, reads(text, &keys));
  *strrchr(text, 'k') = '\0';
  assert_works(reads(text, &keys));
  assert_int_equal(keys.count, KEYS_MAX);
  keys_free(&keys);
  free(text);
}

static void without_memory_there_are_none(void **state) {
  struct keys keys;
  int code = 0;
  (void)state;
  write_file("a " SECRET, strlen("a " SECRET), 0600);
  for (unsigned n = 1; seams_refuse(n), code = keys_read(file, &keys), seams_restore(); n++)
    assert_fails(HAUL_ENOMEM, code);
  assert_works(code);
  keys_free(&keys);
}

static void names_and_fingerprints(void **state) {
  static const char *const bad[] = {"", "a b", "a\n", "uid:1", "#", "\x7f", "ä"};
  struct key one = {.name = "a"}, other = {.name = "a"};
  char first[17], second[17];
  (void)state;
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_false(key_name_is_valid(bad[i]));
  assert_true(key_name_is_valid("node-7.rack/2:a@b"));
  other.secret[0] = 1;
  key_fingerprint(&one, first);
  key_fingerprint(&other, second);
  assert_int_equal(strlen(first), 16);
  assert_string_not_equal(first, second);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_new_key_file_can_be_read),
      cmocka_unit_test(several_keys_comments_and_blanks),
      cmocka_unit_test(lines_that_are_no_keys_are_named),
      cmocka_unit_test(files_that_others_can_read_or_change_are_refused),
      cmocka_unit_test(too_many_are_refused),
      cmocka_unit_test(without_memory_there_are_none),
      cmocka_unit_test(names_and_fingerprints),
  };
  return cmocka_run_group_tests_name("unit/tls_keys", tests, make_folder, remove_folder);
}
