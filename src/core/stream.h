/* SPDX-License-Identifier: MIT
 * A connection's bytes, over its socket as they are or through TLS. */
#ifndef HAUL_CORE_STREAM_H
#define HAUL_CORE_STREAM_H

#include "core/sock.h"
#include "core/sys.h"
#include "core/tls/tls.h"

enum protection {
  STREAM_BARE = 0,    /* nobody proved anything, nothing is encrypted */
  STREAM_PROVED = 1,  /* both sides proved who they are; the bytes are not encrypted */
  STREAM_PROCESS = 2, /* TLS by this process */
  STREAM_KERNEL = 3   /* TLS by the kernel */
};

struct stream {
  int fd;          /* -1: none */
  struct tls *tls; /* NULL: bytes go to the socket as they are */
  enum protection protection;
};

#define STREAM_NONE ((struct stream){.fd = -1})

/* As sendmsg(2) and recvmsg(2) without blocking: -1 with errno. `flags` for the socket. Bytes that
 * stream_send took may lie here still while stream_owes says so; those that came and are not read
 * yet while stream_holds does, and no event tells of them. */
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

/* Sends what it owes: 0, or -1 with errno. */
static inline int stream_flush(const struct stream *stream) {
  return stream->tls ? tls_flush(stream->tls) : 0;
}

/* As stream_receive, with a negative errno, for connections that may be Unix sockets: a descriptor
 * that comes along is an error (-EPROTO), and put aside. */
ssize_t stream_take(const struct stream *stream, struct msghdr *message);

/* All of `length` bytes by `until`; HAUL_ETIMEDOUT, HAUL_EPEER with `object`. For handshakes. */
int stream_send_all(const struct stream *stream, const char *object, const void *bytes,
                    size_t length, int64_t until);
int stream_receive_all(const struct stream *stream, const char *object, void *bytes, size_t length,
                       int64_t until);

/* After the first bytes each way, one record of them: what follows is not encrypted (`plain`), or
 * by the kernel where it does that, else here; `updates`: the peer takes changes of keys; `reads`:
 * it is read ahead (tls_buffer). HAUL_ENOMEM. */
int stream_settle(struct stream *stream, bool plain, bool updates, bool reads);

/* Ends it, as sock_close. */
void stream_close(struct stream *stream);

#endif
