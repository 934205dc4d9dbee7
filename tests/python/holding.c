/* SPDX-License-Identifier: MIT
 * Preloaded before libhaul: delays calls on request of a test. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <haul/haul.h>

static struct call {
  const char *name;
  _Atomic bool held;
  _Atomic unsigned begun, ended;
} calls[] = {{.name = "haul_node_close"},
             {.name = "haul_region_release"},
             {.name = "haul_region_unpublish"},
             {.name = "haul_remote_release"},
             {.name = "haul_transfer_test"}};

static struct call *find(const char *name) {
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    if (strcmp(calls[i].name, name) == 0)
      return &calls[i];
  abort();
}

/* Waits while the call is held; then returns libhaul's function. */
static void *begin(struct call *call) {
  void *real = dlsym(RTLD_NEXT, call->name);
  if (!real)
    abort();
  atomic_fetch_add(&call->begun, 1);
  while (atomic_load(&call->held))
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  return real;
}

static void end(struct call *call) {
  atomic_fetch_add(&call->ended, 1);
}

static void release(const char *name, void *handle) {
  struct call *call = find(name);
  void (*real)(void *);
  *(void **)&real = begin(call);
  real(handle);
  end(call);
}

HAUL_API void haul_node_close(haul_node *node) {
  release("haul_node_close", node);
}

HAUL_API void haul_region_release(haul_region *region) {
  release("haul_region_release", region);
}

HAUL_API void haul_remote_release(haul_remote *remote) {
  release("haul_remote_release", remote);
}

HAUL_API int haul_region_unpublish(haul_region *region, const char *name) {
  struct call *call = find("haul_region_unpublish");
  int (*real)(haul_region *, const char *);
  *(void **)&real = begin(call);
  int code = real(region, name);
  end(call);
  return code;
}

HAUL_API int haul_transfer_test(haul_transfer *transfer) {
  struct call *call = find("haul_transfer_test");
  int (*real)(haul_transfer *);
  *(void **)&real = begin(call);
  int code = real(transfer);
  end(call);
  return code;
}

struct tensor {
  void (*deleter)(void *managed);
  void *managed;
};

static void report_killed(void *none) {
  (void)none;
  fputs("the thread was killed\n", stderr);
}

static void *consume(void *argument) {
  struct tensor *tensor = argument;
  pthread_cleanup_push(report_killed, NULL);
  tensor->deleter(tensor->managed);
  pthread_cleanup_pop(0);
  fputs("deleted\n", stderr);
  free(tensor);
  return NULL;
}

/* Deletes a tensor in a thread that the interpreter did not create, and waits until that is done or
 * blocks. */
HAUL_API void holding_delete(void (*deleter)(void *), void *managed) {
  pthread_t thread;
  struct tensor *tensor = malloc(sizeof *tensor);
  if (!tensor)
    abort();
  *tensor = (struct tensor){deleter, managed};
  if (pthread_create(&thread, NULL, consume, tensor) != 0)
    abort();
  pthread_detach(thread);
  nanosleep(&(struct timespec){0, 100000000}, NULL);
}

/* Calls that begin from now on return after holding_set(name, false). */
HAUL_API void holding_set(const char *name, bool held) {
  atomic_store(&find(name)->held, held);
}

/* Number of calls, and of returns. */
HAUL_API unsigned holding_begun(const char *name) {
  return atomic_load(&find(name)->begun);
}

HAUL_API unsigned holding_ended(const char *name) {
  return atomic_load(&find(name)->ended);
}
