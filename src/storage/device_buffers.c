/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <haul/usrbio.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "core/deferred_close.h"
#include "core/thread.h"
#include "storage/buffers.h"
#include "storage/source.h"
#include "storage/util.h"

#define CLIENTS_MAX     1024u
#define BUFFERS_MAX     4096u /* of one client */
#define DESCRIPTORS_MAX 253   /* of one record: the kernel's SCM_MAX_FD */

/* A connection. */
struct client {
  struct list link; /* devices->clients */
  int fd;
  uid_t uid;
  unsigned count;
  struct list imports; /* struct import */
};

/* A buffer of a client, and the ticket by which other processes import the same memory. */
struct import {
  struct list link;
  struct buffer *buffer;
  uint8_t ticket[256];
};

/* Its thread alone uses it, except `stopping`. */
struct device_buffers {
  struct buffers *buffers;
  struct source *source; /* of remote files, whose node is used; NULL: local ones */
  haul_node *node;       /* of local files: opened for the first import */
  struct list clients;
  unsigned count;
  int listener, epoll, stop_event;
  _Atomic bool stopping;
  pthread_t thread;
  char address[40];
};

static struct import *find_import(const struct client *client, const uint8_t id[16]) {
  list_each(item, &client->imports) {
    struct import *import = list_entry(item, struct import, link);
    if (memcmp(import->buffer->id, id, sizeof import->buffer->id) == 0)
      return import;
  }
  return NULL;
}

static void remove_import(struct device_buffers *devices, struct client *client,
                          struct import *import) {
  list_remove(&import->link);
  client->count--;
  buffers_remove(devices->buffers, import->buffer);
  free(import);
}

/* On success takes the region and the descriptor. */
static int add_region(struct device_buffers *devices, struct client *client,
                      const struct devices_request *request, haul_region *region, int descriptor) {
  struct buffer like = {.uid = client->uid,
                        .length = haul_region_length(region),
                        .region = region,
                        .descriptor = descriptor,
                        .node = devices->node,
                        .source = devices->source};
  if (like.length < request->length)
    return -EINVAL;
  struct import *import = calloc(1, sizeof *import);
  if (!import)
    return -ENOMEM;
  memcpy(like.id, request->id, sizeof like.id);
  int code = like.source ? like.source->ops->attach(like.source, region, &like.memory) : 0;
  if (code == 0)
    code = buffers_add(devices->buffers, &like, &import->buffer);
  if (code) {
    if (like.memory)
      like.source->ops->detach(like.source, like.memory);
    free(import);
    return code;
  }
  memcpy(import->ticket, request->ticket, sizeof import->ticket);
  list_append(&client->imports, &import->link);
  client->count++;
  return 0;
}

/* On success takes the descriptor. */
static int add_import(struct device_buffers *devices, struct client *client,
                      const struct devices_request *request, int descriptor) {
  struct haul_ticket ticket;
  haul_region *region;
  if (descriptor < 0)
    return -EINVAL;
  if (client->count == BUFFERS_MAX)
    return -EMFILE;
  int code = devices->node ? 0 : storage_errno(haul_node_open(NULL, &devices->node));
  if (code)
    return code;
  memcpy(ticket.bytes, request->ticket, sizeof ticket.bytes);
  if (haul_region_import(devices->node, &ticket, descriptor, &region) != 0)
    return -EINVAL;
  code = add_region(devices, client, request, region, descriptor);
  if (code)
    haul_region_release(region);
  return code;
}

/* Finds a buffer of any process of the client's user. */
static int find_shared(const struct device_buffers *devices, const struct client *asking,
                       const struct devices_request *request, struct devices_response *response,
                       int *descriptor) {
  list_each(item, &devices->clients) {
    const struct client *client = list_entry(item, struct client, link);
    const struct import *import =
        client->uid == asking->uid ? find_import(client, request->id) : NULL;
    if (!import)
      continue;
    response->length = import->buffer->length;
    memcpy(response->ticket, import->ticket, sizeof response->ticket);
    *descriptor = import->buffer->descriptor;
    return 0;
  }
  return -ENOENT;
}

/* Closing a client's descriptor here could block: a socket may linger for as long as the client
 * likes. */
static void discard(int descriptor) {
  if (descriptor >= 0)
    close_foreign(descriptor);
}

/* Receives one record and at most one descriptor, -1 if none; discards further ones. Returns the
 * record's length, or a negative value. There is room for the most descriptors that a record can
 * carry: otherwise the kernel would close the rest right here. */
static ssize_t receive_record(int fd, void *record, size_t size, int *descriptor) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MAX)];
  } control;
  struct iovec span = {record, size};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t length = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  *descriptor = -1;
  if (length < 0)
    return length;
  for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
      continue;
    for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
      discard(*descriptor);
      memcpy(descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
    }
  }
  return length;
}

/* False: the client has disconnected, or does not receive. */
static bool send_response(int fd, const struct devices_response *response, int descriptor) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {.room = {0}};
  struct iovec span = {(void *)(uintptr_t)response, sizeof *response};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
  }
  return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *response;
}

/* False: drop the client. */
static bool serve_record(struct device_buffers *devices, struct client *client) {
  struct devices_request request = {0};
  struct devices_response response = {0};
  struct import *import;
  int received, sent = -1;
  ssize_t length = receive_record(client->fd, &request, sizeof request, &received);
  if (length < 0 && (errno == EAGAIN || errno == EINTR))
    return true;
  if (length != (ssize_t)sizeof request || request.magic != DEVICES_MAGIC ||
      request.version != DEVICES_VERSION) {
    discard(received);
    return false;
  }
  switch (request.operation) {
  case DEVICES_ADD:
    response.code = add_import(devices, client, &request, received);
    if (response.code == 0)
      received = -1;
    break;
  case DEVICES_FIND:
    response.code = find_shared(devices, client, &request, &response, &sent);
    break;
  case DEVICES_REMOVE:
    import = find_import(client, request.id);
    response.code = import ? 0 : -ENOENT;
    if (import)
      remove_import(devices, client, import);
    break;
  default:
    response.code = -EINVAL;
  }
  discard(received);
  return send_response(client->fd, &response, sent);
}

/* Takes descriptors out of unread records first, which the kernel would close with the socket. */
static void close_connection(int fd) {
  struct devices_request unread = {0};
  int descriptor;
  shutdown(fd, SHUT_RDWR);
  while (receive_record(fd, &unread, sizeof unread, &descriptor) > 0)
    discard(descriptor);
  close(fd);
}

static void drop_client(struct device_buffers *devices, struct client *client) {
  list_each_safe(item, &client->imports)
      remove_import(devices, client, list_entry(item, struct import, link));
  list_remove(&client->link);
  devices->count--;
  close_connection(client->fd);
  free(client);
}

static bool watch(struct device_buffers *devices, int fd, void *data) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = data};
  return epoll_ctl(devices->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static struct client *new_client(int fd) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return NULL;
  struct client *client = calloc(1, sizeof *client);
  if (!client)
    return NULL;
  client->fd = fd;
  client->uid = peer.uid;
  list_init(&client->imports);
  list_init(&client->link);
  return client;
}

static void accept_client(struct device_buffers *devices) {
  int fd = accept4(devices->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return;
  struct client *client = devices->count < CLIENTS_MAX ? new_client(fd) : NULL;
  if (!client || !watch(devices, fd, client)) {
    free(client);
    close_connection(fd);
    return;
  }
  list_append(&devices->clients, &client->link);
  devices->count++;
}

static void *serve_clients(void *argument) {
  struct device_buffers *devices = argument;
  struct epoll_event event;
  while (!atomic_load(&devices->stopping)) {
    if (epoll_wait(devices->epoll, &event, 1, -1) != 1)
      continue;
    struct client *client = event.data.ptr;
    if (event.data.ptr == &devices->listener)
      accept_client(devices);
    else if (client && !serve_record(devices, client)) /* NULL: stop_event */
      drop_client(devices, client);
  }
  return NULL;
}

static int open_listener(struct device_buffers *devices) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return -errno;
  snprintf(devices->address, sizeof devices->address, "@haul-devices-%016" PRIx64, random);
  size_t length = strlen(devices->address);
  memcpy(at.sun_path, devices->address, length);
  at.sun_path[0] = '\0';
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
  devices->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (devices->listener < 0 || bind(devices->listener, (struct sockaddr *)&at, size) != 0 ||
      listen(devices->listener, 64) != 0)
    return -errno;
  return 0;
}

static int start_devices(struct device_buffers *devices) {
  int code = open_listener(devices);
  if (code)
    return code;
  devices->epoll = epoll_create1(EPOLL_CLOEXEC);
  devices->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (devices->epoll < 0 || devices->stop_event < 0 || !watch(devices, devices->stop_event, NULL) ||
      !watch(devices, devices->listener, &devices->listener))
    return -errno;
  return -thread_start(&devices->thread, serve_clients, devices);
}

int device_buffers_open(struct buffers *buffers, struct source *source,
                        struct device_buffers **out) {
  struct device_buffers *devices = calloc(1, sizeof *devices);
  if (!devices)
    return -ENOMEM;
  devices->buffers = buffers;
  devices->source = source;
  devices->node = source ? source->ops->node(source) : NULL;
  devices->listener = devices->epoll = devices->stop_event = -1;
  list_init(&devices->clients);
  int code = start_devices(devices);
  if (code)
    device_buffers_close(devices);
  else
    *out = devices;
  return code;
}

void device_buffers_stop(struct device_buffers *devices) {
  if (!devices)
    return;
  atomic_store(&devices->stopping, true);
  if (eventfd_write(devices->stop_event, 1) != 0)
    return; /* cannot happen: its counter is 0 */
  pthread_join(devices->thread, NULL);
  list_each_safe(item, &devices->clients)
      drop_client(devices, list_entry(item, struct client, link));
}

void device_buffers_close(struct device_buffers *devices) {
  if (!devices)
    return;
  if (devices->listener >= 0)
    close_deferred(devices->listener); /* with connections that were not accepted */
  if (devices->epoll >= 0)
    close(devices->epoll);
  if (devices->stop_event >= 0)
    close(devices->stop_event);
  if (!devices->source)
    haul_node_close(devices->node);
  free(devices);
}

const char *device_buffers_address(const struct device_buffers *devices) {
  return devices->address;
}
