/* SPDX-License-Identifier: MIT */
#include "storage/credentials.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storage/source.h"

#define NO_ID ((uid_t)-1) /* setfsuid changes nothing for it, and returns the present one */

struct capabilities {
  struct __user_cap_header_struct header;
  struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
};

static bool read_capabilities(struct capabilities *now) {
  now->header = (struct __user_cap_header_struct){.version = _LINUX_CAPABILITY_VERSION_3};
  return syscall(SYS_capget, &now->header, now->sets) == 0;
}

static bool write_capabilities(struct capabilities *wanted) {
  return syscall(SYS_capset, &wanted->header, wanted->sets) == 0;
}

static bool set_uid(uid_t uid) {
  setfsuid(uid);
  return (uid_t)setfsuid(NO_ID) == uid;
}

static bool set_gid(gid_t gid) {
  setfsgid(gid);
  return (gid_t)setfsgid(NO_ID) == gid;
}

/* The bare system call: the C library's sets the groups of every thread. */
static bool set_groups(size_t count, const gid_t *groups) {
  return syscall(SYS_setgroups, count, groups) == 0;
}

/* Leaving user 0 drops the capabilities over others' files. Those to write and search folders come
 * back, as far as they were there; CAP_FSETID does not, so that set-group-ID bits are treated as
 * the caller's own would be. */
static bool set_uid_keep_access(uid_t uid) {
  const unsigned kept = CAP_TO_MASK(CAP_DAC_OVERRIDE) | CAP_TO_MASK(CAP_DAC_READ_SEARCH);
  struct capabilities before, after;
  if (!read_capabilities(&before) || !set_uid(uid) || !read_capabilities(&after))
    return false;
  after.sets[0].effective |= before.sets[0].effective & kept;
  return write_capabilities(&after);
}

static int assume_groups(struct credentials *saved, const struct source_caller *caller) {
  int count = getgroups(0, NULL);
  if (count < 0)
    return -errno;
  saved->groups = malloc(((size_t)count + 1) * sizeof *saved->groups);
  if (!saved->groups)
    return -ENOMEM;
  saved->group_count = getgroups(count, saved->groups);
  if (saved->group_count < 0 || !set_groups(caller->group_count, caller->groups))
    return -errno;
  saved->groups_changed = true;
  return 0;
}

int credentials_assume(struct credentials *saved, const struct source_caller *caller) {
  *saved = (struct credentials){0};
  if (geteuid() != 0)
    return caller->checked || caller->uid == geteuid() ? 0 : -EPERM;
  if (caller->uid == 0 && caller->gid == getegid())
    return 0;
  int result = caller->checked ? 0 : assume_groups(saved, caller);
  if (result)
    return result;
  saved->ids_changed = true;
  if (!set_gid(caller->gid))
    return -EPERM;
  bool keep_access = caller->checked && caller->uid != 0;
  return (keep_access ? set_uid_keep_access(caller->uid) : set_uid(caller->uid)) ? 0 : -EPERM;
}

/* A thread with another user's ids would use that user's rights for others, so a failure ends the
 * process. */
void credentials_restore(struct credentials *saved) {
  int kept = errno;
  if (saved->ids_changed && (!set_uid(0) || !set_gid(getegid())))
    abort();
  if (saved->groups_changed && !set_groups((size_t)saved->group_count, saved->groups))
    abort();
  free(saved->groups);
  errno = kept;
}

void credentials_keep_set_ids(bool keep) {
  const __u32 bit = CAP_TO_MASK(CAP_FSETID);
  struct capabilities now;
  if (!read_capabilities(&now))
    return;
  struct __user_cap_data_struct *set = &now.sets[CAP_TO_INDEX(CAP_FSETID)];
  __u32 wanted = keep ? set->effective | (set->permitted & bit) : set->effective & ~bit;
  if (set->effective == wanted)
    return;
  set->effective = wanted;
  write_capabilities(&now);
}
