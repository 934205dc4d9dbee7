/* SPDX-License-Identifier: MIT
 * The life of a mount. */
#include "storage/mount/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_log.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <syslog.h>
#include <unistd.h>

#include "storage/files.h"
#include "storage/local.h"
#include "storage/mount/loop.h"
#include "storage/service/remote.h"

#define TIMEOUT_NS INT64_C(30000000000)

#define REQUESTS_BEHIND 64 /* of reading ahead and writing back, that the kernel has under way */

/* What libfuse says goes to the one mount there is; the last line of it explains a failure. */
static struct {
  _Atomic(const struct haul_storage_mount *) config;
  char last[256]; /* written before there are threads */
  atomic_bool mounted;
} words;

static void take_words(enum fuse_log_level level, const char *format, va_list list) {
  const struct haul_storage_mount *config = atomic_load(&words.config);
  char line[256];
  if (level > FUSE_LOG_WARNING || !config)
    return;
  vsnprintf(line, sizeof line, format, list);
  line[strcspn(line, "\n")] = '\0';
  if (atomic_load(&words.mounted))
    config->log(config->user, level <= FUSE_LOG_ERR ? LOG_ERR : LOG_WARNING, line);
  else
    snprintf(words.last, sizeof words.last, "%s", line);
}

/* The kernel's first question, which is about what both sides can do. */
static void begin(void *user, struct fuse_conn_info *connection) {
  struct mount *mount = user;
  const unsigned wanted = FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_POSIX_ACL |
                          FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_ATOMIC_O_TRUNC;
  const uint64_t one = 1;
  connection->want |= connection->capable & wanted;
  connection->max_background = REQUESTS_BEHIND;
  connection->congestion_threshold = REQUESTS_BEHIND * 3 / 4;
  if (write(mount->begun, &one, sizeof one) < 0)
    fuse_session_exit(mount->session);
}

static int make_options(const struct mount *mount, struct fuse_args *args) {
  const struct haul_storage_mount *config = mount->config;
  char source[POINT_ROOM + 16];
  char *options = NULL;
  snprintf(source, sizeof source, "fsname=%s", mount->point.source);
  int failed = fuse_opt_add_opt(&options, "subtype=hf3fs") ||
               fuse_opt_add_opt(&options, "default_permissions") ||
               (config->allow_other && fuse_opt_add_opt(&options, "allow_other")) ||
               fuse_opt_add_opt_escaped(&options, source) || fuse_opt_add_arg(args, "haul") ||
               fuse_opt_add_arg(args, "-o") || fuse_opt_add_arg(args, options);
  free(options);
  return failed ? -ENOMEM : 0;
}

static int open_session(struct mount *mount, struct haul_storage_error *error) {
  struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
  struct fuse_lowlevel_ops ops = {.init = begin};
  names_fill(&ops);
  attributes_fill(&ops);
  data_fill(&ops);
  folders_fill(&ops);
  ioctl_fill(&ops);
  if (!make_options(mount, &args))
    mount->session = fuse_session_new(&args, &ops, sizeof ops, mount);
  fuse_opt_free_args(&args);
  if (mount->session)
    return 0;
  return point_refuse(error, -ENOMEM, NULL, "cannot make a session of libfuse: %s", words.last);
}

static int attach(struct mount *mount, struct haul_storage_error *error) {
  if (fuse_session_mount(mount->session, mount->point.target) == 0)
    return 0;
  const char *hint = "a container needs the right to mount (CAP_SYS_ADMIN)";
  if (geteuid() != 0)
    hint = mount->config->allow_other
               ? "other users need the line `user_allow_other` in /etc/fuse.conf"
               : "the mount point has to be this user's own; fusermount3 is in the package fuse3";
  return point_refuse(error, -EPERM, hint, "cannot mount at %s: %s", mount->point.target,
                      *words.last ? words.last : "fusermount3 refuses");
}

static int open_source(struct mount *mount, struct haul_storage_error *error) {
  const struct haul_storage_mount *config = mount->config;
  if (config->address) {
    const struct remote_config remote = {
        .dial = {.address = config->address,
                 .export = config->export,
                 .timeout_ns = config->timeout_ns ? config->timeout_ns : TIMEOUT_NS},
        .read_only = config->read_only,
    };
    return remote_source_open(&remote, &mount->source, error);
  }
  int status = local_open(mount->point.source, config->read_only, &mount->source);
  if (status)
    return point_refuse(error, status, NULL, "cannot use %s: %s", config->source,
                        strerror(-status));
  return 0;
}

static int open_parts(struct mount *mount, struct haul_storage_error *error) {
  struct virt_config config = {.workers = mount->config->workers,
                               .others = mount->config->allow_other,
                               .far = mount->config->address != NULL};
  int status = open_source(mount, error);
  if (status)
    return status;
  status = files_open(&mount->files);
  config.files = mount->files;
  if (!status)
    status = virt_open(&config, &mount->virt);
  if (status)
    return point_refuse(error, status, NULL, "cannot set rings up: %s", strerror(-status));
  return 0;
}

/* What refers to what: handles to files, virt and source; virt to files. */
static void close_parts(struct mount *mount) {
  handle_drop_all(mount);
  if (mount->virt)
    virt_close(mount->virt);
  if (mount->files)
    files_close(mount->files);
  if (mount->source)
    mount->source->ops->close(mount->source);
}

static void tell(const struct mount *mount, const char *what) {
  char line[2 * POINT_ROOM + 64];
  snprintf(line, sizeof line, "%s %s %s", mount->point.source, what, mount->point.target);
  mount->config->log(mount->config->user, LOG_INFO, line);
}

/* The kernel knows the device without asking us. */
static void is_ready(struct mount *mount) {
  struct statx stat;
  if (mount->source->ops->leave_out &&
      statx(AT_FDCWD, mount->point.target, AT_STATX_DONT_SYNC, 0, &stat) == 0)
    mount->source->ops->leave_out(mount->source, makedev(stat.stx_dev_major, stat.stx_dev_minor));
  tell(mount, "is mounted at");
  mount->config->ready(mount->config->user);
}

/* Until it was unmounted, or is to be. */
static int attend(struct mount *mount, const struct loop *loop, struct haul_storage_error *error) {
  struct pollfd events[] = {
      {loop->ended, POLLIN, 0}, {mount->config->stop, POLLIN, 0}, {mount->begun, POLLIN, 0}};
  bool begun = false;
  for (;;) {
    if (poll(events, begun ? 2 : 3, -1) < 0) {
      if (errno == EINTR)
        continue;
      return point_refuse(error, -errno, NULL, "cannot wait: %s", strerror(errno));
    }
    if (!begun && events[2].revents) {
      begun = true;
      is_ready(mount);
    }
    if (events[0].revents && !begun)
      return point_refuse(error, -EPROTO, NULL, "the kernel and libfuse do not agree: %s",
                          words.last);
    if (events[1].revents && !begun)
      return point_refuse(error, -ECANCELED, NULL, "ended before it was mounted");
    if (events[0].revents || events[1].revents)
      return 0;
  }
}

/* -ETIMEDOUT: what there is stays as it is, since a thread uses it. */
static int serve(struct mount *mount, struct haul_storage_error *error) {
  struct loop loop;
  int status = attach(mount, error);
  if (status)
    return status;
  atomic_store(&words.mounted, true);
  status = loop_start(&loop, mount->session);
  if (status) {
    point_refuse(error, status, NULL, "cannot start threads: %s", strerror(-status));
  } else {
    status = attend(mount, &loop, error);
    int ended = loop_end(&loop);
    if (ended)
      status = point_refuse(error, ended, "look at the disk: its errors are in `dmesg`",
                            "the file system was unmounted while the disk did not answer");
  }
  fuse_session_unmount(mount->session);
  if (!status)
    tell(mount, "is no longer mounted at");
  return status;
}

/* Everything that was opened up to where it failed. */
static void clear(struct mount *mount) {
  atomic_store(&words.config, NULL);
  if (mount->session)
    fuse_session_destroy(mount->session);
  close_parts(mount);
  if (mount->begun >= 0)
    close(mount->begun);
  pthread_mutex_destroy(&mount->lock);
  free(mount);
}

/* The source's last part, unless another one is wanted; cut where it is too long. */
static void choose_name(struct mount *mount) {
  const char *name = mount->config->name;
  if (!name)
    name = strrchr(mount->point.source, '/') + 1;
  snprintf(mount->name, sizeof mount->name, "%s", *name ? name : "/");
}

static struct mount *make(const struct haul_storage_mount *config) {
  struct mount *mount = calloc(1, sizeof *mount);
  if (!mount)
    return NULL;
  mount->config = config;
  mount->begun = eventfd(0, EFD_CLOEXEC);
  if (mount->begun < 0) {
    free(mount);
    return NULL;
  }
  pthread_mutex_init(&mount->lock, NULL);
  list_init(&mount->open);
  clock_gettime(CLOCK_REALTIME, &mount->since);
  return mount;
}

/* What the kernel lets a process have at all. */
static rlim_t descriptors_most(void) {
  unsigned long long most = 0;
  FILE *setting = fopen("/proc/sys/fs/nr_open", "re");
  if (setting && fscanf(setting, "%llu", &most) != 1)
    most = 0;
  if (setting)
    fclose(setting);
  return most;
}

/* Nodes and files are a descriptor each, and the kernel may remember all files of a tree: root
 * allows itself as many as there can be. */
static void raise_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit))
    return;
  struct rlimit most = {descriptors_most(), descriptors_most()};
  if (most.rlim_max > limit.rlim_max && setrlimit(RLIMIT_NOFILE, &most) == 0)
    return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

__attribute__((visibility("default"))) int
haul_storage_mount(const struct haul_storage_mount *config, struct haul_storage_error *error) {
  if (config->size != sizeof *config)
    return point_refuse(error, -EINVAL, "install both from one build",
                        "libhaul-storage.so is of another version");
  struct mount *mount = make(config);
  if (!mount)
    return point_refuse(error, -ENOMEM, NULL, "no memory left");
  atomic_store(&words.config, config);
  atomic_store(&words.mounted, false);
  words.last[0] = '\0';
  fuse_set_log_func(take_words);
  raise_descriptors();
  umask(0); /* the kernel has applied the callers' own */
  int status = point_check(config, &mount->point, error);
  if (!status) {
    choose_name(mount);
    status = open_parts(mount, error);
  }
  if (!status)
    status = open_session(mount, error);
  if (!status)
    status = serve(mount, error);
  if (status != -ETIMEDOUT)
    clear(mount);
  return status;
}
