/* SPDX-License-Identifier: MIT
 * Closing other processes' descriptors does not block, whatever their close() does. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/deferred_close.h"
#include "core/sock.h"
#include "support/lingering.h"
#include "support/owner.h"

static int64_t began;

static void start_clock(void) {
  began = haul_deadline_in(0);
}

static void assert_at_once(void) {
  assert_in_range(haul_deadline_in(0) - began, 0, LINGERS * S / 4);
}

static void assert_closed_soon(int fd) {
  haul_deadline until = haul_deadline_in(2 * S);
  while (fcntl(fd, F_GETFD) >= 0 && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void pair(int ends[2]) {
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  sock_tune(ends[1]);
}

static void a_memfd_is_closed_at_once(void **state) {
  (void)state;
  int fd = memfd_create("haul-aside", MFD_CLOEXEC);
  close_foreign(fd);
  assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void a_socket_that_lingers_is_closed_by_another_thread(void **state) {
  (void)state;
  for (unsigned i = 0; i < 20; i++) {
    int fd = lingering_socket();
    start_clock();
    close_foreign(fd);
    assert_at_once();
    assert_closed_soon(fd);
  }
  assert_false(close_queue_is_full());
}

/* Queued faster than they are closed; all are closed in the end. */
static void all_queued_descriptors_are_closed(void **state) {
  (void)state;
  static int copies[900];
  int fd = lingering_socket();
  for (unsigned i = 0; i < 900; i++)
    copies[i] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  for (unsigned i = 0; i < 900; i++)
    close_deferred(copies[i]);
  for (unsigned i = 0; i < 900; i++)
    assert_closed_soon(copies[i]);
  close_deferred(fd);
  assert_closed_soon(fd);
}

static void unexpected_descriptors_fail_a_read_at_once(void **state) {
  (void)state;
  for (size_t count = 1; count <= 253; count += 84) {
    int ends[2];
    char bytes[4];
    struct iovec span = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    pair(ends);
    assert_true(lingering_send(ends[0], "x", 1, count, count == 1 ? MSG_OOB : 0));
    start_clock();
    assert_int_equal(sock_receive(ends[1], &message), -EPROTO);
    sock_close(ends[1]);
    assert_at_once();
    close(ends[0]);
  }
}

static void too_many_descriptors_in_a_record_fail_a_read_at_once(void **state) {
  (void)state;
  for (size_t count = SOCK_DESCRIPTORS_MAX + 1; count <= 253; count += 62) {
    int ends[2], got[SOCK_DESCRIPTORS_MAX];
    char bytes[4];
    size_t got_count;
    pair(ends);
    assert_true(lingering_send(ends[0], "x", 1, count, 0));
    start_clock();
    assert_int_equal(sock_receive_record(ends[1], bytes, sizeof bytes, got, &got_count), -EPROTO);
    sock_close(ends[1]);
    assert_at_once();
    close(ends[0]);
  }
}

static size_t fill_table(int *filled) {
  size_t count = 0;
  for (int fd; (fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) >= 0;)
    filled[count++] = fd;
  return count;
}

/* The kernel would close descriptors without room. */
static void a_record_without_room_for_its_descriptors_fails_at_once(void **state) {
  (void)state;
  int ends[2], got[SOCK_DESCRIPTORS_MAX], filled[256];
  char bytes[4];
  size_t count;
  struct rlimit before, low;
  getrlimit(RLIMIT_NOFILE, &before);
  low = (struct rlimit){256, before.rlim_max};
  pair(ends);
  assert_true(lingering_send(ends[0], "x", 1, 2, 0));
  setrlimit(RLIMIT_NOFILE, &low);
  size_t fillers = fill_table(filled);
  start_clock();
  ssize_t status = sock_receive_record(ends[1], bytes, sizeof bytes, got, &count);
  for (size_t i = 0; i < fillers; i++)
    close(filled[i]);
  setrlimit(RLIMIT_NOFILE, &before);
  assert_int_equal(status, -EMFILE);
  assert_int_equal(count, 0);
  sock_close(ends[1]);
  assert_at_once();
  close(ends[0]);
}

static void a_connection_with_unread_descriptors_is_closed_at_once(void **state) {
  (void)state;
  for (unsigned urgent = 0; urgent < 2; urgent++) {
    int ends[2];
    char byte;
    pair(ends);
    assert_true(lingering_send(ends[0], "x", 1, 1, urgent ? MSG_OOB : 0));
    start_clock();
    sock_close(ends[1]);
    assert_int_equal(recv(ends[0], &byte, 1, 0), 0); /* the peer sees the end */
    assert_at_once();
    assert_closed_soon(ends[1]);
    close(ends[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      /* Runs first: later tests leave descriptors to threads, which would free slots of a full
         table. */
      cmocka_unit_test(a_record_without_room_for_its_descriptors_fails_at_once),
      cmocka_unit_test(a_memfd_is_closed_at_once),
      cmocka_unit_test(a_socket_that_lingers_is_closed_by_another_thread),
      cmocka_unit_test(all_queued_descriptors_are_closed),
      cmocka_unit_test(unexpected_descriptors_fail_a_read_at_once),
      cmocka_unit_test(too_many_descriptors_in_a_record_fail_a_read_at_once),
      cmocka_unit_test(a_connection_with_unread_descriptors_is_closed_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
