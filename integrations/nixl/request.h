/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_REQUEST_H
#define HAUL_NIXL_REQUEST_H

#include <memory>
#include <string>
#include <vector>

#include "flight.h"
#include "memory.h"

namespace haul_nixl {

class Reports;

/* A prepared transfer. It may be posted several times, one after the other. */
class Request : public Handle {
public:
  /* Says what is wrong with the descriptors. May block. */
  virtual Status prepare(const MetaList &local, const MetaList &remote) = 0;

  /* `notification` may be NULL. */
  virtual Status post(const haul_transfer_options &options, const std::string *notification) = 0;

  /* Of the last post. */
  virtual Status check() = 0;

  /* Blocks until no byte can arrive any more. */
  virtual Status cancel() = 0;

  virtual Status estimate(const haul_transfer_options &options, double &ns,
                          double &margin_ns) const = 0;

  /* Of a post that has ended. */
  virtual void report(Reports &reports) const = 0;
};

/* Between memory of this agent and of another one, or of this one. */
class MemoryRequest final : public Request {
public:
  MemoryRequest(Operation operation, std::shared_ptr<Peer> peer)
      : operation_(operation), peer_(std::move(peer)) {}
  ~MemoryRequest() override;

  /* Sorts the descriptors into segments of pairs of registrations. Blocks for look-ups. */
  Status prepare(const MetaList &local, const MetaList &remote) override;
  Status post(const haul_transfer_options &options, const std::string *notification) override;
  Status check() override {
    return flight_ ? flight_->check() : NOT_POSTED;
  }
  Status cancel() override {
    return flight_ ? flight_->cancel() : SUCCESS;
  }
  /* Of one transfer after the other. */
  Status estimate(const haul_transfer_options &options, double &ns,
                  double &margin_ns) const override;
  void report(Reports &reports) const override;

  Operation operation() const {
    return operation_;
  }
  const Peer &peer() const {
    return *peer_;
  }
  /* Of the last post; NULL before. */
  haul_transfer *first() const {
    return flight_ ? flight_->first() : nullptr;
  }

private:
  /* A transfer of haul. */
  struct Group {
    std::shared_ptr<Region> region;
    std::shared_ptr<Remote> remote;
    uint64_t bytes = 0;
    std::vector<haul_piece> pieces;
  };

  void add(Group &group, const MetaDescriptor &local, const MetaDescriptor &remote);
  int start(const Group &group, const haul_transfer_options &options);

  const Operation operation_;
  const std::shared_ptr<Peer> peer_;
  std::vector<Group> groups_;
  Flight *flight_ = nullptr;
};

} // namespace haul_nixl

#endif
