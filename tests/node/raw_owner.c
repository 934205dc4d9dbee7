/* SPDX-License-Identifier: MIT
 * A malformed or hostile owner of a region that a node uses: it modifies local memory only while a
 * transfer is in flight, and no transfer waits for ever. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/stats.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"
#include "core/wire.h"
#include "fabric/map/map.h"
#include "fabric/tcp/frame.h"
#include "support/names.h"
#include "support/owner.h"
#include "support/rails.h"
#include "support/raw.h"

#define BOUND  (20 * S)
#define LENGTH 65536u
#define HANDLE 0x1234500003u

/* The node, and the raw owner's end of each connection. */
static struct {
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  int listener, control, rails[2], express;
  int channel; /* of `map`, if any */
  struct shm page, hazards;
  int hazards_of_node;
} at;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static void *connect_node(void *argument) {
  (void)argument;
  assert_works(haul_peer_connect(at.node, own_socket(), soon(), &at.peer));
  assert_works(haul_peer_lookup(at.peer, "region", soon(), &at.remote));
  struct haul_region *region = region_make(at.node, KIND_HOST, 4096);
  open_rails(at.remote, region);
  haul_region_release(region);
  return NULL;
}

static int accept_connection(bool same_host) {
  struct hello hello;
  int fd = raw_accept(at.listener);
  assert_true(fd >= 0 && raw_welcome(fd, same_host, &hello));
  return fd;
}

/* A map channel; the owner is in the node's process, so that the node can attach to it */

static const uint64_t nonce = 77;
static uint8_t private_memory[LENGTH];

static void start_record(uint8_t record[MAP_RECORD], struct wire *wire, uint32_t type,
                         uint32_t request) {
  memset(record, 0, MAP_RECORD);
  *wire = wire_over(record, MAP_RECORD);
  wire_put32(wire, 0x50414d48u); /* "HMAP" */
  wire_put32(wire, type);
  wire_put32(wire, request);
}

/* The next record; keeps its descriptors for the test. */
static void receive_record(uint8_t record[MAP_RECORD]) {
  int descriptors[SOCK_DESCRIPTORS_MAX];
  size_t count;
  ssize_t got;
  while ((got = sock_receive_record(at.channel, record, MAP_RECORD, descriptors, &count)) ==
         -EAGAIN)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_int_equal(got, MAP_RECORD);
  if (count > 0) {
    close(descriptors[0]);
    at.hazards_of_node = descriptors[1];
  }
}

static void greet(void) {
  uint8_t record[MAP_RECORD];
  struct wire wire;
  void *page;
  receive_record(record);
  assert_works(shm_create("raw-page", 4096, &at.page));
  assert_works(shm_create("raw-hazards", sizeof(struct hazards), &at.hazards));
  assert_works(shm_map(at.page.fd, &at.page, PROT_READ | PROT_WRITE, NULL, &page));
  ((uint32_t *)page)[EXPORT_SLOT(HANDLE)] = EXPORT_STAMP(HANDLE);
  munmap(page, at.page.length);
  start_record(record, &wire, 1, 0);
  wire_put64(&wire, (uint64_t)(uintptr_t)&nonce);
  wire_put64(&wire, nonce);
  wire_put32(&wire, 1024);
  wire_put_bytes(&wire, at.page.footer->capability, 16);
  wire_put64(&wire, sizeof(struct hazards));
  wire_put_bytes(&wire, at.hazards.footer->capability, 16);
  const int ours[] = {at.page.fd, at.hazards.fd};
  assert_int_equal(sock_send_record(at.channel, record, sizeof record, ours, 2), 0);
}

static void respond_to_map_request(void) {
  uint8_t record[MAP_RECORD];
  struct wire wire;
  receive_record(record);
  start_record(record, &wire, 3, 1);
  wire_put32(&wire, 2); /* by cross-memory attach */
  wire_put64(&wire, (uint64_t)(uintptr_t)private_memory);
  assert_int_equal(sock_send_record(at.channel, record, sizeof record, NULL, 0), 0);
}

/* It opened the rails. */
static void respond_to_first_read(void) {
  uint8_t bytes[FRAME_HEADER + FRAME_SEGMENT], data[FRAME_HEADER + 1 + FRAME_TRAILER] = {0};
  struct frame frame;
  const char *what;
  assert_true(raw_receive(at.rails[0], bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  frame_pack(&(struct frame){.type = FRAME_DATA, .request = frame.request, .payload = 1}, data);
  frame_pack_trailer(&(struct frame_trailer){0, 0}, data + FRAME_HEADER + 1);
  assert_true(raw_send(at.rails[0], data, sizeof data));
}

static unsigned rails;

static void start_over(bool same_host) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  pthread_t thread;
  config.tcp_rails = rails;
  config.liveness_ns = BOUND;
  setenv("HAUL_SIM_LATENCY_NS", "300000000", 1);
  at.listener = raw_listen(own_socket());
  assert_works(haul_node_open(&config, &at.node));
  pthread_create(&thread, NULL, connect_node, NULL);
  at.control = accept_connection(same_host);
  if (same_host) {
    at.channel = accept_connection(same_host);
    greet();
  }
  raw_refuse_nic(at.listener, at.control);
  raw_found(at.control, HANDLE, LENGTH);
  if (same_host)
    respond_to_map_request();
  for (unsigned i = 0; i < rails; i++)
    at.rails[i] = accept_connection(same_host);
  at.express = accept_connection(same_host);
  respond_to_first_read();
  pthread_join(thread, NULL);
}

static int start_one_rail(void **state) {
  (void)state;
  rails = 1;
  start_over(false);
  return 0;
}

static int start(void **state) {
  (void)state;
  rails = 2;
  start_over(false);
  return 0;
}

static int start_with_map(void **state) {
  (void)state;
  rails = 1;
  start_over(true);
  return 0;
}

static int end(void **state) {
  (void)state;
  haul_remote_release(at.remote);
  haul_peer_close(at.peer);
  haul_node_close(at.node);
  for (unsigned i = 0; i < rails; i++)
    close(at.rails[i]);
  close(at.express);
  close(at.control);
  close(at.listener);
  unsetenv("HAUL_SIM_LATENCY_NS");
  return 0;
}

static int end_with_map(void **state) {
  close(at.channel);
  close(at.hazards_of_node);
  shm_close(&at.page);
  shm_close(&at.hazards);
  return end(state);
}

static uint64_t start_read(struct haul_region *region, struct haul_transfer **transfer) {
  struct haul_piece piece = {0, 0, LENGTH};
  uint8_t bytes[FRAME_HEADER + FRAME_SEGMENT];
  struct frame frame;
  const char *what;
  assert_works(haul_read(region, at.remote, &piece, 1, NULL, transfer));
  assert_true(raw_receive(at.rails[0], bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  assert_int_equal(frame.type, FRAME_READ);
  return frame.request;
}

/* DATA with the first `bytes` of its payload, and the trailer if that is all of it. */
static void send_data(int rail, uint64_t request, size_t bytes) {
  static uint8_t payload[LENGTH];
  uint8_t head[FRAME_HEADER], trailer[FRAME_TRAILER];
  struct frame frame = {.type = FRAME_DATA, .request = request, .payload = LENGTH};
  memset(payload, 0x66, sizeof payload);
  frame_pack(&frame, head);
  frame_pack_trailer(&(struct frame_trailer){0, 0}, trailer);
  raw_send(rail, head, sizeof head);
  raw_send(rail, payload, bytes);
  if (bytes == LENGTH)
    raw_send(rail, trailer, sizeof trailer);
}

static void send_rejection(int rail, uint64_t request) {
  uint8_t head[FRAME_HEADER];
  frame_pack(&(struct frame){.type = FRAME_ACK, .request = request, .status = HAUL_ESTALE}, head);
  raw_send(rail, head, sizeof head);
}

static void sleep_ms(long ms) {
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* The transfer fails, and bytes that still arrive do not modify its memory. */
static void assert_not_modified(struct haul_transfer *transfer, struct haul_region *region,
                                int unfinished) {
  static const uint8_t rest[LENGTH / 2] = {0x55};
  assert_true(haul_transfer_wait(transfer, soon()) < 0);
  region_fill(at.node, region, 0, LENGTH, 5);
  uint64_t before = region_sum(at.node, region, 0, LENGTH);
  raw_send(unfinished, rest, sizeof rest);
  sleep_ms(500);
  assert_true(region_sum(at.node, region, 0, LENGTH) == before);
  haul_transfer_release(transfer);
}

static void a_rejection_within_the_data_drops_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_data(at.rails[0], request, LENGTH / 2);
  sleep_ms(50);
  send_rejection(at.rails[1], request);
  assert_not_modified(transfer, region, at.rails[0]);
  assert_true(raw_ended(at.control, BOUND));
  region_drop(region, KIND_HOST);
}

static void data_on_two_rails_drops_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_data(at.rails[0], request, LENGTH / 2);
  sleep_ms(50);
  send_data(at.rails[1], request, LENGTH);
  assert_not_modified(transfer, region, at.rails[0]);
  assert_true(raw_ended(at.control, BOUND));
  region_drop(region, KIND_HOST);
}

static void a_rejection_after_staged_data_drops_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_SIM, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_data(at.rails[0], request, LENGTH);
  send_rejection(at.rails[0], request);
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_EPROTO);
  haul_transfer_release(transfer);
  region_drop(region, KIND_SIM);
  assert_true(raw_ended(at.control, BOUND));
  sleep_ms(500);
}

static void a_response_on_another_rail_drops_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint64_t request = start_read(region, &transfer);
  send_rejection(at.rails[1], request);
  assert_int_equal(haul_transfer_wait(transfer, soon()), HAUL_EPROTO);
  assert_true(raw_ended(at.control, BOUND));
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

#define WRITE_FRAME (FRAME_HEADER + FRAME_SEGMENT + LENGTH + FRAME_TRAILER)

/* A write that is in the socket as a whole, and that the owner does not read yet. */
static struct haul_transfer *write_unread(struct haul_region *region) {
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer *transfer;
  haul_deadline until = soon();
  int there = 0;
  memset(haul_region_address(region), 0x11, LENGTH);
  assert_works(haul_write(at.remote, region, &piece, 1, NULL, &transfer));
  while (there < (int)WRITE_FRAME) {
    assert_int_equal(ioctl(at.rails[0], FIONREAD, &there), 0);
    assert_true(haul_deadline_in(0) < until);
  }
  return transfer;
}

/* The owner reads the bytes of the time of the write. */
static void assert_unchanged(void) {
  static uint8_t frame[WRITE_FRAME], wanted[LENGTH];
  memset(wanted, 0x11, sizeof wanted);
  assert_true(raw_receive(at.rails[0], frame, sizeof frame));
  assert_memory_equal(frame + FRAME_HEADER + FRAME_SEGMENT, wanted, LENGTH);
}

static void cancel(struct haul_transfer *transfer) {
  assert_works(haul_transfer_cancel(transfer));
  assert_fails(HAUL_ECANCELED, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

static void lose_peer(struct haul_transfer *transfer) {
  shutdown(at.control, SHUT_RDWR);
  assert_fails(HAUL_EPEER, haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
}

/* The region's memory may be reused, but its new content does not reach the old peer. */
static void check_released(enum memory_kind kind, void (*end_early)(struct haul_transfer *)) {
  struct haul_region *region = region_make(at.node, kind, LENGTH);
  end_early(write_unread(region));
  haul_region_release(region);
  region = region_make(at.node, kind, LENGTH);
  memset(haul_region_address(region), 0x22, LENGTH);
  assert_unchanged();
  haul_region_release(region);
}

static void memory_of_a_canceled_write_is_not_reused(void **state) {
  (void)state;
  check_released(KIND_HOST, cancel);
}

static void private_memory_of_a_canceled_write_is_not_reused(void **state) {
  (void)state;
  check_released(KIND_PRIVATE, cancel);
}

static void memory_of_a_write_to_a_lost_peer_is_not_reused(void **state) {
  (void)state;
  check_released(KIND_PRIVATE, lose_peer);
}

static void wrapped_memory_may_change_once_a_write_has_ended(void **state) {
  (void)state;
  static uint8_t memory[LENGTH] __attribute__((aligned(4096)));
  struct haul_region *region;
  assert_works(haul_region_wrap(at.node, memory, sizeof memory, &region));
  cancel(write_unread(region));
  haul_region_release(region);
  memset(memory, 0x22, sizeof memory);
  assert_unchanged();
}

static void imported_memory_may_change_once_a_write_has_ended(void **state) {
  (void)state;
  struct haul_ticket ticket;
  int descriptor;
  struct haul_region *owned = region_make(at.node, KIND_HOST, LENGTH), *imported;
  assert_works(haul_region_export(owned, HAUL_READ | HAUL_WRITE, NULL, &ticket, &descriptor));
  assert_works(haul_region_import(at.node, &ticket, descriptor, &imported));
  close(descriptor);
  cancel(write_unread(imported));
  haul_region_release(imported);
  memset(haul_region_address(owned), 0x22, LENGTH);
  assert_unchanged();
  region_drop(owned, KIND_HOST);
}

static uint64_t start_add(struct haul_region *region, struct haul_transfer **transfer) {
  uint8_t bytes[FRAME_HEADER + 2 * FRAME_SEGMENT];
  struct frame frame;
  const char *what;
  assert_works(haul_fetch_add(region, 0, at.remote, 8, 7, NULL, transfer));
  assert_true(raw_receive(at.rails[0], bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  assert_int_equal(frame.type, FRAME_FETCH_ADD);
  return frame.request;
}

static void respond_to_add(uint8_t type, uint64_t request, uint64_t payload) {
  static const uint8_t rest[16 + FRAME_TRAILER] = {0x55};
  uint8_t head[FRAME_HEADER];
  frame_pack(&(struct frame){.type = type, .request = request, .payload = payload}, head);
  raw_send(at.rails[0], head, sizeof head);
  raw_send(at.rails[0], rest, payload);
}

static void an_atomic_response_without_data_drops_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  respond_to_add(FRAME_ACK, start_add(region, &transfer), 0);
  assert_fails(HAUL_EPROTO, haul_transfer_wait(transfer, soon()));
  assert_true(raw_ended(at.control, BOUND));
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

static void an_atomic_response_with_too_much_data_drops_the_peer(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  region_fill(at.node, region, 0, LENGTH, 5);
  uint64_t before = region_sum(at.node, region, 0, LENGTH);
  respond_to_add(FRAME_DATA, start_add(region, &transfer), 16);
  assert_true(haul_transfer_wait(transfer, soon()) < 0);
  assert_true(raw_ended(at.control, BOUND));
  assert_true(region_sum(at.node, region, 0, LENGTH) == before);
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

static void an_atomic_is_not_retried_on_another_rail(void **state) {
  (void)state;
  uint8_t byte;
  struct haul_transfer *transfer;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  start_add(region, &transfer);
  shutdown(at.rails[0], SHUT_RDWR);
  assert_fails(HAUL_EPEER, haul_transfer_wait(transfer, soon()));
  assert_false(raw_receive(at.rails[1], &byte, 1));
  assert_true(raw_ended(at.control, BOUND));
  assert_works(haul_transfer_report(transfer, &report));
  assert_int_equal(report.retries, 0);
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

/* The owner has not read the atomic yet, and would run it after the write. */
static void a_write_waits_for_a_canceled_atomic(void **state) {
  (void)state;
  int unread[2];
  struct haul_piece piece = {0, 0, 512};
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint64_t request = start_add(region, &transfer);
  cancel(transfer);
  assert_works(haul_write(at.remote, region, &piece, 1, NULL, &transfer));
  sleep_ms(100);
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(ioctl(at.rails[i], FIONREAD, &unread[i]), 0);
    assert_int_equal(unread[i], 0);
  }
  uint8_t trailer[8 + FRAME_TRAILER] = {0};
  frame_pack_trailer(&(struct frame_trailer){0, 0}, trailer + 8);
  respond_to_add(FRAME_DATA, request, 8);
  raw_send(at.rails[0], trailer + 8, FRAME_TRAILER);
  while (unread[0] + unread[1] == 0)
    for (unsigned i = 0; i < 2; i++)
      assert_int_equal(ioctl(at.rails[i], FIONREAD, &unread[i]), 0);
  cancel(transfer);
  region_drop(region, KIND_HOST);
}

static void a_read_is_retried_on_another_rail(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  uint8_t bytes[FRAME_HEADER + FRAME_SEGMENT];
  struct frame frame;
  const char *what;
  uint64_t request = start_read(region, &transfer);
  send_data(at.rails[0], request, LENGTH / 2);
  shutdown(at.rails[0], SHUT_RDWR);
  assert_true(raw_receive(at.rails[1], bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  assert_int_equal(frame.type, FRAME_READ);
  send_data(at.rails[1], frame.request, LENGTH);
  assert_works(haul_transfer_wait(transfer, soon()));
  assert_works(haul_transfer_report(transfer, &report));
  assert_int_equal(report.retries, 1);
  assert_works(haul_peer_status(at.peer));
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

/* The owner has not read it yet: it would overwrite later writes. */
static void a_write_that_was_begun_is_not_retried(void **state) {
  (void)state;
  uint8_t byte;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  struct haul_transfer *transfer = write_unread(region);
  shutdown(at.rails[0], SHUT_WR);
  assert_fails(HAUL_EPEER, haul_transfer_wait(transfer, soon()));
  assert_false(raw_receive(at.rails[1], &byte, 1));
  assert_true(raw_ended(at.control, BOUND));
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

/* Acknowledges the next WRITE on the rail. */
static void accept_write(uint64_t payload) {
  static uint8_t bytes[WRITE_FRAME];
  uint8_t head[FRAME_HEADER];
  struct frame frame;
  const char *what;
  assert_true(raw_receive(at.rails[0], bytes, WRITE_FRAME - LENGTH + payload));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  assert_int_equal(frame.type, FRAME_WRITE);
  assert_int_equal(frame.payload, payload);
  frame_pack(&(struct frame){.type = FRAME_ACK, .request = frame.request}, head);
  raw_send(at.rails[0], head, sizeof head);
}

/* The canceled write might land after the later one, which takes another rail. */
static void a_write_waits_for_a_canceled_write(void **state) {
  (void)state;
  int unread[2];
  struct haul_piece piece = {0, 0, 512};
  struct haul_transfer *transfer;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  cancel(write_unread(region));
  assert_works(haul_write(at.remote, region, &piece, 1, NULL, &transfer));
  sleep_ms(100);
  for (unsigned i = 0; i < 2; i++)
    assert_int_equal(ioctl(at.rails[i], FIONREAD, &unread[i]), 0);
  assert_int_equal(unread[0], WRITE_FRAME);
  assert_int_equal(unread[1], 0);
  accept_write(LENGTH);
  accept_write(512);
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  region_drop(region, KIND_HOST);
}

static void the_end_of_a_rail_with_a_canceled_write_drops_the_peer(void **state) {
  (void)state;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  cancel(write_unread(region));
  shutdown(at.rails[0], SHUT_WR);
  assert_true(raw_ended(at.control, BOUND));
  region_drop(region, KIND_HOST);
}

/* Reads the rail, and acknowledges each WRITE with the status of its trailer. */
static void *acknowledge_writes(void *argument) {
  static uint8_t payload[FRAME_PAYLOAD_MAX];
  uint8_t head[FRAME_HEADER], rest[FRAME_SEGMENTS_MAX * FRAME_SEGMENT];
  struct frame frame;
  struct frame_trailer trailer;
  const char *what;
  (void)argument;
  while (raw_receive(at.rails[0], head, sizeof head) && frame_parse(head, &frame, &what) == 0 &&
         raw_receive(at.rails[0], rest, (size_t)frame.count * FRAME_SEGMENT) &&
         raw_receive(at.rails[0], payload, frame.payload) &&
         raw_receive(at.rails[0], rest, FRAME_TRAILER) &&
         frame_parse_trailer(rest, &trailer, &what) == 0) {
    frame_pack(
        &(struct frame){.type = FRAME_ACK, .request = frame.request, .status = trailer.status},
        head);
    raw_send(at.rails[0], head, sizeof head);
  }
  return NULL;
}

static void an_unreadable_source_fails_only_its_transfer(void **state) {
  (void)state;
  const size_t half = LENGTH / 2;
  struct haul_region *good = region_make(at.node, KIND_HOST, LENGTH), *bad;
  struct haul_piece whole = {0, 0, LENGTH}, small = {0, 0, 512}, hole = {half, 0, 512};
  struct haul_transfer *before[64], *broken[3], *after;
  pthread_t thread;
  uint8_t *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_works(haul_region_wrap(at.node, memory, LENGTH, &bad));
  mprotect(memory + half, half, PROT_NONE);
  for (size_t i = 0; i < COUNT(before); i++) /* more than fits in the socket */
    assert_works(haul_write(at.remote, good, i % 2 ? &small : &whole, 1, NULL, &before[i]));
  assert_works(haul_write(at.remote, bad, &whole, 1, NULL, &broken[0]));
  assert_works(haul_write(at.remote, bad, &hole, 1, NULL, &broken[1]));
  assert_works(haul_write(at.remote, good, &small, 1, NULL, &after));
  assert_works(haul_write(at.remote, bad, &hole, 1, NULL, &broken[2]));
  pthread_create(&thread, NULL, acknowledge_writes, NULL);
  for (size_t i = 0; i < COUNT(before); i++) {
    assert_works(haul_transfer_wait(before[i], soon()));
    haul_transfer_release(before[i]);
  }
  assert_works(haul_transfer_wait(after, soon()));
  haul_transfer_release(after);
  for (size_t i = 0; i < COUNT(broken); i++) {
    assert_fails(HAUL_EINVAL, haul_transfer_wait(broken[i], soon()));
    haul_transfer_release(broken[i]);
  }
  assert_works(haul_peer_status(at.peer));
  shutdown(at.rails[0], SHUT_RDWR);
  pthread_join(thread, NULL);
  haul_region_release(bad);
  munmap(memory, LENGTH);
  region_drop(good, KIND_HOST);
}

static _Atomic int written = 1;

static void *write_a_little(void *argument) {
  struct haul_piece piece = {0, 0, 4096};
  atomic_store(&written, haul_write(at.remote, argument, &piece, 1, NULL, NULL));
  return NULL;
}

/* The hazard cells are read-only to the owner, but an owner of the same user can open them for
 * writing. Whatever it writes there, the node does not wait. */
static void hazard_cells_that_the_owner_sets_delay_no_write(void **state) {
  (void)state;
  char path[64];
  void *cells;
  pthread_t thread;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, at.hazards_of_node, 0) ==
              MAP_FAILED);
  snprintf(path, sizeof path, "/proc/self/fd/%d", at.hazards_of_node);
  int writable = open(path, O_RDWR | O_CLOEXEC);
  assert_true(writable >= 0);
  cells = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writable, 0);
  memset(cells, 0x11, sizeof(struct hazards));
  region_fill(at.node, region, 0, LENGTH, 8);
  pthread_create(&thread, NULL, write_a_little, region);
  haul_deadline until = soon();
  while (atomic_load(&written) == 1)
    if (haul_deadline_in(0) > until)
      fail_msg("a write of 4 KiB waits for a hazard cell");
  pthread_join(thread, NULL);
  assert_int_equal(atomic_load(&written), 0);
  assert_memory_equal(private_memory, haul_region_address(region), 4096);
  munmap(cells, 4096);
  close(writable);
  region_drop(region, KIND_HOST);
}

static struct haul_path_stats map_stats(void) {
  struct haul_node_stats stats;
  size_t none = 0;
  assert_works(haul_node_stats(at.node, &stats, NULL, &none));
  for (int i = 0; i < HAUL_STATS_PATHS; i++)
    if (strcmp(stats.paths[i].path, "map") == 0)
      return stats.paths[i];
  fail_msg("there is no path map");
  return stats.paths[0];
}

/* The peer writes any figures into its page. The node shows at most what memory could have moved
 * since it connected, and never less than before. */
static void counters_of_the_peer_are_bounded(void **state) {
  (void)state;
  struct map_page *page;
  haul_deadline before = haul_deadline_in(0);
  assert_int_equal(map_stats().served, 0);
  page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, at.hazards.fd, 0);
  assert_ptr_not_equal(page, MAP_FAILED);
  atomic_store(&page->counters.writes, 3);
  atomic_store(&page->counters.bytes_out, 12);
  struct haul_path_stats first = map_stats();
  assert_int_equal(first.served, 3);
  assert_int_equal(first.served_in, 12);
  assert_int_equal(first.served_out, 0);
  memset(&page->counters, 0xff, sizeof page->counters);
  struct haul_path_stats full = map_stats();
  uint64_t elapsed = (uint64_t)(haul_deadline_in(0) - before) + (uint64_t)BOUND;
  assert_in_range(full.served, 3, elapsed);
  assert_in_range(full.served_in, 13, 1000 * elapsed);
  assert_in_range(full.served_out, 1, 1000 * elapsed);
  memset(&page->counters, 0, sizeof page->counters);
  struct haul_path_stats last = map_stats();
  assert_int_equal(last.served_in, full.served_in);
  assert_int_equal(last.served_out, full.served_out);
  assert_int_equal(last.writes + last.reads + last.atomics, 0);
  munmap(page, 4096);
}

static int fail_with;
static ssize_t (*vm_write)(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                           unsigned long, unsigned long);

static ssize_t fail_vm_write(pid_t pid, const struct iovec *local, unsigned long locals,
                             const struct iovec *remote, unsigned long remotes,
                             unsigned long flags) {
  (void)pid, (void)local, (void)locals, (void)remote, (void)remotes, (void)flags;
  errno = fail_with;
  return -1;
}

/* One within the call, one that is posted. */
static void write_twice(struct haul_region *region, struct haul_transfer *transfers[2]) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece small = {0, 0, 512}, whole = {0, 0, LENGTH};
  options.deadline = soon();
  options.flags = HAUL_CHECKSUM;
  assert_works(haul_write(at.remote, region, &whole, 1, &options, &transfers[0]));
  assert_works(haul_write(at.remote, region, &small, 1, NULL, &transfers[1]));
}

static void a_path_that_stops_working_is_replaced(void **state) {
  (void)state;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  struct haul_transfer *transfers[2];
  struct haul_report report = HAUL_REPORT_INIT;
  pthread_t thread;
  vm_write = sys_ops.vm_write;
  fail_with = EPERM;
  sys_ops.vm_write = fail_vm_write;
  pthread_create(&thread, NULL, acknowledge_writes, NULL);
  write_twice(region, transfers);
  for (unsigned i = 0; i < 2; i++) {
    assert_works(haul_transfer_wait(transfers[i], soon()));
    assert_works(haul_transfer_report(transfers[i], &report));
    assert_string_equal(report.paths[0].name, "tcp");
    assert_non_null(strstr(report.paths[1].reason, "cross-memory attach failed"));
    assert_true(report.retries <= 1);
    haul_transfer_release(transfers[i]);
  }
  sys_ops.vm_write = vm_write;
  shutdown(at.rails[0], SHUT_RDWR);
  pthread_join(thread, NULL);
  region_drop(region, KIND_HOST);
}

static void memory_that_cannot_be_reached_fails_the_transfer(void **state) {
  (void)state;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  struct haul_piece small = {0, 0, 512}, whole = {0, 0, LENGTH};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  vm_write = sys_ops.vm_write;
  fail_with = EFAULT;
  sys_ops.vm_write = fail_vm_write;
  options.flags = HAUL_CHECKSUM;
  assert_fails(HAUL_EINVAL, haul_write(at.remote, region, &small, 1, NULL, NULL));
  assert_fails(HAUL_EINVAL, haul_write(at.remote, region, &whole, 1, &options, NULL));
  sys_ops.vm_write = vm_write;
  assert_works(haul_write(at.remote, region, &small, 1, NULL, NULL));
  region_drop(region, KIND_HOST);
}

static unsigned vm_calls;
static uint64_t cut_random; /* 0: no call is cut short */

/* As the kernel may, at any byte. */
static ssize_t cut_vm_write(pid_t pid, const struct iovec *local, unsigned long locals,
                            const struct iovec *remote, unsigned long remotes,
                            unsigned long flags) {
  struct iovec some[64];
  vm_calls++;
  if (!cut_random)
    return vm_write(pid, local, locals, remote, remotes, flags);
  unsigned long count = 1 + next_random(&cut_random) % remotes;
  assert_true(count <= COUNT(some));
  memcpy(some, remote, count * sizeof *some);
  some[count - 1].iov_len = 1 + next_random(&cut_random) % some[count - 1].iov_len;
  return vm_write(pid, local, locals, some, count, flags);
}

#define MANY 200

/* Of 1 to 40 bytes, apart on both sides. */
static uint64_t fill_pieces(struct haul_piece pieces[MANY], uint64_t random) {
  for (uint64_t i = 0; i < MANY; i++)
    pieces[i] = (struct haul_piece){i * 41, (MANY - 1 - i) * 43, 1 + next_random(&random) % 40};
  return random;
}

static void write_pieces(struct haul_region *region, const struct haul_piece pieces[MANY]) {
  const uint8_t *from = haul_region_address(region), *to = private_memory;
  uint8_t expected[MANY * 43];
  memset(private_memory, 0x5a, sizeof expected);
  memset(expected, 0x5a, sizeof expected);
  for (unsigned i = 0; i < MANY; i++)
    memcpy(expected + pieces[i].remote, from + pieces[i].local, pieces[i].length);
  vm_calls = 0;
  assert_works(haul_write(at.remote, region, pieces, MANY, NULL, NULL));
  assert_memory_equal(to, expected, sizeof expected);
}

static void many_pieces_take_few_calls_which_may_be_cut_short(void **state) {
  (void)state;
  struct haul_region *region = region_make(at.node, KIND_HOST, LENGTH);
  struct haul_piece pieces[MANY];
  uint64_t random = test_seed();
  region_fill(at.node, region, 0, LENGTH, 9);
  vm_write = sys_ops.vm_write;
  sys_ops.vm_write = cut_vm_write;
  random = fill_pieces(pieces, random);
  write_pieces(region, pieces);
  assert_true(vm_calls <= MANY / 16);
  for (unsigned round = 0; round < 50; round++) {
    cut_random = random = fill_pieces(pieces, random);
    write_pieces(region, pieces);
  }
  cut_random = 0;
  sys_ops.vm_write = vm_write;
  region_drop(region, KIND_HOST);
}

int main(void) {
#define WITH_OWNER(test)                                                                           \
  { #test, test, start, end, NULL }
#define WITH_ONE_RAIL(test)                                                                        \
  { #test, test, start_one_rail, end, NULL }
#define WITH_MAP(test)                                                                             \
  { #test, test, start_with_map, end_with_map, NULL }
  const struct CMUnitTest tests[] = {
      WITH_OWNER(a_rejection_within_the_data_drops_the_peer),
      WITH_OWNER(data_on_two_rails_drops_the_peer),
      WITH_OWNER(a_rejection_after_staged_data_drops_the_peer),
      WITH_OWNER(a_response_on_another_rail_drops_the_peer),
      WITH_ONE_RAIL(an_unreadable_source_fails_only_its_transfer),
      WITH_ONE_RAIL(memory_of_a_canceled_write_is_not_reused),
      WITH_ONE_RAIL(private_memory_of_a_canceled_write_is_not_reused),
      WITH_ONE_RAIL(memory_of_a_write_to_a_lost_peer_is_not_reused),
      WITH_ONE_RAIL(wrapped_memory_may_change_once_a_write_has_ended),
      WITH_ONE_RAIL(imported_memory_may_change_once_a_write_has_ended),
      WITH_OWNER(an_atomic_response_without_data_drops_the_peer),
      WITH_OWNER(an_atomic_response_with_too_much_data_drops_the_peer),
      WITH_OWNER(an_atomic_is_not_retried_on_another_rail),
      WITH_OWNER(a_write_waits_for_a_canceled_atomic),
      WITH_OWNER(a_read_is_retried_on_another_rail),
      WITH_OWNER(a_write_that_was_begun_is_not_retried),
      WITH_OWNER(a_write_waits_for_a_canceled_write),
      WITH_OWNER(the_end_of_a_rail_with_a_canceled_write_drops_the_peer),
      WITH_MAP(hazard_cells_that_the_owner_sets_delay_no_write),
      WITH_MAP(counters_of_the_peer_are_bounded),
      WITH_MAP(a_path_that_stops_working_is_replaced),
      WITH_MAP(memory_that_cannot_be_reached_fails_the_transfer),
      WITH_MAP(many_pieces_take_few_calls_which_may_be_cut_short),
  };
  return cmocka_run_group_tests_name("raw owner", tests, NULL, NULL);
}
