/* SPDX-License-Identifier: MIT */
#include "storage/devices.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <haul/usrbio.h>

#include "core/deferred_close.h"
#include "storage/buffer.h"
#include "storage/threads.h"

#define CLIENTS_MAX 1024u
#define BUFFERS_MAX 4096u /* of one client */

struct client {
  struct list link; /* devices->clients */
  int fd;
  uid_t uid;
  unsigned count;
  struct list memories; /* struct memory */
};

/* A buffer, with what another process needs to have it too. */
struct memory {
  struct list link;
  struct buffer *buffer;
  uint8_t ticket[256];
};

/* All of one thread's, but for `stops`. */
struct devices {
  struct buffers *buffers;
  haul_node *node; /* from the first memory on */
  struct list clients;
  unsigned count;
  int listener, epoll, bell;
  _Atomic bool stops;
  pthread_t thread;
  char address[40];
};

/* ---- What is asked for ---- */

static struct memory *find(struct list *memories, const uint8_t id[16]) {
  list_each(item, memories) {
    struct memory *memory = list_entry(item, struct memory, link);
    if (memcmp(memory->buffer->id, id, sizeof memory->buffer->id) == 0)
      return memory;
  }
  return NULL;
}

static void end_memory(struct devices *devices, struct client *client, struct memory *memory) {
  list_remove(&memory->link);
  client->count--;
  buffers_remove(devices->buffers, memory->buffer);
  free(memory);
}

/* Takes the region, but for a failure. */
static int add_region(struct devices *devices, struct client *client,
                      const struct devices_request *request, haul_region *region, int descriptor) {
  struct memory *memory = calloc(1, sizeof *memory);
  struct buffer like = {.uid = client->uid,
                        .length = haul_region_length(region),
                        .region = region,
                        .descriptor = descriptor,
                        .node = devices->node};
  if (!memory)
    return -ENOMEM;
  memcpy(like.id, request->id, sizeof like.id);
  int code = buffers_add(devices->buffers, &like, &memory->buffer);
  if (code) {
    free(memory);
    return code;
  }
  memcpy(memory->ticket, request->ticket, sizeof memory->ticket);
  list_append(&client->memories, &memory->link);
  client->count++;
  return 0;
}

/* Takes the descriptor, but for a failure. */
static int add(struct devices *devices, struct client *client,
               const struct devices_request *request, int descriptor) {
  struct haul_ticket ticket;
  haul_region *region;
  if (descriptor < 0)
    return -EINVAL;
  if (client->count == BUFFERS_MAX)
    return -EMFILE;
  if (!devices->node && haul_node_open(NULL, &devices->node) != 0)
    return -EINVAL;
  memcpy(ticket.bytes, request->ticket, sizeof ticket.bytes);
  if (haul_region_import(devices->node, &ticket, descriptor, &region) != 0)
    return -EINVAL;
  int code = haul_region_length(region) < request->length
                 ? -EINVAL
                 : add_region(devices, client, request, region, descriptor);
  if (code)
    haul_region_release(region);
  return code;
}

/* Any of the same user's. */
static struct memory *find_of_user(struct devices *devices, uid_t uid, const uint8_t id[16]) {
  list_each(item, &devices->clients) {
    struct client *client = list_entry(item, struct client, link);
    struct memory *memory = client->uid == uid ? find(&client->memories, id) : NULL;
    if (memory)
      return memory;
  }
  return NULL;
}

static int answer_find(struct devices *devices, const struct client *client,
                       const struct devices_request *request, struct devices_response *answer,
                       int *descriptor) {
  struct memory *memory = find_of_user(devices, client->uid, request->id);
  if (!memory)
    return -ENOENT;
  answer->length = memory->buffer->length;
  memcpy(answer->ticket, memory->ticket, sizeof answer->ticket);
  *descriptor = memory->buffer->descriptor;
  return 0;
}

static int drop(struct devices *devices, struct client *client, const uint8_t id[16]) {
  struct memory *memory = find(&client->memories, id);
  if (!memory)
    return -ENOENT;
  end_memory(devices, client, memory);
  return 0;
}

/* ---- Records ---- */

static void put_aside(int descriptor) {
  if (descriptor >= 0)
    close_foreign(descriptor);
}

#define RECORD_MOST 253 /* descriptors: the kernel's SCM_MAX_FD */

/* One record and at most one descriptor; others are closed. Its length, or negative. There is room
 * for all that can come: what the kernel has to close it closes here and now, and a client's socket
 * may linger for as long as the client likes. */
static ssize_t receive(int fd, void *record, size_t size, int *descriptor) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int) * RECORD_MOST)];
  } control;
  struct iovec span = {record, size};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  *descriptor = -1;
  if (got < 0)
    return got;
  for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
      continue;
    for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
      put_aside(*descriptor);
      memcpy(descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
    }
  }
  return got;
}

/* A client that does not read is dropped. */
static bool reply(int fd, const struct devices_response *answer, int descriptor) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {.room = {0}};
  struct iovec span = {(void *)(uintptr_t)answer, sizeof *answer};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
  }
  return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *answer;
}

static bool is_request(const struct devices_request *request, ssize_t got) {
  return got == (ssize_t)sizeof *request && request->magic == DEVICES_MAGIC &&
         request->version == DEVICES_VERSION;
}

/* False: the client is to be dropped. */
static bool serve(struct devices *devices, struct client *client) {
  struct devices_request request = {0};
  struct devices_response answer = {0};
  int came, goes = -1;
  ssize_t got = receive(client->fd, &request, sizeof request, &came);
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return true;
  if (!is_request(&request, got)) {
    put_aside(came);
    return false;
  }
  switch (request.operation) {
  case DEVICES_ADD:
    answer.code = add(devices, client, &request, came);
    if (answer.code == 0)
      came = -1;
    break;
  case DEVICES_FIND:
    answer.code = answer_find(devices, client, &request, &answer, &goes);
    break;
  case DEVICES_REMOVE:
    answer.code = drop(devices, client, request.id);
    break;
  default:
    answer.code = -EINVAL;
  }
  put_aside(came);
  return reply(client->fd, &answer, goes);
}

/* ---- Clients ---- */

/* What nobody has read would be closed with the socket. */
static void close_client(int fd) {
  struct devices_request unread = {0};
  int descriptor;
  shutdown(fd, SHUT_RDWR); /* nothing comes any more */
  while (receive(fd, &unread, sizeof unread, &descriptor) > 0)
    put_aside(descriptor);
  close(fd);
}

static void end_client(struct devices *devices, struct client *client) {
  list_each_safe(item, &client->memories)
      end_memory(devices, client, list_entry(item, struct memory, link));
  list_remove(&client->link);
  devices->count--;
  close_client(client->fd);
  free(client);
}

static bool watch(struct devices *devices, int fd, void *who) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = who};
  return epoll_ctl(devices->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static struct client *new_client(int fd) {
  struct ucred who;
  socklen_t size = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return NULL;
  struct client *client = calloc(1, sizeof *client);
  if (!client)
    return NULL;
  client->fd = fd;
  client->uid = who.uid;
  list_init(&client->memories);
  list_init(&client->link);
  return client;
}

static void welcome(struct devices *devices) {
  int fd = accept4(devices->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return;
  struct client *client = devices->count < CLIENTS_MAX ? new_client(fd) : NULL;
  if (!client || !watch(devices, fd, client)) {
    free(client);
    close_client(fd);
    return;
  }
  list_append(&devices->clients, &client->link);
  devices->count++;
}

static void *run(void *argument) {
  struct devices *devices = argument;
  struct epoll_event event;
  while (!atomic_load(&devices->stops)) {
    if (epoll_wait(devices->epoll, &event, 1, -1) != 1)
      continue;
    struct client *client = event.data.ptr;
    if (event.data.ptr == &devices->listener)
      welcome(devices);
    else if (client && !serve(devices, client))
      end_client(devices, client);
  }
  return NULL;
}

/* ---- Life ---- */

static int listen_here(struct devices *devices) {
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

static int start(struct devices *devices) {
  int code = listen_here(devices);
  if (code)
    return code;
  devices->epoll = epoll_create1(EPOLL_CLOEXEC);
  devices->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (devices->epoll < 0 || devices->bell < 0 || !watch(devices, devices->bell, NULL) ||
      !watch(devices, devices->listener, &devices->listener))
    return -errno;
  return storage_thread(&devices->thread, run, devices);
}

static void close_all(struct devices *devices) {
  const int all[] = {devices->epoll, devices->bell};
  if (devices->listener >= 0) /* with connections that nobody has accepted */
    close_deferred(devices->listener);
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (all[i] >= 0)
      close(all[i]);
}

int devices_open(struct buffers *buffers, struct devices **out) {
  struct devices *devices = calloc(1, sizeof *devices);
  if (!devices)
    return -ENOMEM;
  devices->buffers = buffers;
  devices->listener = devices->epoll = devices->bell = -1;
  list_init(&devices->clients);
  int code = start(devices);
  if (code == 0) {
    *out = devices;
    return 0;
  }
  close_all(devices);
  free(devices);
  return code;
}

void devices_stop(struct devices *devices) {
  const uint64_t one = 1;
  if (!devices)
    return;
  atomic_store(&devices->stops, true);
  if (write(devices->bell, &one, sizeof one) < 0)
    return; /* an eventfd that nobody has written to before */
  pthread_join(devices->thread, NULL);
  list_each_safe(item, &devices->clients)
      end_client(devices, list_entry(item, struct client, link));
}

void devices_close(struct devices *devices) {
  if (!devices)
    return;
  close_all(devices);
  haul_node_close(devices->node);
  free(devices);
}

const char *devices_address(const struct devices *devices) {
  return devices->address;
}
