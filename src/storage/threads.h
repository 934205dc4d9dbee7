/* SPDX-License-Identifier: MIT
 * Threads of the daemon's own: signals are its first thread's business. */
#ifndef HAUL_STORAGE_THREADS_H
#define HAUL_STORAGE_THREADS_H

#include <linux/capability.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/thread.h"

/* 0 or a negative errno value. */
static inline int storage_thread(pthread_t *thread, void *(*run)(void *argument), void *argument) {
  return -thread_start(thread, run, argument);
}

/* Whoever changes a file for others must not keep its set-user-ID bit, as root does: a user who may
 * write to such a file would be its owner. This thread's alone. */
static inline void threads_keep_set_ids(bool keep) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
  const __u32 bit = CAP_TO_MASK(CAP_FSETID);
  if (syscall(SYS_capget, &header, data) != 0)
    return;
  __u32 *effective = &data[CAP_TO_INDEX(CAP_FSETID)].effective;
  __u32 permitted = data[CAP_TO_INDEX(CAP_FSETID)].permitted;
  *effective = keep ? *effective | (permitted & bit) : *effective & ~bit;
  syscall(SYS_capset, &header, data);
}

#endif
