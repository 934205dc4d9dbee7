/* SPDX-License-Identifier: MIT
 * Memory files, the few texts of /proc and /sys that the library reads, process descriptors, and
 * calls with one answer. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "calls.h"
#include "cards.h"
#include "directory/module.h"
#include "load.h"
#include "sim.h"

static int fail(int error) {
  errno = error;
  return -1;
}

/* A file in /store of a host. Nobody else has its real memfd. */
struct host_file {
  struct list link; /* in host->files; empty: it was removed */
  char path[64];
  int real;
  const struct file *locked; /* by flock; NULL: it is not */
};

/* A real memfd, so that mappings in several processes share pages. */
struct memory_file {
  struct file file;
  int real;
  struct host_file *named; /* NULL: it has no name */
};

static int install_memory(int real) {
  if (real < 0)
    return -1;
  struct memory_file *memory = calloc(1, sizeof *memory);
  file_init(&memory->file, FILE_MEMORY);
  memory->real = real;
  return file_install(&memory->file);
}

static struct host_file *find_named(const struct host *host, const char *path) {
  list_each(item, &host->files) {
    struct host_file *named = list_entry(item, struct host_file, link);
    if (strcmp(named->path, path) == 0)
      return named;
  }
  return NULL;
}

int host_file(const struct host *host, const char *path) {
  const struct host_file *named = find_named(host, path);
  return named ? named->real : -1;
}

/* Processes that have it open keep it. */
void host_lose_file(struct host *host, const char *path) {
  struct host_file *named = find_named(host, path);
  if (named)
    list_remove(&named->link);
}

static bool is_of_host(const char *path) {
  return strncmp(path, "/store/", 7) == 0;
}

static struct host_file *named_new(struct host *host, const char *path) {
  struct host_file *named = calloc(1, sizeof *named);
  snprintf(named->path, sizeof named->path, "%s", path);
  named->real = memfd_create(path, MFD_CLOEXEC);
  list_append(&host->files, &named->link);
  return named;
}

static int open_named(const char *path, int flags) {
  struct host *host = process_current()->host;
  struct host_file *named = find_named(host, path);
  if (named ? flags & O_EXCL : !(flags & O_CREAT))
    return fail(named ? EEXIST : ENOENT);
  struct memory_file *memory = calloc(1, sizeof *memory);
  file_init(&memory->file, FILE_MEMORY);
  memory->named = named ? named : named_new(host, path);
  memory->real = memory->named->real;
  return file_install(&memory->file);
}

int world_memfd_create(const char *name, unsigned flags) {
  sim_point(3 * US);
  return install_memory(memfd_create(name, flags));
}

void memfile_free(struct file *file) {
  const struct memory_file *memory = (struct memory_file *)file;
  if (!memory->named)
    close(memory->real);
  else if (memory->named->locked == file)
    memory->named->locked = NULL;
  free(file);
}

int memfile_real(const struct file *file) {
  return file->kind == FILE_MEMORY ? ((const struct memory_file *)file)->real : -1;
}

static int text_stat(const struct file *file, struct stat *status);

/* The real descriptor behind one of the world; -1 and EINVAL: no memory. */
static int real_of(int descriptor) {
  struct file *file = file_of(descriptor);
  sim_point(500);
  if (!file)
    return -1;
  int real = memfile_real(file);
  return real < 0 ? fail(EINVAL) : real;
}

int world_ftruncate(int descriptor, off_t length) {
  int real = real_of(descriptor);
  return real < 0 ? -1 : ftruncate(real, length);
}

int world_fchmod(int descriptor, mode_t mode) {
  int real = real_of(descriptor);
  return real < 0 ? -1 : fchmod(real, mode);
}

/* Files belong to the world's only user, who alone may read them. */
static int named_stat(const struct host_file *named, struct stat *status) {
  int code = fstat(named->real, status);
  status->st_mode = S_IFREG | 0600;
  status->st_uid = world_geteuid();
  return code;
}

int world_fstat(int descriptor, struct stat *status) {
  struct file *file = file_of(descriptor);
  if (file && file->kind == FILE_TEXT)
    return text_stat(file, status);
  int real = real_of(descriptor);
  if (real >= 0 && ((struct memory_file *)file)->named)
    return named_stat(((struct memory_file *)file)->named, status);
  return real < 0 ? -1 : fstat(real, status);
}

int world_lstat(const char *path, struct stat *status) {
  const struct host_file *named = find_named(process_current()->host, path);
  sim_point(1 * US);
  return named ? named_stat(named, status) : fail(ENOENT);
}

int world_flock(int descriptor, int operation) {
  struct file *file = file_of(descriptor);
  sim_point(500);
  if (!file || memfile_real(file) < 0 || !((struct memory_file *)file)->named)
    return fail(EBADF);
  struct host_file *named = ((struct memory_file *)file)->named;
  if (operation != (LOCK_EX | LOCK_NB))
    sim_fail("simulator", "flock %d is not modelled", operation);
  if (named->locked && named->locked != file)
    return fail(EWOULDBLOCK);
  named->locked = file;
  return 0;
}

int world_fstatfs(int descriptor, struct statfs *status) {
  int real = real_of(descriptor);
  return real < 0 ? -1 : fstatfs(real, status);
}

int world_fallocate(int descriptor, int mode, off_t offset, off_t length) {
  int real = real_of(descriptor);
  return real < 0 ? -1 : fallocate(real, mode, offset, length);
}

int world_posix_fallocate(int descriptor, off_t offset, off_t length) {
  int real = real_of(descriptor);
  return real < 0 ? errno : posix_fallocate(real, offset, length);
}

ssize_t world_pread(int descriptor, void *bytes, size_t length, off_t offset) {
  int real = real_of(descriptor);
  return real < 0 ? -1 : pread(real, bytes, length, offset);
}

ssize_t world_pwrite(int descriptor, const void *bytes, size_t length, off_t offset) {
  int real = real_of(descriptor);
  return real < 0 ? -1 : pwrite(real, bytes, length, offset);
}

int world_fsync(int descriptor) {
  return real_of(descriptor) < 0 ? -1 : 0;
}

int world_fcntl(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  int argument = va_arg(arguments, int);
  va_end(arguments);
  struct file *file = file_of(descriptor);
  sim_point(300);
  if (!file)
    return -1;
  if (command == F_DUPFD_CLOEXEC) {
    file->references++;
    return file_install(file);
  }
  if (command == F_GET_SEALS || command == F_ADD_SEALS) {
    int real = real_of(descriptor);
    return real < 0 ? -1 : fcntl(real, command, argument);
  }
  if (command == F_SETPIPE_SZ)
    return fcntl(pipe_real(file), F_SETPIPE_SZ, argument);
  return command == F_SETFL ? 0 : fail(EINVAL);
}

#define TEXT 256

struct text_file {
  struct file file;
  size_t at;
  char text[TEXT];
};

static bool text_of(const char *path, char *text, size_t size) {
  if (strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) {
    const uint8_t *id = process_current()->host->boot_id;
    size_t length = 0;
    for (size_t i = 0; i < 16; i++)
      length += (size_t)snprintf(text + length, size - length, "%02x", id[i]);
    return true;
  }
  if (load_key_text(path, text, size) || verbs_text(path, text, size))
    return true;
  if (strcmp(path, "/proc/sys/kernel/yama/ptrace_scope") != 0 &&
      strcmp(path, "/sys/devices/system/node/online") != 0)
    return false;
  snprintf(text, size, "0\n");
  return true;
}

int world_open(const char *path, int flags, ...) {
  char text[TEXT] = "", real[40];
  int descriptor;
  sim_point(3 * US);
  if (sscanf(path, "/proc/self/fd/%d", &descriptor) == 1) {
    int behind = real_of(descriptor);
    if (behind < 0)
      return fail(ENOENT);
    snprintf(real, sizeof real, "/proc/self/fd/%d", behind);
    return install_memory(open(real, flags));
  }
  if (is_of_host(path))
    return open_named(path, flags);
  if (!text_of(path, text, sizeof text))
    return fail(ENOENT);
  struct text_file *file = calloc(1, sizeof *file);
  file_init(&file->file, FILE_TEXT);
  memcpy(file->text, text, sizeof text);
  return file_install(&file->file);
}

static int text_stat(const struct file *file, struct stat *status) {
  sim_point(500);
  *status = (struct stat){.st_mode = S_IFREG | 0600,
                          .st_uid = world_geteuid(),
                          .st_size = (off_t)strlen(((const struct text_file *)file)->text)};
  return 0;
}

ssize_t text_read(struct file *file, void *bytes, size_t length) {
  struct text_file *text = (struct text_file *)file;
  size_t left = strlen(text->text + text->at);
  if (left > length)
    left = length;
  memcpy(bytes, text->text + text->at, left);
  text->at += left;
  return (ssize_t)left;
}

int world_access(const char *path, int mode) {
  (void)mode;
  return strcmp(path, "/proc/self/fd") == 0 ? 0 : fail(ENOENT);
}

int world_stat(const char *path, struct stat *status) {
  sim_point(1 * US);
  memset(status, 0, sizeof *status);
  if (strcmp(path, "/proc/self/ns/net") == 0) {
    status->st_ino = 1000 + process_current()->host->number;
    return 0;
  }
  if (!socket_name_exists(process_current()->host, path))
    return fail(ENOENT);
  status->st_mode = S_IFSOCK | 0600;
  return 0;
}

int world_unlink(const char *path) {
  sim_point(1 * US);
  if (is_of_host(path) && host_file(process_current()->host, path) < 0)
    return fail(ENOENT);
  if (is_of_host(path)) {
    host_lose_file(process_current()->host, path);
    return 0;
  }
  return socket_name_remove(process_current()->host, path) ? 0 : fail(ENOENT);
}

FILE *world_fopen(const char *path, const char *mode) {
  (void)path, (void)mode;
  errno = ENOENT;
  return NULL;
}

int world_fclose(FILE *file) {
  return fclose(file);
}

char *world_fgets(char *line, int size, FILE *file) {
  return fgets(line, size, file);
}

DIR *world_opendir(const char *path) {
  (void)path;
  errno = ENOENT;
  return NULL;
}

struct dirent *world_readdir(DIR *folder) {
  (void)folder;
  return NULL;
}

int world_closedir(DIR *folder) {
  (void)folder;
  return 0;
}

char *world_realpath(const char *path, char *real) {
  (void)path, (void)real;
  errno = ENOENT;
  return NULL;
}

struct process_file {
  struct file file;
  pid_t pid;
};

int world_pidfd_open(pid_t pid) {
  sim_point(2 * US);
  if (!process_find(pid))
    return fail(ESRCH);
  struct process_file *process = calloc(1, sizeof *process);
  file_init(&process->file, FILE_PROCESS);
  process->pid = pid;
  return file_install(&process->file);
}

int world_pidfd_signal(int descriptor) {
  struct file *file = file_of(descriptor);
  sim_point(300);
  if (!file)
    return -1;
  return process_find(((struct process_file *)file)->pid) ? 0 : fail(ESRCH);
}

pid_t world_getpid(void) {
  return process_current()->pid;
}

uid_t world_geteuid(void) {
  return 1000;
}

ssize_t world_getrandom(void *bytes, size_t length, unsigned flags) {
  (void)flags;
  sim_point(500);
  for (size_t at = 0; at < length;) {
    uint64_t drawn = sim_random();
    size_t part = length - at < sizeof drawn ? length - at : sizeof drawn;
    memcpy((char *)bytes + at, &drawn, part);
    at += part;
  }
  return (ssize_t)length;
}

/* The emulated accelerator's settings. */
char *world_getenv(const char *name) {
  static char text[24];
  uint64_t value;
  if (strcmp(name, "HAUL_SIM_BANDWIDTH") == 0)
    value = plan.device_rate;
  else if (strcmp(name, "HAUL_SIM_LATENCY_NS") == 0)
    value = plan.device_latency;
  else
    return NULL;
  snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  return text;
}

/* A NIC notices within 2 s that its peer is gone, and not within 34 s as by default, so that runs
 * need no longer calm than other faults do. */
char *world_secure_getenv(const char *name) {
  static char timeout[] = "14";
  return strcmp(name, "HAUL_RDMA_TIMEOUT") == 0 ? timeout : NULL;
}

int world_uname(struct utsname *kernel) {
  memset(kernel, 0, sizeof *kernel);
  snprintf(kernel->sysname, sizeof kernel->sysname, "Linux");
  snprintf(kernel->release, sizeof kernel->release, "6.1.0-simulated");
  return 0;
}

int world_gethostname(char *name, size_t size) {
  snprintf(name, size, "host%u", process_current()->host->number);
  return 0;
}

long world_sysconf(int name) {
  return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? 2 : sysconf(name);
}

int world_getrlimit(int resource, struct rlimit *limit) {
  (void)resource;
  *limit = (struct rlimit){65536, 65536};
  return 0;
}

int world_prctl(int option, ...) {
  (void)option;
  return 0;
}

int world_getifaddrs(struct ifaddrs **addresses) {
  return verbs_addresses(addresses) ? 0 : fail(ENOSYS);
}

int world_dl_iterate_phdr(int (*each)(struct dl_phdr_info *, size_t, void *), void *user) {
  (void)each, (void)user;
  return 0;
}

int world_dladdr1(const void *address, Dl_info *info, void **object, int flags) {
  static char name[] = "/lib/libhaul.so.0";
  static struct link_map map = {.l_name = name};
  (void)address, (void)info, (void)flags;
  *object = &map;
  return 1;
}

ssize_t world_readlink(const char *path, char *target, size_t size) {
  (void)path, (void)target, (void)size;
  return fail(ENOSYS);
}

extern const struct directory_module haul_directory_module;
static void *const directory = (void *)(uintptr_t)&haul_directory_module;

/* The directory's module is there, OpenSSL in a run with TLS, libibverbs in one with NICs. */
void *world_dlopen(const char *name, int flags) {
  (void)flags;
  if (strstr(name, DIRECTORY_FILE))
    return directory;
  if (verbs_is(name))
    return verbs_handle();
  if (!plan.tls || !openssl_is(name))
    return NULL;
  sim_point(5 * MS);
  return refuses_memory() || refuses_descriptor() ? NULL : openssl_handle();
}

char *world_dlerror(void) {
  static char text[] = "no such library in the simulator";
  return text;
}

void *world_dlsym(void *library, const char *name) {
  if (library == directory)
    return strcmp(name, "haul_directory_module") == 0 ? directory : NULL;
  if (library == verbs_handle())
    return verbs_symbol(name);
  return library ? openssl_symbol(name) : NULL;
}

int world_dlclose(void *library) {
  (void)library;
  return 0;
}
