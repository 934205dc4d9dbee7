/* SPDX-License-Identifier: MIT
 * The files that are registered, by number of descriptor. Looking one up takes no lock. */
#ifndef HAUL_USRBIO_FDS_H
#define HAUL_USRBIO_FDS_H

#include <stdbool.h>
#include <stdint.h>

struct file {
  uint64_t inode;
  bool reads, writes;
};

/* By the descriptor, or its duplicate, or the negative of either. False: not registered. */
bool fds_find(int fd, struct file *file);

#endif
