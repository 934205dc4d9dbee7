/* SPDX-License-Identifier: MIT
 * Properties of a PCI device from sysfs: its NUMA node, and whether peer-to-peer DMA is direct.
 * `sys` is "/sys", another folder in tests; `pci` is "0000:01:00.0". */
#ifndef HAUL_MEMORY_PCI_H
#define HAUL_MEMORY_PCI_H

#include <stdbool.h>
#include <stddef.h>

#include "haul/haul.h"

#define PCI_NAME 16 /* bytes of a device's name with its terminator */

/* -1: unknown. */
int pci_numa(const char *sys, const char *pci);

/* Finds a device by vendor ("0x10de") and prefix of its class ("0x03"; "": any), and its name. */
bool pci_find(const char *sys, const char *vendor, const char *class, char name[PCI_NAME]);

/* Both check the PCI devices of accelerators, next(i) until NULL, and fill state, text and remedy
 * of the check. `kind` is the name of places: "cuda". */
typedef const char *pci_next(unsigned number);
/* Does an IOMMU translate the devices' DMA? Peer-to-peer DMA then goes through it, if it is
 * permitted. */
void pci_check_iommu(struct haul_check *check, const char *sys, const char *kind, pci_next *next);
/* Do bridges above the devices redirect peer-to-peer traffic to the root complex (Access Control
 * Services: PCI Express Base Specification, 7.7.11)? */
void pci_check_acs(struct haul_check *check, const char *sys, const char *kind, pci_next *next);

#endif
