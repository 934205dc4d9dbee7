/* SPDX-License-Identifier: MIT
 * Large writes over map populate the pages of a new mapping before they copy: those of the copy and
 * no others, until as many bytes as the region has were populated. */
#include "support/check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/pages.h"
#include "support/owner.h"

#define BOUND  (20 * S)
#define LENGTH ((size_t)4 << 20)
#define LARGE  ((size_t)1 << 20)

static size_t populated; /* bytes */
static int failure;      /* of the call for them */

/* Takes the place of the C library's. */
int madvise(void *start, size_t length, int advice) {
  if (advice == MADV_POPULATE_WRITE) {
    populated += length;
    if (failure) {
      errno = failure;
      return -1;
    }
  }
  return (int)syscall(SYS_madvise, start, length, advice);
}

static struct {
  struct haul_node *owner, *user;
  struct haul_region *target, *source;
  struct haul_peer *peer;
  struct haul_remote *remote;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static int set_up(void **state) {
  char address[160];
  (void)state;
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  t.target = region_make(t.owner, KIND_HOST, LENGTH);
  assert_works(haul_region_publish(t.target, "target", HAUL_READ | HAUL_WRITE));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_peer_connect(t.user, address, soon(), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "target", soon(), &t.remote));
  t.source = region_make(t.user, KIND_HOST, LENGTH);
  region_fill(t.user, t.source, 0, LENGTH, 7);
  populated = 0;
  failure = 0;
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.source);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_region_release(t.target);
  haul_node_close(t.owner);
  return 0;
}

static void write_at(size_t offset, size_t length) {
  const struct haul_piece piece = {offset, offset, length};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "map";
  assert_works(haul_write(t.remote, t.source, &piece, 1, &options, NULL));
  const char *from = haul_region_address(t.source), *to = haul_region_address(t.target);
  assert_memory_equal(from + offset, to + offset, length);
}

static void large_writes_populate_their_pages_once(void **state) {
  (void)state;
  for (size_t at = 0; at < LENGTH; at += LARGE) {
    write_at(at, LARGE);
    assert_int_equal(populated, at + LARGE);
  }
  write_at(0, LENGTH);
  assert_int_equal(populated, LENGTH);
}

static void no_other_pages_are_populated(void **state) {
  (void)state;
  write_at(1, LARGE); /* the kernel rounds the end to a page */
  assert_int_equal(populated, LARGE + 1);
  write_at(0, 4096);
  assert_int_equal(populated, LARGE + 1);
}

static void a_failure_changes_nothing(void **state) {
  (void)state;
  failure = EINVAL; /* as of a kernel before 5.14 */
  write_at(0, LARGE);
  assert_int_equal(populated, LARGE);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(large_writes_populate_their_pages_once),
      TEST(no_other_pages_are_populated),
      TEST(a_failure_changes_nothing),
  };
  return cmocka_run_group_tests_name("populate", tests, NULL, NULL);
}
