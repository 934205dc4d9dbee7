/* SPDX-License-Identifier: MIT
 * Polling before sleeping: when it begins and ends, and that an idle daemon does not poll. */
#include "support/check.h"

#include <time.h>
#include <unistd.h>

#include "client.h"

static struct rig rig;

static int set_up(void **state) {
  *state = &rig;
  rig_open(&rig, 2);
  return 0;
}

static void only_after_a_short_wait_is_there_polling(void **state) {
  (void)state;
  struct ring_poller poller = {.since = 0};
  assert_false(ring_poll_again(&poller));
  poller.since = ring_poll_clock() - 2 * POLL_NS;
  ring_poll_end(&poller);
  assert_false(poller.pays);
  assert_false(ring_poll_again(&poller));
  poller.since = INT64_MAX / 2; /* not even over on the slowest machine */
  ring_poll_end(&poller);
  assert_true(poller.pays);
  assert_true(ring_poll_again(&poller));
  poller.since -= 2 * POLL_NS;
  assert_false(ring_poll_again(&poller));
}

static void there_is_no_polling_while_others_want_the_processor(void **state) {
  (void)state;
  struct ring_poller poller = {.pays = true, .paused = ring_poll_clock() + INT64_C(1000000000000)};
  assert_false(ring_poll_again(&poller));
}

static double processor_seconds(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* The workers, which have just polled, are threads of this process. */
static void idle_workers_use_no_processor(void **state) {
  (void)state;
  struct client client;
  client_open(&client, &rig, &(struct iov_name){.for_read = true}, 4, 4096);
  for (int i = 0; i < 1000; i++)
    assert_int_equal(client_do(&client, 0, 0, 4096), 4096);
  usleep(100000);
  double before = processor_seconds();
  usleep(1000000);
  double used = processor_seconds() - before;
  client_close(&client);
  if (used >= 0.1)
    fail_msg("idle workers used %.3f s of a second", used);
}

int main(void) {
  if (!rig_is_possible())
    return 77;
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, rig_tear_down)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_after_a_short_wait_is_there_polling),
      cmocka_unit_test(there_is_no_polling_while_others_want_the_processor),
      TEST(idle_workers_use_no_processor),
  };
  return cmocka_run_group_tests_name("storage/polling", tests, NULL, NULL);
}
