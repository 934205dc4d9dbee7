/* SPDX-License-Identifier: MIT
 * Transfers between memory and files. */
#include "files.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>

#include "file.h"
#include "refusal.h"

namespace test {

static constexpr size_t KIB = 1024, MIB = 1024 * KIB, LARGE = 64 * MIB;

/* A folder that ends with its files. */
struct Folder {
  Folder() {
    char made[] = "/tmp/haul-nixl-files-XXXXXX";
    CHECK(mkdtemp(made));
    path = made;
  }
  ~Folder() {
    std::filesystem::remove_all(path);
  }
  std::string file(const std::string &name) const {
    return path + "/" + name;
  }
  std::string path;
};

/* An agent with 64 MiB of memory and an empty file. */
struct Setup {
  explicit Setup(const Parameters &parameters) : agent("with files", parameters) {
    memory = agent.add_memory(LARGE, 1);
    file = agent.add_file("rw,create:" + name, 100);
  }
  std::unique_ptr<Transfer> transfer(Operation operation, size_t length) {
    return agent.file_transfer(operation, memory, file, length);
  }
  /* The transfer of one segment at a place of the file. */
  Status move(Operation operation, size_t number, size_t offset, size_t length) {
    return Transfer(agent, operation, agent.name, {nullptr, DRAM, {agent.here(memory, 0, length)}},
                    {nullptr, FILES, {agent.there(1000 + number, offset, length)}})
        .run();
  }
  Status try_file(const std::string &blob, uint64_t device) {
    Metadata *metadata = nullptr;
    Status status = agent.backend->register_memory({{0, 0, device}, blob}, FILES, metadata);
    CHECK((status == SUCCESS) == (metadata != nullptr));
    if (metadata)
      CHECK(agent.backend->deregister_memory(metadata) == SUCCESS);
    return status;
  }
  Folder folder;
  const std::string name = folder.file("file");
  Agent agent;
  size_t memory, file;
};

static bool has(const std::string &text, const std::string &part) {
  if (text.find(part) == text.npos)
    fprintf(stderr, "no '%s' in: %s\n", part.c_str(), text.c_str());
  return text.find(part) != text.npos;
}

static void check_moves(Setup &setup) {
  std::string text = "written";
  for (size_t length : {size_t(1), 4 * KIB, MIB + 1, LARGE}) {
    unsigned char *bytes = setup.agent.bytes(setup.memory);
    auto write = setup.transfer(WRITE, length);
    CHECK(write->check() == NOT_POSTED);
    for (int value : {3, 4}) { /* posted again, too */
      fill(bytes, length, value);
      CHECK(write->run(&text) == SUCCESS);
      CHECK(setup.agent.receive() == std::pair(setup.agent.name, text));
    }
    fill(bytes, length, 5);
    CHECK(setup.transfer(READ, length)->run() == SUCCESS);
    CHECK(holds(bytes, length, 4));
    CHECK(std::filesystem::file_size(setup.name) == length);
  }
}

/* Segments are found at their places of two files, whether they have neighbours or not. */
static void check_segments(Setup &setup) {
  constexpr size_t COUNT = 50000, STEP = 64;
  size_t other = setup.agent.add_file("rw,create:" + setup.folder.file("other"), 101);
  unsigned char *bytes = setup.agent.bytes(setup.memory);
  MetaList local = {nullptr, DRAM, {}}, remote = {nullptr, FILES, {}};
  for (size_t i = 0; i < COUNT; i++) {
    size_t to = i < COUNT / 2 ? i : COUNT / 2 + (COUNT - 1 - i); /* in order, then reversed */
    fill(bytes + i * STEP, STEP, static_cast<int>(i % 251));
    local.items.push_back(setup.agent.here(setup.memory, i * STEP, STEP));
    remote.items.push_back(
        setup.agent.there(1000 + (i / 5 % 2 ? other : setup.file), to * STEP, STEP));
  }
  CHECK(Transfer(setup.agent, WRITE, setup.agent.name, local, remote).run() == SUCCESS);
  fill(bytes, COUNT * STEP, 255);
  std::reverse(local.items.begin(), local.items.end()); /* to other places of the memory */
  CHECK(Transfer(setup.agent, READ, setup.agent.name, local, remote).run() == SUCCESS);
  for (size_t i = 0; i < COUNT; i++)
    CHECK(holds(bytes + i * STEP, STEP, static_cast<unsigned char>((COUNT - 1 - i) % 251)));
}

static void check_registration(Setup &setup) {
  std::string missing = setup.folder.file("missing"), folder = setup.folder.path;
  CHECK(has(said_by([&] { CHECK(setup.try_file("ro:" + missing, 1) == NOT_FOUND); }),
            missing + ": No such file or directory"));
  CHECK(has(said_by([&] { CHECK(setup.try_file("rw,crate:" + missing, 1) == INVALID_PARAMETER); }),
            "unknown mode 'crate'"));
  CHECK(has(said_by([&] { CHECK(setup.try_file("ro:" + setup.name, 100) == INVALID_PARAMETER); }),
            "registered as device 100"));
  CHECK(has(said_by([&] { CHECK(setup.try_file("ro:" + folder, 1) == INVALID_PARAMETER); }),
            "neither a regular file nor a block device"));
  CHECK(has(said_by([&] { CHECK(setup.try_file("", 99999) == INVALID_PARAMETER); }),
            "descriptor 99999: Bad file descriptor"));
  CHECK(setup.try_file("", 1ull << 40) == INVALID_PARAMETER);
  for (const char *modes : {"ro:", "rw:", "ro,noatime:", "rw,sync:", "rw,create,sync:"})
    for (int again = 0; again < 2; again++) /* the device is free again */
      CHECK(setup.try_file(modes + setup.name, 1) == SUCCESS);
  int descriptor = open(setup.name.c_str(), O_RDONLY | O_CLOEXEC);
  for (const char *blob : {"", "a name: of another form", "rows:x"})
    CHECK(setup.try_file(blob, static_cast<uint64_t>(descriptor)) == SUCCESS);
  CHECK(fcntl(descriptor, F_GETFD) >= 0); /* it stays the caller's */
  close(descriptor);
}

static void check_query(const Setup &setup) {
  BlobList list = {nullptr, FILES, {}};
  for (const std::string &blob : {setup.name, "ro:" + setup.name, setup.name + "x", std::string()})
    list.items.push_back({{0, 0, 0}, blob});
  std::vector<std::optional<Parameters>> found;
  CHECK(setup.agent.backend->query_memory(list, found) == SUCCESS && found.size() == 4);
  CHECK(found[0] && found[1] && !found[2] && !found[3]);
  std::string size = std::to_string(std::filesystem::file_size(setup.name));
  for (size_t i = 0; i < 2; i++)
    CHECK(found[i]->at("size") == size && found[i]->contains("mode") &&
          found[i]->contains("mtime"));
}

static void check_failures(Setup &setup) {
  CHECK(truncate(setup.name.c_str(), 5000) == 0);
  CHECK(has(said_by([&] { CHECK(setup.move(READ, setup.file, 4096, 4096) == BACKEND_ERROR); }),
            "cannot read 4096 bytes at 4096 of " + setup.name + ": the file ends at 5000"));
  auto check_opened = [&](int flags, Operation operation, const char *why) {
    int descriptor = open(setup.name.c_str(), flags | O_CLOEXEC);
    size_t number = setup.agent.add_file("", static_cast<uint64_t>(descriptor));
    Operation other = operation == READ ? WRITE : READ;
    std::string said =
        said_by([&] { CHECK(setup.move(operation, number, 0, 4096) == NOT_ALLOWED); });
    CHECK(has(said, setup.name) && has(said, why));
    if ((flags & O_ACCMODE) != O_RDWR)
      CHECK(setup.move(other, number, 0, 4096) == SUCCESS);
    setup.agent.drop_memory(number);
    close(descriptor);
  };
  check_opened(O_RDONLY, WRITE, "not opened for that");
  check_opened(O_WRONLY, READ, "not opened for that");
  check_opened(O_RDWR | O_APPEND, WRITE, "O_APPEND");
  MetaList here = {nullptr, DRAM, {setup.agent.here(setup.memory, LARGE, 4096)}};
  MetaList there = {nullptr, FILES, {setup.agent.there(1000 + setup.file, 0, 4096)}};
  CHECK(Transfer(setup.agent, READ, setup.agent.name, here, there).prepared == INVALID_PARAMETER);
  there.items[0].address = UINT64_MAX - 4;
  here = {nullptr, DRAM, {setup.agent.here(setup.memory, 0, 4096)}};
  CHECK(Transfer(setup.agent, READ, setup.agent.name, here, there).prepared == INVALID_PARAMETER);
}

/* Files belong to one agent, and are the remote side there. */
static void check_sides(Setup &setup, const Parameters &parameters) {
  Agent other("other", parameters);
  size_t number = setup.agent.meet(other.name, other.info(), {setup.agent.card(setup.file)});
  MetaList memory = {nullptr, DRAM, {setup.agent.here(setup.memory, 0, 4096)}};
  MetaList theirs = {nullptr, FILES, {setup.agent.there(number, 0, 4096)}};
  CHECK(has(said_by([&] {
              Transfer write(setup.agent, WRITE, other.name, memory, theirs);
              CHECK(write.prepared == NOT_SUPPORTED);
            }),
            "files of agent other are its own"));
  MetaList file = {nullptr, FILES, {setup.agent.here(setup.file, 0, 4096)}};
  MetaList own = {nullptr, DRAM, {setup.agent.there(1000 + setup.memory, 0, 4096)}};
  CHECK(Transfer(setup.agent, WRITE, setup.agent.name, file, own).prepared == NOT_SUPPORTED);
  setup.agent.forget(other.name);
}

/* After the release no byte arrives, nor the notification. */
static void check_cancel(Setup &setup) {
  std::string text = "canceled";
  std::vector<unsigned char> ours(LARGE, 9), found(LARGE);
  int descriptor = open(setup.name.c_str(), O_RDWR | O_CLOEXEC);
  for (int round = 0; round < 5; round++) {
    fill(setup.agent.bytes(setup.memory), LARGE, 8);
    auto write = setup.transfer(WRITE, LARGE);
    CHECK(write->post(&text) >= 0);
    CHECK(write->release() == SUCCESS);
    CHECK(pwrite(descriptor, ours.data(), LARGE, 0) == static_cast<ssize_t>(LARGE));
    auto read = setup.transfer(READ, LARGE);
    CHECK(read->post() >= 0);
    CHECK(read->release() == SUCCESS);
    fill(setup.agent.bytes(setup.memory), LARGE, 7);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(pread(descriptor, found.data(), LARGE, 0) == static_cast<ssize_t>(LARGE));
    CHECK(holds(found.data(), LARGE, 9));
    CHECK(holds(setup.agent.bytes(setup.memory), LARGE, 7));
  }
  close(descriptor);
  Notifications unread; /* of those that ended before */
  CHECK(setup.agent.backend->notifications(unread) == SUCCESS);
}

/* What a prepared transfer needs has ended: it does not use the descriptor's next owner. */
static void check_deregistered(Setup &setup) {
  int descriptor = open(setup.name.c_str(), O_RDWR | O_CLOEXEC);
  size_t number = setup.agent.add_file("", static_cast<uint64_t>(descriptor));
  size_t memory = setup.agent.add_memory(MIB, 6);
  auto write = setup.agent.file_transfer(WRITE, memory, number, MIB);
  auto other = setup.agent.file_transfer(WRITE, memory, setup.file, MIB);
  CHECK(write->run() == SUCCESS && other->run() == SUCCESS);
  setup.agent.drop_memory(number);
  std::string innocent = setup.folder.file("innocent");
  int next = open(innocent.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  CHECK(dup2(next, descriptor) == descriptor);
  CHECK(has(said_by([&] { CHECK(write->run() == NOT_FOUND); }), "deregistered"));
  CHECK(std::filesystem::file_size(innocent) == 0);
  setup.agent.drop_memory(memory);
  CHECK(other->run() == NOT_FOUND);
  close(descriptor);
  close(next);
}

static void check_fork(Setup &setup) {
  auto write = setup.transfer(WRITE, MIB), busy = setup.transfer(WRITE, LARGE);
  CHECK(write->run() == SUCCESS);
  CHECK(busy->post() >= 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK(write->run() == NOT_ALLOWED);
    CHECK(setup.try_file("ro:" + setup.name, 1) == NOT_ALLOWED);
    CHECK(busy->check() != IN_PROGRESS && busy->release() == SUCCESS);
    _Exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(busy->wait() == SUCCESS);
}

static void check_threads(Setup &setup) {
  constexpr size_t THREADS = 4, STEP = 256 * KIB;
  std::vector<std::thread> threads;
  for (size_t number = 0; number < THREADS; number++)
    threads.emplace_back([&setup, number] {
      MetaList here = {nullptr, DRAM, {setup.agent.here(setup.memory, number * STEP, STEP)}};
      MetaList there = {
          nullptr, FILES, {setup.agent.there(1000 + setup.file, number * STEP, STEP)}};
      for (int i = 0; i < 100; i++) {
        Transfer transfer(setup.agent, i % 3 ? WRITE : READ, setup.agent.name, here, there);
        CHECK(transfer.post() >= 0);
        if (i % 5 == 0)
          CHECK(transfer.release() == SUCCESS);
        else
          CHECK(transfer.wait() == SUCCESS);
      }
    });
  for (auto &thread : threads)
    thread.join();
}

static void check_deadline(Parameters parameters) {
  parameters["deadline"] = "0.000000001";
  Setup setup(parameters);
  CHECK(has(said_by([&] { CHECK(setup.move(WRITE, setup.file, 0, 4096) == BACKEND_ERROR); }),
            "the deadline passed"));
}

static void check_report(const Parameters &parameters) {
  setenv("HAUL_NIXL_REPORT", "1", 1);
  std::string said = said_by([&] {
    Setup setup(parameters);
    for (int i = 0; i < 2; i++)
      CHECK(setup.move(WRITE, setup.file, 0, 4096) == SUCCESS);
  });
  unsetenv("HAUL_NIXL_REPORT");
  CHECK(has(said, "write to files, host memory: "));
  CHECK(std::count(said.begin(), said.end(), '\n') == 2); /* with the agent's */
}

/* A post that throws has ended its request; `threw` counts it. Whether an allocation was refused.
 */
static bool post_without_memory(Transfer &transfer, long from, int &threw) {
  Status status;
  Refusal refusal(Refusal::HERE, from);
  try {
    status = transfer.post();
  } catch (const std::bad_alloc &) {
    threw++;
    status = transfer.check();
    CHECK(status != IN_PROGRESS);
  }
  bool refused = refusal.end();
  CHECK(status == IN_PROGRESS ? transfer.wait() == SUCCESS : refused || status == SUCCESS);
  CHECK(transfer.run() == SUCCESS);
  return refused;
}

static void check_posts_without_memory(const Parameters &parameters) {
  int threw = 0;
  bool refused = true;
  for (long from = 0; refused; from++) { /* the first request starts the threads */
    Folder folder;
    Agent agent("short of memory", parameters);
    size_t memory = agent.add_memory(MIB);
    size_t file = agent.add_file("rw,create:" + folder.file("file"), 100);
    refused = post_without_memory(*agent.file_transfer(WRITE, memory, file, MIB), from, threw);
  }
  CHECK(threw > 0);
  Setup setup(parameters);
  auto write = setup.transfer(WRITE, MIB);
  CHECK(write->run() == SUCCESS);
  threw = 0;
  for (int i = 0; i < 100; i++) /* the queue grows now and then */
    post_without_memory(*write, 0, threw);
  CHECK(threw > 0);
}

/* An exception in a thread ends the request alone. */
static void check_threads_without_memory(Setup &setup) {
  std::string text = "without memory";
  auto write = setup.transfer(WRITE, MIB);
  CHECK(write->run() == SUCCESS); /* starts the threads */
  int failures = 0;
  bool refused = true;
  for (long from = 0; refused; from++) {
    Refusal refusal(Refusal::ELSEWHERE, from);
    Status status = write->run(&text);
    refused = refusal.end();
    CHECK(status == SUCCESS || (refused && status == BACKEND_ERROR));
    failures += status != SUCCESS;
  }
  CHECK(failures > 0);
  CHECK(setup.agent.receive() == std::pair(setup.agent.name, text));
}

/* Continuous uses do not delay the end: it waits for those alone that began before. */
static void check_end_under_uses(const Setup &setup) {
  FileDevices devices;
  std::shared_ptr<File> file;
  CHECK(File::open({{0, 0, 1}, "ro:" + setup.name}, devices, file) == SUCCESS);
  std::atomic<bool> ended = false;
  std::thread ender;
  file->with([&](int descriptor) {
    ender = std::thread([&] {
      file->end();
      ended = true;
    });
    bool used = true;
    for (int i = 0; used && i < 10000; i++) {
      used = false;
      std::thread([&] { file->with([&](int) { used = true; }); }).join();
      std::this_thread::sleep_for(std::chrono::milliseconds(used ? 1 : 0));
    }
    CHECK(!used && !ended);
    CHECK(fcntl(descriptor, F_GETFD) >= 0);
  });
  ender.join();
}

void test_files(const Parameters &parameters) {
  {
    Setup setup(parameters);
    check_moves(setup);
    check_segments(setup);
    check_registration(setup);
    check_query(setup);
    check_failures(setup);
    check_sides(setup, parameters);
    check_cancel(setup);
    check_deregistered(setup);
    check_fork(setup);
    check_threads(setup);
    check_threads_without_memory(setup);
    check_end_under_uses(setup);
  }
  check_posts_without_memory(parameters);
  check_deadline(parameters);
  check_report(parameters);
}

void test_files_gpu(Agent &agent, size_t host, size_t gpu, size_t length) {
  Folder folder;
  size_t file = agent.add_file("rw,create:" + folder.file("gpu"), 100);
  auto move = [&](Operation operation, size_t memory, MemoryKind kind) {
    return Transfer(agent, operation, agent.name, {nullptr, kind, {agent.here(memory, 0, length)}},
                    {nullptr, FILES, {agent.there(1000 + file, 0, length)}})
        .run();
  };
  fill(agent.bytes(host), length, 88);
  CHECK(move(WRITE, host, DRAM) == SUCCESS);
  CHECK(move(READ, gpu, VRAM) == SUCCESS);
  CHECK(truncate(folder.file("gpu").c_str(), 0) == 0);
  CHECK(move(WRITE, gpu, VRAM) == SUCCESS);
  fill(agent.bytes(host), length, 89);
  CHECK(move(READ, host, DRAM) == SUCCESS);
  CHECK(holds(agent.bytes(host), length, 88));
  agent.drop_memory(file);
}

void be_full(const Parameters &parameters) {
  bool root = geteuid() == 0;
  Folder folder;
  if (unshare(root ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", folder.path.c_str(), "tmpfs", 0, "size=1m") != 0) {
    printf("skipped a full file system: cannot mount one: %s\n", strerror(errno));
    return;
  }
  {
    Agent agent("full", parameters);
    size_t memory = agent.add_memory(4 * MIB, 1);
    size_t file = agent.add_file("rw,create:" + folder.file("file"), 1);
    std::string said = said_by(
        [&] { CHECK(agent.file_transfer(WRITE, memory, file, 4 * MIB)->run() == BACKEND_ERROR); });
    CHECK(has(said, "of " + folder.file("file") + ": No space left on device"));
  }
  umount(folder.path.c_str());
}

} // namespace test
