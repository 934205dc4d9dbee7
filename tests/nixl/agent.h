/* SPDX-License-Identifier: MIT
 * An agent of NIXL without NIXL: it calls the plugin as NIXL does. */
#ifndef HAUL_TESTS_NIXL_AGENT_H
#define HAUL_TESTS_NIXL_AGENT_H

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "interface.h"

namespace test {

using namespace haul_nixl;

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                    \
      _Exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

/* The plugin that HAUL_NIXL_PLUGIN names. NULL: it refuses. */
Plugin *load();

/* What another agent needs of registered memory. */
struct Card {
  uintptr_t address;
  size_t length;
  std::string blob;
};

class Agent;

/* A transfer request, as NIXL keeps it. */
class Transfer {
public:
  Transfer(Agent &agent, Operation operation, std::string peer, MetaList local, MetaList remote);
  ~Transfer();
  Status prepared; /* of the call that prepares it */

  Status post(const std::string *notification = nullptr);
  Status check();
  Status release(); /* as NIXL calls it for a transfer in flight */
  Status wait();
  /* Posts and waits. */
  Status run(const std::string *notification = nullptr);
  Handle *handle = nullptr;

private:
  Agent &agent_;
  const Operation operation_;
  const std::string peer_;
  const MetaList local_, remote_;
};

class Agent {
public:
  explicit Agent(std::string name, Parameters parameters = {});
  ~Agent();

  /* `length` bytes of registered memory with this value; the number of the registration. */
  size_t add_memory(size_t length, unsigned char value = 0);
  /* The same with memory that the caller has. */
  size_t add_memory(uintptr_t address, size_t length, MemoryKind kind);
  /* The same with a file: a path with its modes and a device, or "" and a descriptor. */
  size_t add_file(const std::string &blob, uint64_t device);
  void drop_memory(size_t number);
  unsigned char *bytes(size_t number) {
    return reinterpret_cast<unsigned char *>(memories_[number].address);
  }
  Card card(size_t number) const;
  std::string info() const;

  /* Loads the metadata of another agent; the number of the first of its cards. */
  size_t meet(const std::string &agent, const std::string &info, const std::vector<Card> &cards);
  void forget(const std::string &agent);

  MetaDescriptor here(size_t number, size_t offset, size_t length) const;
  MetaDescriptor there(size_t number, size_t offset, size_t length) const;
  /* One segment. */
  std::unique_ptr<Transfer> transfer(Operation operation, const std::string &peer, size_t here,
                                     size_t there, size_t length);
  /* The same with an own file, from its begin. */
  std::unique_ptr<Transfer> file_transfer(Operation operation, size_t memory, size_t file,
                                          size_t length);

  /* The next notification of any agent. */
  std::pair<std::string, std::string> receive();

  const std::string name;
  Backend *backend = nullptr;

private:
  size_t add(const BlobDescriptor &memory, MemoryKind kind);

  struct Known {
    std::string agent;
    Card card;
    Metadata *metadata;
  };

  Notifications unread_;
  std::vector<std::unique_ptr<std::vector<unsigned char>>> allocated_;
  std::vector<Descriptor> memories_;
  std::vector<Metadata *> registered_, own_;
  std::vector<Known> known_;
};

void fill(unsigned char *bytes, size_t length, int value);
bool holds(const unsigned char *bytes, size_t length, unsigned char value);

} // namespace test

#endif
