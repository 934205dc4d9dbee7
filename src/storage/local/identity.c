/* SPDX-License-Identifier: MIT */
#include "storage/local/identity.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storage/source.h"

#define NOBODY_KNOWN ((uid_t)-1) /* setfsuid changes nothing for it, and tells the present one */

static bool set_uid(uid_t uid) {
  setfsuid(uid);
  return (uid_t)setfsuid(NOBODY_KNOWN) == uid;
}

static bool set_gid(gid_t gid) {
  setfsgid(gid);
  return (gid_t)setfsgid(NOBODY_KNOWN) == gid;
}

struct capabilities {
  struct __user_cap_header_struct header;
  struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
};

static bool read_capabilities(struct capabilities *now) {
  now->header = (struct __user_cap_header_struct){.version = _LINUX_CAPABILITY_VERSION_3};
  return syscall(SYS_capget, &now->header, now->sets) == 0;
}

/* Leaving user 0 takes the rights over other people's files away. Those that let a folder be
 * written and searched come back, as far as they were there; others do not, so that set-group bits
 * are treated as the caller's own would be. */
static bool set_uid_with_rights(uid_t uid) {
  const unsigned wanted = CAP_TO_MASK(CAP_DAC_OVERRIDE) | CAP_TO_MASK(CAP_DAC_READ_SEARCH);
  struct capabilities before, after;
  if (!read_capabilities(&before) || !set_uid(uid) || !read_capabilities(&after))
    return false;
  after.sets[0].effective |= before.sets[0].effective & wanted;
  return syscall(SYS_capset, &after.header, after.sets) == 0;
}

static int put_groups_aside(struct identity *identity) {
  int count = getgroups(0, NULL);
  if (count < 0)
    return -errno;
  identity->groups = malloc(((size_t)count + 1) * sizeof *identity->groups);
  if (!identity->groups)
    return -ENOMEM;
  identity->group_count = getgroups(count, identity->groups);
  return identity->group_count < 0 ? -errno : 0;
}

/* The bare system call: the C library's would change every thread. */
static bool set_groups(size_t count, const gid_t *groups) {
  return syscall(SYS_setgroups, count, groups) == 0;
}

static int take_groups(struct identity *identity, const struct source_caller *caller) {
  int result = put_groups_aside(identity);
  if (result)
    return result;
  if (!set_groups(caller->group_count, caller->groups))
    return -errno;
  identity->groups_taken = true;
  return 0;
}

int identity_take(struct identity *identity, const struct source_caller *caller) {
  *identity = (struct identity){0};
  if (geteuid() != 0)
    return caller->checked || caller->uid == geteuid() ? 0 : -EPERM;
  if (caller->uid == 0 && caller->gid == getegid())
    return 0;
  if (!caller->checked) {
    int result = take_groups(identity, caller);
    if (result)
      return result;
  }
  identity->taken = true;
  if (!set_gid(caller->gid))
    return -EPERM;
  bool done =
      caller->checked && caller->uid != 0 ? set_uid_with_rights(caller->uid) : set_uid(caller->uid);
  return done ? 0 : -EPERM;
}

/* A thread that stayed somebody else would act with his rights for others: better no thread. */
void identity_give_back(struct identity *identity) {
  int kept = errno;
  if (identity->taken && (!set_uid(0) || !set_gid(getegid())))
    abort();
  if (identity->groups_taken && !set_groups((size_t)identity->group_count, identity->groups))
    abort();
  free(identity->groups);
  errno = kept;
}
