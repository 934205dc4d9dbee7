/* SPDX-License-Identifier: MIT
 * What a server tells of the bytes of one READ or WRITE, where its client asks: which path they
 * took, why no other one, and whether they were the file's own pages. */
#ifndef HAUL_STORAGE_SERVICE_TOLD_H
#define HAUL_STORAGE_SERVICE_TOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <haul/haul.h>

struct told {
  struct haul_report report; /* of all transfers; paths of the last one */
  uint64_t pages;            /* bytes that went from the file's own pages */
};

/* Adds what a transfer that has ended well did. */
void told_add(struct told *told, haul_transfer *transfer, bool pages);

/* The length in `bytes`, 0 where there is no room. */
size_t told_put(const struct told *told, uint8_t *bytes, size_t room);
/* 0 or -EPROTO: they are foreign. */
int told_get(const void *bytes, size_t size, struct told *told);

#endif
