/* SPDX-License-Identifier: MIT
 * Cross-memory attach (process_vm_readv(2)) for private memory that its owner wrapped.
 *
 * A hazard cell protects each copy from the owner's free():
 *   copier: cell = handle (seq_cst), then reads the validity word; copies; cell = 0
 *   owner:  word = 0 (seq_cst), then waits until no cell holds the handle
 * One of the two sees the other. No user-space rule covers a copier that is stopped (SIGSTOP)
 * between its load of the word and its copy for longer than the liveness timeout.
 *
 * The calls name the peer by its process id, which the kernel reuses after the peer has died. So
 * each copy first checks the peer's pidfd: the id is not reused while the process, or its zombie,
 * exists. */
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

#define TOGETHER 32u /* pieces of one system call; 1 KiB of stack */

static __attribute__((cold)) void refuse_attach(struct map_endpoint *endpoint, int system) {
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

/* Signal 0 checks without sending, at half the cost of poll(). */
static bool is_gone(const struct map_endpoint *endpoint) {
  return syscall(SYS_pidfd_send_signal, endpoint->process, 0, NULL, 0) != 0 && errno == ESRCH;
}

__attribute__((cold)) void attach_try(struct map_endpoint *endpoint, uint64_t nonce_address,
                                      uint64_t nonce) {
  uint64_t seen = 0;
  if (endpoint->pid <= 0) {
    refuse_attach(endpoint, ESRCH);
    return;
  }
  endpoint->process = (int)syscall(SYS_pidfd_open, endpoint->pid, 0);
  if (endpoint->process < 0) {
    refuse_attach(endpoint, errno);
    return;
  }
  struct iovec here = {&seen, sizeof seen};
  struct iovec there = {(void *)(uintptr_t)nonce_address, sizeof seen};
  if (sys_ops.vm_read(endpoint->pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof seen)
    refuse_attach(endpoint, errno);
  else if (seen != nonce)
    refuse_attach(endpoint, ESRCH);
  else
    endpoint->may_attach = true;
}

_Static_assert(HAZARDS == 64, "a bit of `cells_in_use` for each");

int hazard_set(struct map_endpoint *endpoint, uint64_t handle) {
  uint64_t used = atomic_load(&endpoint->cells_in_use);
  while (used != UINT64_MAX) {
    int cell = __builtin_ctzll(~used);
    if (atomic_compare_exchange_weak(&endpoint->cells_in_use, &used, used | (uint64_t)1 << cell)) {
      atomic_store(&endpoint->page->hazards.cell[cell], handle);
      return cell;
    }
  }
  return -1;
}

void hazard_clear(struct map_endpoint *endpoint, unsigned cell) {
  atomic_store(&endpoint->page->hazards.cell[cell], 0);
  atomic_fetch_and(&endpoint->cells_in_use, ~((uint64_t)1 << cell));
}

/* Closes a path that fails for good, else it would be chosen again and again. */
static int copy_error(int system, struct map_endpoint *endpoint) {
  const char *peer = endpoint->base.link->name;
  if (system == ESRCH)
    return error_set(HAUL_EPEER, system, peer, NULL, "the peer's process has ended");
  if (system == 0 || system == EFAULT)
    return error_set(HAUL_EINVAL, EFAULT, peer, "release a region before its memory is unmapped",
                     "the memory of one side cannot be accessed");
  endpoint_close(&endpoint->base, "cross-memory attach failed: %s", strerror(system));
  return error_set(HAUL_EPATH, system, peer, NULL, "%s", endpoint_reason(&endpoint->base));
}

/* The call pins the remote pages only. A device's mapping cannot be pinned although the CPU can
 * access it: then the same memory works as the local side, and not as the remote one. Memory that
 * fails as both was unmapped under its region, which the copies report. */
bool attach_allows(const struct memory *memory) {
  char probe[2], *first = memory->view;
  struct iovec mine = {probe, sizeof probe};
  struct iovec ends[2] = {{first, 1}, {first + memory->length - 1, 1}};
  ssize_t pinned = sys_ops.vm_read(getpid(), &mine, 1, ends, 2, 0);
  if (pinned == 2 || (pinned < 0 && errno != EFAULT))
    return true;
  return sys_ops.vm_write(getpid(), ends, 2, &mine, 1, 0) != 2;
}

/* Copies the pieces but for the first `skip` bytes with one call, which the kernel may end early.
 * Returns the number of bytes, at least 1, or a code. */
static ssize_t copy_some(struct map_endpoint *endpoint, const struct map_binding *binding,
                         char *local, const struct haul_piece *pieces, size_t count, uint64_t skip,
                         enum haul_operation operation) {
  struct iovec here[TOGETHER], there[TOGETHER];
  for (size_t i = 0; i < count; i++) {
    uint64_t length = pieces[i].length - skip;
    here[i] = (struct iovec){local + pieces[i].local + skip, length};
    there[i] =
        (struct iovec){(void *)(uintptr_t)(binding->address + pieces[i].remote + skip), length};
    skip = 0;
  }
  if (!map_alive_after_hazard(endpoint, binding->handle))
    return map_stale();
  if (is_gone(endpoint))
    return copy_error(ESRCH, endpoint);
  ssize_t moved = operation == HAUL_OP_WRITE
                      ? sys_ops.vm_write(endpoint->pid, here, count, there, count, 0)
                      : sys_ops.vm_read(endpoint->pid, here, count, there, count, 0);
  return moved > 0 ? moved : copy_error(moved < 0 ? errno : 0, endpoint);
}

int attach_copy(struct map_endpoint *endpoint, const struct map_binding *binding, void *local,
                const struct haul_piece *pieces, size_t count, enum haul_operation operation) {
  int cell;
  ssize_t moved = 0;
  while ((cell = hazard_set(endpoint, binding->handle)) < 0)
    sched_yield(); /* IPC mappings leave half of the cells to copies of at most WORK_BYTES_MAX */
  for (uint64_t done = 0; moved >= 0;) { /* done: bytes of the first piece */
    for (; count > 0 && done >= pieces->length; count--)
      done -= pieces++->length;
    if (count == 0)
      break;
    moved = copy_some(endpoint, binding, local, pieces, count < TOGETHER ? count : TOGETHER, done,
                      operation);
    done += (uint64_t)moved;
  }
  hazard_clear(endpoint, (unsigned)cell);
  return moved < 0 ? (int)moved : 0;
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
    code = attach_copy(endpoint, binding, chunk, &(struct haul_piece){0, remote + at, part}, 1,
                       HAUL_OP_READ);
    XXH3_64bits_update(state, chunk, part);
    at += part;
  }
  *sum = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return code;
}

/* Seq_cst, as is the store that clears the validity word. */
bool attach_touches(const struct map_endpoint *endpoint, uint64_t handle) {
  if (!endpoint->peer_page)
    return false;
  for (unsigned i = 0; i < HAZARDS; i++) {
    uint64_t holds = atomic_load(&endpoint->peer_page->hazards.cell[i]);
    if (handle ? holds == handle : holds != 0)
      return true;
  }
  return false;
}
