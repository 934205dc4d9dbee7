/* SPDX-License-Identifier: MIT */
#include "refusal.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace test {

static constexpr long NEVER = std::numeric_limits<long>::max();

static std::atomic<long> left[2] = {NEVER, NEVER}; /* calls of each kind until the first refusal */
static thread_local bool is_here;                  /* this thread made a refusal */
static std::atomic<bool> refused;

Refusal::Refusal(Whose whose, long from) {
  is_here = true;
  refused = false;
  left[whose] = from;
}

bool Refusal::end() {
  left[HERE] = left[ELSEWHERE] = NEVER;
  return refused;
}

static bool refuses() {
  std::atomic<long> &count = left[is_here ? Refusal::HERE : Refusal::ELSEWHERE];
  if (count == NEVER || count.fetch_sub(1) > 0)
    return false;
  return refused = true;
}

} // namespace test

void *operator new(size_t size, const std::nothrow_t &) noexcept {
  return test::refuses() ? nullptr : malloc(size ? size : 1);
}

void *operator new(size_t size) {
  void *bytes = operator new(size, std::nothrow);
  if (!bytes)
    throw std::bad_alloc();
  return bytes;
}

void operator delete(void *bytes) noexcept {
  free(bytes);
}

void operator delete(void *bytes, size_t) noexcept {
  free(bytes);
}
