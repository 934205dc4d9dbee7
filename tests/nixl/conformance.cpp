/* SPDX-License-Identifier: MIT
 * Each call of the plugin, without NIXL.
 *   conformance PATHS [TEST] */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <haul/access.h>
#include <haul/haul.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "agent.h"
#include "contact.h"
#include "files.h"

namespace test {

static constexpr size_t KIB = 1024, MIB = 1024 * KIB, LARGE = 64 * MIB;
static constexpr int64_t BOUND = 60000000000;
static const char *program;
static std::string paths;

static Parameters with_paths() {
  return {{"paths", paths}, {"rails", ""}, {"deadline", ""}};
}

/* ---- The plugin --------------------------------------------------------------------------- */

static void test_versions() {
  for (const char *version : {"", "0.10.1", "1.6.0", "2.0", "x"}) {
    setenv("HAUL_NIXL_VERSION", version, 1);
    CHECK(!load());
  }
  for (const char *version : {"1.0.1", "1.5.1", "1.5"}) {
    setenv("HAUL_NIXL_VERSION", version, 1);
    CHECK(load());
  }
}

static Backend *try_create(Parameters parameters) {
  InitParameters init = {"agent", "HAUL", &parameters, true, 0, 0, false};
  return load()->create(&init);
}

static void test_table() {
  Plugin *plugin = load();
  CHECK(plugin->api_version == 1);
  CHECK(strcmp(plugin->name(), "HAUL") == 0);
  CHECK(strcmp(plugin->version(), haul_version()) == 0);
  CHECK((plugin->memories() == Memories{DRAM, VRAM, FILES}));
  Backend *backend = try_create(plugin->options()); /* the defaults are valid */
  CHECK(backend);
  CHECK(backend->supports_remote() && backend->supports_local());
  CHECK(backend->supports_notifications());
  CHECK((backend->supported_memories() == plugin->memories()));
  plugin->destroy(backend);
}

static void test_parameters() {
  for (const Parameters &invalid : std::vector<Parameters>{{{"kye", "file"}},
                                                           {{"rails", "17"}},
                                                           {{"rails", "x"}},
                                                           {{"deadline", "0"}},
                                                           {{"deadline", "1x"}},
                                                           {{"zero_copy", "yes"}},
                                                           {{"paths", "pigeon"}},
                                                           {{"key", "/nonexistent"}},
                                                           {{"listen", "tcp://0.0.0.0:0"}},
                                                           {{"listen", "pigeon://"}}})
    CHECK(!try_create(invalid));
  Backend *backend = try_create({{"listen", "tcp://127.0.0.1:0,unix://@haul-nixl-test"},
                                 {"rails", "2"},
                                 {"deadline", "0.5"},
                                 {"zero_copy", "1"},
                                 {"active", "True"},
                                 {"insecure", "1"}});
  CHECK(backend);
  load()->destroy(backend);
}

/* ---- Transfers ---------------------------------------------------------------------------- */

/* Two agents, and the number of the second one's memory at the first. */
struct Pair {
  explicit Pair(size_t length, const Parameters &parameters = with_paths())
      : a("first agent", parameters), b("zweite \xc3\xa4\n", parameters) {
    local = a.add_memory(length, 1);
    target = b.add_memory(length, 2);
    remote = a.meet(b.name, b.info(), {b.card(target)});
    b.meet(a.name, a.info(), {a.card(local)});
  }
  std::unique_ptr<Transfer> transfer(Operation operation, size_t length) {
    return a.transfer(operation, b.name, local, remote, length);
  }
  Agent a, b;
  size_t local, target, remote;
};

static void test_transfers() {
  Pair pair(LARGE);
  CHECK(pair.a.backend->connect(pair.b.name) == SUCCESS);
  for (size_t length : {size_t(1), 4 * KIB, MIB, LARGE}) {
    fill(pair.a.bytes(pair.local), length, 3);
    fill(pair.b.bytes(pair.target), length, 4);
    auto write = pair.transfer(WRITE, length);
    CHECK(write->prepared == SUCCESS);
    CHECK(write->check() == NOT_POSTED);
    CHECK(write->run() == SUCCESS);
    CHECK(holds(pair.b.bytes(pair.target), length, 3));
    fill(pair.a.bytes(pair.local), length, 5);
    CHECK(write->run() == SUCCESS); /* posted again */
    CHECK(holds(pair.b.bytes(pair.target), length, 5));
    fill(pair.b.bytes(pair.target), length, 6);
    CHECK(pair.transfer(READ, length)->run() == SUCCESS);
    CHECK(holds(pair.a.bytes(pair.local), length, 6));
  }
}

static void test_repost() {
  Pair pair(LARGE);
  auto write = pair.transfer(WRITE, LARGE);
  if (write->post() == IN_PROGRESS) {
    Status again = write->post();
    CHECK(again == REPOST_ACTIVE || again == IN_PROGRESS || again == SUCCESS);
  }
  CHECK(write->wait() == SUCCESS);
}

/* Each segment is found at its place: neighbours are merged, others are not. */
static void test_segments() {
  constexpr size_t COUNT = 100000, STEP = 16;
  Pair pair(COUNT * STEP);
  size_t second = pair.a.add_memory(COUNT * STEP, 9);
  MetaList local = {nullptr, DRAM, {}}, remote = {nullptr, DRAM, {}};
  for (size_t i = 0; i < COUNT; i++) {
    size_t to = i < COUNT / 2 ? i : COUNT / 2 + (COUNT - 1 - i); /* in order, then reversed */
    fill(pair.a.bytes(pair.local) + i * STEP, STEP, static_cast<int>(i % 251));
    local.items.push_back(pair.a.here(i % 3 == 0 ? second : pair.local, i * STEP, STEP));
    remote.items.push_back(pair.a.there(pair.remote, to * STEP, STEP));
  }
  Transfer write(pair.a, WRITE, pair.b.name, local, remote);
  CHECK(write.run() == SUCCESS);
  for (size_t i = 0; i < COUNT; i++) {
    size_t to = i < COUNT / 2 ? i : COUNT / 2 + (COUNT - 1 - i);
    CHECK(holds(pair.b.bytes(pair.target) + to * STEP, STEP,
                static_cast<unsigned char>(i % 3 == 0 ? 9 : i % 251)));
  }
}

static void test_refused() {
  Pair pair(MIB);
  Backend *backend = pair.a.backend;
  Handle *handle = nullptr;
  auto list = [](std::vector<MetaDescriptor> items) { return MetaList{nullptr, DRAM, items}; };
  auto here = pair.a.here(pair.local, 0, KIB), there = pair.a.there(pair.remote, 0, KIB);
  auto longer = pair.a.there(pair.remote, 0, 2 * KIB);
  auto beyond = pair.a.there(pair.remote, MIB, KIB);
  CHECK(backend->prepare(WRITE, list({here}), list({there}), "nobody", handle, nullptr) ==
        NOT_FOUND);
  CHECK(backend->prepare(WRITE, list({}), list({}), pair.b.name, handle, nullptr) ==
        INVALID_PARAMETER);
  CHECK(backend->prepare(WRITE, list({here}), list({there, there}), pair.b.name, handle, nullptr) ==
        INVALID_PARAMETER);
  CHECK(backend->prepare(WRITE, list({here}), list({longer}), pair.b.name, handle, nullptr) ==
        INVALID_PARAMETER);
  CHECK(!handle);
  CHECK(Transfer(pair.a, WRITE, pair.b.name, list({here}), list({beyond})).run() ==
        INVALID_PARAMETER);
  CHECK(backend->connect("nobody") == NOT_FOUND && backend->disconnect("nobody") == NOT_FOUND);
  CHECK(backend->notify("nobody", "text") == NOT_FOUND);
  CHECK(backend->load_connection_info("other", "UCX's bytes") == MISMATCH);
  Metadata *metadata = nullptr;
  BlobDescriptor memory = {{4096, 4096, 0}, ""};
  CHECK(backend->register_memory(memory, DRAM, metadata) != SUCCESS && !metadata);
  memory.address = reinterpret_cast<uintptr_t>(pair.a.bytes(pair.local));
  CHECK(backend->register_memory(memory, OBJECT, metadata) == NOT_SUPPORTED);
  CHECK(backend->register_memory(memory, VRAM, metadata) == MISMATCH && !metadata);
  CHECK(backend->load_remote_metadata(memory, DRAM, "nobody", metadata) == NOT_FOUND);
  CHECK(backend->post(WRITE, list({}), list({}), "nobody", handle, nullptr) == INVALID_PARAMETER);
  CHECK(backend->check(nullptr) == INVALID_PARAMETER && backend->release(nullptr) == SUCCESS);
  std::vector<std::optional<Parameters>> found;
  CHECK(backend->query_memory({nullptr, DRAM, {}}, found) == NOT_SUPPORTED);
  void *view = nullptr;
  CHECK(backend->prepare_local_view(list({}), view, nullptr) == NOT_SUPPORTED);
  backend->release_view(nullptr);
}

static void test_estimate() {
  Pair pair(MIB);
  auto write = pair.transfer(WRITE, MIB);
  std::chrono::microseconds duration(-1), margin(-1);
  CostMethod method;
  MetaList none = {nullptr, DRAM, {}};
  CHECK(pair.a.backend->estimate(WRITE, none, none, pair.b.name, write->handle, duration, margin,
                                 method, nullptr) == SUCCESS);
  CHECK(duration.count() >= 0 && margin.count() >= 0 && method == ANALYTICAL);
}

/* An agent's transfers to itself, which NIXL calls local. */
static void test_local() {
  Agent agent("alone", with_paths());
  size_t from = agent.add_memory(MIB, 1), to = agent.add_memory(MIB, 2);
  std::string text = "to myself";
  CHECK(agent.transfer(WRITE, agent.name, from, 1000 + to, MIB)->run(&text) == SUCCESS);
  CHECK(agent.receive() == std::pair(agent.name, text));
  CHECK(holds(agent.bytes(to), MIB, 1));
  CHECK(agent.backend->notify(agent.name, "again") == SUCCESS);
  CHECK(agent.receive().second == "again");
  CHECK(agent.backend->disconnect(agent.name) == SUCCESS);
}

/* HAUL_NIXL_REPORT: a line for each agent, and one for each pair and operation, not for each
 * transfer. */
static void test_report() {
  setenv("HAUL_NIXL_REPORT", "1", 1);
  std::string all = said_by([] {
    Pair pair(MIB);
    for (Operation operation : {WRITE, WRITE, READ, READ})
      CHECK(pair.transfer(operation, MIB)->run() == SUCCESS);
  });
  unsetenv("HAUL_NIXL_REPORT");
  CHECK(std::count(all.begin(), all.end(), '\n') == 4); /* no line break of a name */
  CHECK(all.find("agent first agent: node first_agent.") != all.npos);
  CHECK(all.find(", tcp://127.0.0.1:") != all.npos);
  CHECK(all.find("write to zweite") != all.npos && all.find("read from zweite") != all.npos);
  CHECK(all.find("host to host: ") != all.npos && all.find("; not rdma: ") != all.npos);
}

/* ---- Notifications ------------------------------------------------------------------------ */

static void test_notifications() {
  Pair pair(MIB);
  auto write = pair.transfer(WRITE, MIB);
  for (int round = 1; round < 100; round++) {
    fill(pair.a.bytes(pair.local), MIB, round);
    std::string text = "round " + std::to_string(round) + std::string("\0end", 4);
    Status status = write->post(&text);
    CHECK(status >= 0);
    CHECK(pair.b.receive() == std::pair(pair.a.name, text));
    CHECK(holds(pair.b.bytes(pair.target), MIB, static_cast<unsigned char>(round)));
    CHECK(write->wait() == SUCCESS);
  }
  std::string empty, longest(HAUL_MESSAGE_MAX - 100, 'x'), longer(HAUL_MESSAGE_MAX, 'x');
  CHECK(write->run(&empty) == SUCCESS);
  CHECK(pair.b.receive() == std::pair(pair.a.name, empty));
  CHECK(write->run(&longest) == SUCCESS);
  CHECK(pair.b.receive().second == longest);
  CHECK(write->post(&longer) == INVALID_PARAMETER);
  CHECK(pair.a.backend->notify(pair.b.name, longer) == INVALID_PARAMETER);
}

/* Nobody reads meanwhile. They arrive in the order of the calls. */
static void test_many_notifications() {
  Pair pair(MIB);
  constexpr int COUNT = 20000;
  for (int i = 0; i < COUNT; i++)
    CHECK(pair.a.backend->notify(pair.b.name, std::to_string(i) + std::string(200, '.')) ==
          SUCCESS);
  for (int i = 0; i < COUNT; i++)
    CHECK(atoi(pair.b.receive().second.c_str()) == i);
}

/* Another program of haul: an offer has no bytes here, whatever its tag and length. */
static void test_strangers() {
  Agent a("a", with_paths());
  Contact contact;
  haul_node *node;
  haul_peer *peer;
  haul_region *region;
  CHECK(contact.parse(a.info()));
  CHECK(haul_node_open(nullptr, &node) == 0);
  CHECK(haul_peer_connect(node, contact.addresses[0].c_str(), haul_deadline_in(BOUND), &peer) == 0);
  CHECK(haul_region_alloc(node, {HAUL_HOST, 0}, 64, 0, &region) == 0);
  CHECK(haul_message_send(peer, 1, "\xff\xff\xff\xff", 4, haul_deadline_in(BOUND)) == 0);
  std::atomic<int> code = 1;
  std::thread offers(
      [&] { code = haul_message_offer(peer, 1, region, 0, 64, haul_deadline_in(BOUND)); });
  while (code == 1) {
    Notifications found;
    CHECK(a.backend->notifications(found) == SUCCESS);
    CHECK(found.empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  offers.join();
  CHECK(code == HAUL_ECANCELED);
  haul_region_release(region);
  haul_peer_close(peer);
  haul_node_close(node);
}

/* An agent that ends at once has sent its notifications. */
static void test_last_words() {
  Agent a("a", with_paths());
  {
    Agent b("b", with_paths());
    b.meet(a.name, a.info(), {});
    CHECK(b.backend->notify(a.name, "last") == SUCCESS);
  }
  CHECK(a.receive() == std::pair(std::string("b"), std::string("last")));
}

/* ---- Ends --------------------------------------------------------------------------------- */

/* After the release no byte arrives, nor the notification. */
static void test_cancel() {
  Pair pair(LARGE);
  std::string text = "canceled";
  for (int round = 0; round < 10; round++) {
    fill(pair.a.bytes(pair.local), LARGE, 10 + round);
    for (Operation operation : {WRITE, READ}) {
      auto transfer = pair.transfer(operation, LARGE);
      CHECK(transfer->post(round % 2 ? &text : nullptr) >= 0);
      CHECK(transfer->release() == SUCCESS);
      unsigned char *memory =
          operation == WRITE ? pair.b.bytes(pair.target) : pair.a.bytes(pair.local);
      fill(memory, LARGE, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      CHECK(holds(memory, LARGE, 1));
    }
  }
  CHECK(pair.transfer(WRITE, LARGE)->run() == SUCCESS);
}

static void test_deregistered() {
  Pair pair(MIB);
  auto write = pair.transfer(WRITE, MIB);
  CHECK(write->run() == SUCCESS);
  pair.b.drop_memory(pair.target);
  fill(pair.b.bytes(pair.target), MIB, 7);
  CHECK(write->run() == NOT_FOUND);
  CHECK(holds(pair.b.bytes(pair.target), MIB, 7));
  size_t anew = pair.b.add_memory(MIB, 8);
  size_t remote = pair.a.meet(pair.b.name, pair.b.info(), {pair.b.card(anew)});
  auto other = pair.a.transfer(WRITE, pair.b.name, pair.local, remote, MIB);
  CHECK(other->run() == SUCCESS);
  pair.a.drop_memory(pair.local);
  CHECK(other->run() == NOT_FOUND);
}

/* An agent in another process, which another thread of it does not disturb. */
class Process {
public:
  explicit Process(size_t length) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    id_ = fork();
    if (id_ == 0) {
      dup2(pipes[1], STDOUT_FILENO);
      execl(program, program, paths.c_str(), "peer", std::to_string(length).c_str(), nullptr);
      _Exit(127);
    }
    close(pipes[1]);
    FILE *file = fdopen(pipes[0], "r");
    char line[4096];
    CHECK(fgets(line, sizeof line, file) && sscanf(line, "%zu", &card.address) == 1);
    card.length = length;
    CHECK(fgets(line, sizeof line, file));
    card.blob = std::string(line, strlen(line) - 1);
    while (fgets(line, sizeof line, file) && strcmp(line, "end\n") != 0)
      info += line;
    fclose(file);
  }
  ~Process() {
    signal(SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  void signal(int number) {
    kill(id_, number);
  }
  Card card;
  std::string info;

private:
  pid_t id_;
};

[[noreturn]] static void be_peer(size_t length) {
  Agent agent("peer", with_paths());
  size_t memory = agent.add_memory(length);
  printf("%zu\n%s\n%send\n", agent.card(memory).address, agent.card(memory).blob.c_str(),
         agent.info().c_str());
  fflush(stdout);
  for (;;)
    pause();
}

/* Each request ends with an error: of a killed peer at once, of a stopped one by liveness. */
static void test_death(int number) {
  setenv("HAUL_LIVENESS", "1s", 1);
  constexpr size_t LENGTH = LARGE / 4;
  Process process(LENGTH);
  Agent agent("survivor", with_paths());
  size_t local = agent.add_memory(LENGTH, 1);
  size_t remote = agent.meet("peer", process.info, {process.card});
  std::vector<std::unique_ptr<Transfer>> transfers;
  std::string text = "text";
  CHECK(agent.transfer(WRITE, "peer", local, remote, LENGTH)->run() == SUCCESS);
  for (int i = 0; i < 12; i++) { /* each read has its own memory: threads of haul write to it */
    size_t here = i % 2 ? local : agent.add_memory(LENGTH);
    transfers.push_back(agent.transfer(i % 2 ? WRITE : READ, "peer", here, remote, LENGTH));
    CHECK(transfers.back()->post(i % 3 ? &text : nullptr) >= 0);
  }
  process.signal(number);
  bool disconnected = false;
  for (auto &transfer : transfers) {
    Status status = transfer->wait();
    CHECK(status == SUCCESS || status == REMOTE_DISCONNECT);
    disconnected = disconnected || status == REMOTE_DISCONNECT;
  }
  while (!disconnected) { /* map copies what the stopped process has shared, until it is dropped */
    auto last = agent.transfer(WRITE, "peer", local, remote, LENGTH);
    disconnected = last->prepared != SUCCESS || last->run() == REMOTE_DISCONNECT;
  }
  while (agent.backend->notify("peer", "text") != REMOTE_DISCONNECT)
    std::this_thread::sleep_for(std::chrono::milliseconds(1)); /* map may notice it first */
  CHECK(agent.backend->connect("peer") == REMOTE_DISCONNECT);
  transfers.clear();
  agent.forget("peer");
  unsetenv("HAUL_LIVENESS");
}

/* A peer that does not respond: an error after the deadline, of a write once it is fenced. Map
 * reads and writes a stopped process. */
static void test_deadline() {
  setenv("HAUL_LIVENESS", "2s", 1);
  Process process(LARGE);
  Parameters parameters = with_paths();
  parameters["deadline"] = "0.2";
  Agent agent("agent", parameters);
  size_t local = agent.add_memory(LARGE, 1);
  size_t remote = agent.meet("peer", process.info, {process.card});
  auto read = agent.transfer(READ, "peer", local, remote, LARGE);
  auto write = agent.transfer(WRITE, "peer", local, remote, LARGE);
  process.signal(SIGSTOP);
  for (auto *transfer : {read.get(), write.get()}) {
    Status status = transfer->run();
    CHECK(status == BACKEND_ERROR || status == REMOTE_DISCONNECT ||
          (status == SUCCESS && paths != "tcp"));
  }
  unsetenv("HAUL_LIVENESS");
}

/* A restarted agent has other metadata; the old one reaches no agent. */
static void test_restart() {
  Agent agent("survivor", with_paths());
  size_t local = agent.add_memory(MIB, 1);
  auto first = std::make_unique<Process>(MIB);
  agent.meet("peer", first->info, {first->card});
  std::string info = first->info;
  Card card = first->card;
  first.reset();
  Process second(MIB);
  agent.forget("peer");
  size_t stale = agent.meet("peer", info, {card});
  CHECK(agent.transfer(WRITE, "peer", local, stale, MIB)->prepared == REMOTE_DISCONNECT);
  /* The addresses of the second one, which is not the agent of the metadata. */
  agent.forget("peer");
  std::string mixed =
      info.substr(0, info.find("\nhost")) + second.info.substr(second.info.find("\nhost"));
  stale = agent.meet("peer", mixed, {card});
  CHECK(agent.transfer(WRITE, "peer", local, stale, MIB)->prepared == REMOTE_DISCONNECT);
  /* The registration of the first one at the second one. */
  agent.forget("peer");
  stale = agent.meet("peer", second.info, {card});
  CHECK(agent.transfer(WRITE, "peer", local, stale, MIB)->prepared == NOT_FOUND);
  agent.forget("peer");
  size_t fresh = agent.meet("peer", second.info, {second.card});
  CHECK(agent.transfer(WRITE, "peer", local, fresh, MIB)->run() == SUCCESS);
}

static void test_fork() {
  Pair pair(LARGE);
  auto write = pair.transfer(WRITE, LARGE);
  CHECK(write->post() >= 0);
  CHECK(pair.a.backend->notify(pair.b.name, "by a thread") == SUCCESS); /* after the write */
  CHECK(write->wait() == SUCCESS && pair.b.receive().second == "by a thread");
  pid_t child = fork();
  if (child == 0) {
    std::string text = "child";
    Metadata *metadata = nullptr;
    CHECK(write->run() != SUCCESS && write->run(&text) != SUCCESS);
    CHECK(pair.a.backend->notify(pair.b.name, text) != SUCCESS);
    CHECK(
        pair.a.backend->register_memory({{reinterpret_cast<uintptr_t>(&text), sizeof text, 0}, ""},
                                        DRAM, metadata) == NOT_ALLOWED);
    load()->destroy(pair.a.backend);
    load()->destroy(pair.b.backend);
    _Exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(write->run() == SUCCESS);
}

/* ---- Keys, threads, speed ----------------------------------------------------------------- */

static void test_keys() {
  std::string folder = "/tmp/haul-nixl-keys-" + std::to_string(getpid());
  std::string key = folder + "-1", other = folder + "-2";
  CHECK(haul_key_new(key.c_str(), "cluster") == 0 && haul_key_new(other.c_str(), "other") == 0);
  auto keyed = [](const std::string &file) {
    return Parameters{{"paths", paths}, {"key", file}, {"listen", "tcp://127.0.0.1:0"}};
  };
  if (Backend *backend = try_create(keyed(key)))
    load()->destroy(backend);
  else {
    puts("skipped keys: haul was built without OpenSSL, or it is not installed");
    unlink(key.c_str());
    unlink(other.c_str());
    return;
  }
  {
    Pair pair(MIB, keyed(key));
    CHECK(pair.transfer(WRITE, MIB)->run() == SUCCESS);
    Agent stranger("stranger", keyed(other)), open("open", with_paths());
    CHECK(pair.a.backend->load_connection_info("stranger", stranger.info()) == NOT_ALLOWED);
    CHECK(pair.a.backend->load_connection_info("open", open.info()) == NOT_ALLOWED);
    CHECK(open.backend->load_connection_info(pair.a.name, pair.a.info()) == NOT_ALLOWED);
    /* One that claims to have the key does not get in. */
    std::string info = pair.a.info(), mine = stranger.info();
    size_t at = info.find("\nkey "), mine_at = mine.find("\nkey ");
    info.replace(at, info.find('\n', at + 1) - at,
                 mine.substr(mine_at, mine.find('\n', mine_at + 1) - mine_at));
    stranger.meet(pair.a.name, info, {pair.a.card(pair.local)});
    CHECK(stranger.backend->connect(pair.a.name) != SUCCESS);
  }
  unlink(key.c_str());
  unlink(other.c_str());
}

static void test_threads() {
  constexpr int THREADS = 4, ROUNDS = 200;
  constexpr size_t STEP = 64 * KIB;
  Pair pair(THREADS * STEP);
  std::atomic<int> received = 0;
  std::vector<std::thread> threads;
  for (size_t number = 0; number < THREADS; number++)
    threads.emplace_back([&pair, number] {
      MetaList here = {nullptr, DRAM, {pair.a.here(pair.local, number * STEP, STEP)}};
      MetaList there = {nullptr, DRAM, {pair.a.there(pair.remote, number * STEP, STEP)}};
      std::string text = std::to_string(number);
      for (int i = 0; i < ROUNDS; i++) {
        Transfer transfer(pair.a, i % 3 ? WRITE : READ, pair.b.name, here, there);
        CHECK(transfer.post(i % 2 ? &text : nullptr) >= 0);
        if (i % 5 == 0 && i % 2 == 0)
          CHECK(transfer.release() == SUCCESS);
        else
          CHECK(transfer.wait() == SUCCESS);
        if (i % 7 == 0)
          CHECK(pair.a.backend->notify(pair.b.name, text) == SUCCESS);
      }
    });
  int expected = THREADS * (ROUNDS / 2 + (ROUNDS + 6) / 7);
  for (; received < expected; received++)
    pair.b.receive();
  for (auto &thread : threads)
    thread.join();
}

/* Prints the time of a check while nothing changes. */
static void test_check_time() {
  setenv("HAUL_LIVENESS", "60s", 1);
  Process process(LARGE);
  Agent agent("agent", with_paths());
  size_t local = agent.add_memory(LARGE, 1);
  size_t remote = agent.meet("peer", process.info, {process.card});
  auto write = agent.transfer(WRITE, "peer", local, remote, LARGE);
  CHECK(write->run() == SUCCESS);
  process.signal(SIGSTOP);
  CHECK(write->post() >= 0);
  constexpr int COUNT = 1000000;
  auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < COUNT; i++)
    write->check();
  auto took = std::chrono::steady_clock::now() - began;
  printf("a check takes %.1f ns, %s\n",
         static_cast<double>(std::chrono::nanoseconds(took).count()) / COUNT,
         write->check() == IN_PROGRESS ? "in progress" : "ended");
  process.signal(SIGCONT);
  CHECK(write->wait() == SUCCESS);
}

/* Memory as of cudaMalloc, in the primary context; 0 without a GPU. It ends with the process. */
static uintptr_t gpu_alloc(size_t size) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = nullptr;
  unsigned long long address = 0;
  auto call = [driver](const char *name, auto *type) {
    return reinterpret_cast<decltype(type)>(dlsym(driver, name));
  };
  if (!driver || call("cuInit", static_cast<int (*)(unsigned)>(nullptr))(0) != 0 ||
      call("cuDevicePrimaryCtxRetain", static_cast<int (*)(void **, int)>(nullptr))(&context, 0) ||
      call("cuCtxPushCurrent_v2", static_cast<int (*)(void *)>(nullptr))(context) != 0 ||
      call("cuMemAlloc_v2", static_cast<int (*)(unsigned long long *, size_t)>(nullptr))(&address,
                                                                                         size) != 0)
    return 0;
  return address;
}

/* From host memory to a GPU of the other agent, on to its own GPU, and back. */
static void test_gpu() {
  Pair pair(MIB);
  uintptr_t here = gpu_alloc(MIB), there = gpu_alloc(MIB);
  if (!here || !there) {
    puts("skipped GPU memory: no GPU");
    return;
  }
  size_t own = pair.a.add_memory(here, MIB, VRAM);
  size_t target = pair.b.add_memory(there, MIB, VRAM);
  size_t remote = pair.a.meet(pair.b.name, pair.b.info(), {pair.b.card(target)});
  std::string text = "there";
  fill(pair.a.bytes(pair.local), MIB, 77);
  CHECK(pair.a.transfer(WRITE, pair.b.name, pair.local, remote, MIB)->run(&text) == SUCCESS);
  CHECK(pair.b.receive().second == text);
  CHECK(pair.a.transfer(READ, pair.b.name, own, remote, MIB)->run() == SUCCESS);
  size_t back = pair.a.meet(pair.b.name, pair.b.info(), {pair.b.card(pair.target)});
  CHECK(pair.a.transfer(WRITE, pair.b.name, own, back, MIB)->run() == SUCCESS);
  CHECK(holds(pair.b.bytes(pair.target), MIB, 77));
  test_files_gpu(pair.a, pair.local, own, MIB);
}

/* A process of its own has the file system. */
static void test_full() {
  pid_t child = fork();
  if (child == 0) {
    execl(program, program, paths.c_str(), "full", nullptr);
    _Exit(127);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void run_all(const char *only) {
  struct {
    const char *name;
    void (*run)();
  } tests[] = {{"versions", test_versions},
               {"table", test_table},
               {"parameters", test_parameters},
               {"transfers", test_transfers},
               {"repost", test_repost},
               {"segments", test_segments},
               {"refused", test_refused},
               {"estimate", test_estimate},
               {"local", test_local},
               {"report", test_report},
               {"notifications", test_notifications},
               {"many notifications", test_many_notifications},
               {"strangers", test_strangers},
               {"last words", test_last_words},
               {"cancel", test_cancel},
               {"deregistered", test_deregistered},
               {"killed", [] { test_death(SIGKILL); }},
               {"stopped", [] { test_death(SIGSTOP); }},
               {"deadline", test_deadline},
               {"restart", test_restart},
               {"fork", test_fork},
               {"keys", test_keys},
               {"threads", test_threads},
               {"files", [] { test_files(with_paths()); }},
               {"full file system", test_full},
               {"gpu", test_gpu},
               {"check time", test_check_time}};
  for (const auto &test : tests) {
    if (only && strcmp(only, test.name) != 0)
      continue;
    printf("%s\n", test.name);
    fflush(stdout);
    test.run();
  }
}

} // namespace test

int main(int argc, char **argv) {
  test::program = argv[0];
  test::paths = argc > 1 ? argv[1] : "";
  if (argc > 3 && strcmp(argv[2], "peer") == 0)
    test::be_peer(strtoul(argv[3], nullptr, 10));
  if (argc > 2 && strcmp(argv[2], "full") == 0)
    test::be_full(test::with_paths());
  else
    test::run_all(argc > 2 ? argv[2] : nullptr);
}
