/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_PEER_H
#define HAUL_NIXL_PEER_H

#include <atomic>
#include <condition_variable>
#include <haul/haul.h>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "contact.h"
#include "interface.h"

namespace haul_nixl {

class Flight;

/* Tags of haul's messages between plugins. A fence has no content: haul sends it once no earlier
 * write can arrive any more. */
enum Tag : uint64_t { NOTIFICATION = 1, FENCE = 2 };

/* The content of a notification: the sender's agent and its text. */
std::string pack(const std::string &agent, const std::string &text);
bool unpack(const void *bytes, size_t length, std::string &agent, std::string &text);

/* Counts threads that haul's calls may still hold, for the end of the engine. */
class Threads {
public:
  void begin();
  void end();
  void wait();

private:
  std::mutex lock_;
  std::condition_variable idle_;
  unsigned count_ = 0;
};

/* An agent, as its metadata describes it. It connects once: an agent that restarts has other
 * metadata, and so another Peer. */
class Peer : public std::enable_shared_from_this<Peer> {
public:
  Peer(haul_node *node, std::string agent, Contact contact, Threads &threads);
  ~Peer();
  Peer(const Peer &) = delete;
  Peer &operator=(const Peer &) = delete;

  const std::string &agent() const {
    return agent_;
  }

  /* Connects unless it has. Blocks until the agent has responded. */
  Status connect();

  /* 0, or an error of haul. The caller releases the remote. */
  Status look_up(const std::string &name, haul_remote **remote);

  /* Sends a message after those before it, at once or from a thread, and then ends `flight`, which
   * may be NULL. Never blocks. An error is that of a message that failed at once. Nothing is sent
   * for a canceled flight. */
  Status send(Tag tag, std::string bytes, Flight *flight);

  /* Takes back what has not been sent for `flight`, and waits for what is being sent. */
  void withdraw(Flight *flight);

  /* Blocks until no canceled write can arrive at the agent any more. */
  Status fence();

  /* Waits until all messages have been sent and have arrived, or `until`. */
  void flush(haul_deadline until);

private:
  struct Message {
    Tag tag;
    std::string bytes;
    Flight *flight;
  };

  Status dial();
  Status dial(const std::string &address);
  bool start_thread();
  void run();
  void send_first(std::unique_lock<std::mutex> &lock);

  haul_node *const node_;
  const std::string agent_;
  const Contact contact_;
  Threads &threads_;

  std::mutex dialing_; /* held while connecting; `peer_` never changes once it is set */
  std::atomic<haul_peer *> peer_ = nullptr;

  std::mutex lock_;
  std::condition_variable changed_;
  std::list<Message> queue_; /* the first one is being sent if `sending_` */
  bool running_ = false, sending_ = false, sent_ = false;
};

} // namespace haul_nixl

#endif
