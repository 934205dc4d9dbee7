/* SPDX-License-Identifier: MIT
 * A backend of NIXL: one haul node for each agent. */
#ifndef HAUL_NIXL_ENGINE_H
#define HAUL_NIXL_ENGINE_H

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/types.h>

#include "contact.h"
#include "file_request.h"
#include "interface.h"
#include "options.h"
#include "peer.h"
#include "report.h"

namespace haul_nixl {

class Engine final : public Backend {
public:
  /* Throws std::exception with a sentence. */
  explicit Engine(const InitParameters &init);
  ~Engine() override;

  /* In a forked child: closes the inherited node and leaves the rest, which has the parent's locks
   * and threads. False: this is the process that made the engine. */
  bool leave_in_child();

  bool supports_remote() const override {
    return true;
  }
  bool supports_local() const override {
    return true;
  }
  bool supports_notifications() const override {
    return true;
  }
  Memories supported_memories() const override {
    return {DRAM, VRAM, FILES};
  }
  Status register_memory(const BlobDescriptor &memory, const MemoryKind &kind,
                         Metadata *&out) override;
  Status deregister_memory(Metadata *metadata) override;
  Status connect(const std::string &agent) override;
  Status disconnect(const std::string &agent) override;
  Status unload_metadata(Metadata *metadata) override;
  Status prepare(const Operation &operation, const MetaList &local, const MetaList &remote,
                 const std::string &agent, Handle *&handle,
                 const RequestOptions *options) const override;
  Status post(const Operation &operation, const MetaList &local, const MetaList &remote,
              const std::string &agent, Handle *&handle,
              const RequestOptions *options) const override;
  Status check(Handle *handle) const override;
  Status release(Handle *handle) const override;
  Status public_data(const Metadata *metadata, std::string &out) const override;
  Status connection_info(std::string &out) const override;
  Status load_connection_info(const std::string &agent, const std::string &info) override;
  Status load_remote_metadata(const BlobDescriptor &input, const MemoryKind &kind,
                              const std::string &agent, Metadata *&out) override;
  Status load_local_metadata(Metadata *input, Metadata *&out) override;
  Status notifications(Notifications &out) override;
  Status notify(const std::string &agent, const std::string &message) const override;
  Status query_memory(const BlobList &list,
                      std::vector<std::optional<Parameters>> &out) const override;
  Status estimate(const Operation &operation, const MetaList &local, const MetaList &remote,
                  const std::string &agent, Handle *const &handle,
                  std::chrono::microseconds &duration, std::chrono::microseconds &margin,
                  CostMethod &method, const void *options) const override;

private:
  Status make_request(const Operation &operation, const MetaList &local, const MetaList &remote,
                      const std::string &agent, std::unique_ptr<Request> &out) const;
  void open_node();
  void listen();
  std::string effective(const char *setting) const;
  std::shared_ptr<Peer> find(const std::string &agent) const;
  haul_transfer_options transfer_options() const;

  const Options options_;
  const pid_t owner_;
  mutable Reports reports_;
  Threads threads_;
  haul_node *node_ = nullptr;
  FileDevices devices_;
  mutable FileThreads files_{node_};
  Contact contact_;
  mutable std::mutex lock_;
  std::map<std::string, std::shared_ptr<Peer>> peers_; /* by agent, itself included */
};

} // namespace haul_nixl

#endif
