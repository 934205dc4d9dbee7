/* SPDX-License-Identifier: MIT
 * Sending. Heads, small payloads and trailers of as many jobs as fit go out in one sendmsg. A large
 * payload of a WRITE goes by reference: its pages are put into a pipe (vmsplice(2)) and from there
 * to the socket (splice(2)), so the sender copies nothing. That needs the pages to stay as they are
 * until the peer has them: a WRITE ends with the peer's ACK, so they do; DATA has no such answer
 * and is copied.
 *
 * A WRITE that ends before its ACK leaves its pages behind: within a host they lie in the peer's
 * own socket until the peer reads them, and no close, not even a reset, takes them back. What they
 * hold then is what it gets. So pages go by reference only where haul can make sure that they hold
 * nothing else once the region is released: memory that it allocated, which is not pooled again
 * after such an end but given back to the system, which keeps pages as they are while a socket
 * refers to them; and files, whose pages hold what is in the file. What was wrapped or imported
 * gets another content without being asked, and is copied. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/tcp/tcp.h"
#include "memory/copy.h"

#define SPANS_MAX 64

static uint8_t zeros[65536];

/* ---- The frame as spans ---- */

static uint8_t *source(const struct tcp_job *job, uint32_t piece, uint64_t at, uint64_t flat) {
  if (job->stage)
    return (uint8_t *)job->stage->region->memory.view + flat;
  return (uint8_t *)job->region->memory.view + job->pieces[piece].local + at;
}

/* Adds what is left of the payload, from the cursor, while there is room; returns whether all of it
 * fitted. */
static bool payload_spans(const struct tcp_job *job, uint64_t left, struct iovec *spans, int *count,
                          int room) {
  uint32_t piece = job->piece;
  uint64_t at = job->piece_at;
  uint64_t flat = job->payload - left;
  while (left > 0 && *count < room) {
    struct iovec *span = &spans[(*count)++];
    if (job->filler)
      *span = (struct iovec){zeros, left < sizeof zeros ? left : sizeof zeros};
    else if (job->stage)
      *span = (struct iovec){source(job, 0, 0, flat), left};
    else
      *span = (struct iovec){source(job, piece, at, flat), job->pieces[piece].length - at};
    piece++;
    at = 0;
    left -= span->iov_len;
    flat += span->iov_len;
  }
  return left == 0;
}

/* The kernel has these bytes of the piece at the cursor. */
static void tally_sent(struct tcp_job *job, uint64_t bytes, bool whole) {
  struct tally *tally = &job->rail->leaving;
  if (job->piece == 0 && job->piece_at == 0)
    tally_begin(tally);
  tally_add(tally, source(job, job->piece, job->piece_at, 0), bytes);
  if (whole)
    tally_piece(tally);
  if (whole && job->piece + 1 == job->count)
    frame_pack_trailer(&(struct frame_trailer){.checksum = tally->sum}, job->trailer);
}

static void move_cursor(struct tcp_job *job, uint64_t bytes) {
  if (job->filler || job->stage)
    return;
  while (bytes > 0) {
    uint64_t left = job->pieces[job->piece].length - job->piece_at;
    uint64_t here = bytes < left ? bytes : left;
    if (job->tallies)
      tally_sent(job, here, here == left);
    bytes -= here;
    job->piece_at += here;
    if (here == left) {
      job->piece++;
      job->piece_at = 0;
    }
  }
}

static uint64_t frame_end(const struct tcp_job *job) {
  return job->head + job->payload + (job->payload && job->type != FRAME_READ ? FRAME_TRAILER : 0);
}

/* Adds what is left of the frame; false when it did not fit or its payload is to be spliced. */
static bool job_spans(struct tcp_job *job, struct iovec *spans, int *count) {
  uint64_t payload_end = job->head + job->payload;
  if (*count >= SPANS_MAX - 2)
    return false;
  if (job->sent < job->head)
    spans[(*count)++] = (struct iovec){job->bytes + job->sent, job->head - job->sent};
  if (job->payload == 0)
    return true;
  if (job->sent < payload_end) {
    if (job->splice && job->rail->may_splice)
      return false;
    uint64_t left = job->sent > job->head ? payload_end - job->sent : job->payload;
    if (!payload_spans(job, left, spans, count, SPANS_MAX - 1) || job->tallies)
      return false; /* the checksum is known once the payload has gone */
  }
  uint64_t done = job->sent > payload_end ? job->sent - payload_end : 0;
  spans[(*count)++] = (struct iovec){job->trailer + done, FRAME_TRAILER - done};
  return true;
}

/* The socket took `bytes` of the job, or more; returns what is over. */
static uint64_t job_advance(struct tcp_job *job, uint64_t bytes) {
  uint64_t left = frame_end(job) - job->sent;
  uint64_t took = bytes < left ? bytes : left;
  uint64_t from = job->sent > job->head ? job->sent : job->head;
  uint64_t to = job->sent + took;
  if (job->sent == 0 && job->stage)
    job->since = clock_now();
  if (to > job->head + job->payload)
    to = job->head + job->payload;
  if (to > from)
    move_cursor(job, to - from);
  job->sent += took;
  return bytes - took;
}

/* ---- The pump ---- */

static void finish_job(struct tcp_job *job) {
  struct tcp_endpoint *endpoint = job->rail->endpoint;
  job_unqueue(job);
  if (job->type == FRAME_ACK || job->type == FRAME_DATA)
    endpoint->owed--;
  if (job->slot)
    job->slot->job = NULL;
  job_free(job);
}

static void retire_sent(struct tcp_rail *rail, uint64_t bytes) {
  while (!list_empty(&rail->queue)) {
    struct tcp_job *job = list_entry(rail->queue.next, struct tcp_job, link);
    bytes = job_advance(job, bytes);
    if (job->sent < frame_end(job))
      return;
    finish_job(job);
  }
}

uint64_t spans_cut(struct iovec *spans, int *count, uint64_t most) {
  uint64_t bytes = 0;
  for (int i = 0; i < *count; i++) {
    if (spans[i].iov_len > most - bytes)
      spans[i].iov_len = most - bytes;
    bytes += spans[i].iov_len;
    if (bytes == most)
      *count = i + 1;
  }
  return bytes;
}

/* `alone`: of the first frame alone, so that a source that cannot be read is known. */
static ssize_t send_spans(struct tcp_rail *rail, bool alone) {
  struct iovec spans[SPANS_MAX];
  int count = 0;
  bool all = true;
  list_each(item, &rail->queue) {
    all = job_spans(list_entry(item, struct tcp_job, link), spans, &count);
    if (!all || alone)
      break;
  }
  all &= spans_cut(spans, &count, rail->share) < rail->share;
  struct msghdr message = {.msg_iov = spans, .msg_iovlen = (size_t)count};
  bool more =
      !all && rail->stream.protection < STREAM_PROCESS; /* records go out when they are full,
                                                           and nothing else flushes them */
  ssize_t put = stream_send(&rail->stream, &message, more ? MSG_MORE : 0);
  if (put > 0) {
    rail->corked = more;
    retire_sent(rail, (uint64_t)put);
  }
  return put;
}

/* This rail copies from now on, and reports say so. */
static void stop_lending(struct tcp_rail *rail) {
  rail->may_splice = false;
  atomic_store(&rail->endpoint->base.as_small, true);
}

/* Puts more of the job's pages into the pipe. A mapping that cannot makes this job be copied. */
static void fill_pipe(struct tcp_rail *rail, struct tcp_job *job) {
  struct iovec spans[SPANS_MAX];
  int count = 0;
  uint64_t left = job->head + job->payload - job->sent - rail->in_pipe;
  if (left == 0 || job->filler)
    return;
  payload_spans(job, left, spans, &count, SPANS_MAX);
  spans_cut(spans, &count, rail->share);
  ssize_t put = vmsplice(rail->pipe[1], spans, (size_t)count, SPLICE_F_NONBLOCK);
  if (put > 0) {
    rail->in_pipe += (size_t)put;
    job->slot->lent = true;
    move_cursor(job, (uint64_t)put);
  } else if (put < 0 && errno == EFAULT) {
    job->splice = false;
  } else if (put < 0 && errno != EAGAIN && errno != EINTR) {
    stop_lending(rail);
  }
}

/* For TCP_CALM times TCP_SENDS, which begin anywhere in a page: a larger pipe is no faster. */
static void open_pipe(struct tcp_rail *rail) {
  if (rail->pipe[0] >= 0)
    return;
  if (pipe2(rail->pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    rail->pipe[0] = rail->pipe[1] = -1;
    stop_lending(rail);
    return;
  }
  fcntl(rail->pipe[1], F_SETPIPE_SZ, 262144); /* refused past a user's limit: then it stays small */
}

static int try_lending(const int pipe[2], int socket) {
  struct iovec span = {zeros, 1};
  if (vmsplice(pipe[1], &span, 1, SPLICE_F_NONBLOCK) == 1 &&
      splice(pipe[0], NULL, socket, NULL, 1, SPLICE_F_NONBLOCK) == 1)
    return 0;
  return errno;
}

int tcp_try_lending(void) {
  int pipe[2], sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return errno;
  int system = pipe2(pipe, O_CLOEXEC) != 0 ? errno : 0;
  if (system == 0) {
    system = try_lending(pipe, sockets[0]);
    close(pipe[0]);
    close(pipe[1]);
  }
  close(sockets[0]);
  close(sockets[1]);
  return system;
}

/* splice(2) to a socket that the peer closed raises SIGPIPE, and has no MSG_NOSIGNAL: the signal is
 * held back in this thread, and taken away unless the application holds it back itself. */
static ssize_t splice_quietly(struct tcp_rail *rail) {
  sigset_t broken, before;
  size_t bytes = rail->in_pipe < rail->share ? rail->in_pipe : rail->share;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken, &before);
  ssize_t put =
      splice(rail->pipe[0], NULL, rail->stream.fd, NULL, bytes, SPLICE_F_NONBLOCK | SPLICE_F_MORE);
  int system = errno;
  /* Also after bytes went out: the end may come in the middle of a splice. */
  if (!sigismember(&before, SIGPIPE))
    sigtimedwait(&broken, NULL, &(struct timespec){0, 0});
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = system;
  return put;
}

static ssize_t send_pages(struct tcp_rail *rail, struct tcp_job *job) {
  open_pipe(rail);
  if (job->splice && rail->may_splice)
    fill_pipe(rail, job);
  if (rail->in_pipe == 0) {
    errno = job->splice && rail->may_splice ? EAGAIN : EINTR; /* EINTR: try again, by copying */
    return -1;
  }
  ssize_t put = splice_quietly(rail);
  if (put > 0) {
    rail->in_pipe -= (size_t)put;
    job->sent += (uint64_t)put;
    rail->corked = true;
  }
  return put;
}

/* What the socket holds back may be all that keeps it from being writable. TCP(7): TCP_NODELAY
 * flushes each time that it is set. */
void rail_uncork(struct tcp_rail *rail) {
  int one = 1;
  if (rail->corked && rail->stream.fd >= 0)
    setsockopt(rail->stream.fd, IPPROTO_TCP, TCP_NODELAY, &one,
               sizeof one); /* ENOTSUP on Unix sockets */
  rail->corked = false;
}

static bool by_pages(const struct tcp_rail *rail, const struct tcp_job *job) {
  if (rail->in_pipe > 0)
    return true;
  return job->splice && rail->may_splice && job->sent >= job->head &&
         job->sent < job->head + job->payload;
}

void rail_watch(struct tcp_rail *rail) {
  bool unsent = atomic_load_explicit(&rail->unsent, memory_order_relaxed);
  uint32_t events = (rail->blocked ? 0u : EPOLLIN) | (unsent ? EPOLLOUT : 0u);
  loop_change(rail->endpoint->base.link->fabric->loop, &rail->watch, events);
}

static bool may_pump(const struct tcp_rail *rail) {
  return rail->stream.fd >= 0 && !rail->broken && !list_empty(&rail->queue) &&
         rail->pumped < rail->share;
}

/* Whether nothing urgent was sent for long, as far as this rail knows. */
static size_t share_of(const struct tcp_rail *rail) {
  const struct tcp_rail *express = rail->endpoint->rails[TCP_EXPRESS];
  bool calm = !express || (express != rail && list_empty(&express->queue) &&
                           rail->tx_moved - express->tx_moved > TCP_CALM_NS);
  return calm ? TCP_CALM * TCP_SENDS : TCP_SENDS;
}

/* The loop sees the end and closes the rail. */
static void break_off(struct tcp_rail *rail) {
  rail->broken = true;
  shutdown(rail->stream.fd, SHUT_RDWR);
}

static void send_owed(struct tcp_rail *rail) {
  if (stream_flush(&rail->stream) == 0)
    rail->tx_moved = clock_now();
  else if (errno != EAGAIN)
    break_off(rail);
}

void rail_pump(struct tcp_rail *rail) {
  bool alone = false;
  rail->fresh = false;
  rail->share = share_of(rail);
  if (stream_owes(&rail->stream))
    send_owed(rail);
  while (may_pump(rail)) {
    struct tcp_job *job = list_entry(rail->queue.next, struct tcp_job, link);
    ssize_t put = by_pages(rail, job) ? send_pages(rail, job) : send_spans(rail, alone);
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0 && errno == EFAULT && !alone) {
      alone = true;
      continue;
    }
    alone = false;
    if (put < 0 && errno == EFAULT && job->region) {
      job_fail(job,
               error_set(HAUL_EINVAL, EFAULT, NULL,
                         "its memory was unmapped or its file cut short; release the region first",
                         "the source cannot be read"));
      continue;
    }
    if (put <= 0) {
      if (put < 0 && errno != EAGAIN)
        break_off(rail);
      break;
    }
    rail->tx_moved = clock_now();
    rail->pumped += (size_t)put;
  }
  bool left = (!list_empty(&rail->queue) || stream_owes(&rail->stream)) && !rail->broken;
  atomic_store_explicit(&rail->unsent, left, memory_order_relaxed);
  if (rail->stream.fd >= 0)
    rail_watch(rail);
}
