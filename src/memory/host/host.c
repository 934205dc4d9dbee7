/* SPDX-License-Identifier: MIT
 * Host memory: anonymous if private, a memfd if shareable, or a file's page cache. */
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

extern const struct provider provider_host;

struct block {
  size_t mapped;  /* bytes at the memory's address */
  struct shm shm; /* private memory: no footer */
};

static void host_describe(unsigned device, struct haul_device *info) {
  (void)device;
  info->numa = -1;
  info->memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * page_size();
  snprintf(info->name, sizeof info->name, "host memory");
  snprintf(info->exports, sizeof info->exports, "memfd");
}

static int map_private(struct block *block, size_t length, void **address) {
  if (!page_round(length, &block->mapped))
    return error_length(length);
  void *base = pages_reserve(block->mapped);
  if (!base)
    return error_system(errno, NULL, "mmap");
  /* A new mapping instead of mprotect, as MAP_NORESERVE exempts the reservation from memory
   * accounting. */
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
                       : shm_create_mapped("haul-host", length, &block->shm, &memory->address);
  if (status != 0) {
    alloc_free(block);
    return status;
  }
  if (!private)
    block->mapped = block->shm.length;
  memory->view = memory->address;
  memory->length = length;
  memory->shareable = !private;
  memory->writable = true;
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

/* Can the CPU read the first and the last byte? Ask the kernel, as an access could fault. The range
 * is the call's local side: pages of the remote side are pinned, which fails for a device's mapping
 * (dma-buf). */
static bool is_readable(const void *address, size_t length) {
  char probe[2];
  char *first = (char *)(uintptr_t)address;
  struct iovec local[2] = {{first, 1}, {first + length - 1, 1}};
  struct iovec remote = {probe, sizeof probe};
  ssize_t got = sys_ops.vm_write(getpid(), local, 2, &remote, 1, 0);
  /* If a sandbox forbids the call, trust the caller. */
  return got == 2 || (got < 0 && errno != EFAULT);
}

static int host_owns(const void *address, size_t length, struct haul_place *place) {
  char *page = page_of(address);
  /* MS_ASYNC only checks for unmapped holes (msync(2), NOTES), at any number of pages. */
  if (msync(page, (size_t)((const char *)address - page) + length, MS_ASYNC) != 0)
    return error_range(address, length, "check address and length",
                       "part of the range is not mapped");
  if (!is_readable(address, length))
    return error_range(address, length, "check address and length",
                       "the range is mapped without access");
  *place = (struct haul_place){HAUL_HOST, 0};
  return 1;
}

/* Is this page mapped read-only? If unknown (before Linux 5.14, special mappings): no. */
static bool is_read_only(void *page) {
  return madvise(page, page_size(), MADV_POPULATE_WRITE) != 0 &&
         madvise(page, page_size(), MADV_POPULATE_READ) == 0;
}

static int host_wrap(void *address, size_t length, struct memory *memory) {
  memory->address = memory->view = address;
  memory->length = length;
  memory->wrapped = true;
  memory->writable =
      !is_read_only(page_of(address)) && !is_read_only(page_of((char *)address + length - 1));
  return 0;
}

static int check_file(int descriptor, uint64_t offset, size_t length) {
  struct stat status;
  struct statfs system;
  uint64_t end;
  if (fstat(descriptor, &status) != 0)
    return error_set(HAUL_EINVAL, errno, NULL, "pass an open descriptor", "fstat: %s",
                     strerror(errno));
  if (!S_ISREG(status.st_mode))
    return error_set(HAUL_EINVAL, 0, NULL, "read it into a region that was allocated",
                     "this is no regular file");
  if (fstatfs(descriptor, &system) == 0 && system.f_type == HUGETLBFS_MAGIC)
    return error_set(HAUL_ENOTSUP, 0, NULL, "map the file, and use haul_region_wrap",
                     "parts of hugetlbfs files cannot be mapped");
  if (length == 0)
    return error_set(HAUL_EINVAL, 0, NULL, "pass a length greater than 0", "the range is empty");
  if (__builtin_add_overflow(offset, length, &end) || end > (uint64_t)status.st_size)
    return error_set(HAUL_ERANGE, 0, NULL, "check that it is the right file and complete",
                     "the file has %lld bytes", (long long)status.st_size);
  return 0;
}

static int no_mapping(int system) {
  if (system == EACCES)
    return error_set(HAUL_EINVAL, system, NULL, "open it for reading",
                     "the file is not open for reading");
  if (system == ENODEV)
    return error_set(HAUL_ENOTSUP, system, NULL, "read it into a region that was allocated",
                     "its file system does not support mmap");
  return error_system(system, NULL, "mmap");
}

static int map_file(struct block *block, int descriptor, uint64_t offset, size_t length,
                    void **address) {
  size_t within = (size_t)(offset % page_size());
  if (!page_round(within + length, &block->mapped) || offset > INT64_MAX)
    return error_set(HAUL_ERANGE, 0, NULL, "wrap it in parts",
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

static int host_export(struct memory *memory, unsigned rights, struct ticket *ticket,
                       int *descriptor) {
  struct block *block = memory->state;
  return shm_export(&block->shm, memory->length, rights, ticket, descriptor);
}

static int host_import(const struct ticket *ticket, int descriptor, struct memory *memory) {
  struct block *block = new_block();
  if (!block)
    return HAUL_ENOMEM;
  int status = shm_import(descriptor, ticket, &block->shm, &memory->address);
  if (status != 0) {
    alloc_free(block);
    return status;
  }
  block->mapped = block->shm.length;
  memory->view = memory->address;
  memory->length = ticket->length;
  memory->writable = ticket->rights & HAUL_WRITE;
  memory->imported = true;
  memory->alive = &block->shm.footer->alive;
  memory->state = block;
  return 0;
}

static int host_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset) {
  if (!memory->shareable)
    return error_set(HAUL_ENOTSUP, 0, "host",
                     "allocate it with haul_region_alloc without HAUL_REGION_PRIVATE",
                     "host memory that is private, wrapped or imported has no dma-buf");
  *offset = 0;
  struct block *block = memory->state;
  return shm_dmabuf(&block->shm, descriptor);
}

#define THP "/sys/kernel/mm/transparent_hugepage/"

/* The selected word of a file such as "always [madvise] never"; empty if there is none. */
static void chosen_word(const char *path, char *word, size_t size) {
  char text[128];
  word[0] = '\0';
  file_read(path, text, sizeof text);
  char *from = strchr(text, '['), *to = from ? strchr(from, ']') : NULL;
  if (to)
    snprintf(word, size, "%.*s", (int)(to - from - 1), from + 1);
}

static void check_huge_file(struct haul_check *check, const char *file, const char *wanted) {
  char path[96], word[16];
  snprintf(path, sizeof path, THP "%s", file);
  chosen_word(path, word, sizeof word);
  bool off = !word[0] || strcmp(word, "never") == 0 || strcmp(word, "deny") == 0;
  check_set(check, off ? HAUL_CHECK_LIMITED : HAUL_CHECK_OK, "%s says %s", path,
            word[0] ? word : "nothing");
  if (off && word[0])
    check_hint(check, "echo %s | sudo tee %s", wanted, path);
}

static void check_huge(struct haul_check *check) {
  check_huge_file(check, "enabled", "madvise");
}

static void check_shared_huge(struct haul_check *check) {
  check_huge_file(check, "shmem_enabled", "advise");
}

static void check_memfd(struct haul_check *check) {
  int fd = sys_ops.memfd_create("haul-check", MFD_CLOEXEC);
  if (fd >= 0) {
    close(fd);
    check_set(check, HAUL_CHECK_OK, "memory can be shared through descriptors");
    return;
  }
  check_set(check, HAUL_CHECK_MISSING, "memfd_create: %s; only private memory works",
            strerror(errno));
  check_hint(check,
             errno == EMFILE ? "ulimit -n 65536" : "allow memfd_create in this sandbox's filter");
}

static void check_proc(struct haul_check *check) {
  if (access("/proc/self/fd", X_OK) == 0) {
    check_set(check, HAUL_CHECK_OK, "/proc is there: memory can be shared read-only");
    return;
  }
  check_set(check, HAUL_CHECK_LIMITED, "no /proc: memory can be shared only with write access");
  check_hint(check, "sudo mount -t proc proc /proc");
}

static void check_descriptors(struct haul_check *check) {
  struct rlimit limit = {0, 0};
  getrlimit(RLIMIT_NOFILE, &limit);
  check_set(check, limit.rlim_cur >= 4096 ? HAUL_CHECK_OK : HAUL_CHECK_LIMITED,
            "this process may hold %llu descriptors; each shared region takes one",
            (unsigned long long)limit.rlim_cur);
  if (limit.rlim_cur >= 4096)
    return;
  if (limit.rlim_max >= 4096)
    check_hint(check, "ulimit -n %llu",
               limit.rlim_max > 65536 ? 65536ULL : (unsigned long long)limit.rlim_max);
  else
    check_hint(check,
               "echo \"$USER - nofile 65536\" | sudo tee /etc/security/limits.d/nofile.conf, "
               "then log in again (for a service: LimitNOFILE=65536)");
}

static size_t host_checks(struct haul_check *checks, size_t room) {
  static const struct check_entry all[] = {
      {"huge-pages", check_huge}, {"shared-huge-pages", check_shared_huge}, {"memfd", check_memfd},
      {"proc", check_proc},       {"descriptors", check_descriptors},
  };
  return check_run("host", all, sizeof all / sizeof all[0], checks, room);
}

const struct provider provider_host = {
    .name = "host",
    .kind = HAUL_HOST,
    .proven = true,
    .copy_bytes_per_ns = 12,
    .copy_latency_ns = 50,
    .describe = host_describe,
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
