/* SPDX-License-Identifier: MIT
 * Memory in other processes by the runtime's IPC calls: with the hook as without it, and what only
 * the hook does: memory stays while it is open, and forged handles, hostile exporters and other
 * users are refused. */
#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooked.h"
#include "support/child.h"

#define BYTES (3 * MIB)
#define LAZY  cudaIpcMemLazyEnablePeerAccess

/* Another process, which executes orders. */

enum what { DEVICE, OPEN, CLOSE, PUT, CHECK, ALLOC, RESET, FORK, COUNT_MEMORY };

struct order {
  enum what what;
  int device;
  cudaIpcMemHandle_t handle;
  char *address;
  size_t bytes;
  uint64_t seed;
};

struct answer {
  cudaError_t error;
  cudaIpcMemHandle_t handle; /* of ALLOC */
  char *address;
  unsigned allocations, mappings; /* of COUNT_MEMORY */
};

struct other {
  pid_t process;
  int socket;
};

static struct other start_other(const char *mode) {
  struct other other;
  other.process = child_start(mode, &other.socket);
  return other;
}

static void end_other(struct other *other) {
  assert_int_equal(child_end(other->process, other->socket), 0);
}

static void kill_other(struct other *other) {
  kill(other->process, SIGKILL);
  assert_int_equal(waitpid(other->process, NULL, 0), other->process);
}

static struct answer tell(const struct other *other, struct order order) {
  struct answer answer;
  child_send(other->socket, &order, sizeof order, -1);
  child_receive(other->socket, &answer, sizeof answer);
  return answer;
}

static cudaError_t open_there(const struct other *other, const cudaIpcMemHandle_t *handle,
                              char **address) {
  struct answer answer = tell(other, (struct order){.what = OPEN, .handle = *handle});
  *address = answer.address;
  return answer.error;
}

static cudaError_t close_there(const struct other *other, char *address) {
  return tell(other, (struct order){.what = CLOSE, .address = address}).error;
}

static void check_there(const struct other *other, char *address, size_t bytes, uint64_t seed) {
  struct order order = {.what = CHECK, .address = address, .bytes = bytes, .seed = seed};
  assert_cuda(tell(other, order).error);
}

static void put_there(const struct other *other, char *address, size_t bytes, uint64_t seed) {
  struct order order = {.what = PUT, .address = address, .bytes = bytes, .seed = seed};
  assert_cuda(tell(other, order).error);
}

static struct answer alloc_there(const struct other *other, size_t bytes, uint64_t seed) {
  struct answer answer = tell(other, (struct order){.what = ALLOC, .bytes = bytes, .seed = seed});
  assert_cuda(answer.error);
  return answer;
}

/* Lives until the socket's other end is closed, also after its parent. */
static void be_grandchild(void) {
  struct pollfd end = {3, 0, 0};
  while (poll(&end, 1, -1) != 1)
    ;
  _exit(0);
}

static void obey(const struct order *order, struct answer *answer) {
  struct cuda_double *door;
  void *address = NULL;
  switch (order->what) {
  case DEVICE:
    answer->error = cudaSetDevice(order->device);
    break;
  case OPEN:
    answer->error = cudaIpcOpenMemHandle(&address, order->handle, LAZY);
    answer->address = address;
    break;
  case CLOSE:
    answer->error = cudaIpcCloseMemHandle(order->address);
    break;
  case PUT:
    put_bytes(order->address, order->bytes, order->seed);
    break;
  case CHECK:
    check_bytes(order->address, order->bytes, order->seed);
    break;
  case ALLOC:
    assert_cuda(cudaMalloc(&address, order->bytes));
    put_bytes(address, order->bytes, order->seed);
    answer->address = address;
    answer->error = cudaIpcGetMemHandle(&answer->handle, address);
    break;
  case RESET:
    answer->error = cudaDeviceReset();
    break;
  case FORK:
    if (fork() == 0)
      be_grandchild();
    break;
  case COUNT_MEMORY:
    door = driver_door();
    answer->allocations = door ? (unsigned)door->allocations : 0;
    answer->mappings = door ? (unsigned)door->mappings : 0;
    break;
  }
}

static int other_main(void) {
  struct order order;
  while (recv(3, &order, sizeof order, 0) == sizeof order) {
    struct answer answer = {0};
    obey(&order, &answer);
    child_send(3, &answer, sizeof answer, -1);
  }
  return 0;
}

/* The same over the runtime alone */

/* An error that the runtime chooses. */
static void assert_refused(cudaError_t error) {
  assert_int_not_equal(error, cudaSuccess);
  cudaGetLastError();
}

static void share_on(int device, size_t bytes) {
  struct other other = start_other("other");
  cudaIpcMemHandle_t handle;
  char *address, *there;
  assert_cuda(cudaSetDevice(device));
  assert_cuda(tell(&other, (struct order){.what = DEVICE, .device = device}).error);
  assert_cuda(cudaMalloc((void **)&address, bytes));
  put_bytes(address, bytes, 17);
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_cuda(open_there(&other, &handle, &there));
  check_there(&other, there, bytes, 17);
  put_there(&other, there, bytes, 18);
  check_bytes(address, bytes, 18);
  assert_cuda(close_there(&other, there));
  assert_cuda(cudaFree(address));
  assert_cuda(cudaSetDevice(0));
  end_other(&other);
}

static void test_share(void **state) {
  (void)state;
  int count = 0;
  assert_cuda(cudaGetDeviceCount(&count));
  share_on(0, BYTES);
  if (count > 1)
    share_on(1, BYTES);
}

/* Memory that is passed on to the runtime is shared by it. */
static void test_share_small(void **state) {
  (void)state;
  share_on(0, 4096);
}

static void test_handles(void **state) {
  (void)state;
  cudaIpcMemHandle_t one, again, other;
  char *address, *second;
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaMalloc((void **)&second, BYTES));
  assert_cuda(cudaIpcGetMemHandle(&one, address));
  assert_cuda(cudaIpcGetMemHandle(&again, address));
  assert_memory_equal(&one, &again, sizeof one);
  assert_cuda(cudaIpcGetMemHandle(&again, address + 4096));
  assert_memory_equal(&one, &again, sizeof one);
  assert_cuda(cudaIpcGetMemHandle(&other, second));
  assert_memory_not_equal(&one, &other, sizeof one);
  for (int i = 0; i < 4; i++) { /* perhaps at the same address */
    assert_cuda(cudaFree(address));
    assert_cuda(cudaMalloc((void **)&address, BYTES));
    assert_cuda(cudaIpcGetMemHandle(&other, address));
    assert_memory_not_equal(&one, &other, sizeof one);
  }
  assert_cuda(cudaFree(address));
  assert_cuda(cudaFree(second));
}

static void test_many_opens(void **state) {
  (void)state;
  struct other other = start_other("other");
  struct answer first = alloc_there(&other, BYTES, 1), second = alloc_there(&other, MIB, 2);
  void *one, *again, *two;
  assert_cuda(cudaIpcOpenMemHandle(&one, first.handle, LAZY));
  assert_cuda(cudaIpcOpenMemHandle(&two, second.handle, LAZY));
  assert_ptr_not_equal(one, two);
  for (int i = 0; i < 5; i++) {
    assert_cuda(cudaIpcOpenMemHandle(&again, first.handle, LAZY));
    assert_ptr_equal(again, one);
  }
  for (int i = 0; i < 5; i++) {
    assert_cuda(cudaIpcCloseMemHandle(one));
    check_bytes(one, BYTES, 1);
  }
  check_passed_on(one); /* it cannot be published or exported again */
  assert_cuda(cudaIpcCloseMemHandle(one));
  check_bytes(two, MIB, 2);
  assert_cuda(cudaIpcCloseMemHandle(two));
  assert_refused(cudaIpcCloseMemHandle(two));
  end_other(&other);
}

static void test_errors(void **state) {
  (void)state;
  struct other other = start_other("other");
  struct answer theirs = alloc_there(&other, BYTES, 1);
  cudaIpcMemHandle_t handle, broken = theirs.handle;
  void *address, *opened;
  int local;
  assert_cuda(cudaMalloc(&address, BYTES));
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_int_equal(cudaIpcOpenMemHandle(&opened, handle, LAZY), cudaErrorDeviceUninitialized);
  assert_int_equal(cudaIpcOpenMemHandle(&opened, theirs.handle, 0), cudaErrorInvalidValue);
  broken.reserved[3] ^= 1;
  assert_refused(cudaIpcOpenMemHandle(&opened, broken, LAZY));
  assert_refused(cudaIpcOpenMemHandle(NULL, theirs.handle, LAZY));
  assert_refused(cudaIpcGetMemHandle(NULL, address));
  assert_refused(cudaIpcGetMemHandle(&handle, &local));
  assert_refused(cudaIpcGetMemHandle(&handle, NULL));
  assert_refused(cudaIpcCloseMemHandle(address));
  assert_cuda(cudaFree(address));
  end_other(&other);
}

/* With the hook */

static bool has_hook(void) {
  if (!hook.find)
    skip();
  return hook.find;
}

static cudaError_t try_open(const cudaIpcMemHandle_t *handle) {
  void *address;
  cudaError_t error = cudaIpcOpenMemHandle(&address, *handle, LAZY);
  if (error == cudaSuccess)
    assert_cuda(cudaIpcCloseMemHandle(address));
  return error;
}

static void assert_same_memory(const struct answer *one, const struct answer *other) {
  assert_int_equal(one->allocations, other->allocations);
  assert_int_equal(one->mappings, other->mappings);
}

/* It ends with the last close, and not before, though its owner frees it. */
static void test_free_while_open(void **state) {
  (void)state;
  struct order count = {.what = COUNT_MEMORY};
  cudaIpcMemHandle_t handle;
  char *address, *there;
  if (!has_hook())
    return;
  struct other other = start_other("other");
  alloc_there(&other, BYTES, 1);
  struct answer before = tell(&other, count);
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  put_bytes(address, BYTES, 2);
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_cuda(open_there(&other, &handle, &there));
  assert_cuda(cudaFree(address));
  for (int i = 0; i < 3; i++) { /* does not return as new memory */
    assert_cuda(cudaMalloc((void **)&address, BYTES));
    put_bytes(address, BYTES, 3);
    check_there(&other, there, BYTES, 2);
    assert_cuda(cudaFree(address));
  }
  put_there(&other, there, BYTES, 4);
  check_there(&other, there, BYTES, 4);
  assert_cuda(close_there(&other, there));
  struct answer after = tell(&other, count);
  assert_same_memory(&before, &after);
  assert_int_equal(open_there(&other, &handle, &there), cudaErrorInvalidResourceHandle);
  end_other(&other);
}

static void test_free_before_open(void **state) {
  (void)state;
  cudaIpcMemHandle_t handle;
  char *address, *there;
  if (!has_hook())
    return;
  struct other other = start_other("other");
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_cuda(cudaFree(address));
  assert_int_equal(open_there(&other, &handle, &there), cudaErrorInvalidResourceHandle);
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_int_equal(open_there(&other, &handle, &there), cudaErrorInvalidResourceHandle);
  assert_cuda(cudaFree(address));
  end_other(&other);
}

static void test_exporter_dies(void **state) {
  (void)state;
  void *address;
  if (!has_hook())
    return;
  struct other other = start_other("other");
  struct answer one = alloc_there(&other, BYTES, 1), two = alloc_there(&other, BYTES, 2);
  assert_cuda(cudaIpcOpenMemHandle(&address, one.handle, LAZY));
  tell(&other, (struct order){.what = FORK}); /* its child has no listening socket */
  kill_other(&other);
  check_bytes(address, BYTES, 1);
  assert_int_equal(try_open(&two.handle), cudaErrorInvalidResourceHandle);
  assert_cuda(try_open(&one.handle)); /* it is open */
  assert_cuda(cudaIpcCloseMemHandle(address));
  assert_int_equal(try_open(&one.handle), cudaErrorInvalidResourceHandle);
  close(other.socket);
}

static void test_exporter_does_not_answer(void **state) {
  (void)state;
  if (!has_hook())
    return;
  struct other other = start_other("other");
  struct answer theirs = alloc_there(&other, BYTES, 1);
  child_stop(other.process);
  assert_int_equal(try_open(&theirs.handle), cudaErrorMapBufferObjectFailed);
  kill(other.process, SIGCONT);
  assert_cuda(try_open(&theirs.handle));
  end_other(&other);
}

/* Any change of a byte. */
static void test_forged_handles(void **state) {
  (void)state;
  if (!has_hook())
    return;
  struct other other = start_other("other");
  struct answer theirs = alloc_there(&other, BYTES, 1);
  for (size_t i = 0; i < sizeof theirs.handle; i++) {
    cudaIpcMemHandle_t forged = theirs.handle;
    forged.reserved[i] ^= 0x10;
    if (i < 16) /* the runtime's handle */
      assert_refused(try_open(&forged));
    else
      assert_int_equal(try_open(&forged), cudaErrorInvalidResourceHandle);
  }
  assert_cuda(try_open(&theirs.handle));
  end_other(&other);
}

/* The runtime refuses the handle. */
static void test_importer_without_the_hook(void **state) {
  (void)state;
  cudaIpcMemHandle_t handle;
  char *address, *there, *preload = getenv("LD_PRELOAD");
  if (!has_hook())
    return;
  char *before = strdup(preload);
  unsetenv("LD_PRELOAD");
  struct other other = start_other("other");
  setenv("LD_PRELOAD", before, 1);
  free(before);
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_int_not_equal(open_there(&other, &handle, &there), cudaSuccess);
  assert_cuda(cudaFree(address));
  end_other(&other);
}

static int become_stranger(void) {
  enum { STRANGER = 12345 };
  return setresgid(STRANGER, STRANGER, STRANGER) || setresuid(STRANGER, STRANGER, STRANGER);
}

/* The mocks are loaded later than the process becomes another user. */
static bool strangers_read_the_build(void) {
  char program[PATH_MAX];
  int status = 1;
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  assert_in_range(length, 1, sizeof program - 1);
  program[length] = '\0';
  pid_t child = fork();
  if (child == 0)
    _exit(become_stranger() || access(program, R_OK));
  assert_int_equal(waitpid(child, &status, 0), child);
  return status == 0;
}

/* Both the exporter and the importer refuse another user, also root. */
static void test_other_users(void **state) {
  (void)state;
  cudaIpcMemHandle_t handle;
  char *address, *there;
  if (!has_hook())
    return;
  if (geteuid() != 0) {
    print_message("skipped: needs root, for a process of another user\n");
    skip();
  }
  if (!strangers_read_the_build()) {
    print_message("skipped: other users cannot read the folder of the build\n");
    skip();
  }
  struct other other = start_other("stranger");
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_int_equal(open_there(&other, &handle, &there), cudaErrorInvalidResourceHandle);
  struct answer theirs = alloc_there(&other, BYTES, 1);
  assert_int_equal(try_open(&theirs.handle), cudaErrorInvalidResourceHandle);
  assert_cuda(cudaFree(address));
  end_other(&other);
}

static int stranger_main(void) {
  return become_stranger() ? 1 : other_main();
}

static unsigned count_descriptors(void) {
  DIR *folder = opendir("/proc/self/fd");
  unsigned count = 0;
  assert_non_null(folder);
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

/* As integrations/cudahook/ipc.h has it. */
static socklen_t address_of(const cudaIpcMemHandle_t *handle, struct sockaddr_un *address) {
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  int used = 1 + snprintf(address->sun_path + 1, 64, "haul-cudahook-");
  for (int i = 16; i < 32; i++)
    used += snprintf(address->sun_path + used, 3, "%02x", (unsigned char)handle->reserved[i]);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)used);
}

static int connect_to(const cudaIpcMemHandle_t *handle) {
  struct sockaddr_un address;
  socklen_t length = address_of(handle, &address);
  int raw = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_true(raw >= 0);
  assert_int_equal(connect(raw, (struct sockaddr *)&address, length), 0);
  return raw;
}

/* Malformed requests get no answer, and keep no one else from one. */
static void test_malformed_requests(void **state) {
  (void)state;
  cudaIpcMemHandle_t handle;
  char *address, *there, answer[300];
  static const size_t lengths[] = {1, 15, 16, 17, 200};
  char request[200] = {0};
  if (!has_hook())
    return;
  struct other other = start_other("other");
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  unsigned before = count_descriptors();
  int silent = connect_to(&handle);
  for (size_t i = 0; i < COUNT(lengths); i++) {
    int raw = connect_to(&handle);
    memcpy(request, handle.reserved + 32, 16);
    request[5] ^= lengths[i] == 16; /* else the length is wrong */
    assert_int_equal(send(raw, request, lengths[i], MSG_NOSIGNAL), lengths[i]);
    assert_true(recv(raw, answer, sizeof answer, 0) <= 0);
    close(raw);
  }
  assert_cuda(open_there(&other, &handle, &there));
  assert_cuda(close_there(&other, there));
  close(silent);
  assert_int_equal(count_descriptors(), before);
  assert_cuda(cudaFree(address));
  end_other(&other);
}

/* An exporter that answers with anything. */

struct fake {
  int listener;
  unsigned descriptors;
  size_t bytes;
};

static void send_fake(int to, const struct fake *fake) {
  static char bytes[600];
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(3 * sizeof(int))];
  } control;
  memset(&control, 0, sizeof control);
  struct iovec part = {bytes, fake->bytes};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  int descriptors[3] = {to, to, to};
  if (fake->descriptors > 0) {
    size_t length = fake->descriptors * sizeof(int);
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(length);
    control.header = (struct cmsghdr){CMSG_LEN(length), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), descriptors, length);
  }
  sendmsg(to, &message, MSG_NOSIGNAL);
}

static void *answer_once(void *argument) {
  const struct fake *fake = argument;
  char request[64];
  int client = accept(fake->listener, NULL, NULL);
  if (client < 0)
    return "not accepted";
  recv(client, request, sizeof request, 0);
  if (fake->bytes > 0)
    send_fake(client, fake);
  close(client);
  return NULL;
}

static void test_hostile_exporter(void **state) {
  (void)state;
  static struct fake fakes[] = {{0, 0, 0},   {0, 0, 256}, {0, 1, 256}, {0, 2, 256},
                                {0, 3, 256}, {0, 1, 100}, {0, 1, 300}, {0, 2, 600}};
  cudaIpcMemHandle_t handle = {"haul-cudahook-1"};
  struct sockaddr_un address;
  pthread_t thread;
  void *failed;
  if (!has_hook())
    return;
  snprintf(handle.reserved + 16, 16, "%d", (int)getpid());
  assert_int_equal(try_open(&handle), cudaErrorInvalidResourceHandle);
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t length = address_of(&handle, &address);
  assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
  assert_int_equal(listen(listener, 8), 0);
  unsigned before = count_descriptors();
  for (size_t i = 0; i < COUNT(fakes); i++) {
    fakes[i].listener = listener;
    assert_int_equal(pthread_create(&thread, NULL, answer_once, &fakes[i]), 0);
    assert_int_equal(try_open(&handle), cudaErrorInvalidResourceHandle);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_int_equal(count_descriptors(), before);
  }
  close(listener);
}

/* A child gets the runtime's error, and its parent still exports. */
static void get_in_child(void *address) {
  cudaIpcMemHandle_t handle;
  alarm(20);
  memset(&handle, 0, sizeof handle);
  if (cudaIpcGetMemHandle(&handle, address) == cudaSuccess)
    _exit(1);
  if (cudaIpcOpenMemHandle(&address, handle, LAZY) == cudaSuccess)
    _exit(2);
  _exit(cudaIpcCloseMemHandle(address) == cudaSuccess ? 3 : 0);
}

static void test_forks(void **state) {
  (void)state;
  cudaIpcMemHandle_t handle;
  char *address, *there;
  if (!has_hook())
    return;
  struct other other = start_other("other");
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_int_equal(child_run(get_in_child, address), 0);
  assert_cuda(open_there(&other, &handle, &there));
  assert_cuda(close_there(&other, there));
  assert_cuda(cudaFree(address));
  end_other(&other);
}

/* What was open is not any more. */
static void test_reset(void **state) {
  (void)state;
  cudaIpcMemHandle_t handle;
  char *address, *there;
  if (!has_hook())
    return;
  struct other other = start_other("other");
  assert_cuda(cudaMalloc((void **)&address, BYTES));
  put_bytes(address, BYTES, 1);
  assert_cuda(cudaIpcGetMemHandle(&handle, address));
  assert_cuda(open_there(&other, &handle, &there));
  assert_cuda(tell(&other, (struct order){.what = RESET}).error);
  assert_int_not_equal(close_there(&other, there), cudaSuccess);
  assert_cuda(open_there(&other, &handle, &there));
  check_there(&other, there, BYTES, 1);
  end_other(&other);
  assert_cuda(cudaFree(address));
}

/* Neither call ends a capture. The close waits for the device, so it would. */
static void test_during_a_capture(void **state) {
  (void)state;
  cudaIpcMemHandle_t handle;
  cudaStream_t stream;
  cudaGraph_t graph;
  void *ours, *opened;
  struct cuda_double *door = driver_door();
  if (!has_hook())
    return;
  struct other other = start_other("other");
  struct answer theirs = alloc_there(&other, BYTES, 1);
  assert_cuda(cudaMalloc(&ours, BYTES));
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  if (door)
    door->capture = 1;
  assert_cuda(cudaIpcGetMemHandle(&handle, ours));
  assert_cuda(cudaIpcOpenMemHandle(&opened, theirs.handle, LAZY));
  if (door)
    door->capture = 0;
  assert_cuda(cudaStreamEndCapture(stream, &graph));
  assert_cuda(cudaGraphDestroy(graph));
  check_bytes(opened, BYTES, 1);
  assert_cuda(cudaIpcCloseMemHandle(opened));
  assert_cuda(cudaStreamDestroy(stream));
  assert_cuda(cudaFree(ours));
  end_other(&other);
}

static void test_log(void **state) {
  (void)state;
  static const char *const lines[] = {"cudaIpcGetMemHandle 3145728 0x",   " cuda:0 exported\n",
                                      "cudaIpcOpenMemHandle 3145728 0x",  " cuda:0 opened\n",
                                      "cudaIpcCloseMemHandle 3145728 0x", " cuda:0 closed\n"};
  char path[] = "/tmp/haul-test-hook-XXXXXX", text[4096] = "", *there;
  if (!has_hook())
    return;
  int file = mkstemp(path);
  assert_true(file >= 0);
  setenv("HAUL_CUDAHOOK_LOG", path, 1);
  struct other other = start_other("other");
  unsetenv("HAUL_CUDAHOOK_LOG");
  struct answer ours = alloc_there(&other, BYTES, 1);
  assert_int_equal(open_there(&other, &ours.handle, &there), cudaErrorDeviceUninitialized);
  struct other second = start_other("other");
  struct answer theirs = alloc_there(&second, BYTES, 1);
  assert_cuda(open_there(&other, &theirs.handle, &there));
  assert_cuda(close_there(&other, there));
  assert_true(read(file, text, sizeof text - 1) > 0);
  for (size_t i = 0; i < COUNT(lines); i++)
    assert_non_null(strstr(text, lines[i]));
  assert_non_null(strstr(text, "not opened: this process has exported the memory; error 201\n"));
  end_other(&second);
  end_other(&other);
  close(file);
  unlink(path);
}

/* Threads open and close the same two. */

static struct answer shared[2];
static _Atomic unsigned wrong;

static void *open_and_close(void *argument) {
  for (unsigned i = 0; i < 60; i++) {
    unsigned which = (i + (unsigned)(uintptr_t)argument) % 2;
    unsigned char first = 0;
    void *address = NULL;
    wrong += cudaIpcOpenMemHandle(&address, shared[which].handle, LAZY) != cudaSuccess;
    wrong += cudaMemcpy(&first, address, 1, cudaMemcpyDeviceToHost) != cudaSuccess;
    wrong += first != shared[which].error;
    wrong += cudaIpcCloseMemHandle(address) != cudaSuccess;
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  pthread_t threads[8];
  struct other other = start_other("other");
  for (unsigned i = 0; i < 2; i++) {
    unsigned char first;
    void *address;
    shared[i] = alloc_there(&other, BYTES, i);
    assert_cuda(cudaIpcOpenMemHandle(&address, shared[i].handle, LAZY));
    assert_cuda(cudaMemcpy(&first, address, 1, cudaMemcpyDeviceToHost));
    assert_cuda(cudaIpcCloseMemHandle(address));
    shared[i].error = first; /* for the threads */
  }
  for (uintptr_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, (void *)i), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(wrong, 0);
  end_other(&other);
}

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_share),
      cmocka_unit_test(test_share_small),
      cmocka_unit_test(test_handles),
      cmocka_unit_test(test_many_opens),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_free_while_open),
      cmocka_unit_test(test_free_before_open),
      cmocka_unit_test(test_exporter_dies),
      cmocka_unit_test(test_exporter_does_not_answer),
      cmocka_unit_test(test_forged_handles),
      cmocka_unit_test(test_importer_without_the_hook),
      cmocka_unit_test(test_other_users),
      cmocka_unit_test(test_malformed_requests),
      cmocka_unit_test(test_hostile_exporter),
      cmocka_unit_test(test_forks),
      cmocka_unit_test(test_reset),
      cmocka_unit_test(test_during_a_capture),
      cmocka_unit_test(test_log),
      cmocka_unit_test(test_threads),
  };
  find_hook(NULL);
  if (count > 1)
    return strcmp(arguments[1], "stranger") == 0 ? stranger_main() : other_main();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
