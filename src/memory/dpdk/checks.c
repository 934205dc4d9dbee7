/* SPDX-License-Identifier: MIT
 * Checks of the prerequisites of DPDK memory, with commands that fix them. They do not start EAL.
 */

#include "core/check.h"
#include "memory/dpdk/dpdk.h"
#include "memory/pages.h"
#include "memory/settings.h"

#define MIB ((uint64_t)1 << 20)

static bool needs_library(struct haul_check *check) {
  if (dpdk_eal_open())
    return false;
  check_set(check, HAUL_CHECK_MISSING, "cannot be looked at without librte_eal (dpdk.library)");
  return true;
}

static void check_library(struct haul_check *check) {
  if (dpdk_eal_open())
    check_set(check, HAUL_CHECK_OK, "librte_eal.so.23 is there, with every call");
  else
    check_set_error(check);
}

static void want_huge(struct haul_check *check, const char *which) {
  check_set(check, HAUL_CHECK_LIMITED, "%s huge pages: EAL's memory is in pages of 4 KiB", which);
  check_hint(check, "echo 1024 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
}

/* The setting requests more huge pages than were free. */
static bool check_short(struct haul_check *check) {
  uint64_t asked, got;
  if (!dpdk_eal_short(&asked, &got))
    return false;
  check_set(check, HAUL_CHECK_LIMITED,
            "%llu of the %llu MiB of huge pages that dpdk_hugepages asks for were free%s",
            (unsigned long long)(got / MIB), (unsigned long long)(asked / MIB),
            dpdk_eal_state() == DPDK_SMALL ? ": EAL's memory is in pages of 4 KiB" : "");
  check_hint(check, "echo %llu | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
             (unsigned long long)((asked - got + dpdk_huge_all()) / HUGE_PAGE));
  return true;
}

static void check_memory(struct haul_check *check) {
  if (needs_library(check))
    return;
  if (check_short(check))
    return;
  uint64_t unused = dpdk_huge_free(-1) / MIB, all = dpdk_huge_all() / MIB;
  switch (dpdk_eal_state()) {
  case DPDK_OURS:
    check_set(check, HAUL_CHECK_OK, "EAL was started with huge pages or as dpdk_eal says");
    break;
  case DPDK_FOREIGN:
    check_set(check, HAUL_CHECK_OK, "the application has started EAL, and its memory is used");
    break;
  case DPDK_FAILED:
    dpdk_eal_why();
    check_set_error(check);
    break;
  case DPDK_SMALL:
    want_huge(check, "EAL was started without");
    break;
  case DPDK_IDLE:
    if (unused >= 64)
      check_set(check, HAUL_CHECK_OK, "%llu of %llu MiB of huge pages are free",
                (unsigned long long)unused, (unsigned long long)all);
    else
      want_huge(check, all ? "this host has too few free" : "this host has reserved no");
    break;
  }
}

/* Reports the first node with fewer objects than the setting, else node 0. */
static void check_pool(struct haul_check *check) {
  struct memory_settings settings;
  struct dpdk_figures figures;
  char counts[48], wanted[48];
  if (needs_library(check))
    return;
  memory_settings_get(&settings);
  if (!dpdk_pool_figures(0, &figures)) {
    check_set(check, HAUL_CHECK_OK,
              "up to %s objects of 64 KiB, 1, 16 and 256 MiB; the first use of EAL says how many",
              dpdk_counts(settings.dpdk_pool, counts, sizeof counts));
    return;
  }
  unsigned node = 0;
  while (!dpdk_pool_is_cut(&figures) && node + 1 < dpdk_nodes())
    dpdk_pool_figures(++node, &figures);
  dpdk_counts(figures.limit, counts, sizeof counts);
  check_set(check, HAUL_CHECK_OK, "up to %s objects of 64 KiB, 1, 16 and 256 MiB", counts);
  if (!dpdk_pool_is_cut(&figures))
    return;
  check_set(check, HAUL_CHECK_LIMITED,
            "%s objects of 64 KiB, 1, 16 and 256 MiB at dpdk:%u, as EAL has no memory for %s",
            counts, node, dpdk_counts(figures.wanted, wanted, sizeof wanted));
  check_hint(check,
             "echo 12288 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages (or "
             "set dpdk_pool in haul.conf)");
}

size_t dpdk_checks(struct haul_check *checks, size_t room) {
  static const struct check_entry all[] = {
      {"library", check_library},
      {"memory", check_memory},
      {"pool", check_pool},
  };
  return check_run("dpdk", all, sizeof all / sizeof all[0], checks, room);
}
