/* SPDX-License-Identifier: MIT
 * Attachments, from ATTACH to DETACH or REVOKE_ACK. Registering pins every page, at some gigabytes
 * a second, and the loop has other peers to serve: threads register, and hold the loop's lock for
 * all else. Peers take turns, one ATTACH at a time. The number of threads is bounded a node,
 * whatever the number of peers: a peer that connects, attaches and leaves in a loop costs one turn.
 *
 * A NIC computes no checksum that a program could read. So the client sums its own bytes, and the
 * owner tells whether its bytes have the same checksum, to peers with the right to read: a span of
 * one byte can be found out with 256 requests. */
#include "fabric/rdma/owner.h"

#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sum.h"
#include "core/sys.h"
#include "core/thread.h"
#include "fabric/devcopy.h"
#include "fabric/exports.h"
#include "fabric/rdma/channel.h"
#include "fabric/rdma/endpoint.h"
#include "memory/copy.h"

/* A well-behaved peer sends one ATTACH a lookup and waits for the response. */
#define ATTACHES_MAX       256u
#define ATTACH_THREADS_MAX 8u
/* A well-behaved peer has no more at a time: a slot's work has at most WORK_PIECES_MAX segments. */
#define STAGED_COPIES_MAX (RDMA_SLOTS * (WORK_PIECES_MAX / RDMA_SPANS))

/* An ATTACH that waits for its turn. */
struct queued_attach {
  struct list link; /* endpoint->attach_queue */
  struct rdma_record record;
};

/* Between a region and the staging area. */
struct staged_copy {
  struct list link; /* endpoint->staged_copies */
  struct rdma_record request;
  struct haul_region *region; /* a reference */
  struct devcopy copy;
};

static void unregister(struct rdma_endpoint *endpoint, struct ibv_mr *mrs[]) {
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    rdma_device_unexport(endpoint->rails[i]->device, mrs[i]);
    mrs[i] = NULL;
  }
}

static void close_area(struct rdma_endpoint *endpoint, struct rdma_staging_area *area) {
  if (!area)
    return;
  unregister(endpoint, area->registrations);
  if (area->region)
    region_put(area->region);
  staging_unreserve(heap_staging(endpoint->base.link->fabric->heap), area->slots);
  alloc_free(area);
}

/* One range with one key a rail, as the peer writes to all of it. It counts towards the limit of
 * bounce buffers but is not taken from their pool. Without the lock. */
static int open_area(struct rdma_endpoint *endpoint, struct haul_place place,
                     struct rdma_staging_area **out) {
  struct heap *heap = endpoint->base.link->fabric->heap;
  struct staging *staging = heap_staging(heap);
  struct rdma_staging_area *area =
      alloc_zero(1, sizeof *area + endpoint->rail_count * sizeof area->registrations[0]);
  *out = area;
  if (!area)
    return error_memory("staging area");
  area->slots = staging_reserve(staging, RDMA_SLOTS);
  if (area->slots == 0)
    return error_set(HAUL_ELIMIT, 0, "staging", "set more of them (`staging` in haul.conf)",
                     "all bounce buffers that peers may reserve are reserved");
  int code = heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, area->slots * BOUNCE_BYTES,
                        HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &area->region);
  if (code == 0)
    staging_pin(staging, &area->region->memory, staging_numa(staging, place));
  for (unsigned i = 0; i < endpoint->rail_count && code == 0; i++)
    code = rdma_device_export(endpoint->rails[i]->device, &area->region->memory,
                              HAUL_READ | HAUL_WRITE, &area->registrations[i]);
  return code;
}

static struct rdma_attachment *find_attachment(struct rdma_endpoint *endpoint, uint64_t handle) {
  list_each(item, &endpoint->attachments) {
    struct rdma_attachment *attachment = list_entry(item, struct rdma_attachment, link);
    if (attachment->handle == handle)
      return attachment;
  }
  return NULL;
}

static void free_attachment(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment) {
  list_remove(&attachment->link);
  unregister(endpoint, attachment->registrations);
  region_put(attachment->region);
  alloc_free(attachment);
}

int rdma_on_detach(struct rdma_endpoint *endpoint, uint64_t handle) {
  struct rdma_attachment *attachment = find_attachment(endpoint, handle);
  if (!attachment)
    return HAUL_EPROTO;
  if (--attachment->uses == 0)
    free_attachment(endpoint, attachment);
  return 0;
}

bool rdma_uses_handle(struct endpoint *base, uint64_t handle, const struct haul_region *region) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  (void)region;
  list_each(item, &endpoint->staged_copies) {
    if (list_entry(item, struct staged_copy, link)->request.handle == handle)
      return true;
  }
  return find_attachment(endpoint, handle);
}

void rdma_close_attachments(struct rdma_endpoint *endpoint) {
  while (!list_empty(&endpoint->attachments))
    free_attachment(endpoint, list_entry(endpoint->attachments.next, struct rdma_attachment, link));
  for (struct list *item; (item = list_take(&endpoint->attach_queue));)
    alloc_free(list_entry(item, struct queued_attach, link));
  close_area(endpoint, endpoint->staging_area);
  endpoint->staging_area = NULL;
}

/* Registers the region with the NICs that take its memory, or stages it where none does: then the
 * device copies to and from host memory. `area`: to be opened where staging needs it, also in part;
 * NULL where the endpoint has one. */
static int make_reachable(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment,
                          struct rdma_staging_area **area) {
  const struct memory *memory = &attachment->region->memory;
  int64_t began = clock_now();
  bool partly = false;
  int code = 0;
  attachment->retry_at = HAUL_FOREVER;
  for (unsigned i = 0; i < endpoint->rail_count && code != HAUL_ELIMIT; i++) {
    int refusal = rdma_device_export(endpoint->rails[i]->device, memory, attachment->rights,
                                     &attachment->registrations[i]);
    partly |= refusal == 0;
    code = refusal ? refusal : code;
  }
  if (code == 0 || (partly && code != HAUL_ELIMIT && rdma_pairs_rails(endpoint)))
    return 0;
  unregister(endpoint, attachment->registrations);
  if (memory->view || !copy_stages(memory))
    return code;
  attachment->staged = true;
  snprintf(attachment->reason, sizeof attachment->reason, "%.127s", haul_error_last()->text);
  if (code == HAUL_ELIMIT)
    attachment->retry_at = rdma_retry_at(began);
  return area ? open_area(endpoint, memory->place, area) : 0;
}

/* Takes over the view's reference; NULL with the detail. */
static struct rdma_attachment *attach(struct rdma_endpoint *endpoint,
                                      const struct export_view *view,
                                      struct rdma_staging_area **area) {
  struct rdma_attachment *attachment = alloc_zero(
      1, sizeof *attachment + endpoint->rail_count * sizeof attachment->registrations[0]);
  if (!attachment) {
    error_memory("rdma attachment");
    region_put(view->region);
    return NULL;
  }
  list_init(&attachment->link);
  attachment->handle = view->handle;
  attachment->rights = view->rights;
  attachment->region = view->region;
  if (make_reachable(endpoint, attachment, area) == 0)
    return attachment;
  free_attachment(endpoint, attachment);
  return NULL;
}

static int find_export(const struct rdma_endpoint *endpoint, uint64_t handle,
                       struct export_view *view) {
  const struct link *link = endpoint->base.link;
  return exports_find(link->fabric->exports, handle, link->identity, view);
}

/* The rail for the atomics of the peer: all peers' go through one NIC, as many are atomic among
 * their own operations only. NULL: the peer has no rail there, or it has no key. */
static const struct rdma_rail *find_atomic_rail(const struct rdma_endpoint *endpoint,
                                                const struct rdma_attachment *attachment) {
  const struct nic *first = endpoint->node->devices->nic;
  unsigned most = rdma_pairs_rails(endpoint) ? endpoint->rail_count : 1;
  for (unsigned i = 0; i < most; i++) {
    const struct nic *nic = endpoint->rails[i]->device->nic;
    bool global =
        nic->limits.atomics == IBV_ATOMIC_GLOB && first->limits.atomics == nic->limits.atomics;
    if ((nic == first || global) && attachment->registrations[i])
      return endpoint->rails[i];
  }
  return NULL;
}

/* Where the peer's NIC finds the region's bytes. */
static void describe_attachment(const struct rdma_endpoint *endpoint,
                                const struct rdma_attachment *attachment,
                                struct rdma_record *response) {
  const struct memory *memory = &attachment->region->memory;
  bool staged = attachment->staged;
  const struct rdma_staging_area *area = endpoint->staging_area;
  response->address = (uintptr_t)(staged ? area->region->memory.address : memory->address);
  response->length = memory->length;
  response->rails = (uint8_t)endpoint->rail_count;
  response->number = attachment->number;
  const struct rdma_rail *rail = find_atomic_rail(endpoint, attachment);
  bool atomic = rail && rdma_device_allows_atomics(rail->device, memory, attachment->rights);
  response->atomic_rail = atomic ? (uint8_t)rail->number : 0;
  response->flags =
      (uint8_t)((staged ? RDMA_STAGED : 0) | (memory->provider->fence ? RDMA_FENCED_WRITES : 0) |
                (atomic ? RDMA_ATOMIC : 0) |
                (attachment->retry_at < HAUL_FOREVER ? RDMA_RETRIES : 0));
  response->slots = staged ? (uint8_t)area->slots : 0;
  memcpy(response->reason, attachment->reason, sizeof response->reason);
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    const struct ibv_mr *mr = (staged ? area->registrations : attachment->registrations)[i];
    response->keys[i] = mr ? mr->rkey : 0;
    response->missing |= (uint16_t)((mr ? 0u : 1u) << i);
  }
}

static void respond_to_attach(struct rdma_endpoint *endpoint, const struct rdma_record *request,
                              int code, const char *reason) {
  struct rdma_record response = {
      .type = RDMA_ATTACHED, .request = request->request, .handle = request->handle};
  struct rdma_attachment *attachment = find_attachment(endpoint, request->handle);
  if (attachment && !attachment->revoked) {
    attachment->uses++;
    describe_attachment(endpoint, attachment, &response);
  } else {
    response.status = code ? code : HAUL_ESTALE;
    snprintf(response.reason, sizeof response.reason, "%.127s",
             code ? reason : "the region is not published any more");
  }
  rdma_send_record(endpoint, &response);
}

/* Drops the attachment where the region was withdrawn or the channel ended while the lock was
 * released: its keys were not sent yet. */
static void install(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment,
                    struct rdma_staging_area **area) {
  struct export_view view;
  if (endpoint->channel.fd < 0 || find_export(endpoint, attachment->handle, &view) != 0) {
    free_attachment(endpoint, attachment);
    return;
  }
  region_put(view.region);
  if (attachment->staged && !endpoint->staging_area) {
    endpoint->staging_area = *area;
    *area = NULL;
  }
  attachment->number = ++endpoint->next_number;
  attachment->copies = attachment->staged;
  struct rdma_attachment *before = find_attachment(endpoint, attachment->handle);
  if (before) { /* this one is another try, for the same uses */
    attachment->number = before->number;
    attachment->uses = before->uses;
    attachment->copies = before->copies;
    free_attachment(endpoint, before);
  }
  list_append(&endpoint->attachments, &attachment->link);
}

/* Called with the lock; releases it while it registers. */
static void serve_attach(struct rdma_endpoint *endpoint, const struct rdma_record *request) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  struct rdma_attachment *attachment = find_attachment(endpoint, request->handle);
  struct rdma_staging_area *area = NULL;
  struct export_view view;
  int code = 0;
  char reason[128] = "";
  bool needs_area = !endpoint->staging_area;
  if ((!attachment || attachment->retry_at <= clock_now()) &&
      find_export(endpoint, request->handle, &view) == 0) {
    loop_unlock(loop);
    attachment = attach(endpoint, &view, needs_area ? &area : NULL);
    if (!attachment) {
      code = haul_error_last()->code;
      snprintf(reason, sizeof reason, "%.127s", haul_error_last()->text);
    }
    loop_lock(loop);
    if (attachment)
      install(endpoint, attachment, &area);
    close_area(endpoint, area); /* unless install took it over */
  }
  respond_to_attach(endpoint, request, code, reason);
}

/* With the lock: the next peer with a queued ATTACH, with a reference; it moves behind the others.
 */
static struct rdma_endpoint *take_turn(struct rdma_node *node) {
  list_each(item, &node->endpoints) {
    struct rdma_endpoint *endpoint = list_entry(item, struct rdma_endpoint, peer);
    struct link *link = endpoint->base.link;
    if (endpoint->attaching || list_empty(&endpoint->attach_queue))
      continue;
    endpoint->attaching = true;
    link->retain(link);
    list_remove(item);
    list_append(&node->endpoints, item);
    return endpoint;
  }
  return NULL;
}

static void *attach_thread(void *user) {
  struct rdma_node *node = ((struct rdma_endpoint *)user)->node;
  for (struct rdma_endpoint *endpoint = user, *next; endpoint; endpoint = next) {
    struct link *link = endpoint->base.link;
    struct loop *loop = link->fabric->loop;
    loop_lock(loop);
    struct list *first = list_take(&endpoint->attach_queue); /* NULL: the channel ended meanwhile */
    if (first) {
      struct queued_attach *queued = list_entry(first, struct queued_attach, link);
      serve_attach(endpoint, &queued->record);
      alloc_free(queued);
    }
    endpoint->attaching = false;
    next = take_turn(node);
    node->attach_threads -= !next;
    loop_unlock(loop);
    link->put(link);
  }
  _Atomic uint32_t *live = &node->live_threads;
  atomic_fetch_sub(live, 1); /* the node may be freed from here on: the address is only a key */
  futex_wake(live);
  return NULL;
}

/* A thread's reference to a peer would keep the NICs open after the node's close. */
void rdma_await_attach_threads(struct rdma_node *node) {
  for (uint32_t count; (count = atomic_load(&node->live_threads)) > 0;)
    futex_wait(&node->live_threads, count, HAUL_FOREVER);
}

/* Starts one more thread, if one is allowed and a peer waits. */
static int start_attach_thread(struct rdma_node *node) {
  struct rdma_endpoint *endpoint =
      node->attach_threads < ATTACH_THREADS_MAX ? take_turn(node) : NULL;
  pthread_t thread;
  if (!endpoint)
    return 0;
  atomic_fetch_add(&node->live_threads, 1);
  int system = thread_start(&thread, attach_thread, endpoint);
  if (system) {
    atomic_fetch_sub(&node->live_threads, 1);
    endpoint->attaching = false;
    endpoint->base.link->put(endpoint->base.link);
    return error_system(system, NULL, "pthread_create");
  }
  pthread_detach(thread);
  node->attach_threads++;
  return 0;
}

/* Its owner's release ends transfers, which a NIC does not notice. */
static bool is_import(struct rdma_endpoint *endpoint, uint64_t handle) {
  struct export_view view;
  if (find_export(endpoint, handle, &view) != 0)
    return false;
  const struct memory *memory = &view.region->memory;
  bool noticed = memory->imported && memory->alive;
  region_put(view.region);
  return noticed;
}

int rdma_on_attach(struct rdma_endpoint *endpoint, const struct rdma_record *record) {
  unsigned count = 0;
  list_each(item, &endpoint->attach_queue) count++;
  if (!(endpoint->ready_sent || endpoint->restore.possible) || count >= ATTACHES_MAX)
    return HAUL_EPROTO;
  if (is_import(endpoint, record->handle)) {
    respond_to_attach(endpoint, record, HAUL_ENOTSUP,
                      "it is an import there; connect to the node that owns the memory");
    return 0;
  }
  struct queued_attach *queued = alloc_zero(1, sizeof *queued);
  int code = queued ? 0 : error_memory("rdma attach request");
  if (queued) {
    queued->record = *record;
    list_append(&endpoint->attach_queue, &queued->link);
    code = start_attach_thread(endpoint->node);
    if (code)
      list_remove(&queued->link);
  }
  if (code) {
    respond_to_attach(endpoint, record, code, haul_error_last()->text);
    alloc_free(queued);
  }
  return 0;
}

static void respond(struct rdma_endpoint *endpoint, const struct rdma_record *request, int status) {
  rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_RESPONSE,
                                                   .request = request->request,
                                                   .handle = request->handle,
                                                   .rails = request->rails,
                                                   .status = status});
}

/* 0, or why the peer may not: all of it is foreign input. `staged`: the bytes have to lie in the
 * staging area too. */
static int check_spans(struct rdma_endpoint *endpoint, const struct rdma_record *request,
                       const struct memory *memory, bool staged) {
  const struct rdma_staging_area *area = endpoint->staging_area;
  uint64_t bytes = 0, room = area ? area->slots * (uint64_t)WORK_BYTES_MAX : 0;
  for (size_t i = 0; i < request->span_count; i++) {
    const struct rdma_span *span = &request->spans[i];
    if (span->length > memory->length || span->offset > memory->length - span->length)
      return HAUL_ERANGE;
    bytes += span->length;
  }
  if (bytes > WORK_BYTES_MAX) /* checksums block the loop */
    return HAUL_ELIMIT;
  if (staged && (request->at > room || bytes > room - request->at))
    return HAUL_ERANGE;
  return 0;
}

static int compare(struct rdma_endpoint *endpoint, const struct rdma_record *request,
                   const struct rdma_attachment *attachment) {
  struct memory *memory = &attachment->region->memory;
  uint64_t sums[RDMA_SPANS];
  int code =
      attachment->rights & HAUL_READ ? check_spans(endpoint, request, memory, false) : HAUL_EACCESS;
  for (size_t i = 0; i < request->span_count && code == 0; i++) {
    const struct rdma_span *span = &request->spans[i];
    code = memory_checksum(memory, span->offset, span->length, &sums[i]);
    endpoint->checksummed += span->length;
  }
  if (code)
    return code;
  uint64_t sum = XXH3_64bits(sums, request->span_count * sizeof sums[0]);
  return sum == request->sum ? 0 : HAUL_ECHECKSUM;
}

static struct copy_segment staged_segment(const struct devcopy *copy, uint32_t index,
                                          uint64_t before) {
  const struct staged_copy *staged = copy->owner;
  const struct rdma_span *span = &staged->request.spans[index];
  uint64_t at = staged->request.at + before;
  bool in = staged->request.type == RDMA_COPY_IN;
  return (struct copy_segment){.to_offset = in ? span->offset : at,
                               .from_offset = in ? at : span->offset,
                               .length = span->length};
}

static void end_staged_copy(struct staged_copy *staged) {
  list_remove(&staged->link);
  devcopy_cancel(&staged->copy);
  region_put(staged->region);
  alloc_free(staged);
}

bool staged_copies_poll(struct rdma_endpoint *endpoint, bool *urgent) {
  bool any = false;
  list_each_safe(item, &endpoint->staged_copies) {
    struct staged_copy *staged = list_entry(item, struct staged_copy, link);
    int status = devcopy_poll(&staged->copy);
    if (status > 0) {
      *urgent |= devcopy_is_polled(&staged->copy);
      continue;
    }
    any = true;
    respond(endpoint, &staged->request, status);
    end_staged_copy(staged);
  }
  return any;
}

void rdma_revoke(struct endpoint *base, uint64_t handle, struct haul_region *region) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  struct rdma_attachment *attachment = find_attachment(endpoint, handle);
  (void)region;
  if (!attachment || attachment->revoked)
    return;
  attachment->revoked = true;
  rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_REVOKED, .handle = handle});
  list_each_safe(item, &endpoint->staged_copies) {
    struct staged_copy *staged = list_entry(item, struct staged_copy, link);
    if (staged->request.handle != handle)
      continue;
    respond(endpoint, &staged->request, HAUL_ESTALE);
    end_staged_copy(staged);
  }
}

void staged_copies_cancel(struct rdma_endpoint *endpoint) {
  while (!list_empty(&endpoint->staged_copies))
    end_staged_copy(list_entry(endpoint->staged_copies.next, struct staged_copy, link));
}

static int start_staged_copy(struct rdma_endpoint *endpoint, const struct rdma_record *request,
                             const struct rdma_attachment *attachment) {
  bool in = request->type == RDMA_COPY_IN;
  unsigned count = 0;
  list_each(item, &endpoint->staged_copies) count++;
  if (count >= STAGED_COPIES_MAX)
    return HAUL_EPROTO;
  int code = !attachment->copies || !(attachment->rights & (in ? HAUL_WRITE : HAUL_READ))
                 ? HAUL_EACCESS
                 : check_spans(endpoint, request, &attachment->region->memory, true);
  struct staged_copy *staged = code ? NULL : alloc_zero(1, sizeof *staged);
  if (!staged) {
    respond(endpoint, request, code ? code : HAUL_ENOMEM);
    return 0;
  }
  staged->request = *request;
  staged->region = attachment->region;
  region_retain(staged->region);
  struct memory *device = &staged->region->memory, *area = &endpoint->staging_area->region->memory;
  staged->copy = (struct devcopy){.engine = device->provider,
                                  .to = in ? device : area,
                                  .from = in ? area : device,
                                  .loop = endpoint->base.link->fabric->loop,
                                  .count = request->span_count,
                                  .segment = staged_segment,
                                  .owner = staged};
  list_append(&endpoint->staged_copies, &staged->link);
  loop_wake(endpoint->base.link->fabric->loop);
  return 0;
}

/* On broken rails no response can be sent, and a copy would have to end before the staging area. */
int rdma_on_request(struct rdma_endpoint *endpoint, const struct rdma_record *request) {
  if (endpoint->broken)
    return 0;
  struct rdma_attachment *attachment = find_attachment(endpoint, request->handle);
  int status = HAUL_ESTALE;
  if (!attachment || attachment->revoked)
    attachment = NULL;
  else if (request->type == RDMA_CHECKSUM)
    status = compare(endpoint, request, attachment);
  else if (request->type == RDMA_FENCE)
    status = memory_fence(&attachment->region->memory, FENCE_BEFORE_READ);
  else
    return start_staged_copy(endpoint, request, attachment);
  respond(endpoint, request, status);
  return 0;
}
