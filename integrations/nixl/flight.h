/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_FLIGHT_H
#define HAUL_NIXL_FLIGHT_H

#include <atomic>
#include <haul/haul.h>
#include <memory>
#include <string>
#include <vector>

#include "interface.h"
#include "peer.h"

namespace haul_nixl {

/* One posting of a request: its transfers, and the notification that follows them. The status
 * becomes final once: a success after all bytes are visible and the notification has been sent, an
 * error after no byte can arrive any more. */
class Flight {
public:
  /* With one reference, the caller's. `notification` may be NULL. */
  Flight(std::shared_ptr<Peer> peer, Operation operation, size_t transfers,
         const std::string *notification);

  void retain() {
    references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release();

  /* Adds a transfer, whose `done` is on_done with this flight if the flight notifies. */
  void add(haul_transfer *transfer) {
    transfers_.push_back(transfer);
  }
  bool notifies() const {
    return notifies_;
  }
  static void on_done(void *user, haul_transfer *transfer);
  /* A transfer with on_done is about to start. */
  void expect() {
    retain();
    pending_.fetch_add(1, std::memory_order_relaxed);
  }
  /* It did not start: the flight ends with the code. */
  void unexpect(int code);
  /* All have been added. */
  void posted();

  /* A few nanoseconds while nothing has changed. */
  Status check() {
    Status status = status_.load(std::memory_order_acquire);
    if (status == IN_PROGRESS && advance()) {
      finish();
      status = status_.load(std::memory_order_acquire);
    }
    return status;
  }

  /* The message has been sent, or failed. */
  void settle(int code);

  /* Ends the flight, without its notification. Blocks until no byte can arrive any more. */
  Status cancel();
  bool is_canceled() const {
    return canceled_.load(std::memory_order_relaxed);
  }

  /* The first transfer, or NULL. */
  haul_transfer *first() const {
    return transfers_.empty() ? nullptr : transfers_.front();
  }

private:
  ~Flight();
  bool advance();
  void finish();
  void put_pending();
  int failure() const;

  const std::shared_ptr<Peer> peer_;
  const Operation operation_;
  const bool notifies_;
  std::string message_;
  std::vector<haul_transfer *> transfers_;
  std::atomic<unsigned> references_ = 1;
  std::atomic<size_t> pending_ = 1; /* transfers with on_done, and the call that posts */
  std::atomic<size_t> ended_ = 0;   /* the transfers before this one have ended */
  std::atomic<bool> finished_ = false;
  std::atomic<bool> canceled_ = false; /* written before the peer's lock is taken to withdraw */
  int refused_ = 0;                    /* the code of a transfer that did not start */
  Status outcome_ = SUCCESS;
  std::atomic<Status> status_ = IN_PROGRESS;
};

} // namespace haul_nixl

#endif
