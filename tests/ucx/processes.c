/* SPDX-License-Identifier: MIT
 * gaudi_ipc: to and from device memory of another process with another device, also in other
 * namespaces if this user can create them, and after the process dies. */
#include "rig.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH     (5 * MIB + 3)
#define BLOCKS     3u
#define INVALIDATE 200u

/* The owner's interface and blocks. */
struct offer {
  uint8_t iface_address[256];
  uint8_t keys[BLOCKS][256];
  uint64_t addresses[BLOCKS];
};

static struct {
  pid_t owner;
  int request; /* a byte: verify that block; INVALIDATE + a block; end of file: exit */
  int response;
  struct offer offer;
} peer;

static void read_all(int fd, void *bytes, size_t length) {
  for (size_t got = 0; got < length;) {
    ssize_t more = read(fd, (char *)bytes + got, length - got);
    if (more <= 0)
      _exit(3);
    got += (size_t)more;
  }
}

static void invalidate(const struct rig *rig, uct_mem_h *memh) {
  struct waiter waiter;
  const uct_md_mem_dereg_params_t end = {.field_mask = UCT_MD_MEM_DEREG_FIELD_MEMH |
                                                       UCT_MD_MEM_DEREG_FIELD_FLAGS |
                                                       UCT_MD_MEM_DEREG_FIELD_COMPLETION,
                                         .flags = UCT_MD_MEM_DEREG_FLAG_INVALIDATE,
                                         .memh = *memh,
                                         .comp = &waiter.completion};
  waiter_init(&waiter);
  assert_ok(uct_md_mem_dereg_v2(rig->md, &end));
  assert_int_equal(waiter.calls, 1);
  assert_ok(waiter.status);
  *memh = NULL;
}

/* Fills each block with a pattern, and verifies and invalidates blocks on request. */
static void owner_main(int request, int response) {
  static uint8_t bytes[LENGTH];
  struct rig rig, copy;
  struct target blocks[BLOCKS];
  uct_mem_h offered[BLOCKS];
  struct offer offer = {0};
  uint8_t which;
  rig_open(&rig, "gaudi_ipc", "gaudi");
  rig_open(&copy, "gaudi_cpy", "gaudi");
  assert_ok(rig_connect(&copy, NULL));
  assert_int_equal(uct_iface_get_address(rig.iface, (uct_iface_addr_t *)offer.iface_address), 0);
  for (unsigned i = 0; i < BLOCKS; i++) {
    rig_alloc(&copy, LENGTH, &blocks[i]);
    assert_ok(
        uct_md_mem_reg(rig.md, blocks[i].address, LENGTH, UCT_MD_MEM_ACCESS_ALL, &offered[i]));
    assert_ok(uct_md_mkey_pack(rig.md, offered[i], offer.keys[i]));
    offer.addresses[i] = (uintptr_t)blocks[i].address;
    pattern_fill(bytes, LENGTH, i);
    assert_ok(rig_put(&copy, bytes, LENGTH, offer.addresses[i], UCT_INVALID_RKEY));
  }
  if (write(response, &offer, sizeof offer) != sizeof offer)
    _exit(3);
  while (read(request, &which, 1) == 1) {
    uint8_t good = 1;
    if (which >= INVALIDATE) {
      invalidate(&rig, &offered[which - INVALIDATE]);
    } else {
      assert_ok(rig_get(&copy, bytes, LENGTH, offer.addresses[which % BLOCKS], UCT_INVALID_RKEY));
      pattern_check(bytes, LENGTH, 100 + which);
    }
    if (write(response, &good, 1) != 1)
      _exit(3);
  }
  for (unsigned i = 0; i < BLOCKS; i++) {
    if (offered[i])
      assert_ok(uct_md_mem_dereg(rig.md, offered[i]));
    rig_free(&copy, &blocks[i]);
  }
  rig_close(&copy);
  rig_close(&rig);
}

/* By exec, as UCX must not run in a forked child. */
static void start_owner(bool namespaces) {
  int request[2], response[2];
  assert_int_equal(pipe(request), 0);
  assert_int_equal(pipe(response), 0);
  char requests[16], responses[16];
  static char self[4096];
  assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  snprintf(requests, sizeof requests, "%d", request[0]);
  snprintf(responses, sizeof responses, "%d", response[1]);
  peer.owner = fork();
  if (peer.owner == 0) {
    close(request[1]);
    close(response[0]);
    if (namespaces)
      execlp("unshare", "unshare", "--fork", "--pid", "--kill-child", self, "own", requests,
             responses, NULL);
    execl(self, self, "own", requests, responses, NULL);
    _exit(4);
  }
  close(request[0]);
  close(response[1]);
  peer.request = request[1];
  peer.response = response[0];
  read_all(peer.response, &peer.offer, sizeof peer.offer);
}

static void end_owner(void) {
  int status;
  close(peer.request);
  close(peer.response);
  assert_int_equal(waitpid(peer.owner, &status, 0), peer.owner);
  assert_int_equal(status, 0);
}

static struct rig rig;
static uint8_t *bytes;
static uct_rkey_bundle_t keys[BLOCKS];

static void connect_to_owner(void) {
  bytes = malloc(LENGTH);
  rig_open(&rig, "gaudi_ipc", "gaudi");
  assert_ok(rig_connect(&rig, peer.offer.iface_address));
  for (unsigned i = 0; i < BLOCKS; i++)
    assert_ok(uct_rkey_unpack(rig.component, peer.offer.keys[i], &keys[i]));
}

static void leave_owner(void) {
  for (unsigned i = 0; i < BLOCKS; i++)
    uct_rkey_release(rig.component, &keys[i]);
  rig_close(&rig);
  free(bytes);
}

static int set_up(void **state) {
  (void)state;
  start_owner(false);
  connect_to_owner();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  rig_quiet(false);
  leave_owner();
  end_owner();
  return 0;
}

static void ask_owner(uint8_t what) {
  uint8_t good = 0;
  assert_int_equal(write(peer.request, &what, 1), 1);
  read_all(peer.response, &good, 1);
  assert_int_equal(good, 1);
}

static void move_both_ways(void) {
  for (unsigned i = 0; i < BLOCKS; i++) {
    memset(bytes, 0, LENGTH);
    assert_ok(rig_get(&rig, bytes, LENGTH, peer.offer.addresses[i], keys[i].rkey));
    pattern_check(bytes, LENGTH, i);
    pattern_fill(bytes, LENGTH, 100 + i);
    assert_ok(rig_put(&rig, bytes, LENGTH, peer.offer.addresses[i], keys[i].rkey));
    ask_owner((uint8_t)i);
  }
}

static void put_and_get(void **state) {
  (void)state;
  move_both_ways();
}

/* Between the devices of both processes. */
static void between_two_devices(void **state) {
  struct rig copy;
  struct target own_block;
  (void)state;
  rig_open(&copy, "gaudi_cpy", "gaudi");
  assert_ok(rig_connect(&copy, NULL));
  rig_alloc(&copy, LENGTH, &own_block);
  pattern_fill(bytes, LENGTH, 101);
  assert_ok(rig_put(&copy, bytes, LENGTH, (uintptr_t)own_block.address, own_block.key.rkey));
  assert_ok(rig_put(&rig, own_block.address, LENGTH, peer.offer.addresses[1], keys[1].rkey));
  ask_owner(1);
  rig_free(&copy, &own_block);
  rig_close(&copy);
}

static void several_at_a_time(void **state) {
  struct waiter waiter[40];
  (void)state;
  for (unsigned i = 0; i < COUNT(waiter); i++) {
    const uct_iov_t iov = {.buffer = bytes + 100000 * i, .length = 100000, .count = 1};
    waiter_init(&waiter[i]);
    ucs_status_t status = uct_ep_get_zcopy(rig.ep, &iov, 1, peer.offer.addresses[2] + 100000 * i,
                                           keys[2].rkey, &waiter[i].completion);
    assert_true(status == UCS_OK || status == UCS_INPROGRESS);
    waiter[i].calls += status == UCS_OK;
  }
  for (unsigned i = 0; i < COUNT(waiter); i++)
    while (waiter[i].calls == 0)
      uct_worker_progress(rig.worker);
  for (unsigned i = 0; i < COUNT(waiter); i++)
    assert_ok(waiter[i].status);
  uint8_t *expected = malloc(LENGTH);
  pattern_fill(expected, LENGTH, 2);
  assert_memory_equal(bytes, expected, 100000 * COUNT(waiter));
  free(expected);
}

static void ranges_outside_the_key_are_refused(void **state) {
  (void)state;
  rig_quiet(true);
  assert_int_equal(rig_get(&rig, bytes, 1, peer.offer.addresses[0] - 1, keys[0].rkey),
                   UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_get(&rig, bytes, LENGTH, peer.offer.addresses[0] + 8192, keys[0].rkey),
                   UCS_ERR_INVALID_ADDR);
  assert_int_equal(rig_get(&rig, bytes, 1, peer.offer.addresses[0], UCT_INVALID_RKEY),
                   UCS_ERR_INVALID_ADDR);
}

/* Used before, or not. */
static void invalidated_memory_is_out_of_reach(void **state) {
  (void)state;
  assert_ok(rig_get(&rig, bytes, LENGTH, peer.offer.addresses[0], keys[0].rkey));
  ask_owner(INVALIDATE);
  ask_owner(INVALIDATE + 1);
  rig_quiet(true);
  for (unsigned i = 0; i < 2; i++) {
    assert_true(
        UCS_STATUS_IS_ERR(rig_get(&rig, bytes, LENGTH, peer.offer.addresses[i], keys[i].rkey)));
    assert_true(
        UCS_STATUS_IS_ERR(rig_put(&rig, bytes, LENGTH, peer.offer.addresses[i], keys[i].rkey)));
  }
  assert_ok(rig_get(&rig, bytes, LENGTH, peer.offer.addresses[2], keys[2].rkey));
}

/* UCP does not ask for it, as the own process is not reachable, but UCX's tests do. */
static void the_own_process_is_copied(void **state) {
  struct rig copy;
  struct target block;
  uint8_t *back = calloc(1, LENGTH), address[256];
  (void)state;
  assert_ok(uct_iface_get_address(rig.iface, (uct_iface_addr_t *)address));
  assert_false(
      uct_iface_is_reachable(rig.iface, (uct_device_addr_t *)address, (uct_iface_addr_t *)address));
  uct_ep_destroy(rig.ep);
  rig.ep = NULL;
  assert_ok(rig_connect(&rig, NULL));
  rig_open(&copy, "gaudi_cpy", "gaudi");
  rig_alloc(&copy, LENGTH, &block);
  pattern_fill(bytes, LENGTH, 7);
  assert_ok(rig_put(&rig, bytes, LENGTH, (uintptr_t)block.address, block.key.rkey));
  assert_ok(rig_get(&rig, back, LENGTH, (uintptr_t)block.address, block.key.rkey));
  pattern_check(back, LENGTH, 7);
  rig_quiet(true);
  assert_int_equal(rig_get(&rig, back, 1, peer.offer.addresses[0], keys[0].rkey),
                   UCS_ERR_INVALID_ADDR); /* of the other process */
  rig_free(&copy, &block);
  rig_close(&copy);
  free(back);
}

static void endpoints_know_their_interface(void **state) {
  (void)state;
#if !UCX_HAS_GAUDI
  printf("skipped endpoints_know_their_interface: UCX 1.13 does not ask\n");
  skip();
#endif
  uint8_t own[256];
  assert_ok(uct_iface_get_address(rig.iface, (uct_iface_addr_t *)own));
  assert_true(rig_is_connected(&rig, peer.offer.iface_address));
  assert_false(rig_is_connected(&rig, own));
}

static void a_process_dies(void **state) {
  int status;
  (void)state;
  start_owner(false);
  connect_to_owner();
  assert_ok(rig_get(&rig, bytes, LENGTH, peer.offer.addresses[0], keys[0].rkey));
  kill(peer.owner, SIGKILL);
  waitpid(peer.owner, &status, 0);
  rig_quiet(true);
  assert_true(
      UCS_STATUS_IS_ERR(rig_get(&rig, bytes, LENGTH, peer.offer.addresses[0], keys[0].rkey)));
  assert_true(
      UCS_STATUS_IS_ERR(rig_put(&rig, bytes, LENGTH, peer.offer.addresses[1], keys[1].rkey)));
  uct_ep_destroy(rig.ep);
  rig.ep = NULL;
  assert_true(UCS_STATUS_IS_ERR(rig_connect(&rig, peer.offer.iface_address)));
  rig.ep = NULL;
  leave_owner();
  close(peer.request);
  close(peer.response);
}

static void another_pid_namespace(void **state) {
  (void)state;
  if (system("unshare --fork --pid true 2>/dev/null") != 0) {
    print_message("skipped another PID namespace: this user cannot create one\n");
    skip();
  }
  start_owner(true);
  connect_to_owner();
  move_both_ways();
  leave_owner();
  end_owner();
}

int main(int count, char **arguments) {
  if (count == 4 && strcmp(arguments[1], "own") == 0) {
    owner_main(atoi(arguments[2]), atoi(arguments[3]));
    return 0;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(put_and_get, set_up, tear_down),
      cmocka_unit_test_setup_teardown(between_two_devices, set_up, tear_down),
      cmocka_unit_test_setup_teardown(several_at_a_time, set_up, tear_down),
      cmocka_unit_test_setup_teardown(ranges_outside_the_key_are_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(invalidated_memory_is_out_of_reach, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_own_process_is_copied, set_up, tear_down),
      cmocka_unit_test_setup_teardown(endpoints_know_their_interface, set_up, tear_down),
      cmocka_unit_test(another_pid_namespace),
      cmocka_unit_test(a_process_dies),
  };
  return cmocka_run_group_tests_name("ucx/processes", tests, NULL, NULL);
}
