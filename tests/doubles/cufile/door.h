/* SPDX-License-Identifier: MIT
 * An emulation of libcufile.so.0, NVIDIA's GPUDirect Storage, over the mock of NVIDIA's driver. The
 * process reads the files itself, so it shows what haul asks for, not what a disk does. It answers
 * as cufile.h 1.14 and the API Reference Guide of GPUDirect Storage say, and aborts with a message
 * where a caller violates these. Untested against NVIDIA's library with a GPU.
 *
 * Settings are words in HAUL_CUFILE_DOUBLE, read when the library is loaded, with defaults:
 *   nvfs=1        nvidia-fs is loaded
 *   p2p=0         1: the kernel has PCI peer-to-peer DMA for NVMe
 *   compat=1      allow_compat_mode in cufile.json
 *   open=0        result of cuFileDriverOpen
 *   file=0        result of cuFileHandleRegister
 *   read=0        the call of cuFileRead that is number `nth` from then on fails with this code, or
 *   nth=1         with -1 and this negative errno value
 *   most=0        bytes of one cuFileRead at most; 0: unlimited
 *   pinned=134217728  bytes of registered memory at most, as of BAR1 */
#ifndef HAUL_TESTS_CUFILE_DOOR_H
#define HAUL_TESTS_CUFILE_DOOR_H

struct cufile_double {
  _Atomic long long nvfs, p2p, compat, open, file, read, nth, most, pinned;
  /* Current counts. */
  _Atomic long long drivers, handles, buffers, registered; /* the last in bytes */
  /* Calls of cuFileRead, by where the bytes passed: nowhere, a buffer in GPU memory, host memory.
   */
  _Atomic unsigned straight, buffered, through_host;
};

/* Tests find it by dlsym(3). */
extern struct cufile_double cufile_double;

#endif
