/* SPDX-License-Identifier: MIT */
#include "memory/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/error.h"
#include "core/fork.h"
#include "core/sys.h"
#include "core/wire.h"
#include "memory/pages.h"
#include "memory/provider.h"
#include "memory/ticket.h"

#define SHM_MAGIC   UINT64_C(0x31304d454d4c5548) /* "HULMEM01" in memory */
#define SHM_VERSION 1u

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* linux/memfd.h, since 6.3 */
#endif

const char *shm_udmabuf = "/dev/udmabuf";

/* Sets the size and seals it: an importer can neither shrink the file, which would raise SIGBUS in
 * others, nor add seals. */
static int size_and_seal(int fd, size_t size) {
  if (ftruncate(fd, (off_t)size) != 0)
    return error_system(errno, NULL, "ftruncate of a memfd");
  /* A memfd has mode 0777: a holder of a read-only descriptor could reopen it for writing through
   * /proc/self/fd. After this other users cannot. */
  if (fchmod(fd, 0600) != 0)
    return error_system(errno, NULL, "fchmod of a memfd");
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return error_system(errno, NULL, "sealing a memfd");
  return 0;
}

static int read_identity(int fd, uint64_t file[2]) {
  struct stat found;
  if (fstat(fd, &found) != 0)
    return error_system(errno, NULL, "fstat of a memfd");
  file[0] = found.st_dev;
  file[1] = found.st_ino;
  return 0;
}

static int map_footer(int fd, size_t length, int protection, struct shm_footer **footer) {
  void *page = sys_ops.mmap(NULL, page_size(), protection, MAP_SHARED, fd, (off_t)length);
  if (page == MAP_FAILED)
    return error_system(errno, NULL, "mmap of a memfd");
  *footer = page;
  return 0;
}

int shm_create(const char *name, size_t length, struct shm *shm) {
  *shm = (struct shm){.fd = -1};
  if (!page_round(length, &shm->length))
    return error_length(length);
  shm->fd = sys_ops.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (shm->fd < 0 && errno == EINVAL) /* before 6.3 */
    shm->fd = sys_ops.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (shm->fd < 0)
    return error_system(errno, NULL, "memfd_create");
  int status = size_and_seal(shm->fd, shm->length + page_size());
  if (status == 0)
    status = read_identity(shm->fd, shm->file);
  if (status == 0)
    status = map_footer(shm->fd, shm->length, PROT_READ | PROT_WRITE, &shm->footer);
  if (status != 0) {
    shm_close(shm);
    return status;
  }
  *shm->footer = (struct shm_footer){
      .magic = SHM_MAGIC, .alive = 1, .version = SHM_VERSION, .length = shm->length};
  random_bytes(shm->footer->capability, sizeof shm->footer->capability);
  return 0;
}

/* Only a sealed memfd on tmpfs cannot raise SIGBUS: hugetlbfs may run out of pages, and other files
 * may be truncated. */
static int check_descriptor(int fd, size_t size) {
  struct statfs system;
  struct stat file;
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 && errno == EBADF)
    return error_descriptor(errno, "the descriptor is not open");
  /* Do not call into another file system, such as FUSE, which may block. */
  if (seals < 0 || fstatfs(fd, &system) != 0 || fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) ||
      (uint64_t)system.f_type != TMPFS_MAGIC)
    return error_descriptor(0, "the descriptor is not shared memory");
  if (!(seals & F_SEAL_SHRINK))
    return error_descriptor(0, "the memory behind the descriptor is not sealed against shrinking");
  if (file.st_size < 0 || (uint64_t)file.st_size < size)
    return error_descriptor(0, "the memory behind the descriptor is smaller than the ticket says");
  return 0;
}

/* The footer is untrusted: each field is read once, and only `alive` is read again. */
static int check_footer(const struct shm_footer *footer, size_t length,
                        const uint8_t capability[16]) {
  uint8_t found[sizeof footer->capability];
  memcpy(found, footer->capability, sizeof found);
  if (footer->magic != SHM_MAGIC || footer->version != SHM_VERSION)
    return error_descriptor(0, "the memory behind the descriptor was not made by haul");
  if (memcmp(found, capability, sizeof found) != 0)
    return error_descriptor(0, "ticket and descriptor do not belong together");
  if (footer->length != length)
    return error_descriptor(0, "the ticket names another length than the memory has");
  if (atomic_load_explicit(&footer->alive, memory_order_acquire) != 1)
    return error_released(NULL);
  return 0;
}

int shm_attach(int fd, size_t length, const uint8_t capability[16], struct shm *shm) {
  *shm = (struct shm){.fd = -1};
  if (length == 0 || !page_round(length, &shm->length))
    return error_descriptor(0, "the ticket names an impossible length");
  int status = check_descriptor(fd, shm->length + page_size());
  if (status != 0)
    return status;
  status = map_footer(fd, shm->length, PROT_READ, &shm->footer);
  if (status != 0)
    return status;
  status = check_footer(shm->footer, shm->length, capability);
  if (status != 0)
    shm_close(shm);
  return status;
}

/* Fills an owner's ticket: the capability, and in extra the data's length, which may exceed the
 * ticket's, and the file. shm_import rejects another file, so that a holder of the ticket
 * cannot pass off memory of its own as the owner's. */
static void describe(const struct shm *shm, struct ticket *ticket) {
  memcpy(ticket->capability, shm->footer->capability, sizeof ticket->capability);
  struct wire wire = wire_over(ticket->extra, sizeof ticket->extra);
  wire_put64(&wire, shm->length);
  wire_put64(&wire, shm->file[0]);
  wire_put64(&wire, shm->file[1]);
}

/* Recent kernels align large mappings; else an aligned range is reserved first. */
static void *map_aligned(int fd, size_t length, int protection) {
  void *got = sys_ops.mmap(NULL, length, protection, MAP_SHARED, fd, 0);
  if (got == MAP_FAILED || pages_aligned(got, length))
    return got;
  munmap(got, length);
  void *base = pages_reserve(length);
  if (!base)
    return MAP_FAILED;
  got = sys_ops.mmap(base, length, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (got == MAP_FAILED) {
    int system = errno;
    munmap(base, length);
    errno = system;
  }
  return got;
}

int shm_map(int fd, const struct shm *shm, int protection, void *at, void **view) {
  void *got = at ? sys_ops.mmap(at, shm->length, protection, MAP_SHARED | MAP_FIXED, fd, 0)
                 : map_aligned(fd, shm->length, protection);
  if (got == MAP_FAILED && errno == EACCES)
    return error_descriptor(errno, "the descriptor does not allow what the ticket says");
  if (got == MAP_FAILED)
    return error_system(errno, NULL, "mmap of a memfd");
  pages_want_huge(got, shm->length);
  *view = got;
  return 0;
}

int shm_create_mapped(const char *name, size_t length, struct shm *shm, void **view) {
  int status = shm_create(name, length, shm);
  if (status != 0)
    return status;
  status = shm_map(shm->fd, shm, PROT_READ | PROT_WRITE, NULL, view);
  if (status != 0)
    shm_close(shm);
  return status;
}

int shm_import(int fd, const struct ticket *ticket, struct shm *shm, void **view) {
  int protection = PROT_READ | (ticket->rights & HAUL_WRITE ? PROT_WRITE : 0);
  struct wire wire = wire_over(ticket->extra, sizeof ticket->extra);
  uint64_t length = wire_get64(&wire);
  uint64_t device = wire_get64(&wire), inode = wire_get64(&wire);
  if (ticket->offset != 0 || ticket->length == 0 || ticket->length > length)
    return error_descriptor(0, "the ticket names an impossible range");
  int status = shm_attach(fd, length, ticket->capability, shm);
  if (status == 0)
    status = read_identity(fd, shm->file);
  if (status == 0 && (shm->file[0] != device || shm->file[1] != inode))
    status = error_descriptor(0, "the descriptor is of other memory than the ticket");
  if (status == 0)
    status = shm_map(fd, shm, protection, NULL, view);
  if (status != 0)
    shm_close(shm);
  return status;
}

int shm_descriptor(const struct shm *shm, bool writable, int *descriptor) {
  if (writable) {
    *descriptor = fcntl(shm->fd, F_DUPFD_CLOEXEC, 3);
    return *descriptor < 0 ? error_system(errno, NULL, "dup of a memfd") : 0;
  }
  /* A duplicate shares the open file and its write access, so open the file again; /proc has the
   * only path of a memfd. */
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", shm->fd);
  *descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (*descriptor >= 0)
    return 0;
  if (errno == ENOENT)
    return error_set(HAUL_ENOTSUP, errno, path,
                     "mount -t proc proc /proc, or export with HAUL_READ | HAUL_WRITE",
                     "without /proc there are no read-only descriptors");
  return error_system(errno, path, "open");
}

int shm_export(struct shm *shm, size_t length, unsigned rights, struct ticket *ticket,
               int *descriptor) {
  describe(shm, ticket);
  if (!descriptor)
    return 0;
  if (atomic_load_explicit(&shm->clear_from, memory_order_acquire) != length) {
    int status = shm_clear_behind(shm, length);
    if (status)
      return status;
    atomic_store_explicit(&shm->clear_from, length, memory_order_release);
  }
  return shm_descriptor(shm, rights & HAUL_WRITE, descriptor);
}

int shm_clear_behind(const struct shm *shm, size_t length) {
  static const char zeros[256];
  size_t page_end;
  if (length >= shm->length || !page_round(length, &page_end))
    return 0;
  for (size_t at = length; at < page_end;) {
    size_t left = page_end - at;
    ssize_t done = pwrite(shm->fd, zeros, left < sizeof zeros ? left : sizeof zeros, (off_t)at);
    if (done <= 0)
      return error_system(errno, NULL, "pwrite to a memfd");
    at += (size_t)done;
  }
  if (page_end < shm->length && fallocate(shm->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                          (off_t)page_end, (off_t)(shm->length - page_end)) != 0)
    return error_system(errno, NULL, "fallocate of a memfd");
  return 0;
}

bool shm_has_dmabuf(void) {
  return access(shm_udmabuf, R_OK | W_OK) == 0;
}

#define LOAD  "sudo modprobe udmabuf"
#define ALLOW "sudo setfacl -m u:$USER:rw /dev/udmabuf"

/* The loaded module's file belongs to root. */
static int error_udmabuf(int system) {
  if (system == ENOENT)
    return error_set(HAUL_ENOTSUP, system, shm_udmabuf, geteuid() == 0 ? LOAD : LOAD " && " ALLOW,
                     "the kernel has no /dev/udmabuf (its module udmabuf makes it)");
  if (system == EACCES || system == EPERM)
    return error_set(HAUL_ENOTSUP, system, shm_udmabuf, ALLOW, "no access to /dev/udmabuf");
  return error_set(HAUL_ENOTSUP, system, shm_udmabuf, LOAD, "/dev/udmabuf cannot be opened: %s",
                   strerror(system));
}

int shm_dmabuf_check(void) {
  return shm_has_dmabuf() ? 0 : error_udmabuf(errno);
}

int shm_dmabuf(const struct shm *shm, int *descriptor) {
  int device = open(shm_udmabuf, O_RDWR | O_CLOEXEC);
  if (device < 0)
    return error_udmabuf(errno);
  /* Without the footer, which devices must not access. */
  struct udmabuf_create create = {
      .memfd = (uint32_t)shm->fd, .flags = UDMABUF_FLAGS_CLOEXEC, .offset = 0, .size = shm->length};
  *descriptor = ioctl(device, UDMABUF_CREATE, &create);
  int system = errno;
  close(device);
  if (*descriptor >= 0)
    return 0;
  if (system == EINVAL) /* no other cause: the memfd is sealed, and the size is whole pages */
    return error_set(HAUL_ELIMIT, EINVAL, "/dev/udmabuf",
                     error_hint("echo %zu | sudo tee /sys/module/udmabuf/parameters/size_limit_mb",
                                (shm->length + ((1u << 20) - 1)) >> 20),
                     "the kernel makes no dma-buf of %zu bytes", shm->length);
  return error_system(system, "/dev/udmabuf", "UDMABUF_CREATE");
}

void shm_retire(struct shm *shm) {
  if (shm->fd >= 0 && !fork_is_child())
    atomic_store_explicit(&shm->footer->alive, 0, memory_order_release);
}

void shm_close(struct shm *shm) {
  if (shm->footer)
    munmap(shm->footer, page_size());
  if (shm->fd >= 0)
    close(shm->fd);
  *shm = (struct shm){.fd = -1};
}
