/* SPDX-License-Identifier: MIT
 * Traffic of NCCL's collectives: rings and all to all, 0 bytes to 64 MiB, several requests in
 * flight, groups of receives with tags. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "places.h"

#define MIB ((size_t)1 << 20)

#define CHUNK ((size_t)4096)

struct message {
  unsigned from, to;
  size_t number;
};

/* Not instrumented, for speed; the copies from it and comparisons with it are. */
__attribute__((no_sanitize("address", "thread"))) static void
make_chunk(uint8_t chunk[CHUNK], const struct message *message, size_t at) {
  for (size_t i = 0; i < CHUNK; i++)
    chunk[i] = (uint8_t)(message->from * 31 + message->to * 17 + message->number * 7 +
                         (at + i) * 3 + ((at + i) >> 8));
}

static size_t length_at(size_t at, size_t size) {
  return size - at < CHUNK ? size - at : CHUNK;
}

static void fill(uint8_t *bytes, size_t size, unsigned from, unsigned to, size_t number) {
  const struct message message = {from, to, number};
  uint8_t chunk[CHUNK];
  for (size_t at = 0; at < size; at += CHUNK) {
    make_chunk(chunk, &message, at);
    memcpy(bytes + at, chunk, length_at(at, size));
  }
}

static bool holds(const uint8_t *bytes, size_t size, unsigned from, unsigned to, size_t number) {
  const struct message message = {from, to, number};
  uint8_t chunk[CHUNK];
  for (size_t at = 0; at < size; at += CHUNK) {
    make_chunk(chunk, &message, at);
    if (memcmp(bytes + at, chunk, length_at(at, size)) != 0)
      return false;
  }
  return true;
}

static void *start_receive(struct rank *rank, unsigned from, void *bytes, size_t size, int tag,
                           void *memory) {
  void *request = NULL, *data = bytes;
  int64_t until = rank_now() + INT64_C(60000000000);
  while (!request) {
    rank_ok(rank, net_receive(rank->from[from], 1, &data, &size, &tag, &memory, &request));
    rank_need(rank, rank_now() < until);
  }
  return request;
}

/* NULL: the receiver has not posted it yet. */
static void *try_send(struct rank *rank, unsigned to, void *bytes, size_t size, int tag,
                      void *memory) {
  void *request = NULL;
  rank_ok(rank, net_send(rank->to[to], bytes, size, tag, memory, &request));
  return request;
}

#define IN_FLIGHT 8

struct lane {
  unsigned peer;
  struct place out, in;
  uint8_t *scratch;
  void *out_memory, *in_memory;
  void *sends[IN_FLIGHT], *receives[IN_FLIGHT];
  size_t sent, posted, checked;
};

/* With room for `slots` messages of `size` bytes in each direction. */
static void open_lane(struct rank *rank, struct lane *lane, unsigned to, unsigned from, size_t size,
                      size_t slots) {
  size_t room = (size ? size : 1) * slots;
  lane->peer = to;
  lane->scratch = malloc(size + 1);
  place_make(rank, &lane->out, room);
  place_make(rank, &lane->in, room);
  rank_ok(rank,
          net_register(rank->to[to], lane->out.address, room, lane->out.type, &lane->out_memory));
  place_register(rank, &lane->in, rank->from[from], &lane->in_memory);
}

static void close_lane(struct rank *rank, struct lane *lane, unsigned from) {
  rank_ok(rank, net_deregister(rank->to[lane->peer], lane->out_memory));
  rank_ok(rank, net_deregister(rank->from[from], lane->in_memory));
  place_end(&lane->out);
  place_end(&lane->in);
  free(lane->scratch);
}

static void step_out(struct rank *rank, struct lane *lane, size_t size, size_t count) {
  size_t slot = lane->sent % IN_FLIGHT;
  int done = 0;
  if (lane->sends[slot]) {
    rank_ok(rank, net_test(lane->sends[slot], &done, NULL));
    if (done)
      lane->sends[slot] = NULL;
  }
  if (lane->sent == count || lane->sends[slot])
    return;
  fill(lane->scratch, size, rank->number, lane->peer, lane->sent);
  place_put(rank, &lane->out, slot * size, lane->scratch, size);
  lane->sends[slot] =
      try_send(rank, lane->peer, lane->out.address + slot * size, size, 5, lane->out_memory);
  lane->sent += lane->sends[slot] != NULL;
}

static void step_in(struct rank *rank, struct lane *lane, unsigned from, size_t size,
                    size_t count) {
  int done = 0, got = -1;
  while (lane->posted < count && lane->posted < lane->checked + IN_FLIGHT) {
    size_t slot = lane->posted % IN_FLIGHT;
    lane->receives[slot] =
        start_receive(rank, from, lane->in.address + slot * size, size, 5, lane->in_memory);
    lane->posted++;
  }
  size_t slot = lane->checked % IN_FLIGHT;
  if (lane->checked == lane->posted)
    return;
  rank_ok(rank, net_test(lane->receives[slot], &done, &got));
  if (!done)
    return;
  rank_need(rank, (size_t)got == size);
  void *flush = lane;
  rank_ok(rank, net_flush(rank->from[from], lane->in.address + slot * size, got, lane->in_memory,
                          &flush));
  rank_need(rank, !flush); /* no request, as it is done */
  place_get(rank, &lane->in, slot * size, lane->scratch, size);
  rank_need(rank, holds(lane->scratch, size, from, rank->number, lane->checked));
  lane->checked++;
}

static void drain(struct rank *rank, struct lane *lane) {
  for (unsigned i = 0; i < IN_FLIGHT; i++)
    if (lane->sends[i])
      rank_wait(rank, lane->sends[i], NULL);
}

/* `count` messages to each of `to` and from each of `from`, at the same time. */
static void exchange(struct rank *rank, const unsigned *to, const unsigned *from, unsigned lanes,
                     size_t size, size_t count) {
  struct lane all[RANKS_MAX] = {0};
  int64_t until = rank_now() + INT64_C(120000000000);
  bool busy = true;
  for (unsigned i = 0; i < lanes; i++)
    open_lane(rank, &all[i], to[i], from[i], size, count < IN_FLIGHT ? count : IN_FLIGHT);
  while (busy) {
    busy = false;
    for (unsigned i = 0; i < lanes; i++) {
      step_in(rank, &all[i], from[i], size, count);
      step_out(rank, &all[i], size, count);
      busy |= all[i].sent < count || all[i].checked < count;
    }
    rank_need(rank, rank_now() < until);
  }
  for (unsigned i = 0; i < lanes; i++)
    drain(rank, &all[i]);
  rank_barrier(rank);
  for (unsigned i = 0; i < lanes; i++)
    close_lane(rank, &all[i], from[i]);
}

static const size_t sizes[] = {0, 1, 4095, 8192, 8193, 100001, 4 * MIB};

/* The log names the path, which HAUL_PATHS may determine. */
static void check_path(const struct rank *rank) {
  const char *paths = getenv("HAUL_PATHS");
  bool one = paths && strcmp(paths, "auto") != 0;
  char words[64];
  rank_need(rank, harness_logged("NET/haul: path to "));
  snprintf(words, sizeof words, ": %s (", one ? paths : "");
  rank_need(rank, !one || harness_logged(words));
}

static void ring(struct rank *rank) {
  unsigned ranks = rank->world->ranks;
  unsigned next = (rank->number + 1) % ranks, previous = (rank->number + ranks - 1) % ranks;
  bool peers[RANKS_MAX] = {false};
  peers[next] = peers[previous] = true;
  rank_connect(rank, peers);
  for (size_t i = 0; i < COUNT(sizes); i++)
    exchange(rank, &next, &previous, 1, sizes[i], sizes[i] > MIB ? 6 : 50);
  rank_ok(rank, harness_warnings());
  check_path(rank);
  rank_disconnect(rank);
}

static void all_to_all(struct rank *rank) {
  bool peers[RANKS_MAX];
  unsigned others[RANKS_MAX], count = 0;
  for (unsigned i = 0; i < RANKS_MAX; i++) {
    peers[i] = i < rank->world->ranks && i != rank->number;
    if (peers[i])
      others[count++] = i;
  }
  rank_connect(rank, peers);
  for (size_t i = 0; i < COUNT(sizes) - 1; i++)
    exchange(rank, others, others, count, sizes[i], 20);
  exchange(rank, others, others, count, MIB, 4);
  rank_ok(rank, harness_warnings());
  rank_disconnect(rank);
}

static void two_in_a_ring_by_each_version(void **state) {
  (void)state;
  for (int i = 0; i < HARNESS_VERSIONS; i++)
    assert_true(ranks_run(2, harness_versions[i], ring));
}

static void four_in_a_ring(void **state) {
  (void)state;
  assert_true(ranks_run(4, 11, ring));
}

static void eight_in_a_ring(void **state) {
  (void)state;
  assert_true(ranks_run(8, 12, ring));
}

static void four_all_to_all(void **state) {
  (void)state;
  assert_true(ranks_run(4, 12, all_to_all));
}

static void eight_all_to_all(void **state) {
  (void)state;
  assert_true(ranks_run(8, 11, all_to_all));
}

static void with_itself(struct rank *rank) {
  const bool peers[RANKS_MAX] = {true};
  const unsigned self = 0;
  rank_connect(rank, peers);
  exchange(rank, &self, &self, 1, 100000, 20);
  rank_disconnect(rank);
}

static void one_sends_to_itself(void **state) {
  (void)state;
  assert_true(ranks_run(1, 12, with_itself));
}

static int64_t cpu_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* A thread of the plugin that moved the bytes would compete with NCCL's polling thread. */
static void by_caller(struct rank *rank) {
  const bool peers[RANKS_MAX] = {true};
  const unsigned self = 0, count = 5000;
  rank_connect(rank, peers);
  exchange(rank, &self, &self, 1, 4096, 20);
  int64_t own = cpu_ns(CLOCK_THREAD_CPUTIME_ID), all = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  exchange(rank, &self, &self, 1, 4096, count);
  own = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - own;
  all = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - all;
  rank_need(rank, all - own < own / 4); /* a thread that moves them needs as much as the caller */
  rank_disconnect(rank);
}

static void the_caller_moves_small_messages(void **state) {
  (void)state;
  if (getenv("HAUL_TEST_PLACE")) {
    print_message("skipped: threads of the emulated device take CPU time\n");
    skip();
  }
  assert_true(ranks_run(1, 12, by_caller));
}

/* Sends in another order than the receives of their group. The second group waits for the first
 * one although its tags match earlier. */
#define GROUP 8
static void receive_groups(struct rank *rank, uint8_t *bytes, void *memory) {
  void *requests[2] = {NULL};
  int got[GROUP];
  for (unsigned g = 0; g < 2; g++) {
    void *data[GROUP], *memories[GROUP];
    size_t room[GROUP];
    int tags[GROUP];
    for (unsigned i = 0; i < GROUP; i++) {
      data[i] = bytes + (g * GROUP + i) * 50000;
      memories[i] = memory;
      room[i] = 50000;
      tags[i] = (int)i;
    }
    while (!requests[g])
      rank_ok(rank, net_receive(rank->from[1], GROUP, data, room, tags, memories, &requests[g]));
  }
  for (unsigned g = 0; g < 2; g++) {
    rank_wait(rank, requests[g], got);
    for (unsigned i = 0; i < GROUP; i++) {
      size_t size = 1000 * (i + 1) * (g + 1);
      rank_need(rank, (size_t)got[i] == size);
      rank_need(rank, holds(bytes + (g * GROUP + i) * 50000, size, 1, 0, g * GROUP + i));
    }
  }
}

static void send_groups(struct rank *rank, uint8_t *bytes, void *memory) {
  int64_t until = rank_now() + INT64_C(60000000000);
  for (unsigned g = 0; g < 2; g++)
    for (unsigned k = 0; k < GROUP; k++) {
      unsigned i = GROUP - 1 - k;
      size_t size = 1000 * (i + 1) * (g + 1);
      uint8_t *at = bytes + (g * GROUP + i) * 50000;
      void *request = NULL;
      fill(at, size, 1, 0, g * GROUP + i);
      while (!request && rank_now() < until)
        request = try_send(rank, 0, at, size, (int)i, memory);
      rank_need(rank, request);
      rank_wait(rank, request, NULL);
    }
}

static void groups(struct rank *rank) {
  bool peers[RANKS_MAX] = {true, true};
  peers[rank->number] = false;
  size_t room = 2 * GROUP * 50000;
  uint8_t *bytes = calloc(1, room);
  void *memory;
  rank_connect(rank, peers);
  void *comm = rank->number == 0 ? rank->from[1] : rank->to[0];
  rank_ok(rank, net_register(comm, bytes, room, NCCL_POINTER_HOST, &memory));
  if (rank->number == 0)
    receive_groups(rank, bytes, memory);
  else
    send_groups(rank, bytes, memory);
  rank_barrier(rank);
  rank_ok(rank, net_deregister(comm, memory));
  free(bytes);
  rank_disconnect(rank);
}

static void groups_are_matched_by_tags(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, groups));
}

static void large(struct rank *rank) {
  bool peers[RANKS_MAX] = {true, true};
  const unsigned other = 1 - rank->number;
  peers[rank->number] = false;
  rank_connect(rank, peers);
  exchange(rank, &other, &other, 1, 64 * MIB, 2);
  rank_disconnect(rank);
}

static void sixty_four_mib(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, large));
}

/* With the argument "brief" the first cases alone. */
int main(int count, char **arguments) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  if (!places_are_available())
    return 77;
  const struct CMUnitTest brief[] = {
      cmocka_unit_test(one_sends_to_itself),
      cmocka_unit_test(the_caller_moves_small_messages),
      cmocka_unit_test(two_in_a_ring_by_each_version),
      cmocka_unit_test(groups_are_matched_by_tags),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(four_in_a_ring),  cmocka_unit_test(eight_in_a_ring),
      cmocka_unit_test(four_all_to_all), cmocka_unit_test(eight_all_to_all),
      cmocka_unit_test(sixty_four_mib),
  };
  int failed = cmocka_run_group_tests_name("nccl/traffic, brief", brief, NULL, NULL);
  if (count > 1 && strcmp(arguments[1], "brief") == 0)
    return failed;
  return failed + cmocka_run_group_tests_name("nccl/traffic", tests, NULL, NULL);
}
