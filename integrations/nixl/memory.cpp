/* SPDX-License-Identifier: MIT */
#include "memory.h"

#include <stdexcept>
#include <sys/random.h>

#include "log.h"

namespace haul_nixl {

std::string random_name() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    throw std::runtime_error("no random numbers");
  std::string name;
  for (unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

void Region::end() {
  if (uses_.end())
    haul_region_release(region_);
}

Status Remote::look_up() {
  if (remote_)
    return SUCCESS;
  std::lock_guard guard(lock_);
  haul_remote *found = nullptr;
  Status status = remote_ ? SUCCESS : peer->connect();
  if (status == SUCCESS && !remote_) {
    status = peer->look_up(name_, &found);
    remote_ = found;
  }
  return status;
}

Status register_region(haul_node *node, const BlobDescriptor &memory, MemoryKind kind,
                       std::shared_ptr<Region> &out) {
  if (kind != DRAM && kind != VRAM)
    return NOT_SUPPORTED;
  haul_region *handle = nullptr;
  if (haul_region_wrap(node, reinterpret_cast<void *>(memory.address), memory.length, &handle))
    return fail("cannot register memory");
  auto region = std::make_shared<Region>(handle, memory.address, random_name());
  if (kind == VRAM && haul_region_place(handle).kind == HAUL_HOST) {
    say("cannot register memory: it is host memory, not a GPU's (hint: haul doctor cuda)");
    return MISMATCH;
  }
  if (haul_region_publish(handle, region->name.c_str(), HAUL_READ | HAUL_WRITE))
    return fail("cannot publish memory");
  out = std::move(region);
  return SUCCESS;
}

} // namespace haul_nixl
