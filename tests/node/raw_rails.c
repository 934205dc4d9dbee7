/* SPDX-License-Identifier: MIT
 * A malformed or hostile peer on tcp rails: malformed, truncated, forged, endless or too many
 * frames. The node rejects the requests or drops the peer, and continues to serve others. */
#include "support/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/wire.h"
#include "fabric/tcp/frame.h"
#include "support/names.h"
#include "support/raw.h"
#include "support/serving.h"

#define BOUND (20 * S)
#define KIB   1024u

/* A control connection, a rail, and a handle of each region. */
struct rail {
  int control, fd;
  uint64_t host, sim, wrapped, readable;
};

static struct rail open_rail(void) {
  struct welcome welcome;
  struct rail rail;
  rail.control = raw_peer(serving.owner.address, &welcome);
  rail.fd = raw_channel(serving.owner.address, &welcome, "tcp", 0);
  assert_true(rail.fd >= 0);
  assert_int_equal(raw_lookup(rail.control, "host", &rail.host), 0);
  assert_int_equal(raw_lookup(rail.control, "sim", &rail.sim), 0);
  assert_int_equal(raw_lookup(rail.control, "wrapped", &rail.wrapped), 0);
  assert_int_equal(raw_lookup(rail.control, "readable", &rail.readable), 0);
  return rail;
}

static void close_rail(struct rail *rail) {
  close(rail->fd);
  close(rail->control);
}

/* The node ends both connections, and leaks nothing. */
static void assert_dropped(struct rail *rail) {
  assert_true(raw_ended(rail->fd, BOUND));
  assert_true(raw_ended(rail->control, BOUND));
  close_rail(rail);
  assert_unharmed();
}

struct raw_request {
  uint8_t bytes[FRAME_HEAD_MAX + 4 * KIB + FRAME_TRAILER];
  size_t length;
};

static struct raw_request make(uint8_t type, uint64_t handle, uint64_t offset, uint64_t length,
                               uint64_t number) {
  struct raw_request request = {.length = FRAME_HEADER + FRAME_SEGMENT};
  struct frame frame = {
      .type = type, .count = 1, .request = number, .handle = handle, .payload = length};
  struct frame_segment piece = {offset, length};
  struct frame_trailer trailer = {0, 0};
  frame_pack(&frame, request.bytes);
  frame_pack_segment(&piece, request.bytes + FRAME_HEADER);
  if (type != FRAME_WRITE)
    return request;
  memset(request.bytes + request.length, 0x77, length);
  request.length += length;
  frame_pack_trailer(&trailer, request.bytes + request.length);
  request.length += FRAME_TRAILER;
  return request;
}

static struct frame receive_response(struct rail *rail) {
  uint8_t bytes[FRAME_HEADER];
  struct frame frame;
  const char *what;
  assert_true(raw_receive(rail->fd, bytes, sizeof bytes));
  assert_int_equal(frame_parse(bytes, &frame, &what), 0);
  return frame;
}

static void expect_status(struct rail *rail, uint8_t type, uint64_t handle, uint64_t offset,
                          uint64_t length, int code) {
  static uint64_t number;
  struct raw_request request = make(type, handle, offset, length, ++number);
  assert_true(raw_send(rail->fd, request.bytes, request.length));
  struct frame frame = receive_response(rail);
  assert_int_equal(frame.request, number);
  assert_int_equal(frame.status, code);
  if (frame.type != FRAME_DATA) {
    assert_int_equal(frame.type, FRAME_ACK);
    return;
  }
  uint8_t bytes[8 * KIB];
  assert_true(raw_receive(rail->fd, bytes, frame.payload + FRAME_TRAILER));
}

static void bad_ranges_rights_and_handles_are_rejected(void **state) {
  (void)state;
  struct rail rail = open_rail();
  const uint64_t whole = 4 << 20;
  owner_fill(&serving.owner, 3, 0, whole, 9);
  uint64_t before = owner_sum(&serving.owner, 3, 0, whole);
  const uint64_t handles[] = {rail.host, rail.sim, rail.wrapped};
  for (size_t i = 0; i < COUNT(handles); i++) {
    for (uint8_t type = FRAME_WRITE; type <= FRAME_READ; type++) {
      expect_status(&rail, type, handles[i], whole, 1, HAUL_ERANGE);
      expect_status(&rail, type, handles[i], whole - 1, 2, HAUL_ERANGE);
      expect_status(&rail, type, handles[i], UINT64_MAX - 8, 4, HAUL_ERANGE);
      expect_status(&rail, type, handles[i], UINT64_MAX / 2, 4, HAUL_ERANGE);
      expect_status(&rail, type, handles[i] ^ (uint64_t)1 << 40, 0, 4, HAUL_ESTALE);
      expect_status(&rail, type, handles[i] ^ (uint64_t)1 << 19, 0, 4, HAUL_ESTALE);
      expect_status(&rail, type, handles[i], whole - 4 * KIB, 4 * KIB, 0);
    }
  }
  uint64_t chance = test_seed();
  for (unsigned i = 0; i < 100; i++)
    expect_status(&rail, FRAME_WRITE, next_random(&chance), 0, 4, HAUL_ESTALE);
  expect_status(&rail, FRAME_WRITE, 0, 0, 4, HAUL_ESTALE);
  expect_status(&rail, FRAME_WRITE, rail.readable, 0, 4 * KIB, HAUL_EACCESS);
  expect_status(&rail, FRAME_READ, rail.readable, 0, 4 * KIB, 0);
  assert_true(owner_sum(&serving.owner, 3, 0, whole) == before);
  close_rail(&rail);
  assert_unharmed();
}

static struct raw_request make_add(uint64_t handle, uint64_t offset, uint64_t number) {
  struct raw_request request = make(FRAME_FETCH_ADD, handle, offset, 8, number);
  struct frame_segment operands = {1, 0};
  request.bytes[6] = 2;
  frame_pack_segment(&operands, request.bytes + request.length);
  request.length += FRAME_SEGMENT;
  return request;
}

/* Returns the old value unless the request is rejected. */
static uint64_t expect_add(struct rail *rail, uint64_t handle, uint64_t offset, int code) {
  static uint64_t number;
  uint8_t bytes[8 + FRAME_TRAILER];
  struct raw_request request = make_add(handle, offset, ++number);
  assert_true(raw_send(rail->fd, request.bytes, request.length));
  struct frame frame = receive_response(rail);
  assert_int_equal(frame.request, number);
  assert_int_equal(frame.status, code);
  assert_int_equal(frame.type, code ? FRAME_ACK : FRAME_DATA);
  if (code)
    return 0;
  uint64_t old;
  assert_true(frame.payload == 8 && raw_receive(rail->fd, bytes, sizeof bytes));
  memcpy(&old, bytes, sizeof old);
  return old;
}

static void bad_atomics_are_rejected(void **state) {
  (void)state;
  struct rail rail = open_rail();
  const uint64_t whole = 4 << 20, handles[] = {rail.host, rail.wrapped};
  for (size_t i = 0; i < COUNT(handles); i++) {
    expect_add(&rail, handles[i], whole, HAUL_ERANGE);
    expect_add(&rail, handles[i], whole - 4, HAUL_ERANGE);
    expect_add(&rail, handles[i], UINT64_MAX - 15, HAUL_ERANGE);
    expect_add(&rail, handles[i], 4, HAUL_EINVAL);
    expect_add(&rail, handles[i], whole - 9, HAUL_EINVAL);
    expect_add(&rail, handles[i] ^ (uint64_t)1 << 40, 0, HAUL_ESTALE);
    uint64_t first = expect_add(&rail, handles[i], whole - 8, 0);
    assert_true(expect_add(&rail, handles[i], whole - 8, 0) == first + 1);
  }
  expect_add(&rail, rail.sim, 0, HAUL_ENOTSUP);
  expect_add(&rail, rail.readable, 0, HAUL_EACCESS);
  expect_add(&rail, 0, 0, HAUL_ESTALE);
  close_rail(&rail);
  assert_unharmed();
}

static void an_aborted_payload_is_rejected(void **state) {
  (void)state;
  struct rail rail = open_rail();
  struct raw_request request = make(FRAME_WRITE, rail.host, 0, 64, 1);
  struct frame_trailer trailer = {0, HAUL_ECANCELED};
  frame_pack_trailer(&trailer, request.bytes + request.length - FRAME_TRAILER);
  assert_true(raw_send(rail.fd, request.bytes, request.length));
  assert_int_equal(receive_response(&rail).status, HAUL_ECANCELED);
  /* A checksum that does not match. */
  request = make(FRAME_WRITE, rail.sim, 0, 64, 2);
  request.bytes[5] = FRAME_CHECKSUM;
  assert_true(raw_send(rail.fd, request.bytes, request.length));
  assert_int_equal(receive_response(&rail).status, HAUL_ECHECKSUM);
  close_rail(&rail);
  assert_unharmed();
}

/* Writes two segments, the second one first, in chunks of random sizes. `damage`: the index of a
 * corrupted byte; -1: none. Returns the status of the response. */
static int write_in_chunks(struct rail *rail, uint64_t handle, uint64_t *seed, long damage) {
  const struct frame_segment pieces[] = {{700001, 300000}, {0, 700001}};
  const struct frame frame = {.type = FRAME_WRITE,
                              .flags = FRAME_CHECKSUM,
                              .count = 2,
                              .request = next_random(seed),
                              .handle = handle,
                              .payload = 1000001};
  const size_t head = FRAME_HEADER + 2 * FRAME_SEGMENT, whole = head + 1000001 + FRAME_TRAILER;
  struct frame_trailer trailer = {0, 0};
  uint8_t *bytes = malloc(whole), *payload = bytes + head;
  frame_pack(&frame, bytes);
  for (size_t i = 0; i < 2; i++)
    frame_pack_segment(&pieces[i], bytes + FRAME_HEADER + i * FRAME_SEGMENT);
  pattern_fill(payload, 1000001, *seed);
  trailer.checksum =
      frame_checksum(XXH3_64bits(payload, 300000), XXH3_64bits(payload + 300000, 700001));
  frame_pack_trailer(&trailer, payload + 1000001);
  if (damage >= 0)
    payload[damage] ^= 1;
  for (size_t at = 0, chunk; at < whole; at += chunk) {
    chunk = 1 + next_random(seed) % 200000;
    chunk = chunk < whole - at ? chunk : whole - at;
    assert_true(raw_send(rail->fd, bytes + at, chunk));
  }
  free(bytes);
  return receive_response(rail).status;
}

static void the_checksum_of_a_large_payload_is_verified(void **state) {
  (void)state;
  struct rail rail = open_rail();
  uint64_t seed = test_seed();
  const uint64_t handles[] = {rail.host, rail.sim, rail.wrapped};
  const long damages[] = {0, 299999, 300000, 1000000};
  for (size_t i = 0; i < COUNT(handles); i++)
    for (size_t k = 0; k < COUNT(damages); k++) {
      assert_int_equal(write_in_chunks(&rail, handles[i], &seed, -1), 0);
      assert_int_equal(write_in_chunks(&rail, handles[i], &seed, damages[k]), HAUL_ECHECKSUM);
    }
  close_rail(&rail);
  assert_unharmed();
}

struct patch {
  size_t at;
  uint64_t value;
  size_t length;
};

static void expect_drop(struct rail *rail, struct raw_request *request, const struct patch *patch) {
  struct wire wire = wire_over(request->bytes + patch->at, patch->length);
  wire_put(&wire, patch->value, patch->length);
  raw_send(rail->fd, request->bytes, request->length);
  if (!raw_ended(rail->fd, BOUND))
    fail_msg("the node accepted the value %llx at byte %zu", (unsigned long long)patch->value,
             patch->at);
  assert_dropped(rail);
}

static void a_malformed_frame_drops_the_peer(void **state) {
  (void)state;
  const struct patch wrong[] = {
      {0, 0, 4},               /* magic */
      {0, UINT64_MAX, 4},      /* magic */
      {4, 0, 1},               /* type */
      {4, FRAME_FETCH_ADD, 1}, /* an atomic with a wrong payload */
      {4, 7, 1},               /* type */
      {4, 255, 1},             /* type */
      {4, FRAME_ACK, 1},       /* a type without payload and segments */
      {4, FRAME_DATA, 1},      /* a type without segments */
      {5, 2, 1},               /* flags */
      {5, 0x80, 1},            /* flags */
      {6, 0, 2},               /* no segments */
      {6, 2, 2},               /* more segments than the payload has */
      {6, 257, 2},             /* too many segments */
      {6, 65535, 2},           /* too many segments */
      {24, 0, 8},              /* no payload */
      {24, 63, 8},             /* less payload than the segments */
      {24, 65, 8},             /* more payload than the segments */
      {24, 1048577, 8},        /* too much payload */
      {24, UINT64_MAX, 8},     /* too much payload */
      {32, 1, 4},              /* an invalid status */
      {32, 0xfffffff0, 4},     /* a status in a request */
      {36, 1, 1},              /* reserved bytes */
      {47, 1, 1},              /* reserved bytes */
      {48, UINT64_MAX, 8},     /* a segment that wraps around */
      {56, 0, 8},              /* an empty segment */
      {56, 65, 8},             /* a segment longer than the payload */
      {56, UINT64_MAX, 8},     /* the same, and wraps */
      {64 + 64 + 8, 1, 4},     /* trailer: an invalid status */
      {64 + 64 + 12, 0, 4}     /* trailer: magic */
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct rail rail = open_rail();
    struct raw_request request = make(FRAME_WRITE, rail.host, 0, 64, 1);
    expect_drop(&rail, &request, &wrong[i]);
  }
}

static void a_malformed_atomic_drops_the_peer(void **state) {
  (void)state;
  const struct patch wrong[] = {
      {5, 1, 1},   /* a checksum */
      {6, 1, 2},   /* no operands */
      {6, 3, 2},   /* more of them */
      {24, 16, 8}, /* more than 8 bytes */
      {24, 0, 8},  /* none */
      {32, 1, 4},  /* a status */
      {56, 4, 8},  /* a segment that is not 8 bytes */
      {56, 16, 8}, /* the same */
      {72, 1, 8},  /* a second operand */
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct rail rail = open_rail();
    struct raw_request request = make_add(rail.host, 0, 1);
    expect_drop(&rail, &request, &wrong[i]);
  }
}

static void request_reads(int fd, uint64_t handle, uint64_t length, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    struct raw_request request = make(FRAME_READ, handle, 0, length, i);
    assert_true(raw_send(fd, request.bytes, request.length));
  }
}

static void receive_reads(int fd, uint64_t length, unsigned count) {
  const size_t frame = FRAME_HEADER + length + FRAME_TRAILER;
  uint8_t *bytes = malloc(frame);
  assert_non_null(bytes);
  for (unsigned i = 0; i < count; i++)
    assert_true(raw_receive(fd, bytes, frame));
  free(bytes);
}

/* A requester has its window back once a rail has ended. The owner may learn of that end after it
 * has read the next requests from another rail. */
static void each_rail_may_take_the_whole_window(void **state) {
  const uint64_t length = 1024 * KIB; /* the responses wait for their reader */
  (void)state;
  struct welcome welcome;
  int control = raw_peer(serving.owner.address, &welcome), rails[2];
  uint64_t handle;
  for (uint16_t i = 0; i < 2; i++)
    rails[i] = raw_channel(serving.owner.address, &welcome, "tcp", i);
  assert_true(rails[0] >= 0 && rails[1] >= 0);
  assert_int_equal(raw_lookup(control, "readable", &handle), 0);
  for (unsigned i = 0; i < 2; i++)
    request_reads(rails[i], handle, length, REQUESTS_MAX);
  for (unsigned i = 0; i < 2; i++) {
    receive_reads(rails[i], length, REQUESTS_MAX);
    close(rails[i]);
  }
  close(control);
}

/* More than the window allows. */
static void a_flood_of_atomics_drops_the_peer(void **state) {
  (void)state;
  struct rail rail = open_rail();
  for (unsigned i = 0; i < 100000; i++) {
    struct raw_request request = make_add(rail.host, 0, i);
    if (!raw_send(rail.fd, request.bytes, request.length))
      break;
  }
  assert_dropped(&rail);
}

static void a_response_to_no_request_drops_the_peer(void **state) {
  (void)state;
  const struct frame frames[] = {
      {.type = FRAME_ACK, .request = 0},
      {.type = FRAME_ACK, .request = UINT64_MAX, .status = HAUL_ESTALE},
      {.type = FRAME_ACK, .request = (uint64_t)1 << 32},
      {.type = FRAME_DATA, .request = 0, .payload = 64},
      {.type = FRAME_DATA, .request = UINT64_MAX, .payload = 1 << 20},
  };
  for (size_t i = 0; i < COUNT(frames); i++) {
    struct rail rail = open_rail();
    uint8_t bytes[FRAME_HEADER];
    frame_pack(&frames[i], bytes);
    raw_send(rail.fd, bytes, sizeof bytes);
    assert_dropped(&rail);
  }
}

static void garbage_drops_the_peer(void **state) {
  (void)state;
  uint64_t chance = test_seed();
  static uint8_t garbage[100000];
  for (unsigned round = 0; round < 20; round++) {
    struct rail rail = open_rail();
    for (size_t i = 0; i < sizeof garbage; i++)
      garbage[i] = (uint8_t)next_random(&chance);
    raw_send(rail.fd, garbage, 48 + next_random(&chance) % (sizeof garbage - 48));
    assert_dropped(&rail);
  }
}

/* The node drops the peer or responds, and never hangs. */
static void frames_with_a_flipped_bit_do_no_harm(void **state) {
  (void)state;
  uint64_t chance = test_seed();
  for (unsigned round = 0; round < (SANITIZED ? 60 : 300); round++) {
    struct rail rail = open_rail();
    struct raw_request request =
        make(round % 3 ? FRAME_WRITE : FRAME_READ, round % 2 ? rail.host : rail.sim, 0, 512, 1);
    size_t bit = next_random(&chance) % (request.length * 8);
    request.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    raw_send(rail.fd, request.bytes, request.length);
    shutdown(rail.fd, SHUT_WR);
    assert_true(raw_ended(rail.fd, BOUND));
    close_rail(&rail);
  }
  assert_unharmed();
}

static void a_frame_may_be_truncated_at_every_byte(void **state) {
  (void)state;
  const size_t whole = make(FRAME_WRITE, 0, 0, 40, 1).length;
  for (size_t cut = 0; cut < whole; cut++) {
    struct rail rail = open_rail();
    struct raw_request request = make(FRAME_WRITE, cut % 2 ? rail.host : rail.sim, 0, 40, 1);
    assert_true(raw_send(rail.fd, request.bytes, cut));
    shutdown(rail.fd, SHUT_WR);
    assert_true(raw_ended(rail.fd, BOUND)); /* the node has read all of it */
    close_rail(&rail);
  }
  assert_unharmed();
}

static void frames_arrive_byte_by_byte(void **state) {
  (void)state;
  struct rail rail = open_rail();
  for (unsigned type = FRAME_WRITE; type <= FRAME_READ; type++) {
    struct raw_request request = make((uint8_t)type, rail.sim, 100, 40, type);
    for (size_t i = 0; i < request.length; i++)
      assert_true(raw_send(rail.fd, request.bytes + i, 1));
    struct frame frame = receive_response(&rail);
    assert_int_equal(frame.status, 0);
    uint8_t bytes[40 + FRAME_TRAILER];
    if (frame.type == FRAME_DATA)
      assert_true(raw_receive(rail.fd, bytes, sizeof bytes));
  }
  close_rail(&rail);
  assert_unharmed();
}

/* Until the node ends the connection `fd`. The pings keep the peer as a whole from being silent. */
static void ping_until_dropped(struct rail *rail, int fd) {
  haul_deadline until = haul_deadline_in(BOUND);
  while (!raw_ended(fd, 20 * MS)) {
    raw_control(rail->control, CONTROL_PING, 0, NULL, 0);
    assert_true(haul_deadline_in(0) < until);
  }
  assert_dropped(rail);
}

static void stall(size_t after) {
  struct rail rail = open_rail();
  struct raw_request request = make(FRAME_WRITE, rail.host, 0, 4 * KIB, 1);
  assert_true(raw_send(rail.fd, request.bytes, after));
  ping_until_dropped(&rail, rail.fd);
}

static void a_peer_that_stalls_within_a_frame_is_dropped(void **state) {
  (void)state;
  stall(1);
  stall(FRAME_HEADER);
  stall(FRAME_HEADER + FRAME_SEGMENT);
  stall(FRAME_HEADER + FRAME_SEGMENT + 1000);
  stall(FRAME_HEADER + FRAME_SEGMENT + 4 * KIB);
  stall(FRAME_HEADER + FRAME_SEGMENT + 4 * KIB + 8);
}

static void set_send_timeout(int fd, long ms) {
  struct timeval time = {ms / 1000, ms % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

/* Requests 1 MiB each time, and never reads. */
static void flood_with_reads(const char *region) {
  struct rail rail = open_rail();
  uint64_t handle;
  assert_int_equal(raw_lookup(rail.control, region, &handle), 0);
  set_send_timeout(rail.fd, 500);
  for (uint64_t i = 0; i < 5000; i++) {
    struct raw_request request = make(FRAME_READ, handle, 0, FRAME_PAYLOAD_MAX, i);
    if (!raw_send(rail.fd, request.bytes, request.length))
      break;
  }
  assert_serves(); /* during the flood */
  assert_dropped(&rail);
}

static void a_flood_of_reads_drops_the_peer(void **state) {
  (void)state;
  flood_with_reads("host");
  flood_with_reads("sim");
}

/* A peer within its window that does not read delays no other peer. */
static void a_peer_that_does_not_read_is_dropped(void **state) {
  (void)state;
  struct rail rail = open_rail();
  for (uint64_t i = 0; i < REQUESTS_MAX; i++) {
    struct raw_request request =
        make(FRAME_READ, i % 2 ? rail.sim : rail.host, 0, FRAME_PAYLOAD_MAX, i);
    assert_true(raw_send(rail.fd, request.bytes, request.length));
  }
  assert_serves();
  ping_until_dropped(&rail, rail.control);
}

static void unread_acks_are_bounded(void **state) {
  (void)state;
  struct rail rail = open_rail();
  set_send_timeout(rail.fd, 500);
  struct raw_request request = make(FRAME_WRITE, 12345, 0, 1, 0);
  for (unsigned i = 0; i < 200000; i++)
    if (!raw_send(rail.fd, request.bytes, request.length))
      break;
  assert_serves();
  close_rail(&rail);
  assert_unharmed();
}

static void invalid_channels_are_rejected(void **state) {
  (void)state;
  struct welcome welcome, other;
  int control = raw_peer(serving.owner.address, &welcome);
  other = welcome;
  other.token[7] ^= 1;
  assert_int_equal(raw_channel(serving.owner.address, &other, "tcp", 0), -1);
  memset(other.token, 0, sizeof other.token);
  assert_int_equal(raw_channel(serving.owner.address, &other, "tcp", 0), -1);
  assert_int_equal(raw_channel(serving.owner.address, &welcome, "udp", 0), -1);
  assert_int_equal(raw_channel(serving.owner.address, &welcome, "", 0), -1);
  static const uint16_t indices[] = {1, 5, 15, 17, 65535};
  for (size_t i = 0; i < COUNT(indices); i++) { /* out of order, out of range */
    int fd = raw_channel(serving.owner.address, &welcome, "tcp", indices[i]);
    assert_true(fd < 0 || raw_ended(fd, BOUND));
    if (fd >= 0)
      close(fd);
  }
  int first = raw_channel(serving.owner.address, &welcome, "tcp", 0);
  int again = raw_channel(serving.owner.address, &welcome, "tcp", 0);
  assert_true(first >= 0 && !raw_ended(first, 20 * MS));
  assert_true(again < 0 || raw_ended(again, BOUND));
  int fds[16];
  for (uint16_t i = 1; i < 16; i++)
    fds[i] = raw_channel(serving.owner.address, &welcome, "tcp", i);
  for (uint16_t i = 1; i < 16; i++)
    close(fds[i]);
  /* After the last of them comes the express rail. */
  int express = raw_channel(serving.owner.address, &welcome, "tcp", 16);
  int second = raw_channel(serving.owner.address, &welcome, "tcp", 16);
  assert_true(express >= 0 && !raw_ended(express, 20 * MS));
  assert_true(second < 0 || raw_ended(second, BOUND));
  close(express);
  if (second >= 0)
    close(second);
  close(first);
  if (again >= 0)
    close(again);
  close(control);
  assert_unharmed();
}

static int start_with_few_bounce_buffers(void **state) {
  setenv("HAUL_STAGING", "8M", 1);
  int code = serving_start(state);
  unsetenv("HAUL_STAGING");
  return code;
}

static struct haul_transfer *start_transfer(enum haul_operation operation,
                                            struct haul_remote *remote) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 8 * KIB, 64 * KIB};
  struct haul_transfer *transfer;
  options.only = "tcp";
  options.deadline = haul_deadline_in(BOUND);
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(remote, serving.region, &piece, 1, &options, &transfer)
                   : haul_read(serving.region, remote, &piece, 1, &options, &transfer));
  return transfer;
}

/* Waits 20 ms. When the transfer has ended releases it, and returns whether it succeeded. */
static bool has_completed(struct haul_transfer **transfer) {
  int code = haul_transfer_wait(*transfer, haul_deadline_in(20 * MS));
  if (code == HAUL_ETIMEDOUT)
    return false;
  assert_true(code == 0 || code == HAUL_ELIMIT);
  haul_transfer_release(*transfer);
  *transfer = NULL;
  return code == 0;
}

/* Peers that send a byte from time to time are not silent. They keep their bounce buffers until
 * another transfer has waited for one for the liveness timeout. */
static void slow_senders_keep_no_bounce_buffer_that_others_need(void **state) {
  enum { RAILS = 6, TIMES = 3 };
  (void)state;
  struct rail rails[RAILS];
  struct haul_remote *remote;
  struct raw_request request;
  size_t sent = FRAME_HEADER + FRAME_SEGMENT + 1;
  for (unsigned i = 0; i < RAILS; i++) {
    rails[i] = open_rail();
    request = make(FRAME_WRITE, rails[i].sim, 0, 4 * KIB, 1);
    assert_true(raw_send(rails[i].fd, request.bytes, sent));
  }
  assert_works(haul_peer_lookup(serving.peer, "sim", haul_deadline_in(BOUND), &remote));
  haul_deadline until = haul_deadline_in(BOUND);
  struct haul_transfer *transfer = NULL;
  unsigned done = 0, refused = 0;
  for (; done < TIMES && haul_deadline_in(0) < until; sent++) {
    for (unsigned i = 0; i < RAILS; i++)
      assert_true(raw_send(rails[i].fd, request.bytes + sent, 1));
    if (!transfer)
      transfer = start_transfer(HAUL_OP_WRITE, remote);
    done += has_completed(&transfer);
  }
  assert_int_equal(done, TIMES);
  assert_true(owner_counter(&serving.owner, "staging.waits") > 0);
  assert_works(haul_peer_status(serving.peer));
  for (unsigned i = 0; i < RAILS; i++) {
    assert_true(raw_send(rails[i].fd, request.bytes + sent, request.length - sent));
    int status = receive_response(&rails[i]).status;
    assert_true(status == 0 || status == HAUL_ELIMIT);
    refused += status == HAUL_ELIMIT;
    close_rail(&rails[i]);
  }
  assert_true(refused > 0);
  haul_remote_release(remote);
  assert_unharmed();
}

/* The same for peers that read few bytes from time to time. */
static void slow_readers_keep_no_bounce_buffer_that_others_need(void **state) {
  enum { RAILS = 2, READS = 12, TIMES = 3 };
  (void)state;
  struct rail rails[RAILS];
  struct haul_remote *remote;
  uint8_t bytes[16 * KIB];
  int room = 64 * KIB; /* a large window is updated seldom */
  for (unsigned i = 0; i < RAILS; i++) {
    rails[i] = open_rail();
    assert_works(setsockopt(rails[i].fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room));
    for (unsigned j = 0; j < READS; j++) {
      struct raw_request request = make(FRAME_READ, rails[i].sim, 0, 1024 * KIB, j + 1);
      assert_true(raw_send(rails[i].fd, request.bytes, request.length));
    }
  }
  assert_works(haul_peer_lookup(serving.peer, "sim", haul_deadline_in(BOUND), &remote));
  haul_deadline until = haul_deadline_in(BOUND);
  struct haul_transfer *transfer = NULL;
  unsigned done = 0;
  while (done < TIMES && haul_deadline_in(0) < until) {
    /* Only the bytes that are there: the other rail may have all buffers. */
    for (unsigned i = 0; i < RAILS; i++) {
      assert_true(recv(rails[i].fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0 || errno == EAGAIN);
      assert_true(raw_control(rails[i].control, CONTROL_PING, 0, NULL, 0)); /* it is not silent */
    }
    if (!transfer)
      transfer = start_transfer(HAUL_OP_READ, remote);
    done += has_completed(&transfer);
  }
  assert_int_equal(done, TIMES);
  assert_true(owner_counter(&serving.owner, "staging.waits") > 0);
  assert_works(haul_peer_status(serving.peer));
  for (unsigned i = 0; i < RAILS; i++)
    close_rail(&rails[i]);
  haul_remote_release(remote);
  assert_unharmed();
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define OVER(test, start, address)                                                                 \
  { #test, test, start, serving_end, (void *)(uintptr_t)address }
#define TCP                    "tcp://127.0.0.1:0"
#define OVER_BOTH(test)        OVER(test, serving_start, TCP), OVER(test, serving_start, own_socket())
#define WITH_FEW_BUFFERS(test) OVER(test, start_with_few_bounce_buffers, TCP)
  const struct CMUnitTest tests[] = {
      OVER_BOTH(bad_ranges_rights_and_handles_are_rejected),
      OVER_BOTH(bad_atomics_are_rejected),
      OVER_BOTH(an_aborted_payload_is_rejected),
      OVER_BOTH(the_checksum_of_a_large_payload_is_verified),
      OVER_BOTH(a_malformed_frame_drops_the_peer),
      OVER_BOTH(a_malformed_atomic_drops_the_peer),
      OVER_BOTH(a_response_to_no_request_drops_the_peer),
      OVER_BOTH(garbage_drops_the_peer),
      OVER_BOTH(frames_with_a_flipped_bit_do_no_harm),
      OVER_BOTH(a_frame_may_be_truncated_at_every_byte),
      OVER_BOTH(frames_arrive_byte_by_byte),
      OVER_BOTH(a_peer_that_stalls_within_a_frame_is_dropped),
      OVER_BOTH(a_flood_of_reads_drops_the_peer),
      OVER_BOTH(each_rail_may_take_the_whole_window),
      OVER_BOTH(a_flood_of_atomics_drops_the_peer),
      OVER_BOTH(a_peer_that_does_not_read_is_dropped),
      OVER_BOTH(unread_acks_are_bounded),
      OVER_BOTH(invalid_channels_are_rejected),
      WITH_FEW_BUFFERS(slow_senders_keep_no_bounce_buffer_that_others_need),
      WITH_FEW_BUFFERS(slow_readers_keep_no_bounce_buffer_that_others_need),
  };
  return cmocka_run_group_tests_name("raw rails", tests, NULL, NULL);
}
