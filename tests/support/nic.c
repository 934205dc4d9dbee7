/* SPDX-License-Identifier: MIT */
#include "support/nic.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doubles/ibverbs-moving/door.h"
#include "support/check.h"

/* The library stays open until the process ends. */
static void *symbol(const char *name) {
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, name) : NULL;
}

bool nic_is_there(void) {
  if (getenv("HAUL_DOUBLE_FABRIC") && symbol("ibverbs_double_fault"))
    return true;
  printf("skipped all: no NIC; tests/doubles/ibverbs-moving/with runs this program with one\n");
  return false;
}

void nic_fault(const char *words) {
  int (*fault)(const char *words);
  void *found = symbol("ibverbs_double_fault");
  memcpy(&fault, &found, sizeof fault);
  assert_int_equal(fault(words), 0);
}

void nic_fault_of_children(const char *words) {
  setenv("HAUL_DOUBLE_FAULT", words, 1);
}

uint64_t nic_doorbells(void) {
  const _Atomic uint64_t *doorbells = symbol("ibverbs_double_doorbells");
  return atomic_load(doorbells);
}

static uint32_t count_of(const char *function) {
  uint32_t (*count)(void);
  void *found = symbol(function);
  memcpy(&count, &found, sizeof count);
  return count();
}

uint32_t nic_shared_receives(void) {
  return count_of("ibverbs_double_shared_receives");
}

uint32_t nic_arrivals(void) {
  return count_of("ibverbs_double_arrivals");
}

uint64_t nic_not_ready(void) {
  const _Atomic uint64_t *count = symbol("ibverbs_double_not_ready");
  return atomic_load(count);
}

struct ibverbs_double *nic_double(void) {
  return symbol("ibverbs_double");
}

unsigned nic_queue_pairs(void) {
  return atomic_load(&nic_double()->live.qps);
}

void nic_check_empty(void) {
  static const struct double_live nobody;
  assert_memory_equal(&nic_double()->live, &nobody, sizeof nobody);
}
