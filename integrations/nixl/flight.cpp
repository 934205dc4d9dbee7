/* SPDX-License-Identifier: MIT */
#include "flight.h"

#include "log.h"

namespace haul_nixl {

Flight::Flight(std::shared_ptr<Peer> peer, Operation operation, size_t transfers,
               const std::string *notification)
    : peer_(std::move(peer)), operation_(operation), notifies_(notification != nullptr),
      message_(notification ? *notification : "") {
  transfers_.reserve(transfers); /* `add` moves nothing while on_done reads */
}

Flight::~Flight() {
  for (auto *transfer : transfers_)
    haul_transfer_release(transfer);
}

void Flight::release() {
  if (references_.fetch_sub(1) == 1)
    delete this;
}

void Flight::put_pending() {
  if (pending_.fetch_sub(1) == 1)
    finish();
}

void Flight::on_done(void *user, haul_transfer *) {
  auto *flight = static_cast<Flight *>(user);
  flight->put_pending();
  flight->release();
}

void Flight::unexpect(int code) {
  refused_ = code;
  if (notifies_) {
    pending_.fetch_sub(1);
    release();
  }
  for (auto *transfer : transfers_)
    haul_transfer_cancel(transfer);
}

void Flight::posted() {
  if (advance())
    finish();
  else if (notifies_)
    put_pending();
}

/* True once all transfers have ended. */
bool Flight::advance() {
  size_t at = ended_.load(std::memory_order_relaxed);
  size_t begin = at;
  for (; at < transfers_.size(); at++) {
    int code = haul_transfer_test(transfers_[at]);
    if (code > 0)
      break;
    if (code < 0) /* the others are of no use any more */
      for (size_t i = at + 1; i < transfers_.size(); i++)
        haul_transfer_cancel(transfers_[i]);
  }
  if (at != begin)
    ended_.store(at, std::memory_order_relaxed);
  return at == transfers_.size();
}

int Flight::failure() const {
  if (refused_)
    return refused_;
  for (auto *transfer : transfers_)
    if (int code = haul_transfer_test(transfer); code < 0)
      return code;
  return 0;
}

void Flight::finish() {
  if (finished_.load(std::memory_order_relaxed) || finished_.exchange(true))
    return;
  int code = failure();
  outcome_ = status_of(code);
  if (code && operation_ == WRITE && !transfers_.empty())
    peer_->send(FENCE, "", this);
  else if (code == 0 && notifies_)
    peer_->send(NOTIFICATION, std::move(message_), this);
  else
    status_.store(outcome_, std::memory_order_release);
}

void Flight::settle(int code) {
  Status status = outcome_ == SUCCESS ? status_of(code) : outcome_;
  status_.store(status, std::memory_order_release);
}

Status Flight::cancel() {
  canceled_.store(true, std::memory_order_relaxed);
  if (finished_.exchange(true))
    peer_->withdraw(this);
  for (auto *transfer : transfers_)
    haul_transfer_cancel(transfer);
  for (auto *transfer : transfers_)
    haul_transfer_wait(transfer, HAUL_FOREVER);
  if (status_.load(std::memory_order_acquire) == SUCCESS)
    return SUCCESS;
  bool whole = failure() == 0;
  return operation_ == READ || whole ? SUCCESS : peer_->fence();
}

} // namespace haul_nixl
