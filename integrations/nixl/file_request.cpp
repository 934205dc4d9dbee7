/* SPDX-License-Identifier: MIT */
#include "file_request.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <exception>
#include <fcntl.h>

#include "log.h"
#include "report.h"

namespace haul_nixl {

static constexpr size_t THREADS = 4;
static constexpr size_t SEGMENTS_MOST = IOV_MAX;

/* ---- Threads ------------------------------------------------------------------------------ */

haul_region *Stage::get() {
  if (!region_ && haul_region_alloc(node_, {HAUL_HOST, 0}, SIZE, HAUL_REGION_PINNED, &region_) != 0)
    fail("cannot allocate a bounce buffer");
  return region_;
}

/* With the lock. Signals are for the program's own threads. */
bool FileThreads::start() {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  try {
    while (threads_.size() < THREADS)
      threads_.emplace_back([this] { run(); });
  } catch (const std::exception &) { /* fewer do, too */
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return !threads_.empty();
}

bool FileThreads::add(FileRequest *request) {
  std::lock_guard guard(lock_);
  if (stopping_ || !start())
    return false;
  try {
    queue_.push_back({request, 0});
  } catch (const std::exception &) {
    return false;
  }
  added_.notify_all();
  return true;
}

void FileThreads::run() {
  Stage stage(node_);
  std::unique_lock lock(lock_);
  for (;;) {
    added_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_)
      return;
    auto [request, step] = queue_.front();
    if (++queue_.front().next == request->steps_.size())
      queue_.pop_front();
    lock.unlock();
    request->run(step, stage);
    lock.lock();
    ended(request, 1, lock);
  }
}

/* The last step ends the request, which its owner may delete once the lock is released. */
void FileThreads::ended(FileRequest *request, size_t steps, std::unique_lock<std::mutex> &lock) {
  request->left_ -= steps;
  if (request->left_ > 0 || steps == 0)
    return;
  lock.unlock();
  Status status = request->finish();
  lock.lock();
  request->status_.store(status, std::memory_order_release);
  ended_.notify_all();
}

void FileThreads::end(FileRequest *request) {
  std::unique_lock lock(lock_);
  auto found = std::find_if(queue_.begin(), queue_.end(),
                            [request](const Item &item) { return item.request == request; });
  if (found != queue_.end()) {
    size_t steps = request->steps_.size() - found->next;
    queue_.erase(found);
    ended(request, steps, lock);
  }
  ended_.wait(lock, [request] { return request->status_.load() != IN_PROGRESS; });
}

void FileThreads::stop() {
  std::unique_lock lock(lock_);
  stopping_ = true;
  added_.notify_all();
  lock.unlock();
  for (auto &thread : threads_)
    thread.join();
  threads_.clear();
}

/* ---- Preparing ---------------------------------------------------------------------------- */

/* Whether the registered memory has these bytes, and a way to the file. */
Status FileRequest::check_memory(const MetaDescriptor &local) {
  const Region &region = *static_cast<LocalMetadata *>(local.metadata)->region;
  Status status = NOT_FOUND;
  static_cast<LocalMetadata *>(local.metadata)->region->with([&](haul_region *handle) {
    size_t length = haul_region_length(handle), at = local.address - region.base;
    on_device_ = on_device_ || haul_region_place(handle).kind != HAUL_HOST;
    status = at <= length && local.length <= length - at ? SUCCESS : INVALID_PARAMETER;
    return 0;
  });
  if (status != SUCCESS)
    say(status == NOT_FOUND ? "cannot use files with memory that has been deregistered"
                            : "cannot use files with memory beyond its registration");
  return status;
}

Status FileRequest::prepare(const MetaList &local, const MetaList &remote) {
  size_t count = local.items.size();
  if (count == 0 || count != remote.items.size())
    return INVALID_PARAMETER;
  for (size_t i = 0; i < count; i++) {
    const MetaDescriptor &here = local.items[i], &there = remote.items[i];
    if (here.length != there.length || !here.metadata || !there.metadata ||
        there.address > INT64_MAX - there.length)
      return INVALID_PARAMETER;
    const auto &region = static_cast<LocalMetadata *>(here.metadata)->region;
    const auto &file = static_cast<FileMetadata *>(there.metadata)->file;
    bool known = !steps_.empty() && steps_.back().file == file;
    Status status = known ? SUCCESS : file->allows(operation_);
    if (status == SUCCESS)
      status = check_memory(here);
    if (status != SUCCESS)
      return status;
    for (size_t done = 0, part; done < here.length; done += part) {
      part = std::min(here.length - done, Stage::SIZE);
      add(region, file, here.address + done, there.address + done, part);
    }
  }
  return SUCCESS;
}

void FileRequest::add(const std::shared_ptr<Region> &region, const std::shared_ptr<File> &file,
                      uint64_t address, uint64_t offset, size_t length) {
  Step *last = steps_.empty() ? nullptr : &steps_.back();
  if (!last || last->file != file || last->region != region ||
      last->offset + last->bytes != offset || last->bytes + length > Stage::SIZE ||
      last->count == SEGMENTS_MOST) {
    steps_.push_back({file, region, offset, 0, segments_.size(), 0});
    last = &steps_.back();
  }
  last->bytes += length;
  char *bytes = reinterpret_cast<char *>(address);
  iovec *before = last->count ? &segments_.back() : nullptr;
  if (before && static_cast<char *>(before->iov_base) + before->iov_len == bytes) {
    before->iov_len += length;
    return;
  }
  segments_.push_back({bytes, length});
  last->count++;
}

/* ---- Moving ------------------------------------------------------------------------------- */

Status FileRequest::post(const haul_transfer_options &options, const std::string *notification) {
  if (threads_.is_forked()) {
    say("cannot use files: this process is a fork of the one that opened the node");
    return NOT_ALLOWED;
  }
  if (status_ == IN_PROGRESS)
    return REPOST_ACTIVE;
  if (on_device_ && (options.flags & HAUL_REQUIRE_ZERO_COPY)) {
    say("cannot move between a device and files: a bounce buffer copies the bytes, which "
        "zero_copy forbids");
    return NOT_SUPPORTED;
  }
  until_ = options.deadline ? options.deadline : HAUL_FOREVER;
  canceled_ = false;
  failure_ = SUCCESS;
  notifies_ = notification != nullptr;
  message_ = notification ? *notification : "";
  if (Status status = notifies_ ? self_->connect() : SUCCESS; status != SUCCESS)
    return status;
  if (steps_.empty())
    return status_ = finish();
  left_ = steps_.size();
  status_ = IN_PROGRESS;
  if (threads_.add(this))
    return check();
  status_ = BACKEND_ERROR;
  say("no thread can be started for files, or memory is short");
  return BACKEND_ERROR;
}

Status FileRequest::cancel() {
  if (status_ == NOT_POSTED || threads_.is_forked())
    return SUCCESS;
  canceled_ = true;
  threads_.end(this);
  return SUCCESS;
}

/* In the thread that has ended the last step. */
Status FileRequest::finish() noexcept {
  if (failure_ != SUCCESS || canceled_)
    return failure_ != SUCCESS ? failure_.load() : CANCELED;
  try {
    return notifies_ ? self_->send(NOTIFICATION, std::move(message_), nullptr) : SUCCESS;
  } catch (const std::exception &error) {
    return fail("cannot use files", error);
  }
}

/* Steps after a failure are of no use. */
void FileRequest::run(size_t number, Stage &stage) noexcept {
  if (canceled_ || failure_ != SUCCESS)
    return;
  Status none = SUCCESS, status;
  try {
    status = move_in_time(steps_[number], stage);
  } catch (const std::exception &error) {
    status = fail("cannot use files", error);
  }
  failure_.compare_exchange_strong(none, status);
}

Status FileRequest::fail_step(const Step &step, const std::string &why, Status status) {
  say(std::string("cannot ") + (operation_ == READ ? "read " : "write ") +
      std::to_string(step.bytes) + " bytes at " + std::to_string(step.offset) + " of " +
      step.file->name() + ": " + why);
  return status;
}

Status FileRequest::move_in_time(const Step &step, Stage &stage) {
  return haul_deadline_in(0) > until_ ? fail_step(step, "the deadline passed", BACKEND_ERROR)
                                      : move(step, stage);
}

/* Memory and file remain registered meanwhile. */
Status FileRequest::move(const Step &step, Stage &stage) {
  Status status = NOT_FOUND;
  step.region->with([&](haul_region *region) {
    step.file->with([&](int descriptor) {
      bool host = haul_region_place(region).kind == HAUL_HOST;
      std::vector<iovec> segments(segments_.begin() + static_cast<ptrdiff_t>(step.first),
                                  segments_.begin() +
                                      static_cast<ptrdiff_t>(step.first + step.count));
      status = host ? move_host(step, descriptor, segments.data(), segments.size())
                    : move_device(step, descriptor, region, stage);
    });
    return 0;
  });
  return status == NOT_FOUND ? fail_step(step, "memory or file has been deregistered", status)
                             : status;
}

static void advance(iovec *&segments, size_t &count, size_t bytes) {
  while (count > 0 && bytes >= segments->iov_len) {
    bytes -= segments->iov_len;
    segments++;
    count--;
  }
  if (count > 0) {
    segments->iov_base = static_cast<char *>(segments->iov_base) + bytes;
    segments->iov_len -= bytes;
  }
}

static std::string hint_of(int descriptor, int code) {
  if (code != EINVAL || !(fcntl(descriptor, F_GETFL) & O_DIRECT))
    return "";
  return " (hint: with O_DIRECT, addresses, offsets and lengths are multiples of the disk's block)";
}

Status FileRequest::move_host(const Step &step, int descriptor, iovec *segments, size_t count) {
  for (size_t done = 0; done < step.bytes;) {
    auto call = operation_ == READ ? preadv : pwritev;
    ssize_t moved =
        call(descriptor, segments, static_cast<int>(count), static_cast<off_t>(step.offset + done));
    int code = moved < 0 ? errno : 0;
    if (code == EINTR)
      continue;
    if (code)
      return fail_step(step, strerror(code) + hint_of(descriptor, code), BACKEND_ERROR);
    if (moved == 0)
      return fail_step(step, "the file ends at " + std::to_string(step.offset + done),
                       BACKEND_ERROR);
    done += static_cast<size_t>(moved);
    advance(segments, count, static_cast<size_t>(moved));
  }
  return SUCCESS;
}

Status FileRequest::move_device(const Step &step, int descriptor, haul_region *region,
                                Stage &stage) {
  haul_region *bounce = stage.get();
  if (!bounce)
    return BACKEND_ERROR;
  iovec whole = {haul_region_address(bounce), step.bytes};
  if (operation_ == WRITE) {
    Status status = copy(step, region, bounce);
    return status == SUCCESS ? move_host(step, descriptor, &whole, 1) : status;
  }
  Status status = move_host(step, descriptor, &whole, 1);
  return status == SUCCESS ? copy(step, region, bounce) : status;
}

/* From a device's segments to the bounce buffer, or back. */
Status FileRequest::copy(const Step &step, haul_region *region, haul_region *bounce) {
  size_t at = 0;
  for (size_t i = step.first; i < step.first + step.count; i++) {
    size_t length = segments_[i].iov_len;
    uint64_t offset = reinterpret_cast<uint64_t>(segments_[i].iov_base) - step.region->base;
    int code = operation_ == READ ? haul_region_copy(region, offset, bounce, at, length, until_)
                                  : haul_region_copy(bounce, at, region, offset, length, until_);
    if (code)
      return fail("cannot copy between a device and a bounce buffer");
    at += length;
  }
  return SUCCESS;
}

void FileRequest::report(Reports &reports) const {
  if (reports.wanted())
    reports.add(std::string(operation_ == WRITE ? "write to" : "read from") + " files, " +
                    (on_device_ ? "device" : "host") + " memory: ",
                on_device_ ? "threads, copies: 1 by the kernel, 1 by DMA through bounce buffers"
                           : "threads, copies: 1 by the kernel");
}

} // namespace haul_nixl
