/* SPDX-License-Identifier: MIT
 * Settings of queue pairs, for all NICs of the host or by NIC: "3", or "mlx5_0:3,mlx5_1:5,0", where
 * 0 is for the others. RDMA_NICS is a list of names instead: the NICs to use, or behind a ^ those
 * not to use, as in NCCL_IB_HCA. A build without the transport `rdma` reads them too: hosts share
 * files. */
#ifndef HAUL_FABRIC_RDMA_SETTINGS_H
#define HAUL_FABRIC_RDMA_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

enum rdma_setting {
  RDMA_TRAFFIC_CLASS,
  RDMA_SERVICE_LEVEL,
  RDMA_NICS,
  RDMA_GID,
  RDMA_PKEY,
  RDMA_MTU, /* in bytes */
  RDMA_TIMEOUT,
  RDMA_RETRY_COUNT,
  RDMA_SETTINGS
};

#define RDMA_AUTO (-1) /* no value is set */

struct rdma_settings {
  char texts[RDMA_SETTINGS][256]; /* "": the default for all NICs */
};

/* Stores a text, "auto" as the default. False, and nothing is stored, for an invalid one. */
bool rdma_setting_assign(struct rdma_settings *settings, enum rdma_setting which, const char *text,
                         uint64_t min, uint64_t max);
/* The NIC's value, or RDMA_AUTO. RDMA_NICS: whether to use it. `settings` may be NULL. */
int rdma_setting_of(const struct rdma_settings *settings, enum rdma_setting which, const char *nic);
/* Stores the first NIC of the setting that is_nic() does not know in `name`; false: it knows all.
 */
bool rdma_setting_finds_stranger(const struct rdma_settings *settings, enum rdma_setting which,
                                 bool (*is_nic)(const void *user, const char *name),
                                 const void *user, char name[64]);
/* Whether they must be checked against the host's NICs: they name one, or set a GID, partition key
 * or MTU. */
bool rdma_settings_need_nic(const struct rdma_settings *settings);
/* "rdma_gid" */
const char *rdma_setting_name(enum rdma_setting which);

#endif
