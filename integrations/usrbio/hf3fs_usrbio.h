/* SPDX-License-Identifier: MIT
 * USRBIO: reads and writes of files through memory that a program shares with the file system's
 * daemon. The interface is that of 3FS, byte for byte: programs built for 3FS run on haul's files
 * unchanged, with this library in place of 3FS's own (man 7 haul-usrbio).
 *
 * A program makes a buffer (hf3fs_iov) and a ring (hf3fs_ior), registers its open files, prepares
 * operations in the ring, submits them, and waits for their completions. Preparing and waiting make
 * no system call unless there is something to wait for.
 *
 * Mount points are paths as hf3fs_extract_mount_point returns them, at most 255 bytes. Calls that
 * return an int return 0 or more for success, and a negative errno value for failure, unless their
 * comment says otherwise.
 *
 * One thread at a time prepares and submits in a ring; several threads may wait. All other calls
 * may be made from any thread at any time. A forked child has its parent's buffers, rings and
 * registered files, but only one of the two processes may use a ring. */
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

struct timespec; /* in strict C99 time.h has none */

#define HF3FS_SUPER_MAGIC 0x8f3f5fff

typedef void *hf3fs_iov_handle;
typedef void *hf3fs_ior_handle;

/* Memory for operations. The program owns the struct and may read it; the calls below write it. */
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

/* A completion. `result` is the number of bytes, less than requested at the end of the file, or a
 * negative errno value:
 *
 *   EBADMSG      a checksum does not match: the bytes are not those that were stored
 *   ETIMEDOUT    the daemon's deadline has passed
 *   EIO          a disk error
 *   EBADF        the user does not have the file open any more
 *   ENOENT       the user has no buffer with this id
 *   EINVAL       the range is empty, or outside the buffer
 *   ENODATA      a hole, with HF3FS_IOR_FORBID_READ_HOLES
 *   ECANCELED    the file system is being unmounted
 *   ENOTCONN     the daemon has died; bytes may have been moved or not
 *   EPROTO       the daemon's completions are invalid, and the ring is not used any more */
struct hf3fs_cqe {
  int32_t index; /* that hf3fs_prep_io returned */
  int32_t reserved;
  int64_t result;
  const void *userdata;
};

/* Whether a descriptor is open on a file system that speaks USRBIO; false for an invalid one. */
bool hf3fs_is_hf3fs(int fd);

/* Finds the mount point above `path`, which must exist. Returns its length with the zero byte, or
 * -1 if no file system above `path` speaks USRBIO; writes nothing if the length exceeds `size`.
 * With HF3FS_USRBIO_DONT_CHECKFS_FOR_MP=yes in the environment, any mount that has a folder
 * 3fs-virt is accepted. */
int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path);

/* Allocates shared memory of `size` bytes and registers it with the daemon. `numa` is the preferred
 * node of its pages, without a guarantee; negative: none. Blocks for as long as the daemon takes.
 * EINVAL: no `iov`, size 0, a block larger than the buffer, or an invalid mount point; ENOSPC:
 * /dev/shm has less room; ENOENT: the mount point does not speak USRBIO; ENOTCONN: no daemon; or
 * the daemon's error. On failure `iov` is zeroed. */
int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                    size_t block_size, int numa);

/* Maps a buffer that another process of this user has created, by its id. `size` must not exceed
 * the buffer's (EINVAL). ENOENT: there is none, or its owner has unlinked it. */
int hf3fs_iovopen(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                  size_t size, size_t block_size, int numa);

/* Makes a buffer of memory that the caller has mapped from a file in /dev/shm, and registered with
 * a symlink to that file, MOUNT/3fs-virt/iovs/ID[.bBLOCK]. The daemon is not asked. The memory
 * stays the caller's: hf3fs_iovdestroy leaves it alone. */
int hf3fs_iovwrap(struct hf3fs_iov *iov, void *base, const uint8_t id[16],
                  const char *hf3fs_mount_point, size_t size, size_t block_size, int numa);

/* Removes the name in /dev/shm of a buffer that this process created, so that no other process can
 * open it from now on. The memory exists until the last process that uses it ends. */
void hf3fs_iovunlink(struct hf3fs_iov *iov);

/* Unmaps a buffer; in the process that created it, also unregisters and unlinks it. It must have no
 * operation in flight. Does nothing for NULL, a zeroed struct, or a wrapped buffer. */
void hf3fs_iovdestroy(struct hf3fs_iov *iov);

/* The size in bytes of a ring with so many entries; 0: invalid. */
size_t hf3fs_ior_size(int entries);

/* Makes a ring for at most `entries` operations in flight, 1 to 1,048,576. `io_depth` says when the
 * daemon begins: > 0, at most `entries`: with exactly that many at a time; 0: with whatever is
 * submitted; < 0: the same, with at most -io_depth at a time.
 * Blocks for as long as the daemon takes. Errors as hf3fs_iovcreate, and EINVAL for numbers out of
 * range. On failure `ior` is zeroed. */
int hf3fs_iorcreate(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                    bool for_read, int io_depth, int numa);

/* With a priority: < 0 before other rings, > 0 after them. */
int hf3fs_iorcreate2(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int numa);

/* And with a timeout in milliseconds, for which a negative `io_depth` waits for a full batch; 0: it
 * does not wait. */
int hf3fs_iorcreate3(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int timeout, int numa);

/* Accepted without effect on haul: reads return what was written. */
#define HF3FS_IOR_ALLOW_READ_UNCOMMITTED 1
/* A read of a hole fails with ENODATA instead of returning zeros. */
#define HF3FS_IOR_FORBID_READ_HOLES 2
/* haul's own: a completed write survives a power failure. */
#define HAUL_IOR_DURABLE 4

/* With flags, and without a priority. */
int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int timeout, int numa, uint64_t flags);

/* No thread may be in a call with this ring. Operations in flight end without a completion, and may
 * use their buffers until then. Does nothing for NULL or a zeroed struct. */
void hf3fs_iordestroy(struct hf3fs_ior *ior);

/* Registers an open file for use by rings. Returns 0 or a negative number, which hf3fs_prep_io
 * accepts for the file, too; or a **positive** errno value: EBADF, the file system does not speak
 * USRBIO; ENOTCONN, its daemon has died; EINVAL, it is already registered; EMFILE, ENOMEM. The
 * registration holds a descriptor of its own, so it means this file until hf3fs_dereg_fd, even if
 * `fd` is closed and its number reused. `flags` is 0. */
int hf3fs_reg_fd(int fd, uint64_t flags);

/* Ends the registration, by either number. Does nothing if there is none. */
void hf3fs_dereg_fd(int fd);

/* The most operations in flight. */
int hf3fs_io_entries(const struct hf3fs_ior *ior);

/* Prepares a read of `len` bytes at `off` to `ptr` in the buffer, or a write from there. The daemon
 * may begin at once. Does not block. Returns the operation's index, from 0 to hf3fs_io_entries - 1,
 * which is free again once hf3fs_wait_for_ios has returned it; or:
 * EINVAL: the range is empty, outside the buffer, or beyond the size of any file, or the ring is
 * for the other direction; EBADF: the file is not registered; EACCES: it is not open for this
 * direction; EAGAIN: too many operations are in flight; ENOTCONN, EPROTO: as in a completion. */
int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr,
                  int fd, size_t off, uint64_t len, const void *userdata);

/* Notifies the daemon of what was prepared. Does not block. */
int hf3fs_submit_ios(const struct hf3fs_ior *ior);

/* Waits for `min_results` completions, at most `cqec`, and takes all there are up to `cqec`, in any
 * order. `abs_timeout` is a time of CLOCK_REALTIME; one in the past means not to wait. NULL: no
 * timeout. Returns how many were taken: fewer than `min_results` at the timeout, or when the daemon
 * dies. EINVAL; or ENOTCONN or EPROTO if the ring has failed and nothing is in flight. The death of
 * the daemon is noticed within about a second without a completion: each operation in flight then
 * completes with ENOTCONN. */
int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int cqec,
                       int min_results, const struct timespec *abs_timeout);

/* Makes a hard link to `target` on the same file system. Returns 0 or a **positive** errno value.
 */
int hf3fs_hardlink(const char *target, const char *link_name);

/* Makes holes of `n` ranges, at most 1,000, from start[i] up to, but not including, end[i]. Returns
 * 0 or a **positive** errno value. `flags` is passed to the daemon. */
int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags);

#ifdef __cplusplus
}
#endif

#endif
