/* SPDX-License-Identifier: MIT
 * Shared declarations of the client library. Calls return 0 or a negative errno value unless a
 * comment says otherwise. */
#ifndef HAUL_USRBIO_CLIENT_H
#define HAUL_USRBIO_CLIENT_H

#include <haul/usrbio.h>
#include <pthread.h>

#include "hf3fs_usrbio.h"

#define SEMAPHORE_PREFIX SHM_DIR "sem." /* of files of sem_open(3) */
#define MOUNT_ROOM       256            /* of a mount's path in hf3fs_iov */
#define LINK_ROOM        (MOUNT_ROOM + sizeof "/" CONTROL_IOVS "/" + IOV_NAME_ROOM)

/* The library's locks. fork(2) takes them, so that they are free in the child. A thread holds at
 * most one. */
enum client_lock { LOCK_FILES, LOCK_MOUNTS, LOCK_LIBRARY, CLIENT_LOCKS };
extern pthread_mutex_t client_locks[CLIENT_LOCKS];

/* Mounts: mounts.c.
 * For each mount that the process uses it has a descriptor of MOUNT/3fs-virt/iovs open, by which
 * the daemon knows that the process lives: when it is closed, the daemon removes what the process
 * registered. So it stays open until the process ends, or another file system is mounted there. */

struct mount;

/* Whether a path is not empty, and not too long. */
bool mount_is_path(const char *path);
/* A reference to the mount at a path. Blocks for as long as the daemon takes. EIO: the symlink to
 * its semaphore leads to something else. */
int mount_get(const char *path, struct mount **mount);
void mount_put(struct mount *mount);
/* Whether its daemon lives, even if it does not respond. Does not block: the daemon takes no part.
 */
bool mount_is_alive(const struct mount *mount);
uint64_t mount_id(const struct mount *mount);
/* Identifies the mount of an open file or folder, or another file system. Differs from those of
 * earlier mounts at the same place. Blocks for as long as the daemon takes. 0: not of this file
 * system; the errno value says why. */
uint64_t mount_id_of(int fd);
/* The path of the semaphore that wakes the daemon, in SHM_DIR. Blocks for as long as the daemon
 * takes. EIO: the path is not that of a semaphore. */
int mount_semaphore(const char *path, enum ring_priority priority, char target[PATH_MAX]);

/* Buffers: iov.c */

#define SHM_ROOM sizeof SHM_DIR SHM_PREFIX "00112233-4455-6677-8899-aabbccddeeff"

/* hf3fs_iov.iovh: memory that the daemon may know by a symlink. */
struct buffer {
  struct device *device; /* NULL: shared memory; else all but `stage` is empty */
  struct stage *stage;   /* of a device's; NULL: the daemon reaches the memory */
  uint8_t *base;
  size_t size;
  char path[SHM_ROOM];  /* in /dev/shm; empty: not this process's to unlink */
  struct mount *mount;  /* NULL: opened, not created */
  char link[LINK_ROOM]; /* with `mount` */
};

/* A random UUID. */
int random_id(uint8_t id[16]);
/* New memory, to be registered under `name`. `numa`: the preferred node; negative: any. */
int buffer_new(const char *mount, const struct iov_name *name, size_t size, int numa,
               struct buffer **buffer);
/* The daemon maps it before this returns. */
int buffer_register(const struct buffer *buffer);
/* Removes its name in /dev/shm, if this process made it. */
void buffer_unlink(struct buffer *buffer);
/* Unmaps and unlinks it. */
void buffer_free(struct buffer *buffer);
/* Fills the public half; `id` and `mount` may be part of it already. */
void buffer_describe(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                     size_t block_size, int numa);
bool buffer_is_size(size_t size, size_t block_size);
/* Zeroes the public half after a failure; returns `code`. */
int buffer_finish(struct hf3fs_iov *iov, int code);

/* Device memory: device.c */

struct device;

/* Registers memory of the device `number`: new memory, or `memory` of the application. It is staged
 * if its driver does not share it. EINVAL: not a device's memory; ENODEV; ENOTSUP: no devices or no
 * daemon for them; ENOMEM; ENOSPC: no shared memory for a stage; ENOTCONN: no daemon; or the
 * daemon's error. */
int device_new(const char *mount, const uint8_t id[16], void *memory, size_t size, int number,
               struct device **device);
/* Opens what another process of this user has registered. ENOENT. */
int device_open(const char *mount, const uint8_t id[16], size_t size, struct device **device);
/* For memory of this process, blocks until the daemon and other processes do not use it any more,
 * at most 30 seconds. */
void device_free(struct device *device);

void *device_address(const struct device *device);
int device_number(const struct device *device);
struct stage *device_stage(const struct device *device);

/* Staged buffers: stage.c */

struct stage_part; /* of an operation in flight */
struct haul_region;

/* Registers a window for the memory, which stays the caller's until stage_close. */
int stage_new(const char *mount, const uint8_t id[16], uint64_t size, struct haul_region *memory,
              struct stage **stage);
/* Blocks for copies in progress; none begins afterwards. Operations may still be in flight. */
void stage_close(struct stage *stage);

/* Takes a part of the window for an operation on the memory; for a write also copies its bytes.
 * EAGAIN: the operations in flight have the window; EINVAL: it is longer than the window. */
int stage_begin(struct stage *stage, bool read, uint64_t offset, uint64_t length,
                struct stage_part **part);
/* Its place in the window. */
uint64_t stage_place(const struct stage_part *part);
/* The operation has completed; for a read it copies the bytes. Returns its result. */
int64_t stage_end(struct stage_part *part, int64_t result);
/* The operation does not complete: its part stays taken, as the daemon may still use it. */
void stage_abandon(struct stage_part *part);

/* Registered files: fds.c */

struct file {
  uint64_t mount; /* mount_id_of */
  uint64_t inode;
  bool reads, writes;
};

/* Finds a file by its descriptor, its duplicate, or the negative of either. Takes no lock. False:
 * it is not registered. */
bool fds_find(int fd, struct file *file);

/* Slots: slots.c.
 * Which operations of a ring are in flight, and their userdata, in memory of this process, which
 * the daemon cannot change. One thread takes slots, one thread at a time ends them. */

struct slot {
  const void *userdata;
  struct stage_part *part; /* NULL: its buffer is not staged */
  _Atomic bool busy;
};

struct slots {
  int32_t count;
  struct slot *slots;
  int32_t *free;                          /* a ring of count + 1 indices of free slots */
  _Alignas(64) _Atomic int32_t free_head; /* written by the thread that ends */
  _Alignas(64) _Atomic int32_t free_tail; /* written by the thread that takes */
};

/* 0 or -ENOMEM. */
int slots_open(struct slots *slots, int32_t count);
void slots_close(struct slots *slots);
/* Whether there is a free slot; of the thread that takes. */
bool slots_are_free(struct slots *slots);
/* A free slot, of which there is one; it is busy now. */
int32_t slots_take(struct slots *slots, const void *userdata, struct stage_part *part);
/* Ends a slot, which becomes free with slots_release. False: the index is not that of a busy slot.
 */
bool slots_end(struct slots *slots, int32_t index, const void **userdata, struct stage_part **part);
void slots_release(struct slots *slots, int32_t index);
/* Whether no slot is busy. */
bool slots_are_idle(struct slots *slots);

/* Rings: ior.c, io.c */

/* hf3fs_ior.iorh. */
struct ring {
  struct ring_view view;
  struct buffer *buffer;
  sem_t *submit;  /* the daemon's */
  uint64_t mount; /* mount_id */
  bool for_read;
  /* 0, or the negative errno value of every operation from now on. Written under `taking`. */
  _Atomic int error;
  struct slots slots;

  /* Of the thread that prepares: the last index it published, as the shared one may change. */
  _Alignas(64) int32_t submit_head;

  /* Held by the thread that takes completions; guards the fields below. */
  _Alignas(64) pthread_mutex_t taking;
  int32_t complete_tail;
  int64_t silent_since; /* CLOCK_MONOTONIC, ns; 0: not silent */
  struct ring_poller poller;
};

#endif
