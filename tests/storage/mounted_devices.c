/* SPDX-License-Identifier: MIT
 * USRBIO programs with buffers of emulated accelerators, on a real mount. With the argument "gpu" a
 * mock GPU, whose driver ends a process that frees memory which another one has open; there the
 * application wraps its own memory. With "gaudi" a mock Gaudi. With "remote" the files are another
 * node's, and with "rdma" that node's mock NIC reaches the memory of mock GPUs. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "doubles/cuda/door.h"
#include "hf3fs_usrbio_gdr.h"
#include "mounted.h"
#include "support/gpu.h"

#define MIB    ((size_t)1 << 20)
#define LENGTH (5 * MIB + 321)

static struct mounted mounted;

static uint8_t byte_at(uint64_t offset) {
  return (uint8_t)(offset * 13 + (offset >> 10));
}

static int set_up(void **state) {
  *state = &mounted;
  uint8_t *bytes = malloc(LENGTH);
  mounted_make(&mounted);
  for (size_t i = 0; i < LENGTH; i++)
    bytes[i] = byte_at(i);
  int fd = open(at_source(&mounted, "file"), O_WRONLY | O_CREAT, 0600);
  assert_int_equal(write(fd, bytes, LENGTH), LENGTH);
  close(fd);
  free(bytes);
  mounted_start(&mounted, NULL);
  return 0;
}

static int64_t do_one(struct hf3fs_iov *iov, const char *name, bool read, uint64_t at,
                      uint64_t offset, uint64_t length) {
  struct hf3fs_ior ior;
  struct hf3fs_cqe done;
  struct timespec until;
  int fd = open(at_point(&mounted, name), read ? O_RDONLY : O_RDWR | O_CREAT, 0600);
  assert_true(fd >= 0 && hf3fs_reg_fd(fd, 0) <= 0);
  assert_int_equal(hf3fs_iorcreate(&ior, mounted.point, 4, read, 0, -1), 0);
  assert_true(hf3fs_prep_io(&ior, iov, read, iov->base + at, fd, offset, length, NULL) >= 0);
  assert_int_equal(hf3fs_submit_ios(&ior), 0);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  assert_int_equal(hf3fs_wait_for_ios(&ior, &done, 1, 1, &until), 1);
  hf3fs_iordestroy(&ior);
  hf3fs_dereg_fd(fd);
  close(fd);
  return done.result;
}

static void assert_copy(const char *name, uint64_t offset, size_t length) {
  uint8_t *bytes = malloc(length);
  int fd = open(at_source(&mounted, name), O_RDONLY);
  assert_int_equal(pread(fd, bytes, length, 0), (ssize_t)length);
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != byte_at(offset + i))
      fail_msg("byte %zu of %s is wrong", i, name);
  close(fd);
  free(bytes);
}

static void unknown_devices_and_buffers_are_rejected(void **state) {
  (void)state;
  struct hf3fs_iov iov, zeroed = {0};
  hf3fs_gpu_ipc_handle_t handle = {{0}};
  const uint8_t id[16] = {3};
  char byte;
  assert_true(hf3fs_gdr_available());
  int count = hf3fs_gdr_device_count();
  assert_true(count > 0);
  assert_int_equal(hf3fs_iovcreate_gpu(&iov, mounted.point, MIB, 0, count), -ENODEV);
  assert_memory_equal(&iov, &zeroed, sizeof iov);
  assert_int_equal(hf3fs_iovcreate_gpu(&iov, mounted.point, MIB, 0, -1), -EINVAL);
  assert_int_equal(hf3fs_iovcreate_gpu(&iov, mounted.point, 0, 0, 0), -EINVAL);
  assert_int_equal(hf3fs_iovcreate_gpu(&iov, mounted.source, MIB, 0, 0), -ENOTSUP);
  assert_int_equal(hf3fs_iovopen_gpu(&iov, id, mounted.point, MIB, 0, 0), -ENOENT);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, &byte, id, mounted.point, 1, 0, 0), -EINVAL);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, NULL, id, mounted.point, 1, 0, 0), -EINVAL);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, &byte, NULL, mounted.point, 1, 0, 0), -EINVAL);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, &byte, id, mounted.point, 1, 0, count), -ENODEV);
  assert_int_equal(hf3fs_iov_import_gpu(&iov, &handle, mounted.point), -EINVAL);
  assert_memory_equal(&iov, &zeroed, sizeof iov);
}

static void a_file_is_copied_through_a_device(void **state) {
  (void)state;
  struct hf3fs_iov iov;
  assert_int_equal(hf3fs_iovcreate_gpu(&iov, mounted.point, 8 * MIB, 0, 0), 0);
  assert_true(hf3fs_iov_is_gpu(&iov));
  assert_int_equal(hf3fs_iov_gpu_device(&iov), 0);
  assert_int_equal(hf3fs_iov_mem_type(&iov), HF3FS_MEM_DEVICE);
  assert_int_equal(hf3fs_iovsync_gpu(&iov, 0), 0);
  assert_int_equal(do_one(&iov, "file", true, 4096, 0, 6 * MIB), LENGTH);
  assert_int_equal(hf3fs_iovsync(&iov, 1), 0);
  assert_int_equal(do_one(&iov, "copy", false, 4096, 0, LENGTH), LENGTH);
  assert_copy("copy", 0, LENGTH);
  assert_int_equal(do_one(&iov, "file", true, 0, 1001, 777), 777);
  assert_int_equal(do_one(&iov, "part", false, 0, 0, 777), 777);
  assert_copy("part", 1001, 777);
  hf3fs_iovdestroy_gpu(&iov);
  assert_null(iov.base);
}

/* The child reads the file into the buffer, the parent writes it. */
static void another_process_uses_a_buffer_by_a_handle(void **state) {
  (void)state;
  struct hf3fs_iov iov, other;
  hf3fs_gpu_ipc_handle_t handle;
  int ends[2], status;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    close(ends[1]); /* ends with the parent */
    if (read(ends[0], &handle, sizeof handle) != (ssize_t)sizeof handle)
      _exit(1);
    assert_int_equal(hf3fs_iov_import_gpu(&other, &handle, mounted.point), 0);
    assert_int_equal(do_one(&other, "file", true, 0, 0, 6 * MIB), LENGTH);
    hf3fs_iovdestroy_gpu(&other);
    _exit(0);
  }
  assert_int_equal(hf3fs_iovcreate_device(&iov, mounted.point, 8 * MIB, 0, 0), 0);
  assert_int_equal(hf3fs_iov_export_gpu(&iov, &handle), 0);
  assert_int_equal(write(ends[1], &handle, sizeof handle), sizeof handle);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(do_one(&iov, "copy", false, 0, 0, LENGTH), LENGTH);
  assert_copy("copy", 0, LENGTH);
  hf3fs_iovdestroy_gpu(&iov);
  assert_int_equal(hf3fs_iov_import_gpu(&other, &handle, mounted.point), -ENOENT);
  close(ends[0]);
  close(ends[1]);
}

static const uint8_t own_id[16] = {7};

static void wrapped_memory_is_used(void **state) {
  (void)state;
  struct hf3fs_iov iov;
  char *memory = gpu_alloc(12 * MIB);
  assert_int_equal(
      hf3fs_iovwrap_gpu(&iov, memory + MIB + 512, own_id, mounted.point, 8 * MIB, 0, 0), 0);
  assert_ptr_equal(iov.base, memory + MIB + 512);
  assert_true(hf3fs_iov_is_gpu(&iov));
  assert_int_equal(do_one(&iov, "file", true, 4096, 0, 6 * MIB), LENGTH);
  assert_int_equal(do_one(&iov, "copy", false, 4096, 0, LENGTH), LENGTH);
  assert_copy("copy", 0, LENGTH);
  hf3fs_iovdestroy(&iov);
  gpu_free(memory);
}

static uint64_t counter(const char *name) {
  char text[1024];
  ssize_t length =
      readlink(at_point(&mounted, "3fs-virt/iovs/haul-counters"), text, sizeof text - 1);
  assert_true(length > 0);
  text[length] = '\0';
  const char *found = strstr(text, name);
  assert_non_null(found);
  return strtoull(found + strlen(name), NULL, 10);
}

static void check_straight(struct hf3fs_iov *iov) {
  assert_int_equal(do_one(iov, "file", true, 4096, 0, 6 * MIB), LENGTH);
  assert_int_equal(do_one(iov, "copy", false, 4096, 0, LENGTH), LENGTH);
  assert_copy("copy", 0, LENGTH);
}

/* Both what haul allocates and what the application wraps, which the daemon opens by IPC. */
static void a_servers_nic_reaches_the_memory(void **state) {
  (void)state;
  struct hf3fs_iov iov;
  assert_int_equal(hf3fs_iovcreate_gpu(&iov, mounted.point, 8 * MIB, 0, 0), 0);
  check_straight(&iov);
  hf3fs_iovdestroy(&iov);
  char *memory = gpu_alloc(12 * MIB);
  assert_int_equal(
      hf3fs_iovwrap_gpu(&iov, memory + MIB + 512, own_id, mounted.point, 8 * MIB, 0, 0), 0);
  check_straight(&iov);
  hf3fs_iovdestroy(&iov);
  gpu_free(memory);
  assert_int_equal(counter("device_direct_bytes="), 4 * LENGTH);
  assert_int_equal(counter("staged_bytes="), 0);
  assert_int_equal(counter("device_registrations="), 2);
  assert_true(mounted_says(&mounted, "device memory is reached without a copy: rdma"));
}

static void invalid_memory_is_not_wrapped(void **state) {
  (void)state;
  struct hf3fs_iov iov, other;
  char *memory = gpu_alloc(2 * MIB);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, MIB, 0, 1), -ENODEV);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory + MIB, own_id, mounted.point, 2 * MIB, 0, 0),
                   -EINVAL);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, MIB, 0, 0), 0);
  assert_int_equal(hf3fs_iovwrap_gpu(&other, memory, own_id, mounted.point, MIB, 0, 0), -EEXIST);
  hf3fs_iovdestroy(&iov);
  gpu_free(memory);
}

/* Memory that the driver does not share. */
static void *(*const unshared[])(size_t length) = {gpu_alloc_mapped, gpu_alloc_of_pool};

static void check_staged(char *memory, int device) {
  struct hf3fs_iov iov;
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory + 512, own_id, mounted.point, 8 * MIB, 0, device),
                   0);
  assert_ptr_equal(iov.base, memory + 512);
  assert_true(hf3fs_iov_is_gpu(&iov));
  assert_int_equal(hf3fs_iov_gpu_device(&iov), device);
  assert_int_equal(do_one(&iov, "file", true, 4096, 0, 6 * MIB), LENGTH);
  assert_int_equal(do_one(&iov, "copy", false, 4096, 0, LENGTH), LENGTH);
  assert_copy("copy", 0, LENGTH);
  assert_int_equal(do_one(&iov, "file", true, 4095, 1001, 777), 777); /* other bytes stay */
  assert_int_equal(do_one(&iov, "part", false, 4095 + 777, 0, MIB), MIB);
  assert_copy("part", 776, MIB);
  hf3fs_iovdestroy(&iov);
}

static void unshared_memory_is_staged(void **state) {
  struct hf3fs_iov iov;
  (void)state;
  for (size_t i = 0; i < COUNT(unshared); i++) {
    char *memory = unshared[i](10 * MIB);
    check_staged(memory, 0);
    gpu_free(memory);
  }
  /* Of the virtual-memory calls, as haul's hook gives it to cudaMalloc. */
  assert_int_equal(hf3fs_iovcreate_gpu(&iov, mounted.point, 10 * MIB, 0, 0), 0);
  check_staged((char *)iov.base, 0);
  hf3fs_iovdestroy(&iov);
}

/* In a child, whose GPU is lost. */
static void a_failed_copy_of_a_stage_fails_its_operation(void **state) {
  int status;
  (void)state;
  pid_t child = fork();
  if (child == 0) {
    struct hf3fs_iov iov;
    char *memory = gpu_alloc_of_pool(8 * MIB);
    assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, 8 * MIB, 0, 0), 0);
    gpu_double()->copy = 1;
    assert_int_equal(do_one(&iov, "file", true, 0, 0, MIB), -EIO);
    hf3fs_iovdestroy(&iov);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

static void a_staged_buffer_is_its_processs_alone(void **state) {
  struct hf3fs_iov iov, other;
  hf3fs_gpu_ipc_handle_t handle;
  (void)state;
  char *memory = gpu_alloc_of_pool(MIB);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, MIB, 0, 0), 0);
  assert_int_equal(hf3fs_iov_export_gpu(&iov, &handle), -ENOTSUP);
  assert_int_equal(hf3fs_iovopen_gpu(&other, own_id, mounted.point, MIB, 0, 0), -ENOENT);
  assert_int_equal(hf3fs_iovopen(&other, own_id, mounted.point, MIB, 0, -1), -ENOENT);
  assert_int_equal(hf3fs_iovwrap_gpu(&other, memory, own_id, mounted.point, MIB, 0, 0), -EEXIST);
  hf3fs_iovdestroy(&iov);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, MIB, 0, 0), 0);
  hf3fs_iovdestroy(&iov);
  gpu_free(memory);
}

/* The window has 64 MiB; what it lacks is told like a full ring. */
static void operations_share_the_window_of_a_stage(void **state) {
  enum { PARTS = 5, PART = 16 };
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  struct hf3fs_cqe done[PARTS];
  (void)state;
  char *memory = gpu_alloc_mapped(PARTS * PART * MIB);
  int fd = open(at_point(&mounted, "file"), O_RDONLY);
  assert_true(fd >= 0 && hf3fs_reg_fd(fd, 0) <= 0);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, PARTS * PART * MIB, 0, 0),
                   0);
  assert_int_equal(hf3fs_iorcreate(&ior, mounted.point, 8, true, 0, -1), 0);
  assert_int_equal(hf3fs_prep_io(&ior, &iov, true, iov.base, fd, 0, 64 * MIB + 1, NULL), -EINVAL);
  for (unsigned i = 0; i < PARTS; i++) {
    int index =
        hf3fs_prep_io(&ior, &iov, true, iov.base + i * PART * MIB, fd, i * MIB, PART * MIB, NULL);
    assert_true(i < PARTS - 1 ? index >= 0 : index == -EAGAIN);
  }
  assert_int_equal(hf3fs_submit_ios(&ior), 0);
  assert_int_equal(hf3fs_wait_for_ios(&ior, done, PARTS, PARTS - 1, NULL), PARTS - 1);
  assert_true(hf3fs_prep_io(&ior, &iov, true, iov.base, fd, 0, 64 * MIB, NULL) >= 0);
  assert_int_equal(hf3fs_submit_ios(&ior), 0);
  assert_int_equal(hf3fs_wait_for_ios(&ior, done, PARTS, 1, NULL), 1);
  assert_int_equal(done[0].result, LENGTH);
  for (unsigned i = 0; i < PARTS - 1; i++) {
    size_t left = LENGTH - i * MIB;
    if (i > 0)
      assert_int_equal(do_one(&iov, "copy", false, i * PART * MIB, 0, left), left);
    if (i > 0)
      assert_copy("copy", i * MIB, left);
  }
  hf3fs_iordestroy(&ior);
  hf3fs_iovdestroy(&iov);
  hf3fs_dereg_fd(fd);
  close(fd);
  gpu_free(memory);
}

#define PIECE  ((size_t)64 << 10)
#define PIECES 64u /* of the file, and of the buffer */

struct preparer {
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  int fd;
};

static void *prepare_all(void *argument) {
  struct preparer *own = argument;
  for (unsigned i = 0; i < 4 * PIECES; i++) {
    size_t at = i % PIECES * PIECE;
    while (hf3fs_prep_io(&own->ior, &own->iov, true, own->iov.base + at, own->fd, at, PIECE,
                         NULL) == -EAGAIN)
      usleep(100);
    assert_int_equal(hf3fs_submit_ios(&own->ior), 0);
  }
  return NULL;
}

static void one_thread_prepares_and_one_waits(void **state) {
  struct preparer own;
  struct hf3fs_cqe done[8];
  pthread_t thread;
  (void)state;
  char *memory = gpu_alloc_mapped(PIECES * PIECE);
  own.fd = open(at_point(&mounted, "file"), O_RDONLY);
  assert_true(own.fd >= 0 && hf3fs_reg_fd(own.fd, 0) <= 0);
  assert_int_equal(hf3fs_iovwrap_gpu(&own.iov, memory, own_id, mounted.point, PIECES * PIECE, 0, 0),
                   0);
  assert_int_equal(hf3fs_iorcreate(&own.ior, mounted.point, 16, true, 0, -1), 0);
  assert_int_equal(pthread_create(&thread, NULL, prepare_all, &own), 0);
  for (unsigned left = 4 * PIECES; left > 0;) {
    int count = hf3fs_wait_for_ios(&own.ior, done, 8, 1, NULL);
    assert_true(count > 0);
    for (int i = 0; i < count; i++)
      assert_int_equal(done[i].result, PIECE);
    left -= (unsigned)count;
  }
  pthread_join(thread, NULL);
  assert_int_equal(do_one(&own.iov, "copy", false, 0, 0, PIECES * PIECE), PIECES * PIECE);
  assert_copy("copy", 0, PIECES * PIECE);
  hf3fs_iordestroy(&own.ior);
  hf3fs_iovdestroy(&own.iov);
  hf3fs_dereg_fd(own.fd);
  close(own.fd);
  gpu_free(memory);
}

static void wrapped_memory_is_freed_during_operations(void **state) {
  void *(*const kinds[])(size_t length) = {gpu_alloc, gpu_alloc_of_pool, gpu_alloc_mapped};
  (void)state;
  int fd = open(at_point(&mounted, "file"), O_RDONLY);
  assert_true(fd >= 0 && hf3fs_reg_fd(fd, 0) <= 0);
  for (unsigned round = 0; round < 30; round++) {
    struct hf3fs_iov iov;
    struct hf3fs_ior ior;
    char *memory = kinds[round % COUNT(kinds)](8 * MIB);
    assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, 8 * MIB, 0, 0), 0);
    assert_int_equal(hf3fs_iorcreate(&ior, mounted.point, 16, true, 0, -1), 0);
    for (unsigned i = 0; i < 16; i++)
      assert_true(hf3fs_prep_io(&ior, &iov, true, iov.base + i * MIB / 2, fd, i * MIB / 8, MIB / 2,
                                NULL) >= 0);
    assert_int_equal(hf3fs_submit_ios(&ior), 0);
    hf3fs_iovdestroy(&iov);
    gpu_free(memory);
    for (int left = round % 2 ? 16 : 0; left > 0;) {
      struct hf3fs_cqe done[16];
      int count = hf3fs_wait_for_ios(&ior, done, 16, left, NULL);
      assert_true(count > 0);
      left -= count;
    }
    hf3fs_iordestroy(&ior);
  }
  hf3fs_dereg_fd(fd);
  close(fd);
}

/* The child keeps the memory open until a message, and the parent waits for that. */
static void another_process_imports_wrapped_memory(void **state) {
  (void)state;
  struct hf3fs_iov iov, other;
  hf3fs_gpu_ipc_handle_t handle;
  int goes[2], comes[2], status;
  char byte = 0;
  assert_true(pipe(goes) == 0 && pipe(comes) == 0);
  pid_t child = fork();
  if (child == 0) {
    close(goes[1]);
    if (read(goes[0], &handle, sizeof handle) != (ssize_t)sizeof handle)
      _exit(1);
    assert_int_equal(hf3fs_iov_import_gpu(&other, &handle, mounted.point), 0);
    assert_int_equal(do_one(&other, "file", true, 0, 0, 6 * MIB), LENGTH);
    assert_int_equal(write(comes[1], &byte, 1), 1);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    hf3fs_iovdestroy_gpu(&other);
    _exit(0);
  }
  char *memory = gpu_alloc(8 * MIB);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, 8 * MIB, 0, 0), 0);
  assert_int_equal(hf3fs_iov_export_gpu(&iov, &handle), 0);
  assert_int_equal(write(goes[1], &handle, sizeof handle), sizeof handle);
  assert_int_equal(read(comes[0], &byte, 1), 1);
  assert_int_equal(do_one(&iov, "copy", false, 0, 0, LENGTH), LENGTH);
  assert_copy("copy", 0, LENGTH);
  hf3fs_iovdestroy_gpu(&iov);
  gpu_free(memory);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  close(goes[0]), close(goes[1]), close(comes[0]), close(comes[1]);
}

static void a_forked_child_ends_no_registration(void **state) {
  (void)state;
  struct hf3fs_iov iov;
  int status;
  char *memory = gpu_alloc(MIB);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, MIB, 0, 0), 0);
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  time_t began = time(NULL);
  hf3fs_iovdestroy_gpu(&iov);
  assert_true(time(NULL) - began < 20); /* before its timeout */
  gpu_free(memory);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
}

static void a_dead_daemon_does_not_block_clients(void **state) {
  (void)state;
  struct hf3fs_iov iov;
  char *memory = gpu_alloc(MIB);
  assert_int_equal(hf3fs_iovwrap_gpu(&iov, memory, own_id, mounted.point, MIB, 0, 0), 0);
  kill(mounted.daemon, SIGKILL);
  assert_int_equal(mounted_wait(&mounted), 128 + SIGKILL);
  hf3fs_iovdestroy_gpu(&iov);
  gpu_free(memory);
  mounted_detach(&mounted);
  mounted_start(&mounted, NULL);
}

static void on_alarm(int signal) {
  (void)signal;
}

/* As profilers send them. The kernel does not restart a wait with a timeout. */
static void signals_are_not_taken_for_a_dead_daemon(void **state) {
  (void)state;
  const struct sigaction handle = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
  const struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  struct hf3fs_iov iov;
  int code = 0;
  assert_int_equal(sigaction(SIGALRM, &handle, NULL), 0);
  assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
  for (unsigned i = 0; i < 100 && code == 0; i++) {
    code = hf3fs_iovcreate_gpu(&iov, mounted.point, MIB, 0, 0);
    hf3fs_iovdestroy_gpu(&iov);
  }
  assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
  assert_int_equal(code, 0);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, mounted_tear_down)

static int with_a_gpu(void) {
  const struct CMUnitTest tests[] = {
      /* Before this process lists devices. */
      TEST(a_failed_copy_of_a_stage_fails_its_operation),
      TEST(another_process_imports_wrapped_memory),
      TEST(unknown_devices_and_buffers_are_rejected),
      TEST(a_file_is_copied_through_a_device),
      TEST(wrapped_memory_is_used),
      TEST(unshared_memory_is_staged),
      TEST(a_staged_buffer_is_its_processs_alone),
      TEST(operations_share_the_window_of_a_stage),
      TEST(one_thread_prepares_and_one_waits),
      TEST(invalid_memory_is_not_wrapped),
      TEST(wrapped_memory_is_freed_during_operations),
      TEST(a_dead_daemon_does_not_block_clients),
      TEST(a_forked_child_ends_no_registration),
  };
  return cmocka_run_group_tests_name("storage/mounted_devices gpu", tests, NULL, NULL);
}

/* Whose library shares no memory. */
static int with_a_gaudi(void) {
  const struct CMUnitTest tests[] = {TEST(a_file_is_copied_through_a_device)};
  return cmocka_run_group_tests_name("storage/mounted_devices gaudi", tests, NULL, NULL);
}

static int with_a_gpu_and_a_nic(void) {
  setenv("HAUL_CUDA_DOUBLE", "dmabuf=2", 1);
  setenv("HAUL_DOUBLE_FAULT", "dmabuf", 1);
  mounted_use_server();
  const struct CMUnitTest tests[] = {
      TEST(another_process_imports_wrapped_memory), /* before this process lists devices */
      TEST(a_servers_nic_reaches_the_memory),          TEST(unshared_memory_is_staged),
      TEST(wrapped_memory_is_freed_during_operations), TEST(a_dead_daemon_does_not_block_clients),
  };
  return cmocka_run_group_tests_name("storage/mounted_devices rdma", tests, NULL, NULL);
}

int main(int argc, char **argv) {
  mounted_need_fuse();
  if (argc > 1 && strcmp(argv[1], "rdma") == 0)
    return with_a_gpu_and_a_nic();
  if (argc > 1 && strcmp(argv[1], "gaudi") == 0)
    return with_a_gaudi();
  if (argc > 1 && strcmp(argv[1], "gpu") == 0)
    return with_a_gpu();
  if (argc > 1 && strcmp(argv[1], "remote") == 0)
    mounted_use_server();
  setenv("HAUL_USRBIO_DEVICES", "sim", 1);
  const struct CMUnitTest tests[] = {
      TEST(another_process_uses_a_buffer_by_a_handle), /* before this process lists devices */
      TEST(unknown_devices_and_buffers_are_rejected),
      TEST(a_file_is_copied_through_a_device),
      TEST(signals_are_not_taken_for_a_dead_daemon),
  };
  return cmocka_run_group_tests_name("storage/mounted_devices", tests, NULL, NULL);
}
