/* SPDX-License-Identifier: MIT */
#include "mounted.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"

#define ARGUMENTS 16

static bool served;

void mounted_use_server(void) {
  served = true;
}

static void skip_program(const char *why) {
  printf("skipped: %s\n", why);
  exit(77);
}

static bool may_mount(void) {
  pid_t child = fork();
  int status;
  if (child == 0)
    _exit(unshare(CLONE_NEWNS) ? 1 : 0);
  return waitpid(child, &status, 0) == child && status == 0;
}

static bool has_io_uring(void) {
  struct io_uring uring;
  if (io_uring_queue_init(2, &uring, 0) != 0)
    return false;
  io_uring_queue_exit(&uring);
  return true;
}

void mounted_need_fuse(void) {
  if (!getenv("HAUL"))
    skip_program("HAUL is to be the path of the command");
  if (access("/dev/fuse", R_OK | W_OK))
    skip_program("there is no /dev/fuse that this user may use");
  if (geteuid() == 0 && !may_mount())
    skip_program("root may not mount here (CAP_SYS_ADMIN)");
  if (geteuid() != 0 && access("/usr/bin/fusermount3", X_OK) && access("/bin/fusermount3", X_OK))
    skip_program("users who are not root need fusermount3: sudo apt-get install fuse3");
  if (!has_io_uring())
    skip_program("io_uring is not allowed here");
}

void mounted_need_root(void) {
  if (geteuid() != 0)
    skip_program("several users are there for root alone");
  if (!folder_is_for_others())
    skip_program("other users may not pass the root folder here");
}

void mounted_pause(int milliseconds) {
  nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
}

static void unmount_lazily(const char *point) {
  pid_t child = fork();
  if (child == 0) {
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDERR_FILENO);
    if (geteuid() == 0)
      _exit(umount2(point, MNT_DETACH) ? 1 : 0);
    execlp("fusermount3", "fusermount3", "-u", "-q", "-z", point, (char *)NULL);
    _exit(127);
  }
  waitpid(child, NULL, 0);
}

/* Finds the last mount below a folder; false: there is none. */
static bool find_beneath(const char *folder, char place[PATH_MAX]) {
  char line[8192], one[PATH_MAX];
  size_t length = strlen(folder);
  bool found = false;
  FILE *mounts = fopen("/proc/self/mountinfo", "re");
  if (!mounts)
    abort();
  while (fgets(line, sizeof line, mounts)) {
    if (sscanf(line, "%*s %*s %*s %*s %4095s", one) != 1)
      continue;
    if (strncmp(one, folder, length) == 0 && one[length] == '/') {
      memcpy(place, one, PATH_MAX);
      found = true;
    }
  }
  fclose(mounts);
  return found;
}

static void unmount_all(const struct mounted *mounted) {
  char place[PATH_MAX];
  for (int i = 0; i < 100 && find_beneath(mounted->root, place); i++)
    unmount_lazily(place);
}

/* A process that waits until the test closes its end of the pipe. */
static void watch(struct mounted *mounted, int pipe) {
  char byte;
  setsid(); /* signals to the test's process group do not end this */
  signal(SIGTERM, SIG_IGN);
  while (read(pipe, &byte, 1) < 0 && errno == EINTR)
    ;
  unmount_all(mounted);
  folder_remove(mounted->root);
  _exit(0);
}

void mounted_make(struct mounted *mounted) {
  int ends[2];
  *mounted = (struct mounted){.daemon = -1, .server = -1};
  folder_make(mounted->root);
  snprintf(mounted->source, sizeof mounted->source, "%s/source", mounted->root);
  snprintf(mounted->point, sizeof mounted->point, "%s/point", mounted->root);
  snprintf(mounted->log, sizeof mounted->log, "%s/log", mounted->root);
  assert_int_equal(mkdir(mounted->source, 0755), 0);
  assert_int_equal(mkdir(mounted->point, 0755), 0);
  assert_int_equal(chmod(mounted->root, 0755), 0);
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  mounted->guard = fork();
  assert_true(mounted->guard >= 0);
  if (mounted->guard == 0) {
    close(ends[1]);
    watch(mounted, ends[0]);
  }
  close(ends[0]); /* the other end stays open until this process ends */
}

/* Does not return. */
static void run_command(const struct mounted *mounted, const char *const *arguments) {
  const char *command = getenv("HAUL");
  const char *line[ARGUMENTS] = {command, "mount"};
  unsigned count = 2;
  for (; arguments && *arguments && count < ARGUMENTS - 1; arguments++)
    line[count++] = *arguments;
  int log = open(mounted->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  dup2(log, STDERR_FILENO);
  if (command)
    execv(command, (char *const *)(uintptr_t)line);
  _exit(127);
}

static const char **join(const char *const *first, const char *const *then) {
  static const char *line[ARGUMENTS];
  unsigned count = 0;
  for (; *first; first++)
    line[count++] = *first;
  for (; then && *then && count < ARGUMENTS - 1; then++)
    line[count++] = *then;
  line[count] = NULL;
  return line;
}

static const char *read_log(const struct mounted *mounted) {
  static char words[8192];
  FILE *log = fopen(mounted->log, "re");
  if (!log)
    return "";
  words[fread(words, 1, sizeof words - 1, log)] = '\0';
  fclose(log);
  return words;
}

/* Reads the line that a command writes when it is ready; false: it has ended. */
static bool read_ready(int fd, char *line, size_t size) {
  struct pollfd ready = {fd, POLLIN, 0};
  assert_int_equal(poll(&ready, 1, 30000), 1);
  ssize_t length = read(fd, line, size - 1);
  close(fd);
  line[length > 0 ? length : 0] = '\0';
  return length > 0;
}

static void run_server(const struct mounted *mounted, const char *listen, int ready) {
  char number[16], export[128];
  const char *command = getenv("HAUL");
  snprintf(number, sizeof number, "%d", ready);
  snprintf(export, sizeof export, "tree=%s:rw", mounted->source);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
  if (command)
    execl(command, "haul", "serve", "--listen", listen, "--export", export, "--ready-fd", number,
          (char *)NULL);
  _exit(127);
}

static char server_address[160];

static void start_server(struct mounted *mounted, const char *listen) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  mounted->server = fork();
  assert_true(mounted->server >= 0);
  if (mounted->server == 0)
    run_server(mounted, listen, ends[1]);
  close(ends[1]);
  assert_true(read_ready(ends[0], server_address, sizeof server_address));
  server_address[strcspn(server_address, "\n")] = '\0';
}

void mounted_restart_server(struct mounted *mounted) {
  char same[sizeof server_address];
  snprintf(same, sizeof same, "%s", server_address);
  kill(mounted->server, SIGKILL);
  waitpid(mounted->server, NULL, 0);
  start_server(mounted, same);
}

/* The source to mount. */
static const char *source_of(struct mounted *mounted) {
  static char source[256];
  if (!served)
    return mounted->source;
  if (mounted->server < 0)
    start_server(mounted, "tcp://127.0.0.1:0");
  snprintf(source, sizeof source, "haul://%s/tree", server_address + strlen("tcp://"));
  return source;
}

void mounted_start(struct mounted *mounted, const char *const *options) {
  int ends[2];
  char number[16], line[PATH_MAX];
  const char *source = source_of(mounted);
  assert_int_equal(pipe(ends), 0);
  snprintf(number, sizeof number, "%d", ends[1]);
  const char *const first[] = {source, mounted->point, "--foreground", "--ready-fd", number, NULL};
  mounted->daemon = fork();
  assert_true(mounted->daemon >= 0);
  if (mounted->daemon == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    close(ends[0]);
    run_command(mounted, join(first, options));
  }
  close(ends[1]);
  if (!read_ready(ends[0], line, sizeof line))
    fail_msg("haul mount ended with %d, and said: %s", mounted_wait(mounted), read_log(mounted));
  assert_memory_equal(line, mounted->point, strlen(mounted->point));
}

int mounted_run(struct mounted *mounted, const char *const *arguments) {
  mounted->daemon = fork();
  assert_true(mounted->daemon >= 0);
  if (mounted->daemon == 0)
    run_command(mounted, arguments);
  return mounted_wait(mounted);
}

int mounted_wait(struct mounted *mounted) {
  int status;
  pid_t ended = 0;
  assert_true(eventually((ended = waitpid(mounted->daemon, &status, WNOHANG)) != 0));
  assert_int_equal(ended, mounted->daemon);
  mounted->daemon = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void mounted_end(struct mounted *mounted) {
  int status = 0;
  if (mounted->daemon > 0) {
    kill(mounted->daemon, SIGTERM);
    status = mounted_wait(mounted);
  }
  bool left = mounted_is(mounted);
  if (mounted->server > 0) {
    kill(mounted->server, SIGKILL);
    waitpid(mounted->server, NULL, 0);
  }
  kill(mounted->guard, SIGKILL);
  waitpid(mounted->guard, NULL, 0);
  unmount_all(mounted);
  const char *words = read_log(mounted);
  folder_remove(mounted->root);
  if (status)
    fail_msg("haul mount ended with %d, and said: %s", status, words);
  assert_false(left);
}

int mounted_tear_down(void **state) {
  mounted_end(*state);
  return 0;
}

void mounted_detach(const struct mounted *mounted) {
  unmount_lazily(mounted->point);
}

/* Passed by argv's last entry. */
bool mounted_is(const struct mounted *mounted) {
  char place[PATH_MAX];
  return find_beneath(mounted->root, place) && strcmp(place, mounted->point) == 0;
}

bool mounted_says(const struct mounted *mounted, const char *text) {
  const char *words = read_log(mounted);
  if (strstr(words, text))
    return true;
  print_message("instead of '%s' it says: %s", text, words);
  return false;
}

unsigned mounted_descriptors(const struct mounted *mounted) {
  char path[64];
  unsigned count = 0;
  snprintf(path, sizeof path, "/proc/%d/fd", mounted->daemon);
  DIR *folder = opendir(path);
  assert_non_null(folder);
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

const char *at_source(const struct mounted *mounted, const char *name) {
  return folder_path(mounted->source, name);
}

const char *at_point(const struct mounted *mounted, const char *name) {
  return folder_path(mounted->point, name);
}
