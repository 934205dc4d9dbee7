/* SPDX-License-Identifier: MIT
 * Reads into GPU memory by cuFile, NVIDIA's GPUDirect Storage. */
#ifndef HAUL_FILE_CUFILE_H
#define HAUL_FILE_CUFILE_H

#include <stdbool.h>
#include <sys/types.h>

#define REASON_ROOM 192 /* as of struct haul_file_report */

struct cufile;

/* `direct`: opened with O_DIRECT; stays open until cufile_close. May block in the drivers. NULL
 * with the reason: there is no cuFile, or it would read through host memory. */
struct cufile *cufile_open(int direct, unsigned gpu, char reason[REASON_ROOM]);
void cufile_close(struct cufile *cufile);

/* Reads to memory of the GPU. Fewer bytes: the file ends there, or the rest failed, with the
 * reason. A negative value: all failed, with the reason. *registered: the memory was registered, so
 * the disk writes to it; else it writes to a buffer of cuFile's in the GPU's memory. */
ssize_t cufile_read(const struct cufile *cufile, char *to, size_t length, off_t offset,
                    unsigned gpu, bool *registered, char reason[REASON_ROOM]);

#endif
