/* SPDX-License-Identifier: MIT
 * Cross-memory attach (process_vm_readv(2)) for private memory that its owner wrapped.
 *
 * Nobody but the kernel stands between a copy and the owner's free(), so each copy shows a hazard:
 *   copier: cell = handle (seq_cst), then reads the board; copies; cell = 0
 *   owner:  board = 0 (seq_cst), then waits until no cell holds the handle
 * One of the two sees the other. A copier that is stopped (SIGSTOP) between its look at the board
 * and its copy, for longer than the liveness bound, is not covered: no user-space rule can.
 *
 * The kernel knows the peer by its process id, and gives it to somebody else once the peer has
 * died, which this side may not have seen yet. So each copy first asks the peer's pidfd: a process
 * that nobody has waited for has its number still. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sum.h"
#include "core/sys.h"
#include "fabric/map/map.h"

static void explain(struct map_endpoint *endpoint, int system) {
  const char *why = system == EPERM
                        ? "not permitted (ptrace_scope, another user, no CAP_SYS_PTRACE)"
                    : system == ESRCH  ? "the peer's process is not visible (another PID namespace)"
                    : system == ENOSYS ? "the kernel was built without it"
                                       : strerror(system);
  snprintf(endpoint->attach_reason, sizeof endpoint->attach_reason, "cross-memory attach: %s", why);
  endpoint->may_attach = false;
  attach_release(endpoint);
}

void attach_release(struct map_endpoint *endpoint) {
  if (endpoint->process >= 0)
    close(endpoint->process);
  endpoint->process = -1;
}

/* Signal 0 asks without sending; half of what poll() costs. */
static bool is_gone(const struct map_endpoint *endpoint) {
  return syscall(SYS_pidfd_send_signal, endpoint->process, 0, NULL, 0) != 0 && errno == ESRCH;
}

void attach_try(struct map_endpoint *endpoint, uint64_t nonce_address, uint64_t nonce) {
  uint64_t seen = 0;
  if (endpoint->pid <= 0) {
    explain(endpoint, ESRCH);
    return;
  }
  endpoint->process = (int)syscall(SYS_pidfd_open, endpoint->pid, 0);
  if (endpoint->process < 0) {
    explain(endpoint, errno);
    return;
  }
  struct iovec here = {&seen, sizeof seen};
  struct iovec there = {(void *)(uintptr_t)nonce_address, sizeof seen};
  if (sys_ops.vm_read(endpoint->pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof seen)
    explain(endpoint, errno);
  else if (seen != nonce)
    explain(endpoint, ESRCH);
  else
    endpoint->may_attach = true;
}

_Static_assert(HAZARDS == 64, "a bit of `taken` for each");

int hazard_show(struct map_endpoint *endpoint, uint64_t handle) {
  uint64_t taken = atomic_load(&endpoint->taken);
  while (taken != UINT64_MAX) {
    int cell = __builtin_ctzll(~taken);
    if (atomic_compare_exchange_weak(&endpoint->taken, &taken, taken | (uint64_t)1 << cell)) {
      atomic_store(&endpoint->hazards->cell[cell], handle);
      return cell;
    }
  }
  return -1;
}

static unsigned take_cell(struct map_endpoint *endpoint, uint64_t handle) {
  int cell;
  while ((cell = hazard_show(endpoint, handle)) < 0)
    sched_yield(); /* what is lent leaves some free; the others are held for a copy of
                      WORK_BYTES_MAX */
  return (unsigned)cell;
}

void hazard_clear(struct map_endpoint *endpoint, unsigned cell) {
  atomic_store(&endpoint->hazards->cell[cell], 0);
  atomic_fetch_and(&endpoint->taken, ~((uint64_t)1 << cell));
}

/* What broke stays broken: a path that is not closed would be taken again and again. */
static int copy_error(int system, struct map_endpoint *endpoint) {
  const char *peer = endpoint->base.link->name;
  if (system == ESRCH)
    return error_set(HAUL_EPEER, system, peer, NULL, "the peer's process is gone");
  if (system == 0 || system == EFAULT)
    return error_set(HAUL_EINVAL, EFAULT, peer,
                     "it may have been unmapped under its region; release the region first",
                     "memory of one of the two sides cannot be reached");
  endpoint_close(&endpoint->base, "cross-memory attach broke: %s", strerror(system));
  return error_set(HAUL_EPATH, system, peer, NULL, "%s", endpoint_reason(&endpoint->base));
}

/* The kernel pins pages of the remote side of a call alone, and those of a device's mapping cannot
 * be pinned although the CPU reaches them. What is out of the CPU's reach as well was unmapped
 * under its region, and the copies will say so. */
bool attach_allows(const struct memory *memory) {
  char probe[2], *first = memory->view;
  struct iovec mine = {probe, sizeof probe};
  struct iovec ends[2] = {{first, 1}, {first + memory->length - 1, 1}};
  ssize_t pinned = sys_ops.vm_read(getpid(), &mine, 1, ends, 2, 0);
  if (pinned == 2 || (pinned < 0 && errno != EFAULT))
    return true;
  return sys_ops.vm_write(getpid(), ends, 2, &mine, 1, 0) != 2;
}

int attach_copy(struct map_endpoint *endpoint, const struct map_binding *binding, uint64_t remote,
                void *local, uint64_t length, enum haul_operation operation) {
  unsigned cell = take_cell(endpoint, binding->handle);
  int code = 0;
  uint64_t done = 0;
  while (code == 0 && done < length) {
    struct iovec here = {(char *)local + done, length - done};
    struct iovec there = {(void *)(uintptr_t)(binding->address + remote + done), length - done};
    if (!map_alive_behind_cell(endpoint, binding->handle)) {
      code = error_set(HAUL_ESTALE, 0, NULL, "look it up again", "the peer withdrew the region");
      break;
    }
    if (is_gone(endpoint)) {
      code = copy_error(ESRCH, endpoint);
      break;
    }
    ssize_t moved = operation == HAUL_OP_WRITE
                        ? sys_ops.vm_write(endpoint->pid, &here, 1, &there, 1, 0)
                        : sys_ops.vm_read(endpoint->pid, &here, 1, &there, 1, 0);
    if (moved <= 0)
      code = copy_error(moved < 0 ? errno : 0, endpoint);
    else
      done += (uint64_t)moved;
  }
  hazard_clear(endpoint, cell);
  return code;
}

int attach_checksum(struct map_endpoint *endpoint, const struct map_binding *binding,
                    uint64_t remote, uint64_t length, uint64_t *sum) {
  uint8_t chunk[32768];
  XXH3_state_t *state = XXH3_createState();
  if (!state)
    return error_memory("checksum");
  XXH3_64bits_reset(state);
  int code = 0;
  for (uint64_t at = 0; at < length && code == 0;) {
    uint64_t part = length - at < sizeof chunk ? length - at : sizeof chunk;
    code = attach_copy(endpoint, binding, remote + at, chunk, part, HAUL_OP_READ);
    XXH3_64bits_update(state, chunk, part);
    at += part;
  }
  *sum = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return code;
}

/* `handle` 0: any. All of it seq_cst, as was the store that cleared the board's word. */
static bool shows(const struct map_endpoint *endpoint, uint64_t handle) {
  if (!endpoint->peer_hazards)
    return false;
  for (unsigned i = 0; i < HAZARDS; i++) {
    uint64_t shown = atomic_load(&endpoint->peer_hazards->cell[i]);
    if (handle ? shown == handle : shown != 0)
      return true;
  }
  return false;
}

bool attach_touches(const struct map_endpoint *endpoint, uint64_t handle) {
  return shows(endpoint, handle);
}

bool attach_touches_any(const struct map_endpoint *endpoint) {
  return shows(endpoint, 0);
}
