/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_MEMORY_H
#define HAUL_NIXL_MEMORY_H

#include <haul/haul.h>
#include <memory>
#include <mutex>
#include <string>

#include "interface.h"
#include "peer.h"
#include "uses.h"

namespace haul_nixl {

/* Registered memory of this agent. Requests that were prepared with it may outlive it. */
class Region {
public:
  Region(haul_region *region, uintptr_t base, std::string name)
      : base(base), name(std::move(name)), region_(region) {}
  ~Region() {
    end();
  }
  Region(const Region &) = delete;
  Region &operator=(const Region &) = delete;

  /* Once it returns, no peer accesses the memory any more. */
  void end();

  /* Calls `use` with the region; without, it has ended. */
  template <typename Use> int with(const Use &use) {
    Uses::Use begun(uses_);
    return begun ? use(region_) : HAUL_ESTALE;
  }

  const uintptr_t base;
  const std::string name; /* under which it is published: random, and never used again */

private:
  Uses uses_;
  haul_region *const region_;
};

/* Memory of an agent, as its metadata describes it. It is looked up at its first use. */
class Remote {
public:
  Remote(std::shared_ptr<Peer> peer, std::string name, uintptr_t base)
      : peer(std::move(peer)), base(base), name_(std::move(name)) {}
  ~Remote() {
    haul_remote_release(remote_);
  }
  Remote(const Remote &) = delete;
  Remote &operator=(const Remote &) = delete;

  /* Blocks for the first one. */
  Status look_up();
  haul_remote *get() const {
    return remote_;
  }

  const std::shared_ptr<Peer> peer;
  const uintptr_t base;

private:
  const std::string name_;
  std::mutex lock_;
  std::atomic<haul_remote *> remote_ = nullptr;
};

struct LocalMetadata final : Metadata {
  explicit LocalMetadata(std::shared_ptr<Region> region) : region(std::move(region)) {}
  const std::shared_ptr<Region> region;
};

struct RemoteMetadata final : Metadata {
  explicit RemoteMetadata(std::shared_ptr<Remote> remote) : remote(std::move(remote)) {}
  const std::shared_ptr<Remote> remote;
};

/* Wraps and publishes memory. */
Status register_region(haul_node *node, const BlobDescriptor &memory, MemoryKind kind,
                       std::shared_ptr<Region> &out);

/* 128 random bits, as hexadecimal digits. */
std::string random_name();

} // namespace haul_nixl

#endif
