/* SPDX-License-Identifier: MIT */
#include "storage/control_dir.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/thread.h"
#include "storage/util.h"
#include "storage/worker.h"

#define LINKS_MAX   65536u /* of all users */
#define USER_MAX    16384u /* of one */
#define WORKERS_MAX 64u

/* Threads for blocking calls: copies to and from devices; for remote files also their I/O, of which
 * a server executes four at a time for each client. */
#define OFFLOAD_THREADS        2u
#define OFFLOAD_THREADS_REMOTE 8u

#define RECHECK_NS INT64_C(2000000000) /* between two checks for dead processes */

/* A symlink of a client, and the buffer or ring that it registered. */
struct entry {
  struct list link; /* dir->entries */
  uint64_t id;
  struct control_caller owner;
  pid_t process;
  dev_t device; /* of the target */
  ino_t inode;
  struct buffer *buffer; /* one of these two */
  struct client_ring *ring;
  char *target;
  char name[];
};

struct holder {
  struct list link; /* dir->holders */
  pid_t process;
};

struct control_dir {
  struct files *files;
  struct buffers *buffers;
  struct workers *workers;
  struct submit_semaphore *semaphores[RING_PRIORITIES];
  struct device_buffers *devices;
  pthread_t reaper;
  pthread_cond_t changed;
  pthread_mutex_t lock; /* guards the fields below; taken before the buffers' and workers' locks */
  bool reaping;         /* the reaper runs, and continues */
  struct list entries, holders;
  unsigned count;
  uint64_t last_id;
};

#define LINK_DEVICES  RING_PRIORITIES
#define LINK_COUNTERS (RING_PRIORITIES + 1u)
#define OWN_LINKS     (RING_PRIORITIES + 2u) /* their ids are the first */
#define TARGET_ROOM   512

static const char *own_name(size_t i) {
  return i < RING_PRIORITIES ? ring_semaphore_link((enum ring_priority)i)
         : i == LINK_DEVICES ? DEVICES_LINK
                             : "haul-counters";
}

/* OWN_LINKS: it is none of them. */
static size_t find_own(const char *name) {
  size_t i = 0;
  while (i < OWN_LINKS && strcmp(name, own_name(i)) != 0)
    i++;
  return i;
}

static uint64_t load(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

/* For readlink(1). */
static void format_counters(const struct control_dir *dir, char text[TARGET_ROOM]) {
  const struct workers_counters *counters = workers_counters(dir->workers);
  snprintf(text, TARGET_ROOM,
           "operations=%" PRIu64 " failed=%" PRIu64 " bytes=%" PRIu64 " staged_bytes=%" PRIu64
           " remote_bytes=%" PRIu64 " direct=%" PRIu64 " buffered_no_direct=%" PRIu64
           " buffered_unaligned=%" PRIu64 " unpinned=%" PRIu64 " device_direct_bytes=%" PRIu64
           " device_registrations=%" PRIu64 " device_registration_hits=%" PRIu64,
           load(&counters->operations), load(&counters->failed), load(&counters->bytes),
           load(&counters->staged), load(&counters->remote), load(&counters->direct),
           load(&counters->buffered_file), load(&counters->buffered_alignment),
           load(&counters->unpinned), load(&counters->device_direct),
           load(&counters->registrations), load(&counters->registration_hits));
}

static void own_target(const struct control_dir *dir, size_t i, char text[TARGET_ROOM]) {
  if (i == LINK_COUNTERS)
    format_counters(dir, text);
  else
    snprintf(text, TARGET_ROOM, "%s",
             i == LINK_DEVICES ? device_buffers_address(dir->devices)
                               : submit_semaphore_path(dir->semaphores[i]));
}

static struct control_link own_link(const struct control_dir *dir, size_t i) {
  char text[TARGET_ROOM];
  own_target(dir, i, text);
  return (struct control_link){.id = i + 1,
                               .uid = geteuid(),
                               .gid = getegid(),
                               .mode = S_IFLNK | 0777,
                               .length = strlen(text)};
}

/* Links of clients; all with the lock */

static struct control_link link_of(const struct entry *entry) {
  return (struct control_link){.id = entry->id,
                               .uid = entry->owner.uid,
                               .gid = entry->owner.gid,
                               .mode = S_IFLNK | 0400,
                               .length = strlen(entry->target)};
}

static bool may_see(const struct entry *entry, const struct control_caller *caller) {
  return entry->owner.uid == caller->uid || caller->uid == 0;
}

static struct entry *find_name(const struct control_dir *dir, const char *name) {
  list_each(item, &dir->entries) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (strcmp(entry->name, name) == 0)
      return entry;
  }
  return NULL;
}

/* As find_name, of those that the caller may see. */
static struct entry *find_visible(const struct control_dir *dir,
                                  const struct control_caller *caller, const char *name) {
  struct entry *entry = find_name(dir, name);
  return entry && may_see(entry, caller) ? entry : NULL;
}

static struct entry *find_id(const struct control_dir *dir, uint64_t id) {
  list_each(item, &dir->entries) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (entry->id == id)
      return entry;
  }
  return NULL;
}

static void remove_entry(struct control_dir *dir, struct entry *entry) {
  list_remove(&entry->link);
  dir->count--;
  if (entry->buffer) {
    buffers_remove(dir->buffers, entry->buffer);
    workers_unpin_removed(dir->workers);
  }
  if (entry->ring) {
    workers_remove(entry->ring);
    client_ring_put(entry->ring);
  }
  free(entry->target);
  free(entry);
}

/* Removes an entry of a dead process, and its file. */
static void remove_left_entry(struct control_dir *dir, struct entry *entry) {
  client_memory_unlink(entry->target, entry->device, entry->inode);
  remove_entry(dir, entry);
}

/* On success takes the mapping. */
static int register_memory(struct control_dir *dir, const struct iov_name *name,
                           struct entry *entry, const struct client_memory *memory) {
  uid_t uid = entry->owner.uid;
  if (name->block > memory->length)
    return -EINVAL;
  if (!name->ring) {
    struct buffer like = {.uid = uid, .address = memory->memory, .length = memory->length};
    memcpy(like.id, name->id, sizeof like.id);
    return buffers_add(dir->buffers, &like, &entry->buffer);
  }
  int code = client_ring_new(name, uid, memory, &entry->ring);
  if (code == 0)
    workers_add(dir->workers, entry->ring);
  return code;
}

/* With the lock. */
static int check_new(const struct control_dir *dir, const struct entry *new) {
  unsigned count = 0;
  if (find_name(dir, new->name))
    return -EEXIST;
  list_each(item, &dir->entries) count +=
      list_entry(item, struct entry, link)->owner.uid == new->owner.uid;
  return dir->count >= LINKS_MAX || count >= USER_MAX ? -EMFILE : 0;
}

/* On success takes the entry and the mapping. */
static int add_entry(struct control_dir *dir, const struct iov_name *name, struct entry *entry,
                     const struct client_memory *memory, struct control_link *link) {
  pthread_mutex_lock(&dir->lock);
  int code = check_new(dir, entry);
  if (code == 0)
    code = register_memory(dir, name, entry, memory);
  if (code == 0) {
    entry->id = ++dir->last_id;
    list_append(&dir->entries, &entry->link);
    if (dir->count++ == 0)
      pthread_cond_signal(&dir->changed);
    *link = link_of(entry);
  }
  pthread_mutex_unlock(&dir->lock);
  return code;
}

static struct entry *new_entry(const struct control_caller *caller, const char *name,
                               const char *target, const struct client_memory *memory) {
  size_t length = strlen(name) + 1;
  struct entry *entry = calloc(1, sizeof *entry + length);
  char *copy = strdup(target);
  if (!entry || !copy) {
    free(entry);
    free(copy);
    return NULL;
  }
  list_init(&entry->link);
  entry->owner = *caller;
  entry->process = client_process(caller->thread);
  entry->device = memory->device;
  entry->inode = memory->inode;
  entry->target = copy;
  memcpy(entry->name, name, length);
  return entry;
}

/* Maps the memory at once: some clients unlink it right after this call. */
int control_dir_symlink(struct control_dir *dir, const struct control_caller *caller,
                        const char *name, const char *target, struct control_link *link) {
  struct iov_name parsed;
  struct client_memory memory;
  if (find_own(name) < OWN_LINKS)
    return -EEXIST;
  int code = iov_name_parse(name, &parsed);
  if (code == 0)
    code = client_memory_map(caller->uid, caller->thread, target, &memory);
  if (code)
    return code;
  struct entry *entry = new_entry(caller, name, target, &memory);
  code = entry ? add_entry(dir, &parsed, entry, &memory, link) : -ENOMEM;
  if (code == 0)
    return 0;
  munmap(memory.memory, memory.length);
  if (entry)
    free(entry->target);
  free(entry);
  return code;
}

int control_dir_lookup(struct control_dir *dir, const struct control_caller *caller,
                       const char *name, struct control_link *link) {
  size_t own = find_own(name);
  if (own < OWN_LINKS) {
    *link = own_link(dir, own);
    return 0;
  }
  pthread_mutex_lock(&dir->lock);
  const struct entry *entry = find_visible(dir, caller, name);
  if (entry)
    *link = link_of(entry);
  pthread_mutex_unlock(&dir->lock);
  return entry ? 0 : -ENOENT;
}

int control_dir_stat(struct control_dir *dir, uint64_t id, struct control_link *link) {
  if (id - 1 < OWN_LINKS) {
    *link = own_link(dir, id - 1);
    return 0;
  }
  pthread_mutex_lock(&dir->lock);
  const struct entry *entry = find_id(dir, id);
  if (entry)
    *link = link_of(entry);
  pthread_mutex_unlock(&dir->lock);
  return entry ? 0 : -ENOENT;
}

int control_dir_readlink(struct control_dir *dir, uint64_t id, char *target, size_t size) {
  int length = -1;
  if (id - 1 < OWN_LINKS) {
    char text[TARGET_ROOM];
    own_target(dir, id - 1, text);
    length = snprintf(target, size, "%s", text);
  } else {
    pthread_mutex_lock(&dir->lock);
    const struct entry *entry = find_id(dir, id);
    if (entry)
      length = snprintf(target, size, "%s", entry->target);
    pthread_mutex_unlock(&dir->lock);
  }
  if (length < 0)
    return -ENOENT;
  return (size_t)length < size ? 0 : -ENAMETOOLONG;
}

int control_dir_unlink(struct control_dir *dir, const struct control_caller *caller,
                       const char *name) {
  if (find_own(name) < OWN_LINKS)
    return -EPERM;
  pthread_mutex_lock(&dir->lock);
  struct entry *entry = find_visible(dir, caller, name);
  if (entry)
    remove_entry(dir, entry);
  pthread_mutex_unlock(&dir->lock);
  return entry ? 0 : -ENOENT;
}

void control_dir_list(struct control_dir *dir, const struct control_caller *caller,
                      void (*each)(void *user, const char *name, const struct control_link *link),
                      void *user) {
  for (size_t i = 0; i < OWN_LINKS; i++) {
    struct control_link link = own_link(dir, i);
    each(user, own_name(i), &link);
  }
  pthread_mutex_lock(&dir->lock);
  list_each(item, &dir->entries) {
    const struct entry *entry = list_entry(item, struct entry, link);
    struct control_link link = link_of(entry);
    if (may_see(entry, caller))
      each(user, entry->name, &link);
  }
  pthread_mutex_unlock(&dir->lock);
}

int control_dir_hold(struct control_dir *dir, const struct control_caller *caller,
                     uint64_t *handle) {
  struct holder *holder = malloc(sizeof *holder);
  if (!holder)
    return -ENOMEM;
  holder->process = client_process(caller->thread);
  pthread_mutex_lock(&dir->lock);
  list_append(&dir->holders, &holder->link);
  pthread_mutex_unlock(&dir->lock);
  *handle = (uintptr_t)holder;
  return 0;
}

void control_dir_release(struct control_dir *dir, uint64_t handle) {
  struct holder *holder = (struct holder *)(uintptr_t)handle;
  pthread_mutex_lock(&dir->lock);
  list_remove(&holder->link);
  bool held = false;
  list_each(item, &dir->holders) held |=
      list_entry(item, struct holder, link)->process == holder->process;
  if (!held)
    list_each_safe(item, &dir->entries) {
      struct entry *entry = list_entry(item, struct entry, link);
      if (entry->process == holder->process)
        remove_left_entry(dir, entry);
    }
  pthread_mutex_unlock(&dir->lock);
  free(holder);
}

/* With the lock. Consecutive entries mostly belong to one process, which is checked once. */
static void remove_dead(struct control_dir *dir) {
  pid_t checked = 0;
  bool dead = false;
  list_each_safe(item, &dir->entries) {
    struct entry *entry = list_entry(item, struct entry, link);
    if (entry->process != checked) {
      checked = entry->process;
      dead = checked > 0 && kill(checked, 0) != 0 && errno == ESRCH;
    }
    if (dead)
      remove_left_entry(dir, entry);
  }
}

/* Removes the entries of dead processes that never held the directory, or shared a handle with
 * others. */
static void *reap_dead(void *argument) {
  struct control_dir *dir = argument;
  pthread_mutex_lock(&dir->lock);
  while (dir->reaping) {
    if (dir->count == 0)
      pthread_cond_wait(&dir->changed, &dir->lock);
    else if (!storage_wait(&dir->changed, &dir->lock, haul_deadline_in(RECHECK_NS)))
      remove_dead(dir);
  }
  pthread_mutex_unlock(&dir->lock);
  return NULL;
}

static void stop_reaper(struct control_dir *dir) {
  pthread_mutex_lock(&dir->lock);
  bool runs = dir->reaping;
  dir->reaping = false;
  if (runs)
    pthread_cond_signal(&dir->changed);
  pthread_mutex_unlock(&dir->lock);
  if (!runs)
    return;
  pthread_join(dir->reaper, NULL);
  pthread_cond_destroy(&dir->changed);
}

static unsigned worker_count(unsigned configured) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (configured == 0)
    configured = processors > 4 ? 4 : processors > 0 ? (unsigned)processors : 1;
  return configured < WORKERS_MAX ? configured : WORKERS_MAX;
}

static int start_parts(struct control_dir *dir, const struct control_config *config) {
  int code = buffers_open(&dir->buffers);
  if (code == 0)
    code = workers_open(dir->files, dir->buffers, worker_count(config->workers),
                        config->source ? OFFLOAD_THREADS_REMOTE : OFFLOAD_THREADS, &dir->workers);
  if (code == 0)
    workers_log(dir->workers, config->log, config->user);
  submit_semaphore_sweep();
  client_memory_sweep();
  for (unsigned i = 0; i < RING_PRIORITIES && code == 0; i++)
    code = submit_semaphore_open(dir->workers, i, config->others, &dir->semaphores[i]);
  if (code == 0)
    code = device_buffers_open(dir->buffers, config->source, &dir->devices);
  if (code)
    return code;
  storage_cond_init(&dir->changed);
  pthread_mutex_lock(&dir->lock); /* the reaper waits until `reaping` is set */
  code = -thread_start(&dir->reaper, reap_dead, dir);
  dir->reaping = code == 0;
  pthread_mutex_unlock(&dir->lock);
  return code;
}

int control_dir_open(const struct control_config *config, struct control_dir **out) {
  struct control_dir *dir = calloc(1, sizeof *dir);
  if (!dir)
    return -ENOMEM;
  dir->files = config->files;
  dir->last_id = OWN_LINKS;
  pthread_mutex_init(&dir->lock, NULL);
  list_init(&dir->entries);
  list_init(&dir->holders);
  int code = sigbus_start();
  if (code) {
    free(dir);
    return code;
  }
  code = start_parts(dir, config);
  if (code)
    control_dir_close(dir);
  else
    *out = dir;
  return code;
}

void control_dir_close(struct control_dir *dir) {
  if (!dir)
    return;
  stop_reaper(dir);
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    submit_semaphore_stop(dir->semaphores[i]);
  device_buffers_stop(dir->devices);
  list_each_safe(item, &dir->entries) remove_entry(dir, list_entry(item, struct entry, link));
  list_each_safe(item, &dir->holders) free(list_entry(item, struct holder, link));
  workers_close(dir->workers);
  for (unsigned i = 0; i < RING_PRIORITIES; i++)
    submit_semaphore_close(dir->semaphores[i]);
  device_buffers_close(dir->devices);
  buffers_close(dir->buffers);
  sigbus_stop();
  pthread_mutex_destroy(&dir->lock);
  free(dir);
}
