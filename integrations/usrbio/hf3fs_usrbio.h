/* SPDX-License-Identifier: MIT
 * USRBIO: files read into, and written from, memory that is shared with the file system's daemon.
 * The interface is that of 3FS, byte for byte: programs built for it run on haul's files as they
 * are, with this library in the place of its own (man 7 haul-usrbio).
 *
 * A program makes a buffer (hf3fs_iov) and a ring (hf3fs_ior), registers its open files, prepares
 * operations in the ring, submits them, and waits for their completions. Preparing and waiting make
 * no system call where there is nothing to wait for.
 *
 * MOUNT is where the file system is mounted, as hf3fs_extract_mount_point finds it: no more than
 * 255 bytes. Calls that return an int return 0 or more for success, and a negative errno value for
 * failure, except those of which something else is said.
 *
 * A ring is for one thread that prepares and submits and one that waits; several may wait. What is
 * not a ring's may be called from any thread at any time. Of a forked child: buffers, rings and
 * registered files of its parent's are its own too, but only one of the two may use a ring. */
#ifndef HF3FS_USRBIO_H
#define HF3FS_USRBIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HF3FS_SUPER_MAGIC 0x8f3f5fff

typedef void *hf3fs_iov_handle;
typedef void *hf3fs_ior_handle;

/* Memory for operations. The program gives the place for it and reads what it likes; the calls
 * below write it. */
struct hf3fs_iov {
  uint8_t *base;
  hf3fs_iov_handle iovh; /* NULL: wrapped */

  char id[16]; /* a UUID */
  char mount_point[256];
  size_t size;       /* bytes */
  size_t block_size; /* bytes; 0: one block */
  int numa;
};

/* A ring of operations, either for reading or for writing. */
struct hf3fs_ior {
  struct hf3fs_iov iov; /* the ring's own memory */
  hf3fs_ior_handle iorh;

  char mount_point[256];
  bool for_read;
  int io_depth;
  int priority;
  int timeout;
  uint64_t flags;
};

/* A completion. `result` is a number of bytes, less than asked for at the end of the file, or a
 * negative errno value:
 *
 *   EBADMSG      the bytes are not those that were stored: a checksum is wrong
 *   ETIMEDOUT    a deadline of the daemon's has passed
 *   EIO          a fault of the disk
 *   EBADF        the file is not open any more
 *   ENOENT       this user has no buffer of this id
 *   EINVAL       the range is not in the buffer, or is none
 *   ENODATA      a hole, with HF3FS_IOR_FORBID_READ_HOLES
 *   ECANCELED    the file system is being unmounted
 *   ENOTCONN     the daemon is gone; whether bytes were moved is not known
 *   EPROTO       the daemon's completions make no sense, and the ring is no longer used */
struct hf3fs_cqe {
  int32_t index; /* what hf3fs_prep_io returned */
  int32_t reserved;
  int64_t result;
  const void *userdata;
};

/* ---- File systems ---- */

/* Whether the open file lies on a file system that speaks USRBIO. False for what is no file. */
bool hf3fs_is_hf3fs(int fd);

/* Where the file system of `path`, which exists, is mounted. The length with the zero byte, or -1
 * where `path` is on none that speaks USRBIO. Where the length is more than `size`, nothing was
 * written. With HF3FS_USRBIO_DONT_CHECKFS_FOR_MP=yes in the environment any mount with a folder
 * 3fs-virt will do. */
int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path);

/* ---- Buffers ---- */

/* Shared memory of `size` bytes, which the daemon knows from now on. `numa` is the node that its
 * pages are to be on, a wish that may stay one; negative: none. May block for as long as the daemon
 * takes. EINVAL: no place, no bytes, a block larger than the buffer, or a mount point that is none;
 * ENOSPC: /dev/shm has not so much left; ENOENT: nothing of USRBIO at the mount point; ENOTCONN:
 * no daemon; or what the daemon says. On failure `iov` is as if zeroed. */
int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                    size_t block_size, int numa);

/* Maps a buffer that another process of this user's has made, by its id. `size` may be less than
 * what it has, not more (EINVAL). ENOENT: there is none, or its owner has unlinked it. */
int hf3fs_iovopen(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                  size_t size, size_t block_size, int numa);

/* A buffer of memory that the caller has mapped itself from a file in /dev/shm, and registered
 * itself by a symlink to it, MOUNT/3fs-virt/iovs/ID[.bBLOCK]. Asks nobody. It stays the caller's:
 * hf3fs_iovdestroy does nothing to it. */
int hf3fs_iovwrap(struct hf3fs_iov *iov, void *base, const uint8_t id[16],
                  const char *hf3fs_mount_point, size_t size, size_t block_size, int numa);

/* Takes the name in /dev/shm away from a buffer that this process made: nobody can open it from
 * now on. It stays usable here, and is gone when its last user is, however that ends. */
void hf3fs_iovunlink(struct hf3fs_iov *iov);

/* Unmaps it; who made it also tells the daemon, and unlinks it. No operation may be under way on
 * it. Nothing for what is NULL, zeroed, or wrapped. */
void hf3fs_iovdestroy(struct hf3fs_iov *iov);

/* ---- Rings ---- */

/* The bytes that a ring with so many entries takes; 0: there is no such ring. */
size_t hf3fs_ior_size(int entries);

/* A ring of `entries` operations under way at most, 1 to 1,048,576, for reading or for writing.
 * `io_depth` says when the daemon begins: > 0, at most `entries`: with exactly so many at a time;
 * 0: with whatever is there; < 0: the same, at most -io_depth at a time.
 * May block for as long as the daemon takes. Errors as hf3fs_iovcreate, and EINVAL for numbers that
 * are out of range. On failure `ior` is as if zeroed. */
int hf3fs_iorcreate(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                    bool for_read, int io_depth, int numa);

/* With a priority: < 0 before others, > 0 after them. */
int hf3fs_iorcreate2(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int numa);

/* And a time in milliseconds, that a negative `io_depth` waits for so many; 0: it does not wait. */
int hf3fs_iorcreate3(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int timeout, int numa);

/* Taken, and without a meaning on haul: what is read is what was written. */
#define HF3FS_IOR_ALLOW_READ_UNCOMMITTED 1
/* Reading a hole fails (ENODATA) instead of giving zeros. */
#define HF3FS_IOR_FORBID_READ_HOLES 2
/* haul's own: a write is complete when it would survive a power cut. */
#define HAUL_IOR_DURABLE 4

/* With flags, and without a priority. */
int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int timeout, int numa, uint64_t flags);

/* No thread may be in a call with this ring. What is under way ends without being told, and may
 * still use its buffers until it has. Nothing for what is NULL or zeroed. */
void hf3fs_iordestroy(struct hf3fs_ior *ior);

/* ---- Files ---- */

/* Lets rings use an open file. 0 or a negative number, which hf3fs_prep_io takes for the file
 * alike; a **positive** errno value for failure: EBADF, not on a file system that speaks USRBIO;
 * EINVAL, registered already; EMFILE, ENOMEM. The registration holds the file open by a descriptor
 * of its own: it goes on meaning this file when `fd` is closed and its number used again, until
 * hf3fs_dereg_fd. `flags` is 0. */
int hf3fs_reg_fd(int fd, uint64_t flags);

/* Ends it; either number will do. Nothing where it is not registered. */
void hf3fs_dereg_fd(int fd);

/* ---- Operations ---- */

/* How many operations may be under way. */
int hf3fs_io_entries(const struct hf3fs_ior *ior);

/* Asks for `len` bytes from `off` on to be read to, or written from, `ptr` in the buffer. It may
 * begin at once. Does not block. The operation's number, from 0 to hf3fs_io_entries - 1, free for
 * another one as soon as hf3fs_wait_for_ios has given it out, or:
 * EINVAL: the range is not in the buffer or beyond any file, the ring is for the other direction,
 * or `len` is 0; EBADF: the file is not registered; EACCES: it was not opened for this direction;
 * EAGAIN: so many operations are under way already; ENOTCONN, EPROTO: as in a completion. */
int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr,
                  int fd, size_t off, uint64_t len, const void *userdata);

/* Tells the daemon of what was prepared. Does not block. */
int hf3fs_submit_ios(const struct hf3fs_ior *ior);

/* Waits for `min_results` completions, at most `cqec`, and takes as many as there are up to `cqec`,
 * in any order. `abs_timeout` is a time of CLOCK_REALTIME, and may be in the past: then it takes
 * what is there. NULL: no bound.
 * How many were taken, 0 or more, and fewer than `min_results` when the time is over or the daemon
 * gone; or EINVAL, and ENOTCONN or EPROTO where the ring is dead and nothing is under way in it.
 * A daemon that is gone is noticed within about a second of silence: each operation under way then
 * completes with ENOTCONN. */
int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int cqec,
                       int min_results, const struct timespec *abs_timeout);

/* ---- Further ---- */

/* Another name, on the same file system, for the file `target`. 0 or a **positive** errno value. */
int hf3fs_hardlink(const char *target, const char *link_name);

/* Makes holes of `n` ranges, at most 1,000, from start[i] on and up to end[i], which is not in it.
 * 0 or a **positive** errno value. `flags` goes to the daemon as it is. */
int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags);

#ifdef __cplusplus
}
#endif

#endif
