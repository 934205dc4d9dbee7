/* SPDX-License-Identifier: MIT */
#include "request.h"

#include <cmath>
#include <map>

#include "log.h"
#include "report.h"

namespace haul_nixl {

MemoryRequest::~MemoryRequest() {
  if (flight_)
    flight_->release();
}

/* Neighbouring segments become one. */
void MemoryRequest::add(Group &group, const MetaDescriptor &local, const MetaDescriptor &remote) {
  haul_piece piece = {local.address - group.region->base, remote.address - group.remote->base,
                      local.length};
  group.bytes += piece.length;
  if (!group.pieces.empty()) {
    haul_piece &last = group.pieces.back();
    if (last.local + last.length == piece.local && last.remote + last.length == piece.remote) {
      last.length += piece.length;
      return;
    }
  }
  group.pieces.push_back(piece);
}

Status MemoryRequest::prepare(const MetaList &local, const MetaList &remote) {
  size_t count = local.items.size();
  if (count == 0 || count != remote.items.size())
    return INVALID_PARAMETER;
  std::map<std::pair<Metadata *, Metadata *>, size_t> open; /* the group to add to */
  std::pair<Metadata *, Metadata *> last;
  size_t at = 0;
  for (size_t i = 0; i < count; i++) {
    const MetaDescriptor &here = local.items[i], &there = remote.items[i];
    std::pair key(here.metadata, there.metadata);
    if (here.length != there.length || !key.first || !key.second)
      return INVALID_PARAMETER;
    if (here.length == 0)
      continue;
    if (groups_.empty() || key != last) {
      at = open.try_emplace(key, groups_.size()).first->second;
      last = key;
    }
    if (at < groups_.size() && groups_[at].pieces.size() == HAUL_PIECES_MAX)
      at = open[key] = groups_.size();
    if (at == groups_.size())
      groups_.push_back({static_cast<LocalMetadata *>(key.first)->region,
                         static_cast<RemoteMetadata *>(key.second)->remote,
                         0,
                         {}});
    add(groups_[at], here, there);
  }
  for (const Group &group : groups_) {
    if (group.remote->peer != peer_) {
      say("the metadata of agent " + peer_->agent() + " is of an earlier agent of that name");
      return NOT_FOUND;
    }
    if (Status status = group.remote->look_up(); status != SUCCESS)
      return status;
  }
  return SUCCESS;
}

int MemoryRequest::start(const Group &group, const haul_transfer_options &options) {
  haul_transfer *transfer = nullptr;
  haul_remote *remote = group.remote->get();
  if (flight_->notifies())
    flight_->expect();
  int code = group.region->with([&](haul_region *region) {
    const haul_piece *pieces = group.pieces.data();
    size_t count = group.pieces.size();
    return operation_ == WRITE ? haul_write(remote, region, pieces, count, &options, &transfer)
                               : haul_read(region, remote, pieces, count, &options, &transfer);
  });
  if (code)
    flight_->unexpect(code);
  else
    flight_->add(transfer);
  return code;
}

Status MemoryRequest::post(const haul_transfer_options &given, const std::string *notification) {
  if (flight_ && flight_->check() == IN_PROGRESS)
    return REPOST_ACTIVE;
  if (flight_)
    flight_->release();
  flight_ = new Flight(peer_, operation_, groups_.size(), notification);
  haul_transfer_options options = given;
  if (notification) {
    options.done = Flight::on_done;
    options.user = flight_;
  }
  int code = 0;
  for (size_t i = 0; i < groups_.size() && code == 0; i++) {
    options.flags = given.flags | (i + 1 < groups_.size() ? HAUL_MORE : 0);
    code = start(groups_[i], options);
  }
  if (code == HAUL_ESTALE)
    say("cannot start a transfer with agent " + peer_->agent() + ": memory has been deregistered");
  else if (code && code != HAUL_EPEER)
    fail("cannot start a transfer with agent " + peer_->agent());
  flight_->posted();
  return flight_->check();
}

Status MemoryRequest::estimate(const haul_transfer_options &options, double &ns,
                               double &margin_ns) const {
  ns = margin_ns = 0;
  for (const Group &group : groups_) {
    haul_path paths[HAUL_PATHS_MAX];
    size_t count = HAUL_PATHS_MAX;
    int code = group.region->with([&](haul_region *region) {
      return haul_explain(region, group.remote->get(),
                          operation_ == WRITE ? HAUL_OP_WRITE : HAUL_OP_READ, group.bytes, &options,
                          paths, &count);
    });
    if (code || count == 0 || !paths[0].open)
      return code ? status_of(code) : NOT_SUPPORTED;
    ns += paths[0].cost_ns;
    margin_ns += std::fabs(paths[0].cost_ns - paths[0].estimate_ns);
  }
  return SUCCESS;
}

void MemoryRequest::report(Reports &reports) const {
  reports.add(*this);
}

} // namespace haul_nixl
