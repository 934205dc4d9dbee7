/* SPDX-License-Identifier: MIT
 * Reads files into regions: straight into the memory where its place and the file permit it, the
 * rest through host memory. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/cufile.h"
#include "file/module.h"

#define CHUNK     ((size_t)2 << 20) /* of staged bytes */
#define ALIGN_MAX 65536u            /* of O_DIRECT: powers of two up to it divide CHUNK */

struct haul_file {
  int fd, direct;                      /* the same with O_DIRECT, or -1 */
  uint32_t memory_align, offset_align; /* O_DIRECT's, of addresses; of offsets and lengths */
  char no_direct[REASON_ROOM];
  pthread_mutex_t lock; /* guards the rest */
  bool tried;
  struct cufile *cufile; /* opened by the first read into GPU memory; NULL: */
  char no_cufile[REASON_ROOM];
};

static const struct file_library *library;

/* A call of haul_file_read. */
struct reading {
  struct haul_file *file;
  haul_region *to;
  uint64_t offset, at;
  size_t length, done;
  bool direct_only;
  struct haul_file_report *report;
};

static off_t offset_of(const struct reading *reading) {
  return (off_t)(reading->offset + reading->done);
}

static void add_direct(struct reading *reading, size_t bytes) {
  reading->done += bytes;
  reading->report->direct += bytes;
}

static void set_path(struct reading *reading, const char *path, const char *detail) {
  snprintf(reading->report->path, sizeof reading->report->path, "%s", path);
  snprintf(reading->report->detail, sizeof reading->report->detail, "%s", detail);
}

static ssize_t read_some(int fd, void *to, size_t length, off_t offset) {
  ssize_t got;
  do
    got = pread(fd, to, length, offset);
  while (got < 0 && errno == EINTR);
  return got;
}

/* For the bytes that do not go straight to the memory. */
static int check_permitted(const struct reading *reading) {
  if (!reading->direct_only)
    return 0;
  return library->error(HAUL_ENOPATH, 0, NULL, "read without HAUL_REQUIRE_ZERO_COPY", "%.180s",
                        reading->report->reason);
}

static int fail_read(int system) {
  return library->error_system(system, "the file", "read");
}

/* ---- Memory that the CPU accesses ---- */

static char *address_of(const struct reading *reading) {
  return (char *)library->address(reading->to) + reading->at + reading->done;
}

/* Through the page cache, up to `end`. */
static int read_cached(struct reading *reading, size_t end) {
  while (reading->done < end) {
    ssize_t got =
        read_some(reading->file->fd, address_of(reading), end - reading->done, offset_of(reading));
    if (got < 0)
      return fail_read(errno);
    if (got == 0)
      break;
    reading->done += (size_t)got;
  }
  return 0;
}

/* Up to `end`, or to where O_DIRECT fails or the file ends. */
static void read_direct(struct reading *reading, size_t end) {
  while (reading->done < end) {
    ssize_t got = read_some(reading->file->direct, address_of(reading), end - reading->done,
                            offset_of(reading));
    if (got < 0)
      snprintf(reading->report->reason, REASON_ROOM, "the kernel refused O_DIRECT: %s%s",
               strerror(errno), errno == EREMOTEIO ? " (no way from this disk to the memory)" : "");
    if (got <= 0)
      break;
    add_direct(reading, (size_t)got);
    if ((size_t)got % reading->file->offset_align != 0)
      break;
  }
}

/* Bytes before the first that O_DIRECT takes, and the end of those that it takes; the same if it
 * takes none, with the reason. */
static void find_aligned(const struct reading *reading, size_t *head, size_t *end) {
  const struct haul_file *file = reading->file;
  char *reason = reading->report->reason;
  *head = *end = 0;
  if (file->direct < 0) {
    snprintf(reason, REASON_ROOM, "%s", file->no_direct);
    return;
  }
  size_t align = file->offset_align, before = (align - reading->offset % align) % align;
  if (before >= reading->length || reading->length - before < align)
    snprintf(reason, REASON_ROOM, "the range has no whole block of %zu bytes for O_DIRECT", align);
  else if ((uintptr_t)(address_of(reading) + before) % file->memory_align != 0)
    snprintf(reason, REASON_ROOM,
             "offset %llu of the file and the address do not fit O_DIRECT's alignment, %zu and %u",
             (unsigned long long)reading->offset, align, file->memory_align);
  else {
    *head = before;
    *end = before + (reading->length - before) / align * align;
    if (before > 0 || *end < reading->length)
      snprintf(reason, REASON_ROOM,
               "%zu bytes at the start and %zu at the end are no whole blocks of %zu for O_DIRECT",
               before, reading->length - *end, align);
  }
}

static int read_mapped(struct reading *reading, const char *detail) {
  size_t head, end;
  find_aligned(reading, &head, &end);
  int code = head == 0 && end == reading->length ? 0 : check_permitted(reading);
  if (code == 0)
    code = read_cached(reading, head);
  if (code || reading->done < head)
    return code;
  read_direct(reading, end);
  if (reading->done < end)
    code = *reading->report->reason ? check_permitted(reading) : 0;
  if (code == 0)
    code = read_cached(reading, reading->length);
  if (reading->report->direct * 2 >= reading->done)
    set_path(reading, "O_DIRECT", detail);
  else
    set_path(reading, "page cache", detail);
  return code;
}

/* ---- Other memory ---- */

/* Into host memory, page-aligned and of CHUNK bytes. */
static ssize_t read_chunk(const struct reading *reading, void *to, size_t length) {
  const struct haul_file *file = reading->file;
  off_t offset = offset_of(reading);
  if (file->direct >= 0 && (uint64_t)offset % file->offset_align == 0) {
    size_t blocks = (length + file->offset_align - 1) / file->offset_align * file->offset_align;
    ssize_t got = read_some(file->direct, to, blocks, offset);
    if (got >= 0)
      return got < (ssize_t)length ? got : (ssize_t)length;
  }
  return read_some(file->fd, to, length, offset);
}

static int read_staged(struct reading *reading) {
  haul_region *host;
  int code = check_permitted(reading);
  if (code == 0)
    code = library->host(reading->to, CHUNK, &host);
  if (code)
    return code;
  while (code == 0 && reading->done < reading->length) {
    size_t left = reading->length - reading->done;
    ssize_t got = read_chunk(reading, library->address(host), left < CHUNK ? left : CHUNK);
    if (got == 0)
      break;
    code = got < 0 ? fail_read(errno)
                   : library->copy(reading->to, reading->at + reading->done, host, (size_t)got);
    if (code == 0)
      reading->done += (size_t)got;
  }
  library->release(host);
  if (reading->report->direct * 2 < reading->done)
    set_path(reading, "staged", "through host memory");
  return code;
}

/* NULL with the reason. */
static struct cufile *cufile_of(struct reading *reading, unsigned gpu) {
  struct haul_file *file = reading->file;
  pthread_mutex_lock(&file->lock);
  if (!file->tried && file->direct >= 0)
    file->cufile = cufile_open(file->direct, gpu, file->no_cufile);
  file->tried = true;
  if (!file->cufile)
    snprintf(reading->report->reason, REASON_ROOM, "%s",
             file->direct < 0 ? file->no_direct : file->no_cufile);
  pthread_mutex_unlock(&file->lock);
  return file->cufile;
}

static void read_cufile(struct reading *reading, unsigned gpu) {
  struct cufile *cufile = cufile_of(reading, gpu);
  bool registered = false;
  ssize_t got = cufile ? cufile_read(cufile, address_of(reading), reading->length,
                                     offset_of(reading), gpu, &registered, reading->report->reason)
                       : 0;
  if (got <= 0)
    return;
  add_direct(reading, (size_t)got);
  set_path(reading, "cuFile",
           registered ? "straight into GPU memory" : "through cuFile's buffers in GPU memory");
}

static int read_device(struct reading *reading, struct haul_place place) {
  if (place.kind == HAUL_CUDA)
    read_cufile(reading, place.device);
  else
    snprintf(reading->report->reason, REASON_ROOM,
             "haul knows no way from a disk to this kind of memory");
  bool ended = !*reading->report->reason; /* the file; else there is a reason */
  return reading->done < reading->length && !ended ? read_staged(reading) : 0;
}

static int read_range(struct reading *reading) {
  struct haul_place place = library->place(reading->to);
  int code = place.kind == HAUL_P2P ? read_mapped(reading, "into peer-to-peer memory")
             : place.kind == HAUL_HOST || place.kind == HAUL_DPDK
                 ? read_mapped(reading, "into host memory")
                 : read_device(reading, place);
  struct haul_file_report *report = reading->report;
  report->bytes = reading->done;
  if (report->direct == report->bytes)
    report->reason[0] = '\0';
  if (code || reading->done == reading->length)
    return code;
  return library->error(HAUL_ERANGE, 0, NULL, NULL, "the file ends after %zu of %zu bytes",
                        reading->done, reading->length);
}

static int check_arguments(const struct reading *reading, unsigned flags) {
  if (flags & ~HAUL_REQUIRE_ZERO_COPY)
    return library->error(HAUL_EINVAL, 0, NULL, NULL, "unknown flags");
  if (reading->offset > INT64_MAX - reading->length)
    return library->error(HAUL_EINVAL, 0, NULL, NULL, "the offset is beyond any file");
  if (!(library->rights(reading->to) & HAUL_WRITE))
    return library->error(HAUL_EACCESS, 0, NULL, NULL, "the region is read-only");
  return 0;
}

/* The caller's report may be of an earlier or later version. */
static int file_read(haul_file *file, uint64_t offset, haul_region *to, uint64_t at, size_t length,
                     unsigned flags, struct haul_file_report *report) {
  struct haul_file_report whole = {.size = report->size};
  struct reading reading = {.file = file,
                            .to = to,
                            .offset = offset,
                            .at = at,
                            .length = length,
                            .direct_only = flags & HAUL_REQUIRE_ZERO_COPY,
                            .report = &whole};
  if (report->size < sizeof report->size)
    return library->error(HAUL_EINVAL, 0, NULL, NULL, "the report is not initialized");
  int code = check_arguments(&reading, flags);
  if (code == 0 && length > 0)
    code = read_range(&reading);
  memcpy(report, &whole, report->size < sizeof whole ? report->size : sizeof whole);
  return code;
}

/* ---- Files ---- */

/* From the file system (statx, since Linux 6.1), else a page. */
static void read_alignment(struct haul_file *file) {
  file->memory_align = file->offset_align = 4096;
#ifdef STATX_DIOALIGN
  struct statx stx = {0};
  if (statx(file->direct, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
      stx.stx_mask & STATX_DIOALIGN) {
    file->memory_align = stx.stx_dio_mem_align;
    file->offset_align = stx.stx_dio_offset_align;
  }
#endif
}

static bool is_usable(uint32_t align) {
  return align <= ALIGN_MAX && (align & (align - 1)) == 0;
}

/* Is there O_DIRECT, and does its alignment fit? */
static bool check_alignment(struct haul_file *file) {
  read_alignment(file);
  if (file->memory_align == 0 || file->offset_align == 0)
    snprintf(file->no_direct, REASON_ROOM, "the file system has no O_DIRECT for this file");
  else if (!is_usable(file->memory_align) || !is_usable(file->offset_align))
    snprintf(file->no_direct, REASON_ROOM,
             "O_DIRECT's alignment, %u and %u, is no power of two up to %u", file->offset_align,
             file->memory_align, ALIGN_MAX);
  return !*file->no_direct;
}

static void open_direct(struct haul_file *file) {
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
  file->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY);
  if (file->direct < 0) {
    snprintf(file->no_direct, REASON_ROOM, "the file cannot be opened with O_DIRECT: %s",
             strerror(errno));
  } else if (!check_alignment(file)) {
    close(file->direct);
    file->direct = -1;
  }
}

static int check_file(int descriptor) {
  struct stat stat;
  int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0)
    return library->error(HAUL_EINVAL, errno, NULL, "pass an open descriptor",
                          "the descriptor %d is not open", descriptor);
  if (fstat(descriptor, &stat) != 0)
    return library->error_system(errno, "the descriptor", "fstat");
  if (!S_ISREG(stat.st_mode) || flags & O_PATH || (flags & O_ACCMODE) == O_WRONLY)
    return library->error(HAUL_EINVAL, 0, NULL, NULL,
                          "the descriptor is not of a regular file that is open for reading");
  return 0;
}

static int file_open(const struct file_library *calls, int descriptor, haul_file **out) {
  if (calls->size != sizeof *calls)
    return calls->error(HAUL_ENOTSUP, 0, FILE_MODULE, "install both from one release",
                        FILE_MODULE " and haul's library are of different releases");
  library = calls;
  int code = check_file(descriptor);
  if (code)
    return code;
  struct haul_file *file = calloc(1, sizeof *file);
  if (!file)
    return library->error(HAUL_ENOMEM, 0, NULL, NULL, "out of memory");
  file->fd = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
  if (file->fd < 0) {
    code = library->error_system(errno, "the file", "dup");
    free(file);
    return code;
  }
  pthread_mutex_init(&file->lock, NULL);
  open_direct(file);
  *out = file;
  return 0;
}

static void file_close(haul_file *file) {
  cufile_close(file->cufile);
  if (file->direct >= 0)
    close(file->direct);
  close(file->fd);
  pthread_mutex_destroy(&file->lock);
  free(file);
}

extern const struct file_module haul_file_module;
__attribute__((visibility("default"))) const struct file_module haul_file_module = {
    sizeof haul_file_module, file_open, file_read, file_close};
