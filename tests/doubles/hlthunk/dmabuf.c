/* SPDX-License-Identifier: MIT
 * Mock of libhl-thunk.so: dma-bufs. Where the kernel makes dma-bufs of memfds (/dev/udmabuf)
 * they are real ones of the page's own bytes, which a NIC takes; else a descriptor that only knows
 * whether it is open. */
#include "hlthunk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Closes the memfd unless it is needed, as a real device page uses no descriptor. */
void keep_for_dmabufs(struct page *page, int memory) {
  bool real = access("/dev/udmabuf", R_OK | W_OK) == 0;
  page->memory = real ? memory : -1;
  if (real)
    fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK);
  else
    close(memory);
}

static bool has(int descriptor, const struct dma_buf *one) {
  struct stat file;
  return fstat(descriptor, &file) == 0 && file.st_ino == one->file && file.st_dev == one->device;
}

/* There is no event for the end of a real one: it counts as open while this process has it open. */
static bool has_descriptor(const struct dma_buf *one) {
  bool found = false;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder)
    abort();
  for (const struct dirent *entry; !found && (entry = readdir(folder));)
    found = entry->d_name[0] != '.' && has((int)strtol(entry->d_name, NULL, 10), one);
  closedir(folder);
  return found;
}

static bool is_open(const struct dma_buf *one) {
  if (one->watch < 0)
    return has_descriptor(one);
  struct pollfd end = {.fd = one->watch, .events = POLLIN};
  poll(&end, 1, 0);
  return !(end.revents & POLLHUP);
}

bool context_exports(struct context *context, uint64_t base) {
  bool open = false;
  for (struct dma_buf **link = &context->exports; *link;) {
    struct dma_buf *one = *link;
    if (is_open(one)) {
      open |= base == 0 || one->base == base;
      link = &one->next;
      continue;
    }
    *link = one->next;
    if (one->watch >= 0)
      close(one->watch);
    free(one);
  }
  return open;
}

static int make_real(const struct page *page, uint64_t offset, uint64_t size, struct dma_buf *one) {
  struct stat file;
  struct udmabuf_create create = {.memfd = (uint32_t)page->memory,
                                  .flags = UDMABUF_FLAGS_CLOEXEC,
                                  .offset = offset,
                                  .size = size};
  int maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  int made = maker < 0 ? -1 : ioctl(maker, UDMABUF_CREATE, &create);
  if (maker >= 0)
    close(maker);
  if (made < 0 || fstat(made, &file) != 0)
    return -1;
  one->file = file.st_ino;
  one->device = file.st_dev;
  one->watch = -1;
  return made;
}

static int make_pipe(struct dma_buf *one) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    abort();
  one->watch = ends[0];
  return ends[1];
}

static int export_page(struct context *context, const struct page *page, uint64_t offset,
                       uint64_t size) {
  struct dma_buf *one = calloc(1, sizeof *one);
  if (!one)
    abort();
  int made = page->memory < 0 ? make_pipe(one) : make_real(page, offset, size, one);
  if (made < 0) {
    free(one);
    return -ENOMEM;
  }
  one->base = page->base;
  one->next = context->exports;
  context->exports = one;
  return made;
}

int hlthunk_device_mapped_memory_export_dmabuf_fd(int fd, uint64_t address, uint64_t size,
                                                  uint64_t offset, uint32_t flags) {
  int code = -EINVAL;
  if (flags != (O_RDWR | O_CLOEXEC) || address % STEP || size % STEP || offset % STEP || size == 0)
    return -EINVAL;
  if (double_fails("export"))
    return -errno;
  pthread_mutex_lock(&double_lock);
  struct context *context = double_context(fd);
  for (struct page *page = context ? context->pages : NULL; page; page = page->next)
    if (page->base == address && size <= page->size && offset <= page->size - size)
      code = export_page(context, page, offset, size);
  pthread_mutex_unlock(&double_lock);
  return code;
}
