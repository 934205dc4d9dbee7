/* SPDX-License-Identifier: MIT
 * Devices, their ports and GIDs. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "inside.h"

struct ibverbs_double ibverbs_double;

void mock_abort(const char *call, const char *what) {
  fprintf(stderr, "mock of libibverbs: %s: contract violated: %s\n", call, what);
  abort();
}

/* Kept until the list is freed and the context is closed. */
struct listed {
  struct ibv_device device;
  struct double_device *config;
  _Atomic unsigned users;
};

static void put_device(struct ibv_device *device) {
  struct listed *listed = (struct listed *)device;
  DEMAND(listed->users > 0);
  if (--listed->users == 0)
    free(listed);
}

static struct ibv_device *list_device(struct double_device *config, size_t number) {
  struct listed *listed = calloc(1, sizeof *listed);
  listed->config = config;
  listed->users = 1;
  listed->device.node_type = IBV_NODE_CA;
  listed->device.transport_type = config->transport;
  snprintf(listed->device.name, sizeof listed->device.name, "%s", config->name);
  snprintf(listed->device.dev_name, sizeof listed->device.dev_name, "uverbs%zu", number);
  return &listed->device;
}

struct ibv_device **ibv_get_device_list(int *count) {
  if (count)
    *count = 0;
  if (ibverbs_double.list_error) {
    errno = ibverbs_double.list_error;
    return NULL;
  }
  struct ibv_device **list = calloc(ibverbs_double.count + 1, sizeof *list);
  for (size_t i = 0; i < ibverbs_double.count; i++)
    list[i] = list_device(&ibverbs_double.devices[i], i);
  if (count)
    *count = (int)ibverbs_double.count;
  ibverbs_double.live.lists++;
  return list;
}

void ibv_free_device_list(struct ibv_device **list) {
  DEMAND(list && ibverbs_double.live.lists > 0);
  ibverbs_double.live.lists--;
  for (size_t i = 0; list[i]; i++)
    put_device(list[i]);
  free(list);
}

const char *ibv_get_device_name(struct ibv_device *device) {
  return device->name;
}

enum ibv_fork_status ibv_is_fork_initialized(void) {
  if (ibverbs_double.fork_safe)
    return IBV_FORK_UNNEEDED;
  return ibverbs_double.forks > 0 ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

int ibv_fork_init(void) {
  ibverbs_double.forks++;
  return ibverbs_double.live.registrations > 0 ? EINVAL : 0;
}

struct double_context *double_context_of(struct ibv_context *context) {
  DEMAND(context);
  struct double_context *whole =
      (struct double_context *)((char *)context - offsetof(struct verbs_context, context));
  DEMAND(whole->mark == LIVE);
  return whole;
}

static struct double_port *port_of(struct ibv_context *context, unsigned number) {
  struct double_device *device = double_context_of(context)->device;
  return number >= 1 && number <= device->ports ? &device->port[number - 1] : NULL;
}

static int fill_port(struct ibv_context *context, unsigned number,
                     struct ibv_port_attr *attributes) {
  struct double_port *port = port_of(context, number);
  if (!port || port->error)
    return port ? port->error : EINVAL;
  *attributes = (struct ibv_port_attr){
      .state = port->state,
      .max_mtu = IBV_MTU_4096,
      .active_mtu = port->mtu,
      .gid_tbl_len = DOUBLE_GIDS,
      .max_msg_sz = 1u << 31,
      .pkey_tbl_len = DOUBLE_PKEYS,
      .lid = port->lid,
      .active_width = port->width,
      .active_speed = port->speed,
      .link_layer = port->link_layer,
  };
  return 0;
}

static int query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *attributes,
                      size_t size) {
  DEMAND(!double_context_of(context)->device->short_context);
  DEMAND(size == sizeof *attributes);
  return fill_port(context, number, attributes);
}

/* The callers' struct ends with link_layer; later fields stay unchanged. */
int ibv_query_port(struct ibv_context *context, uint8_t number,
                   struct _compat_ibv_port_attr *attributes) {
  struct ibv_port_attr whole;
  int system = fill_port(context, number, &whole);
  if (system == 0)
    memcpy(attributes, &whole, offsetof(struct ibv_port_attr, flags));
  return system;
}

static void close_files(struct ibv_context *seen) {
  close(seen->cmd_fd);
  close(seen->async_fd);
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct listed *listed = (struct listed *)device;
  DEMAND(listed->users > 0);
  if (listed->config->errors.open) {
    errno = listed->config->errors.open;
    return NULL;
  }
  struct double_context *context = calloc(1, sizeof *context);
  context->mark = LIVE;
  context->device = listed->config;
  context->verbs.sz = sizeof context->verbs;
  context->verbs.query_port = query_port;
  struct ibv_context *seen = &context->verbs.context;
  seen->device = device;
  seen->cmd_fd = eventfd(0, EFD_CLOEXEC);
  seen->async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  seen->num_comp_vectors = 1;
  seen->abi_compat = listed->config->short_context ? NULL : __VERBS_ABI_IS_EXTENDED;
  int system = emulator_begin_context(context);
  if (system) {
    close_files(seen);
    free(context);
    errno = system;
    return NULL;
  }
  listed->users++;
  ibverbs_double.live.contexts++;
  return seen;
}

int ibv_close_device(struct ibv_context *seen) {
  struct double_context *context = double_context_of(seen);
  DEMAND(context->pds == 0 && context->channels == 0 && context->cqs == 0);
  emulator_end_context(context);
  close_files(seen);
  put_device(seen->device);
  context->mark = FREED;
  ibverbs_double.live.contexts--;
  free(context);
  return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
  struct double_device *device = double_context_of(context)->device;
  if (device->errors.query)
    return device->errors.query;
  *attributes = device->limits;
  attributes->node_guid = htobe64(device->guid);
  attributes->phys_port_cnt = (uint8_t)device->ports;
  return 0;
}

static bool gid_is_valid(const struct double_gid *gid) {
  static const uint8_t nothing[16];
  return gid->zero || memcmp(gid->raw, nothing, sizeof nothing) != 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t number, int index, union ibv_gid *gid) {
  struct double_port *port = port_of(context, number);
  if (!port || port->error || index < 0 || index >= DOUBLE_GIDS) {
    errno = EINVAL;
    return -1;
  }
  memcpy(gid->raw, port->gids[index].raw, sizeof gid->raw);
  return 0;
}

uint16_t double_pkey(const struct double_port *port, int index) {
  return port->pkeys[index] ? port->pkeys[index] : index == 0 ? 0xffff : 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t number, int index, __be16 *pkey) {
  struct double_port *port = port_of(context, number);
  if (!port || port->error || index < 0 || index >= DOUBLE_PKEYS) {
    errno = EINVAL;
    return -1;
  }
  *pkey = htobe16(double_pkey(port, index));
  return 0;
}

bool double_has_gid(const struct double_port *port, unsigned index) {
  return index < DOUBLE_GIDS && gid_is_valid(&port->gids[index]);
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t number, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
  struct double_port *port = port_of(context, number);
  if (!port || index >= DOUBLE_GIDS || flags != 0 || size != sizeof *entry)
    return EINVAL;
  const struct double_gid *gid = &port->gids[index];
  if (port->error || !gid_is_valid(gid))
    return port->error ? port->error : ENODATA;
  *entry = (struct ibv_gid_entry){.gid_index = index,
                                  .port_num = number,
                                  .gid_type = gid->type,
                                  .ndev_ifindex = gid->interface};
  memcpy(entry->gid.raw, gid->raw, sizeof entry->gid.raw);
  return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status) {
  return status == IBV_WC_SUCCESS ? "success" : "injected failure";
}
