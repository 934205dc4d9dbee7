/* SPDX-License-Identifier: MIT
 * Host memory: anonymous when it is private, a memfd when it is to be shared, a file's page cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/error.h"
#include "core/sys.h"
#include "memory/pages.h"
#include "memory/provider.h"
#include "memory/shm.h"
#include "memory/ticket.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22 /* linux/mman.h, since 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

extern const struct provider provider_host;

struct block {
  size_t mapped;  /* bytes at the memory's address */
  struct shm shm; /* without footer for private memory */
};

static void describe(unsigned device, struct haul_device *info) {
  (void)device;
  info->numa = -1;
  info->memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * page_size();
  snprintf(info->name, sizeof info->name, "host memory");
  snprintf(info->exports, sizeof info->exports, "memfd");
}

/* ---- allocation ---- */

static int map_private(struct block *block, size_t length, void **address) {
  if (!page_round(length, &block->mapped))
    return error_set(HAUL_ENOMEM, 0, NULL, "ask for less", "%zu bytes are more than any memory has",
                     length);
  void *base = pages_reserve(block->mapped);
  if (!base)
    return error_system(errno, NULL, "mmap");
  /* Mapped anew rather than made accessible, as the reservation escaped the kernel's accounting. */
  *address = sys_ops.mmap(base, block->mapped, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (*address == MAP_FAILED) {
    int system = errno;
    munmap(base, block->mapped);
    return error_system(system, NULL, "mmap");
  }
  pages_want_huge(*address, block->mapped);
  return 0;
}

static int map_shared(struct block *block, size_t length, void **address) {
  int status = shm_create("haul-host", length, &block->shm);
  if (status != 0)
    return status;
  block->mapped = block->shm.length;
  status = shm_map(block->shm.fd, &block->shm, PROT_READ | PROT_WRITE, NULL, address);
  if (status != 0)
    shm_close(&block->shm);
  return status;
}

static struct block *new_block(void) {
  struct block *block = alloc_zero(1, sizeof *block);
  if (!block)
    error_memory("host memory");
  else
    block->shm.fd = -1;
  return block;
}

static int host_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory) {
  (void)device;
  struct block *block = new_block();
  if (!block)
    return HAUL_ENOMEM;
  bool private = flags & HAUL_REGION_PRIVATE;
  int status = private ? map_private(block, length, &memory->address)
                       : map_shared(block, length, &memory->address);
  if (status != 0) {
    alloc_free(block);
    return status;
  }
  memory->view = memory->address;
  memory->length = length;
  memory->wrapped = memory->imported = false;
  memory->shareable = !private;
  memory->writable = true;
  memory->alive = NULL;
  memory->state = block;
  return 0;
}

static char *page_of(const void *address) {
  return (char *)((uintptr_t)address & ~(uintptr_t)(page_size() - 1));
}

static void host_free(struct memory *memory) {
  struct block *block = memory->state;
  if (!block) /* wrapped */
    return;
  shm_retire(&block->shm);
  munmap(page_of(memory->address), block->mapped);
  shm_close(&block->shm);
  alloc_free(block);
}

/* ---- the caller's own memory ---- */

static int unusable(const void *address, size_t length, const char *why) {
  char object[64];
  snprintf(object, sizeof object, "%p+%zu", address, length);
  return error_set(HAUL_EINVAL, 0, object, "check address and length", "%s", why);
}

/* Can the CPU read the first and the last byte? Asked of the kernel, as looking would be fatal. The
 * range is this call's local side: the kernel pins pages of the remote one, and those of a device's
 * mapping (a dma-buf's) cannot be pinned although the CPU reads them. */
static bool is_readable(const void *address, size_t length) {
  char probe[2];
  char *first = (char *)(uintptr_t)address;
  struct iovec local[2] = {{first, 1}, {first + length - 1, 1}};
  struct iovec remote = {probe, sizeof probe};
  ssize_t got = sys_ops.vm_write(getpid(), local, 2, &remote, 1, 0);
  /* A sandbox may forbid the call; then the caller is believed. */
  return got == 2 || (got < 0 && errno != EFAULT);
}

static int host_owns(const void *address, size_t length, struct haul_place *place) {
  char *page = page_of(address);
  /* MS_ASYNC does nothing (msync(2), NOTES) but to look for holes among the mappings, whatever the
   * number of pages. */
  if (msync(page, (size_t)((const char *)address - page) + length, MS_ASYNC) != 0)
    return unusable(address, length, "part of the range is not mapped");
  if (!is_readable(address, length))
    return unusable(address, length, "the range is mapped without access");
  *place = (struct haul_place){HAUL_HOST, 0};
  return 1;
}

/* Does a write fault at this page? Unknown (before Linux 5.14, special mappings) counts as no. */
static bool is_read_only(void *page) {
  return madvise(page, page_size(), MADV_POPULATE_WRITE) != 0 &&
         madvise(page, page_size(), MADV_POPULATE_READ) == 0;
}

static int host_wrap(void *address, size_t length, struct memory *memory) {
  memory->address = memory->view = address;
  memory->length = length;
  memory->wrapped = true;
  memory->shareable = memory->imported = false;
  memory->writable =
      !is_read_only(page_of(address)) && !is_read_only(page_of((char *)address + length - 1));
  memory->alive = NULL;
  memory->state = NULL;
  return 0;
}

/* ---- a file ---- */

static int check_file(int descriptor, uint64_t offset, size_t length) {
  struct stat status;
  struct statfs system;
  uint64_t end;
  if (fstat(descriptor, &status) != 0)
    return error_set(HAUL_EINVAL, errno, NULL, "is the file still open?", "fstat: %s",
                     strerror(errno));
  if (!S_ISREG(status.st_mode))
    return error_set(HAUL_EINVAL, 0, NULL, "read it into a region that was allocated",
                     "this is no regular file");
  if (fstatfs(descriptor, &system) == 0 && system.f_type == HUGETLBFS_MAGIC)
    return error_set(HAUL_ENOTSUP, 0, NULL, "map it, and use haul_region_wrap",
                     "files of hugetlbfs are not mapped by parts");
  if (length == 0)
    return error_set(HAUL_EINVAL, 0, NULL, "give it a length", "the range is empty");
  if (__builtin_add_overflow(offset, length, &end) || end > (uint64_t)status.st_size)
    return error_set(HAUL_ERANGE, 0, NULL, "is it the right one, and written whole?",
                     "the file has %lld bytes", (long long)status.st_size);
  return 0;
}

static int no_mapping(int system) {
  if (system == EACCES)
    return error_set(HAUL_EINVAL, system, NULL, "open it so", "the file is not open for reading");
  if (system == ENODEV)
    return error_set(HAUL_ENOTSUP, system, NULL, "read it into a region that was allocated",
                     "its file system maps no files");
  return error_system(system, NULL, "mmap");
}

static int map_file(struct block *block, int descriptor, uint64_t offset, size_t length,
                    void **address) {
  size_t within = (size_t)(offset % page_size());
  if (!page_round(within + length, &block->mapped) || offset > INT64_MAX)
    return error_set(HAUL_ERANGE, 0, NULL, "wrap it by parts",
                     "%zu bytes are more than one mapping takes", length);
  char *base = sys_ops.mmap(NULL, block->mapped, PROT_READ, MAP_SHARED, descriptor,
                            (off_t)(offset - within));
  if (base == MAP_FAILED)
    return no_mapping(errno);
  *address = base + within;
  return 0;
}

static int host_wrap_file(int descriptor, uint64_t offset, size_t length, struct memory *memory) {
  int status = check_file(descriptor, offset, length);
  if (status != 0)
    return status;
  struct block *block = new_block();
  if (!block)
    return HAUL_ENOMEM;
  status = map_file(block, descriptor, offset, length, &memory->address);
  if (status != 0) {
    alloc_free(block);
    return status;
  }
  memory->view = memory->address;
  memory->length = length;
  memory->state = block;
  return 0;
}

/* ---- sharing ---- */

static int host_export(struct memory *memory, unsigned rights, struct ticket *ticket,
                       int *descriptor) {
  struct block *block = memory->state;
  return shm_export(&block->shm, memory->length, rights, ticket, descriptor);
}

static int host_import(const struct ticket *ticket, int descriptor, struct memory *memory) {
  struct block *block = new_block();
  if (!block)
    return HAUL_ENOMEM;
  memory->writable = ticket->rights & HAUL_WRITE;
  int status = shm_attach_ticket(descriptor, ticket, &block->shm);
  if (status != 0)
    goto not_attached;
  status = shm_map(descriptor, &block->shm, PROT_READ | (memory->writable ? PROT_WRITE : 0), NULL,
                   &memory->address);
  if (status != 0)
    goto not_mapped;
  block->mapped = block->shm.length;
  memory->view = memory->address;
  memory->length = ticket->length;
  memory->wrapped = memory->shareable = false;
  memory->imported = true;
  memory->alive = &block->shm.footer->alive;
  memory->state = block;
  return 0;

not_mapped:
  shm_close(&block->shm);
not_attached:
  alloc_free(block);
  return status;
}

static int host_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset) {
  if (!memory->shareable)
    return error_set(HAUL_ENOTSUP, 0, "host",
                     "allocate it with haul_region_alloc, without HAUL_REGION_PRIVATE",
                     "host memory that is private, wrapped or imported has no dma-buf");
  *offset = 0;
  struct block *block = memory->state;
  return shm_dmabuf(&block->shm, descriptor);
}

/* ---- checks ---- */

#define THP "/sys/kernel/mm/transparent_hugepage/"

/* The chosen word of a file like "always [madvise] never"; empty where there is none. */
static void chosen_word(const char *path, char *word, size_t size) {
  char text[128];
  word[0] = '\0';
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  text[got > 0 ? got : 0] = '\0';
  char *from = strchr(text, '['), *to = from ? strchr(from, ']') : NULL;
  if (to)
    snprintf(word, size, "%.*s", (int)(to - from - 1), from + 1);
}

static void check_huge(struct haul_check *check, const char *name, const char *file,
                       const char *wanted) {
  char path[96], word[16];
  snprintf(path, sizeof path, THP "%s", file);
  chosen_word(path, word, sizeof word);
  check_begin(check, "host", name);
  snprintf(check->text, sizeof check->text, "%s says %s", path, word[0] ? word : "nothing");
  if (word[0] && strcmp(word, "never") != 0 && strcmp(word, "deny") != 0)
    return;
  check->state = HAUL_CHECK_LIMITED;
  if (word[0])
    snprintf(check->remedy, sizeof check->remedy, "echo %s | sudo tee %s", wanted, path);
}

static void check_memfd(struct haul_check *check) {
  check_begin(check, "host", "memfd");
  int fd = sys_ops.memfd_create("haul-check", MFD_CLOEXEC);
  if (fd >= 0) {
    close(fd);
    snprintf(check->text, sizeof check->text, "memory can be shared through descriptors");
    return;
  }
  check->state = HAUL_CHECK_MISSING;
  snprintf(check->text, sizeof check->text, "memfd_create: %s; only private memory works",
           strerror(errno));
  snprintf(check->remedy, sizeof check->remedy,
           errno == EMFILE ? "ulimit -n 65536" : "allow memfd_create in this sandbox's filter");
}

static void check_proc(struct haul_check *check) {
  check_begin(check, "host", "proc");
  if (access("/proc/self/fd", X_OK) == 0) {
    snprintf(check->text, sizeof check->text, "/proc is there: memory can be shared read-only");
    return;
  }
  check->state = HAUL_CHECK_LIMITED;
  snprintf(check->text, sizeof check->text,
           "no /proc: memory can be shared only with write access");
  snprintf(check->remedy, sizeof check->remedy, "sudo mount -t proc proc /proc");
}

static void check_descriptors(struct haul_check *check) {
  struct rlimit limit = {0, 0};
  check_begin(check, "host", "descriptors");
  getrlimit(RLIMIT_NOFILE, &limit);
  snprintf(check->text, sizeof check->text,
           "this process may hold %llu descriptors; each shared region takes one",
           (unsigned long long)limit.rlim_cur);
  if (limit.rlim_cur >= 4096)
    return;
  check->state = HAUL_CHECK_LIMITED;
  snprintf(check->remedy, sizeof check->remedy, "ulimit -n %llu",
           limit.rlim_max > 65536 ? 65536ULL : (unsigned long long)limit.rlim_max);
}

static size_t host_checks(struct haul_check *checks, size_t room) {
  struct haul_check all[5];
  check_huge(&all[0], "huge-pages", "enabled", "madvise");
  check_huge(&all[1], "shared-huge-pages", "shmem_enabled", "advise");
  check_memfd(&all[2]);
  check_proc(&all[3]);
  check_descriptors(&all[4]);
  size_t count = sizeof all / sizeof all[0];
  for (size_t i = 0; i < count && i < room; i++)
    checks[i] = all[i];
  return count;
}

const struct provider provider_host = {
    .name = "host",
    .kind = HAUL_HOST,
    .proven = true,
    .copy_bytes_per_ns = 12,
    .copy_latency_ns = 50,
    .describe = describe,
    .checks = host_checks,
    .alloc = host_alloc,
    .free = host_free,
    .owns = host_owns,
    .wrap = host_wrap,
    .wrap_file = host_wrap_file,
    .export = host_export,
    .import = host_import,
    .dmabuf = host_dmabuf,
};
