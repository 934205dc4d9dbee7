/* SPDX-License-Identifier: MIT
 * Checks of the prerequisites of Gaudi, with commands that fix them. They open no device, as
 * closing one resets it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/check.h"
#include "core/sys.h"
#include "memory/gaudi/gaudi.h"
#include "memory/pci.h"

static bool has_module_file(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/module/habanalabs%s", gaudi_sys, name);
  return access(path, F_OK) == 0;
}

/* A host without Gaudi needs no library. 0x1da3 is Habana (pci_ids.h). */
static bool not_needed(struct haul_check *check) {
  char card[PCI_NAME];
  if (gaudi_driver_open() || haul_error_last()->system != ENOENT ||
      secure_getenv("HAUL_GAUDI_FD") || has_module_file("") ||
      pci_find(gaudi_sys, "0x1da3", "", card))
    return false;
  check_set(check, HAUL_CHECK_OK, "not needed: this host has no Gaudi");
  return true;
}

static void check_library(struct haul_check *check) {
  if (gaudi_driver_open())
    check_set(check, HAUL_CHECK_OK, "libhl-thunk is there, with every call");
  else if (!not_needed(check))
    check_set_error(check);
}

static bool needs_devices(struct haul_check *check) {
  if (gaudi_devices() > 0)
    return false;
  if (!not_needed(check))
    check_set(check, HAUL_CHECK_MISSING, "cannot be looked at without a device (gaudi.device)");
  return true;
}

static void check_device(struct haul_check *check) {
  if (gaudi_settings_check() != 0) {
    check_set(check, HAUL_CHECK_MISSING, "%.180s", haul_error_last()->text);
    check_hint(check, "unset HAUL_GAUDI_FD");
    return;
  }
  unsigned count = gaudi_devices();
  if (count > 0)
    check_set(check, HAUL_CHECK_OK, "%u Gaudi2 device%s", count, count == 1 ? "" : "s");
  else if (not_needed(check))
    return;
  else if (!gaudi_driver_open())
    check_set(check, HAUL_CHECK_MISSING, "cannot be looked at without libhl-thunk (gaudi.library)");
  else if (gaudi_why_none() != 0)
    check_set_error(check);
}

/* 1: a process has it or is releasing it, 0: it is free, -1: unknown. */
static int is_in_use(const struct gaudi_device *device) {
  struct gaudi_open_stats stats;
  memset(&stats, 0, sizeof stats);
  if (atomic_load(&device->fd) >= 0)
    return 0; /* open here */
  if (!gaudi_driver->get_open_stats || device->control < 0)
    return -1;
  int fd = gaudi_driver->open_control(device->control, NULL);
  if (fd < 0)
    return -1;
  int code = gaudi_driver->get_open_stats(fd, &stats);
  gaudi_driver->close(fd);
  return code ? -1 : stats.active || stats.releasing;
}

static void check_free(struct haul_check *check) {
  char busy[64] = "";
  size_t used = 0;
  unsigned count = 0, unknown = 0;
  const struct gaudi_device *device;
  if (needs_devices(check))
    return;
  for (unsigned i = 0; (device = gaudi_device_at(i)); i++) {
    int in_use = device->given >= 0 ? 0 : is_in_use(device);
    unknown += in_use < 0;
    if (in_use > 0 && used < sizeof busy)
      used +=
          (size_t)snprintf(busy + used, sizeof busy - used, "%sgaudi:%u", count++ ? ", " : "", i);
  }
  if (unknown)
    check_set(check, HAUL_CHECK_LIMITED, "whether other processes have devices cannot be asked");
  else if (count == 0)
    check_set(check, HAUL_CHECK_OK, "no other process has a device");
  if (count == 0)
    return;
  check_set(check, HAUL_CHECK_LIMITED, "in use by another process: %s; one at a time can", busy);
  check_hint(check, "sudo fuser -v /dev/accel/* (end it, or run haul in it with HAUL_GAUDI_FD)");
}

/* Export by mapped address needs Linux 6.3 or Intel's own driver, which has a module version; the
 * required library call came with the latter. */
static void check_dmabuf(struct haul_check *check) {
  struct utsname kernel;
  if (needs_devices(check))
    return;
  if (!has_module_file("/version") && kernel_is_before("6.3", &kernel)) {
    check_set(check, HAUL_CHECK_LIMITED,
              "Linux %.60s exports no mapped Gaudi memory: NICs reach it through the host",
              kernel.release);
    check_hint(check,
               "sudo apt-get install habanalabs-dkms (Intel's Gaudi repository), or Linux 6.3");
    return;
  }
  check_set(check, HAUL_CHECK_OK,
            "device memory can become a dma-buf; a NIC needs peer-to-peer for it");
}

static const char *next_pci(unsigned number) {
  const struct gaudi_device *device = gaudi_device_at(number);
  return device ? device->bus : NULL;
}

static void check_iommu(struct haul_check *check) {
  if (!needs_devices(check))
    pci_check_iommu(check, gaudi_sys, "gaudi", next_pci);
}

static void check_acs(struct haul_check *check) {
  if (!needs_devices(check))
    pci_check_acs(check, gaudi_sys, "gaudi", next_pci);
}

size_t gaudi_checks(struct haul_check *checks, size_t room) {
  static const struct check_entry all[] = {
      {"library", check_library}, {"device", check_device}, {"free", check_free},
      {"dma-buf", check_dmabuf},  {"iommu", check_iommu},   {"acs", check_acs},
  };
  return check_run("gaudi", all, sizeof all / sizeof all[0], checks, room);
}
