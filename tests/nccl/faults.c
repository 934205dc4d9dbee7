/* SPDX-License-Identifier: MIT
 * What goes wrong: handles that are none, peers that end in each state, memory that is taken back,
 * more requests than there are. A rank that is killed is part of the test; the others are told,
 * within the liveness bound, and can end what they have. */
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

/* ---- Handles ---- */

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
    rank_need(rank, net_close_send(comm) == 0);
  return result;
}

static void bad_handles(struct rank *rank) {
  char handle[NCCL_HANDLE_SIZE], bad[NCCL_HANDLE_SIZE] = {0};
  void *listener;
  rank_need(rank, net_listen(99, handle, &listener) == NCCL_INVALID_ARGUMENT && !listener);
  rank_need(rank, net_listen(-1, handle, &listener) == NCCL_INVALID_ARGUMENT && !listener);
  rank_need(rank, net_listen(0, handle, &listener) == 0);
  rank_need(rank, connect_to(rank, bad) == NCCL_INVALID_ARGUMENT);
  for (size_t length = 1; length < 96; length += 7) { /* cut off */
    memset(bad, 0, sizeof bad);
    memcpy(bad, handle, length);
    rank_need(rank, connect_to(rank, bad) == NCCL_INVALID_ARGUMENT);
  }
  memcpy(bad, handle, sizeof bad);
  bad[10] ^= 1;
  rank_need(rank, connect_to(rank, bad) == NCCL_INVALID_ARGUMENT);
  rank_need(rank, player_warnings() > 0);
  rank_need(rank, connect_to(rank, handle) == NCCL_SUCCESS);
  rank_need(rank, net_close_listen(listener) == 0);
  rank_need(rank, player_close() == 0);
}

static void a_handle_that_is_none_is_refused(void **state) {
  (void)state;
  for (int i = 0; i < PLAYER_VERSIONS; i++)
    assert_true(ranks_run(1, player_versions[i], bad_handles));
}

/* ---- Peers that end ---- */

/* Rank 1 is gone before rank 0 connects. */
static void gone_before(struct rank *rank) {
  char *handle = rank->world->handles[1][0];
  if (rank->number == 1) {
    rank_need(rank, net_listen(0, handle, &rank->listeners[0]) == 0);
    rank_barrier(rank);
    kill(getpid(), SIGKILL);
  }
  rank_barrier(rank);
  usleep(100000);
  rank_need(rank, connect_to(rank, handle) == NCCL_REMOTE_ERROR);
  rank_need(rank, player_said("cannot connect"));
  rank_need(rank, player_close() == 0);
}

/* Rank 1 connects and is gone before rank 0 accepts. */
static void gone_unaccepted(struct rank *rank) {
  char *handle = rank->world->handles[0][1];
  void *comm = NULL, *request = NULL, *data = &comm, *memory;
  size_t size = sizeof comm;
  int64_t until = rank_now() + BOUND;
  int tag = 0, result = 0, done = 0;
  if (rank->number == 0)
    rank_need(rank, net_listen(0, handle, &rank->listeners[1]) == 0);
  rank_barrier(rank);
  if (rank->number == 1) {
    while (!comm)
      rank_need(rank, net_connect(0, handle, &comm) == 0);
    usleep(100000);
    kill(getpid(), SIGKILL);
  }
  while (!comm && rank_now() < until)
    rank_need(rank, net_accept(rank->listeners[1], &comm) == 0);
  rank_need(rank, comm);
  if (net_register(comm, data, size, NCCL_POINTER_HOST, &memory) == 0) {
    while (result == 0 && !done && rank_now() < until)
      result = request ? net_test(request, &done, NULL)
                       : net_receive(comm, 1, &data, &size, &tag, &memory, &request);
    rank_need(rank, result == NCCL_REMOTE_ERROR);
    rank_need(rank, net_deregister(comm, memory) == 0);
  }
  rank_need(rank, net_close_receive(comm) == 0);
  rank_need(rank, net_close_listen(rank->listeners[1]) == 0);
  rank_need(rank, player_close() == 0);
}

/* Both send and receive for ever; rank 1 is killed, or stopped, in the middle. */
static void in_the_middle(struct rank *rank) {
  unsigned other = 1 - rank->number;
  static uint8_t out[4 << 20], in[4 << 20];
  void *out_memory, *in_memory, *sent = NULL, *received = NULL, *data = in;
  size_t size = sizeof in;
  int tag = 1, result = 0, done;
  connect_pair(rank);
  rank_need(rank,
            net_register(rank->to[other], out, sizeof out, NCCL_POINTER_HOST, &out_memory) == 0);
  rank_need(rank,
            net_register(rank->from[other], in, sizeof in, NCCL_POINTER_HOST, &in_memory) == 0);
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
  rank_need(rank, player_warnings() > 0);
  rank_need(rank, net_deregister(rank->to[other], out_memory) == 0);
  rank_need(rank, net_deregister(rank->from[other], in_memory) == 0);
  rank_need(rank, net_close_send(rank->to[other]) == 0);
  rank_need(rank, net_close_receive(rank->from[other]) == 0);
  rank_need(rank, net_close_listen(rank->listeners[other]) == 0);
  rank_need(rank, player_close() == 0);
}

static void a_peer_that_is_gone_before_connecting(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, gone_before));
}

static void a_peer_that_is_gone_before_it_is_accepted(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, gone_unaccepted));
}

static void a_peer_that_is_killed_under_way(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++)
    assert_true(ranks_run(2, 11, in_the_middle));
}

/* ---- Anybody, at any time ---- */

#define RANKS 4
#define PART  (192 * 1024)

static uint64_t seed; /* printed where it fails, so that it can be repeated */

static uint64_t next_random(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  return seed ^= seed << 17;
}

/* To and from one other rank, a request each way. */
struct way {
  uint8_t *out, *in;
  void *out_memory, *in_memory, *sent, *received;
  int sends, receives; /* what they ended with */
};

static void open_way(struct rank *rank, struct way *way, unsigned other) {
  way->out = calloc(1, PART);
  way->in = calloc(1, PART);
  rank_need(rank, net_register(rank->to[other], way->out, PART, NCCL_POINTER_HOST,
                               &way->out_memory) == 0);
  rank_need(rank, net_register(rank->from[other], way->in, PART, NCCL_POINTER_HOST,
                               &way->in_memory) == 0);
}

static void step(struct rank *rank, struct way *way, unsigned other) {
  size_t size = PART;
  void *data = way->in;
  int tag = 1, done = 0;
  if (way->sends == 0 && way->sent && (way->sends = net_test(way->sent, &done, NULL)) == 0 && done)
    way->sent = NULL;
  if (way->sends == 0 && !way->sent)
    way->sends = net_send(rank->to[other], way->out, next_random() % PART + 1, tag, way->out_memory,
                          &way->sent);
  done = 0;
  if (way->receives == 0 && way->received &&
      (way->receives = net_test(way->received, &done, NULL)) == 0 && done)
    way->received = NULL;
  if (way->receives == 0 && !way->received)
    way->receives =
        net_receive(rank->from[other], 1, &data, &size, &tag, &way->in_memory, &way->received);
}

static void close_way(struct rank *rank, struct way *way, unsigned other) {
  rank_need(rank, net_deregister(rank->to[other], way->out_memory) == 0);
  rank_need(rank, net_deregister(rank->from[other], way->in_memory) == 0);
  rank_need(rank, net_close_send(rank->to[other]) == 0);
  rank_need(rank, net_close_receive(rank->from[other]) == 0);
  rank_need(rank, net_close_listen(rank->listeners[other]) == 0);
  free(way->out);
  free(way->in);
}

/* All send to all. One is killed; what the others have with it fails, and what they have with each
 * other goes on until all have noticed. */
static void one_is_killed(struct rank *rank) {
  unsigned victim = (unsigned)(next_random() % RANKS);
  uint64_t rounds = next_random() % 3000;
  _Atomic unsigned *noticed = &rank->world->arrived[63];
  struct way ways[RANKS] = {0};
  bool peers[RANKS_MAX] = {false}, told = false;
  for (unsigned i = 0; i < RANKS; i++)
    peers[i] = i != rank->number;
  seed += rank->number; /* different sizes, and the same victim */
  rank_connect(rank, peers);
  for (unsigned i = 0; i < RANKS; i++)
    if (peers[i])
      open_way(rank, &ways[i], i);
  int64_t until = rank_now() + BOUND;
  while (atomic_load(noticed) < RANKS - 1) {
    if (rank->number == victim && rounds-- == 0)
      kill(getpid(), SIGKILL);
    for (unsigned i = 0; i < RANKS; i++) {
      if (peers[i])
        step(rank, &ways[i], i);
      /* Who lives closes only when all have noticed. */
      bool whole = ways[i].sends == 0 && ways[i].receives == 0;
      rank_need(rank, whole || i == victim || atomic_load(noticed) == RANKS - 1);
    }
    if (!told && ways[victim].sends && ways[victim].receives) {
      told = true;
      atomic_fetch_add(noticed, 1);
    }
    rank_need(rank, rank_now() < until);
  }
  for (unsigned i = 0; i < RANKS; i++)
    if (peers[i])
      close_way(rank, &ways[i], i);
}

static void anybody_is_killed_at_any_time(void **state) {
  (void)state;
  for (uint64_t i = 1; i <= 6; i++) {
    uint64_t first = seed = i * UINT64_C(0x9e3779b97f4a7c15);
    if (!ranks_run(RANKS, 12, one_is_killed))
      fail_msg("with seed %llu", (unsigned long long)first);
  }
}

/* ---- Memory ---- */

/* Its request fails or is done, and its memory is nobody's afterwards. */
static void memory_taken_back(struct rank *rank) {
  unsigned other = 1 - rank->number;
  connect_pair(rank);
  for (unsigned round = 0; round < 20; round++) {
    size_t size = round % 2 ? 16 * MIB : 4096; /* the small one comes with a message */
    uint8_t *bytes = malloc(size);
    void *memory, *request = NULL, *data = bytes;
    int tag = (int)round, done = 0, result = 0;
    void *comm = rank->number == 0 ? rank->to[other] : rank->from[other];
    memset(bytes, (int)round, size);
    rank_need(rank, net_register(comm, bytes, size, NCCL_POINTER_HOST, &memory) == 0);
    int64_t until = rank_now() + BOUND;
    while (!request && result == 0 && rank_now() < until)
      result = rank->number == 0 ? net_send(comm, bytes, size, tag, memory, &request)
                                 : net_receive(comm, 1, &data, &size, &tag, &memory, &request);
    usleep((rank->number * 977 + round * 131) % 1500);
    rank_need(rank, net_deregister(comm, memory) == 0);
    free(bytes);
    while (request && result == 0 && !done && rank_now() < until)
      result = net_test(request, &done, NULL);
    if (result)
      break;
  }
  rank_barrier(rank);
  rank_need(rank, net_close_send(rank->to[other]) == 0);
  rank_need(rank, net_close_receive(rank->from[other]) == 0);
  rank_need(rank, net_close_listen(rank->listeners[other]) == 0);
  rank_need(rank, player_close() == 0);
}

static void memory_that_is_taken_back_under_way(void **state) {
  (void)state;
  for (int i = 0; i < 5; i++)
    assert_true(ranks_run(2, 12, memory_taken_back));
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
  rank_need(rank, net_register(out, bytes, sizeof bytes, NCCL_POINTER_HOST, &to) == 0);
  rank_need(rank, net_register(in, bytes, sizeof bytes, NCCL_POINTER_HOST, &from) == 0);
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
    rank_need(rank, net_receive(in, 1, &data, &size, &tag, &from, &request) == 0);
  void *mine = NULL;
  int result = 0;
  int64_t until = rank_now() + BOUND;
  while (result == 0 && !mine && rank_now() < until)
    result = net_send(out, bytes, 16, 0, to, &mine); /* more than was asked for */
  rank_need(rank, result == NCCL_INVALID_USAGE);
  rank_need(rank, player_said("do all ranks make the same calls"));
  while (!mine)
    rank_need(rank, net_send(out, bytes, 4, 0, to, &mine) == 0);
  int got = 0;
  rank_wait(rank, mine, NULL);
  rank_wait(rank, request, &got);
  rank_need(rank, got == 4);
  rank_need(rank, net_deregister(out, to) == 0);
  rank_need(rank, net_deregister(in, from) == 0);
  rank_disconnect(rank);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, wrong_memory));
}

/* ---- More than there are ---- */

static void too_many(struct rank *rank) {
  unsigned other = 1 - rank->number, taken = 0;
  static uint8_t bytes[4096];
  void *requests[1024], *memory, *data = bytes;
  size_t size = 8;
  int tag = 0;
  connect_pair(rank);
  void *comm = rank->number == 0 ? rank->to[other] : rank->from[other];
  rank_need(rank, net_register(comm, bytes, sizeof bytes, NCCL_POINTER_HOST, &memory) == 0);
  if (rank->number == 1) {
    void *request = bytes;
    while (taken < 1024 && request) {
      rank_need(rank, net_receive(comm, 1, &data, &size, &tag, &memory, &request) == 0);
      requests[taken] = request;
      taken += request != NULL;
    }
    rank_need(rank, taken >= NCCL_MAX_REQUESTS && taken < 1024); /* then: later */
    atomic_store(&rank->world->seed, taken);
  }
  rank_barrier(rank);
  unsigned all = (unsigned)atomic_load(&rank->world->seed);
  for (unsigned i = 0; i < all; i++) {
    void *request = rank->number == 1 ? requests[i] : NULL;
    while (!request)
      rank_need(rank, net_send(comm, bytes, 8, 0, memory, &request) == 0);
    rank_wait(rank, request, NULL);
  }
  rank_need(rank, net_deregister(comm, memory) == 0);
  rank_disconnect(rank);
}

static void more_requests_than_were_announced_wait(void **state) {
  (void)state;
  assert_true(ranks_run(2, 12, too_many));
}

int main(void) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("HAUL_LIVENESS", "2s", 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_handle_that_is_none_is_refused),
      cmocka_unit_test(a_peer_that_is_gone_before_connecting),
      cmocka_unit_test(a_peer_that_is_gone_before_it_is_accepted),
      cmocka_unit_test(a_peer_that_is_killed_under_way),
      cmocka_unit_test(anybody_is_killed_at_any_time),
      cmocka_unit_test(memory_that_is_taken_back_under_way),
      cmocka_unit_test(what_does_not_fit_is_refused),
      cmocka_unit_test(more_requests_than_were_announced_wait),
  };
  return cmocka_run_group_tests_name("nccl/faults", tests, NULL, NULL);
}
