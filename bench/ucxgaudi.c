/* SPDX-License-Identifier: MIT
 * ucxgaudi uct|haul copy|dma BYTES IN_FLIGHT SECONDS: puts from host memory to a Gaudi device,
 * synchronous (copy) or several in flight (dma), through the UCX module like ucx_perftest's UCT
 * tests, or through haul. Prints GB/s. ucx_perftest has no allocator for Gaudi memory. */
#include "common.h"

#include <haul/device.h>

#include <stdlib.h>
#include <string.h>

#include "ucx/rig.h"

#define MOST    64u
#define WARM_NS INT64_C(200000000)

static struct {
  bool uct, dma;
  size_t size;
  unsigned in_flight;
  char *bytes;
  /* uct */
  struct rig rig;
  struct target target;
  uct_mem_h memh;
  struct waiter waiter[MOST];
  /* haul */
  haul_node *node;
  haul_region *host, *device;
  haul_copy *copies[MOST];
} b;

static void open_all(void) {
  size_t whole = b.size * b.in_flight;
  b.bytes = aligned_alloc(4096, (whole + 4095) & ~(size_t)4095);
  need(b.bytes != NULL, "memory");
  memset(b.bytes, 1, whole);
  if (b.uct) {
    rig_open(&b.rig, b.dma ? "gaudi_dma" : "gaudi_cpy", "gaudi");
    need(rig_connect(&b.rig, NULL) == UCS_OK, "an endpoint");
    rig_alloc(&b.rig, whole, &b.target);
    need(uct_md_mem_reg(b.rig.md, b.bytes, whole, UCT_MD_MEM_ACCESS_ALL, &b.memh) == UCS_OK,
         "registering");
    return;
  }
  const struct haul_place gaudi = {HAUL_GAUDI, 0};
  need(haul_node_open(NULL, &b.node) == 0, "a node");
  need(haul_region_wrap(b.node, b.bytes, whole, &b.host) == 0, "registering");
  need(haul_region_alloc(b.node, gaudi, whole, 0, &b.device) == 0, "device memory");
}

static void put_by_uct(unsigned i) {
  const uct_iov_t iov = {
      .buffer = b.bytes + i * b.size, .length = b.size, .memh = b.memh, .count = 1};
  uint64_t to = (uintptr_t)b.target.address + i * b.size;
  waiter_init(&b.waiter[i]);
  ucs_status_t status =
      uct_ep_put_zcopy(b.rig.ep, &iov, 1, to, b.target.key.rkey, &b.waiter[i].completion);
  need(status == UCS_OK || status == UCS_INPROGRESS, "a put");
  b.waiter[i].calls += status == UCS_OK;
}

/* Restarts completed slots; returns their number. */
static unsigned turn_by_uct(void) {
  unsigned ended = 0;
  uct_worker_progress(b.rig.worker);
  for (unsigned i = 0; i < b.in_flight; i++)
    if (b.waiter[i].calls) {
      need(b.waiter[i].status == UCS_OK, "a put");
      put_by_uct(i);
      ended++;
    }
  return ended;
}

static void put_by_haul(unsigned i) {
  uint64_t at = i * b.size;
  if (b.dma)
    need(haul_copy_start(b.device, at, b.host, at, b.size, &b.copies[i]) == 0, "a copy");
  else
    need(haul_region_copy(b.device, at, b.host, at, b.size, HAUL_FOREVER) == 0, "a copy");
}

static unsigned turn_by_haul(void) {
  unsigned ended = 0;
  for (unsigned i = 0; i < b.in_flight; i++) {
    int status = b.dma ? haul_copy_test(b.copies[i]) : 0;
    need(status >= 0, "a copy");
    if (status == 1)
      continue;
    haul_copy_release(b.copies[i]);
    b.copies[i] = NULL;
    put_by_haul(i);
    ended++;
  }
  return ended;
}

int main(int count, char **arguments) {
  need(count == 6, "usage: ucxgaudi uct|haul copy|dma BYTES IN_FLIGHT SECONDS");
  b.uct = strcmp(arguments[1], "uct") == 0;
  b.dma = strcmp(arguments[2], "dma") == 0;
  b.size = (size_t)parse_size(arguments[3]);
  b.in_flight = (unsigned)atoi(arguments[4]);
  need(b.size > 0 && b.in_flight > 0 && b.in_flight <= MOST, "sizes");
  open_all();
  for (unsigned i = 0; i < b.in_flight; i++)
    b.uct ? put_by_uct(i) : put_by_haul(i);
  int64_t began = haul_deadline_in(0), from = began + WARM_NS, now;
  int64_t until = from + (int64_t)(atof(arguments[5]) * 1e9);
  uint64_t moved = 0;
  while ((now = haul_deadline_in(0)) < until) {
    unsigned ended = b.uct ? turn_by_uct() : turn_by_haul();
    if (now >= from)
      moved += ended * b.size;
  }
  printf("%.4f\n", (double)moved / (double)(until - from));
  return 0; /* with jobs in flight */
}
