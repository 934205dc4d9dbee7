/* SPDX-License-Identifier: MIT
 *
 * haul mount: a tree of files as a file system, by the module libhaul-storage.so. Unless it is to
 * stay in the foreground a child does the work, and the command ends once the mount answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <haul/storage.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
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

#define PATIENCE_MS 60000 /* until the mount answers */
#define WORKERS_MAX 64

struct values {
  const char *name;
  unsigned workers, ready_fd;
  int64_t timeout;
  int foreground, read_only, allow_other;
  struct log_values log;
};

static const struct option_spec options[] = {
    {"foreground", OPTION_FLAG, offsetof(struct values, foreground), NULL,
     "stay, and log to standard error (default: go to the background, log to syslog)"},
    {"read-only", OPTION_FLAG, offsetof(struct values, read_only), NULL,
     "let nobody change anything"},
    {"name", OPTION_TEXT, offsetof(struct values, name), "NAME",
     "what programs are told as the file system's name (default: SOURCE's last part)"},
    {"workers", OPTION_COUNT, offsetof(struct values, workers), "N",
     "threads that serve rings (default: as many as there are processors, at most 4)"},
    {"allow-other", OPTION_FLAG, offsetof(struct values, allow_other), NULL,
     "let other users in, each with their own rights"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "wait for another machine's answer no longer than this (default: 30)"},
    {"log", OPTION_TEXT, offsetof(struct values, log.level), "LEVEL", LOG_LEVEL_HELP},
    {"log-format", OPTION_TEXT, offsetof(struct values, log.format), "FORMAT", LOG_FORMAT_HELP},
    {"ready-fd", OPTION_COUNT, offsetof(struct values, ready_fd), "N",
     "write MOUNTPOINT to this descriptor once it answers, and close it"},
    {0},
};

struct mounting {
  const struct values *values;
  const char *target;
  int (*mount)(const struct haul_storage_mount *mount, struct haul_storage_error *error);
  struct target remote; /* without a name: a folder of this host */
  int parent;           /* a pipe to the command that waits; -1 */
};

/* For good: what ends the mount is read from the descriptor, and the module's threads inherit the
 * mask. */
static int catch_signals(int *signals) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  sigprocmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  *signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  return *signals < 0 ? fail_system(errno, "cannot watch for signals") : EXIT_DONE;
}

static void leave_terminal(void) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; null >= 0 && fd <= 2; fd++)
    dup2(null, fd);
  if (null > 2)
    close(null);
  if (chdir("/"))
    syslog(LOG_WARNING, "cannot leave the working folder: %s", strerror(errno));
}

static void log_line(void *user, int priority, const char *text) {
  (void)user;
  log_tell(priority, "mount", text);
}

static void is_ready(void *user) {
  struct mounting *mounting = user;
  unsigned descriptor = mounting->values->ready_fd;
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
    syslog(LOG_WARNING, "nobody waits for the mount any more");
}

static int mount_here(struct mounting *mounting, const char *source) {
  const struct values *values = mounting->values;
  const struct target *remote = &mounting->remote;
  struct haul_storage_error error;
  int signals = -1;
  void *symbol;
  int status = module_symbol(&module_storage, HAUL_STORAGE_MOUNT_SYMBOL, "mount", &symbol);
  if (status == EXIT_DONE)
    status = catch_signals(&signals);
  if (status != EXIT_DONE)
    return status;
  /* POSIX has addresses of functions and data of one size; C has no conversion. */
  memcpy(&mounting->mount, &symbol, sizeof symbol);
  const struct haul_storage_mount mount = {
      .size = sizeof mount,
      .source = source,
      .address = remote->name ? remote->address : NULL,
      .export = remote->name,
      .timeout_ns = values->timeout,
      .target = mounting->target,
      .name = values->name,
      .workers = values->workers,
      .read_only = values->read_only,
      .allow_other = values->allow_other,
      .stop = signals,
      .ready = is_ready,
      .log = log_line,
      .user = mounting,
  };
  if (mounting->mount(&mount, &error) == 0)
    return EXIT_DONE;
  if (mounting->parent >= 0) /* standard error may be gone */
    syslog(LOG_ERR, "%s", error.text);
  return fail_because(error.hint, "%s", error.text);
}

/* The child has mounted, or has said on standard error why not. */
static int wait_for(pid_t child, int pipe) {
  struct pollfd told = {pipe, POLLIN, 0};
  char byte;
  int status;
  if (poll(&told, 1, PATIENCE_MS) == 0) {
    kill(child, SIGTERM);
    return fail_because("look whether its disk or server answers",
                        "it is not mounted after %d seconds: SOURCE does not answer",
                        PATIENCE_MS / 1000);
  }
  if (read(pipe, &byte, 1) == 1)
    return EXIT_DONE;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      return fail_system(errno, "cannot wait for the process that mounts");
  if (WIFEXITED(status))
    return WEXITSTATUS(status);
  return fail_because(NULL, "the process that mounts was ended by signal %d", WTERMSIG(status));
}

static int mount_behind(struct mounting *mounting, const char *source) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC))
    return fail_system(errno, "cannot make a pipe");
  pid_t child = fork();
  if (child < 0)
    return fail_system(errno, "cannot start a process");
  if (child > 0) {
    close(ends[1]);
    return wait_for(child, ends[0]);
  }
  close(ends[0]);
  setsid();
  openlog("haul-mount", LOG_PID, LOG_DAEMON);
  mounting->parent = ends[1];
  log_to_syslog();
  return mount_here(mounting, source);
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {0};
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){2, 2}, &operands, &status))
    return status;
  if (values.ready_fd && fcntl((int)values.ready_fd, F_GETFD) < 0)
    return options_wrong(self, "--ready-fd %u: no such descriptor is open", values.ready_fd);
  if (values.name && (!*values.name || strlen(values.name) >= HAUL_STORAGE_NAME_ROOM))
    return options_wrong(self, "invalid --name '%s': expected 1 to %d bytes", values.name,
                         HAUL_STORAGE_NAME_ROOM - 1);
  if (values.workers > WORKERS_MAX)
    return options_wrong(self, "--workers %u is more than %d", values.workers, WORKERS_MAX);
  status = log_begin(self, &values.log);
  if (status)
    return status;
  struct mounting mounting = {.values = &values, .target = operands[1], .parent = -1};
  if (strstr(operands[0], "://") &&
      (!target_parse(operands[0], &mounting.remote) || strchr(mounting.remote.name, '/')))
    return options_wrong(self, "'%s' is not haul://HOST[:PORT]/EXPORT", operands[0]);
  return values.foreground ? mount_here(&mounting, operands[0])
                           : mount_behind(&mounting, operands[0]);
}

const struct command mount_command = {
    .name = "mount",
    .summary = "Show a folder, or another machine's, as a file system",
    .usage = "SOURCE MOUNTPOINT [OPTIONS]",
    .about =
        "Programs that speak USRBIO, 3FS's interface, use the files under MOUNTPOINT, which is an\n"
        "empty folder; all others use them as any files. SOURCE is a folder of this host,\n"
        "or a tree that `haul serve --export` exports elsewhere: haul://HOST[:PORT]/EXPORT,\n"
        "unix:///PATH/EXPORT or unix://@NAME/EXPORT. The\n"
        "command ends once MOUNTPOINT answers, and a process stays in the background until\n"
        "`fusermount3 -u MOUNTPOINT` (for root also umount), SIGTERM or SIGINT.",
    .options = options,
    .examples = "  haul mount /data/weights /mnt/weights\n"
                "  haul mount /data /mnt/data --read-only --allow-other --name data\n"
                "  haul mount haul://10.0.0.2/weights /mnt/weights\n"
                "  fusermount3 -u /mnt/weights\n",
    .run = run,
};
