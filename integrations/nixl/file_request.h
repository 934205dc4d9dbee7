/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_FILE_REQUEST_H
#define HAUL_NIXL_FILE_REQUEST_H

#include <condition_variable>
#include <deque>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

#include "file.h"
#include "request.h"

namespace haul_nixl {

class FileRequest;

/* A bounce buffer of a thread, for memory of devices. */
class Stage {
public:
  explicit Stage(haul_node *node) : node_(node) {}
  ~Stage() {
    haul_region_release(region_);
  }
  Stage(const Stage &) = delete;
  Stage &operator=(const Stage &) = delete;

  static constexpr size_t SIZE = 1 << 20;
  /* NULL after a failure. */
  haul_region *get();

private:
  haul_node *const node_;
  haul_region *region_ = nullptr;
};

/* Threads that read and write files. They are started for the first request, and wait without
 * polling. */
class FileThreads {
public:
  explicit FileThreads(haul_node *const &node) : node_(node), owner_(getpid()) {}
  ~FileThreads() {
    stop();
  }

  /* In a forked child, which has none of the threads. */
  bool is_forked() const {
    return getpid() != owner_;
  }

  /* False: no thread can be started, or memory is short. */
  bool add(FileRequest *request);

  /* Ends the request's steps that no thread has begun, and waits for the others. */
  void end(FileRequest *request);

  /* Waits for the steps that have begun. No others begin. */
  void stop();

private:
  struct Item {
    FileRequest *request;
    size_t next; /* step */
  };

  bool start();
  void run();
  void ended(FileRequest *request, size_t steps, std::unique_lock<std::mutex> &lock);

  haul_node *const &node_;
  const pid_t owner_;
  std::mutex lock_;
  std::condition_variable added_, ended_;
  std::deque<Item> queue_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

/* Between memory of this agent and its files. */
class FileRequest final : public Request {
public:
  FileRequest(Operation operation, std::shared_ptr<Peer> self, FileThreads &threads)
      : operation_(operation), self_(std::move(self)), threads_(threads) {}
  ~FileRequest() override {
    cancel();
  }

  /* Sorts the descriptors into steps, neighbours in a file together. */
  Status prepare(const MetaList &local, const MetaList &remote) override;
  Status post(const haul_transfer_options &options, const std::string *notification) override;
  Status check() override {
    Status status = status_.load(std::memory_order_acquire);
    return status == IN_PROGRESS && threads_.is_forked() ? NOT_ALLOWED : status;
  }
  Status cancel() override;
  Status estimate(const haul_transfer_options &, double &, double &) const override {
    return NOT_SUPPORTED;
  }
  void report(Reports &reports) const override;

private:
  friend class FileThreads;

  /* One call to the kernel, or more where that moves a part only. */
  struct Step {
    std::shared_ptr<File> file;
    std::shared_ptr<Region> region;
    uint64_t offset; /* in the file */
    size_t bytes;
    size_t first, count; /* of segments_ */
  };

  Status check_memory(const MetaDescriptor &local);
  void add(const std::shared_ptr<Region> &region, const std::shared_ptr<File> &file,
           uint64_t address, uint64_t offset, size_t length);
  void run(size_t step, Stage &stage) noexcept;
  Status move_in_time(const Step &step, Stage &stage);
  Status move(const Step &step, Stage &stage);
  Status move_host(const Step &step, int descriptor, iovec *segments, size_t count);
  Status move_device(const Step &step, int descriptor, haul_region *region, Stage &stage);
  Status copy(const Step &step, haul_region *region, haul_region *stage);
  Status finish() noexcept;
  Status fail_step(const Step &step, const std::string &why, Status status);

  const Operation operation_;
  const std::shared_ptr<Peer> self_;
  FileThreads &threads_;
  std::vector<Step> steps_;
  std::vector<iovec> segments_;
  bool on_device_ = false;

  haul_deadline until_ = HAUL_FOREVER;
  std::string message_;
  bool notifies_ = false;
  std::atomic<bool> canceled_ = false;
  std::atomic<Status> failure_ = SUCCESS; /* the first one */
  size_t left_ = 0;                       /* steps that have not ended, with FileThreads' lock */
  std::atomic<Status> status_ = NOT_POSTED;
};

} // namespace haul_nixl

#endif
