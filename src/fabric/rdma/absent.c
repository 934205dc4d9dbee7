/* SPDX-License-Identifier: MIT
 * The transport in a build without the verbs' header: closed with that reason, here and at peers
 * that have the path. It replaces all of this folder but the records. */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "fabric/rdma/frame.h"
#include "fabric/transport.h"

static const char reason[] = "this library was built without it";

extern const struct transport rdma_transport;

static size_t checks(struct haul_check *checks, size_t room) {
  if (room > 0) {
    checks[0] =
        (struct haul_check){.state = HAUL_CHECK_MISSING, .backend = "rdma", .name = "rdma.library"};
    snprintf(checks[0].text, sizeof checks[0].text, "%s", reason);
    snprintf(checks[0].remedy, sizeof checks[0].remedy,
             "sudo apt-get install libibverbs-dev, then build haul again");
  }
  return 1;
}

static int create(struct link *link, struct endpoint **out) {
  struct endpoint *endpoint = alloc_zero(1, sizeof *endpoint);
  if (!endpoint)
    return error_memory("rdma endpoint");
  endpoint->transport = &rdma_transport;
  endpoint->link = link;
  endpoint_close(endpoint, "%s", reason);
  *out = endpoint;
  return 0;
}

static void connect_nothing(struct endpoint *endpoint, haul_deadline until) {
  (void)endpoint;
  (void)until;
}

/* The peer has the path, so it connected. */
static void adopt(struct endpoint *endpoint, unsigned index, struct stream stream) {
  struct rdma_record hello = {.type = RDMA_HELLO};
  uint8_t bytes[RDMA_RECORD];
  (void)endpoint;
  (void)index;
  snprintf(hello.reason, sizeof hello.reason, "%s", reason);
  rdma_pack(&hello, bytes);
  struct iovec span = {bytes, sizeof bytes};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t sent = stream_send(&stream, &message, 0);
  (void)sent; /* after a failure the peer learns only that the channel ended */
  stream_close(&stream);
}

static void rdma_stop(struct endpoint *endpoint, int code) {
  (void)endpoint;
  (void)code;
}

static void forked(struct endpoint *endpoint) {
  (void)endpoint;
}

static void rdma_destroy(struct endpoint *endpoint) {
  alloc_free(endpoint);
}

const struct transport rdma_transport = {
    .name = "rdma",
    .index = 1,
    .checks = checks,
    .create = create,
    .connect = connect_nothing,
    .adopt = adopt,
    .stop = rdma_stop,
    .forked = forked,
    .destroy = rdma_destroy,
};
