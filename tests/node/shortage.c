/* SPDX-License-Identifier: MIT
 * The kernel lets this user have no more descriptors on their way: no peer is blamed for it. */
#include "support/check.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "core/sys.h"
#include "support/names.h"
#include "support/owner.h"

static atomic_bool refuses;
static ssize_t (*sendmsg_before)(int, const struct msghdr *, int);

static ssize_t refusing_sendmsg(int socket, const struct msghdr *message, int flags) {
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

int main(void) {
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(one_request_is_refused_and_the_next_is_not),
      TEST(a_greeting_that_cannot_be_sent_closes_this_path_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
