/* SPDX-License-Identifier: MIT
 * NCCL's network plugin interface, versions 8 to 12 (NCCL 2.20 to 2.30), declared after its
 * documentation in plugins/net of NCCL's source. */
#ifndef HAUL_NCCL_INTERFACE_H
#define HAUL_NCCL_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

enum nccl_result {
  NCCL_SUCCESS = 0,
  NCCL_SYSTEM_ERROR = 2,
  NCCL_INTERNAL_ERROR = 3,
  NCCL_INVALID_ARGUMENT = 4,
  NCCL_INVALID_USAGE = 5,
  NCCL_REMOTE_ERROR = 6
};

#define NCCL_HANDLE_SIZE    128
#define NCCL_MAX_REQUESTS   32 /* of one connection (NCCL's NCCL_NET_MAX_REQUESTS) */
#define NCCL_POINTER_HOST   1
#define NCCL_POINTER_CUDA   2
#define NCCL_POINTER_DMABUF 4

enum nccl_level { NCCL_LEVEL_WARN = 2, NCCL_LEVEL_INFO = 3 };
#define NCCL_SUBSYSTEM_NET 0x10ul
typedef void nccl_logger(int level, unsigned long subsystems, const char *file, int line,
                         const char *format, ...);

struct nccl_properties_8 {
  char *name, *pci_path;
  uint64_t guid;
  int pointers, registers_globally;
  int speed; /* Mbit/s */
  int port;
  float latency; /* us */
  int max_comms, max_receives;
  int device_type, device_version;
};

#define NCCL_VIRTUAL_9  4
#define NCCL_VIRTUAL_12 8

/* Versions 9 to 12 append fields. */
#define NCCL_PROPERTIES(virtual_most)                                                              \
  char *name, *pci_path;                                                                           \
  uint64_t guid;                                                                                   \
  int pointers, registers_globally, force_flush;                                                   \
  int speed, port;                                                                                 \
  float latency;                                                                                   \
  int max_comms, max_receives;                                                                     \
  int device_type, device_version;                                                                 \
  int virtual_count, virtual_devices[virtual_most];                                                \
  size_t max_p2p, max_collective;

struct nccl_properties_9 {
  NCCL_PROPERTIES(NCCL_VIRTUAL_9)
};

struct nccl_properties_10 {
  NCCL_PROPERTIES(NCCL_VIRTUAL_9)
};

struct nccl_properties_11 {
  NCCL_PROPERTIES(NCCL_VIRTUAL_9)
  int max_multi_request;
};

struct nccl_properties_12 {
  NCCL_PROPERTIES(NCCL_VIRTUAL_12)
  int max_multi_request;
  int16_t rail, plane;
};

/* Calls common to all versions. */
#define NCCL_ENDS                                                                                  \
  int (*flush)(void *comm, int count, void **data, int *sizes, void **memories, void **request);   \
  int (*test)(void *request, int *done, int *sizes);                                               \
  int (*close_send)(void *comm);                                                                   \
  int (*close_receive)(void *comm);                                                                \
  int (*close_listen)(void *comm);                                                                 \
  int (*device_memory)(void *comm, void *memory, void **device);                                   \
  int (*consumed)(void *comm, int count, void *request);
#define NCCL_MEMORY                                                                                \
  int (*register_memory)(void *comm, void *data, size_t size, int type, void **memory);            \
  int (*register_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,   \
                         void **memory);                                                           \
  int (*deregister)(void *comm, void *memory);

struct nccl_net_8 {
  const char *name;
  int (*init)(nccl_logger *logger);
  int (*devices)(int *count);
  int (*properties)(int device, struct nccl_properties_8 *properties);
  int (*listen)(int device, void *handle, void **comm);
  int (*connect)(int device, void *handle, void **comm, void **offload);
  int (*accept)(void *listener, void **comm, void **offload);
  NCCL_MEMORY
  int (*send)(void *comm, void *data, int size, int tag, void *memory, void **request);
  int (*receive)(void *comm, int count, void **data, int *sizes, int *tags, void **memories,
                 void **request);
  NCCL_ENDS
};

struct nccl_net_9 {
  const char *name;
  int (*init)(nccl_logger *logger);
  int (*devices)(int *count);
  int (*properties)(int device, struct nccl_properties_9 *properties);
  int (*listen)(int device, void *handle, void **comm);
  int (*connect)(int device, void *handle, void **comm, void **offload);
  int (*accept)(void *listener, void **comm, void **offload);
  NCCL_MEMORY
  int (*send)(void *comm, void *data, size_t size, int tag, void *memory, void **request);
  int (*receive)(void *comm, int count, void **data, size_t *sizes, int *tags, void **memories,
                 void **request);
  NCCL_ENDS
  int (*make_virtual)(int *device, void *properties);
};

struct nccl_net_10 {
  const char *name;
  int (*init)(nccl_logger *logger, void *profiler);
  int (*devices)(int *count);
  int (*properties)(int device, struct nccl_properties_10 *properties);
  int (*listen)(int device, void *handle, void **comm);
  int (*connect)(int device, void *config, void *handle, void **comm, void **offload);
  int (*accept)(void *listener, void **comm, void **offload);
  NCCL_MEMORY
  int (*send)(void *comm, void *data, size_t size, int tag, void *memory, void *profile,
              void **request);
  int (*receive)(void *comm, int count, void **data, size_t *sizes, int *tags, void **memories,
                 void **profiles, void **request);
  NCCL_ENDS
  int (*make_virtual)(int *device, void *properties);
};

/* 11 and 12 differ only in their properties. */
#define NCCL_NET_11(version)                                                                       \
  struct nccl_net_##version {                                                                      \
    const char *name;                                                                              \
    int (*init)(void **context, uint64_t id, void *config, nccl_logger *logger, void *profiler);   \
    int (*devices)(int *count);                                                                    \
    int (*properties)(int device, struct nccl_properties_##version *properties);                   \
    int (*listen)(void *context, int device, void *handle, void **comm);                           \
    int (*connect)(void *context, int device, void *handle, void **comm, void **offload);          \
    int (*accept)(void *listener, void **comm, void **offload);                                    \
    NCCL_MEMORY                                                                                    \
    int (*send)(void *comm, void *data, size_t size, int tag, void *memory, void *profile,         \
                void **request);                                                                   \
    int (*receive)(void *comm, int count, void **data, size_t *sizes, int *tags, void **memories,  \
                   void **profiles, void **request);                                               \
    NCCL_ENDS                                                                                      \
    int (*make_virtual)(int *device, void *properties);                                            \
    int (*finalize)(void *context);                                                                \
    int (*attributes)(void *context, void *attributes);                                            \
  }
NCCL_NET_11(11);
NCCL_NET_11(12);

#endif
