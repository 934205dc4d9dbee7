/* SPDX-License-Identifier: MIT
 * Sharing an allocation: any address in it finds its region, another process imports it, peers look
 * it up by name, and its free withdraws the name. Needs the hook. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hooked.h"
#include "support/child.h"

#define BYTES (3 * MIB)

static const haul_deadline second = 1000000000;

static void test_find(void **state) {
  (void)state;
  char *address, *other, *small;
  haul_region *region, *same;
  uint64_t offset;
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaMalloc((void **)&other, BYTES));
  assert_cuda(cudaMalloc((void **)&small, 1000));
  assert_int_equal(hook.find(address, &region, &offset), 0);
  assert_int_equal(offset, 0);
  assert_int_equal(haul_region_length(region), BYTES);
  assert_int_equal(haul_region_place(region).kind, HAUL_CUDA);
  assert_int_equal(hook.find(address + 12345, &same, &offset), 0);
  assert_ptr_equal(same, region);
  assert_int_equal(offset, 12345);
  assert_int_equal(hook.find(address + BYTES - 1, &same, &offset), 0);
  assert_int_equal(offset, BYTES - 1);
  assert_int_equal(hook.find(address + BYTES, &same, &offset), HAUL_EINVAL);
  assert_int_equal(hook.find(other, &same, &offset), 0);
  assert_ptr_not_equal(same, region);
  assert_int_equal(hook.find(small, &same, &offset), HAUL_EINVAL);
  assert_int_equal(hook.find(NULL, &same, &offset), HAUL_EINVAL);
  assert_int_equal(hook.find(address, NULL, &offset), HAUL_EINVAL);
  assert_cuda(cudaFree(address));
  assert_int_equal(hook.find(address, &same, &offset), HAUL_EINVAL);
  assert_cuda(cudaFree(other));
  assert_cuda(cudaFree(small));
}

static void check_host(haul_node *node, haul_region *from, uint64_t seed) {
  haul_region *local;
  size_t length = haul_region_length(from);
  assert_works(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, length, 0, &local));
  assert_works(haul_region_copy(local, 0, from, 0, length, haul_deadline_in(10 * second)));
  pattern_check(haul_region_address(local), length, seed);
  haul_region_release(local);
}

static int import_main(void) {
  struct haul_ticket ticket;
  haul_node *node;
  haul_region *region;
  int descriptor = child_receive(3, &ticket, sizeof ticket);
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_region_import(node, &ticket, descriptor, &region));
  check_host(node, region, 17);
  haul_region_release(region);
  haul_node_close(node);
  close(descriptor);
  return 0;
}

/* The other process runs without the hook. */
static void test_export(void **state) {
  (void)state;
  void *address;
  haul_region *region;
  uint64_t offset;
  struct haul_ticket ticket;
  int descriptor, socket;
  assert_cuda(cudaMalloc(&address, BYTES));
  put_bytes(address, BYTES, 17);
  assert_int_equal(hook.find(address, &region, &offset), 0);
  assert_works(haul_region_export(region, HAUL_READ | HAUL_WRITE, NULL, &ticket, &descriptor));
  pid_t child = child_start("import", &socket);
  child_send(socket, &ticket, sizeof ticket, descriptor);
  close(descriptor);
  assert_int_equal(child_end(child, socket), 0);
  assert_cuda(cudaFree(address));
}

struct job {
  char address[128], name[64];
  int code; /* of the lookup */
};

static int read_main(void) {
  struct job job;
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote;
  haul_region *local;
  child_receive(3, &job, sizeof job);
  haul_deadline until = haul_deadline_in(20 * second);
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_peer_connect(node, job.address, until, &peer));
  assert_int_equal(haul_peer_lookup(peer, job.name, until, &remote), job.code);
  if (job.code == 0) {
    struct haul_piece piece = {0, 0, haul_remote_length(remote)};
    assert_int_equal(piece.length, BYTES);
    assert_works(
        haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, piece.length, 0, &local));
    assert_works(haul_read(local, remote, &piece, 1, NULL, NULL));
    pattern_check(haul_region_address(local), piece.length, 18);
    haul_region_release(local);
    haul_remote_release(remote);
  }
  haul_peer_close(peer);
  haul_node_close(node);
  return 0;
}

static void look_up_in_child(const char *name, int code) {
  struct job job = {.code = code};
  int socket;
  snprintf(job.address, sizeof job.address, "unix://@haul-test-hook-%d", (int)getpid());
  snprintf(job.name, sizeof job.name, "%s", name);
  pid_t child = child_start("read", &socket);
  child_send(socket, &job, sizeof job, -1);
  assert_int_equal(child_end(child, socket), 0);
}

static void test_publish(void **state) {
  (void)state;
  char *address, *other;
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaMalloc((void **)&other, BYTES));
  put_bytes(address, BYTES, 18);
  assert_int_equal(hook.publish(address + 4096, "weights", HAUL_READ | HAUL_WRITE), 0);
  assert_int_equal(hook.publish(other, "weights", HAUL_READ), HAUL_EEXIST);
  assert_int_equal(hook.publish(other, "no blanks", HAUL_READ), HAUL_EINVAL);
  assert_int_equal(hook.publish(&address, "stack", HAUL_READ), HAUL_EINVAL);
  assert_int_equal(hook.publish(NULL, "nothing", HAUL_READ), HAUL_EINVAL);
  look_up_in_child("weights", 0);
  look_up_in_child("stack", HAUL_ENAME);
  assert_cuda(cudaFree(address));
  look_up_in_child("weights", HAUL_ENAME);
  assert_int_equal(hook.publish(other, "weights", HAUL_READ), 0);
  assert_cuda(cudaFree(other));
}

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_find),
      cmocka_unit_test(test_export),
      cmocka_unit_test(test_publish),
  };
  if (count > 1)
    return strcmp(arguments[1], "import") == 0 ? import_main() : read_main();
  find_hook(NULL);
  unsetenv("LD_PRELOAD"); /* for the other processes */
  setenv("HAUL_CUDAHOOK_LISTEN", "unix://@haul-test-hook-%p", 1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
