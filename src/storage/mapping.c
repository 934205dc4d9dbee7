/* SPDX-License-Identifier: MIT */
#include "storage/mapping.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "core/spin.h"

#define SWEEP_AGE_S 60

/* The signal handler takes it, too. Its holder accesses no watched memory, so a thread that faults
 * never holds it. */
static struct spin watches_lock;
static struct list watches = LIST_INIT(watches); /* `watches_lock` */

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static unsigned starts;
static struct sigaction before;
static uintptr_t page;

static void lock_watches(void) {
  while (!spin_try(&watches_lock))
    sched_yield();
}

void sigbus_watch(struct sigbus_watch *watch, void *start, size_t length) {
  watch->start = start;
  watch->length = length;
  atomic_store(&watch->lost, false);
  lock_watches();
  list_append(&watches, &watch->link);
  spin_unlock(&watches_lock);
}

void sigbus_unwatch(struct sigbus_watch *watch) {
  lock_watches();
  list_remove(&watch->link);
  spin_unlock(&watches_lock);
}

/* Maps an empty page over the lost one; the access is then repeated. False: not watched. */
static bool replace_page(uintptr_t address) {
  bool replaced = false;
  lock_watches();
  list_each(item, &watches) {
    struct sigbus_watch *watch = list_entry(item, struct sigbus_watch, link);
    if (address - (uintptr_t)watch->start >= watch->length)
      continue;
    atomic_store(&watch->lost, true); /* before a thread can read the empty page */
    replaced = mmap((void *)(address & ~(page - 1)), page, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    break;
  }
  spin_unlock(&watches_lock);
  return replaced;
}

/* With the default action, the repeated access ends the process. */
static void pass_on(int signal, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(signal, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    before.sa_handler(signal);
  else
    sigaction(SIGBUS, &before, NULL);
}

static void on_sigbus(int signal, siginfo_t *info, void *context) {
  int saved = errno;
  bool lost_page = info->si_code == BUS_ADRERR || info->si_code == BUS_MCEERR_AR;
  if (!lost_page || !replace_page((uintptr_t)info->si_addr))
    pass_on(signal, info, context);
  errno = saved;
}

int sigbus_start(void) {
  struct sigaction ours = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  int code = 0;
  pthread_mutex_lock(&start_lock);
  page = (uintptr_t)sysconf(_SC_PAGESIZE);
  if (starts == 0 && sigaction(SIGBUS, &ours, &before) != 0)
    code = -errno;
  starts += code == 0;
  pthread_mutex_unlock(&start_lock);
  return code;
}

void sigbus_stop(void) {
  pthread_mutex_lock(&start_lock);
  if (--starts == 0)
    sigaction(SIGBUS, &before, NULL);
  pthread_mutex_unlock(&start_lock);
}

pid_t client_process(pid_t thread) {
  char path[48], text[512];
  snprintf(path, sizeof path, "/proc/%d/status", thread);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return thread;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  text[got > 0 ? got : 0] = '\0';
  const char *line = strstr(text, "\nTgid:");
  long process = line ? strtol(line + 6, NULL, 10) : 0;
  return process > 0 ? (pid_t)process : thread;
}

/* /dev/shm below the root folder of a thread, or below the daemon's own (0, or where /proc
 * refuses). No symlink leads out of that root. Only a tmpfs is accepted: the client may own any
 * other file system and let the daemon hang in it. */
static int open_shm(pid_t thread) {
  struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};
  struct statfs info;
  char path[48];
  snprintf(path, sizeof path, "/proc/%d/root", thread);
  int root = thread > 0 ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
  if (root < 0)
    root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0)
    return -errno;
  int fd = (int)syscall(SYS_openat2, root, SHM_DIR, &how, sizeof how);
  int code = fd < 0 ? -errno : 0;
  close(root);
  if (code == 0 && fstatfs(fd, &info) != 0)
    code = -errno;
  else if (code == 0 && info.f_type != TMPFS_MAGIC)
    code = -EPERM;
  if (code && fd >= 0)
    close(fd);
  return code ? code : fd;
}

/* The name of a path in /dev/shm; NULL: anything else. */
static const char *name_in_shm(const char *path) {
  const char *name = path + strlen(SHM_DIR);
  if (strncmp(path, SHM_DIR, strlen(SHM_DIR)) != 0)
    return NULL;
  name += strspn(name, "/"); /* 3FS's clients write one too many */
  bool special = !*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
  return special || strchr(name, '/') ? NULL : name;
}

static int map_file(int fd, uid_t uid, struct client_memory *memory) {
  struct stat stat;
  if (fstat(fd, &stat) != 0)
    return -errno;
  if (!S_ISREG(stat.st_mode) || (stat.st_uid != uid && uid != 0))
    return -EPERM;
  if (stat.st_size <= 0)
    return -EINVAL;
  memory->length = (size_t)stat.st_size;
  memory->device = stat.st_dev;
  memory->inode = stat.st_ino;
  memory->memory = mmap(NULL, memory->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory->memory == MAP_FAILED ? -errno : 0;
}

int client_memory_map(uid_t uid, pid_t thread, const char *path, struct client_memory *memory) {
  const char *name = name_in_shm(path);
  if (!name)
    return -EINVAL;
  /* A client may mount another file system's file over a name of its own /dev/shm. */
  struct open_how how = {.flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
                         .resolve = RESOLVE_NO_XDEV};
  int folder = open_shm(thread);
  if (folder < 0)
    return folder;
  int fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
  int code = fd < 0 ? -errno : map_file(fd, uid, memory);
  if (fd >= 0)
    close(fd);
  close(folder);
  return code == -ELOOP || code == -EACCES || code == -EXDEV ? -EPERM : code;
}

static bool is_of_client(const char *name) {
  return name && strncmp(name, SHM_PREFIX, strlen(SHM_PREFIX)) == 0;
}

static void unlink_inode(int folder, const char *name, dev_t device, ino_t inode) {
  struct stat stat;
  if (fstatat(folder, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && stat.st_dev == device &&
      stat.st_ino == inode)
    unlinkat(folder, name, 0);
}

void client_memory_unlink(const char *path, dev_t device, ino_t inode) {
  const char *name = name_in_shm(path);
  int folder = is_of_client(name) ? open_shm(0) : -1;
  if (folder < 0)
    return;
  unlink_inode(folder, name, device, inode);
  close(folder);
}

/* The kernel grants a lease for writing to the only one that has a file open or mapped, and its
 * owner or root alone. Another process that opens the file meanwhile waits for the end of the
 * lease, and the kernel sends the signal, by default SIGIO, which would end this process. */
static bool is_unused(int fd) {
  return fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
}

static void sweep_file(int folder, const char *name, time_t young) {
  struct stat stat;
  int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0)
    return;
  if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_mtime < young && is_unused(fd))
    unlink_inode(folder, name, stat.st_dev, stat.st_ino);
  close(fd);
}

void client_memory_sweep(void) {
  time_t young = time(NULL) - SWEEP_AGE_S;
  int fd = open_shm(0);
  int listed = fd < 0 ? -1 : openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = listed < 0 ? NULL : fdopendir(listed);
  if (folder) {
    for (struct dirent *entry; (entry = readdir(folder));)
      if (is_of_client(entry->d_name))
        sweep_file(fd, entry->d_name, young);
    closedir(folder);
  }
  if (fd >= 0)
    close(fd);
}
