/* SPDX-License-Identifier: MIT
 * Shared by memory.c and plain.c. */
#ifndef HAUL_TESTS_CUDA_MEMORY_H
#define HAUL_TESTS_CUDA_MEMORY_H

#include "inside.h"

#define PAGE 4096u

enum kind { RESERVED = 1, MAPPED = 2, PLAIN = 4, PINNED = 8 };

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
  void *base;        /* PLAIN: start of its reserved addresses */
  bool theirs;       /* PINNED: pages of the caller */
  bool synchronises; /* PLAIN: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
  /* PLAIN: its memfd, with a page after the bytes for the pids that opened it; -1 until exported.
   */
  int fd;
  bool borrowed; /* PLAIN: of another process, opened `opens` times by its IPC handle */
  unsigned opens;
  CUipcMemHandle handle;
  _Atomic unsigned users;
};

extern pthread_mutex_t memory_lock; /* guards the lists */
extern struct range *ranges;

struct range *add_range(enum kind kind, CUdeviceptr start, size_t size);
void drop_range(struct range *range);
/* The range of these kinds that contains [address, address + bytes). */
struct range *find_range(unsigned kinds, CUdeviceptr address, size_t bytes);
/* The descriptor of its memory; -1: it has none. */
int range_file(const struct range *range);
bool has_room(unsigned gpu, size_t size);
void *reserve_space(size_t size);
/* Frees plain memory; an importer's only in this process. */
void end_plain(struct range *range);

#endif
