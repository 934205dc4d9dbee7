/* SPDX-License-Identifier: MIT
 * Transfers that wait for an event of a GPU, over map and tcp. The device is HAUL_TEST_DEVICE, a
 * GPU or a mock of one (tests/doubles/cuda/with). */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/cuda/driver.h"
#include "support/gpu.h"
#include "support/names.h"
#include "support/owner.h"

#define BOUND  (60 * S)
#define LENGTH ((uint64_t)1 << 20)
#define BOTH   (HAUL_READ | HAUL_WRITE)
#define SHORT  (20 * MS)

static struct {
  const char *only;
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *device, *host;
  struct haul_remote *remote;
  const struct cuda_driver *driver;
  CUcontext context;
  CUstream stream;
  CUevent event;
  _Atomic int finish; /* the work before the event ends once it is 1 */
} t;

static void must(CUresult result) {
  assert_int_equal(result, CUDA_SUCCESS);
}

static void wait_for_finish(void *unused) {
  (void)unused;
  while (!atomic_load(&t.finish))
    usleep(200);
}

/* Records the event behind work of its stream that ends with finish_work. */
static void begin_work(void) {
  atomic_store(&t.finish, 0);
  must(t.driver->context_push(t.context));
  must(t.driver->launch_host(t.stream, wait_for_finish, NULL));
  must(t.driver->event_record(t.event, t.stream));
  must(t.driver->context_pop(&t.context));
}

static void finish_work(void) {
  atomic_store(&t.finish, 1);
}

static void open_stream(void) {
  CUdevice device;
  t.driver = cuda_driver_open();
  assert_non_null(t.driver);
  must(t.driver->init(0));
  must(t.driver->device_get(&device, device_place().device));
  must(t.driver->primary_retain(&t.context, device));
  must(t.driver->context_push(t.context));
  must(t.driver->stream_create(&t.stream, CU_STREAM_NON_BLOCKING));
  must(t.driver->event_create(&t.event, CU_EVENT_DISABLE_TIMING));
  must(t.driver->context_pop(&t.context));
}

static int set_up(void **state) {
  memset(&t, 0, sizeof t);
  t.only = *state;
  owner_start(&t.owner, strcmp(t.only, "map") == 0 ? own_socket() : "tcp://127.0.0.1:0", NULL);
  const struct haul_node_config config = patient_config();
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  assert_int_equal(owner_publish(&t.owner, 0, KIND_HOST, LENGTH, "memory", BOTH), 0);
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  t.device = region_make(t.node, KIND_SIM, LENGTH);
  t.host = region_make(t.node, KIND_HOST, LENGTH);
  region_fill(t.node, t.device, 0, LENGTH, 1);
  region_fill(t.node, t.host, 0, LENGTH, 1);
  owner_fill(&t.owner, 0, 0, LENGTH, 2);
  open_stream();
  begin_work();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  finish_work();
  must(t.driver->context_push(t.context));
  must(t.driver->stream_wait(t.stream));
  must(t.driver->event_destroy(t.event));
  must(t.driver->stream_destroy(t.stream));
  must(t.driver->context_pop(&t.context));
  if (t.node) {
    haul_remote_release(t.remote);
    haul_region_release(t.device);
    haul_region_release(t.host);
    haul_peer_close(t.peer);
    haul_node_close(t.node);
  }
  if (t.owner.pid)
    assert_int_equal(owner_end(&t.owner), 0);
  return 0;
}

static struct haul_transfer_options after_event(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = t.only;
  options.after = t.event;
  return options;
}

static struct haul_transfer *start_write(struct haul_region *from,
                                         const struct haul_transfer_options *options) {
  struct haul_transfer *transfer;
  assert_works(
      haul_write(t.remote, from, &(struct haul_piece){0, 0, LENGTH}, 1, options, &transfer));
  return transfer;
}

static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, haul_deadline_in(BOUND));
  haul_transfer_release(transfer);
  return code;
}

static bool arrived(struct haul_region *source) {
  return owner_sum(&t.owner, 0, 0, LENGTH) == region_sum(t.node, source, 0, LENGTH);
}

static void a_write_waits_for_the_event(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer = start_write(t.device, &options);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(transfer, haul_deadline_in(SHORT)));
  assert_int_equal(haul_transfer_test(transfer), 1);
  assert_false(arrived(t.device));
  finish_work();
  assert_works(finish(transfer));
  assert_true(arrived(t.device));
}

static void the_bytes_are_those_at_the_event(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer = start_write(t.device, &options);
  region_fill(t.node, t.device, 0, LENGTH, 3); /* what the work before the event does */
  finish_work();
  assert_works(finish(transfer));
  assert_true(arrived(t.device));
}

static void a_read_waits_for_the_event(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer;
  uint64_t before = region_sum(t.node, t.device, 0, LENGTH);
  assert_works(
      haul_read(t.device, t.remote, &(struct haul_piece){0, 0, LENGTH}, 1, &options, &transfer));
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(transfer, haul_deadline_in(SHORT)));
  assert_true(region_sum(t.node, t.device, 0, LENGTH) == before);
  finish_work();
  assert_works(finish(transfer));
  assert_true(arrived(t.device));
}

static void host_memory_waits_for_a_gpus_event(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  options.after_at = device_place();
  struct haul_transfer *transfer = start_write(t.host, &options);
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(transfer, haul_deadline_in(SHORT)));
  assert_false(arrived(t.host));
  finish_work();
  assert_works(finish(transfer));
  assert_true(arrived(t.host));
}

static void *finish_later(void *unused) {
  (void)unused;
  usleep(30000);
  finish_work();
  return NULL;
}

static void a_call_without_a_handle_waits(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, finish_later, NULL), 0);
  assert_works(
      haul_write(t.remote, t.device, &(struct haul_piece){0, 0, LENGTH}, 1, &options, NULL));
  assert_int_equal(atomic_load(&t.finish), 1);
  pthread_join(thread, NULL);
  assert_true(arrived(t.device));
}

static void a_completed_event_delays_nothing(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  finish_work();
  must(t.driver->context_push(t.context));
  must(t.driver->stream_wait(t.stream));
  must(t.driver->context_pop(&t.context));
  assert_works(finish(start_write(t.device, &options)));
  assert_true(arrived(t.device));
}

static void a_message_arrives_after_a_waiting_write(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer = start_write(t.device, &options);
  uint64_t tag, length, sum;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, finish_later, NULL), 0);
  assert_works(haul_message_send(t.peer, 5, "done", 4, haul_deadline_in(BOUND)));
  assert_int_equal(owner_receive(&t.owner, 0, LENGTH, &tag, &length, &sum), 0);
  pthread_join(thread, NULL);
  assert_int_equal(tag, 5);
  assert_true(sum == region_sum(t.node, t.device, 0, LENGTH));
  assert_works(finish(transfer));
}

static void an_atomic_operation_waits(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer;
  options.after_at = device_place();
  uint64_t before = owner_sum(&t.owner, 0, 0, LENGTH);
  assert_works(haul_fetch_add(t.host, 0, t.remote, 0, 1, &options, &transfer));
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_wait(transfer, haul_deadline_in(SHORT)));
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == before);
  finish_work();
  assert_works(finish(transfer));
  assert_false(owner_sum(&t.owner, 0, 0, LENGTH) == before);
}

static void a_waiting_transfer_is_canceled(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer = start_write(t.device, &options);
  assert_works(haul_transfer_cancel(transfer));
  assert_fails(HAUL_ECANCELED, finish(transfer));
  assert_false(arrived(t.device));
}

static void a_waiting_transfer_times_out(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  options.deadline = haul_deadline_in(SHORT);
  assert_fails(HAUL_ETIMEDOUT, finish(start_write(t.device, &options)));
  assert_false(arrived(t.device));
}

static void a_waiting_transfer_ends_with_its_region(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer = start_write(t.device, &options);
  haul_region_release(t.device);
  t.device = NULL;
  finish_work();
  int code = finish(transfer);
  assert_true(code == 0 || code == HAUL_ESTALE || code == HAUL_ECANCELED);
}

static void a_waiting_transfer_ends_with_its_peer(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer = start_write(t.device, &options);
  owner_kill(&t.owner);
  t.owner.pid = 0;
  assert_fails(HAUL_EPEER, finish(transfer));
}

static void *finish_after(void *transfer) {
  while (haul_transfer_test(transfer) == 1)
    usleep(1000);
  finish_work();
  return NULL;
}

/* The driver unpins the node's buffers, which waits for the work. */
static void a_waiting_transfer_ends_with_its_node(void **state) {
  (void)state;
  pthread_t thread;
  struct haul_transfer_options options = after_event();
  struct haul_transfer *transfer = start_write(t.device, &options);
  assert_int_equal(pthread_create(&thread, NULL, finish_after, transfer), 0);
  haul_remote_release(t.remote);
  haul_region_release(t.host);
  struct haul_region *device = t.device;
  haul_node_close(t.node);
  pthread_join(thread, NULL);
  assert_fails(HAUL_ECLOSED, finish(transfer));
  haul_region_release(device);
  haul_peer_close(t.peer);
  t.node = NULL;
}

static void a_place_without_events_is_rejected(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  const struct haul_piece piece = {0, 0, LENGTH};
  assert_fails(HAUL_ENOTSUP, haul_write(t.remote, t.host, &piece, 1, &options, NULL));
  assert_non_null(strstr(haul_error_last()->hint, "after_at"));
  options.after_at = (struct haul_place){device_place().kind, 99};
  assert_fails(HAUL_EPLACE, haul_write(t.remote, t.host, &piece, 1, &options, NULL));
}

/* A program that was built before the option existed. */
static void shorter_options_have_no_event(void **state) {
  (void)state;
  struct haul_transfer_options options = after_event();
  options.size = offsetof(struct haul_transfer_options, after);
  assert_works(finish(start_write(t.device, &options)));
}

#define OVER(test, path)                                                                           \
  { #test ", over " path, test, set_up, tear_down, (void *)(uintptr_t)path }
#define BOTH_PATHS(test) OVER(test, "map"), OVER(test, "tcp")

int main(int count, char **arguments) {
  if (count == 2 && strcmp(arguments[1], OWNER_MODE) == 0)
    return owner_main();
  const struct CMUnitTest tests[] = {
      BOTH_PATHS(a_write_waits_for_the_event),
      BOTH_PATHS(the_bytes_are_those_at_the_event),
      BOTH_PATHS(a_read_waits_for_the_event),
      BOTH_PATHS(host_memory_waits_for_a_gpus_event),
      BOTH_PATHS(a_call_without_a_handle_waits),
      BOTH_PATHS(a_completed_event_delays_nothing),
      BOTH_PATHS(a_message_arrives_after_a_waiting_write),
      BOTH_PATHS(an_atomic_operation_waits),
      BOTH_PATHS(a_waiting_transfer_is_canceled),
      BOTH_PATHS(a_waiting_transfer_times_out),
      BOTH_PATHS(a_waiting_transfer_ends_with_its_region),
      BOTH_PATHS(a_waiting_transfer_ends_with_its_peer),
      BOTH_PATHS(a_waiting_transfer_ends_with_its_node),
      BOTH_PATHS(a_place_without_events_is_rejected),
      BOTH_PATHS(shorter_options_have_no_event),
  };
  if (!gpu_is_there())
    return 77;
  setenv("HAUL_TEST_DEVICE", "cuda:0", 0);
  return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
