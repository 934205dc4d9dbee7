/* SPDX-License-Identifier: MIT
 * Buffers in device memory: libhaul allocates or wraps the memory, and the daemon gets it over its
 * socket, as a ticket and a descriptor fit in no symlink. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>

#include "client.h"
#include "hf3fs_usrbio_gdr.h"
#include "library.h"

#define TIMEOUT_S   30 /* of requests, which may start a driver, and of users of the memory */
#define DEVICES_MAX 64

struct device {
  haul_region *region;
  struct stage *stage; /* NULL: the daemon reaches the memory */
  int daemon;          /* the connection that keeps it registered; -1: another process's memory */
  int users;           /* read end of the pipe that users of IPC memory hold open; else -1 */
  int other;           /* the descriptor that came with another process's memory; else -1 */
  pid_t process;       /* that registered it: a forked child's copy ends nothing */
};

static int count_kind(const struct haul_device *devices, size_t count, uint16_t kind) {
  int found = 0;
  for (size_t i = 0; i < count; i++)
    found += devices[i].place.kind == kind;
  return found;
}

/* The kind of devices in use and their number: NVIDIA's if there are any, else Gaudi's; the
 * emulated ones only if HAUL_USRBIO_DEVICES=sim asks for them. */
static int list_devices(uint16_t *kind) {
  const struct library *calls = library_get();
  struct haul_device devices[DEVICES_MAX];
  size_t count = DEVICES_MAX;
  const char *setting = getenv("HAUL_USRBIO_DEVICES");
  if (!calls || calls->haul_device_list(calls->node, devices, &count) != 0)
    return 0;
  count = count < DEVICES_MAX ? count : DEVICES_MAX;
  if (setting && strcmp(setting, "sim") == 0)
    *kind = HAUL_SIM;
  else
    *kind = count_kind(devices, count, HAUL_CUDA) > 0 ? HAUL_CUDA : HAUL_GAUDI;
  return count_kind(devices, count, *kind);
}

int hf3fs_gdr_device_count(void) {
  uint16_t kind;
  return list_devices(&kind);
}

static int read_address(const char *mount, struct sockaddr_un *at, socklen_t *size) {
  char link[MOUNT_ROOM + sizeof "/" CONTROL_IOVS "/" DEVICES_LINK];
  *at = (struct sockaddr_un){.sun_family = AF_UNIX};
  snprintf(link, sizeof link, "%s/" CONTROL_IOVS "/" DEVICES_LINK, mount);
  ssize_t length = readlink(link, at->sun_path, sizeof at->sun_path);
  if (length < 0)
    return errno == ENOENT || errno == EINVAL ? -ENOTSUP : -errno;
  if (length < 2 || length == (ssize_t)sizeof at->sun_path || at->sun_path[0] != '@')
    return -EPROTO;
  at->sun_path[0] = '\0';
  *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length);
  return 0;
}

/* A socket, or a negative errno value. The kernel restarts no call that has a timeout, so each is
 * repeated after a signal. */
static int connect_daemon(const char *mount) {
  const struct timeval timeout = {TIMEOUT_S, 0};
  struct sockaddr_un at;
  socklen_t size = 0;
  int code = read_address(mount, &at, &size);
  if (code)
    return code;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -errno;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (TEMP_FAILURE_RETRY(connect(fd, (struct sockaddr *)&at, size)) == 0)
    return fd;
  code = errno == ECONNREFUSED ? -ENOTCONN : -errno;
  close(fd);
  return code;
}

union control {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
};

static int send_request(int fd, const struct devices_request *request, int descriptor) {
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
  ssize_t put = TEMP_FAILURE_RETRY(sendmsg(fd, &message, MSG_NOSIGNAL));
  return put == (ssize_t)sizeof *request ? 0 : -ENOTCONN;
}

/* *descriptor is -1 if none came. */
static int receive_response(int fd, struct devices_response *response, int *descriptor) {
  union control control;
  struct iovec span = {response, sizeof *response};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got = TEMP_FAILURE_RETRY(recvmsg(fd, &message, MSG_CMSG_CLOEXEC));
  if (got < 0)
    return errno == EAGAIN ? -ETIMEDOUT : -ENOTCONN;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
    memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  if (got == 0)
    return -ENOTCONN;
  return got == (ssize_t)sizeof *response && response->code <= 0 ? response->code : -EPROTO;
}

/* Sends a request with a descriptor, or -1. *received is the descriptor of the response, or -1. */
static int call_daemon(int fd, const struct devices_request *request, int sent,
                       struct devices_response *response, int *received) {
  int code = send_request(fd, request, sent);
  *received = -1;
  if (code == 0)
    code = receive_response(fd, response, received);
  if (code && *received >= 0) {
    close(*received);
    *received = -1;
  }
  return code;
}

static struct devices_request make_request(enum devices_operation operation, const uint8_t id[16],
                                           size_t size) {
  struct devices_request request = {.magic = DEVICES_MAGIC,
                                    .version = DEVICES_VERSION,
                                    .operation = (uint32_t)operation,
                                    .length = size};
  memcpy(request.id, id, sizeof request.id);
  return request;
}

static struct device *alloc_device(void) {
  struct device *device = calloc(1, sizeof *device);
  if (device)
    *device = (struct device){.daemon = -1, .users = -1, .other = -1, .process = getpid()};
  return device;
}

/* The descriptor to send with the ticket: the memory, or for IPC memory the pipe. */
static int export_region(const struct library *calls, struct device *device,
                         struct haul_ticket *ticket, int *descriptor) {
  const unsigned rights = HAUL_READ | HAUL_WRITE | HAUL_LEND;
  int ends[2];
  int code =
      library_errno(calls->haul_region_export(device->region, rights, NULL, ticket, descriptor));
  if (code || *descriptor >= 0)
    return code;
  if (pipe2(ends, O_CLOEXEC) != 0)
    return -errno;
  device->users = ends[0];
  *descriptor = ends[1];
  return 0;
}

/* Closes the descriptor. */
static int register_region(const struct library *calls, const char *mount, const uint8_t id[16],
                           const struct haul_ticket *ticket, int descriptor,
                           struct device *device) {
  struct devices_request request =
      make_request(DEVICES_ADD, id, calls->haul_region_length(device->region));
  struct devices_response response;
  int received;
  memcpy(request.ticket, ticket->bytes, sizeof request.ticket);
  device->daemon = connect_daemon(mount);
  int code = device->daemon < 0 ? device->daemon : 0;
  if (code == 0)
    code = call_daemon(device->daemon, &request, descriptor, &response, &received);
  close(descriptor);
  if (code == 0 && received >= 0)
    close(received);
  return code;
}

/* Memory that its driver does not share is staged. */
static int share_or_stage(const struct library *calls, const char *mount, const uint8_t id[16],
                          struct device *device) {
  struct haul_ticket ticket;
  int descriptor;
  int code = export_region(calls, device, &ticket, &descriptor);
  if (code == -ENOTSUP)
    return stage_new(mount, id, calls->haul_region_length(device->region), device->region,
                     &device->stage);
  return code ? code : register_region(calls, mount, id, &ticket, descriptor, device);
}

/* The application's memory must be of this place. */
static int wrap_memory(const struct library *calls, void *memory, size_t size,
                       struct haul_place place, struct device *device) {
  int code = library_errno(calls->haul_region_wrap(calls->node, memory, size, &device->region));
  if (code)
    return code;
  struct haul_place found = calls->haul_region_place(device->region);
  if (found.kind != place.kind)
    return -EINVAL;
  return found.device == place.device ? 0 : -ENODEV;
}

int device_new(const char *mount, const uint8_t id[16], void *memory, size_t size, int number,
               struct device **out) {
  struct haul_place place = {.device = (uint16_t)number};
  int count = list_devices(&place.kind);
  const struct library *calls = library_get();
  if (count == 0)
    return -ENOTSUP;
  if (number < 0 || number >= count)
    return -ENODEV;
  struct device *device = alloc_device();
  if (!device)
    return -ENOMEM;
  int code =
      memory
          ? wrap_memory(calls, memory, size, place, device)
          : library_errno(calls->haul_region_alloc(calls->node, place, size, 0, &device->region));
  if (code == 0)
    code = share_or_stage(calls, mount, id, device);
  if (code)
    device_free(device);
  else
    *out = device;
  return code;
}

static int find_memory(const char *mount, const uint8_t id[16], struct haul_ticket *ticket,
                       int *descriptor) {
  const struct devices_request request = make_request(DEVICES_FIND, id, 0);
  struct devices_response response;
  int fd = connect_daemon(mount);
  if (fd < 0)
    return fd;
  int code = call_daemon(fd, &request, -1, &response, descriptor);
  close(fd);
  if (code)
    return code;
  memcpy(ticket->bytes, response.ticket, sizeof ticket->bytes);
  return *descriptor < 0 ? -EPROTO : 0;
}

int device_open(const char *mount, const uint8_t id[16], size_t size, struct device **out) {
  const struct library *calls = library_get();
  struct haul_ticket ticket;
  if (!calls)
    return -ENOTSUP;
  struct device *device = alloc_device();
  if (!device)
    return -ENOMEM;
  int code = find_memory(mount, id, &ticket, &device->other);
  if (code == 0)
    code = library_errno(
        calls->haul_region_import(calls->node, &ticket, device->other, &device->region));
  /* The memory itself says how long it is, not the daemon. */
  if (code == 0 && calls->haul_region_length(device->region) < size)
    code = -EINVAL;
  if (code)
    device_free(device);
  else
    *out = device;
  return code;
}

/* Blocks until no process has the pipe's write end open any more: the daemon closes its own after
 * the last operation. */
static void wait_for_users(const struct device *device) {
  struct pollfd end = {.fd = device->users};
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  int64_t until = time.tv_sec * INT64_C(1000) + TIMEOUT_S * INT64_C(1000), left;
  do {
    clock_gettime(CLOCK_MONOTONIC, &time);
    left = until - time.tv_sec * INT64_C(1000);
  } while (left > 0 && poll(&end, 1, (int)left) < 0 && errno == EINTR);
}

void device_free(struct device *device) {
  const struct library *calls = library_get();
  bool own = device->process == getpid();
  if (device->stage && own)
    stage_close(device->stage);
  if (device->daemon >= 0 && own)
    shutdown(device->daemon, SHUT_RDWR); /* a child may have it open, too */
  if (device->daemon >= 0)
    close(device->daemon);
  if (device->users >= 0 && own)
    wait_for_users(device);
  if (calls && device->region)
    calls->haul_region_release(device->region);
  if (device->users >= 0)
    close(device->users);
  if (device->other >= 0)
    close(device->other); /* after the region: its owner waits for this */
  free(device);
}

void *device_address(const struct device *device) {
  return library_get()->haul_region_address(device->region);
}

struct stage *device_stage(const struct device *device) {
  return device->stage;
}

int device_number(const struct device *device) {
  return library_get()->haul_region_place(device->region).device;
}
