/* SPDX-License-Identifier: MIT
 * The tables that NCCL looks up, newest first. */
#include "plugin.h"

#define SHOWN __attribute__((visibility("default")))

static int init_10(nccl_logger *logger, void *profiler) {
  (void)profiler;
  return plugin_init(logger);
}

static int init_11(void **context, uint64_t id, void *config, nccl_logger *logger, void *profiler) {
  (void)id, (void)config, (void)profiler;
  *context = &plugin;
  return plugin_init(logger);
}

/* The fields of the newest version that older ones have. */
#define SHARED                                                                                     \
  .name = all.name, .pci_path = all.pci_path, .guid = all.guid, .pointers = all.pointers,          \
  .speed = all.speed, .port = all.port, .max_comms = all.max_comms,                                \
  .max_receives = all.max_receives
#define SHARED_FROM_9                                                                              \
  SHARED, .virtual_count = all.virtual_count, .virtual_devices = {all.virtual_devices[0]},         \
          .max_p2p = all.max_p2p, .max_collective = all.max_collective

static int properties_8(int device, struct nccl_properties_8 *out) {
  struct nccl_properties_12 all = {.name = NULL};
  int result = plugin_properties(device, &all);
  *out = (struct nccl_properties_8){SHARED};
  return result;
}

static int properties_9(int device, struct nccl_properties_9 *out) {
  struct nccl_properties_12 all = {.name = NULL};
  int result = plugin_properties(device, &all);
  *out = (struct nccl_properties_9){SHARED_FROM_9};
  return result;
}

static int properties_10(int device, struct nccl_properties_10 *out) {
  struct nccl_properties_12 all = {.name = NULL};
  int result = plugin_properties(device, &all);
  *out = (struct nccl_properties_10){SHARED_FROM_9};
  return result;
}

static int properties_11(int device, struct nccl_properties_11 *out) {
  struct nccl_properties_12 all = {.name = NULL};
  int result = plugin_properties(device, &all);
  *out = (struct nccl_properties_11){SHARED_FROM_9, .max_multi_request = all.max_multi_request};
  return result;
}

static int listen_11(void *context, int device, void *handle, void **comm) {
  (void)context;
  return comm_listen(device, handle, comm);
}

/* `offload` requests a GPU-driven connection, which is not supported. */
static int connect_8(int device, void *handle, void **comm, void **offload) {
  (void)device;
  if (offload)
    *offload = NULL;
  return comm_connect(handle, comm);
}

static int connect_10(int device, void *config, void *handle, void **comm, void **offload) {
  (void)config;
  return connect_8(device, handle, comm, offload);
}

static int connect_11(void *context, int device, void *handle, void **comm, void **offload) {
  (void)context;
  return connect_8(device, handle, comm, offload);
}

static int accept_any(void *listener, void **comm, void **offload) {
  if (offload)
    *offload = NULL;
  return comm_accept(listener, comm);
}

static int send_8(void *comm, void *data, int size, int tag, void *memory, void **request) {
  return size < 0 ? NCCL_INVALID_ARGUMENT
                  : transfer_send(comm, data, (size_t)size, tag, memory, request);
}

static int send_10(void *comm, void *data, size_t size, int tag, void *memory, void *profile,
                   void **request) {
  (void)profile;
  return transfer_send(comm, data, size, tag, memory, request);
}

static int receive_8(void *comm, int count, void **data, int *sizes, int *tags, void **memories,
                     void **request) {
  size_t wide[GROUP_MAX];
  for (int i = 0; i < count && i < GROUP_MAX; i++) {
    if (sizes[i] < 0)
      return NCCL_INVALID_ARGUMENT;
    wide[i] = (size_t)sizes[i];
  }
  return transfer_receive(comm, count, data, wide, tags, memories, request);
}

static int receive_10(void *comm, int count, void **data, size_t *sizes, int *tags, void **memories,
                      void **profiles, void **request) {
  (void)profiles;
  return transfer_receive(comm, count, data, sizes, tags, memories, request);
}

/* The dma-buf is not needed: haul gets one from the driver by the address. */
static int register_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                           void **memory) {
  (void)offset, (void)fd;
  return memory_register(comm, data, size, type, memory);
}

/* A complete receive is visible to the owning device, so there is nothing to flush. */
static int flush(void *comm, int count, void **data, int *sizes, void **memories, void **request) {
  (void)comm, (void)count, (void)data, (void)sizes, (void)memories;
  *request = NULL;
  return NCCL_SUCCESS;
}

static int finalize(void *context) {
  (void)context;
  return plugin_finalize();
}

static int attributes(void *context, void *given) {
  (void)context, (void)given;
  return NCCL_SUCCESS;
}

#define NAME .name = "haul", .devices = plugin_devices
#define MEMORY                                                                                     \
  .register_memory = memory_register, .register_dmabuf = register_dmabuf,                          \
  .deregister = memory_deregister
#define ENDS                                                                                       \
  .accept = accept_any, .flush = flush, .test = transfer_test, .close_send = comm_close,           \
  .close_receive = comm_close, .close_listen = comm_close_listen
#define TABLE_11                                                                                   \
  NAME, MEMORY, ENDS, .init = init_11, .listen = listen_11, .connect = connect_11,                 \
                      .send = send_10, .receive = receive_10, .finalize = finalize,                \
                      .attributes = attributes

SHOWN const struct nccl_net_12 ncclNetPlugin_v12 = {TABLE_11, .properties = plugin_properties};
SHOWN const struct nccl_net_11 ncclNetPlugin_v11 = {TABLE_11, .properties = properties_11};
SHOWN const struct nccl_net_10 ncclNetPlugin_v10 = {NAME,
                                                    MEMORY,
                                                    ENDS,
                                                    .init = init_10,
                                                    .properties = properties_10,
                                                    .listen = comm_listen,
                                                    .connect = connect_10,
                                                    .send = send_10,
                                                    .receive = receive_10};
#define TABLE_8 NAME, MEMORY, ENDS, .init = plugin_init, .listen = comm_listen, .connect = connect_8
SHOWN const struct nccl_net_9 ncclNetPlugin_v9 = {
    TABLE_8, .properties = properties_9, .send = transfer_send, .receive = transfer_receive};
SHOWN const struct nccl_net_8 ncclNetPlugin_v8 = {TABLE_8, .properties = properties_8,
                                                  .send = send_8, .receive = receive_8};
