/* SPDX-License-Identifier: MIT */
#include "memory/pci.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/sys.h"

static const char slow_peers[] = "NICs and other devices reach its memory slowly, or not at all";

/* As file_read, of a device's file. */
static ssize_t read_file(const char *sys, const char *pci, const char *name, char *text,
                         size_t size) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/bus/pci/devices/%.15s/%s", sys, pci, name);
  return file_read(path, text, size);
}

static bool read_word(const char *sys, const char *pci, const char *name, char *text, size_t size) {
  read_file(sys, pci, name, text, size);
  text[strcspn(text, "\n")] = '\0';
  return text[0] != '\0';
}

int pci_numa(const char *sys, const char *pci) {
  char text[16];
  if (!read_word(sys, pci, "numa_node", text, sizeof text))
    return -1;
  long node = strtol(text, NULL, 10);
  return node >= 0 && node < 1 << 16 ? (int)node : -1;
}

static bool is_of(const char *sys, const char *pci, const char *vendor, const char *class) {
  char of[16], kind[16];
  return read_word(sys, pci, "vendor", of, sizeof of) && strcmp(of, vendor) == 0 &&
         read_word(sys, pci, "class", kind, sizeof kind) &&
         strncmp(kind, class, strlen(class)) == 0;
}

bool pci_find(const char *sys, const char *vendor, const char *class, char name[PCI_NAME]) {
  char path[PATH_MAX];
  bool is_there = false;
  snprintf(path, sizeof path, "%s/bus/pci/devices", sys);
  DIR *folder = opendir(path);
  struct dirent *entry;
  while (folder && !is_there && (entry = readdir(folder))) {
    is_there = is_of(sys, entry->d_name, vendor, class);
    snprintf(name, PCI_NAME, "%.15s", entry->d_name);
  }
  if (folder)
    closedir(folder);
  return is_there;
}

/* The kernel's domain types: "identity" does not translate; "DMA" and "DMA-FQ" do. */
void pci_check_iommu(struct haul_check *check, const char *sys, const char *kind, pci_next *next) {
  const char *pci;
  char type[32];
  check_set(check, HAUL_CHECK_OK, "no IOMMU stands between the devices");
  for (unsigned i = 0; (pci = next(i)); i++) {
    if (!read_word(sys, pci, "iommu_group/type", type, sizeof type))
      continue;
    if (strncmp(type, "DMA", 3) == 0) {
      check_set(check, HAUL_CHECK_LIMITED, "the IOMMU translates the addresses of %s:%u (%s): %s",
                kind, i, type, slow_peers);
      check_hint(check,
                 "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo "
                 "update-grub && sudo reboot");
      return;
    }
    check_set(check, HAUL_CHECK_OK, "the IOMMU passes the devices' addresses on (%s)", type);
  }
}

#define CONFIG_BYTES   4096u
#define CONFIG_SHORT   256u /* readable without root */
#define EXTENDED_ACS   0x000du
#define ACS_CONTROL    6u
#define ACS_REDIRECTS  0x1cu /* request redirect, completion redirect, upstream forwarding */
#define EXTENDED_FIRST 0x100u

static uint32_t get32(const uint8_t *bytes) {
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
         (uint32_t)bytes[3] << 24;
}

/* 1: the bridge redirects peer-to-peer traffic upstream; 0: not; -1: unreadable. The capability
 * list is untrusted: its length is bounded. */
static int redirects(const char *sys, const char *bridge) {
  uint8_t config[CONFIG_BYTES + 1];
  ssize_t got = read_file(sys, bridge, "config", (char *)config, sizeof config);
  if (got <= (ssize_t)CONFIG_SHORT)
    return -1;
  uint32_t at = EXTENDED_FIRST;
  for (unsigned i = 0; i < CONFIG_BYTES / 8 && at >= EXTENDED_FIRST && at + 8 <= (size_t)got; i++) {
    uint32_t header = get32(config + at);
    if ((header & 0xffff) == EXTENDED_ACS)
      return (config[at + ACS_CONTROL] & ACS_REDIRECTS) != 0;
    at = header >> 20 & ~3u;
  }
  return 0;
}

/* "0000:00:01.0" */
static bool is_name(const char *text, size_t length) {
  return length == 12 && text[4] == ':' && text[7] == ':' && text[10] == '.';
}

/* A device's sysfs folder lies in those of the bridges above it. 1: *bridge redirects; 0: none
 * does; -1: one is unreadable. */
static int find_redirect(const char *sys, const char *pci, char bridge[PCI_NAME]) {
  char path[PATH_MAX], real[PATH_MAX];
  int worst = 0;
  snprintf(path, sizeof path, "%s/bus/pci/devices/%.15s", sys, pci);
  if (!realpath(path, real))
    return 0;
  for (char *part = real; (part = strchr(part, '/'));) {
    size_t length = strcspn(++part, "/");
    if (!is_name(part, length) || part[length] == '\0')
      continue; /* the last part is the device itself */
    snprintf(bridge, PCI_NAME, "%.*s", (int)length, part);
    int one = redirects(sys, bridge);
    if (one == 1)
      return 1;
    worst = one < 0 ? one : worst;
  }
  return worst;
}

void pci_check_acs(struct haul_check *check, const char *sys, const char *kind, pci_next *next) {
  const char *pci;
  char bridge[PCI_NAME];
  check_set(check, HAUL_CHECK_OK, "no bridge sends traffic between two devices through the root");
  for (unsigned i = 0; (pci = next(i)); i++) {
    int redirect = find_redirect(sys, pci, bridge);
    if (redirect == 1) {
      check_set(
          check, HAUL_CHECK_LIMITED,
          "the bridge %s above %s:%u sends traffic between two devices through the root (ACS): %s",
          bridge, kind, i, slow_peers);
      check_hint(check, "sudo setpci -s %s ECAP_ACS+6.w=0:1c", bridge);
      return;
    }
    if (redirect < 0) {
      check_set(check, HAUL_CHECK_LIMITED, "the bridges above %s:%u tell root alone about ACS",
                kind, i);
      check_hint(check, "sudo haul doctor %s", kind);
    }
  }
}
