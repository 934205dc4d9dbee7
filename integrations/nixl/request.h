/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_REQUEST_H
#define HAUL_NIXL_REQUEST_H

#include <memory>
#include <string>
#include <vector>

#include "flight.h"
#include "memory.h"

namespace haul_nixl {

/* A prepared transfer. It may be posted several times, one after the other. */
class Request final : public Handle {
public:
  Request(Operation operation, std::shared_ptr<Peer> peer)
      : operation_(operation), peer_(std::move(peer)) {}
  ~Request() override;

  /* Sorts the descriptors into segments of pairs of registrations. Blocks for look-ups. */
  Status prepare(const MetaList &local, const MetaList &remote);

  /* `notification` may be NULL. */
  Status post(const haul_transfer_options &options, const std::string *notification);

  Status check() {
    return flight_ ? flight_->check() : NOT_POSTED;
  }

  Status cancel() {
    return flight_ ? flight_->cancel() : SUCCESS;
  }

  /* Of one after the other. */
  Status estimate(const haul_transfer_options &options, double &ns, double &margin_ns) const;

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
