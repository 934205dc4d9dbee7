/* SPDX-License-Identifier: MIT
 * The interface of NIXL 1.0 to 1.5 to its backends, declared after the backend guide in its source
 * (docs/BackendGuide.md). NIXL calls a backend through the virtual table of its base class and
 * passes containers of libstdc++, so the order of the virtuals and the layouts below are the binary
 * interface. The names are ours: nothing is resolved by a symbol of NIXL. tests/nixl/headers
 * compares order and layouts with NIXL's headers. */
#ifndef HAUL_NIXL_INTERFACE_H
#define HAUL_NIXL_INTERFACE_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace haul_nixl {

inline constexpr int API_VERSION = 1; /* in all of these versions */

enum MemoryKind : unsigned { DRAM, VRAM, BLOCK, OBJECT, FILES };
enum Operation : unsigned { READ, WRITE };
enum CostMethod : int { ANALYTICAL };

enum Status : int {
  IN_PROGRESS = 1,
  SUCCESS = 0,
  NOT_POSTED = -1,
  INVALID_PARAMETER = -2,
  BACKEND_ERROR = -3,
  NOT_FOUND = -4,
  MISMATCH = -5,
  NOT_ALLOWED = -6,
  REPOST_ACTIVE = -7,
  UNKNOWN = -8,
  NOT_SUPPORTED = -9,
  REMOTE_DISCONNECT = -10,
  CANCELED = -11
};

using Parameters = std::unordered_map<std::string, std::string>;
using Memories = std::vector<MemoryKind>;
using Notifications = std::vector<std::pair<std::string, std::string>>; /* agent, message */

/* Base of what a backend keeps for a registration, of this agent or of a remote one. */
class Metadata {
public:
  virtual ~Metadata() = default;

protected:
  bool is_private = true;
};

/* Base of what a backend keeps for a transfer request. */
class Handle {
public:
  virtual ~Handle() = default;
};

struct Descriptor {
  uintptr_t address;
  size_t length;
  uint64_t device;
};

struct BlobDescriptor : Descriptor {
  std::string blob;
};

struct MetaDescriptor : Descriptor {
  Metadata *metadata;
};

/* NIXL's lists have virtuals, which a backend does not call. */
template <typename Item> struct List {
  const void *table;
  MemoryKind kind;
  std::vector<Item> items;
};

using MetaList = List<MetaDescriptor>;
using BlobList = List<BlobDescriptor>;
struct RemoteMetaList; /* only passed by reference */

struct RequestOptions {
  std::string notification;
  bool notifies = false;
  std::string custom;
};

struct InitParameters {
  std::string agent, backend;
  Parameters *parameters;
  bool progress_thread;
  uint64_t progress_delay_us;
  int synchronization;
  bool telemetry;
};

class Backend {
private:
  /* NIXL's inline functions read these from its own code. It takes telemetry events out of
   * `events`, whose elements differ between versions, so that it stays empty. */
  std::string type_;
  Parameters parameters_;
  std::vector<uint64_t> events_;
  std::mutex events_lock_;

protected:
  bool init_failed_ = false;
  const std::string agent_;
  const bool telemetry_;

public:
  explicit Backend(const InitParameters &init)
      : type_(init.backend), parameters_(*init.parameters), agent_(init.agent),
        telemetry_(init.telemetry) {}
  Backend(const Backend &) = delete;
  Backend &operator=(const Backend &) = delete;

  virtual ~Backend() = default;
  virtual bool supports_remote() const = 0;
  virtual bool supports_local() const = 0;
  virtual bool supports_notifications() const = 0;
  virtual Memories supported_memories() const = 0;
  virtual Status register_memory(const BlobDescriptor &memory, const MemoryKind &kind,
                                 Metadata *&out) = 0;
  virtual Status deregister_memory(Metadata *metadata) = 0;
  virtual Status connect(const std::string &agent) = 0;
  virtual Status disconnect(const std::string &agent) = 0;
  virtual Status unload_metadata(Metadata *metadata) = 0;
  virtual Status prepare(const Operation &operation, const MetaList &local, const MetaList &remote,
                         const std::string &agent, Handle *&handle,
                         const RequestOptions *options) const = 0;
  virtual Status post(const Operation &operation, const MetaList &local, const MetaList &remote,
                      const std::string &agent, Handle *&handle,
                      const RequestOptions *options) const = 0;
  virtual Status check(Handle *handle) const = 0;
  virtual Status release(Handle *handle) const = 0;
  virtual Status prepare_remote_view(const RemoteMetaList &, void *&,
                                     const RequestOptions *) const {
    return NOT_SUPPORTED;
  }
  virtual Status prepare_local_view(const MetaList &, void *&, const RequestOptions *) const {
    return NOT_SUPPORTED;
  }
  virtual void release_view(void *) const {}
  virtual Status public_data(const Metadata *metadata, std::string &out) const = 0;
  virtual Status connection_info(std::string &out) const = 0;
  virtual Status load_connection_info(const std::string &agent, const std::string &info) = 0;
  virtual Status load_remote_metadata(const BlobDescriptor &input, const MemoryKind &kind,
                                      const std::string &agent, Metadata *&out) = 0;
  virtual Status load_local_metadata(Metadata *input, Metadata *&out) = 0;
  virtual Status notifications(Notifications &out) = 0;
  virtual Status notify(const std::string &agent, const std::string &message) const = 0;
  virtual Status query_memory(const BlobList &, std::vector<std::optional<Parameters>> &) const {
    return NOT_SUPPORTED;
  }
  virtual Status estimate(const Operation &operation, const MetaList &local, const MetaList &remote,
                          const std::string &agent, Handle *const &handle,
                          std::chrono::microseconds &duration, std::chrono::microseconds &margin,
                          CostMethod &method, const void *options) const = 0;
};

/* What nixl_plugin_init returns. */
struct Plugin {
  int api_version;
  Backend *(*create)(const InitParameters *init);
  void (*destroy)(Backend *backend);
  const char *(*name)();
  const char *(*version)();
  Parameters (*options)();
  Memories (*memories)();
};

} // namespace haul_nixl

#endif
