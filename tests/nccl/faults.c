/* SPDX-License-Identifier: MIT
 * Faults: invalid handles, peers killed in each state, deregistration during transfers, too many
 * requests. After a rank is killed the others get errors within the liveness timeout, and close
 * everything. */
#include "support/check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

#define MIB   ((size_t)1 << 20)
#define BOUND INT64_C(30000000000)

static const bool pair[RANKS_MAX] = {true, true};

static void connect_pair(struct rank *rank) {
  bool peers[RANKS_MAX];
  memcpy(peers, pair, sizeof peers);
  peers[rank->number] = false;
  rank_connect(rank, peers);
}

static void close_pair(struct rank *rank, unsigned other) {
  rank_ok(rank, net_close_send(rank->to[other]));
  rank_ok(rank, net_close_receive(rank->from[other]));
  rank_ok(rank, net_close_listen(rank->listeners[other]));
}

static int connect_to(struct rank *rank, const void *bytes) {
  char handle[NCCL_HANDLE_SIZE];
  void *comm = NULL;
  int64_t until = rank_now() + BOUND;
  int result = NCCL_SUCCESS;
  memcpy(handle, bytes, sizeof handle);
  while (result == NCCL_SUCCESS && !comm) {
    result = net_connect(0, handle, &comm);
    rank_need(rank, rank_now() < until);
  }
  rank_need(rank, (result == NCCL_SUCCESS) == (comm != NULL));
  if (comm)
    rank_ok(rank, net_close_send(comm));
  return result;
}

static void bad_handles(struct rank *rank) {
  char handle[NCCL_HANDLE_SIZE], bad[NCCL_HANDLE_SIZE] = {0};
  void *listener;
  rank_need(rank, net_listen(99, handle, &listener) == NCCL_INVALID_ARGUMENT && !listener);
  rank_need(rank, net_listen(-1, handle, &listener) == NCCL_INVALID_ARGUMENT && !listener);
  rank_ok(rank, net_listen(0, handle, &listener));
  rank_need(rank, connect_to(rank, bad) == NCCL_INVALID_ARGUMENT);
  for (size_t length = 1; length < 96; length += 7) { /* truncated */
    memset(bad, 0, sizeof bad);
    memcpy(bad, handle, length);
    rank_need(rank, connect_to(rank, bad) == NCCL_INVALID_ARGUMENT);
  }
  memcpy(bad, handle, sizeof bad);
  bad[10] ^= 1;
  rank_need(rank, connect_to(rank, bad) == NCCL_INVALID_ARGUMENT);
  rank_need(rank, harness_warnings() > 0);
  rank_need(rank, connect_to(rank, handle) == NCCL_SUCCESS);
  rank_ok(rank, net_close_listen(listener));
  rank_ok(rank, harness_close());
}

static void invalid_handles_are_refused(void **state) {
  (void)state;
  for (int i = 0; i < HARNESS_VERSIONS; i++)
    assert_true(ranks_run(1, harness_versions[i], bad_handles));
}

/* Rank 1 dies before rank 0 connects. */
static void dead_before_connect(struct rank *rank) {
  char *handle = rank->world->handles[1][0];
  if (rank->number == 1) {
    rank_ok(rank, net_listen(0, handle, &rank->listeners[0]));
    rank_barrier(rank);
    kill(getpid(), SIGKILL);
  }
  rank_barrier(rank);
  usleep(100000);
  rank_need(rank, connect_to(rank, handle) == NCCL_REMOTE_ERROR);
  rank_need(rank, harness_logged("cannot connect"));
  rank_ok(rank, harness_close());
}

/* Rank 1 connects and dies before rank 0 accepts. */
static void dead_before_accept(struct rank *rank) {
  char *handle = rank->world->handles[0][1];
  void *comm = NULL, *request = NULL, *data = &comm, *memory;
  size_t size = sizeof comm;
  int64_t until = rank_now() + BOUND;
  int tag = 0, result = 0, done = 0;
  if (rank->number == 0)
    rank_ok(rank, net_listen(0, handle, &rank->listeners[1]));
  rank_barrier(rank);
  if (rank->number == 1) {
    while (!comm)
      rank_ok(rank, net_connect(0, handle, &comm));
    usleep(100000);
    kill(getpid(), SIGKILL);
  }
  while (!comm && rank_now() < until)
    rank_ok(rank, net_accept(rank->listeners[1], &comm));
  rank_need(rank, comm);
  if (net_register(comm, data, size, NCCL_POINTER_HOST, &memory) == 0) {
    while (result == 0 && !done && rank_now() < until)
      result = request ? net_test(request, &done, NULL)
                       : net_receive(comm, 1, &data, &size, &tag, &memory, &request);
    rank_need(rank, result == NCCL_REMOTE_ERROR);
    rank_ok(rank, net_deregister(comm, memory));
  }
  rank_ok(rank, net_close_receive(comm));
  rank_ok(rank, net_close_listen(rank->listeners[1]));
  rank_ok(rank, harness_close());
}

/* Both send and receive in a loop; rank 1 is killed during that. */
static void dead_in_flight(struct rank *rank) {
  unsigned other = 1 - rank->number;
  static uint8_t out[4 << 20], in[4 << 20];
  void *out_memory, *in_memory, *sent = NULL, *received = NULL, *data = in;
  size_t size = sizeof in;
  int tag = 1, result = 0, done;
  connect_pair(rank);
  rank_ok(rank, net_register(rank->to[other], out, sizeof out, NCCL_POINTER_HOST, &out_memory));
  rank_ok(rank, net_register(rank->from[other], in, sizeof in, NCCL_POINTER_HOST, &in_memory));
  int64_t began = rank_now(), until = began + BOUND;
  uint64_t rounds = 0;
  while (result == 0 && rank_now() < until) {
    if (rank->number == 1 && (++rounds == 5000 || rank_now() > began + BOUND / 6))
      kill(getpid(), SIGKILL);
    if (sent && (result = net_test(sent, &done, NULL)) == 0 && done)
      sent = NULL;
    if (result == 0 && !sent)
      result = net_send(rank->to[other], out, sizeof out, tag, out_memory, &sent);
    if (result == 0 && received && (result = net_test(received, &done, NULL)) == 0 && done)
      received = NULL;
    if (result == 0 && !received)
      result = net_receive(rank->from[other], 1, &data, &size, &tag, &in_memory, &received);
  }
  rank_need(rank, result == NCCL_REMOTE_ERROR);
  rank_need(rank, harness_warnings() > 0);
  rank_ok(rank, net_deregister(rank->to[other], out_memory));
  rank_ok(rank, net_deregister(rank->from[other], in_memory));
  close_pair(rank, other);
  rank_ok(rank, harness_close());
}

static void a_peer_dies_before_connect(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, dead_before_connect));
}

static void a_peer_dies_before_accept(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, dead_before_accept));
}

static void a_peer_dies_in_flight(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++)
    assert_true(ranks_run(2, 11, dead_in_flight));
}

#define RANKS 4
#define PART  (192 * 1024)

static uint64_t seed; /* printed after a failure */

static uint64_t next_random(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  return seed ^= seed << 17;
}

/* To and from one other rank, a request in each direction. */
struct lane {
  uint8_t *out, *in;
  void *out_memory, *in_memory, *sent, *received;
  int sends, receives; /* results */
};

static void open_lane(struct rank *rank, struct lane *lane, unsigned other) {
  lane->out = calloc(1, PART);
  lane->in = calloc(1, PART);
  rank_ok(rank,
          net_register(rank->to[other], lane->out, PART, NCCL_POINTER_HOST, &lane->out_memory));
  rank_ok(rank,
          net_register(rank->from[other], lane->in, PART, NCCL_POINTER_HOST, &lane->in_memory));
}

static void lane_step(struct rank *rank, struct lane *lane, unsigned other) {
  size_t size = PART;
  void *data = lane->in;
  int tag = 1, done = 0;
  if (lane->sends == 0 && lane->sent && (lane->sends = net_test(lane->sent, &done, NULL)) == 0 &&
      done)
    lane->sent = NULL;
  if (lane->sends == 0 && !lane->sent)
    lane->sends = net_send(rank->to[other], lane->out, next_random() % PART + 1, tag,
                           lane->out_memory, &lane->sent);
  done = 0;
  if (lane->receives == 0 && lane->received &&
      (lane->receives = net_test(lane->received, &done, NULL)) == 0 && done)
    lane->received = NULL;
  if (lane->receives == 0 && !lane->received)
    lane->receives =
        net_receive(rank->from[other], 1, &data, &size, &tag, &lane->in_memory, &lane->received);
}

static void close_lane(struct rank *rank, struct lane *lane, unsigned other) {
  rank_ok(rank, net_deregister(rank->to[other], lane->out_memory));
  rank_ok(rank, net_deregister(rank->from[other], lane->in_memory));
  close_pair(rank, other);
  free(lane->out);
  free(lane->in);
}

/* All to all. One rank is killed: connections with it fail, and the other ones work until all ranks
 * have noticed. */
static void one_is_killed(struct rank *rank) {
  unsigned victim = (unsigned)(next_random() % RANKS);
  uint64_t rounds = next_random() % 3000;
  _Atomic unsigned *noticed = &rank->world->arrived[63];
  struct lane lanes[RANKS] = {0};
  bool peers[RANKS_MAX] = {false}, notified = false;
  for (unsigned i = 0; i < RANKS; i++)
    peers[i] = i != rank->number;
  seed += rank->number; /* different sizes, same victim */
  rank_connect(rank, peers);
  for (unsigned i = 0; i < RANKS; i++)
    if (peers[i])
      open_lane(rank, &lanes[i], i);
  int64_t until = rank_now() + BOUND;
  while (atomic_load(noticed) < RANKS - 1) {
    if (rank->number == victim && rounds-- == 0)
      kill(getpid(), SIGKILL);
    for (unsigned i = 0; i < RANKS; i++) {
      if (peers[i])
        lane_step(rank, &lanes[i], i);
      /* Survivors close only after all have noticed. */
      bool whole = lanes[i].sends == 0 && lanes[i].receives == 0;
      rank_need(rank, whole || i == victim || atomic_load(noticed) == RANKS - 1);
    }
    if (!notified && lanes[victim].sends && lanes[victim].receives) {
      notified = true;
      atomic_fetch_add(noticed, 1);
    }
    rank_need(rank, rank_now() < until);
  }
  for (unsigned i = 0; i < RANKS; i++)
    if (peers[i])
      close_lane(rank, &lanes[i], i);
}

static void a_random_peer_dies_at_a_random_time(void **state) {
  (void)state;
  for (uint64_t i = 1; i <= 6; i++) {
    uint64_t first = seed = i * UINT64_C(0x9e3779b97f4a7c15);
    if (!ranks_run(RANKS, 12, one_is_killed))
      fail_msg("seed %llu", (unsigned long long)first);
  }
}

/* The request fails or completes, and nothing accesses the memory afterwards. */
static void deregister_in_flight(struct rank *rank) {
  unsigned other = 1 - rank->number;
  connect_pair(rank);
  for (unsigned round = 0; round < 20; round++) {
    size_t size = round % 2 ? 16 * MIB : 4096; /* the small one goes within DONE */
    uint8_t *bytes = malloc(size);
    void *memory, *request = NULL, *data = bytes;
    int tag = (int)round, done = 0, result = 0;
    void *comm = rank->number == 0 ? rank->to[other] : rank->from[other];
    memset(bytes, (int)round, size);
    rank_ok(rank, net_register(comm, bytes, size, NCCL_POINTER_HOST, &memory));
    int64_t until = rank_now() + BOUND;
    while (!request && result == 0 && rank_now() < until)
      result = rank->number == 0 ? net_send(comm, bytes, size, tag, memory, &request)
                                 : net_receive(comm, 1, &data, &size, &tag, &memory, &request);
    usleep((rank->number * 977 + round * 131) % 1500);
    rank_ok(rank, net_deregister(comm, memory));
    free(bytes);
    while (request && result == 0 && !done && rank_now() < until)
      result = net_test(request, &done, NULL);
    if (result)
      break;
  }
  rank_barrier(rank);
  close_pair(rank, other);
  rank_ok(rank, harness_close());
}

static void memory_is_deregistered_in_flight(void **state) {
  (void)state;
  for (int i = 0; i < 5; i++)
    assert_true(ranks_run(2, 12, deregister_in_flight));
}

static void wrong_memory(struct rank *rank) {
  unsigned other = 1 - rank->number;
  uint8_t bytes[64];
  void *to, *from, *request = NULL, *data = bytes;
  size_t size = sizeof bytes;
  int tag = 0;
  connect_pair(rank);
  void *out = rank->to[other], *in = rank->from[other];
  rank_need(rank, net_register(out, bytes, sizeof bytes, 77, &to) == NCCL_INVALID_ARGUMENT);
  rank_ok(rank, net_register(out, bytes, sizeof bytes, NCCL_POINTER_HOST, &to));
  rank_ok(rank, net_register(in, bytes, sizeof bytes, NCCL_POINTER_HOST, &from));
  rank_need(rank, net_deregister(in, to) == NCCL_INVALID_ARGUMENT);
  rank_need(rank, net_receive(in, 1, &data, &size, &tag, &to, &request) == NCCL_INVALID_ARGUMENT);
  size = sizeof bytes + 1;
  rank_need(rank, net_receive(in, 1, &data, &size, &tag, &from, &request) == NCCL_INVALID_ARGUMENT);
  size = 1, data = bytes + sizeof bytes;
  rank_need(rank, net_receive(in, 1, &data, &size, &tag, &from, &request) == NCCL_INVALID_ARGUMENT);
  void *many[9] = {data}, *memories[9] = {from};
  size_t sizes[9] = {1};
  int tags[9] = {0};
  rank_need(rank,
            net_receive(in, 9, many, sizes, tags, memories, &request) == NCCL_INVALID_ARGUMENT);
  rank_need(rank,
            net_receive(out, 1, &data, &size, &tag, &from, &request) == NCCL_INVALID_ARGUMENT);
  rank_need(rank, net_send(in, bytes, 1, 0, from, &request) == NCCL_INVALID_ARGUMENT);
  size = 8, data = bytes;
  while (!request)
    rank_ok(rank, net_receive(in, 1, &data, &size, &tag, &from, &request));
  void *mine = NULL;
  int result = 0;
  int64_t until = rank_now() + BOUND;
  while (result == 0 && !mine && rank_now() < until)
    result = net_send(out, bytes, 16, 0, to, &mine); /* more than the receive takes */
  rank_need(rank, result == NCCL_INVALID_USAGE);
  rank_need(rank, harness_logged("check that all ranks make"));
  while (!mine)
    rank_ok(rank, net_send(out, bytes, 4, 0, to, &mine));
  int got = 0;
  rank_wait(rank, mine, NULL);
  rank_wait(rank, request, &got);
  rank_need(rank, got == 4);
  rank_ok(rank, net_deregister(out, to));
  rank_ok(rank, net_deregister(in, from));
  rank_disconnect(rank);
}

static void wrong_arguments_are_refused(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, wrong_memory));
}

static void too_many(struct rank *rank) {
  unsigned other = 1 - rank->number, taken = 0;
  static uint8_t bytes[4096];
  void *requests[1024], *memory, *data = bytes;
  size_t size = 8;
  int tag = 0;
  connect_pair(rank);
  void *comm = rank->number == 0 ? rank->to[other] : rank->from[other];
  rank_ok(rank, net_register(comm, bytes, sizeof bytes, NCCL_POINTER_HOST, &memory));
  if (rank->number == 1) {
    void *request = bytes;
    while (taken < 1024 && request) {
      rank_ok(rank, net_receive(comm, 1, &data, &size, &tag, &memory, &request));
      requests[taken] = request;
      taken += request != NULL;
    }
    rank_need(rank, taken >= NCCL_MAX_REQUESTS && taken < 1024); /* then NULL: retry later */
    atomic_store(&rank->world->seed, taken);
  }
  rank_barrier(rank);
  unsigned all = (unsigned)atomic_load(&rank->world->seed);
  for (unsigned i = 0; i < all; i++) {
    void *request = rank->number == 1 ? requests[i] : NULL;
    while (!request)
      rank_ok(rank, net_send(comm, bytes, 8, 0, memory, &request));
    rank_wait(rank, request, NULL);
  }
  rank_ok(rank, net_deregister(comm, memory));
  rank_disconnect(rank);
}

static void more_requests_than_announced_wait(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, too_many));
}

int main(void) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("HAUL_LIVENESS", "2s", 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invalid_handles_are_refused),
      cmocka_unit_test(a_peer_dies_before_connect),
      cmocka_unit_test(a_peer_dies_before_accept),
      cmocka_unit_test(a_peer_dies_in_flight),
      cmocka_unit_test(a_random_peer_dies_at_a_random_time),
      cmocka_unit_test(memory_is_deregistered_in_flight),
      cmocka_unit_test(wrong_arguments_are_refused),
      cmocka_unit_test(more_requests_than_announced_wait),
  };
  return cmocka_run_group_tests_name("nccl/faults", tests, NULL, NULL);
}
