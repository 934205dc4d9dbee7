/* SPDX-License-Identifier: MIT
 * The calls of libibverbs, but those on queues: devices, contexts, protection domains and
 * registrations. An object that is in use is not released (EBUSY), as by the kernel. */
#include "verbs.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

static struct list living = LIST_INIT(living), released = LIST_INIT(released);

void object_init(struct object *object, enum object_kind kind) {
  object->kind = kind;
  object->owner = process_current();
  list_append(&living, &object->link);
}

void object_release(struct object *object) {
  object->released = true;
  list_remove(&object->link);
  list_append(&released, &object->link);
}

void object_check(const struct object *object, enum object_kind kind, const char *call) {
  static const char *const names[] = {"context",   "protection domain", "registration",
                                      "channel",   "completion queue",  "shared receive queue",
                                      "queue pair"};
  if (object->kind != kind || object->owner != process_current())
    sim_fail("verbs", "%s: no %s of this process", call, names[kind]);
  if (object->released)
    sim_fail("verbs", "%s: the %s was released before", call, names[kind]);
}

static void *whole_of(struct object *object) {
  static const size_t at[] = {
      [CONTEXT] = offsetof(struct context, object),
      [DOMAIN] = offsetof(struct domain, object),
      [REGISTRATION] = offsetof(struct registration_model, object),
      [CHANNEL] = offsetof(struct channel, object),
      [COMPLETIONS] = offsetof(struct completions, object),
      [SHARED] = offsetof(struct shared_queue, object),
      [QUEUE_PAIR] = offsetof(struct queue_pair, object),
  };
  return (char *)object - at[object->kind];
}

size_t verbs_objects(const struct process *process) {
  size_t count = 0;
  list_each(item, &living) count += list_entry(item, struct object, link)->owner == process;
  return count;
}

struct listed {
  struct ibv_device device;
  unsigned number, users; /* users: the list, and contexts */
};

static void put_device(struct ibv_device *device) {
  struct listed *listed = (struct listed *)device;
  if (--listed->users == 0)
    world_free(listed);
}

static struct listed *list_device(unsigned number) {
  struct listed *listed = world_calloc(1, sizeof *listed);
  if (!listed)
    return NULL;
  listed->users = 1;
  listed->number = number;
  listed->device.node_type = IBV_NODE_CA;
  listed->device.transport_type = IBV_TRANSPORT_IB;
  snprintf(listed->device.name, sizeof listed->device.name, "card%u", number);
  snprintf(listed->device.dev_name, sizeof listed->device.dev_name, "uverbs%u", number);
  return listed;
}

static void free_device_list(struct ibv_device **list) {
  for (size_t i = 0; list[i]; i++)
    put_device(list[i]);
  world_free(list);
}

static struct ibv_device **get_device_list(int *count) {
  *count = 0;
  sim_point(200 * US);
  unsigned all = cards_of(process_current()->host);
  struct ibv_device **list = world_calloc(all + 1, sizeof *list);
  for (unsigned i = 0; list && i < all; i++) {
    struct listed *listed = list_device(i);
    if (!listed) {
      free_device_list(list);
      return refused(ENOMEM);
    }
    list[i] = &listed->device;
    ++*count;
  }
  return list;
}

static const char *get_device_name(struct ibv_device *device) {
  return device->name;
}

static int fork_init(void) {
  sim_fail("simulator", "ibv_fork_init is called, although it is not needed");
}

static enum ibv_fork_status is_fork_initialized(void) {
  return IBV_FORK_UNNEEDED;
}

struct context *context_behind(struct ibv_context *seen) {
  return (struct context *)(void *)((char *)seen - offsetof(struct context, verbs.context));
}

struct context *context_of(struct ibv_context *seen) {
  struct context *context = context_behind(seen);
  object_check(&context->object, CONTEXT, "a call on a context");
  return context;
}

/* 100 Gb/s in name; the wire's speed is the network's. */
static int query_port(struct ibv_context *seen, uint8_t number, struct ibv_port_attr *attributes,
                      size_t size) {
  struct context *context = context_of(seen);
  sim_point(5 * US);
  if (number != 1 || context->removal != PRESENT)
    return number == 1 ? EIO : EINVAL;
  memset(attributes, 0, size);
  attributes->state = card_is_down(context->card) ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attributes->max_mtu = IBV_MTU_4096;
  attributes->active_mtu = IBV_MTU_1024;
  attributes->gid_tbl_len = GID_ENTRIES;
  attributes->pkey_tbl_len = 1;
  attributes->max_msg_sz = 1u << 31;
  attributes->active_width = 2;
  attributes->active_speed = 32;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

static int query_port_short(struct ibv_context *seen, uint8_t number,
                            struct _compat_ibv_port_attr *attributes) {
  (void)seen, (void)number, (void)attributes;
  sim_fail("verbs", "the symbol ibv_query_port is called, which fills the first struct only");
}

static bool open_descriptors(struct context *context, struct ibv_context *seen) {
  struct event_queue *command = event_queue_open(&seen->cmd_fd);
  context->queue = command ? event_queue_open(&seen->async_fd) : NULL;
  if (command && !context->queue) {
    int error = errno;
    world_close(seen->cmd_fd);
    errno = error;
  }
  return context->queue;
}

static struct ibv_context *open_device(struct ibv_device *device) {
  struct listed *listed = (struct listed *)device;
  sim_point(300 * US);
  if (refuses_memory() || card_fault(8))
    return refused(ENOMEM);
  struct context *context = calloc(1, sizeof *context);
  struct ibv_context *seen = &context->verbs.context;
  if (!open_descriptors(context, seen)) {
    free(context);
    return NULL;
  }
  object_init(&context->object, CONTEXT);
  context->card = card_of(process_current()->host, listed->number);
  list_append(&context->card->contexts, &context->link);
  context->verbs.sz = sizeof context->verbs;
  context->verbs.query_port = query_port;
  seen->device = device;
  seen->num_comp_vectors = 1;
  seen->abi_compat = __VERBS_ABI_IS_EXTENDED;
  seen->ops.post_send = post_send;
  seen->ops.post_recv = post_receive;
  seen->ops.post_srq_recv = post_shared;
  seen->ops.poll_cq = completions_poll;
  seen->ops.req_notify_cq = completions_arm;
  listed->users++;
  return seen;
}

static int close_device(struct ibv_context *seen) {
  struct context *context = context_of(seen);
  if (context->users > 0)
    sim_fail("verbs", "ibv_close_device: %u objects of the context are left", context->users);
  world_close(seen->cmd_fd);
  world_close(seen->async_fd);
  put_device(seen->device);
  list_remove(&context->link);
  object_release(&context->object);
  return 0;
}

static int query_device(struct ibv_context *seen, struct ibv_device_attr *attributes) {
  const struct context *context = context_of(seen);
  sim_point(10 * US);
  if (context->removal != PRESENT)
    return EIO;
  *attributes = (struct ibv_device_attr){
      .max_mr_size = UINT64_MAX,
      .max_mr = 1 << 20,
      .max_qp_wr = QUEUE_DEPTH,
      .max_sge = 1,
      .max_sge_rd = 1,
      .max_cqe = 1 << 16,
      .max_srq = cards.shared ? 1 << 10 : 0,
      .max_srq_wr = SHARED_DEPTH,
      .max_srq_sge = 1,
      .max_qp_rd_atom = READS_SERVED,
      .max_qp_init_rd_atom = READS_SERVED,
      .phys_port_cnt = 1,
      .atomic_cap = !cards.atomics ? IBV_ATOMIC_NONE
                    : cards.global ? IBV_ATOMIC_GLOB
                                   : IBV_ATOMIC_HCA,
  };
  return 0;
}

static int query_gid(struct ibv_context *seen, uint8_t number, int index, union ibv_gid *gid) {
  const struct context *context = context_of(seen);
  if (number != 1 || index != (int)GID_INDEX)
    return -1;
  card_gid(context->card, gid->raw);
  return 0;
}

static int query_gid_ex(struct ibv_context *seen, uint32_t number, uint32_t index,
                        struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
  const struct context *context = context_of(seen);
  sim_point(3 * US);
  if (number != 1 || index >= GID_ENTRIES || flags || size != sizeof *entry)
    return EINVAL;
  if (index > GID_INDEX || (index == GID_INDEX && !cards.gid))
    return ENODATA;
  *entry = (struct ibv_gid_entry){.gid_index = index,
                                  .port_num = 1,
                                  .gid_type = index == GID_INDEX ? IBV_GID_TYPE_ROCE_V2
                                                                 : IBV_GID_TYPE_ROCE_V1};
  card_gid(context->card, entry->gid.raw);
  return 0;
}

static int query_pkey(struct ibv_context *seen, uint8_t number, int index, __be16 *pkey) {
  const struct context *context = context_of(seen);
  if (number != 1 || index != 0 || context->removal != PRESENT)
    return -1;
  *pkey = htobe16(0xffff);
  return 0;
}

static struct domain *domain_of(struct ibv_pd *seen, const char *call) {
  struct domain *domain = (struct domain *)seen;
  object_check(&domain->object, DOMAIN, call);
  return domain;
}

static struct ibv_pd *alloc_pd(struct ibv_context *seen) {
  struct context *context = context_of(seen);
  sim_point(10 * US);
  if (context->removal != PRESENT)
    return refused(EIO);
  if (refuses_memory() || card_fault(8))
    return refused(ENOMEM);
  struct domain *domain = calloc(1, sizeof *domain);
  object_init(&domain->object, DOMAIN);
  domain->seen.context = seen;
  context->users++;
  return &domain->seen;
}

static int dealloc_pd(struct ibv_pd *seen) {
  struct domain *domain = domain_of(seen, "ibv_dealloc_pd");
  if (domain->users > 0)
    return EBUSY;
  context_of(seen->context)->users--;
  object_release(&domain->object);
  return 0;
}

#define KNOWN                                                                                      \
  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                     \
   IBV_ACCESS_REMOTE_ATOMIC)
#define NEED_LOCAL (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

/* By the upper bits of the key. */
static struct registration_model **registrations;
static uint32_t registration_count, registration_room;

struct registration_model *registration_of(uint32_t key) {
  struct registration_model *found = key >> 8 < registration_count ? registrations[key >> 8] : NULL;
  return found && found->seen.rkey == key ? found : NULL;
}

static void number_registration(struct registration_model *made) {
  if (registration_count == registration_room) {
    registration_room = registration_room ? registration_room * 2 : 256;
    registrations = realloc(registrations, registration_room * sizeof(void *));
  }
  made->seen.lkey = made->seen.rkey = registration_count << 8 | (uint32_t)sim_below(256);
  registrations[registration_count++] = made;
}

/* Pinning takes time, and memory that is not there cannot be pinned. */
static int pin(const void *address, size_t length) {
  struct list nothing;
  list_init(&nothing);
  sim_point(5 * US + (int64_t)length / 4096 * 200);
  if (sim_chance(200000))
    fiber_wait_one(&nothing, sim_now + sim_between(0, cards.registers));
  if (refuses_memory() || card_fault(1))
    return ENOMEM;
  return process_has_pages(process_current(), address, length) ? 0 : EFAULT;
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *seen, void *address, size_t length, uint64_t iova,
                                   unsigned access) {
  struct domain *domain = domain_of(seen, "ibv_reg_mr_iova2");
  uintptr_t end;
  access &= ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE;
  if (length == 0 || (iova ^ (uintptr_t)address) % 4096 != 0 || (access & ~(unsigned)KNOWN) ||
      ((access & NEED_LOCAL) && !(access & IBV_ACCESS_LOCAL_WRITE)) ||
      __builtin_add_overflow((uintptr_t)address, length, &end))
    return refused(EINVAL);
  if (context_of(seen->context)->removal != PRESENT)
    return refused(EIO);
  int error = pin(address, length);
  if (error)
    return refused(error);
  struct registration_model *made = calloc(1, sizeof *made);
  object_init(&made->object, REGISTRATION);
  made->seen.context = seen->context;
  made->seen.pd = seen;
  made->seen.addr = address;
  made->seen.length = length;
  made->iova = iova;
  made->access = access;
  number_registration(made);
  domain->users++;
  sim_trace("nic: registration %x of %zu bytes at %p, access %x", made->seen.rkey, length, address,
            access);
  return &made->seen;
}

static struct ibv_mr *reg_mr(struct ibv_pd *seen, void *address, size_t length, int access) {
  return reg_mr_iova2(seen, address, length, (uintptr_t)address, (unsigned)access);
}

/* This card takes no dma-buf. */
static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                    uint64_t iova, int fd, int access) {
  (void)offset, (void)length, (void)iova, (void)fd, (void)access;
  domain_of(pd, "ibv_reg_dmabuf_mr");
  return refused(EOPNOTSUPP);
}

/* Ends accesses of peers; those of this process's own requests have to be over. */
static int dereg_mr(struct ibv_mr *seen) {
  struct registration_model *model = (struct registration_model *)seen;
  object_check(&model->object, REGISTRATION, "ibv_dereg_mr");
  sim_point(5 * US);
  if (model->requests > 0)
    sim_fail("dma", "%u work requests need the memory whose registration %x ends", model->requests,
             seen->rkey);
  list_each(item, &living) {
    struct object *object = list_entry(item, struct object, link);
    if (object->kind == QUEUE_PAIR && object->owner == model->object.owner)
      wire_settle(whole_of(object), model);
  }
  sim_trace("nic: registration %x ends", seen->rkey);
  registrations[seen->rkey >> 8] = NULL;
  domain_of(seen->pd, "ibv_dereg_mr")->users--;
  free(model->gone);
  model->gone = NULL;
  object_release(&model->object);
  return 0;
}

void verbs_unmapped(const struct process *process, const char *from, const char *to) {
  list_each(item, &living) {
    struct object *object = list_entry(item, struct object, link);
    if (object->kind != REGISTRATION || object->owner != process)
      continue;
    struct registration_model *model = whole_of(object);
    const char *begin = model->seen.addr;
    if (begin >= to || from >= begin + model->seen.length)
      continue;
    model->gone = realloc(model->gone, (model->gone_count + 1) * sizeof *model->gone);
    model->gone[model->gone_count++] = (struct range){from, to};
  }
}

/* A NIC would go on with pages that are no longer the process's. */
static void check_mapped(const struct registration_model *model, const char *at, uint64_t length) {
  for (size_t i = 0; i < model->gone_count; i++)
    if (model->gone[i].from < at + length && at < model->gone[i].to)
      sim_fail("dma", "a NIC accesses %p of process %d by registration %x, unmapped meanwhile",
               (const void *)at, (int)model->object.owner->pid, model->seen.rkey);
  if (!process_has(model->object.owner, at, length))
    sim_fail("dma", "a NIC accesses %p of process %d, which is not its memory", (const void *)at,
             (int)model->object.owner->pid);
}

uint8_t *dma_at(uint32_t key, const struct ibv_pd *pd, uint64_t address, uint64_t length,
                unsigned rights) {
  const struct registration_model *model = registration_of(key);
  if (!model || model->seen.pd != pd || (model->access & rights) != rights ||
      address < model->iova || length > model->seen.length ||
      address - model->iova > model->seen.length - length)
    return NULL;
  char *at = (char *)model->seen.addr + (address - model->iova);
  check_mapped(model, at, length);
  return (uint8_t *)at;
}

static void free_object(struct object *object) {
  void *whole = whole_of(object);
  list_remove(&object->link);
  if (object->kind == CONTEXT && !object->released)
    list_remove(&((struct context *)whole)->link);
  if (object->kind == REGISTRATION && !object->released) {
    struct registration_model *model = whole;
    registrations[model->seen.rkey >> 8] = NULL;
    free(model->gone);
  }
  if (object->kind == COMPLETIONS) {
    struct completions *queue = whole;
    event_cancel(&queue->arrival);
    free(queue->entries);
  }
  if (object->kind == SHARED)
    free(((struct shared_queue *)whole)->receives);
  if (object->kind == QUEUE_PAIR)
    queue_pair_free(whole);
  free(whole);
}

static void free_all(const struct list *objects, const struct process *process) {
  list_each_safe(item, objects) {
    struct object *object = list_entry(item, struct object, link);
    if (object->owner == process)
      free_object(object);
  }
}

/* Before its descriptors go. */
void verbs_process_died(struct process *process) {
  free_all(&living, process);
  free_all(&released, process);
}

static const char *wc_status_str(enum ibv_wc_status status) {
  return status == IBV_WC_SUCCESS ? "success" : "a failure of the simulated NIC";
}

#define SYMBOL(name, function)                                                                     \
  { name, (void *)(uintptr_t)(function) }

static const struct {
  const char *name;
  void *address;
} symbols[] = {
    SYMBOL("ibv_fork_init", fork_init),
    SYMBOL("ibv_is_fork_initialized", is_fork_initialized),
    SYMBOL("ibv_get_device_list", get_device_list),
    SYMBOL("ibv_free_device_list", free_device_list),
    SYMBOL("ibv_get_device_name", get_device_name),
    SYMBOL("ibv_open_device", open_device),
    SYMBOL("ibv_close_device", close_device),
    SYMBOL("ibv_query_device", query_device),
    SYMBOL("ibv_query_port", query_port_short),
    SYMBOL("ibv_query_gid", query_gid),
    SYMBOL("_ibv_query_gid_ex", query_gid_ex),
    SYMBOL("ibv_query_pkey", query_pkey),
    SYMBOL("ibv_get_async_event", model_get_async_event),
    SYMBOL("ibv_ack_async_event", model_ack_async_event),
    SYMBOL("ibv_alloc_pd", alloc_pd),
    SYMBOL("ibv_dealloc_pd", dealloc_pd),
    SYMBOL("ibv_reg_mr", reg_mr),
    SYMBOL("ibv_reg_mr_iova2", reg_mr_iova2),
    SYMBOL("ibv_reg_dmabuf_mr", reg_dmabuf_mr),
    SYMBOL("ibv_dereg_mr", dereg_mr),
    SYMBOL("ibv_create_comp_channel", model_create_comp_channel),
    SYMBOL("ibv_destroy_comp_channel", model_destroy_comp_channel),
    SYMBOL("ibv_create_cq", model_create_cq),
    SYMBOL("ibv_destroy_cq", model_destroy_cq),
    SYMBOL("ibv_get_cq_event", model_get_cq_event),
    SYMBOL("ibv_ack_cq_events", model_ack_cq_events),
    SYMBOL("ibv_create_srq", model_create_srq),
    SYMBOL("ibv_destroy_srq", model_destroy_srq),
    SYMBOL("ibv_create_qp", model_create_qp),
    SYMBOL("ibv_modify_qp", model_modify_qp),
    SYMBOL("ibv_query_qp", model_query_qp),
    SYMBOL("ibv_destroy_qp", model_destroy_qp),
    SYMBOL("ibv_wc_status_str", wc_status_str),
};

void *verbs_handle(void) {
  return (void *)(uintptr_t)symbols;
}

void *verbs_symbol(const char *name) {
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
    if (strcmp(symbols[i].name, name) == 0)
      return symbols[i].address;
  return NULL;
}
