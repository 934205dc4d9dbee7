/* SPDX-License-Identifier: MIT
 * Bytes between an open file and a client's region, cut into slices, some of which are on the wire
 * while another one is on the disk.
 *
 * What is read goes out from the file's own pages where it can, without a copy. A file that is cut
 * short or changed meanwhile spoils that; then all is sent again from copies, so that nobody sees
 * an error of the wire where there was none. */
#include <errno.h>

#include "storage/service/server.h"

#define SLICE  ((uint64_t)1 << 20)
#define SLICES 3u
#define TRIES  3u /* of a slice that arrives damaged, after the first */

struct lanes;

struct slice {
  struct lanes *lanes;
  haul_region *buffer; /* from its first use on */
  haul_region *region; /* where its bytes are: the buffer, or the view's */
  uint64_t at;
  haul_transfer *transfer; /* on the wire */
  bool ended;              /* lanes->lock */
  uint64_t done, length;   /* its place in the whole */
};

/* Waiting for a transfer by haul_transfer_wait would wake up with whatever else happens on the
 * node: with many clients that is most of the time. */
struct lanes {
  const struct stream *stream;
  struct slice slices[SLICES];
  bool out; /* to the client */
  pthread_mutex_t lock;
  pthread_cond_t news;
};

/* By who drives the node. */
static void has_ended(void *user, haul_transfer *transfer) {
  struct slice *slice = user;
  (void)transfer;
  pthread_mutex_lock(&slice->lanes->lock);
  slice->ended = true;
  pthread_cond_signal(&slice->lanes->news);
  pthread_mutex_unlock(&slice->lanes->lock);
}

static int start(const struct lanes *lanes, struct slice *slice) {
  const struct stream *stream = lanes->stream;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {slice->at, stream->at + slice->done, slice->length};
  options.flags = HAUL_CHECKSUM;
  options.deadline = haul_deadline_in(SERVICE_WAIT_NS);
  options.done = has_ended;
  options.user = slice;
  slice->ended = false;
  int code = lanes->out
                 ? haul_write(stream->remote, slice->region, &piece, 1, &options, &slice->transfer)
                 : haul_read(slice->region, stream->remote, &piece, 1, &options, &slice->transfer);
  if (code)
    slice->transfer = NULL;
  return code;
}

/* It has a deadline, so it ends. */
static int wait_for(struct slice *slice) {
  pthread_mutex_lock(&slice->lanes->lock);
  while (!slice->ended)
    pthread_cond_wait(&slice->lanes->news, &slice->lanes->lock);
  pthread_mutex_unlock(&slice->lanes->lock);
  int code = haul_transfer_test(slice->transfer);
  struct told *told = slice->lanes->stream->told;
  if (code == 0 && told)
    told_add(told, slice->transfer, slice->region != slice->buffer);
  haul_transfer_release(slice->transfer);
  slice->transfer = NULL;
  return code;
}

/* ---- Where its bytes are ---- */

static int open_buffer(const struct lanes *lanes, haul_region **buffer) {
  const struct haul_place host = {HAUL_HOST, 0};
  struct service *service = lanes->stream->service;
  uint64_t length = lanes->stream->length < SLICE ? lanes->stream->length : SLICE;
  int status = -ENOTCONN;
  pthread_rwlock_rdlock(&service->node_lock);
  if (service->node)
    status = haul_region_alloc(service->node, host, length, 0, buffer) ? -ENOMEM : 0;
  pthread_rwlock_unlock(&service->node_lock);
  return status;
}

static int use_buffer(const struct lanes *lanes, struct slice *slice) {
  int status = slice->buffer ? 0 : open_buffer(lanes, &slice->buffer);
  slice->region = slice->buffer;
  slice->at = 0;
  return status;
}

/* In memory from then on: the node's thread does not wait for the disk. */
static bool use_view(const struct stream *stream, struct slice *slice) {
  const struct view *view = stream->view;
  slice->at = (uint64_t)stream->offset + slice->done;
  if (!view || !view_populate(view, slice->at, slice->length))
    return false;
  slice->region = view->region;
  return true;
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

static void open_lanes(struct lanes *lanes) {
  pthread_mutex_init(&lanes->lock, NULL);
  pthread_cond_init(&lanes->news, NULL);
  for (unsigned i = 0; i < SLICES; i++)
    lanes->slices[i].lanes = lanes;
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
  pthread_cond_destroy(&lanes->news);
  pthread_mutex_destroy(&lanes->lock);
}

static void aim(const struct lanes *lanes, struct slice *slice, uint64_t done) {
  uint64_t left = lanes->stream->length - done;
  slice->done = done;
  slice->length = left < SLICE ? left : SLICE;
}

/* How much of the file is there; the slice's length at most. */
static ssize_t fill(const struct lanes *lanes, struct slice *slice) {
  const struct stream *stream = lanes->stream;
  if (use_view(stream, slice))
    return (ssize_t)slice->length;
  int status = use_buffer(lanes, slice);
  if (status)
    return status;
  return stream->source->ops->read(stream->source, stream->file, haul_region_address(slice->buffer),
                                   slice->length, stream->offset + (off_t)slice->done);
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
    ssize_t got = fill(lanes, slice);
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

static ssize_t read_once(const struct stream *stream) {
  struct lanes lanes = {.stream = stream, .out = true};
  uint64_t done = 0;
  open_lanes(&lanes);
  int status = read_slices(&lanes, &done);
  if (!status)
    status = settle_all(&lanes);
  close_lanes(&lanes);
  return status ? status : (ssize_t)done;
}

/* What a file can do that changes; a client that is slow or gone is not asked once more. */
static bool is_spoiled(const struct stream *stream, ssize_t done) {
  return stream->view && (view_is_spoiled(stream->view) || done == -EBADMSG || done == -EINVAL ||
                          done == -EREMOTEIO);
}

ssize_t stream_read(const struct stream *stream) {
  struct stream copying = *stream;
  ssize_t done = read_once(stream);
  if (!is_spoiled(stream, done))
    return done;
  copying.view = NULL;
  if (copying.told)
    *copying.told = (struct told){.pages = 0};
  return read_once(&copying);
}

/* Asks for the slice that begins at *asked. */
static int ask(const struct lanes *lanes, unsigned turn, uint64_t *asked) {
  struct slice *slice = (struct slice *)(uintptr_t)&lanes->slices[turn % SLICES];
  aim(lanes, slice, *asked);
  *asked += slice->length;
  int status = use_buffer(lanes, slice);
  return status ? status : protocol_errno(start(lanes, slice));
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
  open_lanes(&lanes);
  int status = write_slices(&lanes, &done);
  close_lanes(&lanes);
  return status ? status : (ssize_t)done;
}
