/* SPDX-License-Identifier: MIT
 * Buffers in device memory: errors without a device, and false responses of a daemon.
 * tests/storage/mounted_devices.c tests the rest with a real daemon. */
#include "usrbio/world.h"

#include <fcntl.h>
#include <haul/haul.h>
#include <haul/usrbio.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "hf3fs_usrbio_gdr.h"

static void without_devices_none_is_reported(void **state) {
  (void)state;
  assert_false(hf3fs_gdr_available());
  assert_int_equal(hf3fs_gdr_device_count(), 0);
}

static void without_devices_no_buffer_is_made(void **state) {
  struct world *world = *state;
  struct hf3fs_iov iov, zeroed = {0};
  static uint8_t memory[4096];
  const uint8_t id[16] = {1};
  hf3fs_gpu_ipc_handle_t handle = {{0}};
  for (int i = 0; i < 7; i++) {
    memset(&iov, 0xff, sizeof iov);
    int status = i == 0   ? hf3fs_iovcreate_gpu(&iov, world->mount, 4096, 0, 0)
                 : i == 1 ? hf3fs_iovopen_gpu(&iov, id, world->mount, 4096, 0, 0)
                 : i == 2 ? hf3fs_iovwrap_gpu(&iov, memory, id, world->mount, 4096, 0, 0)
                 : i == 3 ? hf3fs_iovcreate_device(&iov, world->mount, 4096, 0, 0)
                 : i == 4 ? hf3fs_iovopen_device(&iov, id, world->mount, 4096, 0, 0)
                 : i == 5 ? hf3fs_iovwrap_device(&iov, memory, id, world->mount, 4096, 0, 0)
                          : hf3fs_iov_import_gpu(&iov, &handle, world->mount);
    assert_int_equal(status, i == 6 ? -EINVAL : -ENOTSUP); /* the last handle is invalid */
    assert_memory_equal(&iov, &zeroed, sizeof iov);
    hf3fs_iovdestroy_gpu(&iov);
  }
  assert_int_equal(hf3fs_iovcreate_gpu(NULL, world->mount, 4096, 0, 0), -EINVAL);
  assert_int_equal(hf3fs_iov_import_gpu(&iov, NULL, world->mount), -EINVAL);
}

static void host_memory_is_not_device_memory(void **state) {
  struct world *world = *state;
  hf3fs_gpu_ipc_handle_t handle;
  assert_false(hf3fs_iov_is_gpu(&world->iov));
  assert_false(hf3fs_iov_is_gpu(NULL));
  assert_int_equal(hf3fs_iov_gpu_device(&world->iov), -1);
  assert_int_equal(hf3fs_iov_device_id(&world->iov), -1);
  assert_int_equal(hf3fs_iov_mem_type(&world->iov), HF3FS_MEM_HOST);
  assert_int_equal(hf3fs_iov_export_gpu(&world->iov, &handle), -EINVAL);
  assert_int_equal(hf3fs_iov_export_gpu(NULL, &handle), -EINVAL);
  assert_int_equal(hf3fs_iov_export_gpu(&world->iov, NULL), -EINVAL);
  for (int direction = 0; direction < 2; direction++) {
    assert_int_equal(hf3fs_iovsync(&world->iov, direction), 0);
    assert_int_equal(hf3fs_iovsync_gpu(&world->iov, direction), -EINVAL);
  }
  assert_int_equal(hf3fs_iovsync(&world->iov, 2), -EINVAL);
  assert_int_equal(hf3fs_iovsync(NULL, 0), -EINVAL);
  assert_int_equal(hf3fs_iovsync_gpu(NULL, 0), -EINVAL);
  hf3fs_iovunlink_gpu(&world->iov);
  hf3fs_iovdestroy_gpu(&world->iov); /* frees buffers of every kind of memory */
  assert_int_equal(daemon_registered(), 0);
}

#define MEMORY_BYTES 65536u

/* The one response of a socket for device buffers, and its thread. */
static struct {
  int listener, descriptor;
  struct devices_response response;
  pthread_t thread;
} fake;

static void *respond_once(void *argument) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {.room = {0}};
  struct devices_request request;
  struct iovec span = {&fake.response, sizeof fake.response};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  (void)argument;
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(&control.header), &fake.descriptor, sizeof fake.descriptor);
  int fd = accept(fake.listener, NULL, NULL);
  if (recv(fd, &request, sizeof request, 0) == (ssize_t)sizeof request)
    sendmsg(fd, &message, MSG_NOSIGNAL);
  close(fd);
  return NULL;
}

static void fake_listen(const struct world *world) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  char link[PATH_MAX], name[64];
  int length = snprintf(name, sizeof name, "@haul-test-%d", (int)getpid());
  memcpy(at.sun_path, name, (size_t)length);
  at.sun_path[0] = '\0';
  snprintf(link, sizeof link, "%s/" CONTROL_IOVS "/" DEVICES_LINK, world->mount);
  assert_int_equal(symlinkat(name, AT_FDCWD, link), 0); /* symlink is mocked */
  fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fake.listener, (struct sockaddr *)&at,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length)),
                   0);
  assert_int_equal(listen(fake.listener, 1), 0);
}

static int open_with_response(const struct world *world, const uint8_t id[16], int32_t code,
                              uint64_t size) {
  struct hf3fs_iov iov;
  fake.response.code = code;
  fake.response.length = 2 * MEMORY_BYTES;
  assert_int_equal(pthread_create(&fake.thread, NULL, respond_once, NULL), 0);
  int status = hf3fs_iovopen_gpu(&iov, id, world->mount, size, 0, 0);
  pthread_join(fake.thread, NULL);
  hf3fs_iovdestroy_gpu(&iov);
  return status;
}

static void false_responses_are_rejected(void **state) {
  const struct world *world = *state;
  const uint8_t id[16] = {1};
  haul_node *node;
  haul_region *region;
  struct haul_ticket ticket;
  struct haul_place place;
  assert_works(haul_place_parse("sim:0", &place));
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_region_alloc(node, place, MEMORY_BYTES, 0, &region));
  assert_works(haul_region_export(region, HAUL_READ | HAUL_WRITE, NULL, &ticket, &fake.descriptor));
  memcpy(fake.response.ticket, ticket.bytes, sizeof fake.response.ticket);
  fake_listen(world);
  assert_int_equal(open_with_response(world, id, 0, MEMORY_BYTES), 0);
  assert_int_equal(open_with_response(world, id, 0, 2 * MEMORY_BYTES), -EINVAL);
  assert_int_equal(open_with_response(world, id, 5, MEMORY_BYTES), -EPROTO);
  close(fake.listener);
  close(fake.descriptor);
  haul_region_release(region);
  haul_node_close(node);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(without_devices_none_is_reported),
      world_test(without_devices_no_buffer_is_made),
      world_test(host_memory_is_not_device_memory),
      world_test(false_responses_are_rejected),
  };
  setenv("HAUL_SIM_DEVICES", "1", 0);
  return cmocka_run_group_tests_name("usrbio/devices", tests, NULL, NULL);
}
