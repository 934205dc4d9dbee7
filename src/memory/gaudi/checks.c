/* SPDX-License-Identifier: MIT
 * What Gaudi needs, and what mends it. Nothing here opens a device: closing one resets it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/check.h"
#include "core/error.h"
#include "memory/gaudi/gaudi.h"
#include "memory/pci.h"

static bool has_module_file(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/module/habanalabs%s", gaudi_sys, name);
  return access(path, F_OK) == 0;
}

/* Who has no Gaudi has installed no library either. Habana's number: pci_ids.h, 0x1da3. */
static bool not_needed(struct haul_check *check) {
  char card[PCI_NAME];
  if (gaudi_driver_open() || haul_error_last()->system != ENOENT || getenv("HAUL_GAUDI_FD") ||
      has_module_file("") || pci_find(gaudi_sys, "0x1da3", "", card))
    return false;
  check_set(check, HAUL_CHECK_OK, "not needed: this host has no Gaudi");
  return true;
}

static void check_library(struct haul_check *check) {
  check_begin(check, "gaudi", "library");
  if (gaudi_driver_open())
    check_set(check, HAUL_CHECK_OK, "libhl-thunk is there, with every call");
  else if (!not_needed(check))
    check_set_error(check);
}

static bool needs_devices(struct haul_check *check) {
  if (gaudi_devices() > 0)
    return false;
  if (not_needed(check))
    return true;
  check_set(check, HAUL_CHECK_MISSING, "cannot be looked at without a device (gaudi.device)");
  return true;
}

static void check_device(struct haul_check *check) {
  check_begin(check, "gaudi", "device");
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

/* 1: a process has it or is letting it go, 0: it is free, -1: not known. */
static int is_in_use(const struct gaudi_device *device) {
  struct gaudi_open_stats stats;
  memset(&stats, 0, sizeof stats);
  if (atomic_load(&device->fd) >= 0)
    return 0; /* by this one */
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
  check_begin(check, "gaudi", "free");
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

/* The export by mapped address came with Linux 6.3; Intel's own driver has a version of its own,
 * and the library's call, which is required, came with it. */
static void check_dmabuf(struct haul_check *check) {
  struct utsname kernel;
  unsigned major = 0, minor = 0;
  check_begin(check, "gaudi", "dma-buf");
  if (needs_devices(check))
    return;
  uname(&kernel);
  bool own = has_module_file("/version");
  if (!own && sscanf(kernel.release, "%u.%u", &major, &minor) == 2 &&
      (major < 6 || (major == 6 && minor < 3))) {
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
  check_begin(check, "gaudi", "iommu");
  if (!needs_devices(check))
    pci_check_iommu(check, gaudi_sys, "gaudi", next_pci);
}

static void check_acs(struct haul_check *check) {
  check_begin(check, "gaudi", "acs");
  if (!needs_devices(check))
    pci_check_acs(check, gaudi_sys, "gaudi", next_pci);
}

size_t gaudi_checks(struct haul_check *checks, size_t room) {
  struct haul_check all[6];
  check_library(&all[0]);
  check_device(&all[1]);
  check_free(&all[2]);
  check_dmabuf(&all[3]);
  check_iommu(&all[4]);
  check_acs(&all[5]);
  size_t count = sizeof all / sizeof all[0];
  for (size_t i = 0; i < count && i < room; i++)
    checks[i] = all[i];
  return count;
}
