/* SPDX-License-Identifier: MIT
 * Lifetime of a mount, and the threads that serve the kernel. */
#include "storage/mount/mount.h"

#include <fcntl.h>
#include <fuse_log.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <syslog.h>
#include <unistd.h>

#include "storage/files.h"
#include "storage/service/remote.h"
#include "storage/util.h"

#define BACKGROUND_REQUESTS 64 /* read-ahead and write-back that the kernel has in flight */

/* Messages. libfuse logs per process. Its messages go to the log of the only mount; before it is
 * mounted, the last message explains a failure. */

static struct {
  _Atomic(const struct haul_storage_mount *) config;
  atomic_bool mounted;
  char last[256]; /* written before there are threads */
} fuse_messages;

static void on_fuse_message(enum fuse_log_level level, const char *format, va_list list) {
  const struct haul_storage_mount *config = atomic_load(&fuse_messages.config);
  char line[256];
  if (level > FUSE_LOG_WARNING || !config)
    return;
  vsnprintf(line, sizeof line, format, list);
  line[strcspn(line, "\n")] = '\0';
  if (atomic_load(&fuse_messages.mounted))
    config->log(config->user, level <= FUSE_LOG_ERR ? LOG_ERR : LOG_WARNING, line);
  else
    snprintf(fuse_messages.last, sizeof fuse_messages.last, "%s", line);
}

static void log_mount(const struct mount *mount, const char *event) {
  char line[2 * PATH_MAX + 64];
  snprintf(line, sizeof line, "%s %s %s", mount->source_path, event, mount->target);
  mount->config->log(mount->config->user, LOG_INFO, line);
}

/* 1 MiB in pages of 4 KiB is 256 segments for the disk: see usrbio-read in docs/measured.md. */
static bool shm_may_have_huge_pages(void) {
  bool may = false;
  FILE *mounts = setmntent("/proc/self/mounts", "re");
  for (struct mntent *entry; mounts && (entry = getmntent(mounts));)
    if (strcmp(entry->mnt_dir, "/dev/shm") == 0)
      may = hasmntopt(entry, "huge") != NULL; /* the last one hides the others */
  if (mounts)
    endmntent(mounts);
  return may;
}

static void log_pages(const struct mount *mount) {
  if (!shm_may_have_huge_pages())
    mount->config->log(mount->config->user, LOG_INFO,
                       "buffers have small pages, which slows down large reads "
                       "(hint: `mount -o remount,huge=advise /dev/shm`)");
}

/* The kernel's first request, which negotiates capabilities. */
static void on_init(void *user, struct fuse_conn_info *connection) {
  struct mount *mount = user;
  const unsigned wanted = FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_POSIX_ACL |
                          FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_ATOMIC_O_TRUNC;
  connection->want |= connection->capable & wanted;
  connection->max_background = BACKGROUND_REQUESTS;
  connection->congestion_threshold = BACKGROUND_REQUESTS * 3 / 4;
  if (eventfd_write(mount->begun, 1) != 0)
    fuse_session_exit(mount->session);
}

static int make_options(const struct mount *mount, struct fuse_args *args) {
  char source[PATH_MAX + 16];
  char *options = NULL;
  snprintf(source, sizeof source, "fsname=%s", mount->source_path);
  int failed = fuse_opt_add_opt(&options, "subtype=hf3fs") ||
               fuse_opt_add_opt(&options, "default_permissions") ||
               (mount->config->allow_other && fuse_opt_add_opt(&options, "allow_other")) ||
               fuse_opt_add_opt_escaped(&options, source) || fuse_opt_add_arg(args, "haul") ||
               fuse_opt_add_arg(args, "-o") || fuse_opt_add_arg(args, options);
  free(options);
  return failed ? -ENOMEM : 0;
}

static int open_session(struct mount *mount, struct haul_storage_error *error) {
  struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
  struct fuse_lowlevel_ops ops = {.init = on_init};
  mount_add_node_ops(&ops);
  mount_add_file_ops(&ops);
  mount_add_ioctl_op(&ops);
  if (!make_options(mount, &args))
    mount->session = fuse_session_new(&args, &ops, sizeof ops, mount);
  fuse_opt_free_args(&args);
  if (mount->session)
    return 0;
  return storage_fail(error, -ENOMEM, NULL, "cannot create a libfuse session: %s",
                      fuse_messages.last);
}

static int mount_session(struct mount *mount, struct haul_storage_error *error) {
  if (fuse_session_mount(mount->session, mount->target) == 0)
    return 0;
  const char *hint = "run the container with the right to mount (CAP_SYS_ADMIN)";
  if (geteuid() != 0)
    hint = mount->config->allow_other
               ? "add the line `user_allow_other` to /etc/fuse.conf"
               : "give a mount point that this user owns, and install the package fuse3";
  return storage_fail(error, -EPERM, hint, "cannot mount at %s: %s", mount->target,
                      *fuse_messages.last ? fuse_messages.last : "fusermount3 has failed");
}

static int open_source(struct mount *mount, struct haul_storage_error *error) {
  const struct haul_storage_mount *config = mount->config;
  if (config->address) {
    const struct remote_config remote = {
        .rpc = {.address = config->address,
                .export = config->export,
                .timeout_ns = config->timeout_ns},
        .read_only = config->read_only,
        .log = config->log,
        .user = config->user,
    };
    return remote_source_open(&remote, &mount->source, error);
  }
  int status = local_source_open(mount->source_path, config->read_only, &mount->source);
  if (status)
    return storage_fail(error, status, NULL, "cannot use %s: %s", config->source,
                        strerror(-status));
  return 0;
}

static int open_parts(struct mount *mount, struct haul_storage_error *error) {
  struct control_config config = {.workers = mount->config->workers,
                                  .others = mount->config->allow_other,
                                  .log = mount->config->log,
                                  .user = mount->config->user};
  int status = open_source(mount, error);
  if (status)
    return status;
  config.source = mount->config->address ? mount->source : NULL;
  status = files_open(&mount->files);
  config.files = mount->files;
  if (!status)
    status = control_dir_open(&config, &mount->control);
  if (status)
    return storage_fail(error, status, NULL, "cannot start the workers of rings: %s",
                        strerror(-status));
  return 0;
}

/* Threads.
 * Threads that wait in read(2) serve twice as many requests per second as threads that poll for a
 * request and the end. So a signal ends the read. libfuse's own loop does the same, but loses a
 * signal that arrives between its check and its wait; here each thread is signaled until it ends.
 */

#define LOOP_THREADS    16
#define THREADS_MIN     4
#define STOP_TIMEOUT_MS 10000 /* for the requests in progress */
#define STOP_RETRY_MS   10
#define INTERRUPT       SIGUSR1

struct loop {
  struct fuse_session *session;
  int ended;               /* an eventfd: a thread has ended, as after an unmount */
  struct sigaction before; /* of SIGUSR1 */
  pthread_t threads[LOOP_THREADS];
  unsigned count;
};

static void *serve_kernel(void *argument) {
  const struct loop *loop = argument;
  struct fuse_buf request = {0};
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, INTERRUPT);
  pthread_sigmask(SIG_UNBLOCK, &interrupt, NULL);
  while (!fuse_session_exited(loop->session)) {
    int length = fuse_session_receive_buf(loop->session, &request);
    if (length == -EAGAIN || length == -EINTR)
      continue;
    if (length <= 0)
      break;
    fuse_session_process_buf(loop->session, &request);
  }
  free(request.mem);
  eventfd_write(loop->ended, 1);
  return NULL;
}

static unsigned thread_count(void) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors < THREADS_MIN)
    return THREADS_MIN;
  return processors > LOOP_THREADS ? LOOP_THREADS : (unsigned)processors;
}

/* It interrupts read(2), and does nothing else. */
static void on_interrupt(int number) {
  (void)number;
}

/* Repeats the signal, which may arrive just before the thread begins to wait. */
static bool stop_thread(pthread_t thread, int *left_ms) {
  struct timespec until;
  do {
    pthread_kill(thread, INTERRUPT);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += STOP_RETRY_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
      return true;
    *left_ms -= STOP_RETRY_MS;
  } while (*left_ms > 0);
  return false;
}

/* Blocks until the requests in progress have ended. -ETIMEDOUT: a thread hangs in the source, and
 * nothing that it uses may be freed. */
static int loop_stop(struct loop *loop) {
  int left_ms = STOP_TIMEOUT_MS;
  fuse_session_exit(loop->session);
  while (loop->count > 0) {
    if (!stop_thread(loop->threads[loop->count - 1], &left_ms))
      return -ETIMEDOUT;
    loop->count--;
  }
  close(loop->ended);
  sigaction(INTERRUPT, &loop->before, NULL);
  return 0;
}

/* On failure no thread runs, except after -ETIMEDOUT (loop_stop). */
static int loop_start(struct loop *loop, struct fuse_session *session) {
  const struct sigaction interrupt = {.sa_handler = on_interrupt};
  const unsigned count = thread_count();
  *loop = (struct loop){.session = session};
  loop->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop->ended < 0)
    return -errno;
  sigaction(INTERRUPT, &interrupt, &loop->before);
  int error = 0;
  while (!error && loop->count < count) {
    error = pthread_create(&loop->threads[loop->count], NULL, serve_kernel, loop);
    loop->count += error == 0;
  }
  if (error && loop_stop(loop))
    return -ETIMEDOUT;
  return -error;
}

/* The kernel knows the mount's device without asking this process. */
static void report_ready(struct mount *mount) {
  struct statx stat;
  if (mount->source->ops->leave_out &&
      statx(AT_FDCWD, mount->target, AT_STATX_DONT_SYNC, 0, &stat) == 0)
    mount->source->ops->leave_out(mount->source, makedev(stat.stx_dev_major, stat.stx_dev_minor));
  log_mount(mount, "is mounted at");
  log_pages(mount);
  mount->config->ready(mount->config->user);
}

/* Blocks until the file system is unmounted, or a stop is requested. */
static int wait_for_end(struct mount *mount, const struct loop *loop,
                        struct haul_storage_error *error) {
  struct pollfd events[] = {
      {loop->ended, POLLIN, 0}, {mount->config->stop, POLLIN, 0}, {mount->begun, POLLIN, 0}};
  bool begun = false;
  for (;;) {
    if (poll(events, begun ? 2 : 3, -1) < 0) {
      if (errno == EINTR)
        continue;
      return storage_fail(error, -errno, NULL, "cannot wait for requests: %s", strerror(errno));
    }
    if (!begun && events[2].revents) {
      begun = true;
      report_ready(mount);
    }
    if (events[0].revents && !begun)
      return storage_fail(error, -EPROTO, NULL, "the kernel and libfuse share no protocol: %s",
                          fuse_messages.last);
    if (events[1].revents && !begun)
      return storage_fail(error, -ECANCELED, NULL, "stopped before it was mounted");
    if (events[0].revents || events[1].revents)
      return 0;
  }
}

/* -ETIMEDOUT: a thread still uses the mount, which must not be freed. */
static int serve_mount(struct mount *mount, struct haul_storage_error *error) {
  struct loop loop;
  int status = mount_session(mount, error);
  if (status)
    return status;
  atomic_store(&fuse_messages.mounted, true);
  status = loop_start(&loop, mount->session);
  if (status) {
    storage_fail(error, status, NULL, "cannot start threads: %s", strerror(-status));
  } else {
    status = wait_for_end(mount, &loop, error);
    bool ended = mount_end_ioctls(mount);
    if (loop_stop(&loop) || !ended)
      status = storage_fail(error, -ETIMEDOUT, "`dmesg` shows errors of the disk",
                            "unmounted while the disk did not respond");
  }
  fuse_session_unmount(mount->session);
  if (!status)
    log_mount(mount, "is no longer mounted at");
  return status;
}

static struct mount *new_mount(const struct haul_storage_mount *config) {
  struct mount *mount = calloc(1, sizeof *mount);
  if (!mount)
    return NULL;
  mount->config = config;
  mount->begun = eventfd(0, EFD_CLOEXEC);
  if (mount->begun < 0 || getrandom(&mount->id, sizeof mount->id, 0) != sizeof mount->id) {
    free(mount);
    return NULL;
  }
  pthread_mutex_init(&mount->lock, NULL);
  storage_cond_init(&mount->name_job_ended);
  list_init(&mount->handles);
  list_init(&mount->name_jobs);
  clock_gettime(CLOCK_REALTIME, &mount->since);
  return mount;
}

/* Also after an incomplete start. */
static void free_mount(struct mount *mount) {
  atomic_store(&fuse_messages.config, NULL);
  if (mount->session)
    fuse_session_destroy(mount->session);
  /* Handles use the other three, and the control directory uses the files. */
  while (!list_empty(&mount->handles))
    handle_drop(mount, list_entry(mount->handles.next, struct handle, link));
  control_dir_close(mount->control);
  files_close(mount->files);
  if (mount->source)
    mount->source->ops->close(mount->source);
  close(mount->begun);
  pthread_cond_destroy(&mount->name_job_ended);
  pthread_mutex_destroy(&mount->lock);
  free(mount);
}

/* The last component of the source, unless configured; cut where it is too long. */
static void choose_name(struct mount *mount) {
  const char *name = mount->config->name;
  if (!name)
    name = strrchr(mount->source_path, '/') + 1;
  snprintf(mount->name, sizeof mount->name, "%s", *name ? name : "/");
}

/* The kernel's limit for a process. */
static rlim_t descriptors_max(void) {
  unsigned long long most = 0;
  FILE *setting = fopen("/proc/sys/fs/nr_open", "re");
  if (setting && fscanf(setting, "%llu", &most) != 1)
    most = 0;
  if (setting)
    fclose(setting);
  return most;
}

/* Each node and each open file needs a descriptor, and the kernel may cache every file of a tree.
 */
static void raise_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit))
    return;
  struct rlimit most = {descriptors_max(), descriptors_max()};
  if (most.rlim_max > limit.rlim_max && setrlimit(RLIMIT_NOFILE, &most) == 0)
    return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

__attribute__((visibility("default"))) int
haul_storage_mount(const struct haul_storage_mount *config, struct haul_storage_error *error) {
  if (config->size != sizeof *config)
    return storage_fail(error, -EINVAL,
                        "install the command and libhaul-storage.so from the same build",
                        "libhaul-storage.so is of another build");
  struct mount *mount = new_mount(config);
  if (!mount)
    return storage_fail(error, -ENOMEM, NULL, "out of memory");
  atomic_store(&fuse_messages.config, config);
  atomic_store(&fuse_messages.mounted, false);
  fuse_messages.last[0] = '\0';
  fuse_set_log_func(on_fuse_message);
  raise_descriptors();
  umask(0); /* the kernel has applied the callers' */
  int status = mount_check(mount, error);
  if (!status) {
    choose_name(mount);
    status = open_parts(mount, error);
  }
  if (!status)
    status = open_session(mount, error);
  if (!status)
    status = serve_mount(mount, error);
  if (status != -ETIMEDOUT)
    free_mount(mount);
  return status;
}
