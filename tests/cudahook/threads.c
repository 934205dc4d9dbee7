/* SPDX-License-Identifier: MIT
 * Threads allocate and free for each other, and verify contents. Children forked meanwhile neither
 * hang nor touch the parent's memory. A child forked before the first allocation works normally. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hooked.h"
#include "support/child.h"

#define THREADS 8
#define ROUNDS  150
#define SLOTS   16

/* Memory with its number in its first and last 8 bytes. */
struct piece {
  char *address;
  size_t bytes;
  uint64_t number;
};

static struct piece slots[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t numbers;
static _Atomic bool stopped;
static _Atomic unsigned wrong;
static cudaStream_t stream;
static uint64_t seed;

#define EXPECT(condition) atomic_fetch_add(&wrong, !(condition))

static unsigned draw(uint64_t *state, unsigned below) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(*state >> 33) % below;
}

static void sign(const struct piece *piece) {
  char *last = piece->address + piece->bytes - 8;
  EXPECT(cudaMemcpy(piece->address, &piece->number, 8, cudaMemcpyHostToDevice) == cudaSuccess);
  EXPECT(cudaMemcpy(last, &piece->number, 8, cudaMemcpyHostToDevice) == cudaSuccess);
}

static void check(const struct piece *piece) {
  uint64_t first = 0, last = 0;
  EXPECT(cudaMemcpy(&first, piece->address, 8, cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT(cudaMemcpy(&last, piece->address + piece->bytes - 8, 8, cudaMemcpyDeviceToHost) ==
         cudaSuccess);
  EXPECT(first == piece->number && last == piece->number);
}

static struct piece make(uint64_t *random) {
  static const size_t sizes[] = {4096, 300000, MIB, MIB + 8, 3 * MIB, 12 * MIB};
  struct piece piece = {NULL, sizes[draw(random, COUNT(sizes))], atomic_fetch_add(&numbers, 1)};
  cudaError_t error = draw(random, 2)
                          ? cudaMalloc((void **)&piece.address, piece.bytes)
                          : cudaMallocAsync((void **)&piece.address, piece.bytes, stream);
  EXPECT(error == cudaSuccess);
  sign(&piece);
  return piece;
}

static void end(const struct piece *piece, uint64_t *random) {
  check(piece);
  EXPECT((draw(random, 2) ? cudaFree(piece->address) : cudaFreeAsync(piece->address, stream)) ==
         cudaSuccess);
}

static void exchange(struct piece *piece, unsigned slot) {
  pthread_mutex_lock(&lock);
  struct piece before = slots[slot];
  slots[slot] = *piece;
  pthread_mutex_unlock(&lock);
  *piece = before;
}

static void *allocate_and_free(void *argument) {
  uint64_t random = seed + (uintptr_t)argument;
  for (unsigned i = 0; i < ROUNDS; i++) {
    struct piece piece = make(&random);
    exchange(&piece, draw(&random, SLOTS));
    if (piece.address)
      end(&piece, &random);
  }
  return NULL;
}

static void run_threads(void *(*body)(void *), pthread_t threads[THREADS]) {
  for (uintptr_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, body, (void *)i), 0);
}

static void join_threads(pthread_t threads[THREADS]) {
  for (size_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void test_threads(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  uint64_t random = seed;
  run_threads(allocate_and_free, threads);
  join_threads(threads);
  for (size_t i = 0; i < SLOTS; i++)
    if (slots[i].address)
      end(&slots[i], &random);
  assert_int_equal(wrong, 0);
}

static void *allocate_on(void *argument) {
  uint64_t random = seed ^ (uintptr_t)argument;
  while (!stopped) {
    struct piece piece = make(&random);
    end(&piece, &random);
  }
  return NULL;
}

/* The exit status names the failed step. */
static void be_child(void *address) {
  void *mine;
  haul_region *region;
  uint64_t offset;
  alarm(20);
  if (cudaMalloc(&mine, MIB) != cudaErrorInitializationError)
    _exit(1);
  if (cudaMallocAsync(&mine, MIB, NULL) != cudaErrorInitializationError)
    _exit(2);
  if (cudaFree(address) == cudaSuccess || cudaFreeAsync(address, NULL) == cudaSuccess)
    _exit(3);
  if (hook.find && hook.find(address, &region, &offset) != HAUL_EFORK)
    _exit(4);
  if (hook.publish && hook.publish(address, "child", HAUL_READ) != HAUL_EFORK)
    _exit(5);
  if (hook.alloc && hook.alloc(MIB, 0, NULL) != NULL)
    _exit(6);
  if (hook.record_stream)
    hook.record_stream(address, NULL);
  _exit(0);
}

static void test_forks(void **state) {
  (void)state;
  void *address;
  pthread_t threads[THREADS];
  assert_cuda(cudaMalloc(&address, 2 * MIB));
  put_bytes(address, 2 * MIB, 3);
  run_threads(allocate_on, threads);
  for (int i = 0; i < 30; i++)
    assert_int_equal(child_run(be_child, address), 0);
  stopped = true;
  join_threads(threads);
  check_bytes(address, 2 * MIB, 3);
  assert_cuda(cudaFree(address));
  assert_int_equal(wrong, 0);
}

static void be_early_child(void *unused) {
  (void)unused;
  void *address;
  alarm(20);
  if (cudaMalloc(&address, MIB) != cudaSuccess)
    _exit(1);
  haul_region *region;
  uint64_t offset;
  if (hook.find && hook.find(address, &region, &offset) != 0)
    _exit(2);
  _exit(cudaFree(address) == cudaSuccess ? 0 : 3);
}

static void test_early_fork(void **state) {
  (void)state;
  assert_int_equal(child_run(be_early_child, NULL), 0);
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

/* threads [SEED] */
int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_early_fork),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_forks),
  };
  seed = count > 1 ? strtoul(arguments[1], NULL, 10) : (uint64_t)getpid();
  printf("seed %" PRIu64 "\n", seed);
  find_hook(NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
