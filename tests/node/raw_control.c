/* SPDX-License-Identifier: MIT
 * What a foreign peer can send before and on the control connection, and on the map channel. */
#include "support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/wire.h"
#include "fabric/map/map.h"
#include "support/lingering.h"
#include "support/names.h"
#include "support/raw.h"
#include "support/serving.h"

/* Half a million questions are answered before. */
#define BOUND ((SANITIZED ? 80 : 20) * S)

static const char *address(void) {
  return serving.owner.address;
}

static void assert_dropped(int fd) {
  assert_true(raw_ended(fd, BOUND));
  close(fd);
}

static void hellos_of_other_versions_are_refused_with_both(void **state) {
  (void)state;
  const uint16_t versions[][2] = {{0, 0},
                                  {PROTOCOL_LOWEST - 1, PROTOCOL_LOWEST - 1},
                                  {PROTOCOL_HIGHEST + 1, PROTOCOL_HIGHEST + 1},
                                  {PROTOCOL_HIGHEST + 1, 65535},
                                  {65535, 65535}};
  for (size_t i = 0; i < COUNT(versions); i++) {
    struct hello hello = raw_hello(ROLE_CONTROL);
    struct welcome welcome;
    hello.lowest = versions[i][0];
    hello.highest = versions[i][1];
    int fd = raw_connect(address());
    assert_true(raw_greet(fd, &hello, &welcome));
    assert_int_equal(welcome.version, 0);
    assert_int_equal(welcome.code, HAUL_EVERSION);
    assert_int_equal(welcome.lowest, PROTOCOL_LOWEST);
    assert_int_equal(welcome.highest, PROTOCOL_HIGHEST);
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%u to %u", hello.lowest, hello.highest);
    assert_non_null(strstr(welcome.reason, wanted));
    assert_dropped(fd);
  }
  /* A range that has ours in it is fine. */
  struct hello hello = raw_hello(ROLE_CONTROL);
  struct welcome welcome;
  hello.lowest = 0;
  hello.highest = 9;
  int fd = raw_connect(address());
  assert_true(raw_greet(fd, &hello, &welcome));
  assert_int_equal(welcome.version, PROTOCOL_HIGHEST);
  close(fd);
  assert_unharmed();
}

static void an_older_peer_is_welcomed_in_its_version(void **state) {
  (void)state;
  struct hello hello = raw_hello(ROLE_CONTROL);
  struct welcome welcome;
  hello.highest = PROTOCOL_LOWEST;
  int fd = raw_connect(address());
  assert_true(raw_greet(fd, &hello, &welcome));
  assert_int_equal(welcome.version, PROTOCOL_LOWEST);
  assert_int_equal(welcome.highest, PROTOCOL_HIGHEST);
  close(fd);
  assert_unharmed();
}

static void hellos_that_are_wrong_are_refused(void **state) {
  (void)state;
  struct welcome welcome;
  struct hello hello = raw_hello(ROLE_CONTROL);
  hello.plain = 1;
  int fd = raw_connect(address());
  assert_true(raw_greet(fd, &hello, &welcome));
  assert_int_equal(welcome.code, HAUL_EPROTO);
  assert_dropped(fd);
  hello = raw_hello(9);
  fd = raw_connect(address());
  assert_true(raw_greet(fd, &hello, &welcome));
  assert_int_equal(welcome.code, HAUL_EPROTO);
  assert_dropped(fd);
  /* Every byte of a hello changed, one at a time. */
  uint8_t bytes[HANDSHAKE_MAX];
  hello = raw_hello(ROLE_CONTROL);
  size_t length = hello_pack(&hello, bytes);
  for (size_t at = 0; at < length; at++) {
    uint8_t changed[HANDSHAKE_MAX];
    memcpy(changed, bytes, length);
    changed[at] ^= 0xff;
    fd = raw_connect(address());
    raw_send(fd, changed, length);
    shutdown(fd, SHUT_WR);
    assert_dropped(fd);
  }
  assert_unharmed();
}

static void a_hello_may_be_cut_off_at_every_byte(void **state) {
  (void)state;
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hello = raw_hello(ROLE_CONTROL);
  size_t length = hello_pack(&hello, bytes);
  for (size_t cut = 0; cut <= length; cut++) {
    int fd = raw_connect(address());
    assert_true(raw_send(fd, bytes, cut));
    close(fd);
  }
  int fd = raw_connect(address());
  for (size_t i = 0; i < length; i++) { /* and come byte by byte */
    assert_true(raw_send(fd, bytes + i, 1));
    nanosleep(&(struct timespec){0, 100000}, NULL);
  }
  assert_true(raw_receive(fd, bytes, HANDSHAKE_HEAD));
  close(fd);
  assert_unharmed();
}

static void silent_connections_are_bounded_and_end(void **state) {
  (void)state;
  enum { MANY = 300 };
  int fds[MANY];
  for (unsigned i = 0; i < MANY; i++)
    fds[i] = raw_connect(address());
  assert_serves();
  assert_true(raw_ended(fds[0], BOUND)); /* after the handshake's time */
  for (unsigned i = 0; i < MANY; i++)
    assert_dropped(fds[i]);
  assert_unharmed();
}

static void garbage_instead_of_a_hello_ends_the_connection(void **state) {
  (void)state;
  static const char *const words[] = {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls hello...",
                                      "haul-hi\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
  for (size_t i = 0; i < COUNT(words); i++) {
    int fd = raw_connect(address());
    raw_send(fd, words[i], strlen(words[i]));
    assert_dropped(fd);
  }
  assert_unharmed();
}

static int new_peer(void) {
  struct welcome welcome;
  return raw_peer(address(), &welcome);
}

static void a_wrong_control_frame_ends_the_connection(void **state) {
  (void)state;
  const struct {
    uint16_t type;
    uint32_t length;
  } wrong[] = {{0, 0},
               {12, 0},
               {65535, 0},
               {CONTROL_PING, CONTROL_BODY_MAX + 1},
               {CONTROL_LOOKUP, UINT32_MAX},
               {CONTROL_MESSAGE, 0},
               {CONTROL_MESSAGE, 7},
               {CONTROL_MESSAGE, HAUL_MESSAGE_MAX + 9},
               {CONTROL_MESSAGE, UINT32_MAX},
               {CONTROL_READY, 0}, /* a second one */
               {CONTROL_LOOKUP, 0},
               {CONTROL_LIST, 1},
               {CONTROL_STATS, 0},
               {CONTROL_STATS, 7},
               {CONTROL_STATS, 9},
               {CONTROL_TRACE, 0},
               {CONTROL_TRACE, 9},
               {CONTROL_TRACE, 11},
               {CONTROL_CREDIT, 0},
               {CONTROL_CREDIT, 3},
               {CONTROL_CREDIT, 5}};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    uint8_t frame[CONTROL_HEAD + 16] = {0};
    int fd = new_peer();
    raw_control_head(frame, wrong[i].type, wrong[i].length, 1);
    raw_send(fd, frame, CONTROL_HEAD + (wrong[i].length < 16 ? wrong[i].length : 16));
    if (!raw_ended(fd, BOUND))
      fail_msg("the node went on after wrong control frame %zu", i);
    close(fd);
  }
  uint8_t frame[CONTROL_HEAD];
  for (size_t at = 0; at < 8; at++) { /* magic, type, zero */
    int fd = new_peer();
    raw_control_head(frame, CONTROL_PING, 0, 0);
    frame[at] ^= 0x80;
    raw_send(fd, frame, sizeof frame);
    assert_dropped(fd);
  }
  assert_unharmed();
}

static void responses_without_a_request_are_ignored(void **state) {
  (void)state;
  uint8_t body[100] = {0};
  uint64_t handle;
  int fd = new_peer();
  for (unsigned i = 0; i < 100; i++) {
    assert_true(raw_control(fd, CONTROL_FOUND, i, body, 4));
    assert_true(raw_control(fd, CONTROL_NAMES, i, body, sizeof body));
  }
  assert_int_equal(raw_lookup(fd, "host", &handle), 0);
  close(fd);
  assert_unharmed();
}

static void names_that_are_wrong_find_nothing(void **state) {
  (void)state;
  uint64_t handle;
  int fd = new_peer();
  assert_int_equal(raw_lookup(fd, "", &handle), HAUL_ENAME);
  assert_int_equal(raw_lookup(fd, "hos", &handle), HAUL_ENAME);
  assert_int_equal(raw_lookup(fd, "hostt", &handle), HAUL_ENAME);
  assert_int_equal(raw_lookup(fd, "../host", &handle), HAUL_ENAME);
  assert_int_equal(raw_lookup(fd, "\xff\x01", &handle), HAUL_ENAME);
  static const uint8_t with_zero[] = {5, 0, 'h', 'o', 0, 's', 't'};
  assert_true(raw_control(fd, CONTROL_LOOKUP, 1, with_zero, sizeof with_zero));
  assert_dropped(fd);
  assert_unharmed();
}

static void a_control_frame_may_be_cut_off_at_every_byte(void **state) {
  (void)state;
  uint8_t bytes[CONTROL_HEAD + 40] = {0};
  const uint16_t types[] = {CONTROL_LOOKUP, CONTROL_MESSAGE};
  for (size_t t = 0; t < COUNT(types); t++)
    for (size_t cut = 0; cut < sizeof bytes; cut++) {
      int fd = new_peer();
      raw_control_head(bytes, types[t], 40, 1);
      assert_true(raw_send(fd, bytes, cut));
      close(fd);
    }
  assert_unharmed();
}

static void garbage_on_the_control_connection_ends_it(void **state) {
  (void)state;
  uint64_t chance = test_seed();
  uint8_t garbage[5000];
  for (unsigned round = 0; round < 30; round++) {
    int fd = new_peer();
    for (size_t i = 0; i < sizeof garbage; i++)
      garbage[i] = (uint8_t)next_random(&chance);
    raw_send(fd, garbage, 16 + next_random(&chance) % (sizeof garbage - 16));
    assert_dropped(fd);
  }
  assert_unharmed();
}

static void impatient(int fd) {
  struct timeval time = {0, 500000};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

/* Asks and never reads the answers. */
static void a_flood_of_requests_is_bounded(void **state) {
  (void)state;
  static const uint8_t lookup[] = {4, 0, 'h', 'o', 's', 't'};
  static const uint8_t list[] = {0, 0};
  for (unsigned kind = 0; kind < 3; kind++) {
    int fd = new_peer();
    impatient(fd);
    for (unsigned i = 0; i < 100000; i++)
      if (!(kind == 0   ? raw_control(fd, CONTROL_LOOKUP, i, lookup, sizeof lookup)
            : kind == 1 ? raw_control(fd, CONTROL_LIST, i, list, sizeof list)
                        : raw_control(fd, CONTROL_PING, PING_REQUEST, NULL, 0)))
        break;
    assert_serves();
    assert_dropped(fd);
    assert_unharmed();
  }
}

/* Speaks, so that it is heard, and never reads: some answers wait, fewer than a flood. */
static void a_peer_that_never_reads_is_dropped(void **state) {
  (void)state;
  int fd = new_peer();
  haul_deadline until = haul_deadline_in(BOUND);
  impatient(fd);
  for (unsigned i = 0; i < 4000; i++)
    assert_true(raw_control(fd, CONTROL_PING, PING_REQUEST, NULL, 0));
  while (raw_control(fd, CONTROL_PING, 0, NULL, 0) && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, SERVING_LIVENESS / 8}, NULL);
  assert_true(haul_deadline_in(0) < until);
  assert_dropped(fd);
  assert_unharmed();
}

static void messages_beyond_the_window_end_the_connection(void **state) {
  (void)state;
  int fd = new_peer();
  uint8_t body[8 + 4096] = {0};
  unsigned sent = 0;
  impatient(fd);
  while (sent < 100000 && raw_control(fd, CONTROL_MESSAGE, 0, body, sizeof body))
    sent++;
  assert_true(sent < 100000);
  assert_dropped(fd);
  fd = new_peer(); /* the same with messages that have no bytes */
  impatient(fd);
  for (sent = 0; sent < 1000000 && raw_control(fd, CONTROL_MESSAGE, 0, body, 8);)
    sent++;
  assert_true(sent < 1000000);
  assert_dropped(fd);
  assert_serves();
  for (;;) { /* those within it are there to be received */
    uint64_t tag, length, sum;
    if (owner_receive(&serving.owner, 0, 0, &tag, &length, &sum) != 0 || length == 0)
      break;
  }
}

static void credit_without_end_ends_the_connection(void **state) {
  (void)state;
  int fd = new_peer();
  static const uint8_t body[4] = {0xff, 0xff, 0xff, 0xff};
  raw_control(fd, CONTROL_CREDIT, 0, body, sizeof body);
  raw_control(fd, CONTROL_CREDIT, 0, body, sizeof body);
  assert_dropped(fd);
  assert_unharmed();
}

static void a_window_without_end_counts_as_the_largest(void **state) {
  (void)state;
  struct hello hello = raw_hello(ROLE_CONTROL);
  struct welcome welcome;
  uint64_t handle;
  static const uint8_t one_byte[4] = {1, 0, 0, 0};
  hello.message_window = UINT32_MAX;
  int fd = raw_connect(address());
  assert_true(raw_greet(fd, &hello, &welcome));
  assert_true(raw_control(fd, CONTROL_READY, 0, NULL, 0));
  assert_true(raw_control(fd, CONTROL_CREDIT, 0, one_byte, sizeof one_byte)); /* not over 2 GiB */
  assert_int_equal(raw_lookup(fd, "host", &handle), 0);
  close(fd);
  assert_unharmed();
}

static void a_peer_that_says_nothing_is_dropped(void **state) {
  (void)state;
  int fd = new_peer();
  assert_dropped(fd);
  assert_unharmed();
}

static int open_channel(int *control, uint64_t *handle) {
  struct welcome welcome;
  char text[160];
  *control = raw_peer(address(), &welcome);
  assert_int_equal(raw_lookup(*control, "host", handle), 0);
  snprintf(text, sizeof text, "unix://@%s", welcome.companion);
  int fd = raw_channel(welcome.companion[0] ? text : address(), &welcome, "map", 0);
  assert_true(fd >= 0);
  return fd;
}

static void start_record(uint8_t record[MAP_RECORD], uint32_t type, uint32_t request) {
  memset(record, 0, MAP_RECORD);
  struct wire wire = wire_over(record, MAP_RECORD);
  wire_put32(&wire, 0x50414d48u); /* "HMAP" */
  wire_put32(&wire, type);
  wire_put32(&wire, request);
}

/* A whole greeting over memory that is what the node expects; what it is spoiled with is changed.
 */
struct greeting {
  uint8_t record[MAP_RECORD];
  struct shm board, hazards;
  int descriptors[8];
  size_t count;
};

static struct greeting good_greeting(void) {
  struct greeting greeting;
  uint64_t nonce = 77;
  assert_works(shm_create("raw-board", 4096, &greeting.board));
  assert_works(shm_create("raw-hazards", sizeof(struct hazards), &greeting.hazards));
  start_record(greeting.record, 1, 0);
  struct wire wire = wire_over(greeting.record + 12, MAP_RECORD - 12);
  wire_put64(&wire, 4096); /* an address that is not mapped */
  wire_put64(&wire, nonce);
  wire_put32(&wire, 1024);
  wire_put_bytes(&wire, greeting.board.footer->capability, 16);
  wire_put64(&wire, sizeof(struct hazards));
  wire_put_bytes(&wire, greeting.hazards.footer->capability, 16);
  greeting.descriptors[0] = greeting.board.fd;
  greeting.descriptors[1] = greeting.hazards.fd;
  greeting.count = 2;
  return greeting;
}

static void send_greeting(int fd, const struct greeting *greeting) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int) * 8)];
  } control;
  memset(&control, 0, sizeof control);
  struct iovec part = {(void *)(uintptr_t)greeting->record, MAP_RECORD};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (greeting->count > 0) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * greeting->count);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int) * greeting->count);
    memcpy(CMSG_DATA(&control.header), greeting->descriptors, sizeof(int) * greeting->count);
  }
  sendmsg(fd, &message, MSG_NOSIGNAL);
}

static void end_greeting(struct greeting *greeting) {
  shm_close(&greeting->board);
  shm_close(&greeting->hazards);
}

/* Reads records up to the next response, and returns its kind: 1 mapped, 2 attach, 3 refused. */
static uint32_t next_answer(int fd) {
  uint8_t record[MAP_RECORD];
  for (;;) {
    if (!raw_receive(fd, record, sizeof record))
      return 0;
    struct wire wire = wire_over(record, sizeof record);
    wire_get32(&wire);
    uint32_t type = wire_get32(&wire);
    wire_get32(&wire);
    if (type == 3)
      return wire_get32(&wire);
  }
}

static void ask_for(int fd, uint64_t handle) {
  uint8_t record[MAP_RECORD];
  start_record(record, 2, 1);
  struct wire wire = wire_over(record + 12, 8);
  wire_put64(&wire, handle);
  assert_true(raw_send(fd, record, sizeof record));
}

static void handles_are_checked_on_the_map_channel(void **state) {
  (void)state;
  int control;
  uint64_t handle;
  int fd = open_channel(&control, &handle);
  struct greeting greeting = good_greeting();
  send_greeting(fd, &greeting);
  ask_for(fd, handle);
  assert_int_equal(next_answer(fd), 1);
  ask_for(fd, handle ^ (uint64_t)1 << 50);
  assert_int_equal(next_answer(fd), 3);
  ask_for(fd, UINT64_MAX);
  assert_int_equal(next_answer(fd), 3);
  uint64_t wrapped;
  assert_int_equal(raw_lookup(control, "wrapped", &wrapped), 0);
  ask_for(fd, wrapped);
  assert_int_equal(next_answer(fd), 2);
  end_greeting(&greeting);
  close(fd);
  close(control);
  assert_unharmed();
}

/* The greeting has an address of the process, which other hosts must not learn. */
static void a_map_channel_over_tcp_is_refused(void **state) {
  (void)state;
  struct welcome welcome;
  int control = raw_peer(address(), &welcome);
  assert_int_equal(raw_channel(address(), &welcome, "map", 0), -1);
  close(control);
  assert_unharmed();
}

static void no_descriptors(struct greeting *greeting) {
  greeting->count = 0;
}

static void one_descriptor(struct greeting *greeting) {
  greeting->count = 1;
}

static void three_descriptors(struct greeting *greeting) {
  greeting->descriptors[greeting->count++] = greeting->board.fd;
}

static void eight_descriptors(struct greeting *greeting) {
  while (greeting->count < 8)
    greeting->descriptors[greeting->count++] = greeting->board.fd;
}

static void standard_input(struct greeting *greeting) {
  greeting->descriptors[0] = STDIN_FILENO;
}

static int unsealed, folder;

static void an_unsealed_memfd(struct greeting *greeting) {
  assert_int_equal(ftruncate(unsealed, 1 << 20), 0);
  greeting->descriptors[0] = unsealed;
}

static void a_folder(struct greeting *greeting) {
  greeting->descriptors[1] = folder;
}

static void swapped(struct greeting *greeting) {
  greeting->descriptors[0] = greeting->hazards.fd;
  greeting->descriptors[1] = greeting->board.fd;
}

static void no_slots(struct greeting *greeting) {
  memset(greeting->record + 28, 0, 4);
}

static void too_many_slots(struct greeting *greeting) {
  memset(greeting->record + 28, 0xff, 4);
}

static void more_slots_than_memory(struct greeting *greeting) {
  greeting->record[30] = 4; /* 262144 more */
}

static void a_wrong_capability(struct greeting *greeting) {
  greeting->record[32] ^= 1;
}

static void a_wrong_length(struct greeting *greeting) {
  greeting->record[48] ^= 1;
}

static void a_wrong_magic(struct greeting *greeting) {
  greeting->record[0] ^= 1;
}

static void a_wrong_type(struct greeting *greeting) {
  greeting->record[4] = 7;
}

static void a_request_before_the_greeting(struct greeting *greeting) {
  start_record(greeting->record, 2, 1);
}

static void a_spoiled_greeting_ends_the_channel(void **state) {
  (void)state;
  void (*const spoil[])(struct greeting *) = {no_descriptors,
                                              one_descriptor,
                                              three_descriptors,
                                              eight_descriptors,
                                              standard_input,
                                              an_unsealed_memfd,
                                              a_folder,
                                              swapped,
                                              no_slots,
                                              too_many_slots,
                                              more_slots_than_memory,
                                              a_wrong_capability,
                                              a_wrong_length,
                                              a_wrong_magic,
                                              a_wrong_type,
                                              a_request_before_the_greeting};
  unsealed = memfd_create("unsealed", MFD_CLOEXEC);
  folder = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  for (size_t i = 0; i < COUNT(spoil); i++) {
    int control;
    uint64_t handle;
    int fd = open_channel(&control, &handle);
    struct greeting greeting = good_greeting();
    spoil[i](&greeting);
    send_greeting(fd, &greeting);
    if (!raw_ended(fd, BOUND))
      fail_msg("the node went on after spoiled greeting %zu", i);
    end_greeting(&greeting);
    close(fd);
    close(control);
  }
  close(unsealed);
  close(folder);
  assert_unharmed();
}

static void a_second_greeting_and_gifts_end_the_channel(void **state) {
  (void)state;
  for (unsigned i = 0; i < 4; i++) {
    int control;
    uint64_t handle;
    int fd = open_channel(&control, &handle);
    struct greeting greeting = good_greeting();
    send_greeting(fd, &greeting);
    if (i > 0) { /* requests with descriptors, cut in pieces that each carry some */
      start_record(greeting.record, 2, 1);
      greeting.count = i == 1 ? 1 : 4;
    }
    send_greeting(fd, &greeting);
    assert_dropped(fd);
    end_greeting(&greeting);
    close(control);
  }
  assert_unharmed();
}

static void a_greeting_may_be_cut_off_at_every_byte(void **state) {
  (void)state;
  for (size_t cut = 0; cut < MAP_RECORD; cut += 5) {
    int control;
    uint64_t handle;
    int fd = open_channel(&control, &handle);
    uint8_t record[MAP_RECORD];
    start_record(record, 1, 0);
    assert_true(raw_send(fd, record, cut));
    close(fd);
    close(control);
  }
  assert_unharmed();
}

static void assert_good_peer_waits_for_nobody(void) {
  struct haul_remote *remote;
  int64_t began = haul_deadline_in(0);
  nanosleep(&(struct timespec){0, 50 * MS}, NULL);
  assert_works(haul_peer_lookup(serving.peer, "host", haul_deadline_in(BOUND), &remote));
  haul_remote_release(remote);
  assert_in_range(haul_deadline_in(0) - began, 0, LINGERS * S / 4);
}

/* Sockets that linger, on every kind of connection: whoever closes them last would wait. */
static void descriptors_of_a_peer_delay_no_other_peer(void **state) {
  (void)state;
  uint8_t record[MAP_RECORD] = {0};
  uint64_t handle;
  struct welcome welcome;
  int hello = raw_connect(address());
  bool forbidden = !lingering_send(hello, "h", 1, 1, 0);
  assert_good_peer_waits_for_nobody();
  close(hello);
  int control = raw_peer(address(), &welcome);
  int rail = raw_channel(address(), &welcome, "tcp", 0);
  if (forbidden) /* where the kernel cannot, rails have a limit: see docs/design.md */
    assert_false(lingering_send(rail, "HTCP", 1, 1, 0));
  lingering_send(control, "HCTL", 1, 1, 0);
  assert_good_peer_waits_for_nobody();
  close(rail);
  close(control);
  for (size_t count = 1; count <= 8; count++) { /* on the map channel: a record; and unread ones */
    int fd = open_channel(&control, &handle);
    assert_true(lingering_send(fd, record, sizeof record, count, 0));
    lingering_send(fd, record, sizeof record, count, 0);
    assert_good_peer_waits_for_nobody();
    close(fd);
    close(control);
  }
  assert_unharmed();
}

#define RUDE 4

static int64_t withdrawn_after;
static atomic_bool withdrawn;

static void *withdraw(void *argument) {
  int64_t began = haul_deadline_in(0);
  (void)argument;
  owner_unpublish(&serving.owner, 2, "wrapped");
  withdrawn_after = haul_deadline_in(0) - began;
  atomic_store(&withdrawn, true);
  return NULL;
}

/* Peers announce copies to private memory that never end. Withdrawing the region waits for all of
 * them one liveness timeout, and no other peer waits. */
static void peers_that_never_end_a_copy_do_not_delay_others(void **state) {
  (void)state;
  int controls[RUDE], channels[RUDE];
  uint64_t handle;
  unsigned meanwhile = 0; /* lookups of another peer during the withdrawal */
  struct greeting greetings[RUDE];
  pthread_t thread;
  for (unsigned i = 0; i < RUDE; i++) {
    void *cells;
    channels[i] = open_channel(&controls[i], &handle);
    assert_int_equal(raw_lookup(controls[i], "wrapped", &handle), 0);
    greetings[i] = good_greeting();
    assert_works(shm_map(greetings[i].hazards.fd, &greetings[i].hazards, PROT_READ | PROT_WRITE,
                         NULL, &cells));
    memcpy(cells, &handle, sizeof handle);
    munmap(cells, greetings[i].hazards.length);
    send_greeting(channels[i], &greetings[i]);
    ask_for(channels[i], handle);
    assert_int_equal(next_answer(channels[i]), 2);
  }
  atomic_store(&withdrawn, false);
  pthread_create(&thread, NULL, withdraw, NULL);
  while (!atomic_load(&withdrawn)) {
    for (unsigned i = 0; i < RUDE; i++)
      raw_control(controls[i], CONTROL_PING, 0, NULL, 0);
    struct haul_remote *remote;
    assert_works(haul_peer_lookup(serving.peer, "host", haul_deadline_in(BOUND), &remote));
    haul_remote_release(remote);
    meanwhile += !atomic_load(&withdrawn);
  }
  pthread_join(thread, NULL);
  assert_true(meanwhile >= 2);
  assert_true(withdrawn_after < SERVING_LIVENESS * RUDE); /* not one after the other */
  for (unsigned i = 0; i < RUDE; i++) {
    assert_dropped(controls[i]);
    close(channels[i]);
    end_greeting(&greetings[i]);
  }
  assert_unharmed();
}

static void a_flood_of_requests_on_the_map_channel_is_bounded(void **state) {
  (void)state;
  int control;
  uint64_t handle;
  int fd = open_channel(&control, &handle);
  struct greeting greeting = good_greeting();
  uint8_t record[MAP_RECORD];
  send_greeting(fd, &greeting);
  impatient(fd);
  start_record(record, 2, 1);
  struct wire wire = wire_over(record + 12, 8);
  wire_put64(&wire, handle);
  for (unsigned i = 0; i < 100000; i++)
    if (!raw_send(fd, record, sizeof record))
      break;
  assert_serves();
  assert_dropped(fd);
  end_greeting(&greeting);
  close(control);
  assert_unharmed();
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define OVER(test, where)                                                                          \
  { #test, test, serving_start, serving_end, (void *)(uintptr_t)where }
#define OVER_BOTH(test) OVER(test, "tcp://127.0.0.1:0"), OVER(test, own_socket())
  const struct CMUnitTest tests[] = {
      OVER_BOTH(hellos_of_other_versions_are_refused_with_both),
      OVER_BOTH(an_older_peer_is_welcomed_in_its_version),
      OVER_BOTH(hellos_that_are_wrong_are_refused),
      OVER_BOTH(a_hello_may_be_cut_off_at_every_byte),
      OVER(silent_connections_are_bounded_and_end, "tcp://127.0.0.1:0"),
      OVER_BOTH(garbage_instead_of_a_hello_ends_the_connection),
      OVER_BOTH(a_wrong_control_frame_ends_the_connection),
      OVER_BOTH(responses_without_a_request_are_ignored),
      OVER_BOTH(names_that_are_wrong_find_nothing),
      OVER_BOTH(a_control_frame_may_be_cut_off_at_every_byte),
      OVER_BOTH(garbage_on_the_control_connection_ends_it),
      OVER_BOTH(a_flood_of_requests_is_bounded),
      OVER(a_peer_that_never_reads_is_dropped, own_socket()),
      OVER_BOTH(messages_beyond_the_window_end_the_connection),
      OVER_BOTH(credit_without_end_ends_the_connection),
      OVER_BOTH(a_window_without_end_counts_as_the_largest),
      OVER_BOTH(a_peer_that_says_nothing_is_dropped),
      OVER_BOTH(handles_are_checked_on_the_map_channel),
      OVER(a_map_channel_over_tcp_is_refused, "tcp://127.0.0.1:0"),
      OVER_BOTH(a_spoiled_greeting_ends_the_channel),
      OVER_BOTH(a_second_greeting_and_gifts_end_the_channel),
      OVER(descriptors_of_a_peer_delay_no_other_peer, own_socket()),
      OVER_BOTH(a_greeting_may_be_cut_off_at_every_byte),
      OVER_BOTH(a_flood_of_requests_on_the_map_channel_is_bounded),
      OVER_BOTH(peers_that_never_end_a_copy_do_not_delay_others),
  };
  return cmocka_run_group_tests_name("raw control", tests, NULL, NULL);
}
