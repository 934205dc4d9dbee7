/* SPDX-License-Identifier: MIT
 * A byte stream over a socket, plain or through TLS. */
#ifndef HAUL_CORE_STREAM_H
#define HAUL_CORE_STREAM_H

#include "core/sock.h"
#include "core/sys.h"
#include "core/tls/tls.h"

enum protection {
  STREAM_BARE = 0,    /* not authenticated, not encrypted */
  STREAM_PROVED = 1,  /* authenticated, not encrypted */
  STREAM_PROCESS = 2, /* TLS in this process */
  STREAM_KERNEL = 3   /* TLS in the kernel */
};

struct stream {
  int fd;          /* -1: none */
  struct tls *tls; /* NULL: plain */
  enum protection protection;
};

#define STREAM_NONE ((struct stream){.fd = -1})

/* As non-blocking sendmsg(2) and recvmsg(2): -1 with errno. `flags` are for the socket. While
 * stream_owes is true, sent bytes are still buffered here. While stream_holds is true, received
 * bytes are buffered here, and no event reports them. */
static inline ssize_t stream_send(const struct stream *stream, const struct msghdr *message,
                                  int flags) {
  return stream->tls ? tls_send(stream->tls, message)
                     : sys_ops.sendmsg(stream->fd, message, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
}

static inline ssize_t stream_receive(const struct stream *stream, struct msghdr *message) {
  return stream->tls ? tls_receive(stream->tls, message)
                     : sys_ops.recvmsg(stream->fd, message, MSG_DONTWAIT);
}

static inline bool stream_owes(const struct stream *stream) {
  return stream->tls && tls_owes(stream->tls);
}

static inline bool stream_holds(const struct stream *stream) {
  return stream->tls && tls_holds(stream->tls);
}

static inline size_t stream_pending(const struct stream *stream) {
  return stream->tls ? tls_pending(stream->tls) : 0;
}

/* Sends buffered bytes: 0, or -1 with errno. */
static inline int stream_flush(const struct stream *stream) {
  return stream->tls ? tls_flush(stream->tls) : 0;
}

/* As stream_receive, but returns a negative errno. For connections that may be Unix sockets: a
 * passed descriptor is an error (-EPROTO) and goes to close_foreign. */
ssize_t stream_take(const struct stream *stream, struct msghdr *message);

/* Called after one record each way. The following bytes are plain (`plain`), or encrypted by the
 * kernel if it can, else here. `updates`: the peer accepts KeyUpdate; `reads`: read ahead
 * (tls_buffer). HAUL_ENOMEM. */
int stream_settle(struct stream *stream, bool plain, bool updates, bool reads);

/* Closes it as sock_close does. */
void stream_close(struct stream *stream);

#endif
