/* SPDX-License-Identifier: MIT
 * A buffer of a dma-heap, mapped and wrapped. The CPU can access it, but it cannot be pinned for
 * another process or a NIC. Paths through the CPU work, and the others give the reason.
 *
 * With HAUL_TEST_PEER, the address of a node on another host that publishes "target" and that the
 * first RDMA device reaches, NICs are looked at too. */
#include "support/check.h"

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/owner.h"

#define BOUND  (20 * S)
#define LENGTH ((size_t)3 << 20)
#define FAR    8192 /* bytes between hosts: few enough for a NIC's latency to count */
#define HEAP   "/dev/dma_heap/system"

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *buffer, *memory; /* of the user: the heap's, and haul's own */
  struct haul_region *target, *board;  /* of the owner: haul's own, and the heap's */
  void *here, *there;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static void *heap_buffer(void) {
  struct dma_heap_allocation_data request = {.len = LENGTH, .fd_flags = O_RDWR | O_CLOEXEC};
  int heap = open(HEAP, O_RDWR | O_CLOEXEC);
  assert_true(heap >= 0);
  assert_int_equal(ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &request), 0);
  void *bytes = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, (int)request.fd, 0);
  assert_ptr_not_equal(bytes, MAP_FAILED);
  close((int)request.fd);
  close(heap);
  return bytes;
}

/* Who took it, and the reason why rdma or map did not, as the report has it. */
static struct { char path[16], reason[192]; } said;

static void take_report(struct haul_transfer *transfer, const char *asked) {
  struct haul_report report = HAUL_REPORT_INIT;
  memset(&said, 0, sizeof said);
  assert_works(haul_transfer_report(transfer, &report));
  snprintf(said.path, sizeof said.path, "%s", report.paths[0].name);
  for (size_t i = 0; i < report.path_count; i++)
    if (strcmp(report.paths[i].name, asked) == 0)
      snprintf(said.reason, sizeof said.reason, "%s", report.paths[i].reason);
}

/* By one path or any; the report is looked at for the path `asked`. */
static int move(struct haul_remote *remote, struct haul_region *region, enum haul_operation way,
                size_t length, const char *only, const char *asked) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, length};
  struct haul_transfer *transfer;
  options.only = only;
  int code = way == HAUL_OP_WRITE ? haul_write(remote, region, &piece, 1, &options, &transfer)
                                  : haul_read(region, remote, &piece, 1, &options, &transfer);
  if (code)
    return code;
  code = haul_transfer_wait(transfer, soon());
  if (code == 0)
    take_report(transfer, asked);
  haul_transfer_release(transfer);
  return code;
}

static struct haul_remote *look_up(const char *name) {
  struct haul_remote *remote;
  assert_works(haul_peer_lookup(t.peer, name, soon(), &remote));
  return remote;
}

/* There and back again, between a region here and one there. */
static void moves(const char *name, struct haul_region *here, struct haul_region *there,
                  const char *only) {
  struct haul_remote *remote = look_up(name);
  char *far = haul_region_address(there), *near = haul_region_address(here);
  pattern_fill(near, LENGTH, 11);
  memset(far, 0, LENGTH);
  assert_works(move(remote, here, HAUL_OP_WRITE, LENGTH, only, "map"));
  pattern_check(far, LENGTH, 11);
  pattern_fill(far, LENGTH, 12);
  assert_works(move(remote, here, HAUL_OP_READ, LENGTH, only, "map"));
  pattern_check(near, LENGTH, 12);
  haul_remote_release(remote);
}

static void it_is_wrapped_as_host_memory(void **state) {
  (void)state;
  assert_int_equal(haul_region_place(t.buffer).kind, HAUL_HOST);
  assert_int_equal(haul_region_length(t.buffer), LENGTH);
}

static void unmapped_memory_is_not(void **state) {
  (void)state;
  struct haul_region *region;
  char *bytes = heap_buffer();
  munmap(bytes + LENGTH - 4096, 4096);
  assert_fails(HAUL_EINVAL, haul_region_wrap(t.user, bytes, LENGTH, &region));
  assert_int_equal(mprotect(bytes, 4096, PROT_NONE), 0);
  assert_fails(HAUL_EINVAL, haul_region_wrap(t.user, bytes, LENGTH - 4096, &region));
  munmap(bytes, LENGTH);
}

static void from_it_and_to_it_over_map(void **state) {
  (void)state;
  moves("target", t.buffer, t.target, "map");
}

static void from_it_and_to_it_over_tcp(void **state) {
  (void)state;
  moves("target", t.buffer, t.target, "tcp");
}

static void published_it_is_reached_over_tcp(void **state) {
  (void)state;
  moves("board", t.memory, t.board, NULL);
  assert_string_equal(said.path, "tcp");
  assert_non_null(strstr(said.reason, "mapping of a device"));
}

static void and_by_no_other_process_directly(void **state) {
  (void)state;
  struct haul_remote *remote = look_up("board");
  assert_fails(HAUL_ENOPATH, move(remote, t.memory, HAUL_OP_WRITE, LENGTH, "map", "map"));
  assert_non_null(strstr(haul_error_last()->hint, "mapping of a device"));
  haul_remote_release(remote);
}

static void both_sides_may_be_such(void **state) {
  (void)state;
  moves("board", t.buffer, t.board, NULL);
}

static void open_owner(void) {
  char address[160];
  assert_works(haul_node_open(NULL, &t.owner));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  t.target = region_make(t.owner, KIND_HOST, LENGTH);
  t.there = heap_buffer();
  assert_works(haul_region_wrap(t.owner, t.there, LENGTH, &t.board));
  assert_works(haul_region_publish(t.target, "target", HAUL_READ | HAUL_WRITE));
  assert_works(haul_region_publish(t.board, "board", HAUL_READ | HAUL_WRITE));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_peer_connect(t.user, address, soon(), &t.peer));
}

static void open_user(void) {
  assert_works(haul_node_open(NULL, &t.user));
  t.memory = region_make(t.user, KIND_HOST, LENGTH);
  t.here = heap_buffer();
  assert_works(haul_region_wrap(t.user, t.here, LENGTH, &t.buffer));
}

static int open_both(void **state) {
  (void)state;
  open_user();
  open_owner();
  return 0;
}

static int close_all(void **state) {
  (void)state;
  haul_peer_close(t.peer);
  haul_region_release(t.buffer);
  haul_region_release(t.memory);
  haul_node_close(t.user);
  haul_region_release(t.target);
  haul_region_release(t.board);
  haul_node_close(t.owner);
  if (t.there)
    munmap(t.there, LENGTH);
  munmap(t.here, LENGTH);
  memset(&t, 0, sizeof t);
  return 0;
}

static void a_nic_moves_memory_that_it_can_register(void **state) {
  (void)state;
  struct haul_remote *remote = look_up("target");
  assert_works(move(remote, t.memory, HAUL_OP_WRITE, FAR, NULL, "rdma"));
  assert_string_equal(said.path, "rdma");
  haul_remote_release(remote);
}

static void and_not_a_heaps_buffer(void **state) {
  (void)state;
  struct haul_remote *remote = look_up("target");
  for (enum haul_operation way = HAUL_OP_WRITE; way <= HAUL_OP_READ; way++) {
    assert_works(move(remote, t.buffer, way, FAR, NULL, "rdma"));
    assert_string_equal(said.path, "tcp");
    assert_non_null(strstr(said.reason, "cannot be pinned"));
    assert_fails(HAUL_ENOPATH, move(remote, t.buffer, way, FAR, "rdma", "rdma"));
    assert_non_null(strstr(haul_error_last()->hint, "cannot be pinned"));
  }
  haul_remote_release(remote);
}

static void and_continues_with_the_other_paths(void **state) {
  pattern_fill(t.here, FAR, 21);
  and_not_a_heaps_buffer(state);
  a_nic_moves_memory_that_it_can_register(state);
}

/* What the peer wrote is what was written, by whatever path. */
static void the_bytes_arrive(void **state) {
  (void)state;
  struct haul_remote *remote = look_up("target");
  pattern_fill(t.here, FAR, 31);
  assert_works(move(remote, t.buffer, HAUL_OP_WRITE, FAR, NULL, "rdma"));
  assert_works(move(remote, t.memory, HAUL_OP_READ, FAR, NULL, "rdma"));
  pattern_check(haul_region_address(t.memory), FAR, 31);
  haul_remote_release(remote);
}

static int connect_far(void **state) {
  (void)state;
  open_user();
  assert_works(haul_peer_connect(t.user, getenv("HAUL_TEST_PEER"), soon(), &t.peer));
  return 0;
}

int main(void) {
  const struct CMUnitTest near[] = {
      cmocka_unit_test(it_is_wrapped_as_host_memory),
      cmocka_unit_test(unmapped_memory_is_not),
      cmocka_unit_test(from_it_and_to_it_over_map),
      cmocka_unit_test(from_it_and_to_it_over_tcp),
      cmocka_unit_test(published_it_is_reached_over_tcp),
      cmocka_unit_test(and_by_no_other_process_directly),
      cmocka_unit_test(both_sides_may_be_such),
  };
  const struct CMUnitTest far[] = {
      cmocka_unit_test(a_nic_moves_memory_that_it_can_register),
      cmocka_unit_test(and_not_a_heaps_buffer),
      cmocka_unit_test(and_continues_with_the_other_paths),
      cmocka_unit_test(the_bytes_arrive),
  };
  if (access(HEAP, R_OK | W_OK) != 0) {
    printf("skipped buffers of a dma-heap: there is no " HEAP " for this user\n");
    return 77;
  }
  if (getenv("HAUL_TEST_PEER"))
    return cmocka_run_group_tests_name("dma-heap, between hosts", far, connect_far, close_all);
  return cmocka_run_group_tests_name("dma-heap", near, open_both, close_all);
}
