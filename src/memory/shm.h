/* SPDX-License-Identifier: MIT
 * Shared memory: a sealed memfd whose last page, behind the data, identifies it and says whether
 * its owner still has it. */
#ifndef HAUL_MEMORY_SHM_H
#define HAUL_MEMORY_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ticket;

/* The last page. A process that may write the data may write here, too, and harms no others by it:
 * the owner never reads it. */
struct shm_footer {
  uint64_t magic;
  _Atomic uint32_t alive;
  uint32_t version;
  uint64_t length;
  uint8_t capability[16];
};

struct shm {
  int fd;        /* owned; -1 for an attached one */
  size_t length; /* data bytes, a multiple of the page size */
  /* Device and inode of the memfd, unique while it exists. */
  uint64_t file[2];
  struct shm_footer *footer;
  _Atomic size_t clear_from; /* shm_export has zeroed the data from here; 0: not yet */
};

/* Makes `length` (rounded up to pages) bytes and the footer, with a random capability, sealed
 * against shrinking and growing. The data is not mapped. Content is zero. */
int shm_create(const char *name, size_t length, struct shm *shm);
/* Checks a foreign descriptor: a memfd sealed against shrinking, large enough, with a footer that
 * carries this capability and length. HAUL_ETICKET, HAUL_ESTALE. Takes no descriptor. */
int shm_attach(int fd, size_t length, const uint8_t capability[16], struct shm *shm);
/* Exports `length` bytes, for providers. Zeroes the data behind them, the first time only: exported
 * memory is never reused (region_export), and zeroing mapped pages costs more with each process. */
int shm_export(struct shm *shm, size_t length, unsigned rights, struct ticket *ticket,
               int *descriptor);
/* Maps the data behind a foreign descriptor with the ticket's rights. As shm_attach. */
int shm_import(int fd, const struct ticket *ticket, struct shm *shm, void **view);
/* Maps the data of `fd` (shm->fd for the owner) with mmap's protection; if `at` is not NULL, there,
 * replacing mappings. Touches no page. Aligned to 2 MiB from that size on. */
int shm_map(int fd, const struct shm *shm, int protection, void *at, void **view);
/* shm_create, and shm_map of it for reading and writing. */
int shm_create_mapped(const char *name, size_t length, struct shm *shm, void **view);
/* A new descriptor for the same memory; read-only unless `writable`. */
int shm_descriptor(const struct shm *shm, bool writable, int *descriptor);
/* Zeroes the data from `length` on, so that importers see no earlier contents. */
int shm_clear_behind(const struct shm *shm, size_t length);
/* A dma-buf over the owner's data. HAUL_ENOTSUP without udmabuf; HAUL_ELIMIT above its size limit.
 */
int shm_dmabuf(const struct shm *shm, int *descriptor);
/* Can shm_dmabuf work here? */
bool shm_has_dmabuf(void);
/* 0, or HAUL_ENOTSUP with the reason; the hint is a command. */
int shm_dmabuf_check(void);
extern const char *shm_udmabuf; /* "/dev/udmabuf"; another one in tests */
/* Owner: clears `alive`. Does nothing in a forked child, as the memory is the parent's. */
void shm_retire(struct shm *shm);
/* Unmaps the footer and closes the descriptor. The caller unmaps what shm_map mapped. */
void shm_close(struct shm *shm);

#endif
