/* SPDX-License-Identifier: MIT */
#include "storage/virt.h"

#include <errno.h>
#include <haul/usrbio.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/list.h"
#include "storage/devices.h"
#include "storage/doorbell.h"
#include "storage/shared.h"
#include "storage/threads.h"
#include "storage/worker.h"

#define ENTRIES_MAX 65536u /* of all users */
#define USER_MAX    16384u /* of one */
#define WORKERS_MAX 64u

/* A buffer or a ring that a client registered. */
struct entry {
  struct list link; /* virt->entries */
  uint64_t id;
  struct virt_caller owner;
  pid_t process;
  dev_t device; /* the file that it is */
  ino_t inode;
  struct buffer *buffer; /* one of these two */
  struct served *served;
  char *target;
  char name[];
};

/* A directory handle, which keeps its process's entries. */
struct holder {
  struct list link; /* virt->holders */
  pid_t process;
};

struct virt {
  struct files *files;
  struct buffers *buffers;
  struct workers *workers;
  struct doorbell *bells[RING_PRIORITIES];
  struct devices *devices;
  pthread_t mourner;
  pthread_cond_t changed;
  pthread_mutex_t lock; /* guards what follows; before the buffers' and the workers' locks */
  bool stops;
  struct list entries, holders;
  unsigned count;
  uint64_t last_id;
};

/* Threads that do what blocks (mover.h): copies to devices; with them, reads and writes of files of
 * another host, of which the server has four at a time under way for each client. */
#define MOVERS     2u
#define FAR_MOVERS 8u

/* ---- What is always there ---- */

#define FIXED       (RING_PRIORITIES + 2u)
#define TARGET_ROOM 320

static const char *const fixed_names[FIXED] = {"submit-ios.ph", "submit-ios", "submit-ios.pl",
                                               DEVICES_LINK, "haul-counters"};

static uint64_t now_of(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

/* What the rings did, for who wants to know: readlink(1) shows it. */
static void count_up(const struct virt *virt, char text[TARGET_ROOM]) {
  const struct workers_counters *counters = workers_counters(virt->workers);
  snprintf(text, TARGET_ROOM,
           "operations=%" PRIu64 " failed=%" PRIu64 " bytes=%" PRIu64 " staged_bytes=%" PRIu64
           " far_bytes=%" PRIu64 " direct=%" PRIu64 " buffered_no_direct=%" PRIu64
           " buffered_unaligned=%" PRIu64 " unpinned=%" PRIu64,
           now_of(&counters->operations), now_of(&counters->refused), now_of(&counters->bytes),
           now_of(&counters->staged), now_of(&counters->far), now_of(&counters->direct),
           now_of(&counters->buffered_file), now_of(&counters->buffered_alignment),
           now_of(&counters->unpinned));
}

static void fixed_target(const struct virt *virt, size_t i, char text[TARGET_ROOM]) {
  if (i < RING_PRIORITIES)
    snprintf(text, TARGET_ROOM, "%s", doorbell_path(virt->bells[i]));
  else if (i == RING_PRIORITIES)
    snprintf(text, TARGET_ROOM, "%s", devices_address(virt->devices));
  else
    count_up(virt, text);
}

/* Their ids come first. */
static void tell_fixed(const struct virt *virt, size_t i, struct virt_entry *entry) {
  char text[TARGET_ROOM];
  fixed_target(virt, i, text);
  *entry = (struct virt_entry){.id = i + 1,
                               .uid = geteuid(),
                               .gid = getegid(),
                               .mode = S_IFLNK | 0777,
                               .length = strlen(text)};
}

/* FIXED: it is none. */
static size_t find_fixed(const char *name) {
  size_t i = 0;
  while (i < FIXED && strcmp(name, fixed_names[i]) != 0)
    i++;
  return i;
}

/* ---- Entries; with the lock ---- */

static void tell(const struct entry *entry, struct virt_entry *told) {
  *told = (struct virt_entry){.id = entry->id,
                              .uid = entry->owner.uid,
                              .gid = entry->owner.gid,
                              .mode = S_IFLNK | 0400,
                              .length = strlen(entry->target)};
}

static bool may_see(const struct entry *entry, const struct virt_caller *caller) {
  return entry->owner.uid == caller->uid || caller->uid == 0;
}

static struct entry *find_name(struct virt *virt, const char *name) {
  list_each(item, &virt->entries) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (strcmp(entry->name, name) == 0)
      return entry;
  }
  return NULL;
}

static struct entry *find_id(struct virt *virt, uint64_t id) {
  list_each(item, &virt->entries) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (entry->id == id)
      return entry;
  }
  return NULL;
}

static unsigned count_of(struct virt *virt, uid_t uid) {
  unsigned count = 0;
  list_each(item, &virt->entries) count += list_entry(item, struct entry, link)->owner.uid == uid;
  return count;
}

/* Not in the list any more. */
static void end_entry(struct virt *virt, struct entry *entry) {
  if (entry->buffer) {
    buffers_remove(virt->buffers, entry->buffer);
    workers_tend(virt->workers);
  }
  if (entry->served) {
    workers_remove(entry->served);
    served_put(entry->served);
  }
  free(entry->target);
  free(entry);
}

static void remove_entry(struct virt *virt, struct entry *entry) {
  list_remove(&entry->link);
  virt->count--;
  end_entry(virt, entry);
}

/* ---- Registering ---- */

static struct served *new_served(const struct iov_name *name, uid_t uid,
                                 const struct shared *shared, int *code) {
  struct served *served = calloc(1, sizeof *served);
  *code = served ? intake_open(&served->intake, shared->memory, shared->length, name) : -ENOMEM;
  if (*code) {
    free(served);
    return NULL;
  }
  served->uid = uid;
  served->way = name->for_read ? FILE_READS : FILE_WRITES;
  served->priority = name->priority;
  served->no_holes = name->flags & RING_NO_HOLES;
  served->durable = name->flags & RING_DURABLE;
  served->holds = 1;
  list_init(&served->link);
  return served;
}

/* Takes the mapping, but for a failure. */
static int make(struct virt *virt, const struct iov_name *name, struct entry *entry,
                const struct shared *shared) {
  int code = 0;
  uid_t uid = entry->owner.uid;
  if (name->block > shared->length)
    return -EINVAL;
  if (!name->ring) {
    struct buffer like = {.uid = uid, .address = shared->memory, .length = shared->length};
    memcpy(like.id, name->id, sizeof like.id);
    return buffers_add(virt->buffers, &like, &entry->buffer);
  }
  entry->served = new_served(name, uid, shared, &code);
  if (entry->served)
    workers_add(virt->workers, entry->served);
  return code;
}

static struct entry *new_entry(const struct virt_caller *caller, const char *name,
                               const char *target) {
  size_t length = strlen(name) + 1;
  struct entry *entry = calloc(1, sizeof *entry + length);
  if (!entry)
    return NULL;
  memcpy(entry->name, name, length);
  list_init(&entry->link);
  entry->owner = *caller;
  entry->process = shared_process(caller->thread);
  entry->target = strdup(target);
  if (entry->target)
    return entry;
  free(entry);
  return NULL;
}

/* With the lock. */
static int may_add(struct virt *virt, const struct virt_caller *caller, const char *name) {
  if (find_name(virt, name))
    return -EEXIST;
  return virt->count >= ENTRIES_MAX || count_of(virt, caller->uid) >= USER_MAX ? -EMFILE : 0;
}

static int add(struct virt *virt, const struct iov_name *name, struct entry *entry,
               const struct shared *shared, struct virt_entry *told) {
  pthread_mutex_lock(&virt->lock);
  int code = may_add(virt, &entry->owner, entry->name);
  if (code == 0)
    code = make(virt, name, entry, shared);
  if (code == 0) {
    entry->id = ++virt->last_id;
    list_append(&virt->entries, &entry->link);
    if (virt->count++ == 0)
      pthread_cond_signal(&virt->changed);
    tell(entry, told);
  }
  pthread_mutex_unlock(&virt->lock);
  return code;
}

/* The memory is mapped at once: some clients unlink it right after. */
int virt_symlink(struct virt *virt, const struct virt_caller *caller, const char *name,
                 const char *target, struct virt_entry *told) {
  struct iov_name parsed;
  struct shared shared;
  if (find_fixed(name) < FIXED)
    return -EEXIST;
  int code = iov_name_parse(name, &parsed);
  if (code == 0)
    code = shared_map(caller, target, &shared);
  if (code)
    return code;
  struct entry *entry = new_entry(caller, name, target);
  if (entry) {
    entry->device = shared.device;
    entry->inode = shared.inode;
  }
  code = entry ? add(virt, &parsed, entry, &shared, told) : -ENOMEM;
  if (code == 0)
    return 0;
  munmap(shared.memory, shared.length);
  if (entry)
    free(entry->target);
  free(entry);
  return code;
}

/* ---- Looking ---- */

int virt_lookup(struct virt *virt, const struct virt_caller *caller, const char *name,
                struct virt_entry *told) {
  size_t fixed = find_fixed(name);
  if (fixed < FIXED) {
    tell_fixed(virt, fixed, told);
    return 0;
  }
  pthread_mutex_lock(&virt->lock);
  struct entry *entry = find_name(virt, name);
  int code = entry && may_see(entry, caller) ? 0 : -ENOENT;
  if (code == 0)
    tell(entry, told);
  pthread_mutex_unlock(&virt->lock);
  return code;
}

int virt_stat(struct virt *virt, uint64_t id, struct virt_entry *told) {
  if (id - 1 < FIXED) {
    tell_fixed(virt, id - 1, told);
    return 0;
  }
  pthread_mutex_lock(&virt->lock);
  struct entry *entry = find_id(virt, id);
  if (entry)
    tell(entry, told);
  pthread_mutex_unlock(&virt->lock);
  return entry ? 0 : -ENOENT;
}

int virt_readlink(struct virt *virt, uint64_t id, char *target, size_t size) {
  int length = -1;
  if (id - 1 < FIXED) {
    char text[TARGET_ROOM];
    fixed_target(virt, id - 1, text);
    length = snprintf(target, size, "%s", text);
  } else {
    pthread_mutex_lock(&virt->lock);
    const struct entry *entry = find_id(virt, id);
    if (entry)
      length = snprintf(target, size, "%s", entry->target);
    pthread_mutex_unlock(&virt->lock);
  }
  if (length < 0)
    return -ENOENT;
  return (size_t)length < size ? 0 : -ENAMETOOLONG;
}

int virt_unlink(struct virt *virt, const struct virt_caller *caller, const char *name) {
  if (find_fixed(name) < FIXED)
    return -EPERM;
  pthread_mutex_lock(&virt->lock);
  struct entry *entry = find_name(virt, name);
  int code = entry && may_see(entry, caller) ? 0 : -ENOENT;
  if (code == 0)
    remove_entry(virt, entry);
  pthread_mutex_unlock(&virt->lock);
  return code;
}

void virt_list(struct virt *virt, const struct virt_caller *caller,
               void (*each)(void *user, const char *name, const struct virt_entry *entry),
               void *user) {
  struct virt_entry told;
  for (size_t i = 0; i < FIXED; i++) {
    tell_fixed(virt, i, &told);
    each(user, fixed_names[i], &told);
  }
  pthread_mutex_lock(&virt->lock);
  list_each(item, &virt->entries) {
    const struct entry *entry = list_entry(item, struct entry, link);
    if (!may_see(entry, caller))
      continue;
    tell(entry, &told);
    each(user, entry->name, &told);
  }
  pthread_mutex_unlock(&virt->lock);
}

/* ---- Liveness ---- */

int virt_hold(struct virt *virt, const struct virt_caller *caller, uint64_t *handle) {
  struct holder *holder = malloc(sizeof *holder);
  if (!holder)
    return -ENOMEM;
  holder->process = shared_process(caller->thread);
  pthread_mutex_lock(&virt->lock);
  list_append(&virt->holders, &holder->link);
  pthread_mutex_unlock(&virt->lock);
  *handle = (uintptr_t)holder;
  return 0;
}

/* With the lock. */
static bool is_held(struct virt *virt, pid_t process) {
  list_each(item, &virt->holders) if (list_entry(item, struct holder, link)->process ==
                                      process) return true;
  return false;
}

void virt_release(struct virt *virt, uint64_t handle) {
  struct holder *holder = (struct holder *)(uintptr_t)handle;
  pthread_mutex_lock(&virt->lock);
  list_remove(&holder->link);
  if (!is_held(virt, holder->process))
    list_each_safe(item, &virt->entries) {
      struct entry *entry = list_entry(item, struct entry, link);
      if (entry->process != holder->process)
        continue;
      shared_forget(entry->target, entry->device, entry->inode);
      remove_entry(virt, entry);
    }
  pthread_mutex_unlock(&virt->lock);
  free(holder);
}

/* Of processes that never had a handle of the folder, or share one with others. */
#define LOOK_S 2

static bool is_dead(pid_t process) {
  return process > 0 && kill(process, 0) != 0 && errno == ESRCH;
}

/* With the lock. */
static void bury(struct virt *virt) {
  pid_t asked = 0;
  bool dead = false;
  list_each_safe(item, &virt->entries) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (entry->process != asked)
      dead = is_dead(asked = entry->process);
    if (!dead)
      continue;
    shared_forget(entry->target, entry->device, entry->inode);
    remove_entry(virt, entry);
  }
}

static void *mourn(void *argument) {
  struct virt *virt = argument;
  pthread_mutex_lock(&virt->lock);
  while (!virt->stops) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LOOK_S;
    if (virt->count == 0)
      pthread_cond_wait(&virt->changed, &virt->lock);
    else if (pthread_cond_timedwait(&virt->changed, &virt->lock, &until) == ETIMEDOUT)
      bury(virt);
  }
  pthread_mutex_unlock(&virt->lock);
  return NULL;
}

static int start_mourner(struct virt *virt) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&virt->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  virt->stops = false; /* before it looks */
  int code = storage_thread(&virt->mourner, mourn, virt);
  if (code)
    virt->stops = true;
  return code;
}

static void end_mourner(struct virt *virt) {
  pthread_mutex_lock(&virt->lock);
  bool runs = !virt->stops;
  virt->stops = true;
  pthread_cond_signal(&virt->changed);
  pthread_mutex_unlock(&virt->lock);
  if (!runs)
    return;
  pthread_join(virt->mourner, NULL);
  pthread_cond_destroy(&virt->changed);
}

/* ---- Life ---- */

static unsigned workers_for(unsigned asked) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (asked == 0)
    asked = processors > 4 ? 4 : processors > 0 ? (unsigned)processors : 1;
  return asked < WORKERS_MAX ? asked : WORKERS_MAX;
}

static int start(struct virt *virt, const struct virt_config *config) {
  int code = buffers_open(&virt->buffers);
  if (code == 0)
    code = workers_open(virt->files, virt->buffers, workers_for(config->workers),
                        config->far ? FAR_MOVERS : MOVERS, &virt->workers);
  doorbell_sweep();
  for (unsigned i = 0; i < RING_PRIORITIES && code == 0; i++)
    code = doorbell_open(virt->workers, i, config->others, &virt->bells[i]);
  if (code == 0)
    code = devices_open(virt->buffers, &virt->devices);
  if (code == 0)
    code = start_mourner(virt);
  return code;
}

int virt_open(const struct virt_config *config, struct virt **out) {
  struct virt *virt = calloc(1, sizeof *virt);
  if (!virt)
    return -ENOMEM;
  virt->files = config->files;
  virt->last_id = FIXED;
  virt->stops = true;
  pthread_mutex_init(&virt->lock, NULL);
  list_init(&virt->entries);
  list_init(&virt->holders);
  int code = guard_start();
  if (code) {
    free(virt);
    return code;
  }
  code = start(virt, config);
  if (code)
    virt_close(virt);
  else
    *out = virt;
  return code;
}

void virt_close(struct virt *virt) {
  if (!virt)
    return;
  end_mourner(virt);
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    doorbell_close(virt->bells[i]);
  devices_stop(virt->devices);
  list_each_safe(item, &virt->entries) remove_entry(virt, list_entry(item, struct entry, link));
  list_each_safe(item, &virt->holders) free(list_entry(item, struct holder, link));
  workers_close(virt->workers);
  devices_close(virt->devices);
  buffers_close(virt->buffers);
  guard_stop();
  pthread_mutex_destroy(&virt->lock);
  free(virt);
}
