/* SPDX-License-Identifier: MIT
 * Shared by memory.c (lists, virtual-memory calls), plain.c, host.c, pointer.c and dmabuf.c. */
#ifndef HAUL_TESTS_CUDA_MEMORY_H
#define HAUL_TESTS_CUDA_MEMORY_H

#include "inside.h"

#define PAGE 4096u

enum kind { RESERVED = 1, MAPPED = 2, PLAIN = 4, POOL = 8, PINNED = 16 };
#define DEVICE_KINDS (MAPPED | PLAIN | POOL)
#define KNOWN_KINDS  (DEVICE_KINDS | PINNED)

/* Pages of a GPU in a memfd, with a page behind them. Those of PLAIN and POOL are parts of one file
 * of the GPU, as the driver needs no descriptor for each. */
struct allocation {
  struct allocation *next;
  int fd;
  size_t at;   /* in the file */
  size_t size; /* a multiple of GRAIN */
  unsigned gpu;
  unsigned refs; /* of the handle and of each range */
  unsigned long long id;
  bool handle;    /* not released by the caller */
  int types;      /* its handle can be exported as */
  bool rdma;      /* made with gpuDirectRDMACapable */
  enum kind kind; /* 0: of the virtual-memory calls */
  bool borrowed;  /* another process's, by its IPC handle */
  bool small;     /* several share its page */
  /* PLAIN and POOL: where they lie for their whole life. `view` has the page behind them, too. */
  CUdeviceptr base;
  char *view;
};

/* The page behind an allocation. */
#define OPENERS 256
struct label {
  char magic[16];
  uint64_t size;
  CUuuid uuid;
  /* Processes that have opened an IPC handle of memory in these pages: pid << 32 | its place */
  _Atomic uint64_t openers[OPENERS];
};
_Static_assert(sizeof(struct label) <= PAGE, "one page");

struct range {
  struct range *next;
  enum kind kind;
  CUdeviceptr start;
  size_t size;
  unsigned gpu;
  int rights[GPUS_MAX];
  unsigned long long buffer; /* unique number */
  struct allocation *allocation;
  char *view;
  bool theirs;       /* PINNED: pages of the caller */
  bool managed;      /* PINNED: of cuMemAllocManaged */
  bool synchronises; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
  unsigned opens;    /* of a borrowed one */
  CUipcMemHandle ipc;
  _Atomic unsigned users;
};

extern pthread_mutex_t memory_lock; /* guards the lists */
extern struct range *ranges;

/* memory.c, with the lock */

struct range *add_range(enum kind kind, CUdeviceptr start, size_t size);
void drop_range(struct range *range);
/* The range of these kinds that contains [address, address + bytes). */
struct range *find_range(unsigned kinds, CUdeviceptr address, size_t bytes);
bool has_room(unsigned gpu, size_t size);
void *reserve_space(size_t size);
/* Of `size` bytes behind a descriptor, which it takes unless it is the GPU's own file. */
struct allocation *add_allocation(int fd, size_t size, unsigned gpu);
struct allocation *next_allocation(const struct allocation *after); /* NULL: the first */
void put_allocation(struct allocation *allocation);
/* The device's address of the range's pages, and their number in bytes. */
CUdeviceptr pages_of(const struct range *range, size_t *bytes);
/* The pages behind [at, at + bytes), which end at `end` or before, with those of the same
 * allocation behind the range's own bytes. False: no memory of these kinds has a page at `at`. */
struct piece {
  const struct range *range;
  int fd;
  size_t offset, bytes;
};
bool find_piece(unsigned kinds, CUdeviceptr at, CUdeviceptr end, struct piece *piece);
/* A contiguous mapping of such pages, both ends at a page of the host. */
char *map_pieces(unsigned kinds, CUdeviceptr from, CUdeviceptr end);

/* plain.c: frees memory of cuMemAlloc or of a pool; an importer's only in this process. */
void end_plain(struct range *range);
/* host.c */
void end_pinned(struct range *range);
/* dmabuf.c: unmaps the views of closed stand-ins. */
void drop_stand_ins(void);

#endif
