/* SPDX-License-Identifier: MIT
 * Many transfers at once: from several threads, batched, bounded, and told by a call of `done`. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/sys.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/rails.h"
#include "support/seams.h"

#define LENGTH ((uint64_t)16 << 20)
#define SMALL  4096u

/* A node, and the one that it writes to, in this process; over tcp. */
static struct {
  struct haul_node *node, *owner;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *from, *to;
  unsigned descriptors;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(30 * S);
}

static void open_all(int progress, unsigned most) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char address[160];
  memset(&t, 0, sizeof t);
  t.descriptors = open_descriptors();
  assert_works(haul_node_open(NULL, &t.owner));
  config.progress = progress;
  config.max_transfers = most;
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_region_alloc(t.owner, (struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &t.to));
  assert_works(haul_region_publish(t.to, "to", HAUL_READ | HAUL_WRITE));
  assert_works(haul_region_alloc(t.node, (struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &t.from));
  for (uint64_t i = 0; i < LENGTH; i++)
    ((uint8_t *)haul_region_address(t.from))[i] = (uint8_t)(i * 31 + i / SMALL);
  assert_works(haul_peer_connect(t.node, address, soon(), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "to", soon(), &t.remote));
  open_rails(t.remote, t.from);
}

static int set_up(void **state) {
  (void)state;
  open_all(HAUL_PROGRESS_THREAD, 0);
  return 0;
}

static int set_up_driven(void **state) {
  (void)state;
  open_all(HAUL_PROGRESS_CALLER, 0);
  return 0;
}

static int set_up_with_few(void **state) {
  (void)state;
  open_all(HAUL_PROGRESS_THREAD, 10);
  return 0;
}

static uint64_t counter(const char *name) {
  uint64_t value = UINT64_MAX;
  assert_works(haul_counter_read(t.node, name, &value));
  return value;
}

/* Whoever ended the last one lets go of it a moment after it has ended. */
static void assert_none_is_left(void) {
  for (unsigned i = 0; i < 5000 && counter("node.transfers"); i++)
    haul_node_progress(t.node, haul_deadline_in(MS));
  assert_int_equal(counter("node.transfers"), 0);
  assert_int_equal(counter("node.transfers_bytes"), 0);
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_region_release(t.from);
  haul_region_release(t.to);
  haul_node_close(t.node);
  haul_node_close(t.owner);
  assert_int_equal(open_descriptors(), t.descriptors);
  return 0;
}

static struct haul_transfer_options over_tcp(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "tcp";
  return options;
}

/* The i-th small part. */
static struct haul_transfer *write_part(uint64_t i, const struct haul_transfer_options *options) {
  struct haul_piece piece = {i * SMALL, i * SMALL, SMALL};
  struct haul_transfer *transfer;
  assert_works(haul_write(t.remote, t.from, &piece, 1, options, &transfer));
  return transfer;
}

static void assert_arrived(uint64_t parts) {
  assert_memory_equal(haul_region_address(t.to), haul_region_address(t.from), parts * SMALL);
}

static unsigned sends; /* of this thread */
static pthread_t me;
static int64_t (*the_clock)(void);

static ssize_t count_sends(int fd, const struct msghdr *message, int flags) {
  if (pthread_equal(me, pthread_self()))
    sends++;
  return sendmsg(fd, message, flags);
}

#define PARTS  256u
#define PART   256u
#define FOURTH 131072u /* of the bytes that may wait */

/* How many calls of the system's it takes until all are handed over. */
static unsigned sends_of(unsigned flags) {
  struct haul_transfer *transfers[PARTS];
  struct haul_transfer_options options = over_tcp();
  memset(haul_region_address(t.to), 0, LENGTH);
  options.flags = flags;
  sends = 0;
  for (unsigned i = 0; i < PARTS; i++) {
    struct haul_piece piece = {i * SMALL, i * SMALL, PART};
    assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfers[i]));
  }
  unsigned took = sends;
  for (unsigned i = 0; i < PARTS; i++) {
    assert_works(haul_transfer_wait(transfers[i], soon()));
    haul_transfer_release(transfers[i]);
  }
  for (unsigned i = 0; i < PARTS; i++)
    assert_memory_equal((char *)haul_region_address(t.to) + i * SMALL,
                        (char *)haul_region_address(t.from) + i * SMALL, PART);
  return took;
}

static ssize_t (*real_send)(int, const struct msghdr *, int);

static void begin_count(void) {
  me = pthread_self();
  real_send = sys_ops.sendmsg;
  sys_ops.sendmsg = count_sends;
  sends = 0;
}

/* Only this thread drives the node, so no batch becomes too old. One side may have 128 requests
 * outstanding; further ones wait for responses. */
static void batched_requests_are_sent_together(void **state) {
  (void)state;
  begin_count();
  unsigned together = sends_of(HAUL_MORE);
  sys_ops.sendmsg = real_send;
  assert_int_equal(together, 128 / 32);
}

/* Eight are sent at once, as an idle peer's are; then 32 share a call, until 128 are outstanding.
 */
static void small_writes_share_calls_behind_eight_without_a_response(void **state) {
  (void)state;
  begin_count();
  unsigned calls = sends_of(0);
  sys_ops.sendmsg = real_send;
  assert_int_equal(calls, 8 + (128 - 8) / 32 + 1);
}

/* Transfers behind eight without a response, each with a send of its own, with the default options
 * but this priority. */
static void assert_sent_at_once(uint64_t bytes, int priority) {
  struct haul_transfer *transfers[8 + 4];
  struct haul_transfer_options options = over_tcp();
  begin_count();
  for (unsigned i = 0; i < 8; i++)
    transfers[i] = write_part(i, &options);
  options.priority = priority;
  for (unsigned i = 8; i < COUNT(transfers); i++) {
    struct haul_piece piece = {i * bytes, i * bytes, bytes};
    unsigned sent = sends;
    assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfers[i]));
    assert_true(sends > sent);
  }
  for (unsigned i = 0; i < COUNT(transfers); i++) {
    assert_works(haul_transfer_wait(transfers[i], soon()));
    haul_transfer_release(transfers[i]);
  }
  sys_ops.sendmsg = real_send; /* no thread of the nodes is sending */
}

static void urgent_writes_are_sent_at_once(void **state) {
  (void)state;
  assert_sent_at_once(PART, HAUL_PRIORITY_HIGH);
}

static void larger_writes_are_sent_at_once(void **state) {
  (void)state;
  assert_sent_at_once(131073, HAUL_PRIORITY_NORMAL);
}

/* Works of 128 KiB: the fourth makes 512 KiB, long before there are 32. */
static void batched_writes_are_sent_at_512_kib(void **state) {
  struct haul_transfer *transfers[12];
  struct haul_transfer_options options = over_tcp();
  (void)state;
  begin_count();
  options.flags = HAUL_MORE;
  for (unsigned i = 0; i < COUNT(transfers); i++) {
    struct haul_piece piece = {i * FOURTH, i * FOURTH, FOURTH};
    unsigned sent = sends;
    assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfers[i]));
    if (i % 4 == 3)
      assert_true(sends > sent);
    else
      assert_int_equal(sends, sent);
  }
  for (unsigned i = 0; i < COUNT(transfers); i++) {
    assert_works(haul_transfer_wait(transfers[i], soon()));
    haul_transfer_release(transfers[i]);
  }
  sys_ops.sendmsg = real_send;
  assert_arrived(COUNT(transfers) * FOURTH / SMALL);
}

/* Nobody waits for it, nothing follows, and no call is made that would move the node. */
static void a_batch_is_sent_when_it_is_old(void **state) {
  struct haul_transfer_options options = over_tcp();
  (void)state;
  options.flags = HAUL_MORE;
  for (unsigned i = 0; i < 20; i++) {
    struct haul_transfer *transfer = write_part(i, &options);
    haul_deadline until = soon();
    while (haul_transfer_test(transfer) == 1 && haul_deadline_in(0) < until)
      nanosleep(&(struct timespec){0, 100000}, NULL);
    assert_works(haul_transfer_test(transfer));
    haul_transfer_release(transfer);
  }
  assert_arrived(20);
}

/* Without a thread it lies until the node is moved, and goes with the first call that does. */
static void a_batch_is_sent_when_the_caller_drives_the_node(void **state) {
  struct haul_transfer_options options = over_tcp();
  (void)state;
  me = pthread_self();
  ssize_t (*before)(int, const struct msghdr *, int) = sys_ops.sendmsg;
  sys_ops.sendmsg = count_sends;
  options.flags = HAUL_MORE;
  for (unsigned i = 0; i < 20; i++) {
    sends = 0;
    struct haul_transfer *transfer = write_part(i, &options);
    nanosleep(&(struct timespec){0, MS}, NULL); /* older than it may get */
    assert_int_equal(sends, 0);
    assert_true(haul_node_progress(t.node, HAUL_NO_WAIT) >= 0);
    assert_int_equal(sends, 1);
    haul_deadline until = soon();
    while (haul_transfer_test(transfer) == 1 && haul_deadline_in(0) < until)
      assert_true(haul_node_progress(t.node, until) >= 0);
    assert_works(haul_transfer_test(transfer));
    haul_transfer_release(transfer);
  }
  sys_ops.sendmsg = before;
  assert_arrived(20);
}

static void a_request_without_a_batch_is_sent_at_once(void **state) {
  struct haul_transfer_options options = over_tcp();
  (void)state;
  options.flags = HAUL_MORE;
  for (unsigned i = 0; i < 50; i++) {
    struct haul_transfer *transfer = write_part(i, &options);
    assert_works(haul_transfer_wait(transfer, haul_deadline_in(5 * S)));
    haul_transfer_release(transfer);
  }
  assert_arrived(50);
}

static void a_batched_request_can_be_canceled(void **state) {
  struct haul_transfer_options options = over_tcp();
  (void)state;
  options.flags = HAUL_MORE;
  for (unsigned i = 0; i < 50; i++) {
    struct haul_transfer *transfer = write_part(i, &options);
    haul_transfer_cancel(transfer);
    int code = haul_transfer_wait(transfer, haul_deadline_in(5 * S));
    assert_true(code == 0 || code == HAUL_ECANCELED);
    haul_transfer_release(transfer);
  }
}

#define THREADS 4u
#define EACH    900u

static void *write_many(void *argument) {
  uint64_t by = (uint64_t)(uintptr_t)argument;
  struct haul_transfer **transfers = calloc(EACH, sizeof *transfers);
  struct haul_transfer_options options = over_tcp();
  for (unsigned i = 0; i < EACH; i++) {
    options.flags = i % 3 ? HAUL_MORE : 0;
    options.priority = (int)(i % 5 % 3) - 1;
    transfers[i] = write_part(by * EACH + i, &options);
  }
  for (unsigned i = 0; i < EACH; i++) {
    assert_works(haul_transfer_wait(transfers[i], soon()));
    haul_transfer_release(transfers[i]);
  }
  free(transfers);
  return NULL;
}

static void from_several_threads_everything_arrives(void **state) {
  pthread_t threads[THREADS];
  (void)state;
  for (unsigned i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)(uintptr_t)i), 0);
  for (unsigned i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_arrived(THREADS * EACH);
}

#define MANY 10000u

static void ten_thousand_take_less_than_512_bytes_each(void **state) {
  struct haul_transfer **transfers = calloc(MANY, sizeof *transfers);
  struct haul_transfer_options options = over_tcp();
  (void)state;
  for (unsigned i = 0; i < MANY; i++)
    transfers[i] = write_part(i % (LENGTH / SMALL), &options);
  assert_int_equal(counter("node.transfers"), MANY);
  print_message("%llu bytes a transfer\n",
                (unsigned long long)counter("node.transfers_bytes") / MANY);
  assert_true(counter("node.transfers_bytes") < (uint64_t)512 * MANY);
  for (unsigned i = 0; i < MANY; i++) {
    assert_works(haul_transfer_wait(transfers[i], soon()));
    haul_transfer_release(transfers[i]);
  }
  assert_none_is_left();
  assert_arrived(LENGTH / SMALL);
  free(transfers);
}

static void a_slow_peer_is_not_given_more_and_more(void **state) {
  struct haul_transfer_options options = over_tcp();
  struct haul_transfer *transfers[10], *more;
  struct haul_piece piece = {0, 0, LENGTH};
  unsigned refused = 0;
  (void)state;
  for (unsigned tries = 0; tries < 20 && !refused; tries++) {
    for (unsigned i = 0; i < COUNT(transfers); i++)
      assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfers[i]));
    int code = haul_write(t.remote, t.from, &piece, 1, &options, &more);
    if (code) {
      assert_fails(HAUL_ELIMIT, code);
      refused++;
    } else {
      assert_works(haul_transfer_wait(more, soon()));
      haul_transfer_release(more);
    }
    for (unsigned i = 0; i < COUNT(transfers); i++) {
      assert_works(haul_transfer_wait(transfers[i], soon()));
      haul_transfer_release(transfers[i]);
    }
  }
  assert_int_equal(refused, 1);
  assert_works(haul_write(t.remote, t.from, &piece, 1, &options, NULL)); /* and now it is */
}

struct heard {
  _Atomic unsigned calls;
  _Atomic int status, inner;
  bool again, waits, closes;
};

static void on_done(void *user, struct haul_transfer *transfer) {
  struct heard *heard = user;
  atomic_store(&heard->status, haul_transfer_test(transfer));
  if (heard->waits) {
    struct haul_transfer_options options = over_tcp();
    struct haul_transfer *other = write_part(1, &options);
    int code = haul_transfer_wait(other, soon());
    haul_transfer_release(other);
    struct haul_remote *again;
    if (code == 0 && (code = haul_peer_lookup(t.peer, "to", soon(), &again)) == 0)
      haul_remote_release(again);
    atomic_store(&heard->inner, code);
  }
  if (heard->closes) {
    haul_node_close(t.node);
    atomic_store(&heard->inner, haul_error_last()->code);
  }
  haul_transfer_release(transfer);
  atomic_fetch_add(&heard->calls, 1); /* last: the test goes on */
}

static void await_calls(struct heard *heard, unsigned wanted) {
  haul_deadline until = soon();
  while (atomic_load(&heard->calls) < wanted && haul_deadline_in(0) < until)
    haul_node_progress(t.node, haul_deadline_in(S / 1000));
  assert_int_equal(atomic_load(&heard->calls), wanted);
}

static void ends_of_peers_are_events(void **state) {
  struct heard heard = {.status = 77};
  struct haul_transfer_options options = over_tcp();
  (void)state;
  options.done = on_done;
  options.user = &heard;
  for (unsigned i = 0; i < 100; i++)
    write_part(i, &options);
  await_calls(&heard, 100);
  assert_int_equal(heard.status, 0);
  assert_arrived(100);
  assert_none_is_left();
}

/* Over map the call itself copies; `done` is called afterwards. */
static void done_is_called_for_immediate_transfers(void **state) {
  struct heard heard = {.status = 77};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  (void)state;
  options.only = "map";
  options.done = on_done;
  options.user = &heard;
  for (unsigned i = 0; i < 100; i++)
    write_part(i, &options);
  await_calls(&heard, 100);
  assert_int_equal(heard.status, 0);
}

static void count_call(void *user, struct haul_transfer *transfer) {
  (void)transfer;
  ++*(unsigned *)user;
}

/* In a node that its callers drive a wait makes the calls that are due, also of what ended within
 * its call; a turn counts them as events. */
static void a_wait_returns_the_status_of_an_ended_transfer(void **state) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  unsigned calls = 0;
  (void)state;
  options.only = "map";
  options.done = count_call;
  options.user = &calls;
  for (unsigned i = 0; i < 100; i++) {
    struct haul_transfer *transfer = write_part(i, &options);
    assert_works(haul_transfer_wait(transfer, soon()));
    assert_int_equal(calls, i + 1);
    haul_transfer_release(transfer);
  }
  struct haul_transfer *transfer = write_part(1, &options);
  assert_true(haul_node_progress(t.node, HAUL_NO_WAIT) >= 1);
  assert_int_equal(calls, 101);
  haul_transfer_release(transfer);
}

static void failures_are_reported(void **state) {
  struct heard heard = {.status = 77};
  struct haul_transfer_options options = over_tcp();
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  (void)state;
  options.done = on_done;
  options.user = &heard;
  assert_works(haul_region_unpublish(t.to, "to"));
  assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfer));
  await_calls(&heard, 1);
  assert_int_equal(heard.status, HAUL_ESTALE);
}

static void done_may_call_functions_that_wait(void **state) {
  struct heard heard = {.waits = true, .inner = 77};
  struct haul_transfer_options options = over_tcp();
  (void)state;
  options.done = on_done;
  options.user = &heard;
  for (unsigned i = 0; i < 20; i++)
    write_part(i, &options);
  await_calls(&heard, 20);
  assert_int_equal(heard.inner, 0);
}

static _Atomic bool slow;

static int64_t slow_clock_of_this_thread(void) {
  if (atomic_load(&slow) && pthread_equal(me, pthread_self()))
    nanosleep(&(struct timespec){0, MS}, NULL);
  return the_clock();
}

/* The clock is there before any thread asks it. */
static int set_up_with_slow_clock(void **state) {
  me = pthread_self();
  the_clock = sys_ops.monotonic;
  sys_ops.monotonic = slow_clock_of_this_thread;
  return set_up_driven(state);
}

static int tear_down_with_slow_clock(void **state) {
  int code = tear_down(state);
  sys_ops.monotonic = the_clock;
  return code;
}

static _Atomic bool moving;

static void *move(void *node) {
  while (atomic_load(&moving))
    haul_node_progress(node, haul_deadline_in(MS));
  return NULL;
}

/* Another thread may have told of the end, and the handle may be gone, before the call that began
 * the transfer has returned. */
static void done_may_come_before_the_call_returns(void **state) {
  struct heard heard = {.status = 77};
  struct haul_transfer_options options = over_tcp();
  pthread_t mover;
  (void)state;
  options.done = on_done;
  options.user = &heard;
  atomic_store(&moving, true);
  assert_int_equal(pthread_create(&mover, NULL, move, t.node), 0);
  atomic_store(&slow, true);
  for (unsigned i = 0; i < 20; i++) {
    write_part(i, &options);
    await_calls(&heard, i + 1); /* so that each is alone */
  }
  atomic_store(&slow, false);
  atomic_store(&moving, false);
  pthread_join(mover, NULL);
  assert_int_equal(heard.status, 0);
  assert_arrived(20);
}

static void done_cannot_close_its_node(void **state) {
  struct heard heard = {.closes = true};
  struct haul_transfer_options options = over_tcp();
  (void)state;
  options.done = on_done;
  options.user = &heard;
  write_part(0, &options);
  await_calls(&heard, 1);
  assert_int_equal(heard.inner, HAUL_EBUSY);
}

static void done_without_a_handle_is_refused(void **state) {
  struct haul_transfer_options options = over_tcp();
  struct haul_piece piece = {0, 0, 8};
  (void)state;
  options.done = on_done;
  assert_fails(HAUL_EINVAL, haul_write(t.remote, t.from, &piece, 1, &options, NULL));
}

static void a_close_flushes_the_last_log_lines(void **state) {
  struct heard heard = {.status = 77};
  struct haul_transfer_options options = over_tcp();
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  (void)state;
  options.done = on_done;
  options.user = &heard;
  for (unsigned i = 0; i < 50; i++)
    assert_works(haul_write(t.remote, t.from, &piece, 1, &options, &transfer));
  haul_node_close(t.node);
  assert_int_equal(atomic_load(&heard.calls), 50);
  t.node = NULL;
}

int main(void) {
#define SUBMIT(test)        cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define SUBMIT_DRIVEN(test) cmocka_unit_test_setup_teardown(test, set_up_driven, tear_down)
  const struct CMUnitTest tests[] = {
      SUBMIT_DRIVEN(batched_requests_are_sent_together),
      SUBMIT_DRIVEN(small_writes_share_calls_behind_eight_without_a_response),
      SUBMIT_DRIVEN(urgent_writes_are_sent_at_once),
      SUBMIT_DRIVEN(larger_writes_are_sent_at_once),
      SUBMIT_DRIVEN(batched_writes_are_sent_at_512_kib),
      SUBMIT(a_batch_is_sent_when_it_is_old),
      SUBMIT_DRIVEN(a_batch_is_sent_when_the_caller_drives_the_node),
      SUBMIT(a_request_without_a_batch_is_sent_at_once),
      SUBMIT_DRIVEN(a_request_without_a_batch_is_sent_at_once),
      SUBMIT(a_batched_request_can_be_canceled),
      SUBMIT(from_several_threads_everything_arrives),
      SUBMIT_DRIVEN(from_several_threads_everything_arrives),
      SUBMIT(ten_thousand_take_less_than_512_bytes_each),
      SUBMIT_DRIVEN(ten_thousand_take_less_than_512_bytes_each),
      cmocka_unit_test_setup_teardown(a_slow_peer_is_not_given_more_and_more, set_up_with_few,
                                      tear_down),
      SUBMIT(ends_of_peers_are_events),
      SUBMIT_DRIVEN(ends_of_peers_are_events),
      SUBMIT(done_is_called_for_immediate_transfers),
      SUBMIT_DRIVEN(done_is_called_for_immediate_transfers),
      SUBMIT_DRIVEN(a_wait_returns_the_status_of_an_ended_transfer),
      SUBMIT(failures_are_reported),
      SUBMIT_DRIVEN(failures_are_reported),
      SUBMIT(done_may_call_functions_that_wait),
      SUBMIT_DRIVEN(done_may_call_functions_that_wait),
      cmocka_unit_test_setup_teardown(done_may_come_before_the_call_returns, set_up_with_slow_clock,
                                      tear_down_with_slow_clock),
      SUBMIT(done_cannot_close_its_node),
      SUBMIT_DRIVEN(done_cannot_close_its_node),
      SUBMIT(done_without_a_handle_is_refused),
      SUBMIT(a_close_flushes_the_last_log_lines),
      SUBMIT_DRIVEN(a_close_flushes_the_last_log_lines),
  };
  return cmocka_run_group_tests_name("submit", tests, NULL, NULL);
}
