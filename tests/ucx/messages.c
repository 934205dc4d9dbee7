/* SPDX-License-Identifier: MIT
 * UCP over Gaudi memory: messages between host and device and between devices, puts and gets, at
 * sizes that use each protocol of UCP. */
#include "rig.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

static struct {
  ucp_err_handling_mode_t mode; /* of the endpoint */
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_ep_h ep;
} side;

/* With the process at the other ends of the pipes; NULL: with itself. */
static ucp_address_t *swap_addresses(const int *pipes, ucp_address_t *own, size_t length) {
  size_t others = 0;
  if (!pipes)
    return own;
  assert_int_equal(write(pipes[1], &length, sizeof length), sizeof length);
  assert_int_equal(write(pipes[1], own, length), length);
  assert_int_equal(read(pipes[0], &others, sizeof others), sizeof others);
  assert_true(others > 0 && others < 65536);
  ucp_address_t *address = malloc(others);
  assert_int_equal(read(pipes[0], address, others), others);
  return address;
}

/* The other side may close first. */
static void on_failure(void *user, ucp_ep_h ep, ucs_status_t status) {
  (void)user, (void)ep, (void)status;
}

static void open_side(const int *pipes) {
  const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                               .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA};
  const ucp_worker_params_t worker_params = {0};
  ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                             UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                             UCP_EP_PARAM_FIELD_ERR_HANDLER,
                               .err_mode = side.mode,
                               .err_handler = {on_failure, NULL}};
  ucp_address_t *address;
  size_t length;
  assert_ok(ucp_init(&params, NULL, &side.context));
  assert_ok(ucp_worker_create(side.context, &worker_params, &side.worker));
  assert_ok(ucp_worker_get_address(side.worker, &address, &length));
  ucp_address_t *to = swap_addresses(pipes, address, length);
  ep_params.address = to;
  assert_ok(ucp_ep_create(side.worker, &ep_params, &side.ep));
  if (pipes)
    free(to);
  ucp_worker_release_address(side.worker, address);
}

static ucs_status_t result_of(void *request) {
  haul_deadline until = haul_deadline_in(INT64_C(30000000000));
  if (!UCS_PTR_IS_PTR(request))
    return UCS_PTR_STATUS(request);
  while (ucp_request_check_status(request) == UCS_INPROGRESS && haul_deadline_in(0) < until)
    ucp_worker_progress(side.worker);
  ucs_status_t status = ucp_request_check_status(request);
  ucp_request_free(request);
  return status;
}

static void wait_for(void *request) {
  assert_ok(result_of(request));
}

static void close_side(void) {
  const ucp_request_param_t param = {
      .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
      .flags = side.mode == UCP_ERR_HANDLING_MODE_PEER ? UCP_EP_CLOSE_FLAG_FORCE : 0};
  wait_for(ucp_ep_close_nbx(side.ep, &param));
  ucp_worker_destroy(side.worker);
  ucp_cleanup(side.context);
}

/* Closes only after both sides have flushed. */
static void leave_together(const int *pipes) {
  const ucp_request_param_t param = {0};
  struct pollfd other = {.fd = pipes[0], .events = POLLIN};
  haul_deadline until = haul_deadline_in(INT64_C(30000000000));
  char word = 'f';
  wait_for(ucp_ep_flush_nbx(side.ep, &param));
  assert_int_equal(write(pipes[1], &word, 1), 1);
  while (poll(&other, 1, 0) == 0 && haul_deadline_in(0) < until)
    ucp_worker_progress(side.worker);
  assert_int_equal(read(pipes[0], &word, 1), 1);
  close_side();
}

static void *device_memory(size_t length, ucp_mem_h *memh) {
  const ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                     UCP_MEM_MAP_PARAM_FIELD_FLAGS |
                                                     UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                       .length = length,
                                       .flags = UCP_MEM_MAP_ALLOCATE,
                                       .memory_type = UCS_MEMORY_TYPE_GAUDI};
  ucp_mem_attr_t attributes = {.field_mask =
                                   UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_MEM_TYPE};
  assert_ok(ucp_mem_map(side.context, &params, memh));
  assert_ok(ucp_mem_query(*memh, &attributes));
  assert_int_equal(attributes.mem_type, UCS_MEMORY_TYPE_GAUDI);
  return attributes.address;
}

static void send_to(void *to, const void *from, size_t length, ucp_tag_t tag) {
  const ucp_request_param_t param = {0};
  void *receiving = ucp_tag_recv_nbx(side.worker, to, length, tag, UINT64_MAX, &param);
  wait_for(ucp_tag_send_nbx(side.ep, from, length, tag, &param));
  wait_for(receiving);
}

static void put_and_get(uint8_t *bytes, uint8_t *back, void *device, ucp_mem_h memh,
                        size_t length) {
  const ucp_request_param_t param = {0};
  ucp_rkey_h key;
  void *packed;
  size_t size;
  assert_ok(ucp_rkey_pack(side.context, memh, &packed, &size));
  assert_ok(ucp_ep_rkey_unpack(side.ep, packed, &key));
  wait_for(ucp_put_nbx(side.ep, bytes, length, (uintptr_t)device, key, &param));
  wait_for(ucp_ep_flush_nbx(side.ep, &param));
  wait_for(ucp_get_nbx(side.ep, back, length, (uintptr_t)device, key, &param));
  ucp_rkey_destroy(key);
  ucp_rkey_buffer_release(packed);
}

static void at_each_size(void **state) {
  const size_t sizes[] = {1, 8, 64, 65, 256, 257, 1000, 40000, 100000, MIB, 9 * MIB + 5};
  (void)state;
  open_side(NULL);
  for (size_t i = 0; i < COUNT(sizes); i++) {
    size_t length = sizes[i];
    uint8_t *bytes = malloc(length), *back = calloc(1, length);
    ucp_mem_h first, second;
    void *one = device_memory(length, &first), *two = device_memory(length, &second);
    pattern_fill(bytes, length, i);
    send_to(one, bytes, length, 1);
    send_to(two, one, length, 2);
    send_to(back, two, length, 3);
    pattern_check(back, length, i);
    pattern_fill(bytes, length, 100 + i);
    put_and_get(bytes, back, one, first, length);
    pattern_check(back, length, 100 + i);
    assert_ok(ucp_mem_unmap(side.context, first));
    assert_ok(ucp_mem_unmap(side.context, second));
    free(bytes);
    free(back);
  }
  close_side();
}

static const size_t echo_sizes[] = {1, 300, 40000, 16 * MIB};

/* The other process: receives each message in host memory and sends it back to the device. */
static int echo(const int *pipes) {
  const ucp_request_param_t param = {0};
  open_side(pipes);
  for (size_t i = 0; i < COUNT(echo_sizes); i++) {
    uint8_t *bytes = malloc(echo_sizes[i]);
    wait_for(ucp_tag_recv_nbx(side.worker, bytes, echo_sizes[i], 1, UINT64_MAX, &param));
    pattern_check(bytes, echo_sizes[i], i);
    wait_for(ucp_tag_send_nbx(side.ep, bytes, echo_sizes[i], 2, &param));
    free(bytes);
  }
  leave_together(pipes);
  return 0;
}

/* For direct copies by UCT. */
static struct rig copies;

static void put_by_copy(void *device, const void *bytes, size_t length) {
  assert_ok(rig_put(&copies, bytes, length, (uintptr_t)device, UCT_INVALID_RKEY));
}

static void get_by_copy(void *bytes, const void *device, size_t length) {
  assert_ok(rig_get(&copies, bytes, length, (uintptr_t)device, UCT_INVALID_RKEY));
}

static bool is_excluded(void) {
  const char *asked = getenv("UCX_TLS");
  return asked && !strstr(asked, "gaudi_ipc");
}

static void check_transport(void) {
  ucp_transport_entry_t entries[16];
  ucp_ep_attr_t attributes = {.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
                              .transports = {entries, COUNT(entries), sizeof entries[0]}};
  bool found = is_excluded();
  assert_ok(ucp_ep_query(side.ep, &attributes));
  for (unsigned i = 0; i < attributes.transports.num_entries; i++)
    found |= strcmp(entries[i].transport_name, "gaudi_ipc") == 0;
  assert_true(found);
}

static void ping(const int *pipes) {
  const ucp_request_param_t param = {0};
  open_side(pipes);
  rig_open(&copies, "gaudi_cpy", "gaudi");
  assert_ok(rig_connect(&copies, NULL));
  for (size_t i = 0; i < COUNT(echo_sizes); i++) {
    size_t length = echo_sizes[i];
    uint8_t *bytes = malloc(length);
    ucp_mem_h memh;
    void *device = device_memory(length, &memh);
    pattern_fill(bytes, length, i);
    put_by_copy(device, bytes, length);
    wait_for(ucp_tag_send_nbx(side.ep, device, length, 1, &param));
    wait_for(ucp_tag_recv_nbx(side.worker, device, length, 2, UINT64_MAX, &param));
    get_by_copy(bytes, device, length);
    pattern_check(bytes, length, i);
    assert_ok(ucp_mem_unmap(side.context, memh));
    free(bytes);
  }
  check_transport();
  rig_close(&copies);
  leave_together(pipes);
}

/* The other process, to be killed: offers device memory. */
static _Noreturn void offer(const int *pipes) {
  ucp_mem_h memh;
  void *packed;
  size_t size;
  open_side(pipes);
  uint64_t address = (uintptr_t)device_memory(MIB, &memh);
  assert_ok(ucp_rkey_pack(side.context, memh, &packed, &size));
  assert_int_equal(write(pipes[1], &address, sizeof address), sizeof address);
  assert_int_equal(write(pipes[1], packed, size), size);
  for (;;)
    ucp_worker_progress(side.worker);
}

/* Starts the other process, by exec, as UCX must not run in a forked child. */
static pid_t start_other(const char *part, int pipes[2]) {
  int there[2], back[2];
  static char self[4096], reading[16], writing[16];
  assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  assert_int_equal(pipe(there) || pipe(back), 0);
  snprintf(reading, sizeof reading, "%d", there[0]);
  snprintf(writing, sizeof writing, "%d", back[1]);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl(self, self, reading, writing, part, NULL);
    _exit(4);
  }
  pipes[0] = back[0];
  pipes[1] = there[1];
  return child;
}

static void exchange(const char *part) {
  int pipes[2], status;
  pid_t child = start_other(part, pipes);
  ping(pipes);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

static void to_another_process_and_back(void **state) {
  (void)state;
  side.mode = UCP_ERR_HANDLING_MODE_NONE;
  exchange("echo");
}

/* For programs that survive the end of their peers. */
static void handle_errors(void) {
  if (is_excluded()) {
    print_message("skipped: UCX_TLS excludes gaudi_ipc\n");
    skip();
  }
  side.mode = UCP_ERR_HANDLING_MODE_PEER;
}

static void with_errors_of_peers(void **state) {
  (void)state;
  handle_errors();
  exchange("echo-errors");
}

static void a_peer_dies(void **state) {
  const ucp_request_param_t param = {0};
  int pipes[2], status;
  uint64_t address;
  char packed[1024];
  ucp_rkey_h key;
  (void)state;
  handle_errors();
  uint8_t *bytes = malloc(MIB);
  pid_t child = start_other("offer", pipes);
  open_side(pipes);
  assert_int_equal(read(pipes[0], &address, sizeof address), sizeof address);
  assert_true(read(pipes[0], packed, sizeof packed) > 0);
  assert_ok(ucp_ep_rkey_unpack(side.ep, packed, &key));
  wait_for(ucp_get_nbx(side.ep, bytes, MIB, address, key, &param));
  check_transport();
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
  rig_quiet(true);
  assert_true(UCS_STATUS_IS_ERR(result_of(ucp_get_nbx(side.ep, bytes, MIB, address, key, &param))));
  ucp_rkey_destroy(key);
  close_side();
  rig_quiet(false);
  free(bytes);
}

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(at_each_size), cmocka_unit_test(to_another_process_and_back),
      cmocka_unit_test(with_errors_of_peers), cmocka_unit_test(a_peer_dies)};
  if (count == 4) {
    const int pipes[] = {atoi(arguments[1]), atoi(arguments[2])};
    if (strcmp(arguments[3], "echo") != 0)
      side.mode = UCP_ERR_HANDLING_MODE_PEER;
    if (strcmp(arguments[3], "offer") == 0)
      offer(pipes);
    return echo(pipes);
  }
  return cmocka_run_group_tests_name("ucx/messages", tests, NULL, NULL);
}
