/* SPDX-License-Identifier: MIT
 * Codes, names, and the detail, which is kept per thread. */
#include "support/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

static const int codes[] = {
#define CODE(symbol, value, name, text) symbol,
    HAUL_ERROR_LIST(CODE)
#undef CODE
};

static void each_code_has_its_own_number_name_and_text(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(codes); i++) {
    assert_int_equal(codes[i], -(int)i - 1); /* values are stable: the list is in order */
    assert_true(strlen(haul_error_name(codes[i])) > 0);
    assert_true(strlen(haul_error_text(codes[i])) > 0);
    for (size_t j = 0; j < i; j++) {
      assert_string_not_equal(haul_error_name(codes[i]), haul_error_name(codes[j]));
      assert_string_not_equal(haul_error_text(codes[i]), haul_error_text(codes[j]));
    }
  }
}

static void other_numbers_are_unknown(void **state) {
  (void)state;
  static const int others[] = {1, -1000, INT32_MIN, INT32_MAX, -(int)COUNT(codes) - 1};
  for (size_t i = 0; i < COUNT(others); i++) {
    assert_string_equal(haul_error_name(others[i]), "unknown");
    assert_string_equal(haul_error_text(others[i]), "unknown code");
  }
  assert_string_equal(haul_error_name(HAUL_OK), "ok");
}

static void the_detail_has_all_fields(void **state) {
  (void)state;
  assert_int_equal(error_enter("haul_some_call"), 0);
  assert_int_equal(
      error_set(HAUL_ERANGE, ENOENT, "thing", error_hint("try %d", 2), "%d of %s", 3, "them"),
      HAUL_ERANGE);
  const struct haul_error *last = haul_error_last();
  assert_int_equal(last->code, HAUL_ERANGE);
  assert_int_equal(last->system, ENOENT);
  assert_string_equal(last->call, "haul_some_call");
  assert_string_equal(last->object, "thing");
  assert_string_equal(last->text, "3 of them");
  assert_string_equal(last->hint, "try 2");
}

static void a_library_above_sets_its_own(void **state) {
  (void)state;
  struct haul_error own = {
      .code = HAUL_EBUSY, .call = "above_call", .text = "text", .hint = "hint"};
  assert_int_equal(haul_error_set(&own), HAUL_EBUSY);
  assert_memory_equal(haul_error_last(), &own, sizeof own);
}

static void the_code_has_default_text_and_hint(void **state) {
  (void)state;
  error_code(HAUL_ECLOSED, NULL);
  assert_string_equal(haul_error_last()->text, haul_error_text(HAUL_ECLOSED));
  assert_string_equal(haul_error_last()->object, "");
}

static void long_texts_are_truncated(void **state) {
  (void)state;
  char words[2000];
  memset(words, 'w', sizeof words - 1);
  words[sizeof words - 1] = '\0';
  assert_int_equal(error_enter(words), 0);
  error_set(HAUL_EINVAL, 0, words, words, "%s", words);
  const struct haul_error *last = haul_error_last();
  assert_int_equal(strlen(last->call), sizeof last->call - 1);
  assert_int_equal(strlen(last->object), sizeof last->object - 1);
  assert_int_equal(strlen(last->text), sizeof last->text - 1);
  assert_true(strlen(last->hint) < sizeof last->hint);
  assert_int_equal(error_enter(""), 0);
}

/* Texts quote bytes of peers and users. */
static void a_long_quoted_text_keeps_the_hint(void **state) {
  (void)state;
  char words[400];
  memset(words, 'w', sizeof words - 1);
  words[sizeof words - 1] = '\0';
  error_set(HAUL_EINVAL, 0, NULL, "the hint", "said: %s", words);
  assert_int_equal(strlen(haul_error_last()->text), sizeof haul_error_last()->text - 1);
  assert_string_equal(haul_error_last()->hint, "the hint");
}

static void bytes_of_a_peer_are_escaped(void **state) {
  (void)state;
  error_set(HAUL_EAUTH, 0, NULL, "our hint", "the peer says %s",
            error_quote("no|run this\n\x1b[2J \"%s\" \\ \xc3\xa9"));
  assert_string_equal(haul_error_last()->text, "the peer says \"no|run this\\x0a\\x1b[2J "
                                               "\\x22%s\\x22 \\x5c \\xc3\\xa9\"");
  assert_string_equal(haul_error_last()->hint, "our hint");
}

static void a_long_quotation_ends_with_a_whole_escape(void **state) {
  (void)state;
  char words[500], text[sizeof haul_error_last()->text];
  memset(words, '\n', sizeof words - 1);
  words[sizeof words - 1] = '\0';
  snprintf(text, sizeof text, "%s", error_quote(words));
  assert_true(strlen(text) > 180 && strlen(text) % 4 == 2);
  assert_int_equal(text[strlen(text) - 1], '"');
}

static void system_errors_have_their_codes(void **state) {
  (void)state;
  assert_fails(HAUL_ELIMIT, error_system(EMFILE, "x", "open"));
  assert_fails(HAUL_ELIMIT, error_system(ENFILE, "x", "open"));
  assert_fails(HAUL_ENOMEM, error_system(ENOMEM, "x", "mmap"));
  assert_fails(HAUL_ENOMEM, error_system(ENOSPC, "x", "fallocate"));
  assert_fails(HAUL_ESYSTEM, error_system(EIO, "x", "read"));
  assert_int_equal(haul_error_last()->system, EIO);
  assert_non_null(strstr(haul_error_last()->text, "read"));
  assert_fails(HAUL_ENOMEM, error_memory("node"));
}

static void *fail_elsewhere(void *saved) {
  assert_int_equal(haul_error_last()->code, 0);
  error_set(HAUL_EPEER, 7, "there", "look", "gone");
  error_save(saved);
  return NULL;
}

static void each_thread_has_its_own_detail(void **state) {
  (void)state;
  pthread_t thread;
  struct haul_error saved;
  error_set(HAUL_EBUSY, 0, "here", "wait", "busy");
  assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &saved), 0);
  pthread_join(thread, NULL);
  assert_int_equal(haul_error_last()->code, HAUL_EBUSY);
  assert_int_equal(error_enter("haul_asker"), 0);
  assert_fails(HAUL_EPEER, error_restore(&saved));
  assert_string_equal(haul_error_last()->object, "there");
  assert_string_equal(haul_error_last()->call, "haul_asker"); /* the failed call */
}

static void nothing_saved_restores_nothing(void **state) {
  (void)state;
  struct haul_error none = {0};
  error_set(HAUL_EBUSY, 0, NULL, "wait", "busy");
  assert_int_equal(error_restore(&none), 0);
  assert_int_equal(haul_error_last()->code, HAUL_EBUSY);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_code_has_its_own_number_name_and_text),
      cmocka_unit_test(other_numbers_are_unknown),
      cmocka_unit_test(the_detail_has_all_fields),
      cmocka_unit_test(a_library_above_sets_its_own),
      cmocka_unit_test(the_code_has_default_text_and_hint),
      cmocka_unit_test(long_texts_are_truncated),
      cmocka_unit_test(a_long_quoted_text_keeps_the_hint),
      cmocka_unit_test(bytes_of_a_peer_are_escaped),
      cmocka_unit_test(a_long_quotation_ends_with_a_whole_escape),
      cmocka_unit_test(system_errors_have_their_codes),
      cmocka_unit_test(each_thread_has_its_own_detail),
      cmocka_unit_test(nothing_saved_restores_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
