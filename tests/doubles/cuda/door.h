/* SPDX-License-Identifier: MIT
 * A mock of libcuda.so.1, NVIDIA's driver, without a GPU. It has the calls that haul uses, and
 * some for applications (calls.h). It answers and rejects as driver 580.159.04 was measured to on
 * an H200; tests/hardware/driver.c compares the two. Where the driver's behavior is undefined it
 * aborts with a message.
 *
 * The CPU cannot access addresses of device memory; streams are threads that copy through mappings
 * of their own. Memory is in memfds. Copies of pageable memory are synchronous, like the driver's,
 * even those by asynchronous calls.
 *
 * Settings are words in HAUL_CUDA_DOUBLE, read when the library is loaded, with defaults:
 *   devices=2         GPUs; CUDA_VISIBLE_DEVICES (numbers or UUIDs) selects and orders them
 *   memory=4294967296 bytes per GPU
 *   bandwidth=0       bytes per second of a copy; 0: unlimited
 *   latency=0         nanoseconds before each copy
 *   init=0            result of cuInit
 *   create=0          the n-th allocation fails without memory
 *   pin=0             the n-th registration of pages fails without memory
 *   copy=0            the n-th copy fails halfway, and breaks its context
 *   ordering=0        of GPUDirect writes: below 100 they need flushes
 *   vmm=1             0: no virtual-memory calls
 *   attributes=20     of addresses: newer ones are rejected
 *   ask=0             nanoseconds of a call that asks for attributes
 *   capture=0         1: a capture in mode "global" is active: most calls of threads that are not
 *                     "relaxed" fail
 *   hold=0            1: copies wait until it is 0
 *   moves=1           0: copies move no bytes and take no time
 *   dmabuf=1          dma-bufs of udmabuf, where the kernel has it; 0: none; 2: stand-ins, files
 *                     that only the mock NIC accepts
 *   bar1=0            bytes of live stand-ins at most; 0: unlimited
 *   kernel=0          1: a kernel runs on each GPU, and calls with implicit synchronization wait
 *                     until it is 0: those that free or unpin
 *   strict=0          1: where the documentation allows more than the driver was seen to do, that:
 *                     calls that allocate or pin wait for a kernel, too; BUFFER_ID of a mapping is
 *                     its reservation's; a dma-buf is of one allocation, to its last byte, or of
 *                     mappings with the same properties */
#ifndef HAUL_TESTS_CUDA_DOOR_H
#define HAUL_TESTS_CUDA_DOOR_H

struct cuda_double {
  _Atomic unsigned long long devices, memory, bandwidth, latency, init, create, pin, copy, ordering,
      vmm, attributes, hold, moves, kernel, strict, capture, dmabuf, bar1, ask;
  /* Current counts. */
  _Atomic unsigned allocations, mappings, reservations, pinned, streams, events, retains;
  _Atomic unsigned flushes;   /* calls of cuFlushGPUDirectRDMAWrites */
  _Atomic unsigned questions; /* calls of cuPointerGetAttributes for more than one attribute */
  _Atomic unsigned records;   /* calls of cuEventRecord: one for each operation of haul's */
  _Atomic unsigned callbacks; /* and those that asked to be called at its end */
};

/* Tests find it by dlsym(3). */
extern struct cuda_double cuda_double;

/* For the emulated NIC. Is it an address of a GPU? *view: the CPU's view of the bytes; NULL: not
 * all of them are memory. */
_Bool cuda_double_address(unsigned long long address, unsigned long length, char **view);
/* The view of the bytes behind a live stand-in, and their number; NULL: it is none. */
char *cuda_double_dmabuf(int descriptor, unsigned long *length);

#endif
