/* SPDX-License-Identifier: MIT */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "library.h"
#include "mounts.h"

#define ANSWER_SECONDS 30 /* the daemon may start a driver first */

struct device {
  haul_region *region;
  int daemon;    /* the connection that keeps it registered; -1: another process's */
  int lent;      /* of lent memory its owner's end of the pipe, else -1 */
  int other;     /* another process's memory: the descriptor that came with it, else -1 */
  pid_t process; /* whose it is: a forked child's copy ends nothing */
};

int device_count(void) {
  uint16_t kind;
  return library_devices(&kind);
}

/* ---- The daemon ---- */

static int address_of(const char *mount, struct sockaddr_un *at, socklen_t *size) {
  char link[MOUNT_PATH + sizeof "/3fs-virt/iovs/" + sizeof DEVICES_LINK];
  *at = (struct sockaddr_un){.sun_family = AF_UNIX};
  snprintf(link, sizeof link, "%s/3fs-virt/iovs/%s", mount, DEVICES_LINK);
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
static int hear(int fd, struct devices_response *answer, int *descriptor) {
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
               struct devices_response *answer, int *came) {
  int code = tell(fd, request, sent);
  *came = -1;
  if (code == 0)
    code = hear(fd, answer, came);
  if (code && *came >= 0)
    close(*came);
  return code;
}

static struct devices_request request_for(uint32_t operation, const uint8_t id[16], size_t size) {
  struct devices_request request = {
      .magic = DEVICES_MAGIC, .version = DEVICES_VERSION, .operation = operation, .length = size};
  memcpy(request.id, id, sizeof request.id);
  return request;
}

/* ---- Making ---- */

static int errno_of(int code) {
  switch (code) {
  case HAUL_ENOMEM:
    return -ENOMEM;
  case HAUL_EINVAL:
    return -EINVAL;
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

/* What goes to the daemon with the ticket: the memory, or a pipe's end where the ticket opens it.
 */
static int export(const struct library *calls, struct device *device, struct haul_ticket *ticket,
                  int *descriptor) {
  const unsigned rights = HAUL_READ | HAUL_WRITE | HAUL_LEND;
  int ends[2];
  int code = errno_of(calls->haul_region_export(device->region, rights, NULL, ticket, descriptor));
  if (code || *descriptor >= 0)
    return code;
  if (pipe2(ends, O_CLOEXEC) != 0)
    return -errno;
  device->lent = ends[0];
  *descriptor = ends[1];
  return 0;
}

/* The connection keeps it registered for as long as it is open. */
static int give_to_daemon(const struct library *calls, const char *mount, const uint8_t id[16],
                          struct device *device) {
  struct devices_request request =
      request_for(DEVICES_ADD, id, calls->haul_region_length(device->region));
  struct devices_response answer;
  struct haul_ticket ticket;
  int descriptor, came;
  int code = export(calls, device, &ticket, &descriptor);
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
    *device = (struct device){.daemon = -1, .lent = -1, .other = -1, .process = getpid()};
  return device;
}

/* The application's memory, which has to be of that place. */
static int wrap(const struct library *calls, void *memory, size_t size, struct haul_place place,
                struct device *device) {
  int code = errno_of(calls->haul_region_wrap(calls->node, memory, size, &device->region));
  if (code)
    return code;
  struct haul_place is = calls->haul_region_place(device->region);
  return is.kind != place.kind ? -EINVAL : is.device != place.device ? -ENODEV : 0;
}

int device_make(const char *mount, const uint8_t id[16], void *memory, size_t size, int number,
                struct device **out) {
  struct haul_place place = {.device = (uint16_t)number};
  int count = library_devices(&place.kind);
  const struct library *calls = library_get();
  if (count == 0)
    return -ENOTSUP;
  if (number < 0 || number >= count)
    return -ENODEV;
  struct device *device = new_device();
  if (!device)
    return -ENOMEM;
  int code = memory
                 ? wrap(calls, memory, size, place, device)
                 : errno_of(calls->haul_region_alloc(calls->node, place, size, 0, &device->region));
  if (code == 0)
    code = give_to_daemon(calls, mount, id, device);
  if (code)
    device_end(device);
  else
    *out = device;
  return code;
}

/* ---- Finding ---- */

static int find(const char *mount, const uint8_t id[16], struct devices_response *answer,
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
  struct devices_response answer;
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
  if (device)
    device->other = descriptor;
  else
    close(descriptor);
  if (code)
    device_end(device);
  else
    *out = device;
  return code;
}

/* ---- The rest ---- */

/* Until nobody has lent memory open any more: the daemon ends what it does on it, and other
 * processes theirs. */
static void wait_until_back(const struct device *device) {
  struct pollfd end = {.fd = device->lent};
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  int64_t until = time.tv_sec * INT64_C(1000) + ANSWER_SECONDS * INT64_C(1000), left;
  do {
    clock_gettime(CLOCK_MONOTONIC, &time);
    left = until - time.tv_sec * INT64_C(1000);
  } while (left > 0 && poll(&end, 1, (int)left) < 0 && errno == EINTR);
}

void device_end(struct device *device) {
  const struct library *calls = library_get();
  if (!device)
    return;
  bool own = device->process == getpid();
  if (device->daemon >= 0 && own)
    shutdown(device->daemon, SHUT_RDWR); /* a child may still have it open */
  if (device->daemon >= 0)
    close(device->daemon);
  if (device->lent >= 0 && own)
    wait_until_back(device);
  if (calls && device->region)
    calls->haul_region_release(device->region);
  if (device->lent >= 0)
    close(device->lent);
  if (device->other >= 0)
    close(device->other); /* after the region: its owner waits for this */
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
