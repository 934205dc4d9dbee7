/* SPDX-License-Identifier: MIT
 * An endpoint's close reason, read by one thread while another closes the endpoint. */
#include "support/check.h"

#include <pthread.h>
#include <string.h>

#include "fabric/transport.h"

static struct link link_of_it;
static struct endpoint endpoint;

static void *close_it(void *argument) {
  (void)argument;
  endpoint_close(&endpoint, "the connection ended: %s", "reset");
  return NULL;
}

static int setup(void **state) {
  (void)state;
  endpoint = (struct endpoint){.link = &link_of_it, .open = true};
  return 0;
}

static void an_open_endpoint_has_no_reason(void **state) {
  (void)state;
  assert_false(endpoint_is_closed(&endpoint));
  assert_string_equal(endpoint_reason(&endpoint), "");
}

static void the_first_reason_stays(void **state) {
  (void)state;
  endpoint_close(&endpoint, "first");
  endpoint_close(&endpoint, "second");
  assert_string_equal(endpoint_reason(&endpoint), "first");
  assert_false(endpoint.open);
  assert_true(endpoint.lost);
}

/* A reader sees no reason or the whole one. The thread sanitizer would report a plain read. */
static void a_reader_sees_the_whole_reason(void **state) {
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
      cmocka_unit_test_setup(an_open_endpoint_has_no_reason, setup),
      cmocka_unit_test_setup(the_first_reason_stays, setup),
      cmocka_unit_test(a_reader_sees_the_whole_reason),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
