/* SPDX-License-Identifier: MIT
 * Who asks. */
#include <errno.h>
#include <stdlib.h>

#include "storage/mount/mount.h"

#define GROUPS_FIRST 64
#define GROUPS_MOST  65536 /* the kernel's own limit for a process */

struct source_caller caller_of(fuse_req_t request) {
  const struct fuse_ctx *context = fuse_req_ctx(request);
  return (struct source_caller){.uid = context->uid, .gid = context->gid, .checked = true};
}

/* How many there are; there may be more than room. */
static int read_groups(fuse_req_t request, int room, gid_t **groups) {
  gid_t *more = realloc(*groups, (size_t)room * sizeof *more);
  if (!more)
    return -ENOMEM;
  *groups = more;
  return fuse_req_getgroups(request, room, more);
}

int caller_unchecked(fuse_req_t request, struct source_caller *caller, gid_t **groups) {
  const struct fuse_ctx *context = fuse_req_ctx(request);
  *groups = NULL;
  int count = read_groups(request, GROUPS_FIRST, groups);
  if (count > GROUPS_FIRST) {
    int room = count < GROUPS_MOST ? count : GROUPS_MOST;
    count = read_groups(request, room, groups);
    count = count > room ? -EAGAIN : count; /* they changed meanwhile */
  }
  if (count < 0)
    return count;
  *caller = (struct source_caller){
      .uid = context->uid, .gid = context->gid, .groups = *groups, .group_count = (size_t)count};
  return 0;
}
