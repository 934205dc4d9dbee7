/* SPDX-License-Identifier: MIT */
#include "peer.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "flight.h"
#include "log.h"

namespace haul_nixl {

static constexpr int64_t SECOND = 1000000000;
static constexpr int64_t DIAL = 5 * SECOND, LOOK_UP = 10 * SECOND, FENCING = 10 * SECOND;
static constexpr auto IDLE = std::chrono::seconds(1);
/* A message that waits for the other agent ends this late after a cancel of its transfer. */
static constexpr int64_t SLICE = SECOND / 10;

/* The length of the agent's name in 4 bytes, little-endian as all hosts of haul; the name; the
 * text. */
std::string pack(const std::string &agent, const std::string &text) {
  uint32_t length = static_cast<uint32_t>(agent.size());
  return std::string(reinterpret_cast<const char *>(&length), sizeof length) + agent + text;
}

bool unpack(const void *bytes, size_t length, std::string &agent, std::string &text) {
  uint32_t name;
  auto *at = static_cast<const char *>(bytes);
  if (length < sizeof name)
    return false;
  memcpy(&name, at, sizeof name);
  if (name > length - sizeof name)
    return false;
  agent.assign(at + sizeof name, name);
  text.assign(at + sizeof name + name, length - sizeof name - name);
  return true;
}

void Threads::begin() {
  std::lock_guard guard(lock_);
  count_++;
}

void Threads::end() {
  std::lock_guard guard(lock_);
  count_--;
  idle_.notify_all();
}

void Threads::wait() {
  std::unique_lock lock(lock_);
  idle_.wait(lock, [this] { return count_ == 0; });
}

Peer::Peer(haul_node *node, std::string agent, Contact contact, Threads &threads)
    : node_(node), agent_(std::move(agent)), contact_(std::move(contact)), threads_(threads) {}

Peer::~Peer() {
  haul_peer_close(peer_);
}

/* Only the node that the metadata describes will do: its addresses may have another owner now. */
Status Peer::dial(const std::string &address) {
  haul_peer *peer = nullptr;
  int code = haul_peer_connect(node_, address.c_str(), haul_deadline_in(DIAL), &peer);
  if (code == HAUL_EADDRESS || code == HAUL_ETIMEDOUT)
    code = HAUL_ECONNECT;
  if (code)
    return status_of(code);
  if (haul_peer_name(peer) != contact_.node) {
    haul_peer_close(peer);
    return NOT_FOUND;
  }
  peer_ = peer;
  return SUCCESS;
}

Status Peer::dial() {
  bool here = contact_.host == this_host();
  Status status = REMOTE_DISCONNECT;
  for (bool loopback : {true, false})
    for (const auto &address : contact_.addresses)
      if (is_loopback(address) == loopback && (here || !loopback)) {
        status = dial(address);
        if (status == SUCCESS || status == NOT_ALLOWED)
          return status;
      }
  return status;
}

Status Peer::connect() {
  std::lock_guard guard(dialing_);
  if (peer_)
    return haul_peer_status(peer_) == 0 ? SUCCESS : REMOTE_DISCONNECT;
  Status status = dial();
  bool remote = std::any_of(contact_.addresses.begin(), contact_.addresses.end(),
                            [](const auto &address) { return !is_loopback(address); });
  if (status == NOT_FOUND)
    say("cannot connect to agent " + agent_ +
        ": it has ended, and its address has another owner "
        "(hint: load its new metadata)");
  else if (status != SUCCESS && !remote && contact_.host != this_host())
    say("cannot connect to agent " + agent_ +
        ": it is on another host and listens on loopback only (hint: give both agents a key, see "
        "haul-key(1) and haul-nixl(7))");
  else if (status != SUCCESS)
    fail("cannot connect to agent " + agent_);
  return status == NOT_FOUND ? REMOTE_DISCONNECT : status;
}

Status Peer::look_up(const std::string &name, haul_remote **remote) {
  int code = haul_peer_lookup(peer_, name.c_str(), haul_deadline_in(LOOK_UP), remote);
  return code ? fail("cannot use memory of agent " + agent_) : SUCCESS;
}

Status Peer::send(Tag tag, std::string bytes, Flight *flight) {
  std::unique_lock lock(lock_);
  sent_ = true;
  int code = flight && flight->is_canceled() ? HAUL_ECANCELED : HAUL_ETIMEDOUT;
  if (code == HAUL_ETIMEDOUT && queue_.empty())
    code = haul_message_send(peer_, tag, bytes.data(), bytes.size(), HAUL_NO_WAIT);
  if (code != HAUL_ETIMEDOUT) {
    lock.unlock();
    if (flight)
      flight->settle(code);
    return status_of(code);
  }
  if (flight)
    flight->retain();
  queue_.push_back({tag, std::move(bytes), flight});
  changed_.notify_all();
  if (running_ || start_thread())
    return SUCCESS;
  queue_.pop_back(); /* the only one */
  lock.unlock();
  say("no thread can be started to send to agent " + agent_);
  if (flight) {
    flight->settle(HAUL_ELIMIT);
    flight->release();
  }
  return status_of(HAUL_ELIMIT);
}

/* With the lock. */
bool Peer::start_thread() {
  threads_.begin();
  try {
    std::thread([self = shared_from_this()]() mutable {
      Threads &threads = self->threads_;
      self->run();
      self.reset();
      threads.end();
    }).detach();
    running_ = true;
  } catch (const std::exception &) {
    threads_.end();
  }
  return running_;
}

/* A send waits for earlier writes to the peer, and so has a thread of its own. */
void Peer::send_first(std::unique_lock<std::mutex> &lock) {
  const Message &first = queue_.front();
  sending_ = true;
  lock.unlock();
  auto canceled = [&first] { return first.flight && first.flight->is_canceled(); };
  int code;
  do
    code = haul_message_send(peer_, first.tag, first.bytes.data(), first.bytes.size(),
                             haul_deadline_in(SLICE));
  while (code == HAUL_ETIMEDOUT && !canceled());
  lock.lock();
  Flight *flight = first.flight;
  queue_.pop_front();
  sending_ = false;
  changed_.notify_all();
  if (!flight)
    return;
  lock.unlock();
  flight->settle(code);
  flight->release();
  lock.lock();
}

void Peer::run() {
  std::unique_lock lock(lock_);
  while (!queue_.empty() || changed_.wait_for(lock, IDLE, [this] { return !queue_.empty(); }))
    send_first(lock);
  running_ = false;
}

void Peer::withdraw(Flight *flight) {
  std::unique_lock lock(lock_);
  auto is_its = [flight](const Message &message) { return message.flight == flight; };
  auto found = std::find_if(queue_.begin(), queue_.end(), is_its);
  if (found == queue_.end())
    return;
  if (found != queue_.begin() || !sending_) {
    queue_.erase(found);
    lock.unlock();
    flight->release();
    return;
  }
  changed_.wait(lock, [&] { return std::none_of(queue_.begin(), queue_.end(), is_its); });
}

Status Peer::fence() {
  int code = haul_message_send(peer_, FENCE, nullptr, 0, haul_deadline_in(FENCING));
  return code == HAUL_ETIMEDOUT ? fail("cannot fence writes to agent " + agent_) : SUCCESS;
}

/* The response to a look-up follows the messages on the control channel. */
void Peer::flush(haul_deadline until) {
  std::unique_lock lock(lock_);
  auto left = std::chrono::nanoseconds(std::max<int64_t>(0, until - haul_deadline_in(0)));
  bool empty = changed_.wait_for(lock, left, [this] { return queue_.empty(); });
  bool sent = sent_;
  lock.unlock();
  haul_remote *remote = nullptr;
  if (empty && sent && haul_peer_status(peer_) == 0 &&
      haul_peer_lookup(peer_, "nixl.flush", until, &remote) == 0)
    haul_remote_release(remote);
}

} // namespace haul_nixl
