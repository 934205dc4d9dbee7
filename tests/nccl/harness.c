/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const int harness_versions[] = {12, 11, 10, 9, 8};

static struct {
  int version;
  void *library, *context;
  const struct nccl_net_8 *v8;
  const struct nccl_net_9 *v9;
  const struct nccl_net_10 *v10;
  const struct nccl_net_11 *v11;
  const struct nccl_net_12 *v12;
} p;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned warnings;
static char said[65536];
static size_t used;

static void log_line(int level, unsigned long subsystems, const char *file, int line,
                     const char *format, ...) {
  char text[1024];
  va_list arguments;
  (void)subsystems, (void)file, (void)line;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&lock);
  warnings += level == NCCL_LEVEL_WARN;
  if (getenv("HAUL_NCCL_LOG"))
    fprintf(stderr, "%s %s\n", level == NCCL_LEVEL_WARN ? "WARN" : "INFO", text);
  used += (size_t)snprintf(said + used, sizeof said - used, "%.*s\n",
                           used + strlen(text) + 2 < sizeof said ? 1023 : 0, text);
  pthread_mutex_unlock(&lock);
}

unsigned harness_warnings(void) {
  pthread_mutex_lock(&lock);
  unsigned count = warnings;
  warnings = 0;
  pthread_mutex_unlock(&lock);
  return count;
}

bool harness_logged(const char *text) {
  pthread_mutex_lock(&lock);
  bool found = strstr(said, text);
  pthread_mutex_unlock(&lock);
  return found;
}

static const void *find_table(int version) {
  char name[32];
  snprintf(name, sizeof name, "ncclNetPlugin_v%d", version);
  return dlsym(p.library, name);
}

int harness_open(int version) {
  const char *path = getenv("HAUL_NCCL");
  p.library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  p.version = version;
  const void *table = p.library ? find_table(version) : NULL;
  if (!table) {
    fprintf(stderr, "cannot load the plugin: %s\n", path ? dlerror() : "HAUL_NCCL is not set");
    abort();
  }
  p.v8 = table, p.v9 = table, p.v10 = table, p.v11 = table, p.v12 = table;
  int config = -1;
  switch (version) {
  case 8:
    return p.v8->init(log_line);
  case 9:
    return p.v9->init(log_line);
  case 10:
    return p.v10->init(log_line, NULL);
  case 11:
    return p.v11->init(&p.context, 1, &config, log_line, NULL);
  default:
    return p.v12->init(&p.context, 1, &config, log_line, NULL);
  }
}

/* Versions before 11 have no finalize. */
int harness_close(void) {
  return p.version == 11   ? p.v11->finalize(p.context)
         : p.version == 12 ? p.v12->finalize(p.context)
                           : NCCL_SUCCESS;
}

#define SAME(call, ...)                                                                            \
  (p.version == 8    ? p.v8->call(__VA_ARGS__)                                                     \
   : p.version == 9  ? p.v9->call(__VA_ARGS__)                                                     \
   : p.version == 10 ? p.v10->call(__VA_ARGS__)                                                    \
   : p.version == 11 ? p.v11->call(__VA_ARGS__)                                                    \
                     : p.v12->call(__VA_ARGS__))

int net_devices(int *count) {
  return SAME(devices, count);
}

static void fill_properties(struct harness_properties *out, const char *name, const char *pci,
                            int pointers, int speed, int receives) {
  snprintf(out->name, sizeof out->name, "%s", name ? name : "");
  out->has_pci = pci;
  out->pointers = pointers;
  out->speed = speed;
  out->max_receives = receives;
}

#define PROPERTIES(version, type)                                                                  \
  case version: {                                                                                  \
    struct type got = {.name = NULL};                                                              \
    int result = p.v##version->properties(device, &got);                                           \
    fill_properties(out, got.name, got.pci_path, got.pointers, got.speed, got.max_receives);       \
    return result;                                                                                 \
  }

int net_properties(int device, struct harness_properties *out) {
  switch (p.version) {
    PROPERTIES(8, nccl_properties_8)
    PROPERTIES(9, nccl_properties_9)
    PROPERTIES(10, nccl_properties_10)
    PROPERTIES(11, nccl_properties_11)
    PROPERTIES(12, nccl_properties_12)
  default:
    return NCCL_INTERNAL_ERROR;
  }
}

int net_listen(int device, void *handle, void **comm) {
  switch (p.version) {
  case 11:
    return p.v11->listen(p.context, device, handle, comm);
  case 12:
    return p.v12->listen(p.context, device, handle, comm);
  default: /* the same in 8, 9 and 10 */
    return p.v8->listen(device, handle, comm);
  }
}

int net_connect(int device, void *handle, void **comm) {
  void *offload = NULL;
  int config = -1;
  switch (p.version) {
  case 10:
    return p.v10->connect(device, &config, handle, comm, &offload);
  case 11:
    return p.v11->connect(p.context, device, handle, comm, &offload);
  case 12:
    return p.v12->connect(p.context, device, handle, comm, &offload);
  default:
    return p.v8->connect(device, handle, comm, &offload);
  }
}

int net_accept(void *listener, void **comm) {
  void *offload = NULL;
  return SAME(accept, listener, comm, &offload);
}

int net_register(void *comm, void *data, size_t size, int type, void **memory) {
  return SAME(register_memory, comm, data, size, type, memory);
}

int net_register_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                        void **memory) {
  return SAME(register_dmabuf, comm, data, size, type, offset, fd, memory);
}

int net_deregister(void *comm, void *memory) {
  return SAME(deregister, comm, memory);
}

int net_send(void *comm, void *data, size_t size, int tag, void *memory, void **request) {
  switch (p.version) {
  case 8:
    return p.v8->send(comm, data, (int)size, tag, memory, request);
  case 9:
    return p.v9->send(comm, data, size, tag, memory, request);
  case 10:
    return p.v10->send(comm, data, size, tag, memory, NULL, request);
  case 11:
    return p.v11->send(comm, data, size, tag, memory, NULL, request);
  default:
    return p.v12->send(comm, data, size, tag, memory, NULL, request);
  }
}

int net_receive(void *comm, int count, void **data, size_t *sizes, int *tags, void **memories,
                void **request) {
  int narrow[16];
  for (int i = 0; i < count && i < 16; i++)
    narrow[i] = (int)sizes[i];
  switch (p.version) {
  case 8:
    return p.v8->receive(comm, count, data, narrow, tags, memories, request);
  case 9:
    return p.v9->receive(comm, count, data, sizes, tags, memories, request);
  case 10:
    return p.v10->receive(comm, count, data, sizes, tags, memories, NULL, request);
  case 11:
    return p.v11->receive(comm, count, data, sizes, tags, memories, NULL, request);
  default:
    return p.v12->receive(comm, count, data, sizes, tags, memories, NULL, request);
  }
}

int net_flush(void *comm, void *data, int size, void *memory, void **request) {
  return SAME(flush, comm, 1, &data, &size, &memory, request);
}

int net_test(void *request, int *done, int *sizes) {
  return SAME(test, request, done, sizes);
}

int net_close_send(void *comm) {
  return SAME(close_send, comm);
}

int net_close_receive(void *comm) {
  return SAME(close_receive, comm);
}

int net_close_listen(void *comm) {
  return SAME(close_listen, comm);
}
