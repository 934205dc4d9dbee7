/* SPDX-License-Identifier: MIT
 * Validation of the arguments of transfers. start.c checks the same on its hot path, and calls
 * these functions for the detail. */
#include <string.h>

#include "core/error.h"
#include "transfer/transfer.h"

int transfer_bad_piece(const struct haul_remote *remote, const struct haul_region *region,
                       const struct haul_piece *piece, size_t i) {
  uint64_t here = region->memory.length, length = piece->length;
  bool local = length > here || piece->local > here - length;
  if (length == 0)
    return error_set(HAUL_EINVAL, 0, remote->name, "leave out empty segments",
                     "segment %zu is empty", i);
  return error_set(HAUL_ERANGE, 0, remote->name, "check the offset and the length",
                   "segment %zu: %s offset %llu + length %llu exceeds the %s of %llu bytes", i,
                   local ? "local" : "remote",
                   (unsigned long long)(local ? piece->local : piece->remote),
                   (unsigned long long)length, local ? "region" : "remote",
                   (unsigned long long)(local ? here : remote->key.length));
}

int transfer_check_rights(const struct haul_remote *remote, const struct haul_region *region,
                          enum haul_operation operation) {
  unsigned rights = operation_rights(operation);
  if (region->heap != remote->heap)
    return error_set(HAUL_EINVAL, 0, remote->name, "use regions and peers of one node",
                     "the region belongs to another node");
  if ((remote->key.rights & rights) != rights)
    return error_set(HAUL_EACCESS, 0, remote->name,
                     error_hint("publish it with HAUL_%s there", rights == HAUL_WRITE ? "WRITE"
                                                                 : rights == HAUL_READ
                                                                     ? "READ"
                                                                     : "READ | HAUL_WRITE"),
                     "it is published without the right to %s",
                     rights == HAUL_WRITE  ? "write"
                     : rights == HAUL_READ ? "read"
                                           : "read and write");
  if (operation != HAUL_OP_WRITE && !region->memory.writable)
    return error_set(HAUL_EACCESS, 0, remote->name, "read into writable memory",
                     "the local memory is read-only");
  return 0;
}

int transfer_bad_call(const struct haul_remote *remote, const struct haul_region *region,
                      const struct haul_piece *pieces, size_t count,
                      enum haul_operation operation) {
  if (!remote || !region || !pieces || count == 0)
    return error_set(HAUL_EINVAL, 0, remote ? remote->name : NULL,
                     "pass a remote, a region and at least one segment", "%s is NULL or empty",
                     !remote   ? "remote"
                     : !region ? "region"
                               : "pieces");
  if (count > HAUL_PIECES_MAX)
    return error_set(HAUL_ELIMIT, 0, remote->name, "split the transfer",
                     "%zu segments exceed the limit of %d", count, HAUL_PIECES_MAX);
  int code = transfer_check_rights(remote, region, operation);
  if (code)
    return code;
  if (atomic_load(&region->released))
    return error_set(HAUL_ESTALE, 0, remote->name, "release it after its last transfer",
                     "the local region was released");
  if (!memory_alive(&region->memory))
    return error_released(remote->name);
  return error_set(atomic_load(&remote->link->ended), 0, remote->link->name, NULL, "%s",
                   remote->link->ended_reason);
}

int transfer_check_start(const struct haul_transfer_options *options, bool handle) {
  int code = options->deadline ? error_if_passed(options->deadline, NULL) : 0;
  if (code)
    return code;
  if (!options->done || handle)
    return 0;
  return error_set(HAUL_EINVAL, 0, NULL,
                   "pass a place for the handle, and release the handle in `done`",
                   "the option `done` is set, and the call takes no handle");
}

int transfer_check_message(const char *peer, const void *bytes, size_t length) {
  if (length > 0 && !bytes)
    return error_set(HAUL_EINVAL, 0, peer, NULL, "the bytes of the message are NULL");
  if (length <= HAUL_MESSAGE_MAX)
    return 0;
  return error_set(HAUL_ELIMIT, 0, peer,
                   "write the bytes to a region of the peer, then send a message",
                   "a message of %zu bytes exceeds the limit of %d", length, HAUL_MESSAGE_MAX);
}

int transfer_check_options(const struct haul_transfer_options *given,
                           struct haul_transfer_options *options) {
  if (!given || given->size < sizeof *options) /* else all of it is overwritten */
    *options = (struct haul_transfer_options)HAUL_TRANSFER_OPTIONS_INIT;
  if (!given)
    return 0;
  if (given->size < offsetof(struct haul_transfer_options, deadline) || given->size > 4096)
    return error_set(HAUL_EINVAL, 0, NULL, "initialize the options with HAUL_TRANSFER_OPTIONS_INIT",
                     "invalid size of the options: %zu", given->size);
  memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
  if (options->flags & ~(HAUL_REQUIRE_ZERO_COPY | HAUL_CHECKSUM | HAUL_MORE | HAUL_CPU_TIME))
    return error_set(HAUL_EINVAL, 0, NULL, "use flags of haul_transfer(3)", "unknown flags 0x%x",
                     options->flags);
  if (options->priority < HAUL_PRIORITY_LOW || options->priority > HAUL_PRIORITY_HIGH)
    return error_set(HAUL_EINVAL, 0, NULL, "use a value of enum haul_priority",
                     "invalid priority '%d': expected -1, 0 or 1", options->priority);
  const struct haul_notification *notify = options->notify;
  int code = notify ? transfer_check_message(NULL, notify->bytes, notify->length) : 0;
  if (code)
    return code;
  if (!options->only)
    return 0;
  const struct transport *only = transport_named(options->only);
  if (!only)
    return error_set(HAUL_EINVAL, 0, options->only, "list the paths: haul info",
                     "unknown path '%.15s'", options->only);
  options->only = only->name;
  return 0;
}
