/* SPDX-License-Identifier: MIT */
#include "agent.h"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>
#include <thread>

namespace test {

static constexpr auto PATIENCE = std::chrono::seconds(120);

Plugin *load() {
  const char *path = getenv("HAUL_NIXL_PLUGIN");
  CHECK(path);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library)
    fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  auto init = reinterpret_cast<Plugin *(*)()>(dlsym(library, "nixl_plugin_init"));
  CHECK(init && dlsym(library, "nixl_plugin_fini"));
  return init();
}

/* ThreadSanitizer does not see that another agent of this process has sent these bytes before the
 * end of the transfer, which the network reports. */
__attribute__((no_sanitize("thread"))) void fill(unsigned char *bytes, size_t length, int value) {
  volatile unsigned char *at = bytes; /* no memset, which it would see */
  for (size_t i = 0; i < length; i++)
    at[i] = static_cast<unsigned char>(value);
}

bool holds(const unsigned char *bytes, size_t length, unsigned char value) {
  return std::all_of(bytes, bytes + length, [value](unsigned char each) { return each == value; });
}

Agent::Agent(std::string name, Parameters parameters) : name(std::move(name)) {
  InitParameters init = {this->name, "HAUL", &parameters, true, 0, 0, false};
  Plugin *plugin = load();
  CHECK(plugin);
  backend = plugin->create(&init);
  CHECK(backend);
  std::string info;
  CHECK(backend->connection_info(info) == SUCCESS && !info.empty());
  CHECK(backend->connect(this->name) == SUCCESS);
}

Agent::~Agent() {
  for (const auto &known : known_)
    CHECK(backend->unload_metadata(known.metadata) == SUCCESS);
  for (size_t i = 0; i < registered_.size(); i++)
    drop_memory(i);
  load()->destroy(backend);
}

size_t Agent::add_memory(size_t length, unsigned char value) {
  allocated_.push_back(std::make_unique<std::vector<unsigned char>>(length, value));
  return add_memory(reinterpret_cast<uintptr_t>(allocated_.back()->data()), length, DRAM);
}

size_t Agent::add_memory(uintptr_t address, size_t length, MemoryKind kind) {
  return add({{address, length, 0}, ""}, kind);
}

size_t Agent::add_file(const std::string &blob, uint64_t device) {
  return add({{0, 0, device}, blob}, FILES);
}

size_t Agent::add(const BlobDescriptor &memory, MemoryKind kind) {
  Metadata *registered = nullptr, *own = nullptr;
  CHECK(backend->register_memory(memory, kind, registered) == SUCCESS && registered);
  CHECK(backend->load_local_metadata(registered, own) == SUCCESS && own);
  memories_.push_back(memory);
  registered_.push_back(registered);
  own_.push_back(own);
  return registered_.size() - 1;
}

void Agent::drop_memory(size_t number) {
  if (!registered_[number])
    return;
  CHECK(backend->unload_metadata(own_[number]) == SUCCESS);
  CHECK(backend->deregister_memory(registered_[number]) == SUCCESS);
  registered_[number] = own_[number] = nullptr;
}

Card Agent::card(size_t number) const {
  Card card = {memories_[number].address, memories_[number].length, ""};
  CHECK(backend->public_data(registered_[number], card.blob) == SUCCESS);
  return card;
}

std::string Agent::info() const {
  std::string info;
  CHECK(backend->connection_info(info) == SUCCESS);
  return info;
}

size_t Agent::meet(const std::string &agent, const std::string &info,
                   const std::vector<Card> &cards) {
  CHECK(backend->load_connection_info(agent, info) == SUCCESS);
  for (const auto &card : cards) {
    Metadata *metadata = nullptr;
    BlobDescriptor descriptor = {{card.address, card.length, 0}, card.blob};
    CHECK(backend->load_remote_metadata(descriptor, DRAM, agent, metadata) == SUCCESS);
    known_.push_back({agent, card, metadata});
  }
  return known_.size() - cards.size();
}

void Agent::forget(const std::string &agent) {
  std::erase_if(known_, [&](const Known &known) {
    return known.agent == agent && backend->unload_metadata(known.metadata) == SUCCESS;
  });
  CHECK(backend->disconnect(agent) == SUCCESS);
}

MetaDescriptor Agent::here(size_t number, size_t offset, size_t length) const {
  return {{memories_[number].address + offset, length, 0}, registered_[number]};
}

MetaDescriptor Agent::there(size_t number, size_t offset, size_t length) const {
  if (number >= known_.size()) /* its own */
    return {{memories_[number - 1000].address + offset, length, 0}, own_[number - 1000]};
  return {{known_[number].card.address + offset, length, 0}, known_[number].metadata};
}

std::unique_ptr<Transfer> Agent::transfer(Operation operation, const std::string &peer, size_t from,
                                          size_t to, size_t length) {
  return std::make_unique<Transfer>(*this, operation, peer,
                                    MetaList{nullptr, DRAM, {here(from, 0, length)}},
                                    MetaList{nullptr, DRAM, {there(to, 0, length)}});
}

std::unique_ptr<Transfer> Agent::file_transfer(Operation operation, size_t memory, size_t file,
                                               size_t length) {
  return std::make_unique<Transfer>(*this, operation, name,
                                    MetaList{nullptr, DRAM, {here(memory, 0, length)}},
                                    MetaList{nullptr, FILES, {there(1000 + file, 0, length)}});
}

std::pair<std::string, std::string> Agent::receive() {
  auto until = std::chrono::steady_clock::now() + PATIENCE;
  while (unread_.empty()) {
    CHECK(std::chrono::steady_clock::now() < until);
    CHECK(backend->notifications(unread_) == SUCCESS);
    if (unread_.empty())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  auto first = unread_.front();
  unread_.erase(unread_.begin());
  return first;
}

Transfer::Transfer(Agent &agent, Operation operation, std::string peer, MetaList local,
                   MetaList remote)
    : agent_(agent), operation_(operation), peer_(std::move(peer)), local_(std::move(local)),
      remote_(std::move(remote)) {
  prepared = agent.backend->prepare(operation_, local_, remote_, peer_, handle, nullptr);
  CHECK((prepared == SUCCESS) == (handle != nullptr));
}

Transfer::~Transfer() {
  release();
}

Status Transfer::post(const std::string *notification) {
  RequestOptions options;
  options.notifies = notification != nullptr;
  if (notification)
    options.notification = *notification;
  return agent_.backend->post(operation_, local_, remote_, peer_, handle, &options);
}

Status Transfer::check() {
  return agent_.backend->check(handle);
}

Status Transfer::release() {
  Status status = handle ? agent_.backend->release(handle) : SUCCESS;
  if (status == SUCCESS)
    handle = nullptr;
  return status;
}

Status Transfer::wait() {
  auto until = std::chrono::steady_clock::now() + PATIENCE;
  Status status;
  while ((status = check()) == IN_PROGRESS) {
    CHECK(std::chrono::steady_clock::now() < until);
    std::this_thread::yield();
  }
  CHECK(check() == status);
  return status;
}

Status Transfer::run(const std::string *notification) {
  if (prepared != SUCCESS)
    return prepared;
  Status status = post(notification);
  return status == IN_PROGRESS ? wait() : status;
}

} // namespace test
