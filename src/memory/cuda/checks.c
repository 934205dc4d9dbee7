/* SPDX-License-Identifier: MIT
 * Checks of the prerequisites of GPU memory, with commands that fix them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/check.h"
#include "core/error.h"
#include "memory/cuda/cuda.h"
#include "memory/pci.h"

#define INSTALL "sudo apt-get install nvidia-driver libcuda1"

const char *cuda_sys = "/sys", *cuda_dev = "/dev";

/* Vendor NVIDIA, class display or 3D controller (pci_ids.h). */
static bool find_card(char name[PCI_NAME]) {
  return pci_find(cuda_sys, "0x10de", "0x03", name);
}

static bool has_module(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/module/%s", cuda_sys, name);
  return access(path, F_OK) == 0;
}

/* A host without a GPU needs no driver. */
static bool not_needed(struct haul_check *check) {
  char card[PCI_NAME];
  if (cuda_absence() == 0 || haul_error_last()->system != ENOENT || has_module("nvidia") ||
      find_card(card))
    return false;
  check_set(check, HAUL_CHECK_OK, "not needed: this host has no NVIDIA GPU");
  return true;
}

static void check_driver(struct haul_check *check) {
  const struct cuda_driver *driver = cuda_driver_open();
  int version = 0;
  if (driver) {
    driver->driver_version(&version);
    check_set(check, HAUL_CHECK_OK, "libcuda.so.1 is there, for CUDA %d.%d", version / 1000,
              version % 1000 / 10);
    return;
  }
  struct haul_error why;
  error_save(&why);
  if (not_needed(check))
    return;
  check_set(check, HAUL_CHECK_MISSING, "%s", why.text);
  check_hint(check, has_module("nvidia")
                        ? "sudo apt-get install libcuda1 (in a container: start it with "
                          "--gpus all)"
                        : INSTALL);
}

/* The possible causes of the driver's error. */
static void explain_absence(struct haul_check *check) {
  char card[PCI_NAME], path[256];
  snprintf(path, sizeof path, "%s/nvidiactl", cuda_dev);
  int control = access(path, R_OK | W_OK) == 0 ? 0 : errno;
  check_set(check, HAUL_CHECK_MISSING, "%s", haul_error_last()->text);
  if (!has_module("nvidia") && find_card(card)) {
    check_set(check, HAUL_CHECK_MISSING,
              "the GPU %s is there, and NVIDIA's kernel module is not loaded", card);
    check_hint(check, "sudo modprobe nvidia");
  } else if (control == EACCES || control == EPERM) {
    check_set(check, HAUL_CHECK_MISSING, "this user may not open %s", path);
    check_hint(check, "sudo chmod a+rw /dev/nvidia* (for good: NVreg_DeviceFileMode=0666)");
  } else if (control == ENOENT) {
    check_set(check, HAUL_CHECK_MISSING, "%s is not here", path);
    check_hint(check, "sudo nvidia-modprobe -c 0 -u (in a container: start it with --gpus all)");
  } else if (secure_getenv("CUDA_VISIBLE_DEVICES")) {
    check_hint(check, "unset CUDA_VISIBLE_DEVICES");
  } else {
    check_hint(check, "nvidia-smi; sudo dmesg | grep -i nvrm");
  }
}

static void check_device(struct haul_check *check) {
  unsigned count = cuda_devices();
  if (count > 0) {
    const struct cuda_device *first = cuda_device(0);
    check_set(check, HAUL_CHECK_OK, "%u GPU%s; cuda:0 is %s at %s", count, count == 1 ? "" : "s",
              first->name, first->pci);
  } else if (!not_needed(check)) {
    cuda_absence();
    explain_absence(check);
  }
}

static bool needs_device(struct haul_check *check) {
  if (cuda_devices() > 0)
    return false;
  if (!not_needed(check))
    check_set(check, HAUL_CHECK_MISSING, "cannot be looked at without a GPU (cuda.device)");
  return true;
}

static void check_sharing(struct haul_check *check) {
  if (needs_device(check))
    return;
  unsigned bad = 0, count = cuda_devices();
  while (bad < count && cuda_device(bad)->shares)
    bad++;
  if (bad == count)
    check_set(check, HAUL_CHECK_OK, "GPU memory can be shared through descriptors");
  else
    check_set(
        check, HAUL_CHECK_LIMITED,
        "cuda:%u has no virtual-memory calls with descriptors: its memory is not shared, and peers "
        "of this host reach it over tcp",
        bad);
}

static void check_rdma(struct haul_check *check) {
  if (needs_device(check))
    return;
  unsigned bad = 0, count = cuda_devices();
  while (bad < count && cuda_device(bad)->dmabuf)
    bad++;
  if (bad == count) {
    check_set(check, HAUL_CHECK_OK, "GPU memory becomes dma-bufs, which NICs read and write");
  } else if (has_module("nvidia_peermem")) {
    check_set(check, HAUL_CHECK_OK,
              "cuda:%u makes no dma-buf; NICs reach its memory by address "
              "(nvidia_peermem)",
              bad);
  } else {
    check_set(check, HAUL_CHECK_LIMITED,
              "cuda:%u makes no dma-buf, and nvidia_peermem is not loaded: NICs reach its memory "
              "through host buffers",
              bad);
    check_hint(check,
               "sudo modprobe nvidia_peermem, or change to the open kernel modules: sudo apt-get "
               "install nvidia-open-kernel-dkms");
  }
}

/* Peer access between GPUs; the next two checks find the obstacles. */
static void check_peers(struct haul_check *check) {
  if (needs_device(check))
    return;
  unsigned count = cuda_devices();
  check_set(check, HAUL_CHECK_OK,
            count == 1 ? "there is one GPU" : "each GPU reaches the memory of the others");
  for (unsigned i = 0; i < count * count; i++) {
    unsigned from = i / count, to = i % count;
    if (cuda_device(to)->reached_by & UINT32_C(1) << from)
      continue;
    check_set(
        check, HAUL_CHECK_LIMITED,
        "cuda:%u does not reach the memory of cuda:%u: copies between them go through the host",
        from, to);
    check_hint(check, "nvidia-smi topo -p2p r (it says why; see cuda.iommu and cuda.acs)");
    return;
  }
}

static const char *next_pci(unsigned number) {
  return number < cuda_devices() ? cuda_device(number)->pci : NULL;
}

static void check_iommu(struct haul_check *check) {
  if (!needs_device(check))
    pci_check_iommu(check, cuda_sys, "cuda", next_pci);
}

static void check_acs(struct haul_check *check) {
  if (!needs_device(check))
    pci_check_acs(check, cuda_sys, "cuda", next_pci);
}

size_t cuda_checks(struct haul_check *checks, size_t room) {
  static const struct check_entry all[] = {
      {"driver", check_driver},   {"device", check_device},
      {"sharing", check_sharing}, {"gpudirect-rdma", check_rdma},
      {"peers", check_peers},     {"iommu", check_iommu},
      {"acs", check_acs},
  };
  return check_run("cuda", all, sizeof all / sizeof all[0], checks, room);
}
