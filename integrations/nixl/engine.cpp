/* SPDX-License-Identifier: MIT */
#include "engine.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <haul/access.h>
#include <new>
#include <stdexcept>
#include <unistd.h>

#include "log.h"
#include "memory.h"
#include "request.h"

namespace haul_nixl {

static constexpr int64_t MILLISECOND = 1000000;
/* Requests of a peer mostly follow each other: a thread that has slept takes some 20 us more. */
static constexpr int64_t SPIN = 50000;
static constexpr int64_t LIVENESS = 1500 * MILLISECOND; /* NIXL's users expect 2 s at most */
static constexpr int64_t FLUSH = 1000 * MILLISECOND;
/* NIXL's users take notifications when they like. Only what is unread takes memory. */
static constexpr size_t MESSAGE_WINDOW = 256u << 20;
static constexpr unsigned MAX_REGIONS = 1u << 20;
static constexpr size_t NAME_OF_AGENT = 30; /* bytes of it in the node's name, of at most 63 */

[[noreturn]] static void stop(const char *what) {
  const haul_error *error = haul_error_last();
  throw std::runtime_error(std::string(what) + ": " + error->text + " (" + error->object + ")" +
                           (error->hint[0] ? std::string(" (hint: ") + error->hint + ")" : ""));
}

static std::string node_name(const std::string &agent) {
  std::string name = agent.substr(0, NAME_OF_AGENT);
  for (char &each : name)
    if (!isgraph(static_cast<unsigned char>(each)))
      each = '_';
  return name + "." + random_name();
}

/* As haul_node_open would read it. */
std::string Engine::effective(const char *setting) const {
  haul_setting settings[128];
  size_t count = std::size(settings);
  if (haul_setting_list(nullptr, settings, &count) == 0)
    for (size_t i = 0; i < std::min(count, std::size(settings)); i++)
      if (strcmp(settings[i].name, setting) == 0 && strcmp(settings[i].origin, "default") != 0)
        return settings[i].value;
  return "";
}

void Engine::open_node() {
  haul_node_config config = HAUL_NODE_CONFIG_INIT;
  contact_.node = node_name(agent_);
  config.name = contact_.node.c_str();
  config.insecure = options_.insecure;
  config.tcp_rails = options_.rails;
  config.message_window = MESSAGE_WINDOW;
  config.max_regions = MAX_REGIONS;
  if (effective("liveness").empty())
    config.liveness_ns = LIVENESS;
  if (effective("spin").empty())
    config.spin_ns = SPIN;
  if (!options_.paths.empty())
    config.paths = options_.paths.c_str();
  std::string key = options_.key.empty() ? effective("key") : options_.key;
  if (!key.empty()) {
    haul_key first;
    size_t count = 1;
    if (haul_key_list(key.c_str(), &first, &count) < 0)
      stop("cannot read the key");
    contact_.fingerprint = first.fingerprint;
    config.key = key.c_str();
  }
  if (haul_node_open(&config, &node_))
    stop("cannot open a node");
}

/* Beyond loopback only if haul allows it: with a key, with a certificate, or as `insecure`. */
void Engine::listen() {
  bool open = options_.insecure || !contact_.fingerprint.empty() ||
              effective("insecure") == "yes" || !effective("certificate").empty();
  std::vector<std::string> addresses = options_.listen;
  if (addresses.empty())
    addresses = {open ? "tcp://0.0.0.0:0" : "tcp://127.0.0.1:0"};
  for (const auto &address : addresses)
    if (haul_node_listen(node_, address.c_str()))
      stop("cannot listen");
  contact_.host = this_host();
  contact_.addresses = reachable_addresses(node_);
  std::string all;
  for (const auto &address : contact_.addresses)
    all += " " + address;
  reports_.add("agent " + agent_ + ": node " + contact_.node + ",", all + " (haul top ADDRESS)");
}

Engine::Engine(const InitParameters &init)
    : Backend(init), options_(*init.parameters), owner_(getpid()) {
  open_node();
  try {
    listen();
    peers_[agent_] = std::make_shared<Peer>(node_, agent_, contact_, threads_);
  } catch (...) {
    haul_node_close(node_);
    throw;
  }
}

Engine::~Engine() {
  files_.stop();
  haul_deadline until = haul_deadline_in(FLUSH);
  for (const auto &[agent, peer] : peers_)
    peer->flush(until);
  haul_node_close(node_);
  threads_.wait();
}

bool Engine::leave_in_child() {
  if (getpid() == owner_)
    return false;
  haul_node_close(node_);
  return true;
}

std::shared_ptr<Peer> Engine::find(const std::string &agent) const {
  std::lock_guard guard(lock_);
  auto found = peers_.find(agent);
  return found == peers_.end() ? nullptr : found->second;
}

haul_transfer_options Engine::transfer_options() const {
  haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  if (options_.zero_copy)
    options.flags = HAUL_REQUIRE_ZERO_COPY;
  if (options_.deadline_ns)
    options.deadline = haul_deadline_in(options_.deadline_ns);
  return options;
}

/* ---- Memory ------------------------------------------------------------------------------- */

Status Engine::register_memory(const BlobDescriptor &memory, const MemoryKind &kind,
                               Metadata *&out) {
  std::shared_ptr<Region> region;
  std::shared_ptr<File> file;
  if (kind == FILES) {
    Status status = files_.is_forked() ? NOT_ALLOWED : File::open(memory, devices_, file);
    if (status == SUCCESS)
      out = new FileMetadata(std::move(file));
    return status;
  }
  Status status = register_region(node_, memory, kind, region);
  if (status == SUCCESS)
    out = new LocalMetadata(std::move(region));
  return status;
}

Status Engine::deregister_memory(Metadata *metadata) {
  if (auto *local = dynamic_cast<LocalMetadata *>(metadata))
    local->region->end();
  else if (auto *file = dynamic_cast<FileMetadata *>(metadata))
    file->file->end();
  delete metadata;
  return SUCCESS;
}

/* Files are this agent's alone. */
Status Engine::public_data(const Metadata *metadata, std::string &out) const {
  auto *local = dynamic_cast<const LocalMetadata *>(metadata);
  out = local ? local->region->name : "";
  return SUCCESS;
}

Status Engine::load_remote_metadata(const BlobDescriptor &input, const MemoryKind &,
                                    const std::string &agent, Metadata *&out) {
  auto peer = find(agent);
  if (!peer)
    return NOT_FOUND;
  out = new RemoteMetadata(std::make_shared<Remote>(peer, input.blob, input.address));
  return SUCCESS;
}

Status Engine::load_local_metadata(Metadata *input, Metadata *&out) {
  if (auto *file = dynamic_cast<FileMetadata *>(input)) {
    out = new FileMetadata(file->file);
    return SUCCESS;
  }
  const auto &region = static_cast<LocalMetadata *>(input)->region;
  out = new RemoteMetadata(std::make_shared<Remote>(find(agent_), region->name, region->base));
  return SUCCESS;
}

Status Engine::unload_metadata(Metadata *metadata) {
  delete metadata;
  return SUCCESS;
}

/* ---- Agents ------------------------------------------------------------------------------- */

Status Engine::connection_info(std::string &out) const {
  out = contact_.format();
  return SUCCESS;
}

Status Engine::load_connection_info(const std::string &agent, const std::string &info) {
  Contact contact;
  if (!contact.parse(info)) {
    say("the metadata of agent " + agent + " is not of a haul backend of this version");
    return MISMATCH;
  }
  if (contact.fingerprint != contact_.fingerprint) {
    say("agent " + agent + " is refused: it has " +
        (contact.fingerprint.empty() ? "no key" : "the key " + contact.fingerprint) +
        ", this agent " +
        (contact_.fingerprint.empty() ? "none" : "the key " + contact_.fingerprint) +
        " (hint: give both the same key file, see haul-key(1))");
    return NOT_ALLOWED;
  }
  std::lock_guard guard(lock_);
  peers_[agent] = std::make_shared<Peer>(node_, agent, std::move(contact), threads_);
  return SUCCESS;
}

/* NIXL connects an agent to itself when it creates the backend, before it may need that. */
Status Engine::connect(const std::string &agent) {
  auto peer = find(agent);
  if (!peer)
    return NOT_FOUND;
  return agent == agent_ ? SUCCESS : peer->connect();
}

Status Engine::disconnect(const std::string &agent) {
  std::lock_guard guard(lock_);
  if (agent == agent_)
    return SUCCESS;
  return peers_.erase(agent) ? SUCCESS : NOT_FOUND;
}

/* ---- Transfers ---------------------------------------------------------------------------- */

Status Engine::make_request(const Operation &operation, const MetaList &local,
                            const MetaList &remote, const std::string &agent,
                            std::unique_ptr<Request> &out) const {
  auto peer = find(agent);
  if (!peer)
    return NOT_FOUND;
  if (local.kind == FILES) {
    say("files are the remote side of a transfer, and memory is the local one");
    return NOT_SUPPORTED;
  }
  if (remote.kind == FILES && agent != agent_) {
    say("the files of agent " + agent + " are its own: a transfer has files of this agent");
    return NOT_SUPPORTED;
  }
  if (remote.kind == FILES)
    out = std::make_unique<FileRequest>(operation, std::move(peer), files_);
  else
    out = std::make_unique<MemoryRequest>(operation, std::move(peer));
  return SUCCESS;
}

Status Engine::prepare(const Operation &operation, const MetaList &local, const MetaList &remote,
                       const std::string &agent, Handle *&handle, const RequestOptions *) const {
  std::unique_ptr<Request> request;
  Status status = make_request(operation, local, remote, agent, request);
  if (status == SUCCESS)
    status = request->prepare(local, remote);
  if (status == SUCCESS)
    handle = request.release();
  return status;
}

Status Engine::post(const Operation &, const MetaList &, const MetaList &, const std::string &,
                    Handle *&handle, const RequestOptions *options) const {
  auto *request = static_cast<Request *>(handle);
  if (!request)
    return INVALID_PARAMETER;
  std::string body;
  bool notifies = options && options->notifies;
  if (notifies)
    body = pack(agent_, options->notification);
  if (body.size() > HAUL_MESSAGE_MAX) {
    say("a notification is longer than 1 MiB");
    return INVALID_PARAMETER;
  }
  Status status = request->post(transfer_options(), notifies ? &body : nullptr);
  if (status != IN_PROGRESS)
    request->report(reports_);
  return status;
}

Status Engine::check(Handle *handle) const {
  auto *request = static_cast<Request *>(handle);
  if (!request)
    return INVALID_PARAMETER;
  Status status = request->check();
  if (status != IN_PROGRESS)
    request->report(reports_);
  return status;
}

Status Engine::release(Handle *handle) const {
  auto *request = static_cast<Request *>(handle);
  Status status = request ? request->cancel() : SUCCESS;
  if (status == SUCCESS)
    delete request;
  return status;
}

Status Engine::query_memory(const BlobList &list,
                            std::vector<std::optional<Parameters>> &out) const {
  if (list.kind != FILES)
    return NOT_SUPPORTED;
  out.clear();
  for (const BlobDescriptor &each : list.items)
    out.push_back(query_file(each.blob));
  return SUCCESS;
}

Status Engine::estimate(const Operation &, const MetaList &, const MetaList &, const std::string &,
                        Handle *const &handle, std::chrono::microseconds &duration,
                        std::chrono::microseconds &margin, CostMethod &method, const void *) const {
  double ns, margin_ns;
  auto *request = static_cast<Request *>(handle);
  if (!request)
    return INVALID_PARAMETER;
  Status status = request->estimate(transfer_options(), ns, margin_ns);
  duration = std::chrono::microseconds(static_cast<int64_t>(ns / 1000));
  margin = std::chrono::microseconds(static_cast<int64_t>(margin_ns / 1000));
  method = ANALYTICAL;
  return status;
}

/* ---- Notifications ------------------------------------------------------------------------ */

Status Engine::notify(const std::string &agent, const std::string &message) const {
  auto peer = find(agent);
  std::string body = pack(agent_, message);
  if (!peer)
    return NOT_FOUND;
  if (body.size() > HAUL_MESSAGE_MAX) {
    say("a notification is longer than 1 MiB");
    return INVALID_PARAMETER;
  }
  Status status = peer->connect();
  return status == SUCCESS ? peer->send(NOTIFICATION, std::move(body), nullptr) : status;
}

Status Engine::notifications(Notifications &out) {
  haul_message message;
  int code;
  while ((code = haul_message_receive(node_, &message, HAUL_NO_WAIT)) == 0) {
    std::string agent, text;
    if (message.kind == HAUL_MESSAGE && message.tag == NOTIFICATION &&
        unpack(message.bytes, message.length, agent, text))
      out.emplace_back(std::move(agent), std::move(text));
    haul_message_release(&message);
  }
  return code == HAUL_ETIMEDOUT ? SUCCESS : fail("cannot receive notifications");
}

} // namespace haul_nixl
