/* SPDX-License-Identifier: MIT
 * The reason why an endpoint closed, read by one thread while another closes it. */
#include "support/check.h"

#include <pthread.h>
#include <string.h>

#include "fabric/transport.h"

static struct endpoint endpoint;

static void *close_it(void *argument) {
  (void)argument;
  endpoint_close(&endpoint, "the connection ended: %s", "reset");
  return NULL;
}

static int setup(void **state) {
  (void)state;
  endpoint = (struct endpoint){.open = true};
  return 0;
}

static void has_no_reason_while_open(void **state) {
  (void)state;
  assert_false(endpoint_is_closed(&endpoint));
  assert_string_equal(endpoint_reason(&endpoint), "");
}

static void keeps_the_first_reason(void **state) {
  (void)state;
  endpoint_close(&endpoint, "first");
  endpoint_close(&endpoint, "second");
  assert_string_equal(endpoint_reason(&endpoint), "first");
  assert_false(endpoint.open);
  assert_true(endpoint.lost);
}

/* A reader sees no reason or the whole one. Under the thread sanitizer, a plain read would fail. */
static void shows_a_reader_a_whole_reason(void **state) {
  (void)state;
  for (unsigned i = 0; i < 200; i++) {
    pthread_t closer;
    setup(NULL);
    assert_int_equal(pthread_create(&closer, NULL, close_it, NULL), 0);
    const char *reason;
    do
      reason = endpoint_reason(&endpoint);
    while (!reason[0]);
    assert_string_equal(reason, "the connection ended: reset");
    assert_int_equal(pthread_join(closer, NULL), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(has_no_reason_while_open, setup),
      cmocka_unit_test_setup(keeps_the_first_reason, setup),
      cmocka_unit_test(shows_a_reader_a_whole_reason),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
