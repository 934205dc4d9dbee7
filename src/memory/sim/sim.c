/* SPDX-License-Identifier: MIT
 * An emulated accelerator: device memory that the CPU cannot access, and a DMA engine. Texts that
 * show it say that it is software. */
#include "memory/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/check.h"
#include "core/error.h"
#include "core/sum.h"

struct sim_settings sim_settings;

/* A decimal number without sign, at most `most`; `missing` if the variable is not set. */
static int read_number(const char *variable, uint64_t most, uint64_t missing, uint64_t *value) {
  const char *text = secure_getenv(variable);
  *value = missing;
  if (!text)
    return 0;
  uint64_t number = 0;
  bool valid = *text != '\0';
  for (const char *at = text; *at && valid; at++)
    valid = *at >= '0' && *at <= '9' && !__builtin_mul_overflow(number, 10, &number) &&
            !__builtin_add_overflow(number, (uint64_t)(*at - '0'), &number);
  if (!valid || number > most)
    return error_set(HAUL_EINVAL, 0, variable,
                     error_hint("set it to a whole number from 0 to %llu, or unset it",
                                (unsigned long long)most),
                     "the emulated accelerator is off: %s is '%.40s'", variable, text);
  *value = number;
  return 0;
}

static int read_settings(struct sim_settings *settings) {
  uint64_t devices;
  int status = read_number("HAUL_SIM_DEVICES", SIM_DEVICES_MAX, 1, &devices);
  if (status == 0)
    status = read_number("HAUL_SIM_BANDWIDTH", UINT64_C(1) << 50, 0, &settings->bandwidth);
  if (status == 0)
    status = read_number("HAUL_SIM_LATENCY_NS", UINT64_C(10000000000), 0, &settings->latency_ns);
  if (status == 0)
    status =
        read_number("HAUL_SIM_MEMORY", UINT64_C(1) << 46, UINT64_C(16) << 30, &settings->memory);
  settings->devices = status == 0 ? (unsigned)devices : 0;
  return status;
}

static int sim_start(void) {
  int status = read_settings(&sim_settings);
  if (status != 0)
    return status;
  engines_open(sim_settings.devices);
  return 0;
}

static unsigned sim_devices(void) {
  return sim_settings.devices;
}

static void sim_describe(unsigned device, struct haul_device *info) {
  (void)device;
  info->emulated = 1;
  info->numa = -1;
  info->memory = sim_settings.memory;
  snprintf(info->name, sizeof info->name, "emulated accelerator");
  snprintf(info->exports, sizeof info->exports, "memfd%s",
           shm_has_dmabuf() ? ", dma-buf to NICs" : "");
}

static void check_devices(struct haul_check *check) {
  struct sim_settings settings;
  if (read_settings(&settings) != 0) {
    check_set(check, HAUL_CHECK_MISSING, "%s", haul_error_last()->text);
    check_hint(check, "unset %.60s", haul_error_last()->object);
  } else if (settings.devices == 0) {
    check_set(check, HAUL_CHECK_LIMITED, "emulated accelerators are switched off");
    check_hint(check, "unset HAUL_SIM_DEVICES");
  } else {
    check_set(check, HAUL_CHECK_OK,
              "%u emulated accelerator%s (software; HAUL_SIM_DEVICES sets how many)",
              settings.devices, settings.devices == 1 ? "" : "s");
  }
}

static void check_dmabuf(struct haul_check *check) {
  if (shm_dmabuf_check() == 0) {
    check_set(check, HAUL_CHECK_OK, "emulated memory can become a real dma-buf (udmabuf)");
    return;
  }
  check_set(check, HAUL_CHECK_LIMITED, "%.150s: emulated memory is a memfd",
            haul_error_last()->text);
  check_hint(check, "%.190s", haul_error_last()->hint);
}

static size_t sim_checks(struct haul_check *checks, size_t room) {
  static const struct check_entry all[] = {{"devices", check_devices}, {"dma-buf", check_dmabuf}};
  return check_run("sim", all, sizeof all / sizeof all[0], checks, room);
}

static int sim_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum) {
  *sum = XXH3_64bits(sim_view(memory, offset), length);
  return 0;
}

static _Atomic uint64_t fences[SIM_DEVICES_MAX];

static int sim_fence(struct memory *memory, enum fence direction) {
  if (direction == FENCE_AFTER_WRITE)
    atomic_fetch_add(&fences[memory->place.device % SIM_DEVICES_MAX], 1);
  return 0;
}

uint64_t sim_fences(unsigned device) {
  return atomic_load(&fences[device % SIM_DEVICES_MAX]);
}

const struct provider provider_sim = {
    .name = "sim",
    .kind = HAUL_SIM,
    .proven = true,
    .emulated = true,
    .numbered = true,
    .copy_bytes_per_ns = 12,
    .copy_latency_ns = 50000,
    .start = sim_start,
    .stop = engines_close,
    .devices = sim_devices,
    .describe = sim_describe,
    .checks = sim_checks,
    .alloc = sim_alloc,
    .free = sim_free,
    .owns = sim_owns,
    .wrap = sim_wrap,
    .export = sim_export,
    .import = sim_import,
    .dmabuf = sim_dmabuf,
    .reaches = sim_reaches,
    .copy_start = sim_copy_start,
    .copy_poll = sim_copy_poll,
    .copy_cancel = sim_copy_cancel,
    .wakes = true,
    .fence = sim_fence,
    .checksum = sim_checksum,
};
