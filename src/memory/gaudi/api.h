/* SPDX-License-Identifier: MIT
 * The part of libhl-thunk.so, the user library of Intel Gaudi's kernel driver (habanalabs), that
 * haul uses. Its header needs a kernel header that no package ships, so the declarations are
 * repeated here. Those without a source are from hl-thunk-open's include/uapi/hlthunk.h.
 *
 * Its calls return 0 or a negative errno, with errno set as well; those that give a handle or an
 * address return 0 and set errno; hlthunk_open returns -1 or a negative errno. */
#ifndef HAUL_MEMORY_GAUDI_API_H
#define HAUL_MEMORY_GAUDI_API_H

#include <stdbool.h>
#include <stdint.h>

#define GAUDI_PCI_GAUDI2 0x1020u /* PCI device id: include/specs/common/pci_ids.h */

/* struct hlthunk_hw_ip_info. Newer libraries fill more fields, so `rest` leaves room. The array
 * lengths are the kernel's (HL_INFO_VERSION_MAX_LEN, HL_INFO_CARD_NAME_MAX_LEN). */
struct gaudi_ip_info {
  uint64_t sram_base, dram_base, dram_size;
  uint32_t sram_size, events, device_id, cpld_version;
  uint32_t pll[4];
  uint16_t tpc_mask;
  uint8_t dram_enabled;
  uint8_t cpucp_version[128];
  uint32_t module_id;
  uint8_t card_name[16];
  uint32_t decoder_mask;
  uint8_t mme_mode;
  uint64_t tpc_mask_wide;
  uint64_t dram_page_size; /* of one device allocation: hundreds of MiB on Gaudi2 */
  uint16_t first_interrupt;
  uint32_t edma_mask; /* the DMA engines of HBM that are enabled */
  uint8_t rest[1024];
};

/* struct hlthunk_open_stats_info. */
struct gaudi_open_stats {
  uint64_t opened, last_period_ms;
  uint8_t active, releasing;
  uint8_t rest[64];
};

/* struct hlthunk_cs_in and hlthunk_cs_out. */
struct gaudi_cs_in {
  void *restore, *execute;
  uint32_t restore_count, execute_count;
  uint32_t flags;
};
struct gaudi_cs_out {
  uint64_t seq;
  uint32_t status;
  uint16_t sob_count;
};

/* struct hl_cs_chunk of the kernel's habanalabs header: commands and their queue. */
struct gaudi_chunk {
  uint64_t commands; /* device address of the packets, with GAUDI_CHUNK_USER */
  uint32_t queue;
  uint32_t bytes; /* of packets */
  uint32_t flags;
  uint32_t engine;
  uint32_t pad[10];
};

#define GAUDI_CHUNK_USER 1u /* HL_CS_CHUNK_FLAGS_USER_ALLOC_CB */
/* enum gaudi2_queue_id: the PCI DMA engines, to the device and from it, and the first two DMA
 * engines of HBM (DCORE0_EDMA_0_0, _1_0). */
#define GAUDI_QUEUE_DOWN      0u
#define GAUDI_QUEUE_UP        4u
#define GAUDI_QUEUE_INSIDE(n) (8u + 4 * (n))

/* struct packet_lin_dma, little-endian: include/specs/gaudi2/gaudi2_packets.h. */
struct gaudi_lin_dma {
  uint32_t size, control;
  uint64_t source, destination;
};

/* Opcode 9 in bits 24 to 28; the message barrier orders completion after the bytes. */
#define GAUDI_LIN_DMA (9u << 24 | 1u << 31)

/* HL_WAIT_CS_STATUS_…: after a timeout and an abort the driver resets the device. */
enum gaudi_cs_status { GAUDI_CS_DONE = 0, GAUDI_CS_BUSY, GAUDI_CS_TIMEOUT, GAUDI_CS_ABORTED };

#define GAUDI_KIND_ANY 4 /* enum hlthunk_device_name: HLTHUNK_DEVICE_DONT_CARE */

/* X(slot, result, arguments): hlthunk_SLOT. The newest is the export, of Linux 6.3. */
#define GAUDI_CALLS(X)                                                                             \
  X(open, int, (int kind, const char *bus))                                                        \
  X(open_control, int, (int index, const char *bus))                                               \
  X(close, int, (int fd))                                                                          \
  X(get_pci_bus_id_from_fd, int, (int fd, char *bus, int size))                                    \
  X(get_hw_ip_info, int, (int fd, struct gaudi_ip_info *info))                                     \
  X(device_memory_alloc, uint64_t,                                                                 \
    (int fd, uint64_t size, uint64_t page, bool contiguous, bool shared))                          \
  X(device_memory_free, int, (int fd, uint64_t handle))                                            \
  X(device_memory_map, uint64_t, (int fd, uint64_t handle, uint64_t hint))                         \
  X(host_memory_map, uint64_t, (int fd, void *address, uint64_t hint, uint64_t size))              \
  X(memory_unmap, int, (int fd, uint64_t address))                                                 \
  X(device_mapped_memory_export_dmabuf_fd, int,                                                    \
    (int fd, uint64_t address, uint64_t size, uint64_t offset, uint32_t flags))                    \
  X(command_submission, int, (int fd, struct gaudi_cs_in *in, struct gaudi_cs_out *out))           \
  X(wait_for_cs, int, (int fd, uint64_t seq, uint64_t timeout_us, uint32_t *status))

/* NULL where the library is older. */
#define GAUDI_OPTIONAL_CALLS(X) X(get_open_stats, int, (int fd, struct gaudi_open_stats *stats))

#endif
