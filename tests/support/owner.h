/* SPDX-License-Identifier: MIT
 * A node in another process that does what it is told: it publishes regions, fills them, sums them,
 * receives messages, is stopped and killed. Each call below waits for the other side's answer and
 * returns its code; the test's main calls owner_main when its first argument is OWNER_MODE. */
#ifndef HAUL_TESTS_OWNER_H
#define HAUL_TESTS_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

#include "haul/haul.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define OWNER_MODE  "owner"
#define OWNER_SLOTS 64

#define MS 1000000LL
#define S  1000000000LL

/* KIND_SIM is the device of HAUL_TEST_DEVICE, in the owner's process of HAUL_TEST_OWNER_DEVICE
 * where that is set, as there are devices that one process has at a time; sim:0 without either. */
enum memory_kind { KIND_HOST, KIND_PRIVATE, KIND_WRAPPED, KIND_SIM };
/* KIND_WRAPPED is then memory of a GPU that the application allocated: HAUL_TEST_WRAPPED=gpu. */
bool wraps_gpu(void);
struct haul_place device_place(void);
struct haul_place owners_device_place(void); /* as any process sees it */

/* The default one, but that nobody is taken for gone whom a sanitizer makes slow. */
struct haul_node_config patient_config(void);

struct owner {
  pid_t pid;
  int socket;
  char address[160];
};

int owner_main(void);

/* A process whose node listens on `address`. `config` may be NULL. */
void owner_start(struct owner *owner, const char *address, const struct haul_node_config *config);
/* Closes its node and ends it; returns its exit status. */
int owner_end(struct owner *owner);
void owner_kill(struct owner *owner); /* SIGKILL, and waits for it */
void owner_stop(struct owner *owner); /* SIGSTOP, and waits until it has stopped */
void owner_go_on(struct owner *owner);

/* Slot `slot` becomes a region of this kind, published under the name unless it is NULL. */
int owner_publish(struct owner *owner, unsigned slot, enum memory_kind kind, uint64_t length,
                  const char *name, unsigned rights);
int owner_name(struct owner *owner, unsigned slot, const char *name, unsigned rights);
int owner_unpublish(struct owner *owner, unsigned slot, const char *name);
/* Releases the region. What was wrapped is unmapped the moment the release has returned, and other
 * pages are put in its place. */
int owner_release(struct owner *owner, unsigned slot);
/* Whether those other pages are still as they were. */
bool owner_pages_untouched(struct owner *owner, unsigned slot);
int owner_fill(struct owner *owner, unsigned slot, uint64_t offset, uint64_t length, uint64_t seed);
uint64_t owner_sum(struct owner *owner, unsigned slot, uint64_t offset, uint64_t length);
/* Adds 1 to the 8 bytes at `offset`, so many times, each an atomic of its processor's. */
void owner_add(struct owner *owner, unsigned slot, uint64_t offset, uint64_t times);
/* Takes the next message within a second, and sums the first `length` bytes of the slot the moment
 * that it has come. */
int owner_receive(struct owner *owner, unsigned slot, uint64_t length, uint64_t *tag,
                  uint64_t *message_length, uint64_t *sum);
unsigned owner_descriptors(struct owner *owner);
uint64_t owner_resident(struct owner *owner); /* bytes, from /proc */
uint64_t owner_counter(struct owner *owner, const char *name);

/* ---- The same for regions of this process ---- */

/* A region of this kind. Wrapped memory is unmapped by region_drop. */
struct haul_region *region_make(struct haul_node *node, enum memory_kind kind, size_t length);
void region_drop(struct haul_region *region, enum memory_kind kind);
void region_fill(struct haul_node *node, struct haul_region *region, uint64_t offset,
                 uint64_t length, uint64_t seed);
uint64_t region_sum(struct haul_node *node, struct haul_region *region, uint64_t offset,
                    uint64_t length);

/* The seed of this run, from HAUL_TEST_SEED or the clock; printed once. */
uint64_t test_seed(void);
/* A small generator; `state` is not 0. */
uint64_t next_random(uint64_t *state);

#endif
