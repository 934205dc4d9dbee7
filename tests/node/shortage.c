/* SPDX-License-Identifier: MIT
 * The kernel has no memory to send with, or lets this user have no more descriptors on their way:
 * no peer is blamed for it, and nothing is lost. */
#include "support/check.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "core/sys.h"
#include "support/names.h"
#include "support/owner.h"

static atomic_bool refuses;  /* descriptors */
static atomic_uint short_of; /* so many calls fail for want of memory */
static ssize_t (*sendmsg_before)(int, const struct msghdr *, int);

static ssize_t refusing_sendmsg(int socket, const struct msghdr *message, int flags) {
  unsigned left = atomic_load(&short_of);
  while (left > 0)
    if (atomic_compare_exchange_weak(&short_of, &left, left - 1)) {
      errno = left % 2 ? ENOBUFS : ENOMEM;
      return -1;
    }
  if (!atomic_load(&refuses) || message->msg_controllen == 0)
    return sendmsg_before(socket, message, flags);
  errno = ETOOMANYREFS;
  return -1;
}

/* Before any thread starts, and for good. */
static __attribute__((constructor)) void install(void) {
  sendmsg_before = sys_ops.sendmsg;
  sys_ops.sendmsg = refusing_sendmsg;
}

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *there, *here;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(20 * S);
}

static int set_up(void **state) {
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_node_listen(t.owner, own_socket()));
  t.there = region_make(t.owner, KIND_HOST, 4096);
  t.here = region_make(t.user, KIND_HOST, 4096);
  assert_works(haul_region_publish(t.there, "memory", HAUL_READ | HAUL_WRITE));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_peer_close(t.peer);
  haul_region_release(t.here);
  haul_region_release(t.there);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  return 0;
}

/* Looks the region up and writes; returns what `map` alone says. */
static int use(void) {
  struct haul_remote *remote;
  struct haul_piece piece = {0, 0, 4096};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  assert_works(haul_peer_lookup(t.peer, "memory", soon(), &remote));
  assert_works(haul_write(remote, t.here, &piece, 1, NULL, NULL));
  options.only = "map";
  int code = haul_write(remote, t.here, &piece, 1, &options, NULL);
  haul_remote_release(remote);
  assert_works(haul_peer_status(t.peer));
  return code;
}

static void one_request_is_refused_and_the_next_is_not(void **state) {
  (void)state;
  assert_works(haul_peer_connect(t.user, own_socket(), soon(), &t.peer));
  assert_works(use());
  atomic_store(&refuses, true);
  assert_fails(HAUL_ENOPATH, use());
  assert_non_null(strstr(haul_error_last()->hint, "too many descriptors are in flight"));
  atomic_store(&refuses, false);
  assert_works(use());
}

static void a_greeting_that_cannot_be_sent_closes_this_path_alone(void **state) {
  (void)state;
  atomic_store(&refuses, true);
  assert_works(haul_peer_connect(t.user, own_socket(), soon(), &t.peer));
  assert_fails(HAUL_ENOPATH, use());
  atomic_store(&refuses, false);
}

/* A Unix socket's sendmsg(2) fails with ENOBUFS then, and the connection lives. */
static void messages_wait_for_memory_in_the_system(void **state) {
  struct haul_message message;
  (void)state;
  assert_works(haul_peer_connect(t.user, own_socket(), soon(), &t.peer));
  for (uint64_t tag = 1; tag <= 3; tag++) {
    atomic_store(&short_of, tag == 1 ? 2 : 0);
    assert_works(haul_message_send(t.peer, tag, "text", 4, soon()));
  }
  for (uint64_t tag = 1; tag <= 3; tag++) {
    assert_works(haul_message_receive(t.owner, &message, soon()));
    assert_int_equal(message.tag, tag);
    haul_message_release(&message);
  }
  assert_works(haul_peer_status(t.peer));
}

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(one_request_is_refused_and_the_next_is_not),
      TEST(a_greeting_that_cannot_be_sent_closes_this_path_alone),
      TEST(messages_wait_for_memory_in_the_system),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
