/* SPDX-License-Identifier: MIT
 * The part of the CUDA driver API that haul uses, so that no toolkit is needed. Names and numbers
 * are those of cuda.h 13.0, unchanged since the version in a comment. On Linux its calls have C
 * linkage and the default calling convention. */
#ifndef HAUL_MEMORY_CUDA_API_H
#define HAUL_MEMORY_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

typedef struct CUuuid_st {
  char bytes[16];
} CUuuid;

/* cudaError_enum */
enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_UNKNOWN = 999
};

/* CUdevice_attribute_enum */
enum {
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
  CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124 /* 11.7 */
};

/* CUpointer_attribute_enum, with the type of each value */
enum {
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,                 /* unsigned */
  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,                 /* unsigned; the only one to be set */
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,                   /* unsigned long long */
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,                  /* unsigned, though bool in its text */
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,              /* int */
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10, /* unsigned, as above */
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,           /* CUdeviceptr */
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,                 /* size_t */
  CU_POINTER_ATTRIBUTE_MAPPED = 13,                     /* unsigned, as above */
  /* For addresses of cuMemAddressReserve, RANGE_… give the reservation. These give the mapping in
   * it and the memory mapped there; older drivers reject them. */
  CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,      /* size_t */
  CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19, /* CUdeviceptr */
  CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20    /* unsigned long long; of the physical memory */
};

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 }; /* CUmemorytype_enum */

/* Of the virtual-memory calls (10.2). */
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { CU_MEM_HANDLE_TYPE_NONE = 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0 };
enum { CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };

typedef struct CUmemLocation_st {
  int type, id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
  CUmemLocation location;
  int flags;
} CUmemAccessDesc;

enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTREGISTER_PORTABLE = 1 };

typedef struct CUipcMemHandle_st {
  char reserved[64];
} CUipcMemHandle;
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };
enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DISABLE_TIMING = 2 };

/* CUflushGPUDirectRDMAWrites… and CUGPUDirectRDMAWritesOrdering (11.3) */
enum { CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1 };
enum { CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0 };
enum { CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100 };
enum { CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100 };

/* X(slot, symbol, arguments): the symbol that cuda.h's macro of the plain name stands for. What is
 * required came with 10.2. */
#define CUDA_REQUIRED(X)                                                                           \
  X(init, cuInit, (unsigned flags))                                                                \
  X(driver_version, cuDriverGetVersion, (int *version))                                            \
  X(error_name, cuGetErrorName, (CUresult error, const char **name))                               \
  X(device_count, cuDeviceGetCount, (int *count))                                                  \
  X(device_get, cuDeviceGet, (CUdevice * device, int ordinal))                                     \
  X(device_name, cuDeviceGetName, (char *name, int length, CUdevice device))                       \
  X(device_uuid_1, cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))                              \
  X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                         \
  X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))          \
  X(device_pci, cuDeviceGetPCIBusId, (char *id, int length, CUdevice device))                      \
  X(device_reaches, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))             \
  X(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))              \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                              \
  X(context_push, cuCtxPushCurrent_v2, (CUcontext context))                                        \
  X(context_pop, cuCtxPopCurrent_v2, (CUcontext * context))                                        \
  X(alloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                   \
  X(free, cuMemFree_v2, (CUdeviceptr address))                                                     \
  X(host_alloc, cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))                    \
  X(host_free, cuMemFreeHost, (void *address))                                                     \
  X(host_register, cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags))            \
  X(host_unregister, cuMemHostUnregister, (void *address))                                         \
  X(pointer_attributes, cuPointerGetAttributes,                                                    \
    (unsigned count, int *attributes, void **values, CUdeviceptr address))                         \
  X(set_pointer_attribute, cuPointerSetAttribute,                                                  \
    (const void *value, int attribute, CUdeviceptr address))                                       \
  X(granularity, cuMemGetAllocationGranularity,                                                    \
    (size_t * bytes, const CUmemAllocationProp *properties, int option))                           \
  X(create, cuMemCreate,                                                                           \
    (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *properties,   \
     unsigned long long flags))                                                                    \
  X(release, cuMemRelease, (CUmemGenericAllocationHandle handle))                                  \
  X(reserve, cuMemAddressReserve,                                                                  \
    (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr wish,                      \
     unsigned long long flags))                                                                    \
  X(unreserve, cuMemAddressFree, (CUdeviceptr address, size_t bytes))                              \
  X(map, cuMemMap,                                                                                 \
    (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,        \
     unsigned long long flags))                                                                    \
  X(unmap, cuMemUnmap, (CUdeviceptr address, size_t bytes))                                        \
  X(set_access, cuMemSetAccess,                                                                    \
    (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count))              \
  X(export_handle, cuMemExportToShareableHandle,                                                   \
    (void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))    \
  X(import_handle, cuMemImportFromShareableHandle,                                                 \
    (CUmemGenericAllocationHandle * handle, void *shareable, int type))                            \
  X(copy_in, cuMemcpyHtoDAsync_v2,                                                                 \
    (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                             \
  X(copy_out, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))   \
  X(copy_inside, cuMemcpyDtoDAsync_v2,                                                             \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                             \
  X(copy_across, cuMemcpyPeerAsync,                                                                \
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, \
     CUstream stream))                                                                             \
  X(fill, cuMemsetD8Async,                                                                         \
    (CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream))                     \
  X(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags))                            \
  X(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                         \
  X(stream_wait, cuStreamSynchronize, (CUstream stream))                                           \
  X(stream_wait_event, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))        \
  X(launch_host, cuLaunchHostFunc, (CUstream stream, void (*call)(void *user), void *user))        \
  X(event_create, cuEventCreate, (CUevent * event, unsigned flags))                                \
  X(event_destroy, cuEventDestroy_v2, (CUevent event))                                             \
  X(event_record, cuEventRecord, (CUevent event, CUstream stream))                                 \
  X(event_query, cuEventQuery, (CUevent event))                                                    \
  X(event_wait, cuEventSynchronize, (CUevent event))

/* NULL where the driver is older: they came with 11.4 (which tells parts of a GPU apart), 11.3 and
 * 11.7. cuStreamAddCallback is older, and cuda.h announces its removal. */
#define CUDA_OPTIONAL(X)                                                                           \
  X(add_callback, cuStreamAddCallback,                                                             \
    (CUstream stream, void (*call)(CUstream stream, CUresult result, void *user), void *user,      \
     unsigned flags))                                                                              \
  X(device_uuid_2, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                           \
  X(flush_writes, cuFlushGPUDirectRDMAWrites, (int target, int scope))                             \
  X(range_handle, cuMemGetHandleForAddressRange,                                                   \
    (void *handle, CUdeviceptr address, size_t bytes, int type, unsigned long long flags))         \
  X(ipc_get, cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address))                    \
  X(ipc_open, cuIpcOpenMemHandle_v2,                                                               \
    (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags))                                \
  X(ipc_close, cuIpcCloseMemHandle, (CUdeviceptr address))                                         \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))

#endif
