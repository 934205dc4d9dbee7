/* SPDX-License-Identifier: MIT
 * Exported memory, and the thread that passes it to other processes. The thread does not call the
 * driver: a call could end a capture, or wait for a kernel. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"

#define REQUEST_NS 1000000000 /* for the request of a connected process */

struct export {
  struct export *next;
  uint8_t memory[IPC_ID];
  struct haul_ticket ticket;
  int descriptor;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct export *exports;
static int listener = -1;
static uint8_t process[IPC_ID]; /* constant once `listening` */
static _Atomic bool listening;

bool export_is_own(const struct ipc_handle *handle) {
  return atomic_load(&listening) && memcmp(handle->process, process, IPC_ID) == 0;
}

/* With the lock. Does not wait: the packet fits in the empty buffer. */
static void send_export(int client, const struct export *export) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
  struct iovec part = {(void *)(uintptr_t) & export->ticket, sizeof export->ticket};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  memcpy(CMSG_DATA(&control.header), &export->descriptor, sizeof(int));
  sendmsg(client, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void answer(int client) {
  uint8_t memory[IPC_ID];
  if (!ipc_is_trusted(client) || !ipc_limit(client, REQUEST_NS) ||
      recv(client, memory, sizeof memory, MSG_TRUNC) != sizeof memory)
    return;
  pthread_mutex_lock(&lock);
  const struct export *one = exports;
  while (one && memcmp(one->memory, memory, IPC_ID) != 0)
    one = one->next;
  if (one)
    send_export(client, one);
  pthread_mutex_unlock(&lock);
}

static void *answer_all(void *socket) {
  for (;;) {
    int client = accept4((int)(intptr_t)socket, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0) { /* perhaps out of descriptors */
      nanosleep(&(struct timespec){0, 10000000}, NULL);
      continue;
    }
    answer(client);
    close(client);
  }
  return NULL;
}

/* The application's signals are for its own threads. */
static bool start_thread(void) {
  sigset_t all, before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  errno = pthread_create(&thread, NULL, answer_all, (void *)(intptr_t)listener);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (errno != 0)
    return false;
  pthread_setname_np(thread, "haul-cudahook");
  pthread_detach(thread);
  return true;
}

static void before_fork(void) {
  pthread_mutex_lock(&lock);
}

static void after_fork(void) {
  pthread_mutex_unlock(&lock);
}

/* Copies of the descriptors would keep freed memory, and requests would wait for an answer. */
static void in_child(void) {
  for (struct export *one = exports; one; one = one->next) {
    close(one->descriptor);
    one->descriptor = -1;
  }
  close(listener);
  listener = -1;
  pthread_mutex_unlock(&lock);
}

/* With the lock. */
static bool open_listener(void) {
  struct sockaddr_un address;
  if (getrandom(process, sizeof process, 0) != sizeof process)
    return false;
  listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listener < 0)
    return false;
  if (bind(listener, (struct sockaddr *)&address, ipc_address(process, &address)) == 0 &&
      listen(listener, SOMAXCONN) == 0 && start_thread())
    return true;
  close(listener);
  listener = -1;
  return false;
}

static bool listen_once(void) {
  static bool registered;
  pthread_mutex_lock(&lock);
  registered = registered || pthread_atfork(before_fork, after_fork, in_child) == 0;
  if (registered && !atomic_load(&listening) && open_listener())
    atomic_store(&listening, true);
  pthread_mutex_unlock(&lock);
  return atomic_load(&listening);
}

static int export_region(haul_region *region, struct export *export) {
  inside_haul = true;
  int code = haul_region_export(region, HAUL_READ | HAUL_WRITE, NULL, &export->ticket,
                                &export->descriptor);
  inside_haul = false;
  return code;
}

/* NULL with *error. */
static struct export *export_new(struct record *record, haul_region *region, cudaError_t *error) {
  struct export *made = calloc(1, sizeof *made);
  *error = cudaErrorMemoryAllocation;
  if (!made)
    return pass_on(record, "out of host memory");
  *error = cudaErrorMapBufferObjectFailed;
  if (!listen_once() || getrandom(made->memory, IPC_ID, 0) != IPC_ID) {
    pass_on(record, "no socket or thread for other processes: errno %d", errno);
    goto not_made;
  }
  int code = export_region(region, made);
  if (code != 0) {
    pass_on(record, "%s: %s", haul_error_name(code), haul_error_last()->text);
    *error = ipc_error(code);
    goto not_made;
  }
  pthread_mutex_lock(&lock);
  made->next = exports;
  exports = made;
  pthread_mutex_unlock(&lock);
  return made;
not_made:
  free(made);
  return NULL;
}

void export_end(struct export *export) {
  if (!export)
    return;
  pthread_mutex_lock(&lock);
  struct export **at = &exports;
  while (*at != export)
    at = &(*at)->next;
  *at = export->next;
  pthread_mutex_unlock(&lock);
  close(export->descriptor);
  free(export);
}

struct order {
  struct record *record;
  struct ipc_handle handle;
};

/* With the lock of the block, so that no thread frees it meanwhile. */
static int export_block(void *user, struct block *block) {
  struct order *order = user;
  order->record->bytes = block->bytes;
  order->record->device = block->device;
  cudaError_t error;
  if (!block->export)
    block->export = export_new(order->record, block->region, &error);
  if (!block->export)
    return error;
  memcpy(order->handle.magic, IPC_MAGIC, sizeof order->handle.magic);
  memcpy(order->handle.process, process, IPC_ID);
  memcpy(order->handle.memory, block->export->memory, IPC_ID);
  return cudaSuccess;
}

bool export_address(struct record *record, const void *address, cudaIpcMemHandle_t *handle,
                    cudaError_t *error) {
  struct order order = {.record = record};
  record->address = address;
  if (!serve_may_act(record))
    return false;
  int result = handle ? blocks_use(address, export_block, &order) : HAUL_EINVAL;
  if (result < 0) {
    pass_on(record, "not allocated by haul");
    return false;
  }
  *error = result;
  if (result != cudaSuccess) {
    log_record(record, "not exported: %s; error %d", record->why, result);
    return true;
  }
  memcpy(handle, &order.handle, sizeof *handle);
  log_record(record, "exported");
  return true;
}
