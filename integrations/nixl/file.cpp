/* SPDX-License-Identifier: MIT */
#include "file.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

namespace haul_nixl {

static constexpr mode_t CREATED = 0644; /* as NIXL's file backends create files */

bool FileDevices::add(uint64_t device) {
  std::lock_guard guard(lock_);
  return devices_.insert(device).second;
}

void FileDevices::drop(uint64_t device) {
  std::lock_guard guard(lock_);
  devices_.erase(device);
}

static Status status_of_errno(int code) {
  switch (code) {
  case ENOENT:
  case ENOTDIR:
    return NOT_FOUND;
  case EACCES:
  case EPERM:
  case EROFS:
    return NOT_ALLOWED;
  default:
    return BACKEND_ERROR;
  }
}

/* ---- Names -------------------------------------------------------------------------------- */

struct FilePath {
  std::string path;
  int flags = 0;
  std::string unknown; /* the word that no mode is */
};

/* The bit of a word after "ro" or "rw", 0 for an unknown one. */
static int flag_of(const std::string &word) {
  if (word == "direct")
    return O_DIRECT;
  if (word == "sync")
    return O_SYNC;
  if (word == "noatime")
    return O_NOATIME;
  return word == "create" ? O_CREAT : 0;
}

/* MODE[,FLAG...]:PATH; nothing if the text has another form. */
static std::optional<FilePath> parse_path(const std::string &blob) {
  size_t colon = blob.find(':');
  std::string modes = blob.substr(0, colon), access = modes.substr(0, 2);
  bool is_mode = access == "ro" || access == "rw";
  if (colon == std::string::npos || !is_mode || (modes.size() > 2 && modes[2] != ','))
    return std::nullopt;
  FilePath parsed = {blob.substr(colon + 1), (access == "ro" ? O_RDONLY : O_RDWR) | O_CLOEXEC, ""};
  for (size_t at = 3; at <= modes.size();) {
    size_t end = std::min(modes.find(',', at), modes.size());
    std::string word = modes.substr(at, end - at);
    if (flag_of(word) == 0)
      parsed.unknown = word.empty() ? "," : word;
    parsed.flags |= flag_of(word);
    at = end + 1;
  }
  return parsed;
}

std::optional<Parameters> query_file(const std::string &blob) {
  auto parsed = parse_path(blob);
  struct stat found = {};
  if (stat(parsed ? parsed->path.c_str() : blob.c_str(), &found) != 0)
    return std::nullopt;
  return Parameters{{"size", std::to_string(found.st_size)},
                    {"mode", std::to_string(found.st_mode)},
                    {"mtime", std::to_string(found.st_mtime)}};
}

std::string File::name() const {
  char path[PATH_MAX];
  if (!path_.empty())
    return path_;
  std::string link = "/proc/self/fd/" + std::to_string(descriptor_);
  ssize_t length = uses_.ended() ? 0 : readlink(link.c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length))
                    : "descriptor " + std::to_string(descriptor_);
}

/* ---- Registration ------------------------------------------------------------------------- */

static Status refuse(Status status, const std::string &why) {
  say("cannot register a file: " + why);
  return status;
}

/* Its flags as of open(2), or -1 after a sentence. */
static int flags_of(int descriptor, const std::string &name) {
  struct stat found = {};
  int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fstat(descriptor, &found) != 0) {
    refuse(INVALID_PARAMETER, name + ": " + strerror(errno) +
                                  " (hint: the device is an open descriptor, or the metadata is "
                                  "ro:PATH or rw:PATH)");
    return -1;
  }
  if (S_ISREG(found.st_mode) || S_ISBLK(found.st_mode))
    return flags;
  refuse(INVALID_PARAMETER, name + " is neither a regular file nor a block device");
  return -1;
}

static int open_path(const FilePath &parsed, Status &status) {
  if (!parsed.unknown.empty()) {
    status = refuse(INVALID_PARAMETER, "unknown mode '" + parsed.unknown + "' of " + parsed.path +
                                           " (hint: haul-nixl(7) lists the modes)");
    return -1;
  }
  int descriptor = ::open(parsed.path.c_str(), parsed.flags, CREATED);
  int code = errno;
  if (descriptor < 0)
    status = refuse(status_of_errno(code), parsed.path + ": " + strerror(code));
  return descriptor;
}

Status File::open(const BlobDescriptor &memory, FileDevices &devices, std::shared_ptr<File> &out) {
  auto parsed = parse_path(memory.blob);
  std::string device = std::to_string(memory.device);
  Status status = INVALID_PARAMETER;
  if (!parsed && memory.device > INT_MAX)
    return refuse(status, "device " + device + " is no descriptor");
  if (parsed && !devices.add(memory.device))
    return refuse(status, parsed->path + ": another file is registered as device " + device +
                              " (hint: give each path a device of its own)");
  int descriptor = parsed ? open_path(*parsed, status) : static_cast<int>(memory.device);
  int flags =
      descriptor < 0 ? -1 : flags_of(descriptor, parsed ? parsed->path : "descriptor " + device);
  if (flags >= 0) {
    out.reset(new File(descriptor, flags, parsed ? parsed->path : "", parsed ? &devices : nullptr,
                       memory.device));
    return SUCCESS;
  }
  if (parsed)
    devices.drop(memory.device);
  if (parsed && descriptor >= 0)
    close(descriptor);
  return status;
}

void File::end() {
  if (!uses_.end() || !devices_)
    return;
  close(descriptor_);
  devices_->drop(device_);
}

Status File::allows(Operation operation) const {
  int access = flags_ & O_ACCMODE;
  const char *why = nullptr;
  if (operation == READ && access == O_WRONLY)
    why = "cannot read from ";
  else if (operation == WRITE && access == O_RDONLY)
    why = "cannot write to ";
  if (why) {
    say(why + name() + ": the descriptor was not opened for that");
    return NOT_ALLOWED;
  }
  if (operation == WRITE && (flags_ & O_APPEND)) {
    say("cannot write to " + name() + ": the descriptor has O_APPEND, which ignores offsets");
    return NOT_ALLOWED;
  }
  return SUCCESS;
}

} // namespace haul_nixl
