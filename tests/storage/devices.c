/* SPDX-License-Identifier: MIT
 * Buffers in device memory: registration, reads and writes. HAUL_TEST_DEVICE names the device; the
 * default is the emulated accelerator. With the argument "remote" the file is another node's, and
 * with "rdma" that node's NIC reaches the device: there doubles stand for GPU and NIC. With "wire"
 * the NIC is one of this host. With "cufile" an emulation of cuFile reads local files. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client.h"
#include "doubles/cuda/door.h"
#include "file/seams/seams.h"
#include "folder.h"
#include "haul/haul.h"
#include "served.h"
#include "support/gpu.h"
#include "support/lingering.h"
#include "support/nic.h"

#define MIB    ((size_t)1 << 20)
#define LENGTH (6 * MIB)

static bool remote;

static struct {
  struct rig rig;
  struct served served;
  struct source *source; /* with `remote` */
  char folder[FOLDER_ROOM];
  haul_node *node;
  haul_region *device, *host;
  struct haul_ticket ticket;
  int descriptor;
  uint8_t id[16];
  struct client client;
} t;

static const struct iov_name reads = {.for_read = true, .priority = RING_NORMAL};
static const struct iov_name writes = {.for_read = false, .priority = RING_NORMAL};

static void open_rig(void) {
  if (!remote) {
    rig_open(&t.rig, 1);
    return;
  }
  folder_make(t.folder);
  t.source = served_open_source(&t.served, t.folder, false);
  rig_open_remote(&t.rig, 1, t.source, t.folder);
}

static void close_rig(void) {
  rig_close(&t.rig);
  if (!remote)
    return;
  t.source->ops->close(t.source);
  served_close(&t.served);
  folder_remove(t.folder);
}

/* *state: faults of the NIC, or NULL without one. */
static int set_up(void **state) {
  const char *device = getenv("HAUL_TEST_DEVICE");
  struct haul_place place;
  if (*state)
    nic_fault(*state);
  seams = (struct seams){.file_system = EXT4_SUPER_MAGIC}; /* of cuFile's */
  open_rig();
  assert_works(haul_place_parse(device ? device : "sim:0", &place));
  assert_works(haul_node_open(NULL, &t.node));
  assert_works(haul_region_alloc(t.node, place, LENGTH, 0, &t.device));
  assert_works(haul_region_alloc(t.node, (struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &t.host));
  assert_works(
      haul_region_export(t.device, HAUL_READ | HAUL_WRITE, NULL, &t.ticket, &t.descriptor));
  assert_int_equal(getrandom(t.id, sizeof t.id, 0), sizeof t.id);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  close(t.descriptor);
  haul_region_release(t.host);
  haul_region_release(t.device);
  haul_node_close(t.node);
  close_rig();
  return 0;
}

static int connect_daemon(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  struct control_link entry;
  char address[64];
  assert_int_equal(control_dir_lookup(t.rig.control, &t.rig.caller, DEVICES_LINK, &entry), 0);
  assert_int_equal(control_dir_readlink(t.rig.control, entry.id, address, sizeof address), 0);
  memcpy(at.sun_path, address, strlen(address));
  at.sun_path[0] = '\0';
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&at,
                           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(address))),
                   0);
  return fd;
}

/* False: the daemon has dropped the connection. */
static bool offer_record(int fd, const void *record, size_t length, int descriptor) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {.room = {0}};
  struct iovec span = {(void *)(uintptr_t)record, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
  }
  ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
    return false;
  assert_int_equal(sent, (ssize_t)length);
  return true;
}

static void send_record(int fd, const void *record, size_t length, int descriptor) {
  assert_true(offer_record(fd, record, length, descriptor));
}

static struct devices_request request(uint32_t operation) {
  struct devices_request request = {
      .magic = DEVICES_MAGIC, .version = DEVICES_VERSION, .operation = operation, .length = LENGTH};
  memcpy(request.id, t.id, sizeof request.id);
  memcpy(request.ticket, t.ticket.bytes, sizeof request.ticket);
  return request;
}

static struct devices_response call_daemon(int fd, const struct devices_request *request,
                                           int descriptor) {
  struct devices_response response;
  send_record(fd, request, sizeof *request, descriptor);
  assert_int_equal(recv(fd, &response, sizeof response, 0), sizeof response);
  return response;
}

static int add(int fd) {
  struct devices_request query = request(DEVICES_ADD);
  return call_daemon(fd, &query, t.descriptor).code;
}

static void open_client(const struct iov_name *how) {
  client_open(&t.client, &t.rig, how, 8, 4096);
  memcpy(t.client.buffer.name.id, t.id, sizeof t.id); /* records name the device buffer */
}

/* Copies the device's data to host memory. */
static const char *bytes_of_device(void) {
  assert_works(haul_region_copy(t.host, 0, t.device, 0, LENGTH, HAUL_FOREVER));
  return haul_region_address(t.host);
}

static void fill_device(int byte) {
  memset(haul_region_address(t.host), byte, LENGTH);
  assert_works(haul_region_copy(t.device, 0, t.host, 0, LENGTH, HAUL_FOREVER));
}

static void malformed_requests_end_the_connection(void **state) {
  (void)state;
  struct devices_request wrong[] = {request(DEVICES_ADD), request(DEVICES_ADD)};
  char byte;
  wrong[0].magic++;
  wrong[1].version++;
  for (unsigned i = 0; i < 4; i++) {
    int fd = connect_daemon();
    send_record(fd, &wrong[i % 2], i < 2 ? sizeof wrong[0] : 17, i % 2 ? t.descriptor : -1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
  }
}

static void an_invalid_ticket_is_rejected(void **state) {
  (void)state;
  int fd = connect_daemon();
  struct devices_request query = request(DEVICES_ADD);
  assert_int_equal(call_daemon(fd, &query, -1).code, -EINVAL);
  query.length = LENGTH + 1;
  assert_int_equal(call_daemon(fd, &query, t.descriptor).code, -EINVAL);
  query.length = LENGTH;
  query.ticket[7]++;
  assert_int_equal(call_daemon(fd, &query, t.descriptor).code, -EINVAL);
  int socket_of_mine = connect_daemon();
  query.ticket[7]--;
  assert_int_equal(call_daemon(fd, &query, socket_of_mine).code, -EINVAL);
  close(socket_of_mine);
  query.operation = 9;
  assert_int_equal(call_daemon(fd, &query, -1).code, -EINVAL);
  close(fd);
}

/* Drops a connection for its first record while its second is unread. Repeats if the daemon was
 * faster than the second record. */
static int leave_unread(int descriptors[2]) {
  struct devices_request query = request(9);
  for (unsigned tries = 0; tries < 1000; tries++) {
    int fd = connect_daemon();
    send_record(fd, "x", 1, descriptors[0]);
    if (offer_record(fd, &query, sizeof query, descriptors[1]))
      return fd;
    close(fd);
  }
  fail_msg("the daemon was always quicker");
  return -1;
}

/* Covers closing descriptors of a request, surplus ones, and those in unread records. The daemon's
 * first import takes a while. */
static void unexpected_descriptors_do_not_block_the_daemon(void **state) {
  (void)state;
  struct devices_request query = request(9), added = request(DEVICES_ADD);
  struct devices_response response;
  int hostile = connect_daemon(), good = connect_daemon();
  int sockets[] = {lingering_socket(), lingering_socket()};
  haul_deadline began = haul_deadline_in(0);
  send_record(good, &added, sizeof added, t.descriptor);
  int unread = leave_unread(sockets);
  for (size_t i = 0; i < COUNT(sockets); i++)
    close(sockets[i]);
  assert_int_equal(recv(good, &response, sizeof response, 0), sizeof response);
  assert_int_equal(response.code, 0);
  assert_true(lingering_send(hostile, &query, sizeof query, 253, 0));
  query = request(DEVICES_FIND);
  assert_int_equal(call_daemon(good, &query, -1).code, 0);
  close(hostile);
  close(unread);
  close(good);
  control_dir_close(t.rig.control);
  t.rig.control = NULL;
  assert_in_range(haul_deadline_in(0) - began, 0, INT64_C(1000000000) * LINGERS / 2);
}

static void a_buffer_ends_with_its_connection(void **state) {
  (void)state;
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  assert_int_equal(add(fd), -EEXIST);
  open_client(&reads);
  assert_int_equal(client_do(&t.client, 0, 0, 4096), 4096);
  struct devices_request removal = request(DEVICES_REMOVE);
  assert_int_equal(call_daemon(fd, &removal, -1).code, 0);
  assert_int_equal(call_daemon(fd, &removal, -1).code, -ENOENT);
  assert_int_equal(client_do(&t.client, 0, 0, 4096), -ENOENT);
  assert_int_equal(add(fd), 0);
  close(fd);
  for (unsigned tries = 0; client_do(&t.client, 0, 0, 1) != -ENOENT; tries++) {
    assert_true(tries < 1000);
    usleep(1000);
  }
  client_close(&t.client);
}

static void another_process_finds_a_buffer(void **state) {
  (void)state;
  int owner = connect_daemon(), other = connect_daemon();
  struct devices_request query = request(DEVICES_FIND);
  assert_int_equal(call_daemon(other, &query, -1).code, -ENOENT);
  assert_int_equal(add(owner), 0);
  struct devices_response response = call_daemon(other, &query, -1);
  assert_int_equal(response.code, 0);
  assert_int_equal(response.length, LENGTH);
  assert_memory_equal(response.ticket, t.ticket.bytes, sizeof response.ticket);
  query.operation = DEVICES_REMOVE; /* but does not own it */
  assert_int_equal(call_daemon(other, &query, -1).code, -ENOENT);
  close(owner);
  close(other);
}

static void a_file_is_read_into_a_device(void **state) {
  (void)state;
  const struct {
    uint64_t at, offset, length;
    int64_t result;
  } ranges[] = {{0, 0, 1, 1},
                {4096, 8192, 4096, 4096},
                {5, 77, 100001, 100001},
                {0, 0, MIB, MIB},
                {3, 1, 3 * MIB + 5, 3 * MIB + 5},
                {MIB, PATTERN_BYTES - 100, MIB, 100},
                {0, PATTERN_BYTES - 2 * MIB - 7, 5 * MIB, 2 * MIB + 7},
                {9, PATTERN_BYTES, MIB, 0}};
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  open_client(&reads);
  for (size_t i = 0; i < COUNT(ranges); i++) {
    fill_device(0x55);
    assert_int_equal(client_do(&t.client, ranges[i].at, ranges[i].offset, ranges[i].length),
                     ranges[i].result);
    const char *bytes = bytes_of_device();
    for (uint64_t k = 0; k < LENGTH; k++) {
      bool inside = k >= ranges[i].at && k < ranges[i].at + (uint64_t)ranges[i].result;
      uint8_t expected = inside ? rig_byte(ranges[i].offset + k - ranges[i].at) : 0x55;
      if ((uint8_t)bytes[k] != expected)
        fail_msg("range %zu: byte %llu is wrong", i, (unsigned long long)k);
    }
  }
  client_close(&t.client);
  close(fd);
}

static void a_device_buffer_is_written_to_a_file(void **state) {
  (void)state;
  static char got[3 * MIB + 5];
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  open_client(&writes);
  fill_device(0x33);
  assert_int_equal(client_do(&t.client, 7, 1001, sizeof got), sizeof got);
  assert_int_equal(pread(t.rig.fd, got, sizeof got, 1001), sizeof got);
  for (size_t i = 0; i < sizeof got; i++)
    assert_int_equal(got[i], 0x33);
  char beside;
  assert_int_equal(pread(t.rig.fd, &beside, 1, 1000), 1);
  assert_int_equal((uint8_t)beside, rig_byte(1000));
  assert_int_equal(pread(t.rig.fd, &beside, 1, (off_t)(1001 + sizeof got)), 1);
  assert_int_equal((uint8_t)beside, rig_byte(1001 + sizeof got));
  client_close(&t.client);
  close(fd);
}

/* More operations than bounce buffers; the connection ends during the last ones. A NIC and the
 * engine of a remote file write at the same time, so there no two operations have the same place.
 */
static void many_operations_share_the_bounce_buffers(void **state) {
  (void)state;
  struct ring_completion completion;
  const uint64_t step = remote ? LENGTH / 64 : 0, length = remote ? LENGTH / 64 : 3 * MIB;
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  client_open(&t.client, &t.rig, &reads, 64, 4096);
  memcpy(t.client.buffer.name.id, t.id, sizeof t.id);
  for (unsigned round = 0; round < 3; round++) {
    for (int32_t i = 0; i < 64; i++)
      client_prepare(&t.client, i, t.rig.inode, (uint64_t)i * step, 0, length);
    client_submit(&t.client);
    if (round == 2)
      close(fd);
    for (int32_t i = 0; i < 64; i++) {
      assert_true(client_take(&t.client, &completion, 30000));
      assert_true(completion.result == (int64_t)length ||
                  (round == 2 && completion.result == -ENOENT));
    }
  }
  client_close(&t.client);
}

static void a_range_outside_of_the_buffer_is_rejected(void **state) {
  (void)state;
  const struct {
    uint64_t at, length;
  } ranges[] = {{0, LENGTH + 1}, {LENGTH, 1}, {1, LENGTH}, {UINT64_MAX, 2}, {2, UINT64_MAX}};
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  open_client(&reads);
  for (size_t i = 0; i < COUNT(ranges); i++)
    assert_int_equal(client_do(&t.client, ranges[i].at, 0, ranges[i].length), -EINVAL);
  client_close(&t.client);
  close(fd);
}

/* Moves 3 MiB to the device, and from there to another part of the file. */
static void copy_in_the_file(void) {
  static char got[3 * MIB];
  open_client(&reads);
  assert_int_equal(client_do(&t.client, 5, 1001, 3 * MIB), 3 * MIB);
  client_close(&t.client);
  open_client(&writes);
  assert_int_equal(client_do(&t.client, 5, PATTERN_BYTES, 3 * MIB), 3 * MIB);
  client_close(&t.client);
  assert_int_equal(pread(t.rig.fd, got, sizeof got, PATTERN_BYTES), sizeof got);
  for (size_t i = 0; i < sizeof got; i++)
    assert_int_equal((uint8_t)got[i], rig_byte(1001 + i));
}

/* Without a NIC that reaches the memory. */
static void bytes_of_devices_are_staged_and_it_is_told(void **state) {
  (void)state;
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  copy_in_the_file();
  assert_int_equal(rig_counter(&t.rig, "remote_bytes="), 6 * MIB);
  assert_int_equal(rig_counter(&t.rig, "staged_bytes="), 6 * MIB);
  assert_int_equal(rig_counter(&t.rig, "device_direct_bytes="), 0);
  assert_non_null(strstr(served_note(), "device memory is staged"));
  close(fd);
}

/* An event of the driver is recorded for each copy by the device's engine, and memory without an
 * address for the CPU has no other copies. */
static void a_nic_reaches_the_device_without_copies(void **state) {
  (void)state;
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  unsigned copies = gpu_double()->records;
  copy_in_the_file();
  copy_in_the_file();
  if (gpu_double()->records != copies)
    fail_msg("%u copies: %s", gpu_double()->records - copies, served_note());
  assert_int_equal(rig_counter(&t.rig, "device_direct_bytes="), 12 * MIB);
  assert_int_equal(rig_counter(&t.rig, "staged_bytes="), 0);
  assert_int_equal(rig_counter(&t.rig, "device_registrations="), 1);
  assert_int_equal(rig_counter(&t.rig, "device_registration_hits="), 11);
  assert_non_null(strstr(served_note(), "device memory is reached without a copy: rdma"));
  close(fd);
}

static void the_reason_of_a_refusal_is_told(void **state) {
  unsigned copies = gpu_double()->records;
  bytes_of_devices_are_staged_and_it_is_told(state);
  assert_true(gpu_double()->records > copies);
  if (!strstr(served_note(), "takes no dma-buf"))
    fail_msg("%s", served_note());
}

/* Writes are staged. */
static void cufile_reads_past_host_memory(void **state) {
  (void)state;
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  unsigned copies = gpu_double()->records;
  open_client(&reads);
  assert_int_equal(client_do(&t.client, 5, 1001, 3 * MIB), 3 * MIB);
  client_close(&t.client);
  assert_int_equal(gpu_double()->records, copies);
  assert_int_equal(rig_counter(&t.rig, "device_direct_bytes="), 3 * MIB);
  assert_int_equal(rig_counter(&t.rig, "staged_bytes="), 0);
  assert_non_null(strstr(rig_note(), "without a copy in host memory: cuFile, through cuFile's"));
  open_client(&writes);
  assert_int_equal(client_do(&t.client, 5, PATTERN_BYTES, 3 * MIB), 3 * MIB);
  client_close(&t.client);
  assert_int_equal(rig_counter(&t.rig, "staged_bytes="), 3 * MIB);
  static char got[3 * MIB];
  assert_int_equal(pread(t.rig.fd, got, sizeof got, PATTERN_BYTES), sizeof got);
  for (size_t i = 0; i < sizeof got; i++)
    assert_int_equal((uint8_t)got[i], rig_byte(1001 + i));
  close(fd);
}

/* The first part finds out, and the others pass the daemon's bounce buffers. */
static void what_cufile_refuses_is_staged_and_it_is_told(void **state) {
  (void)state;
  seams.file_system = NFS_SUPER_MAGIC;
  int fd = connect_daemon();
  assert_int_equal(add(fd), 0);
  open_client(&reads);
  for (unsigned i = 0; i < 2; i++)
    assert_int_equal(client_do(&t.client, 5, 1001, 3 * MIB), 3 * MIB);
  client_close(&t.client);
  const char *bytes = bytes_of_device();
  for (uint64_t k = 0; k < 3 * MIB; k++)
    assert_int_equal((uint8_t)bytes[5 + k], rig_byte(1001 + k));
  assert_int_equal(rig_counter(&t.rig, "device_direct_bytes="), 0);
  assert_int_equal(rig_counter(&t.rig, "staged_bytes="), 6 * MIB);
  assert_non_null(strstr(rig_note(), "device memory is staged: cuFile is used for ext4 and xfs"));
  close(fd);
}

static void a_registration_ends_with_its_client(void **state) {
  (void)state;
  _Atomic unsigned *live = &nic_double()->live.registrations;
  unsigned used = 0;
  open_client(&reads);
  for (unsigned i = 0; i < 3; i++) {
    int fd = connect_daemon();
    assert_int_equal(add(fd), 0);
    assert_int_equal(client_do(&t.client, 0, 0, MIB), MIB);
    if (i > 0)
      assert_int_equal(*live, used);
    used = *live;
    close(fd);
    for (unsigned tries = 0; *live >= used; tries++) {
      assert_true(tries < 10000);
      usleep(1000);
    }
  }
  client_close(&t.client);
}

/* More buffers than the server has room for: the others go through the daemon's own bounce buffers.
 */
static void buffers_beyond_the_servers_limit_are_staged(void **state) {
  (void)state;
  enum { MANY = 260 };
  int fd = connect_daemon();
  open_client(&reads);
  for (unsigned i = 0; i < MANY; i++) {
    t.id[0] = (uint8_t)i;
    t.id[1] = (uint8_t)(i >> 8);
    memcpy(t.client.buffer.name.id, t.id, sizeof t.id);
    assert_int_equal(add(fd), 0);
    assert_int_equal(client_do(&t.client, i, i, 4096), 4096);
  }
  const char *bytes = bytes_of_device();
  for (unsigned k = 0; k < 4096; k++)
    assert_int_equal((uint8_t)bytes[MANY - 1 + k], rig_byte(MANY - 1 + k));
  client_close(&t.client);
  if (!strstr(served_note(), "the server cannot use it"))
    fail_msg("%s", served_note());
  open_client(&writes);
  assert_int_equal(client_do(&t.client, MANY - 1, 1, 4096), 4096);
  char got;
  assert_int_equal(pread(t.rig.fd, &got, 1, 1), 1);
  assert_int_equal((uint8_t)got, rig_byte(MANY - 1));
  client_close(&t.client);
  close(fd);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static int with_a_server(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_buffer_ends_with_its_connection),
      TEST(a_file_is_read_into_a_device),
      TEST(a_device_buffer_is_written_to_a_file),
      TEST(many_operations_share_the_bounce_buffers),
      TEST(a_range_outside_of_the_buffer_is_rejected),
      TEST(bytes_of_devices_are_staged_and_it_is_told),
      TEST(buffers_beyond_the_servers_limit_are_staged),
  };
  return cmocka_run_group_tests_name("storage/devices remote", tests, NULL, NULL);
}

static int with_a_nic(void) {
  static char takes[] = "dmabuf", refuses[] = "";
#define TEST_NIC(test, faults)                                                                     \
  cmocka_unit_test_prestate_setup_teardown(test, set_up, tear_down, faults)
  const struct CMUnitTest tests[] = {
      TEST_NIC(a_nic_reaches_the_device_without_copies, takes),
      TEST_NIC(a_file_is_read_into_a_device, takes),
      TEST_NIC(a_device_buffer_is_written_to_a_file, takes),
      TEST_NIC(many_operations_share_the_bounce_buffers, takes),
      TEST_NIC(a_registration_ends_with_its_client, takes),
      TEST_NIC(the_reason_of_a_refusal_is_told, refuses),
      TEST_NIC(a_file_is_read_into_a_device, refuses),
      TEST_NIC(a_device_buffer_is_written_to_a_file, refuses),
  };
  if (!nic_is_there() || !gpu_is_there())
    return 77;
  gpu_double()->dmabuf = 2;
  return cmocka_run_group_tests_name("storage/devices rdma", tests, NULL, NULL);
}

static int with_this_hosts_nic(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_nic_reaches_the_device_without_copies),
      TEST(a_file_is_read_into_a_device),
      TEST(a_device_buffer_is_written_to_a_file),
      TEST(many_operations_share_the_bounce_buffers),
  };
  if (!gpu_is_there())
    return 77;
  return cmocka_run_group_tests_name("storage/devices wire", tests, NULL, NULL);
}

static int with_cufile(void) {
  const struct CMUnitTest tests[] = {
      TEST(cufile_reads_past_host_memory),
      TEST(what_cufile_refuses_is_staged_and_it_is_told),
      TEST(a_buffer_ends_with_its_connection),
      TEST(a_file_is_read_into_a_device),
      TEST(a_device_buffer_is_written_to_a_file),
      TEST(many_operations_share_the_bounce_buffers),
  };
  if (!gpu_is_there())
    return 77;
  if (!seams_direct_works("/var/tmp")) {
    printf("skipped all: the file system of /var/tmp has no O_DIRECT\n");
    return 77;
  }
  return cmocka_run_group_tests_name("storage/devices cufile", tests, NULL, NULL);
}

int main(int argc, char **argv) {
  if (!rig_is_possible())
    return 77;
  remote = argc > 1 && strcmp(argv[1], "cufile") != 0;
  setenv("HAUL_SIM_DEVICES", "2", 0);
  if (argc > 1 && !remote)
    return with_cufile();
  if (remote)
    return strcmp(argv[1], "rdma") == 0   ? with_a_nic()
           : strcmp(argv[1], "wire") == 0 ? with_this_hosts_nic()
                                          : with_a_server();
  const struct CMUnitTest tests[] = {
      TEST(malformed_requests_end_the_connection),
      TEST(an_invalid_ticket_is_rejected),
      TEST(unexpected_descriptors_do_not_block_the_daemon),
      TEST(a_buffer_ends_with_its_connection),
      TEST(another_process_finds_a_buffer),
      TEST(a_file_is_read_into_a_device),
      TEST(a_device_buffer_is_written_to_a_file),
      TEST(many_operations_share_the_bounce_buffers),
      TEST(a_range_outside_of_the_buffer_is_rejected),
  };
  return cmocka_run_group_tests_name("storage/devices", tests, NULL, NULL);
}
