/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_USES_H
#define HAUL_NIXL_USES_H

#include <atomic>

namespace haul_nixl {

/* Counts the uses of a thing by threads, so that its end waits for them. Once the end has begun,
 * no other use does, so that it does not wait for ever. */
class Uses {
public:
  /* One use, until it leaves its scope; false: the thing has ended. */
  class Use {
  public:
    explicit Use(Uses &uses) : uses_(uses), begun_(uses.begin()) {}
    ~Use() {
      if (begun_)
        uses_.done();
    }
    Use(const Use &) = delete;
    Use &operator=(const Use &) = delete;
    explicit operator bool() const {
      return begun_;
    }

  private:
    Uses &uses_;
    const bool begun_;
  };

  /* Waits until no use is left; not within one. True for the first call. */
  bool end() {
    unsigned found = state_.fetch_or(ENDED), now = found | ENDED;
    while (now != ENDED) {
      state_.wait(now);
      now = state_;
    }
    return !(found & ENDED);
  }

  bool ended() const {
    return state_ & ENDED;
  }

private:
  static constexpr unsigned ENDED = 1, ONE = 2;

  bool begin() {
    unsigned now = state_;
    while (!(now & ENDED))
      if (state_.compare_exchange_weak(now, now + ONE))
        return true;
    return false;
  }
  void done() {
    if (state_.fetch_sub(ONE) == (ONE | ENDED))
      state_.notify_all();
  }

  std::atomic<unsigned> state_ = 0; /* ONE for each use, and ENDED */
};

} // namespace haul_nixl

#endif
