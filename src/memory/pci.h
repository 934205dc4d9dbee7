/* SPDX-License-Identifier: MIT
 * What the kernel says of a PCI device: how near it is, and whether others reach its memory
 * straight. `sys` is the kernel's folder "/sys", another one in tests; `pci` "0000:01:00.0". */
#ifndef HAUL_MEMORY_PCI_H
#define HAUL_MEMORY_PCI_H

#include <stdbool.h>
#include <stddef.h>

#include "haul/haul.h"

#define PCI_NAME 16 /* bytes of a device's name, with the zero behind it */

/* -1: it cannot be told. */
int pci_numa(const char *sys, const char *pci);

/* Is there a device of this vendor's ("0x10de") whose class begins so ("0x03"; "": of any)? Its
 * name, one of them where there are several. */
bool pci_find(const char *sys, const char *vendor, const char *class, char name[PCI_NAME]);

/* Both look at accelerators' PCI devices, `next(i)` NULL behind the last, and fill a check's state,
 * text and remedy; `kind` is what places are called: "cuda". */
typedef const char *pci_next(unsigned number);
/* Does an IOMMU translate what the devices send and are sent? Straight traffic between two devices
 * then takes the way through it, where it is allowed at all. */
void pci_check_iommu(struct haul_check *check, const char *sys, const char *kind, pci_next *next);
/* Do bridges above them send traffic between two devices through the root (Access Control Services:
 * PCI Express Base Specification, 7.7.11)? */
void pci_check_acs(struct haul_check *check, const char *sys, const char *kind, pci_next *next);

#endif
