/* SPDX-License-Identifier: MIT
 * A node in another process that executes requests: it publishes, fills and sums regions, receives
 * messages, is stopped and killed. Each call waits for the response and returns its code. The
 * test's main calls owner_main when its first argument is OWNER_MODE. */
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

/* KIND_SIM is the device HAUL_TEST_DEVICE, default sim:0. The owner uses HAUL_TEST_OWNER_DEVICE if
 * set, for devices that one process at a time can open. */
enum memory_kind { KIND_HOST, KIND_PRIVATE, KIND_WRAPPED, KIND_SIM };
/* With HAUL_TEST_WRAPPED=gpu, KIND_WRAPPED is GPU memory that the application allocated. */
bool wraps_gpu(void);
struct haul_place device_place(void);
struct haul_place owners_device_place(void); /* the same in any process */
/* Uses the device once: its driver starts once a process and keeps its descriptors open. */
void device_start(void);

/* The default configuration, with a liveness timeout that suits slow sanitizers. */
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

/* Makes slot `slot` a region of this kind, published under the name unless it is NULL. */
int owner_publish(struct owner *owner, unsigned slot, enum memory_kind kind, uint64_t length,
                  const char *name, unsigned rights);
int owner_name(struct owner *owner, unsigned slot, const char *name, unsigned rights);
int owner_unpublish(struct owner *owner, unsigned slot, const char *name);
/* Releases the region. Wrapped memory is unmapped as soon as the release returns, and other pages
 * take its place. */
int owner_release(struct owner *owner, unsigned slot);
/* Are those other pages unmodified? */
bool owner_pages_untouched(struct owner *owner, unsigned slot);
int owner_fill(struct owner *owner, unsigned slot, uint64_t offset, uint64_t length, uint64_t seed);
uint64_t owner_sum(struct owner *owner, unsigned slot, uint64_t offset, uint64_t length);
/* Adds 1 to the 8 bytes at `offset`, `times` times, by atomics of its CPU. */
void owner_add(struct owner *owner, unsigned slot, uint64_t offset, uint64_t times);
/* Receives the next message, and then sums the first `length` bytes of the slot. */
int owner_receive(struct owner *owner, unsigned slot, uint64_t length, uint64_t *tag,
                  uint64_t *message_length, uint64_t *sum);
unsigned owner_descriptors(struct owner *owner);
uint64_t owner_resident(struct owner *owner); /* bytes, from /proc */
uint64_t owner_counter(struct owner *owner, const char *name);

/* A region of this kind. region_drop unmaps wrapped memory. */
struct haul_region *region_make(struct haul_node *node, enum memory_kind kind, size_t length);
void region_drop(struct haul_region *region, enum memory_kind kind);
void region_fill(struct haul_node *node, struct haul_region *region, uint64_t offset,
                 uint64_t length, uint64_t seed);
uint64_t region_sum(struct haul_node *node, struct haul_region *region, uint64_t offset,
                    uint64_t length);

/* The seed of this run, from HAUL_TEST_SEED or the clock; printed once. */
uint64_t test_seed(void);
/* xorshift64; `state` must not be 0. */
uint64_t next_random(uint64_t *state);

#endif
