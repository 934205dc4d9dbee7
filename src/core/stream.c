/* SPDX-License-Identifier: MIT */
#include "core/stream.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "core/error.h"

ssize_t stream_take(const struct stream *stream, struct msghdr *message) {
  if (!stream->tls)
    return sock_receive(stream->fd, message);
  ssize_t got = tls_receive(stream->tls, message);
  return got < 0 ? -errno : got;
}

/* ---- Whole buffers, for handshakes ---- */

static int transfer_error(int system, const char *object) {
  if (system == ETIMEDOUT)
    return error_set(HAUL_ETIMEDOUT, system, object,
                     "check that a haul node runs there and is not stopped",
                     "the peer does not answer");
  return error_set(HAUL_EPEER, system, object,
                   system ? strerror(system) : "the peer closed it; its log says why",
                   "the connection ended");
}

static int transfer_all(const struct stream *stream, const char *object, char *at, size_t length,
                        int64_t until, bool sends) {
  while (length > 0) {
    struct iovec span = {at, length};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t moved = sends ? stream_send(stream, &message, 0) : stream_take(stream, &message);
    int system = moved >= 0 ? 0 : sends ? errno : (int)-moved;
    if (moved == 0 && !sends)
      return transfer_error(0, object);
    if (system == EAGAIN)
      system = sock_wait(stream->fd, sends ? POLLOUT : POLLIN, until);
    else if (moved > 0) {
      at += moved;
      length -= (size_t)moved;
    }
    if (system && system != EINTR)
      return transfer_error(system, object);
  }
  return 0;
}

int stream_send_all(const struct stream *stream, const char *object, const void *bytes,
                    size_t length, int64_t until) {
  return transfer_all(stream, object, (char *)(uintptr_t)bytes, length, until, true);
}

int stream_receive_all(const struct stream *stream, const char *object, void *bytes, size_t length,
                       int64_t until) {
  return transfer_all(stream, object, bytes, length, until, false);
}

/* ---- Open and close ---- */

int stream_settle(struct stream *stream, bool plain, bool updates, bool reads) {
  if (!stream->tls)
    return 0;
  if (!plain && !tls_to_kernel(stream->tls)) {
    stream->protection = STREAM_PROCESS;
    tls_may_update(stream->tls, updates);
    return tls_buffer(stream->tls, reads) ? 0 : error_memory("TLS");
  }
  stream->protection = plain ? STREAM_PROVED : STREAM_KERNEL;
  tls_free(stream->tls);
  stream->tls = NULL;
  return 0;
}

void stream_close(struct stream *stream) {
  tls_free(stream->tls);
  if (stream->fd >= 0)
    sock_close(stream->fd);
  *stream = STREAM_NONE;
}
