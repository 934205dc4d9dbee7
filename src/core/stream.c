/* SPDX-License-Identifier: MIT */
#include "core/stream.h"

#include <errno.h>

#include "core/error.h"

ssize_t stream_take(const struct stream *stream, struct msghdr *message) {
  if (!stream->tls)
    return sock_receive(stream->fd, message);
  ssize_t got = tls_receive(stream->tls, message);
  return got < 0 ? -errno : got;
}

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
