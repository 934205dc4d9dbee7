/* SPDX-License-Identifier: MIT */
#include <specs/common/pci_ids.h>
#include <specs/gaudi2/gaudi2_packets.h>
#include <uapi/hlthunk.h>
