/* SPDX-License-Identifier: MIT
 * Bytes between an open file and a client's region, cut into slices, some of which are on the wire
 * while another one is on the disk. */
#include <errno.h>

#include "storage/service/server.h"

#define SLICE  ((uint64_t)1 << 20)
#define SLICES 3u
#define TRIES  3u /* of a slice that arrives damaged, after the first */

struct slice {
  haul_region *buffer;
  haul_transfer *transfer; /* on the wire */
  uint64_t done, length;   /* its place in the whole */
};

struct lanes {
  const struct stream *stream;
  struct slice slices[SLICES];
  bool out; /* to the client */
};

static int start(const struct lanes *lanes, struct slice *slice) {
  const struct stream *stream = lanes->stream;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {0, stream->at + slice->done, slice->length};
  options.flags = HAUL_CHECKSUM;
  options.deadline = haul_deadline_in(SERVICE_WAIT_NS);
  int code = lanes->out
                 ? haul_write(stream->remote, slice->buffer, &piece, 1, &options, &slice->transfer)
                 : haul_read(slice->buffer, stream->remote, &piece, 1, &options, &slice->transfer);
  if (code)
    slice->transfer = NULL;
  return code;
}

/* It has a deadline, so it ends. */
static int wait_for(struct slice *slice) {
  int code = haul_transfer_wait(slice->transfer, HAUL_FOREVER);
  haul_transfer_release(slice->transfer);
  slice->transfer = NULL;
  return code;
}

static int settle(const struct lanes *lanes, struct slice *slice) {
  int code = wait_for(slice);
  for (unsigned i = 0; code == HAUL_ECHECKSUM && i < TRIES; i++) {
    code = start(lanes, slice);
    if (!code)
      code = wait_for(slice);
  }
  return protocol_errno(code);
}

static int open_lanes(struct lanes *lanes) {
  uint64_t length = lanes->stream->length;
  const struct haul_place host = {HAUL_HOST, 0};
  for (unsigned i = 0; i < SLICES && i * SLICE < length; i++)
    if (haul_region_alloc(lanes->stream->node, host, length < SLICE ? length : SLICE, 0,
                          &lanes->slices[i].buffer))
      return -ENOMEM;
  return 0;
}

/* What is under way where something failed is waited for: a client that was told of the failure
 * finds its region at rest. */
static void close_lanes(struct lanes *lanes) {
  for (unsigned i = 0; i < SLICES; i++) {
    struct slice *slice = &lanes->slices[i];
    if (slice->transfer) {
      haul_transfer_cancel(slice->transfer);
      wait_for(slice);
    }
    haul_region_release(slice->buffer);
  }
}

static void aim(const struct lanes *lanes, struct slice *slice, uint64_t done) {
  uint64_t left = lanes->stream->length - done;
  slice->done = done;
  slice->length = left < SLICE ? left : SLICE;
}

/* The whole from `done` on; *done: how much of the file was there. */
static int read_slices(struct lanes *lanes, uint64_t *done) {
  const struct stream *stream = lanes->stream;
  int status = 0;
  bool more = true;
  for (unsigned turn = 0; more && *done < stream->length; turn++) {
    struct slice *slice = &lanes->slices[turn % SLICES];
    if (slice->transfer && (status = settle(lanes, slice)))
      return status;
    aim(lanes, slice, *done);
    ssize_t got =
        stream->source->ops->read(stream->source, stream->file, haul_region_address(slice->buffer),
                                  slice->length, stream->offset + (off_t)*done);
    if (got <= 0)
      return *done ? 0 : (int)got;
    more = (uint64_t)got == slice->length;
    slice->length = (uint64_t)got;
    status = protocol_errno(start(lanes, slice));
    if (status)
      return status;
    *done += (uint64_t)got;
  }
  return 0;
}

static int settle_all(struct lanes *lanes) {
  int status = 0;
  for (unsigned i = 0; i < SLICES; i++) {
    int code = lanes->slices[i].transfer ? settle(lanes, &lanes->slices[i]) : 0;
    status = status ? status : code;
  }
  return status;
}

ssize_t stream_read(const struct stream *stream) {
  struct lanes lanes = {.stream = stream, .out = true};
  uint64_t done = 0;
  int status = open_lanes(&lanes);
  if (!status)
    status = read_slices(&lanes, &done);
  if (!status)
    status = settle_all(&lanes);
  close_lanes(&lanes);
  return status ? status : (ssize_t)done;
}

/* Asks for the slice that begins at *asked. */
static int ask(const struct lanes *lanes, unsigned turn, uint64_t *asked) {
  struct slice *slice = (struct slice *)(uintptr_t)&lanes->slices[turn % SLICES];
  aim(lanes, slice, *asked);
  *asked += slice->length;
  return protocol_errno(start(lanes, slice));
}

/* Keeps the other lanes asking while one is on the disk. */
static int write_slices(struct lanes *lanes, uint64_t *done) {
  const struct stream *stream = lanes->stream;
  uint64_t asked = 0;
  unsigned ahead = 0;
  int status = 0;
  for (unsigned turn = 0; *done < stream->length; turn++) {
    for (; asked < stream->length && ahead < turn + SLICES; ahead++)
      if ((status = ask(lanes, ahead, &asked)))
        return status;
    struct slice *slice = &lanes->slices[turn % SLICES];
    if ((status = settle(lanes, slice)))
      return status;
    ssize_t put =
        stream->source->ops->write(stream->source, stream->file, haul_region_address(slice->buffer),
                                   slice->length, stream->offset + (off_t)*done, stream->flags);
    if (put <= 0)
      return *done ? 0 : (int)put;
    *done += (uint64_t)put;
    if ((uint64_t)put < slice->length)
      return 0;
  }
  return 0;
}

ssize_t stream_write(const struct stream *stream) {
  struct lanes lanes = {.stream = stream};
  uint64_t done = 0;
  int status = open_lanes(&lanes);
  if (!status)
    status = write_slices(&lanes, &done);
  close_lanes(&lanes);
  return status ? status : (ssize_t)done;
}
