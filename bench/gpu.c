/* SPDX-License-Identifier: MIT
 * gpu staged haul|driver SIZE ROUNDS: copies SIZE bytes from host memory to a GPU and back: from a
 * region that haul pins, or by the driver from memory that it pinned. gpu share haul|driver SIZE
 * ROUNDS: a copy within GPU memory: from an import of another process's region, or by the driver
 * between two allocations of one process. gpu inside haul SIZE ROUNDS: a copy between two regions
 * of one GPU. gpu pieces driver SIZE ROUNDS: the driver's copies of PIECES scattered pieces of SIZE
 * bytes each between two allocations. Prints the median in GB/s.
 *
 * gpu own|wrapped haul SIZE ROUNDS: a copy between two regions of one GPU that haul allocated, or
 * that wrap the driver's allocations; the median in us. gpu fill haul|driver SIZE ROUNDS: the
 * number of allocations of SIZE bytes until the GPU's memory is full. */
#include "common.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/cuda/driver.h"

#define GPU    "cuda:0"
#define PIECES 256

#define TIME  0u         /* the median of a round */
#define COUNT UINT32_MAX /* of allocations */

/* Ends of the copies; each program uses some. */
static struct {
  size_t length;
  haul_node *node;
  haul_region *host, *device, *imported;
  const struct cuda_driver *driver;
  CUstream stream;
  void *pinned;
  CUdeviceptr from, to;
  unsigned count; /* of allocations */
} at;

static void drive(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: %s\n", what, cuda_driver_word(at.driver, result));
  exit(1);
}

static void start_driver(void) {
  CUcontext context;
  CUdevice device;
  at.driver = cuda_driver_open();
  need(at.driver != NULL, "NVIDIA's driver");
  drive(at.driver->init(0), "cuInit");
  drive(at.driver->device_get(&device, 0), "cuDeviceGet");
  drive(at.driver->primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
  drive(at.driver->context_push(context), "cuCtxPushCurrent");
  drive(at.driver->stream_create(&at.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  drive(at.driver->alloc(&at.to, at.length), "cuMemAlloc");
}

static void prepare_pinned(void) {
  start_driver();
  drive(at.driver->host_alloc(&at.pinned, at.length, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
  memset(at.pinned, 1, at.length);
}

static void copy_pinned(void) {
  drive(at.driver->copy_in(at.to, at.pinned, at.length, at.stream), "cuMemcpyHtoDAsync");
  drive(at.driver->stream_wait(at.stream), "cuStreamSynchronize");
  drive(at.driver->copy_out(at.pinned, at.to, at.length, at.stream), "cuMemcpyDtoHAsync");
  drive(at.driver->stream_wait(at.stream), "cuStreamSynchronize");
}

static void prepare_inside(void) {
  start_driver();
  drive(at.driver->alloc(&at.from, at.length), "cuMemAlloc");
  drive(at.driver->fill(at.from, 1, at.length, at.stream), "cuMemsetD8Async");
  drive(at.driver->stream_wait(at.stream), "cuStreamSynchronize");
}

static void copy_inside(void) {
  drive(at.driver->copy_inside(at.to, at.from, at.length, at.stream), "cuMemcpyDtoDAsync");
  drive(at.driver->stream_wait(at.stream), "cuStreamSynchronize");
}

static void prepare_pieces(void) {
  at.length *= PIECES;
  prepare_inside();
}

static void copy_pieces(void) {
  uint64_t size = at.length / PIECES;
  for (uint64_t i = 0; i < PIECES; i++)
    drive(at.driver->copy_inside(at.to + scattered(i, PIECES) * size, at.from + i * size, size,
                                 at.stream),
          "cuMemcpyDtoDAsync");
  drive(at.driver->stream_wait(at.stream), "cuStreamSynchronize");
}

static void prepare_staged(void) {
  at.node = open_node(1, 0);
  at.host = make_region(at.node, "host", at.length, 1, HAUL_REGION_PINNED);
  at.device = make_region(at.node, GPU, at.length, 2, 0);
}

static void copy_staged(void) {
  must(haul_region_copy(at.device, 0, at.host, 0, at.length, HAUL_FOREVER), "to the GPU");
  must(haul_region_copy(at.host, 0, at.device, 0, at.length, HAUL_FOREVER), "and back");
}

static void prepare_inside_regions(void) {
  at.node = open_node(1, 0);
  at.imported = make_region(at.node, GPU, at.length, 1, 0);
  at.device = make_region(at.node, GPU, at.length, 2, 0);
}

static haul_region *wrap(CUdeviceptr address) {
  haul_region *region;
  must(haul_region_wrap(at.node, (void *)(uintptr_t)address, at.length, &region), "wrap");
  return region;
}

static void prepare_wrapped(void) {
  prepare_inside();
  at.node = open_node(1, 0);
  at.imported = wrap(at.from);
  at.device = wrap(at.to);
}

static void prepare_fill(void) {
  at.node = open_node(1, 0);
}

/* All stay until the process ends. */
static void fill(void) {
  struct haul_place place;
  haul_region *region;
  must(haul_place_parse(GPU, &place), GPU);
  while (haul_region_alloc(at.node, place, at.length, 0, &region) == 0)
    at.count++;
}

static void prepare_fill_by_driver(void) {
  start_driver();
  drive(at.driver->free(at.to), "cuMemFree");
}

static void fill_by_driver(void) {
  while (at.driver->alloc(&at.to, at.length) == CUDA_SUCCESS)
    at.count++;
}

static void send_ticket(int channel, const struct haul_ticket *ticket, int descriptor) {
  char control[CMSG_SPACE(sizeof descriptor)] __attribute__((aligned(sizeof(size_t)))) = {0};
  struct iovec span = {(void *)(uintptr_t)ticket, sizeof *ticket};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  *header = (struct cmsghdr){CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  need(sendmsg(channel, &message, 0) == sizeof *ticket, "sendmsg");
}

static int receive_ticket(int channel, struct haul_ticket *ticket) {
  char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(sizeof(size_t))));
  struct iovec span = {ticket, sizeof *ticket};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  int descriptor;
  need(recvmsg(channel, &message, MSG_CMSG_CLOEXEC) == sizeof *ticket &&
           message.msg_controllen == sizeof control,
       "the owner gave nothing");
  memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

/* The second process, which dies with this one. */
static _Noreturn void own(int channel) {
  struct haul_ticket ticket;
  int descriptor;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  haul_region *region = make_region(open_node(1, 0), GPU, at.length, 1, 0);
  must(haul_region_export(region, HAUL_READ | HAUL_WRITE, NULL, &ticket, &descriptor), "export");
  send_ticket(channel, &ticket, descriptor);
  for (;;)
    pause();
}

static void prepare_shared(void) {
  struct haul_ticket ticket;
  int ends[2];
  need(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  pid_t child = fork(); /* before the driver's initialization, which a fork would break */
  need(child >= 0, "fork");
  if (child == 0)
    own(ends[1]);
  close(ends[1]);
  int descriptor = receive_ticket(ends[0], &ticket);
  at.node = open_node(1, 0);
  must(haul_region_import(at.node, &ticket, descriptor, &at.imported), "import");
  close(descriptor);
  at.device = make_region(at.node, GPU, at.length, 2, 0);
}

static void copy_shared(void) {
  must(haul_region_copy(at.device, 0, at.imported, 0, at.length, HAUL_FOREVER), "copy");
}

static const struct {
  const char *what, *who;
  void (*prepare)(void);
  void (*round)(void);
  unsigned times; /* copies of the length per round; or what is printed instead of the speed: */
} programs[] = {
    {"staged", "haul", prepare_staged, copy_staged, 2},
    {"staged", "driver", prepare_pinned, copy_pinned, 2},
    {"share", "haul", prepare_shared, copy_shared, 1},
    {"share", "driver", prepare_inside, copy_inside, 1},
    {"inside", "haul", prepare_inside_regions, copy_shared, 1},
    {"pieces", "driver", prepare_pieces, copy_pieces, 1},
    {"own", "haul", prepare_inside_regions, copy_shared, TIME},
    {"wrapped", "haul", prepare_wrapped, copy_shared, TIME},
    {"fill", "haul", prepare_fill, fill, COUNT},
    {"fill", "driver", prepare_fill_by_driver, fill_by_driver, COUNT},
};

static int by_size(const void *one, const void *other) {
  int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
  return (left > right) - (left < right);
}

static int measure(size_t program, size_t rounds) {
  int64_t *took = calloc(rounds + 1, sizeof *took);
  need(took != NULL, "memory");
  programs[program].prepare();
  programs[program].round();
  for (size_t i = 0; i < rounds; i++) {
    int64_t began = now_ns();
    programs[program].round();
    took[i] = now_ns() - began;
  }
  qsort(took, rounds, sizeof *took, by_size);
  unsigned times = programs[program].times;
  double median = (double)took[rounds / 2];
  printf("%.4f\n", times == COUNT  ? at.count
                   : times == TIME ? median / 1e3
                                   : (double)at.length * times / median);
  free(took);
  return 0;
}

int main(int argc, char **argv) {
  need(argc == 5, "gpu staged|share|inside|pieces|own|wrapped|fill haul|driver SIZE ROUNDS");
  at.length = parse_size(argv[3]);
  for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++)
    if (strcmp(programs[i].what, argv[1]) == 0 && strcmp(programs[i].who, argv[2]) == 0)
      return measure(i, parse_size(argv[4]));
  fprintf(stderr, "gpu: no such bench: %s %s\n", argv[1], argv[2]);
  return 2;
}
