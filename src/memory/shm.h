/* SPDX-License-Identifier: MIT
 * Memory that processes share through a descriptor: a sealed memfd with one page behind the data
 * that says whose it is and whether it lives. */
#ifndef HAUL_MEMORY_SHM_H
#define HAUL_MEMORY_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ticket;

/* The last page. A process that may write the data may write here too, and then harms only those
 * that it may harm anyway: the owner never reads it back. */
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
  /* The file's device and inode: nobody else's memory has these while it lives. */
  uint64_t file[2];
  struct shm_footer *footer;
  _Atomic size_t clear_from; /* shm_export has zeroed the data from here on; 0: not yet */
};

/* Makes `length` (rounded up to pages) bytes and the footer, with a random capability, sealed
 * against shrinking and growing. The data is not mapped. Content is zero. */
int shm_create(const char *name, size_t length, struct shm *shm);
/* Checks a foreign descriptor: a memfd sealed against shrinking, large enough, with a footer that
 * carries this capability and length. HAUL_ETICKET, HAUL_ESTALE. Takes no descriptor. */
int shm_attach(int fd, size_t length, const uint8_t capability[16], struct shm *shm);
/* What a ticket says of an own one: the capability and, in extra, the data's length, which may
 * exceed what the ticket lends, and the file. And shm_attach by it: a ticket of another file is
 * refused, so whoever knows a ticket cannot pass memory of its own off as the owner's. */
void shm_describe(const struct shm *shm, struct ticket *ticket);
/* A provider's export of `length` bytes. What lies behind them is zeroed the first time alone: what
 * was exported is never another's (region_export), and to zero it again would cost more the more
 * processes have it mapped. */
int shm_export(struct shm *shm, size_t length, unsigned rights, struct ticket *ticket,
               int *descriptor);
int shm_attach_ticket(int fd, const struct ticket *ticket, struct shm *shm);
/* Maps the data of `fd` (shm->fd for an own one) with mmap's protection, at `at` when not NULL
 * (which replaces what is mapped there). Touches no page. From 2 MiB on it is aligned to 2 MiB. */
int shm_map(int fd, const struct shm *shm, int protection, void *at, void **view);
/* A new descriptor for the same memory; read-only unless `writable`. */
int shm_descriptor(const struct shm *shm, bool writable, int *descriptor);
/* Zeroes the data from `length` on, so that what is shared shows nothing of an earlier use. */
int shm_clear_behind(const struct shm *shm, size_t length);
/* A dma-buf over the data of an own one. HAUL_ENOTSUP where the kernel has no udmabuf; HAUL_ELIMIT
 * where it makes none as large. */
int shm_dmabuf(const struct shm *shm, int *descriptor);
/* Can shm_dmabuf work here? */
bool shm_has_dmabuf(void);
/* 0, or HAUL_ENOTSUP with the reason; the hint is a command. */
int shm_dmabuf_check(void);
extern const char *shm_udmabuf; /* "/dev/udmabuf"; another one in tests */
/* Marks an own one as dead. In a forked child it does nothing: the memory is the parent's. */
void shm_retire(struct shm *shm);
/* Unmaps the footer, closes the descriptor. What shm_map mapped is the caller's. */
void shm_close(struct shm *shm);

#endif
