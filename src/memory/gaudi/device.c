/* SPDX-License-Identifier: MIT
 * libhl-thunk, finding and opening devices. One process at a time can open a device; its control
 * node can be opened by all. Devices are found on the first request. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "memory/gaudi/gaudi.h"
#include "memory/pci.h"

static struct gaudi_driver table;

#define SYMBOL(slot, result, arguments) {"hlthunk_" #slot, offsetof(struct gaudi_driver, slot)},
static const struct library_symbol required[] = {GAUDI_CALLS(SYMBOL)};
static const struct library_symbol optional[] = {GAUDI_OPTIONAL_CALLS(SYMBOL)};
#undef SYMBOL

struct library gaudi_library = {
    .title = "libhl-thunk",
    .names = {"libhl-thunk.so", "/usr/lib/habanalabs/libhl-thunk.so"},
    .since = "the driver of Linux 6.3",
    .packages = "habanalabs-thunk",
    .note = " (Intel's Gaudi repository)",
    LIBRARY_REQUIRED(required, table),
    LIBRARY_OPTIONAL(optional),
};

const struct gaudi_driver *gaudi_driver_open(void) {
  return library_open(&gaudi_library);
}

#define CONTROL_NODES 64 /* /dev/accel/accel_controlD…; a server has eight */

pthread_mutex_t gaudi_lock = PTHREAD_MUTEX_INITIALIZER;
const struct gaudi_driver *gaudi_driver;
const char *gaudi_sys = "/sys";

static struct {
  _Atomic bool probed;
  unsigned count;
  struct gaudi_device devices[GAUDI_DEVICES_MAX];
  struct haul_error why_none;
} state; /* written under gaudi_lock until probed, then read without it */

/* HAUL_GAUDI_FD; fd -1: not set; device -1: given by the descriptor. */
struct given {
  int fd, device;
};
static struct given given = {-1, -1};

static const char *read_number(const char *text, int *number) {
  const char *at = text;
  *number = 0;
  while (*at >= '0' && *at <= '9' && at - text < 7)
    *number = *number * 10 + (*at++ - '0');
  return at == text ? NULL : at;
}

static int parse_setting(struct given *found) {
  const char *text = secure_getenv("HAUL_GAUDI_FD");
  *found = (struct given){-1, -1};
  if (!text)
    return 0;
  const char *at = read_number(text, &found->fd);
  if (at && *at == ':')
    at = read_number(at + 1, &found->device);
  if (at && *at == '\0')
    return 0;
  *found = (struct given){-1, -1};
  return error_set(
      HAUL_EINVAL, 0, "HAUL_GAUDI_FD",
      "set it to the number of the framework's open descriptor, or NUMBER:DEVICE, or unset it",
      "HAUL_GAUDI_FD is '%.40s'", text);
}

int gaudi_settings_read(void) {
  return parse_setting(&given);
}

int gaudi_settings_check(void) {
  struct given ignored;
  return parse_setting(&ignored);
}

/* False: the library's structure is another than ours. */
static bool is_plausible(const struct gaudi_ip_info *info) {
  if (info->device_id != GAUDI_PCI_GAUDI2)
    return info->device_id > 0 && info->device_id <= UINT16_MAX;
  return info->dram_page_size - 1 < info->dram_size && info->dram_page_size % 4096 == 0;
}

/* Fills *device from any of its descriptors; 0 or an errno. */
static int query_device(const struct gaudi_driver *driver, int fd, struct gaudi_device *device) {
  struct gaudi_ip_info info;
  memset(&info, 0, sizeof info);
  int code = driver->get_hw_ip_info(fd, &info);
  if (code)
    return code < 0 ? -code : EIO;
  device->pci_id = info.device_id;
  device->memory = info.dram_size;
  device->page = info.dram_page_size;
  device->readable = is_plausible(&info);
  atomic_init(&device->inside, info.edma_mask & 3);
  snprintf(device->card, sizeof device->card, "%.16s", (const char *)info.card_name);
  if (driver->get_pci_bus_id_from_fd(fd, device->bus, sizeof device->bus) != 0)
    device->bus[0] = '\0';
  device->bus[sizeof device->bus - 1] = '\0';
  device->numa = pci_numa(gaudi_sys, device->bus);
  return 0;
}

static bool is_usable(const struct gaudi_device *device) {
  return device->pci_id == GAUDI_PCI_GAUDI2 && device->readable;
}

/* Releases of the library have inserted fields, which moves those behind them. */
static int error_layout(void) {
  return error_set(HAUL_ENOTSUP, 0, "hlthunk_get_hw_ip_info",
                   "install the habanalabs-thunk of the kernel's driver, or a newer haul",
                   "struct hlthunk_hw_ip_info of this libhl-thunk has a layout that haul does not "
                   "know");
}

static struct gaudi_device *add_device(const struct gaudi_device *found) {
  struct gaudi_device *device = &state.devices[state.count];
  *device = *found;
  device->number = (uint16_t)state.count++;
  device->given = -1;
  atomic_init(&device->fd, -1);
  gaudi_engine_open(&device->engine);
  pthread_mutex_init(&device->sum_lock, NULL);
  return device;
}

struct scan_result {
  int denied;           /* EACCES or EPERM of a node; 0: none */
  uint32_t other_model; /* PCI id of another model; 0: none */
  bool other_layout;    /* a device's description is unreadable */
};

static void scan_nodes(const struct gaudi_driver *driver, struct scan_result *scan_result) {
  for (int i = 0; i < CONTROL_NODES && state.count < GAUDI_DEVICES_MAX; i++) {
    struct gaudi_device found = {.control = i, .numa = -1};
    errno = 0;
    int fd = driver->open_control(i, NULL);
    if (fd < 0) {
      int system = fd == -1 && errno ? errno : -fd;
      if (system == EACCES || system == EPERM)
        scan_result->denied = system;
      continue;
    }
    int system = query_device(driver, fd, &found);
    driver->close(fd);
    if (system == 0 && is_usable(&found))
      add_device(&found);
    else if (system == 0 && found.readable)
      scan_result->other_model = found.pci_id;
    else
      scan_result->other_layout |= system == 0;
  }
}

/* Finds the device of the framework's descriptor. */
static int take_given(const struct gaudi_driver *driver) {
  struct gaudi_device found = {.control = -1, .numa = -1}, *device = NULL;
  const char *object = error_object("descriptor %d", given.fd);
  int system = query_device(driver, given.fd, &found);
  if (system == 0 && !found.readable)
    return error_layout();
  if (system != 0 || !is_usable(&found))
    return error_set(HAUL_EINVAL, system, object,
                     "set it to what the framework opened, or unset it",
                     "HAUL_GAUDI_FD names no open Gaudi2");
  for (unsigned i = 0; i < state.count; i++)
    if (found.bus[0] ? strcmp(state.devices[i].bus, found.bus) == 0 : (int)i == given.device)
      device = &state.devices[i];
  unsigned number = device ? device->number : state.count;
  if (number == GAUDI_DEVICES_MAX || (given.device >= 0 && number != (unsigned)given.device))
    return error_set(HAUL_EINVAL, 0, object, "leave the device out, or name the right one",
                     "HAUL_GAUDI_FD says device %d, and the descriptor is device %u", given.device,
                     number);
  if (!device)
    device = add_device(&found);
  device->given = given.fd;
  return 0;
}

static int error_none_found(const struct scan_result *scan_result) {
  if (scan_result->denied)
    return error_set(HAUL_EACCESS, scan_result->denied, "/dev/accel",
                     "sudo setfacl -m u:$USER:rw /dev/accel/*",
                     "no permission for Gaudi's device nodes");
  if (scan_result->other_layout)
    return error_layout();
  if (scan_result->other_model)
    return error_set(HAUL_ENOTSUP, 0, "/dev/accel", "use a Gaudi2",
                     "the device here (PCI id 0x%x) is no Gaudi2",
                     (unsigned)scan_result->other_model);
  return error_set(HAUL_EPLACE, 0, "/dev/accel", "sudo modprobe habanalabs",
                   "the kernel shows no Gaudi device");
}

static int probe_devices(void) {
  const struct gaudi_driver *driver = gaudi_driver_open();
  struct scan_result scan_result = {0};
  if (!driver)
    return haul_error_last()->code;
  scan_nodes(driver, &scan_result);
  int code = given.fd >= 0 ? take_given(driver) : 0;
  if (code == 0 && state.count == 0)
    code = error_none_found(&scan_result);
  if (code)
    state.count = 0;
  else
    gaudi_driver = driver;
  return code;
}

unsigned gaudi_devices(void) {
  if (atomic_load_explicit(&state.probed, memory_order_acquire))
    return state.count;
  pthread_mutex_lock(&gaudi_lock);
  if (!atomic_load(&state.probed)) {
    state.why_none = (struct haul_error){0};
    if (probe_devices() != 0)
      error_save(&state.why_none);
    atomic_store_explicit(&state.probed, true, memory_order_release);
  }
  pthread_mutex_unlock(&gaudi_lock);
  return state.count;
}

int gaudi_why_none(void) {
  return gaudi_devices() == 0 ? error_restore(&state.why_none) : 0;
}

struct gaudi_device *gaudi_device_at(unsigned number) {
  return number < gaudi_devices() ? &state.devices[number] : NULL;
}

struct gaudi_device *gaudi_device_known(unsigned number) {
  return atomic_load_explicit(&state.probed, memory_order_acquire) && number < state.count
             ? &state.devices[number]
             : NULL;
}

struct gaudi_device *gaudi_device_given(void) {
  unsigned count = gaudi_devices();
  for (unsigned i = 0; i < count; i++)
    if (state.devices[i].given >= 0)
      return &state.devices[i];
  return NULL;
}

static int error_open(const struct gaudi_device *device, int system) {
  const char *object = error_object("gaudi:%u", device->number);
  switch (system) {
  case EBUSY:
    return error_set(
        HAUL_EBUSY, system, object,
        "end that process (sudo fuser -v /dev/accel/*), or run haul in it with HAUL_GAUDI_FD",
        "another process has the device, and one at a time can");
  case EAGAIN:
    return error_set(HAUL_EBUSY, system, object, "try again in some seconds",
                     "the device is still being released by its last user");
  case EACCES:
  case EPERM:
    return error_set(HAUL_EACCESS, system, object, "sudo setfacl -m u:$USER:rw /dev/accel/*",
                     "no permission to open the device");
  default:
    return error_system(system, object, "hlthunk_open");
  }
}

int gaudi_device_open(unsigned number, struct gaudi_device **out) {
  struct gaudi_device *device = *out = &state.devices[number];
  if (atomic_load(&device->fd) >= 0)
    return 0;
  int fd = device->given;
  if (fd < 0) {
    /* The library finds a device by its PCI address; without one there is only one. */
    errno = 0;
    fd = gaudi_driver->open(GAUDI_KIND_ANY, device->bus[0] ? device->bus : NULL);
    if (fd < 0)
      return error_open(device, fd == -1 && errno ? errno : -fd);
  }
  atomic_store(&device->fd, fd);
  return 0;
}

static void close_device(struct gaudi_device *device) {
  int fd = atomic_load(&device->fd);
  if (fd >= 0) {
    gaudi_engine_close(device);
    gaudi_pages_close(device);
    if (device->given < 0)
      gaudi_driver->close(fd);
  }
  if (device->sum_buffer.provider)
    memory_free(&device->sum_buffer);
  pthread_mutex_destroy(&device->sum_lock);
  pthread_mutex_destroy(&device->engine.lock);
  *device = (struct gaudi_device){0};
}

void gaudi_devices_close(void) {
  pthread_mutex_lock(&gaudi_lock);
  for (unsigned i = 0; i < state.count; i++)
    close_device(&state.devices[i]);
  state.count = 0;
  atomic_store(&state.probed, false);
  gaudi_driver = NULL;
  pthread_mutex_unlock(&gaudi_lock);
}
