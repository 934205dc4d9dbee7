/* SPDX-License-Identifier: MIT */
#include "device.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "library.h"
#include "mounts.h"
#include "storage/devices.h"

#define ANSWER_SECONDS 30 /* the daemon may start a driver first */

struct device {
  haul_region *region;
  int daemon; /* the connection that keeps it registered; -1: another process's */
};

int device_count(void) {
  uint16_t kind;
  return library_devices(&kind);
}

/* ---- The daemon ---- */

static int address_of(const char *mount, struct sockaddr_un *at, socklen_t *size) {
  char link[MOUNT_PATH + sizeof "/3fs-virt/iovs/" + sizeof DEVICES_NAME];
  *at = (struct sockaddr_un){.sun_family = AF_UNIX};
  snprintf(link, sizeof link, "%s/3fs-virt/iovs/%s", mount, DEVICES_NAME);
  ssize_t length = readlink(link, at->sun_path, sizeof at->sun_path);
  if (length < 0)
    return errno == ENOENT || errno == EINVAL ? -ENOTSUP : -errno;
  if (length < 2 || length == (ssize_t)sizeof at->sun_path || at->sun_path[0] != '@')
    return -EPROTO;
  at->sun_path[0] = '\0';
  *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length);
  return 0;
}

static int dial(const char *mount) {
  const struct timeval bound = {ANSWER_SECONDS, 0};
  struct sockaddr_un at;
  socklen_t size = 0;
  int code = address_of(mount, &at, &size);
  if (code)
    return code;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -errno;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
  int status;
  do /* with a bound on its time a call is not begun again after a signal */
    status = connect(fd, (struct sockaddr *)&at, size);
  while (status != 0 && errno == EINTR);
  if (status == 0)
    return fd;
  code = errno == ECONNREFUSED ? -ENOTCONN : -errno;
  close(fd);
  return code;
}

union control {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
};

static int tell(int fd, const struct devices_request *request, int descriptor) {
  union control control = {.room = {0}};
  struct iovec span = {(void *)(uintptr_t)request, sizeof *request};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
  }
  ssize_t put;
  do
    put = sendmsg(fd, &message, MSG_NOSIGNAL);
  while (put < 0 && errno == EINTR);
  return put == (ssize_t)sizeof *request ? 0 : -ENOTCONN;
}

/* `descriptor` becomes -1 where none came. */
static int hear(int fd, struct devices_answer *answer, int *descriptor) {
  union control control;
  struct iovec span = {answer, sizeof *answer};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  *descriptor = -1;
  ssize_t got;
  do
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0)
    return errno == EAGAIN ? -ETIMEDOUT : -ENOTCONN;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
    memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  if (got == 0)
    return -ENOTCONN;
  return got == (ssize_t)sizeof *answer ? answer->code : -EPROTO;
}

static int ask(int fd, const struct devices_request *request, int sent,
               struct devices_answer *answer, int *came) {
  int code = tell(fd, request, sent);
  *came = -1;
  if (code == 0)
    code = hear(fd, answer, came);
  if (code && *came >= 0)
    close(*came);
  return code;
}

static struct devices_request request_for(uint32_t what, const uint8_t id[16], size_t size) {
  struct devices_request request = {
      .magic = DEVICES_MAGIC, .version = DEVICES_VERSION, .what = what, .length = size};
  memcpy(request.id, id, sizeof request.id);
  return request;
}

/* ---- Making ---- */

static int errno_of(int code) {
  switch (code) {
  case HAUL_ENOMEM:
    return -ENOMEM;
  case HAUL_EPLACE:
    return -ENODEV;
  case HAUL_ENOTSUP:
    return -ENOTSUP;
  case HAUL_ELIMIT:
    return -EMFILE;
  default:
    return code ? -EIO : 0;
  }
}

/* The connection keeps it registered for as long as it is open. */
static int give_to_daemon(const struct library *calls, const char *mount, const uint8_t id[16],
                          struct device *device) {
  struct devices_request request =
      request_for(DEVICES_ADD, id, calls->haul_region_length(device->region));
  struct devices_answer answer;
  struct haul_ticket ticket;
  int descriptor, came;
  int code = errno_of(calls->haul_region_export(device->region, HAUL_READ | HAUL_WRITE, NULL,
                                                &ticket, &descriptor));
  if (code)
    return code;
  memcpy(request.ticket, ticket.bytes, sizeof request.ticket);
  device->daemon = dial(mount);
  code = device->daemon < 0 ? device->daemon : 0;
  if (code == 0)
    code = ask(device->daemon, &request, descriptor, &answer, &came);
  close(descriptor);
  if (code == 0 && came >= 0)
    close(came);
  return code;
}

static struct device *new_device(void) {
  struct device *device = calloc(1, sizeof *device);
  if (device)
    device->daemon = -1;
  return device;
}

int device_make(const char *mount, const uint8_t id[16], size_t size, int number,
                struct device **out) {
  uint16_t kind = 0;
  int count = library_devices(&kind);
  const struct library *calls = library_get();
  if (count == 0)
    return -ENOTSUP;
  if (number < 0 || number >= count)
    return -ENODEV;
  struct device *device = new_device();
  if (!device)
    return -ENOMEM;
  int code = errno_of(calls->haul_region_alloc(
      calls->node, (struct haul_place){kind, (uint16_t)number}, size, 0, &device->region));
  if (code == 0)
    code = give_to_daemon(calls, mount, id, device);
  if (code)
    device_end(device);
  else
    *out = device;
  return code;
}

/* ---- Finding ---- */

static int find(const char *mount, const uint8_t id[16], struct devices_answer *answer,
                int *descriptor) {
  const struct devices_request request = request_for(DEVICES_FIND, id, 0);
  int fd = dial(mount);
  if (fd < 0)
    return fd;
  int code = ask(fd, &request, -1, answer, descriptor);
  close(fd);
  return code == 0 && *descriptor < 0 ? -EPROTO : code;
}

int device_find(const char *mount, const uint8_t id[16], size_t size, struct device **out) {
  const struct library *calls = library_get();
  struct devices_answer answer;
  struct haul_ticket ticket;
  int descriptor;
  if (!calls)
    return -ENOTSUP;
  int code = find(mount, id, &answer, &descriptor);
  if (code)
    return code;
  struct device *device = new_device();
  memcpy(ticket.bytes, answer.ticket, sizeof ticket.bytes);
  code =
      !device ? -ENOMEM
      : size > answer.length
          ? -EINVAL
          : errno_of(calls->haul_region_import(calls->node, &ticket, descriptor, &device->region));
  close(descriptor);
  if (code)
    device_end(device);
  else
    *out = device;
  return code;
}

/* ---- The rest ---- */

void device_end(struct device *device) {
  const struct library *calls = library_get();
  if (!device)
    return;
  if (device->daemon >= 0)
    close(device->daemon);
  if (calls && device->region)
    calls->haul_region_release(device->region);
  free(device);
}

void *device_address(const struct device *device) {
  return library_get()->haul_region_address(device->region);
}

size_t device_length(const struct device *device) {
  return library_get()->haul_region_length(device->region);
}

int device_number(const struct device *device) {
  return library_get()->haul_region_place(device->region).device;
}
