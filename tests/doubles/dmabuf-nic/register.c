/* SPDX-License-Identifier: MIT
 * The replaced calls. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "inside.h"

struct dmabuf_nic dmabuf_nic;

/* O_APPEND keeps lines of concurrent programs whole. */
static void report(const char *line) {
  const char *path = getenv("HAUL_DMABUF_NIC_REPORT");
  int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
  if (file < 0)
    return;
  if (write(file, line, strlen(line)) < 0)
    fprintf(stderr, "dmabuf-nic: %s: %s\n", path, strerror(errno));
  close(file);
}

static __attribute__((destructor)) void sum_up(void) {
  char line[256];
  if (dmabuf_nic.probes + dmabuf_nic.registered + dmabuf_nic.refused + dmabuf_nic.violations == 0)
    return;
  snprintf(line, sizeof line, "%s probes=%u registered=%u ended=%u refused=%u violations=%u\n",
           program_invocation_short_name, dmabuf_nic.probes, dmabuf_nic.registered,
           dmabuf_nic.ended, dmabuf_nic.refused, dmabuf_nic.violations);
  report(line);
}

static __attribute__((format(printf, 2, 3))) int violates(int system, const char *format, ...) {
  char why[160], line[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why, sizeof why, format, arguments);
  va_end(arguments);
  dmabuf_nic.violations++;
  snprintf(line, sizeof line, "%s violation: %s\n", program_invocation_short_name, why);
  fprintf(stderr, "dmabuf-nic: %s", line);
  report(line);
  return system;
}

static int refuses(int system, const char *why) {
  dmabuf_nic.refused++;
  if (why)
    fprintf(stderr, "dmabuf-nic: %s\n", why);
  return system;
}

static bool is_mode(const char *wanted) {
  const char *mode = getenv("HAUL_DMABUF_NIC");
  return mode && strcmp(mode, wanted) == 0;
}

/* Checks, in the kernel's order: uverbs_std_types_mr.c, ib_verbs.h, umem_dmabuf.c */

#define TAKEN                                                                                      \
  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                     \
   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING)
#define NEED_LOCAL (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

struct range {
  uint64_t offset, length, iova;
};

static uint64_t in_page(uint64_t value) {
  return value & ((uint64_t)sysconf(_SC_PAGESIZE) - 1);
}

static int check_request(const struct range *range, unsigned access) {
  if (in_page(range->offset) != in_page(range->iova))
    return violates(EINVAL, "offset %#llx and iova %#llx lie differently in their pages",
                    (unsigned long long)range->offset, (unsigned long long)range->iova);
  if (access & ~(unsigned)TAKEN)
    return violates(EINVAL, "access %#x has flags that are not supported", access);
  if ((access & NEED_LOCAL) && !(access & IBV_ACCESS_LOCAL_WRITE))
    return violates(EINVAL, "access %#x: remote writing needs local writing", access);
  return 0;
}

static bool is_dmabuf(int descriptor) {
  char path[48], line[256];
  bool found = false;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", descriptor);
  FILE *file = fopen(path, "re");
  while (file && !found && fgets(line, sizeof line, file))
    found = strncmp(line, "exp_name:", 9) == 0;
  if (file)
    fclose(file);
  return found;
}

static int check_buffer(const struct range *range, int descriptor) {
  uint64_t end;
  if (fcntl(descriptor, F_GETFD) < 0)
    return violates(EBADF, "descriptor %d is not open", descriptor);
  if (!is_dmabuf(descriptor))
    return violates(EINVAL, "descriptor %d is no dma-buf", descriptor);
  if (range->length == 0 || __builtin_add_overflow(range->iova, range->length - 1, &end))
    return violates(EINVAL, "%llu bytes from iova %#llx on are no range",
                    (unsigned long long)range->length, (unsigned long long)range->iova);
  off_t size = lseek(descriptor, 0, SEEK_END); /* dma-bufs have no position that it would move */
  if (__builtin_add_overflow(range->offset, range->length, &end) || size < 0 ||
      end > (uint64_t)size)
    return violates(EINVAL, "%llu bytes from offset %#llx on do not lie in the buffer's %lld",
                    (unsigned long long)range->length, (unsigned long long)range->offset,
                    (long long)size);
  return 0;
}

static struct {
  pthread_mutex_t lock; /* guards the rest */
  struct living {
    struct living *next;
    struct ibv_mr *mr;
    int buffer; /* the kernel's registration refers to the dma-buf, so it stays open */
  } * first;
} living = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool keep(struct ibv_mr *mr, int buffer) {
  struct living *one = malloc(sizeof *one);
  if (!one)
    return false;
  one->mr = mr;
  one->buffer = fcntl(buffer, F_DUPFD_CLOEXEC, 0);
  pthread_mutex_lock(&living.lock);
  one->next = living.first;
  living.first = one;
  pthread_mutex_unlock(&living.lock);
  return true;
}

/* -1: not one of ours. */
static int forget(const struct ibv_mr *mr) {
  pthread_mutex_lock(&living.lock);
  struct living **at = &living.first;
  while (*at && (*at)->mr != mr)
    at = &(*at)->next;
  struct living *found = *at;
  if (found)
    *at = found->next;
  pthread_mutex_unlock(&living.lock);
  int buffer = found ? found->buffer : -1;
  free(found);
  return buffer;
}

typedef __typeof__(ibv_reg_mr_iova2) register_fn;
typedef __typeof__(ibv_dereg_mr) end_fn;

static int real_end(struct ibv_mr *mr) {
  void *found = real_verb("ibv_dereg_mr");
  end_fn *end;
  memcpy(&end, &found, sizeof end);
  return end(mr);
}

/* The registration pins the pages, so the mapping is not needed afterwards. */
static struct ibv_mr *register_behind(struct ibv_pd *pd, const struct range *range,
                                      const struct behind *behind, unsigned access) {
  uint64_t before = in_page(range->offset);
  size_t mapped = range->length + before;
  char *pages = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, behind->memfd,
                     (off_t)(behind->offset + range->offset - before));
  if (pages == MAP_FAILED)
    return NULL;
  void *found = real_verb("ibv_reg_mr_iova2");
  register_fn *real;
  memcpy(&real, &found, sizeof real);
  struct ibv_mr *mr = real(pd, pages + before, range->length, range->iova, access);
  int system = errno;
  munmap(pages, mapped);
  errno = system;
  return mr;
}

static int check_call(const struct range *range, int descriptor, unsigned access,
                      struct behind *behind) {
  if (is_mode("off"))
    return refuses(EOPNOTSUPP, NULL);
  int system = check_request(range, access);
  if (system)
    return system;
  if (descriptor == -1) {
    dmabuf_nic.probes++;
    return EBADF;
  }
  system = check_buffer(range, descriptor);
  if (system)
    return system;
  if (is_mode("full"))
    return refuses(ENOMEM, NULL);
  if (!find_behind(descriptor, behind))
    return refuses(EOPNOTSUPP, "the dma-buf was not made by this process, or its memory is closed");
  return 0;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access) {
  struct range range = {offset, length, iova};
  struct behind behind;
  int system = check_call(&range, fd, (unsigned)access, &behind);
  if (system) {
    errno = system;
    return NULL;
  }
  struct ibv_mr *mr = register_behind(pd, &range, &behind, (unsigned)access);
  if (!mr)
    return NULL;
  mr->addr = (void *)(uintptr_t)offset; /* as the real call leaves it */
  if (!keep(mr, fd)) {
    real_end(mr);
    errno = ENOMEM;
    return NULL;
  }
  dmabuf_nic.registered++;
  return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr) {
  int buffer = forget(mr); /* first: the address may be reused at once */
  int system = real_end(mr);
  if (buffer < 0)
    return system;
  close(buffer);
  if (system == 0)
    dmabuf_nic.ended++;
  return system;
}
