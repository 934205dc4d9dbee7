/* SPDX-License-Identifier: MIT */
#ifndef HAUL_NIXL_FILE_H
#define HAUL_NIXL_FILE_H

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "interface.h"
#include "uses.h"

namespace haul_nixl {

/* Devices of files that are registered by path. NIXL finds a registration by its device, so each
 * needs its own. */
class FileDevices {
public:
  bool add(uint64_t device);
  void drop(uint64_t device);

private:
  std::mutex lock_;
  std::set<uint64_t> devices_;
};

/* A registered file. Requests that were prepared with it may outlive it. */
class File {
public:
  /* By a path in the blob, "ro:PATH" or "rw,create:PATH" as NIXL's file backends have it, or else
   * by the descriptor that the device is, which stays the caller's. Says why it fails. */
  static Status open(const BlobDescriptor &memory, FileDevices &devices,
                     std::shared_ptr<File> &out);
  ~File() {
    end();
  }
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  /* Once it returns, no transfer uses the descriptor any more. */
  void end();

  /* Whether the descriptor was opened for the operation; says why not. */
  Status allows(Operation operation) const;

  /* Calls `use` with the descriptor, unless the registration has ended. */
  template <typename Use> void with(const Use &use) {
    if (Uses::Use begun(uses_); begun)
      use(descriptor_);
  }

  /* The path, as far as it is known. */
  std::string name() const;

private:
  File(int descriptor, int flags, std::string path, FileDevices *devices, uint64_t device)
      : descriptor_(descriptor), flags_(flags), path_(std::move(path)), devices_(devices),
        device_(device) {}

  Uses uses_;
  const int descriptor_;
  const int flags_; /* as of open(2) */
  const std::string path_;
  FileDevices *const devices_; /* NULL: the descriptor is the caller's */
  const uint64_t device_;
};

/* Size, mode and time of change of a file as texts; nothing if there is none. `blob` is its path,
 * or as for File::open. */
std::optional<Parameters> query_file(const std::string &blob);

/* As metadata of a registration, and as that of the agent itself for transfers. */
struct FileMetadata final : Metadata {
  explicit FileMetadata(std::shared_ptr<File> file) : file(std::move(file)) {}
  const std::shared_ptr<File> file;
};

} // namespace haul_nixl

#endif
