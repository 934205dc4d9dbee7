/* SPDX-License-Identifier: MIT
 * haul mount: a tree of files as a file system, by the module libhaul-storage.so. Without
 * --foreground a child process mounts, and the command ends once the mount responds. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <haul/storage.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/log.h"
#include "common/module.h"
#include "common/options.h"
#include "common/process.h"
#include "common/session.h"

#define READY_WAIT_MS 60000
#define WORKERS_MAX   64

struct values {
  const char *name;
  unsigned workers, ready_fd;
  int64_t timeout;
  int foreground, read_only, allow_other;
  struct log_values log;
};

static struct values given;

static const struct option_spec options[] = {
    {"foreground", OPTION_FLAG, offsetof(struct values, foreground), NULL,
     "stay in the foreground and log to standard error (default: background, syslog)"},
    {"read-only", OPTION_FLAG, offsetof(struct values, read_only), NULL, "reject all changes"},
    {"name", OPTION_TEXT, offsetof(struct values, name), "NAME",
     "set the name of the file system for programs (default: last part of SOURCE)"},
    {"workers", OPTION_COUNT, offsetof(struct values, workers), "N",
     "serve rings by N threads (default: number of processors, at most 4)"},
    {"allow-other", OPTION_FLAG, offsetof(struct values, allow_other), NULL,
     "allow other users, each with their own rights"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "limit the wait for a response of another machine (default: 30)"},
    {"log", OPTION_TEXT, offsetof(struct values, log.level), "LEVEL", LOG_LEVEL_HELP},
    {"log-format", OPTION_TEXT, offsetof(struct values, log.format), "FORMAT", LOG_FORMAT_HELP},
    {"ready-fd", OPTION_COUNT, offsetof(struct values, ready_fd), "N",
     "write MOUNTPOINT to this descriptor once the mount responds, and close it"},
    {0},
};

struct mounting {
  const char *target;
  int (*mount)(const struct haul_storage_mount *mount, struct haul_storage_error *error);
  struct target remote; /* name NULL: a folder of this host */
  int parent;           /* pipe to the waiting command; -1: none */
};

static void leave_terminal(void) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; null >= 0 && fd <= 2; fd++)
    dup2(null, fd);
  if (null > 2)
    close(null);
  if (chdir("/"))
    syslog(LOG_WARNING, "cannot leave the working folder: %s", strerror(errno));
}

static void log_mount(void *user, int priority, const char *text) {
  (void)user;
  log_line(priority, "mount", text);
}

static void is_ready(void *user) {
  struct mounting *mounting = user;
  unsigned descriptor = given.ready_fd;
  service_notify("READY=1");
  if (descriptor) {
    if (dprintf((int)descriptor, "%s\n", mounting->target) < 0)
      fail_system(errno, "cannot write to descriptor %u", descriptor);
    close((int)descriptor);
  }
  if (mounting->parent < 0)
    return;
  leave_terminal();
  if (write(mounting->parent, "", 1) < 0)
    syslog(LOG_WARNING, "the waiting command has ended");
}

static int mount_here(struct mounting *mounting, const char *source) {
  const struct target *remote = &mounting->remote;
  struct haul_storage_error error;
  void *symbol;
  int status = module_symbol(&module_storage, HAUL_STORAGE_MOUNT_SYMBOL, "mount", &symbol);
  if (status != EXIT_DONE)
    return status;
  int signals = signals_open();
  if (signals < 0)
    return EXIT_FAILED;
  /* C has no conversion from a data pointer; POSIX guarantees one size. */
  memcpy(&mounting->mount, &symbol, sizeof symbol);
  const struct haul_storage_mount mount = {
      .size = sizeof mount,
      .source = source,
      .address = remote->name ? remote->address : NULL,
      .export = remote->name,
      .timeout_ns = given.timeout,
      .target = mounting->target,
      .name = given.name,
      .workers = given.workers,
      .read_only = given.read_only,
      .allow_other = given.allow_other,
      .stop = signals,
      .ready = is_ready,
      .log = log_mount,
      .user = mounting,
  };
  if (mounting->mount(&mount, &error) == 0)
    return EXIT_DONE;
  if (mounting->parent >= 0) /* standard error may be closed */
    syslog(LOG_ERR, "%s", error.text);
  return fail_because(error.hint, "%s", error.text);
}

/* Waits for the mount of the child, which prints its own errors. */
static int wait_for_mount(pid_t child, int pipe) {
  struct pollfd ready = {pipe, POLLIN, 0};
  char byte;
  int status;
  if (poll(&ready, 1, READY_WAIT_MS) == 0) {
    kill(child, SIGTERM);
    return fail_because("check the disk or the server of SOURCE",
                        "cannot mount: timed out after %d seconds, SOURCE does not respond",
                        READY_WAIT_MS / 1000);
  }
  if (read(pipe, &byte, 1) == 1)
    return EXIT_DONE;
  if (TEMP_FAILURE_RETRY(waitpid(child, &status, 0)) < 0)
    return fail_system(errno, "cannot wait for the mount process");
  if (WIFEXITED(status))
    return WEXITSTATUS(status);
  return fail_because(NULL, "the mount process ended by signal %d", WTERMSIG(status));
}

static int mount_in_background(struct mounting *mounting, const char *source) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC))
    return fail_system(errno, "cannot make a pipe");
  pid_t child = fork();
  if (child < 0)
    return fail_system(errno, "cannot start a process");
  if (child > 0) {
    close(ends[1]);
    return wait_for_mount(child, ends[0]);
  }
  close(ends[0]);
  setsid();
  openlog("haul-mount", LOG_PID, LOG_DAEMON);
  mounting->parent = ends[1];
  log_to_syslog();
  return mount_here(mounting, source);
}

/* A mount lives long, and would keep pipes and locks of the program that started it. */
static void close_inherited(void) {
  DIR *open = opendir("/proc/self/fd");
  for (const struct dirent *entry; open && (entry = readdir(open));) {
    int fd = atoi(entry->d_name);
    if (fd > STDERR_FILENO && fd != (int)given.ready_fd && fd != dirfd(open))
      close(fd);
  }
  if (open)
    closedir(open);
}

static int run_mount(const struct command *self, char **operands) {
  close_inherited();
  if (given.ready_fd && fcntl((int)given.ready_fd, F_GETFD) < 0)
    return options_wrong(self, "invalid --ready-fd %u: the descriptor is not open", given.ready_fd);
  if (given.name && (!*given.name || strlen(given.name) >= HAUL_STORAGE_NAME_ROOM))
    return options_wrong(self, "invalid --name '%s': expected 1 to %d bytes", given.name,
                         HAUL_STORAGE_NAME_ROOM - 1);
  if (given.workers > WORKERS_MAX)
    return options_wrong(self, "invalid --workers %u: expected at most %d", given.workers,
                         WORKERS_MAX);
  int status = log_begin(self, &given.log);
  if (status)
    return status;
  struct mounting mounting = {.target = operands[1], .parent = -1};
  if (strstr(operands[0], "://") &&
      (!target_parse(operands[0], &mounting.remote) || strchr(mounting.remote.name, '/')))
    return options_wrong(self, "invalid source '%s': expected haul://HOST[:PORT]/EXPORT",
                         operands[0]);
  return given.foreground ? mount_here(&mounting, operands[0])
                          : mount_in_background(&mounting, operands[0]);
}

const struct command mount_command = {
    .name = "mount",
    .summary = "Mount a folder, or one of another machine, as a file system",
    .usage = "SOURCE MOUNTPOINT [OPTIONS]",
    .about =
        "Mounts SOURCE at MOUNTPOINT, an empty folder, for all programs and for USRBIO, the\n"
        "interface of 3FS. SOURCE is a folder of this host, or a tree that `haul serve --export`\n"
        "exports: haul://HOST[:PORT]/EXPORT, unix:///PATH/EXPORT or unix://@NAME/EXPORT. The\n"
        "command ends once the mount responds; a process stays in the background until\n"
        "`fusermount3 -u MOUNTPOINT` (for root also umount), SIGTERM or SIGINT.",
    .options = options,
    .examples = "  haul mount /data/weights /mnt/weights\n"
                "  haul mount /data /mnt/data --read-only --allow-other --name data\n"
                "  haul mount haul://10.0.0.2/weights /mnt/weights\n"
                "  fusermount3 -u /mnt/weights\n",
    .values = &given,
    .least = 2,
    .most = 2,
    .run = run_mount,
};
