/* SPDX-License-Identifier: MIT
 * The file service, for the command: trees of files of this host for other machines. One const
 * table is the module's symbol for it. */
#ifndef HAUL_STORAGE_SERVICE_H
#define HAUL_STORAGE_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <haul/access.h>

#include "storage/mount.h" /* struct haul_storage_error */

#define HAUL_STORAGE_SERVICE_SYMBOL "haul_storage_service"

struct haul_storage_export {
  const char *name; /* 1 to 63 printable bytes without blanks and '/' */
  const char *path; /* a folder of this host */
  bool writable;
  const struct haul_grant *grants; /* who may do what there, and nobody else knows of it */
  size_t grant_count;              /* 0: for everybody who can connect */
};

struct haul_storage_serving {
  size_t size;     /* sizeof this: the module of another build refuses */
  haul_node *node; /* opened with peer_events; the module receives its messages from now on */
  const struct haul_storage_export *exports;
  size_t count;
  /* Messages that are no business of the file service, one at a time, in a thread of the module's;
   * NULL: they are dropped. It does not keep them. */
  void (*other)(void *user, const struct haul_message *message);
  void *user;
};

struct service;

struct haul_storage_service {
  /* Everything stays the caller's. Raises the process's limit of descriptors to what is allowed,
   * and sets its umask to 0. A negative errno value and *error: nothing runs. */
  int (*open)(const struct haul_storage_serving *serving, struct service **service,
              struct haul_storage_error *error);
  /* Before haul_node_close: from then on nothing here uses the node. Some tenths of a second. */
  void (*stop)(struct service *service);
  /* After haul_node_close, which ends what waits. -ETIMEDOUT: a disk does not answer, and threads
   * are left behind that use what they have. */
  int (*close)(struct service *service);
};

#endif
