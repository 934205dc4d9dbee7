/* SPDX-License-Identifier: MIT */
#include "node/offer.h"

#include <stdio.h>

#include "core/error.h"
#include "core/fork.h"
#include "core/sys.h"
#include "node/peer.h"

/* The body of OFFER: as it is in memory, since it has no gaps and all fields are little-endian. */
struct offer {
  uint64_t tag;
  struct remote_key key;
  uint64_t offset, length; /* of the payload in the region */
};

_Static_assert(sizeof(struct offer) == 48 && sizeof(struct remote_key) == 24, "no gaps");

/* In the bytes of a message. */
struct received {
  struct offer offer;
  uint32_t request;
  _Atomic bool claimed; /* by a read, or by the release: it responds */
};

_Static_assert(sizeof(struct received) <= OFFER_COST, "the message has room for it");

static struct received *received_of(struct incoming *message) {
  return (struct received *)(void *)message->bytes;
}

int offer_receive(struct haul_peer *peer, uint32_t request, struct wire *in) {
  struct offer offer;
  int code = HAUL_EPROTO;
  wire_get_bytes(in, &offer, sizeof offer);
  if (in->failed || wire_left(in) > 0 || offer.length == 0 || offer.length > offer.key.length ||
      offer.offset > offer.key.length - offer.length)
    return code;
  struct incoming *message = message_begin(peer, offer.tag, OFFER_COST, &code);
  if (!message)
    return code;
  message->kind = HAUL_MESSAGE_OFFER;
  message->length = offer.length;
  *received_of(message) = (struct received){.offer = offer, .request = request};
  message_queue(peer, message);
  return 0;
}

static void respond(struct incoming *message, int status) {
  if (!atomic_load(&message->peer->base.ended))
    control_send(message->peer, CONTROL_TAKEN, received_of(message)->request, &(int32_t){status},
                 sizeof(int32_t));
}

/* In a forked child the connection and its locks are the parent's. */
void offer_refuse(struct incoming *message) {
  if (!fork_is_child() && !atomic_exchange(&received_of(message)->claimed, true))
    respond(message, HAUL_ECANCELED);
}

/* The remote is released before the response, so that the sender has no use of it to wait for. */
static int read_payload(struct haul_peer *peer, const struct offer *offer, struct haul_region *to,
                        uint64_t at, const struct haul_transfer_options *given,
                        struct haul_report *report) {
  struct transfers *transfers = &peer->node->transfers;
  struct haul_piece piece = {at, offer->offset, offer->length};
  struct haul_transfer_options options;
  struct haul_remote *remote;
  struct haul_transfer *transfer;
  int code = transfer_check_options(given, &options);
  if (code == 0)
    code = transfer_check_start(&options, false);
  if (code)
    return code;
  if (options.deadline == HAUL_NO_WAIT)
    options.deadline = clock_after(clock_now(), transfers->default_ns);
  code = remote_open(transfers, &peer->base, &offer->key, "message", options.deadline, &remote);
  if (code)
    return code;
  code = transfer_start(remote, to, &piece, 1, &options, HAUL_OP_READ, &transfer);
  if (code == 0) {
    code = transfer_await(transfer, HAUL_FOREVER); /* until its own deadline */
    if (report)
      transfer_report(transfer, report);
    transfer_put(transfer);
  }
  remote_put(remote);
  return code;
}

HAUL_API int haul_message_read(const struct haul_message *message, haul_region *to, uint64_t offset,
                               const struct haul_transfer_options *options,
                               struct haul_report *report) {
  int code = node_enter("haul_message_read",
                        message && message->kind == HAUL_MESSAGE_OFFER && to &&
                            (!report || report->size >= sizeof report->size),
                        "message is no offer, to is NULL, or the report has no size");
  if (code)
    return code;
  struct incoming *incoming = message->internal;
  struct received *received = received_of(incoming);
  if (atomic_exchange(&received->claimed, true))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "the message was read before");
  code = read_payload(incoming->peer, &received->offer, to, offset, options, report);
  respond(incoming, code);
  return code;
}

static int parse_taken(struct request *request, struct wire *in) {
  int32_t status = (int32_t)wire_get32(in);
  if (in->failed || status > 0 || status < HAUL_EAUTH)
    return HAUL_EPROTO;
  if (status == 0)
    return 0;
  return error_set(status, 0, request->peer->base.name,
                   "the receiver has the detail, if it called haul_message_read",
                   "the receiver did not read the payload: %s", haul_error_text(status));
}

/* Lends the region for the time of the request. */
static int request_read(struct request *request, struct haul_region *region, struct offer *offer,
                        haul_deadline until) {
  struct haul_peer *peer = request->peer;
  struct exports *exports = peer->node->exports;
  struct haul_error error;
  char name[24]; /* unique while the request exists */
  snprintf(name, sizeof name, " %p", (void *)request);
  int code = exports_lend(exports, region, name, peer->base.identity, &offer->key.handle);
  if (code)
    return code;
  code = control_request(request, CONTROL_OFFER, offer, sizeof *offer, until);
  error_save(&error);
  regions_withdraw(peer->node, region, name);
  return code ? error_restore(&error) : 0;
}

HAUL_API int haul_message_offer(haul_peer *peer, uint64_t tag, haul_region *region, uint64_t offset,
                                uint64_t length, haul_deadline until) {
  int code = node_enter("haul_message_offer",
                        peer && region && region->heap == peer->node->heap && length > 0,
                        "peer or region is NULL, the region belongs to another node, or the length "
                        "is 0");
  if (code == 0)
    code = region_check(region, offset, length);
  if (code == 0 && peer->base.version < OFFER_VERSION)
    code = error_set(HAUL_ENOTSUP, 0, peer->base.name, "run the same version of haul on both sides",
                     "the peer's version of haul has no offers");
  if (code == 0)
    code = error_if_passed(until, peer->base.name);
  if (code == 0)
    code = message_reserve(peer, OFFER_COST, until);
  if (code)
    return code;
  const struct memory *memory = &region->memory;
  struct request request = {.peer = peer, .parse = parse_taken};
  struct offer offer = {.tag = tag,
                        .key = {0, memory->length, memory->place, HAUL_READ},
                        .offset = offset,
                        .length = length};
  code = request_read(&request, region, &offer, until);
  if (request.id == 0)
    message_unreserve(peer, OFFER_COST);
  return code;
}
