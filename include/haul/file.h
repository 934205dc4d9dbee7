/* SPDX-License-Identifier: MIT
 * Files of this host, read into regions of any place by the way with the fewest copies, and a
 * report of that way.
 *
 *   place            without a copy in host memory                   otherwise
 *   host, dpdk       O_DIRECT                                        from the page cache
 *   p2p              O_DIRECT, on disks that reach the memory        from the page cache
 *   cuda             cuFile (NVIDIA's GPUDirect Storage)             staged
 *   all others       -                                               staged
 *
 * Staged bytes are read into host memory, and copied from there as by haul_region_copy. A module,
 * libhaul-file.so, implements the calls.
 *
 * cuFile, libcufile.so.0, is opened at the first read into GPU memory and stays open. It is used
 * only where its compatibility mode is off, as its reads pass host memory there and do not say so.
 * If the process has not opened cuFile's driver before, haul turns that mode off for the process
 * when it opens the driver; if that fails, the mode is restored, and the bytes are staged.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_FILE_H
#define HAUL_FILE_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct haul_file haul_file;

/* Prepares reads of a regular file. The caller keeps `descriptor`, which must be open for reading,
 * and may close it after the call. Blocks as open(2) does. Release with haul_file_close.
 * HAUL_EINVAL (not a regular file, or not readable), HAUL_ELIMIT (descriptors), HAUL_ENOTSUP (no
 * module), HAUL_ESYSTEM. */
HAUL_API int haul_file_open(int descriptor, haul_file **file);

/* How a file was read. Start from HAUL_FILE_REPORT_INIT. */
struct haul_file_report {
  size_t size;      /* sizeof(struct haul_file_report), set by the initializer */
  uint64_t bytes;   /* read */
  uint64_t direct;  /* of these, in the region without a copy in host memory on their way */
  char path[16];    /* of the most bytes: "O_DIRECT", "cuFile", "page cache", "staged" */
  char detail[96];  /* "into peer-to-peer memory", "through cuFile's buffers in GPU memory" */
  char reason[192]; /* why not all bytes were direct, else "" */
};

#define HAUL_FILE_REPORT_INIT                                                                      \
  {                                                                                                \
    sizeof(struct haul_file_report), 0, 0, {0}, {0}, {                                             \
      0                                                                                            \
    }                                                                                              \
  }

/* Reads `length` bytes from `offset` of the file to `to_offset` of the region; they are in place on
 * return, visible to the device that owns them. Blocks as read(2) does. `flags`: 0, or
 * HAUL_REQUIRE_ZERO_COPY: fail rather than copy a byte in host memory.
 * `report` is filled on failure, too, and may not be NULL.
 *
 * O_DIRECT takes bytes whose offset in the file, address and length are multiples of the file
 * system's alignment (statx(2), STATX_DIOALIGN), some 512 or 4096 bytes. Others, at the start and
 * the end of the range, are read from the page cache. Let offset and address be equal modulo that.
 *
 * HAUL_ERANGE: beyond the region, or the file ends earlier: then report->bytes are in place.
 * HAUL_EINVAL (unknown flags), HAUL_EACCESS (a read-only region), HAUL_ESTALE, HAUL_ENOPATH (with
 * HAUL_REQUIRE_ZERO_COPY; the text is the reason), HAUL_ESYSTEM, and those of haul_region_copy.
 * After a failure the bytes of the range are undefined. */
HAUL_API int haul_file_read(haul_file *file, uint64_t offset, haul_region *to, uint64_t to_offset,
                            size_t length, unsigned flags, struct haul_file_report *report);

HAUL_API void haul_file_close(haul_file *file);

#ifdef __cplusplus
}
#endif

#endif
