/* SPDX-License-Identifier: MIT */
#include "support/nic.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <netinet/in.h>
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

void nic_set(const char *words) {
  int (*set)(const char *words);
  void *found = symbol("ibverbs_double_nics");
  memcpy(&set, &found, sizeof set);
  assert_int_equal(set(words), 0);
}

void nic_set_of_children(const char *words) {
  if (words)
    setenv("HAUL_DOUBLE_NICS", words, 1);
  else
    unsetenv("HAUL_DOUBLE_NICS");
}

union any_address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};

struct own_address {
  struct ifaddrs entry;
  union any_address address, netmask;
};

/* Masks of 24 bits, and of 64 for IPv6. */
static void describe(const uint8_t gid[16], struct own_address *own) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  own->entry = (struct ifaddrs){.ifa_addr = &own->address.any, .ifa_netmask = &own->netmask.any};
  if (memcmp(gid, mapped, sizeof mapped) == 0) {
    own->address.v4.sin_family = own->netmask.v4.sin_family = AF_INET;
    memcpy(&own->address.v4.sin_addr, gid + 12, 4);
    memset(&own->netmask.v4.sin_addr, 0xff, 3);
  } else {
    own->address.v6.sin6_family = own->netmask.v6.sin6_family = AF_INET6;
    memcpy(&own->address.v6.sin6_addr, gid, 16);
    memset(&own->netmask.v6.sin6_addr, 0xff, 8);
  }
}

/* One allocation, as freeifaddrs(3) frees the first entry alone. */
int nic_addresses(struct ifaddrs **addresses) {
  const struct ibverbs_double *nics = nic_double();
  struct own_address *own = calloc(nics->count, sizeof *own);
  if (!own)
    return -1;
  for (size_t i = 0; i < nics->count; i++) {
    describe(nics->devices[i].port[0].gids[1].raw, &own[i]);
    if (i > 0)
      own[i - 1].entry.ifa_next = &own[i].entry;
  }
  *addresses = &own->entry;
  return 0;
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
