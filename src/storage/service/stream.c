/* SPDX-License-Identifier: MIT
 * Copies between an open file and a client's region, in slices: some are on the wire while another
 * one is read from or written to the disk.
 *
 * A read sends the file's own pages where it can, without a copy. If the file is truncated or
 * changed meanwhile, the whole read is sent again from copies, so that the client sees no transfer
 * error that has another cause. */
#include <errno.h>

#include "storage/service/server.h"

#define SLICE  ((uint64_t)1 << 20)
#define SLICES 3u
#define TRIES  3u /* retries of a slice that arrives damaged */

struct lanes;

struct slice {
  struct lanes *lanes;
  haul_region *buffer; /* allocated at its first use */
  haul_region *region; /* has its data: the buffer, or the view's */
  uint64_t at;
  haul_transfer *transfer; /* on the wire */
  bool ended;              /* lanes->lock */
  uint64_t done, length;   /* done: bytes before it */
};

/* Waits on its own condition: haul_transfer_wait wakes with every event of the node, which with
 * many clients is most of the time. */
struct lanes {
  const struct stream *stream;
  struct slice slices[SLICES];
  bool out; /* to the client */
  pthread_mutex_t lock;
  pthread_cond_t ended_one;
};

/* On the node's thread. */
static void on_ended(void *user, haul_transfer *transfer) {
  struct slice *slice = user;
  (void)transfer;
  pthread_mutex_lock(&slice->lanes->lock);
  slice->ended = true;
  pthread_cond_signal(&slice->lanes->ended_one);
  pthread_mutex_unlock(&slice->lanes->lock);
}

/* No program can sum device memory that a NIC reaches without copying it to the host; the wire has
 * the NICs' checksums. */
static unsigned checksum_flag(const struct lanes *lanes, const struct slice *slice) {
  haul_remote *remote = lanes->stream->remote;
  struct haul_path path;
  size_t count = 1;
  uint16_t kind = haul_remote_place(remote).kind;
  if (kind == HAUL_HOST || kind == HAUL_DPDK)
    return HAUL_CHECKSUM;
  int code = haul_explain(slice->region, remote, lanes->out ? HAUL_OP_WRITE : HAUL_OP_READ,
                          slice->length, NULL, &path, &count);
  return code == 0 && path.chosen && path.zero_copy ? 0 : HAUL_CHECKSUM;
}

static int start_slice(const struct lanes *lanes, struct slice *slice) {
  const struct stream *stream = lanes->stream;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {slice->at, stream->at + slice->done, slice->length};
  options.flags = checksum_flag(lanes, slice);
  options.deadline = haul_deadline_in(SERVICE_WAIT_NS);
  options.done = on_ended;
  options.user = slice;
  slice->ended = false;
  int code = lanes->out
                 ? haul_write(stream->remote, slice->region, &piece, 1, &options, &slice->transfer)
                 : haul_read(slice->region, stream->remote, &piece, 1, &options, &slice->transfer);
  if (code)
    slice->transfer = NULL;
  return code;
}

/* Adds an ended transfer. `pages`: it sent the file's own pages. */
static void summary_add(struct io_summary *summary, haul_transfer *transfer, bool pages) {
  struct haul_report one = HAUL_REPORT_INIT, *sum = &summary->report;
  if (haul_transfer_report(transfer, &one))
    return;
  one.bytes += sum->bytes;
  one.pieces += sum->pieces;
  one.slices += sum->slices;
  one.retries += sum->retries;
  summary->pages += pages ? one.bytes - sum->bytes : 0;
  if (sum->bytes > 0) { /* times: of the first transfer */
    one.queued_ns = sum->queued_ns;
    one.setup_ns = sum->setup_ns;
  }
  *sum = one;
}

/* The transfer's deadline bounds the wait. */
static int wait_slice(struct slice *slice) {
  pthread_mutex_lock(&slice->lanes->lock);
  while (!slice->ended)
    pthread_cond_wait(&slice->lanes->ended_one, &slice->lanes->lock);
  pthread_mutex_unlock(&slice->lanes->lock);
  int code = haul_transfer_test(slice->transfer);
  struct io_summary *summary = slice->lanes->stream->summary;
  if (code == 0 && summary)
    summary_add(summary, slice->transfer, slice->region != slice->buffer);
  haul_transfer_release(slice->transfer);
  slice->transfer = NULL;
  return code;
}

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

/* Reads the pages from the disk now, so that the node's thread does not block. */
static bool use_view(const struct stream *stream, struct slice *slice) {
  const struct view *view = stream->view;
  slice->at = (uint64_t)stream->offset + slice->done;
  if (!view || !view_populate(view, slice->at, slice->length))
    return false;
  slice->region = view->region;
  return true;
}

static int settle(const struct lanes *lanes, struct slice *slice) {
  int code = wait_slice(slice);
  for (unsigned i = 0; code == HAUL_ECHECKSUM && i < TRIES; i++) {
    code = start_slice(lanes, slice);
    if (!code)
      code = wait_slice(slice);
  }
  return protocol_errno(code);
}

static void open_lanes(struct lanes *lanes) {
  pthread_mutex_init(&lanes->lock, NULL);
  pthread_cond_init(&lanes->ended_one, NULL);
  for (unsigned i = 0; i < SLICES; i++)
    lanes->slices[i].lanes = lanes;
}

/* Waits for the transfers in flight after a failure: the client may reuse its region when it gets
 * the error. */
static void close_lanes(struct lanes *lanes) {
  for (unsigned i = 0; i < SLICES; i++) {
    struct slice *slice = &lanes->slices[i];
    if (slice->transfer) {
      haul_transfer_cancel(slice->transfer);
      wait_slice(slice);
    }
    haul_region_release(slice->buffer);
  }
  pthread_cond_destroy(&lanes->ended_one);
  pthread_mutex_destroy(&lanes->lock);
}

static void set_range(const struct lanes *lanes, struct slice *slice, uint64_t done) {
  uint64_t left = lanes->stream->length - done;
  slice->done = done;
  slice->length = left < SLICE ? left : SLICE;
}

/* Returns the number of bytes; fewer than the slice's length at the end of the file. */
static ssize_t fill_slice(const struct lanes *lanes, struct slice *slice) {
  const struct stream *stream = lanes->stream;
  if (use_view(stream, slice))
    return (ssize_t)slice->length;
  int status = use_buffer(lanes, slice);
  if (status)
    return status;
  return stream->source->ops->read(stream->source, stream->file, haul_region_address(slice->buffer),
                                   slice->length, stream->offset + (off_t)slice->done);
}

/* *done: the number of bytes read. */
static int read_slices(struct lanes *lanes, uint64_t *done) {
  const struct stream *stream = lanes->stream;
  int status = 0;
  bool more = true;
  for (unsigned turn = 0; more && *done < stream->length; turn++) {
    struct slice *slice = &lanes->slices[turn % SLICES];
    if (slice->transfer && (status = settle(lanes, slice)))
      return status;
    set_range(lanes, slice, *done);
    ssize_t got = fill_slice(lanes, slice);
    if (got <= 0)
      return *done ? 0 : (int)got;
    more = (uint64_t)got == slice->length;
    slice->length = (uint64_t)got;
    status = protocol_errno(start_slice(lanes, slice));
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

/* Starts to fetch the slice at *fetched. */
static int fetch_slice(struct lanes *lanes, unsigned turn, uint64_t *fetched) {
  struct slice *slice = &lanes->slices[turn % SLICES];
  set_range(lanes, slice, *fetched);
  *fetched += slice->length;
  int status = use_buffer(lanes, slice);
  return status ? status : protocol_errno(start_slice(lanes, slice));
}

/* Fetches other slices while one is written to the disk. */
static int write_slices(struct lanes *lanes, uint64_t *done) {
  const struct stream *stream = lanes->stream;
  uint64_t fetched = 0;
  unsigned ahead = 0;
  int status = 0;
  for (unsigned turn = 0; *done < stream->length; turn++) {
    for (; fetched < stream->length && ahead < turn + SLICES; ahead++)
      if ((status = fetch_slice(lanes, ahead, &fetched)))
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

static ssize_t move_slices(const struct stream *stream, bool out) {
  struct lanes lanes = {.stream = stream, .out = out};
  uint64_t done = 0;
  open_lanes(&lanes);
  int status = out ? read_slices(&lanes, &done) : write_slices(&lanes, &done);
  if (out && !status)
    status = settle_all(&lanes);
  close_lanes(&lanes);
  return status ? status : (ssize_t)done;
}

/* Whether the error may come from a changed file, and not from a slow or dead client. */
static bool is_spoiled(const struct stream *stream, ssize_t done) {
  return stream->view && (view_is_spoiled(stream->view) || done == -EBADMSG || done == -EINVAL ||
                          done == -EREMOTEIO);
}

ssize_t stream_read(const struct stream *stream) {
  struct stream copying = *stream;
  ssize_t done = move_slices(stream, true);
  if (!is_spoiled(stream, done))
    return done;
  copying.view = NULL;
  if (copying.summary)
    *copying.summary = (struct io_summary){.pages = 0};
  return move_slices(&copying, true);
}

ssize_t stream_write(const struct stream *stream) {
  return move_slices(stream, false);
}
