/* SPDX-License-Identifier: MIT
 * Splicing: vmsplice(2) puts pages of a large payload of a WRITE into a pipe, splice(2) moves them
 * to the socket, and the sender copies nothing. The pages must keep their content until the peer
 * has read them. A WRITE ends with the peer's ACK, so they do; DATA has no such response and is
 * copied.
 *
 * On one host (loopback or Unix socket), pages of a WRITE that ended before its ACK stay queued in
 * the peer's socket. No close, not even a reset, removes them: the peer reads the bytes that the
 * pages hold by then. So haul splices only pages whose content it controls after the region's
 * release:
 *  - memory that haul allocated; after such an end it returns to the system instead of the pool,
 *    and the kernel keeps the pages while a socket refers to them;
 *  - files, whose pages hold the file's content.
 * Wrapped or imported memory changes without haul's knowledge, and is copied.
 *
 * There the peer's CPU then reads the source alone. Where the source is not in a cache and a CPU is
 * idle, two copies by two CPUs are up to half faster, for the same CPU time; on busy CPUs splicing
 * takes a third less (docs/measured.md). So a busy path tries both now and then. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/sys.h"
#include "fabric/tcp/rails.h"

#define SPANS_MAX 256

/* The second half of a trial is measured: the sockets still hold bytes of the other way at first,
 * and the scheduler takes some 50 ms to give a sender that copies another CPU than the receiver's.
 * The slower way is tried again after PATIENCE trials of the faster one, later after more. */
#define TRIAL_NS      INT64_C(100000000)
#define PATIENCE      8u
#define PATIENCE_MOST 32u
/* Copying takes more CPU time where the source is in a cache, so it must be this much faster. */
#define COPY_GAIN 1.1

static void end_trial(struct splice_trial *trial, double ns_per_byte) {
  double *ns = &trial->ns_per_byte[trial->copies];
  bool warm = *ns > 0 && trial->ns_per_byte[true] > 0; /* the first trial may fault pages in */
  *ns = warm ? (*ns + ns_per_byte) / 2 : ns_per_byte;
  double copied = trial->ns_per_byte[true], spliced = trial->ns_per_byte[false];
  bool before = trial->copy_wins;
  trial->copy_wins = copied > 0 && copied * COPY_GAIN < spliced;
  if (trial->copy_wins != before)
    trial->patience = PATIENCE;
  if (copied > 0 && trial->copies != trial->copy_wins) {
    trial->copies = trial->copy_wins;
  } else if (trial->ended++ > trial->patience) { /* at first the second one */
    trial->copies = !trial->copies;
    trial->ended = 0;
    trial->patience = trial->patience < PATIENCE            ? PATIENCE
                      : trial->patience < PATIENCE_MOST / 2 ? 2 * trial->patience
                                                            : PATIENCE_MOST;
  }
}

void splice_trial_count(struct splice_trial *trial, uint64_t bytes, int64_t now) {
  if (trial->began == 0)
    trial->began = now;
  if (now - trial->began < TRIAL_NS / 2) {
    trial->from = now;
    trial->bytes = 0;
    return;
  }
  trial->bytes += bytes;
  if (now - trial->began < TRIAL_NS)
    return;
  end_trial(trial, (double)(now - trial->from) / (double)trial->bytes);
  trial->began = 0;
}

/* The other way is tried again after more trials. */
void splice_trial_abandon(struct splice_trial *trial) {
  trial->began = 0;
  trial->copies = trial->copy_wins;
}

/* This rail copies from now on; reports show it. */
static void stop_splicing(struct tcp_rail *rail) {
  rail->tx.may_splice = false;
  atomic_store(&rail->endpoint->base.no_zero_copy, true);
}

/* Puts more pages of the frame into the pipe. A frame whose mapping refuses it is copied. */
static void fill_pipe(struct tcp_rail *rail, struct tx_frame *frame) {
  struct iovec spans[SPANS_MAX];
  int count = 0;
  uint64_t left = tx_payload_end(frame) - frame->sent - rail->tx.in_pipe;
  if (left == 0)
    return;
  payload_spans(&frame->payload, left, spans, &count, SPANS_MAX);
  spans_cut(spans, &count, rail->tx.share);
  ssize_t put = vmsplice(rail->tx.pipe[1], spans, (size_t)count, SPLICE_F_NONBLOCK);
  if (put > 0) {
    rail->tx.in_pipe += (size_t)put;
    frame->slot->spliced = true;
    tx_move_cursor(frame, (uint64_t)put);
  } else if (put < 0 && errno == EFAULT) {
    frame->splice = false;
  } else if (put < 0 && errno != EAGAIN && errno != EINTR) {
    stop_splicing(rail);
  }
}

/* A larger pipe is no faster. */
static __attribute__((cold)) void open_pipe(struct tcp_rail *rail) {
  if (rail->tx.pipe[0] >= 0)
    return;
  if (pipe2(rail->tx.pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    rail->tx.pipe[0] = rail->tx.pipe[1] = -1;
    stop_splicing(rail);
    return;
  }
  fcntl(rail->tx.pipe[1], F_SETPIPE_SZ,
        262144); /* over the user's limit of pipe pages the default size stays */
}

/* splice(2) to a socket that the peer closed raises SIGPIPE and has no MSG_NOSIGNAL. So this thread
 * blocks the signal until the end of the pump, and consumes it unless the application blocks it
 * itself. */
static ssize_t splice_quietly(struct tcp_rail *rail) {
  struct rail_tx *tx = &rail->tx;
  size_t bytes = tx->in_pipe < tx->share ? tx->in_pipe : tx->share;
  sigset_t broken;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  if (!tx->masked)
    pthread_sigmask(SIG_BLOCK, &broken, &tx->mask);
  tx->masked = true;
  ssize_t put =
      splice(tx->pipe[0], NULL, rail->stream.fd, NULL, bytes, SPLICE_F_NONBLOCK | SPLICE_F_MORE);
  int system = errno;
  /* The connection may end in the middle of a splice. */
  if (put < (ssize_t)bytes && !sigismember(&tx->mask, SIGPIPE))
    sigtimedwait(&broken, NULL, &(struct timespec){0, 0});
  errno = system;
  return put;
}

ssize_t tx_send_pages(struct tcp_rail *rail, struct tx_frame *frame) {
  open_pipe(rail);
  if (tx_is_spliced(frame))
    fill_pipe(rail, frame);
  if (rail->tx.in_pipe == 0) {
    /* EINTR makes pump_once retry, and then copy. */
    errno = tx_is_spliced(frame) ? EAGAIN : EINTR;
    return -1;
  }
  ssize_t put = splice_quietly(rail);
  if (put > 0) {
    rail->tx.in_pipe -= (size_t)put;
    frame->sent += (uint64_t)put;
    rail->tx.corked = true;
  }
  return put;
}

__attribute__((cold)) int tcp_probe_splice(void) {
  int pipe[2] = {-1, -1}, sockets[2];
  char byte = 0;
  struct iovec span = {&byte, 1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return errno;
  bool works = pipe2(pipe, O_CLOEXEC) == 0 && vmsplice(pipe[1], &span, 1, SPLICE_F_NONBLOCK) == 1 &&
               splice(pipe[0], NULL, sockets[0], NULL, 1, SPLICE_F_NONBLOCK) == 1;
  int system = works ? 0 : errno;
  if (pipe[0] >= 0) {
    close(pipe[0]);
    close(pipe[1]);
  }
  close(sockets[0]);
  close(sockets[1]);
  return system;
}
