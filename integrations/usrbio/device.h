/* SPDX-License-Identifier: MIT
 * Buffers in device memory: allocated by libhaul, and given to the daemon over its socket, since a
 * ticket and a descriptor fit into no link. */
#ifndef HAUL_USRBIO_DEVICE_H
#define HAUL_USRBIO_DEVICE_H

#include <stddef.h>
#include <stdint.h>

struct device;

/* How many there are. */
int device_count(void);
/* Memory of the device with this number: new one, or `memory` of the application's. 0 or a negative
 * errno value: EINVAL (not a device's memory), ENODEV, ENOTSUP (it cannot be shared), ENOMEM,
 * ENOTCONN (no daemon), or what the daemon says. */
int device_make(const char *mount, const uint8_t id[16], void *memory, size_t size, int number,
                struct device **device);
/* What another process of this user's has made. ENOENT. */
int device_find(const char *mount, const uint8_t id[16], size_t size, struct device **device);
/* For lent memory it waits, 30 seconds at most, until the daemon and others have let go of it. */
void device_end(struct device *device);

void *device_address(const struct device *device);
size_t device_length(const struct device *device);
int device_number(const struct device *device);

#endif
