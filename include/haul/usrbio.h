/* SPDX-License-Identifier: MIT
 * What the daemon (`haul mount`) and the client library (integrations/usrbio) agree on: names in
 * the control directory, rings in shared memory, their semaphores, the socket for device buffers,
 * and ioctls. All but that socket is 3FS's (src/fuse/IoRing.h and src/lib/api/fuse.h there), so
 * that its clients' own code works with haul's daemon.
 *
 * Neither side trusts the other: a value from the other side is copied once, and then checked.
 *
 * Not installed: programs include hf3fs_usrbio.h. Needs the C library alone. */
#ifndef HAUL_USRBIO_H
#define HAUL_USRBIO_H

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- The control directory ----
 *
 * MOUNT/3fs-virt/iovs holds symlinks. Clients make one for each buffer and ring, to a file in
 * /dev/shm; the daemon's own lead to the semaphores that wake it, one a priority, and to the socket
 * for device buffers. */

#define CONTROL_DIR  "3fs-virt"
#define CONTROL_IOVS CONTROL_DIR "/iovs"
#define SHM_DIR      "/dev/shm/"
#define SHM_PREFIX   "hf3fs-iov-" /* of the files that client libraries make there */

enum ring_priority { RING_HIGH, RING_NORMAL, RING_LOW, RING_PRIORITIES };

/* The symlink to the semaphore that wakes the daemon for rings of a priority. */
static inline const char *ring_semaphore_link(enum ring_priority priority) {
  static const char *const links[RING_PRIORITIES] = {"submit-ios.ph", "submit-ios",
                                                     "submit-ios.pl"};
  return links[priority];
}

/* Ends the name of the file beside a semaphore that the daemon has locked for as long as it lives.
 * It belongs to the semaphore's owner, and others cannot write to it, so they cannot lock it
 * likewise. A 3FS daemon has none. */
#define SEMAPHORE_LOCK ".lock"

/* Whether a process has locked it for writing. Takes no lock. True after an error, which is no sign
 * of a dead daemon. */
static inline bool semaphore_is_locked(int fd) {
  struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Flags of a ring: those of hf3fs_iorcreate4. */
#define RING_UNCOMMITTED 1u /* accepted without effect: reads return what was written */
#define RING_NO_HOLES    2u /* a read of a hole fails with ENODATA */
#define RING_DURABLE     4u /* haul's own: a completed write survives a power failure */

/* The name of a buffer's or a ring's symlink: a UUID in hexadecimal, with or without hyphens, then
 * attributes, each after a dot:
 *
 *   b4096      block size in bytes
 *   r32, w-8   a ring for reading or writing, and its depth
 *   ph, pn, pl the ring's priority: high, normal, low
 *   t100       milliseconds that a ring of negative depth waits for a full batch
 *   f10        flags in binary */
struct iov_name {
  uint8_t id[16];
  uint64_t block;
  bool ring, for_read;
  int32_t depth;
  int32_t timeout_ms;
  uint64_t flags;
  uint8_t priority; /* enum ring_priority */
};

#define IOV_NAME_ROOM 192 /* for any name that iov_name_format writes */

/* Writes a name in 3FS's own spelling; returns its length. */
static inline size_t iov_name_format(const struct iov_name *name, char text[IOV_NAME_ROOM]) {
  static const char *const priorities[] = {".ph", "", ".pl"};
  char *end = text + IOV_NAME_ROOM, *at = text;
  for (unsigned i = 0; i < 16; i++)
    at += snprintf(at, (size_t)(end - at), i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                   name->id[i]);
  if (name->block)
    at += snprintf(at, (size_t)(end - at), ".b%" PRIu64, name->block);
  if (name->ring)
    at += snprintf(at, (size_t)(end - at), ".%c%d%s.t%d", name->for_read ? 'r' : 'w', name->depth,
                   priorities[name->priority], name->timeout_ms);
  if (name->ring && name->flags) {
    *at++ = '.';
    *at++ = 'f';
    for (unsigned bit = 64; bit-- > 0;)
      if (name->flags >> bit)
        *at++ = (char)('0' + (name->flags >> bit & 1));
    *at = '\0';
  }
  return (size_t)(at - text);
}

/* ---- Rings ----
 *
 * The file of a ring:
 *
 *   int32 submission head, tail, completion head, tail
 *   n records                 56 bytes each, by index
 *   n completions             24
 *   n submissions             16
 *   sem_t                     32, posted when there are completions
 *   slack                     4,096 bytes or more, to the end of the file
 *
 * n is the number of entries plus one, so that full and empty differ. A producer writes at the
 * head, a consumer reads at the tail. One side alone writes an index, with release order after the
 * entries that it announces; the other side reads it with acquire order. An index outside the ring
 * breaks the ring for good. */

struct ring_indices {
  _Atomic int32_t submit_head, submit_tail, complete_head, complete_tail;
};

/* An operation. */
struct ring_record {
  uint8_t buffer[16]; /* its id */
  uint64_t buffer_offset;
  uint64_t file; /* its inode number, as fstat(2) returns it */
  uint64_t offset, length;
  uint64_t userdata;
};

struct ring_completion {
  int32_t index; /* of the record */
  int32_t reserved;
  int64_t result; /* bytes, or a negative errno value */
  uint64_t userdata;
};

struct ring_submission {
  int32_t index; /* of the record */
  int32_t reserved;
  uint64_t userdata;
};

#define RING_SLACK 4096u
#define RING_ENTRY                                                                                 \
  (sizeof(struct ring_record) + sizeof(struct ring_completion) + sizeof(struct ring_submission))
#define RING_ENTRIES (1 << 20) /* the daemon's limit */

_Static_assert(sizeof(struct ring_indices) == 16 && sizeof(struct ring_record) == 56 &&
                   sizeof(struct ring_completion) == 24 && sizeof(struct ring_submission) == 16,
               "3FS's layout");

/* Where the parts of a mapped ring lie. */
struct ring_view {
  struct ring_indices *indices;
  struct ring_record *records;
  struct ring_completion *completions;
  struct ring_submission *submissions;
  sem_t *semaphore;
  int32_t slots; /* n */
};

/* The size of a ring's file. */
static inline size_t ring_bytes(int32_t entries) {
  return sizeof(struct ring_indices) + RING_ENTRY * ((size_t)entries + 1) + sizeof(sem_t) +
         RING_SLACK;
}

/* The number of entries in a file of this size; 0: it is too small. */
static inline int32_t ring_entries(size_t bytes) {
  const size_t fixed = sizeof(struct ring_indices) + sizeof(sem_t) + RING_SLACK;
  if (bytes < fixed + 2 * RING_ENTRY)
    return 0;
  size_t slots = (bytes - fixed) / RING_ENTRY;
  return slots > INT32_MAX ? INT32_MAX - 1 : (int32_t)slots - 1;
}

/* False: the memory is too small for one entry. */
static inline bool ring_view_init(struct ring_view *view, void *memory, size_t bytes) {
  int32_t entries = ring_entries(bytes);
  if (entries < 1)
    return false;
  view->slots = entries + 1;
  view->indices = memory;
  view->records = (struct ring_record *)(view->indices + 1);
  view->completions = (struct ring_completion *)(view->records + view->slots);
  view->submissions = (struct ring_submission *)(view->completions + view->slots);
  view->semaphore = (sem_t *)(view->submissions + view->slots);
  return true;
}

/* ---- Semaphores ----
 *
 * The C library's calls trust the memory of a semaphore: a field of it goes into a system call, so
 * the other side could make sem_post hang or abort. This one uses the value and the count of
 * waiters alone. The layout is that of glibc since 2.21 on 64-bit machines (struct new_sem in
 * sysdeps/nptl/internaltypes.h), which processes with different releases share: a word with the
 * value in its lower and the number of waiters in its upper half. */

_Static_assert(sizeof(sem_t) == 32 && sizeof(void *) == 8 &&
                   __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the layout of a 64-bit GNU C library");

static inline _Atomic uint64_t *semaphore_word(sem_t *semaphore) {
  return (_Atomic uint64_t *)(void *)semaphore;
}

/* Release: the thread that takes the post sees earlier writes. */
static inline void semaphore_post(sem_t *semaphore) {
  uint64_t word = atomic_load_explicit(semaphore_word(semaphore), memory_order_relaxed);
  do {
    if ((uint32_t)word >= SEM_VALUE_MAX)
      break; /* posts enough; wake a waiter all the same */
  } while (!atomic_compare_exchange_weak_explicit(semaphore_word(semaphore), &word, word + 1,
                                                  memory_order_release, memory_order_relaxed));
  if (word >> 32)
    syscall(SYS_futex, semaphore, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---- Polling ----
 *
 * To wake a sleeping thread takes 20 to 60 us, as long as a disk takes for 4 KiB. So both sides
 * poll for a while before they sleep if the last wait of this kind was short. Between two polls
 * other threads get the processor; where one keeps it, there is no polling for some time. */

#define POLL_NS       INT64_C(200000)
#define POLL_TAKEN_NS INT64_C(300000) /* another thread had the processor for so long */
#define POLL_PAUSE_NS INT64_C(10000000)

/* Of one kind of wait, and one thread at a time. Zeroed: the last wait was long. */
struct ring_poller {
  int64_t since;  /* when the wait began; 0: there is none */
  int64_t paused; /* no polling until then */
  bool pays;      /* the last wait was short */
};

static inline int64_t ring_poll_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Begins or continues a wait. True: look once more; false: sleep. */
static inline bool ring_poll_again(struct ring_poller *poller) {
  int64_t now = ring_poll_clock();
  if (poller->since == 0)
    poller->since = now;
  if (!poller->pays || now < poller->paused || now - poller->since > POLL_NS)
    return false;
  sched_yield();
  int64_t then = ring_poll_clock();
  if (then - now > POLL_TAKEN_NS)
    poller->paused = then + POLL_PAUSE_NS;
  return true;
}

/* The wait, if there is one, has ended, by polling or sleeping. */
static inline void ring_poll_end(struct ring_poller *poller) {
  if (poller->since == 0)
    return;
  poller->pays = ring_poll_clock() - poller->since <= POLL_NS;
  poller->since = 0;
}

/* ---- Device buffers ----
 *
 * haul's own: a symlink cannot describe device memory, so a client connects to the socket that
 * iovs/haul-devices names, in the abstract namespace, and sends a ticket (haul_region_export) and a
 * descriptor. The buffer lives as long as the connection. For memory that is exported with
 * HAUL_LEND the descriptor is the write end of a pipe: each process that imports the ticket keeps
 * it open while it uses the memory, and the owner frees the memory once the read end reports
 * hang-up.
 *
 * Messages are records of SOCK_SEQPACKET in host byte order. */

#define DEVICES_LINK    "haul-devices"
#define DEVICES_MAGIC   UINT32_C(0x42535548) /* "HUSB" */
#define DEVICES_VERSION 1u

enum devices_operation {
  DEVICES_ADD = 1, /* id, length, ticket and a descriptor */
  DEVICES_FIND,    /* id; the response has length, ticket and a descriptor */
  DEVICES_REMOVE   /* id, of a buffer of this connection */
};

struct devices_request {
  uint32_t magic, version, operation, reserved;
  uint8_t id[16];
  uint64_t length;
  uint8_t ticket[256];
};

struct devices_response {
  int32_t code; /* 0 or a negative errno value */
  uint32_t reserved;
  uint64_t length;
  uint8_t ticket[256];
  uint8_t unused[240];
};

/* ---- Ioctls ---- */

/* LINK: another name for the file, in a folder of the same file system. */
struct ioctl_link {
  uint64_t folder; /* its inode number */
  char name[NAME_MAX];
};

/* PUNCH_HOLES: ranges from each start to its end, which is not part of it. */
#define IOCTL_HOLES 1000
struct ioctl_holes {
  int count;
  size_t flags; /* 0: none is defined */
  size_t start[IOCTL_HOLES], end[IOCTL_HOLES];
};

/* MOVE: another name for a file or folder of the open folder, in one of the same file system. */
struct ioctl_move {
  uint64_t folder; /* the open one's inode number */
  char name[NAME_MAX + 1];
  uint64_t new_folder; /* its inode number */
  char new_name[NAME_MAX + 1];
  uint8_t to_trash; /* not 0: fail if there is such a name */
};

/* REMOVE: a file, symlink or folder of the open folder. */
struct ioctl_remove {
  uint64_t folder; /* the open one's inode number */
  char name[NAME_MAX + 1];
  uint8_t recursive; /* not 0: with all that the folder contains */
};

/* GET_MOUNT: haul's own. Inode numbers, which rings name files by, are those of one mount. */
struct ioctl_mount {
  uint32_t magic; /* as GET_MAGIC returns it */
  uint32_t reserved;
  uint64_t id; /* random, of this mount as long as its daemon lives */
};

_Static_assert(sizeof(struct ioctl_link) == 264 && sizeof(struct ioctl_holes) == 16016 &&
                   sizeof(struct ioctl_move) == 536 && sizeof(struct ioctl_remove) == 272,
               "3FS's layout");

#define IOCTL_GET_NAME    _IOR('h', 0, char[32])
#define IOCTL_GET_MAGIC   _IOR('h', 2, uint32_t)
#define IOCTL_GET_VERSION _IOR('h', 3, uint32_t)
#define IOCTL_SYNC        _IOR('h', 11, uint32_t)
#define IOCTL_LINK        _IOW('h', 12, struct ioctl_link)
#define IOCTL_PUNCH_HOLES _IOW('h', 13, struct ioctl_holes)
#define IOCTL_MOVE        _IOW('h', 14, struct ioctl_move)
#define IOCTL_REMOVE      _IOW('h', 15, struct ioctl_remove)
#define IOCTL_GET_MOUNT   _IOR('h', 128, struct ioctl_mount)

#define IOCTL_MAGIC 0x8f3f5fffu /* what GET_MAGIC returns */

#endif
