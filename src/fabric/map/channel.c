/* SPDX-License-Identifier: MIT
 * The Unix connection of the `map` transport. Records of one size:
 *
 *   greeting   both ways, first: nonce for cross-memory attach; descriptors: validity page, and
 *              hazards and counters of the sender's copies, both read-only
 *   request    a handle
 *   response   a ticket and a descriptor; an address for cross-memory attach; a ticket and a token
 *              for an IPC mapping; or a refusal
 *
 * Only the node's loop reads and writes it, with the lock. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/deferred_close.h"
#include "core/error.h"
#include "core/sock.h"
#include "core/sys.h"
#include "core/wire.h"
#include "fabric/map/map.h"
#include "memory/staging.h"
#include "memory/ticket.h"

#define MAGIC 0x50414d48u /* "HMAP" */

#define REASON_MAX        127
#define BYTES_PER_NS_MOST 1000 /* more than memory can move */

enum record { GREETING = 1, REQUEST = 2, RESPONSE = 3 };
enum response { BY_MAPPING = 1, BY_ATTACH = 2, REFUSED = 3, BY_IPC = 4 };

struct bind_request {
  struct channel_request base; /* in endpoint->requests */
  const struct remote_key *key;
  struct map_binding *binding;
};

static struct wire start_record(uint8_t *record, enum record type, uint32_t request) {
  memset(record, 0, MAP_RECORD);
  struct wire wire = wire_over(record, MAP_RECORD);
  wire_put32(&wire, MAGIC);
  wire_put32(&wire, type);
  wire_put32(&wire, request);
  return wire;
}

/* Records are small and few: a full socket means a peer that does not read, which fails. Limits of
 * this process or user, such as descriptors in flight (ETOOMANYREFS), are a code with the detail
 * instead. */
static int send_record(struct map_endpoint *endpoint, const uint8_t *record, const int *descriptors,
                       size_t count) {
  int system = -sock_send_record(endpoint->channel, record, MAP_RECORD, descriptors, count);
  if (system == ETOOMANYREFS)
    return error_set(
        HAUL_ELIMIT, system, NULL,
        "raise the limit of the owner's process (ulimit -n), or let its other peers read",
        "too many descriptors are in flight");
  if (system == EMFILE || system == ENFILE || system == ENOMEM || system == ENOBUFS)
    return error_system(system, NULL, "sendmsg");
  if (system && system != EPIPE && system != ECONNRESET)
    endpoint->base.link->fail(endpoint->base.link, HAUL_EPROTO,
                              "the map channel is full: the peer does not read its responses");
  return 0;
}

_Static_assert(sizeof(struct map_page) <= 4096, "it fits the page that peers expect");

int channel_open(struct map_endpoint *endpoint) {
  void *view;
  random_bytes(&endpoint->nonce, sizeof endpoint->nonce);
  int code = shm_create_mapped("haul-hazards", sizeof *endpoint->page, &endpoint->page_shm, &view);
  if (code)
    return code;
  endpoint->page = view;
  endpoint->base.counters = &endpoint->page->counters;
  return 0;
}

static int send_greeting(struct map_endpoint *endpoint) {
  uint8_t record[MAP_RECORD];
  int descriptors[2] = {-1, -1};
  uint32_t slots;
  struct exports *exports = endpoint->base.link->fabric->exports;
  uint8_t capability[16];
  int code = exports_validity_page(exports, &descriptors[0], &slots, capability);
  if (code)
    return code;
  code = shm_descriptor(&endpoint->page_shm, false, &descriptors[1]);
  if (code == 0) {
    struct wire wire = start_record(record, GREETING, 0);
    wire_put64(&wire, (uint64_t)(uintptr_t)&endpoint->nonce);
    wire_put64(&wire, endpoint->nonce);
    wire_put32(&wire, slots);
    wire_put_bytes(&wire, capability, 16);
    wire_put64(&wire, sizeof endpoint->page->hazards);
    wire_put_bytes(&wire, endpoint->page_shm.footer->capability, 16);
    code = send_record(endpoint, record, descriptors, 2);
    close(descriptors[1]);
  }
  close(descriptors[0]);
  return code;
}

/* Maps a foreign descriptor after shm_attach has checked it. */
static int map_foreign(int fd, size_t length, const uint8_t capability[16], struct shm *shm,
                       void **view) {
  int code = shm_attach(fd, length, capability, shm);
  if (code)
    return code;
  code = shm_map(fd, shm, PROT_READ, NULL, view);
  if (code)
    shm_close(shm);
  return code;
}

static int on_greeting(struct map_endpoint *endpoint, struct wire *wire) {
  uint8_t validity_capability[16], hazard_capability[16];
  uint64_t nonce_address = wire_get64(wire);
  uint64_t nonce = wire_get64(wire);
  uint32_t slots = wire_get32(wire);
  wire_get_bytes(wire, validity_capability, 16);
  uint64_t hazard_bytes = wire_get64(wire);
  wire_get_bytes(wire, hazard_capability, 16);
  if (wire->failed || endpoint->inbox_count != 2 || slots == 0 || slots > EXPORT_SLOTS_MAX ||
      hazard_bytes != sizeof(struct hazards) || endpoint->validity)
    return HAUL_EPROTO;
  void *view;
  int code = map_foreign(endpoint->inbox_descriptors[0], slots * sizeof(uint32_t),
                         validity_capability, &endpoint->validity_shm, &view);
  if (code)
    return code;
  endpoint->validity = view;
  endpoint->validity_slots = slots;
  code = map_foreign(endpoint->inbox_descriptors[1], sizeof(struct hazards), hazard_capability,
                     &endpoint->peer_page_shm, &view);
  if (code)
    return code;
  endpoint->peer_page = view;
  endpoint->collected_at = clock_now();
  attach_try(endpoint, nonce_address, nonce);
  atomic_store(&endpoint->base.open, true);
  return 0;
}

/* A code, which closes the path, where the refusal cannot be sent. */
static int refuse_request(struct map_endpoint *endpoint, uint32_t request, const char *reason) {
  uint8_t record[MAP_RECORD];
  char text[REASON_MAX + 1];
  struct wire wire = start_record(record, RESPONSE, request);
  snprintf(text, sizeof text, "%s", reason);
  wire_put32(&wire, REFUSED);
  wire_put_string(&wire, text);
  return send_record(endpoint, record, NULL, 0);
}

/* The peer may keep the mapping for ever, so the memory is not pooled from here on. */
static int respond_mapped(struct map_endpoint *endpoint, const struct export_view *view,
                          uint32_t request) {
  uint8_t record[MAP_RECORD];
  struct haul_ticket ticket;
  int descriptor;
  int code = region_export(view->region, view->rights, NULL, &ticket, &descriptor);
  if (code)
    return refuse_request(endpoint, request, haul_error_last()->text);
  struct wire wire = start_record(record, RESPONSE, request);
  wire_put32(&wire, BY_MAPPING);
  wire_put_bytes(&wire, ticket.bytes, sizeof ticket.bytes);
  code = send_record(endpoint, record, &descriptor, 1);
  close(descriptor);
  return code ? refuse_request(endpoint, request, haul_error_last()->text) : 0;
}

/* An IPC mapping is always writable. */
static int respond_ipc(struct map_endpoint *endpoint, const struct export_view *view,
                       uint32_t request) {
  uint8_t record[MAP_RECORD], token[IPC_TOKEN];
  struct ticket ticket;
  struct haul_ticket packed;
  if (!(view->rights & HAUL_WRITE))
    return refuse_request(endpoint, request,
                          "an IPC mapping of a device's memory cannot be read-only");
  if (memory_ipc_export(&view->region->memory, &ticket, token) != 0)
    return refuse_request(endpoint, request, haul_error_last()->text);
  ticket_pack(&ticket, &packed);
  struct wire wire = start_record(record, RESPONSE, request);
  wire_put32(&wire, BY_IPC);
  wire_put_bytes(&wire, packed.bytes, sizeof packed.bytes);
  wire_put_bytes(&wire, token, sizeof token);
  return send_record(endpoint, record, NULL, 0);
}

static int respond_found(struct map_endpoint *endpoint, const struct export_view *view,
                         uint32_t request) {
  uint8_t record[MAP_RECORD];
  struct memory *memory = &view->region->memory;
  if (!(view->rights & HAUL_READ))
    return refuse_request(endpoint, request,
                          "it is published without HAUL_READ, and a mapping can be read");
  if (memory->imported)
    return refuse_request(endpoint, request,
                          "it is an import there; connect to the node that owns the memory");
  if (memory->shareable)
    return respond_mapped(endpoint, view, request);
  if (!memory->view && memory->wrapped && memory->provider->ipc_export)
    return respond_ipc(endpoint, view, request);
  if (!memory->view)
    return refuse_request(endpoint, request,
                          memory->provider->unshareable
                              ? memory->provider->unshareable
                              : "the memory can be neither mapped nor attached");
  if (!attach_allows(memory))
    return refuse_request(
        endpoint, request,
        "the memory is a mapping of a device there, which other processes cannot attach");
  struct wire wire = start_record(record, RESPONSE, request);
  wire_put32(&wire, BY_ATTACH);
  wire_put64(&wire, (uint64_t)(uintptr_t)memory->view);
  return send_record(endpoint, record, NULL, 0);
}

static int on_request(struct map_endpoint *endpoint, struct wire *wire, uint32_t request) {
  struct export_view view;
  uint64_t handle = wire_get64(wire);
  if (wire->failed || endpoint->inbox_count != 0)
    return HAUL_EPROTO;
  const struct link *link = endpoint->base.link;
  if (exports_find(link->fabric->exports, handle, link->identity, &view) != 0)
    return refuse_request(endpoint, request, "the region is no longer published");
  int code = respond_found(endpoint, &view, request);
  region_put(view.region);
  return code;
}

static int accept_ticket(const struct bind_request *request, struct wire *wire,
                         struct ticket *ticket) {
  struct haul_ticket packed;
  wire_get_bytes(wire, packed.bytes, sizeof packed.bytes);
  if (wire->failed)
    return HAUL_EPROTO;
  int code = ticket_unpack(&packed, ticket);
  if (code)
    return code;
  if (ticket->length != request->key->length || ticket->place.kind != request->key->place.kind)
    return error_set(HAUL_ETICKET, 0, NULL, NULL, "the peer's ticket is for another region");
  ticket->rights = request->key->rights;
  return 0;
}

static int accept_mapped(struct bind_request *request, struct wire *wire, const int *descriptors,
                         size_t count) {
  struct ticket ticket;
  int code = accept_ticket(request, wire, &ticket);
  if (count != 1)
    return HAUL_EPROTO;
  return code ? code : memory_import(&ticket, descriptors[0], &request->binding->memory);
}

static int accept_ipc(struct bind_request *request, struct wire *wire) {
  uint8_t token[IPC_TOKEN];
  struct ticket ticket;
  int code = accept_ticket(request, wire, &ticket);
  wire_get_bytes(wire, token, sizeof token);
  if (wire->failed)
    return HAUL_EPROTO;
  return code ? code : ipc_bind(request->binding, &ticket, token);
}

static int accept_attached(struct bind_request *request, struct wire *wire) {
  const struct map_endpoint *endpoint = (struct map_endpoint *)request->base.endpoint;
  uint64_t address = wire_get64(wire), end;
  if (wire->failed || __builtin_add_overflow(address, request->key->length, &end))
    return HAUL_EPROTO;
  if (!endpoint->may_attach)
    return error_set(
        HAUL_ENOPATH, 0, NULL,
        "let the peer allocate with haul_region_alloc, or run: sysctl kernel.yama.ptrace_scope=0",
        "the peer's memory is private and %s", endpoint->attach_reason);
  request->binding->attached = true;
  request->binding->address = address;
  return 0;
}

static int on_response(struct map_endpoint *endpoint, struct wire *wire, uint32_t id) {
  struct channel_request *base = channel_request_find(&endpoint->requests, id);
  struct bind_request *request = (struct bind_request *)base;
  if (!base)
    return 0; /* timed out; the caller closes the descriptors */
  char reason[REASON_MAX + 1] = "";
  uint32_t kind = wire_get32(wire);
  int code = HAUL_EPROTO;
  if (kind == BY_MAPPING)
    code = accept_mapped(request, wire, endpoint->inbox_descriptors, endpoint->inbox_count);
  else if (kind == BY_ATTACH)
    code = accept_attached(request, wire);
  else if (kind == BY_IPC)
    code = accept_ipc(request, wire);
  else if (kind == REFUSED) {
    wire_get_string(wire, reason, sizeof reason);
    code = wire->failed
               ? HAUL_EPROTO
               : error_set(HAUL_ENOPATH, 0, NULL, NULL, "the peer says %s", error_quote(reason));
  }
  if (code == HAUL_EPROTO)
    return code;
  channel_request_end(base, code);
  return 0;
}

int channel_bind(struct map_endpoint *endpoint, const struct remote_key *key, haul_deadline until,
                 struct map_binding *binding) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  struct bind_request request = {.base.endpoint = &endpoint->base, .key = key, .binding = binding};
  uint8_t record[MAP_RECORD];
  loop_lock(loop);
  if (endpoint->channel < 0) {
    loop_unlock(loop);
    return error_set(HAUL_EPATH, 0, NULL, NULL, "%s", endpoint_reason(&endpoint->base));
  }
  request.base.id = ++endpoint->next_request;
  list_append(&endpoint->requests, &request.base.link);
  struct wire wire = start_record(record, REQUEST, request.base.id);
  wire_put64(&wire, key->handle);
  int code = send_record(endpoint, record, NULL, 0);
  if (code)
    list_remove(&request.base.link);
  loop_unlock(loop);
  if (code == 0)
    code = channel_request_wait(&request.base, until);
  if (code == 0)
    staging_prepare(heap_staging(endpoint->base.link->fabric->heap), binding->memory.place);
  return code;
}

bool channel_lives(const struct map_endpoint *endpoint) {
  struct pollfd channel = {.fd = endpoint->channel, .events = POLLRDHUP};
  return endpoint->channel >= 0 && poll(&channel, 1, 0) == 0;
}

static void close_inbox_descriptors(struct map_endpoint *endpoint) {
  while (endpoint->inbox_count > 0)
    close_foreign(endpoint->inbox_descriptors[--endpoint->inbox_count]);
}

static int on_record(struct map_endpoint *endpoint) {
  struct wire wire = wire_over(endpoint->inbox, MAP_RECORD);
  uint32_t magic = wire_get32(&wire);
  uint32_t type = wire_get32(&wire);
  uint32_t request = wire_get32(&wire);
  if (magic != MAGIC)
    return HAUL_EPROTO;
  if (type == GREETING)
    return on_greeting(endpoint, &wire);
  if (!endpoint->validity)
    return HAUL_EPROTO;
  if (type == REQUEST)
    return on_request(endpoint, &wire, request);
  if (type == RESPONSE)
    return on_response(endpoint, &wire, request);
  return HAUL_EPROTO;
}

/* HAUL_EPATH: the channel ended. */
static int check_read(ssize_t got, bool many) {
  if (got == -EMFILE)
    return error_set(HAUL_ELIMIT, EMFILE, NULL, NULL,
                     "no descriptor is left for memory that the peer shares");
  if (got == -EPROTO)
    return HAUL_EPROTO;
  if (got <= 0)
    return HAUL_EPATH;
  return many ? HAUL_EPROTO : 0;
}

/* A shortage in this process closes only this path; anything else is the peer's fault. */
static void break_channel(struct map_endpoint *endpoint, int code) {
  if (code == HAUL_ENOMEM || code == HAUL_ELIMIT || code == HAUL_ESYSTEM)
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
  else if (code != HAUL_EPATH)
    endpoint->base.link->fail(endpoint->base.link, HAUL_EPROTO,
                              "malformed record on the map channel");
  channel_stop(endpoint, HAUL_EPATH);
}

/* One read; false when no more bytes are there or the channel ended. */
static bool read_some(struct map_endpoint *endpoint) {
  int descriptors[SOCK_DESCRIPTORS_MAX];
  size_t count;
  if (close_queue_is_full()) {
    break_channel(endpoint, error_set(HAUL_ELIMIT, 0, NULL, NULL,
                                      "too many descriptors of peers wait to be closed"));
    return false;
  }
  ssize_t got = sock_receive_record(endpoint->channel, endpoint->inbox + endpoint->inbox_length,
                                    MAP_RECORD - endpoint->inbox_length, descriptors, &count);
  if (got == -EAGAIN || got == -EINTR)
    return false;
  bool many = endpoint->inbox_count + count > 4;
  for (size_t i = 0; i < count; i++) {
    if (many)
      close_foreign(descriptors[i]);
    else
      endpoint->inbox_descriptors[endpoint->inbox_count++] = descriptors[i];
  }
  int code = check_read(got, many);
  if (code == 0) {
    endpoint->inbox_length += (size_t)got;
    atomic_store_explicit(&endpoint->base.link->heard, clock_now(), memory_order_relaxed);
    if (endpoint->inbox_length < MAP_RECORD)
      return true;
    code = on_record(endpoint);
    endpoint->inbox_length = 0;
    close_inbox_descriptors(endpoint);
  }
  if (code == 0)
    return true;
  break_channel(endpoint, code);
  return false;
}

static void on_channel(struct watch *watch, uint32_t events) {
  (void)events;
  struct map_endpoint *endpoint = list_entry(watch, struct map_endpoint, watch);
  for (int i = 0; i < 64 && endpoint->channel >= 0 && read_some(endpoint); i++)
    ;
}

int channel_start(struct map_endpoint *endpoint, int descriptor) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  struct loop *loop = endpoint->base.link->fabric->loop;
  if (endpoint->channel >= 0 || atomic_load(&endpoint->base.link->ended)) {
    sock_close(descriptor);
    return HAUL_EPROTO;
  }
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0)
    endpoint->pid = peer.pid;
  endpoint->channel = descriptor;
  int code = loop_watch(loop, &endpoint->watch, descriptor, EPOLLIN, on_channel);
  if (code == 0)
    code = send_greeting(endpoint);
  if (code) {
    endpoint_close(&endpoint->base, "%s", haul_error_last()->text);
    channel_stop(endpoint, HAUL_EPATH);
  }
  return code;
}

void channel_stop(struct map_endpoint *endpoint, int code) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  if (endpoint->channel < 0)
    return;
  if (atomic_load(&endpoint->base.open) || !endpoint_is_closed(&endpoint->base))
    endpoint_close(&endpoint->base, "the map channel to the peer ended");
  loop_unwatch(loop, &endpoint->watch);
  sock_close(endpoint->channel);
  endpoint->channel = -1;
  close_inbox_descriptors(endpoint);
  channel_requests_fail(&endpoint->requests, code);
  loop_notify(loop);
}

static void unmap(struct shm *shm, const volatile void *view) {
  if (!view)
    return;
  munmap((void *)(uintptr_t)view, shm->length);
  shm_close(shm);
}

/* The peer may write anything at any time: its figures are only shown, never fall, and rise by at
 * most `most`. */
static void collect(_Atomic uint64_t *count, uint64_t told, uint64_t most) {
  uint64_t before = atomic_load_explicit(count, memory_order_relaxed);
  if (told > before)
    atomic_store_explicit(count, told - before < most ? told : before + most, memory_order_relaxed);
}

static uint64_t peek(const _Atomic uint64_t *count) {
  return atomic_load_explicit(count, memory_order_relaxed);
}

void channel_collect(struct endpoint *base) {
  struct map_endpoint *endpoint = (struct map_endpoint *)base;
  if (!endpoint->peer_page)
    return;
  const struct endpoint_counters *theirs = &endpoint->peer_page->counters;
  struct endpoint_counters *ours = base->counters;
  int64_t now = clock_now();
  uint64_t most = (uint64_t)(now - endpoint->collected_at);
  endpoint->collected_at = now;
  collect(&ours->served, peek(&theirs->writes) + peek(&theirs->reads) + peek(&theirs->atomics),
          most);
  collect(&ours->served_in, peek(&theirs->bytes_out), BYTES_PER_NS_MOST * most);
  collect(&ours->served_out, peek(&theirs->bytes_in), BYTES_PER_NS_MOST * most);
}

void channel_release(struct map_endpoint *endpoint) {
  unmap(&endpoint->validity_shm, endpoint->validity);
  unmap(&endpoint->peer_page_shm, endpoint->peer_page);
  unmap(&endpoint->page_shm, endpoint->page);
}
