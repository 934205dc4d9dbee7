/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/frame.h"

#include "core/wire.h"
#include "haul/haul.h"

#define MAGIC  0x414d4452u /* "RDMA" */
#define BITS24 0xffffffu

static void end_fields(struct wire *wire, struct rdma_end *end) {
  wire_string(wire, end->nic, sizeof end->nic);
  WIRE(wire, 8, end->ethernet);
  WIRE(wire, 8, end->mtu);
  WIRE(wire, 8, end->reads);
  WIRE(wire, 8, end->receives);
  WIRE(wire, 8, end->atomics);
  WIRE(wire, 16, end->lid);
  wire_bytes(wire, end->gid, 16);
  WIRE(wire, 32, end->queue_pair);
  WIRE(wire, 32, end->packet);
}

/* Older peers leave the last three fields 0, and the last two of ATTACHED. */
static void hello_fields(struct wire *wire, struct rdma_record *record) {
  WIRE(wire, 8, record->rails);
  for (size_t i = 0; i < record->rails && i < RDMA_ENDS; i++)
    end_fields(wire, &record->ends[i]);
  if (record->rails == 0)
    wire_string(wire, record->reason, sizeof record->reason);
  WIRE(wire, 8, record->restores);
  WIRE(wire, 8, record->more);
  WIRE(wire, 16, record->paired);
}

static void attached_fields(struct wire *wire, struct rdma_record *record) {
  WIRE(wire, 32, record->status);
  WIRE(wire, 64, record->address);
  WIRE(wire, 64, record->length);
  WIRE(wire, 8, record->rails);
  for (size_t i = 0; i < record->rails && i < RDMA_RAILS_MAX; i++)
    WIRE(wire, 32, record->keys[i]);
  WIRE(wire, 8, record->flags);
  WIRE(wire, 8, record->slots);
  WIRE(wire, 32, record->number);
  wire_string(wire, record->reason, sizeof record->reason);
  WIRE(wire, 8, record->atomic_rail);
  WIRE(wire, 16, record->missing);
}

static void span_fields(struct wire *wire, struct rdma_record *record) {
  WIRE(wire, 64, record->sum);
  WIRE(wire, 64, record->at);
  WIRE(wire, 8, record->span_count);
  for (size_t i = 0; i < record->span_count && i < RDMA_SPANS; i++) {
    WIRE(wire, 64, record->spans[i].offset);
    WIRE(wire, 32, record->spans[i].length);
  }
}

static bool has_spans(const struct rdma_record *record) {
  return record->type >= RDMA_CHECKSUM && record->type <= RDMA_COPY_OUT;
}

/* Over a rail: with the status of a request or a write. */
static bool responds(const struct rdma_record *record) {
  return record->type == RDMA_RESPONSE || record->type == RDMA_FENCED;
}

static void fields(struct wire *wire, struct rdma_record *record, uint32_t *magic) {
  WIRE(wire, 32, *magic);
  WIRE(wire, 16, record->type);
  WIRE(wire, 32, record->request);
  WIRE(wire, 64, record->handle);
  if (record->type == RDMA_HELLO) {
    hello_fields(wire, record);
  } else if (record->type == RDMA_ATTACHED) {
    attached_fields(wire, record);
  } else if (has_spans(record)) {
    span_fields(wire, record);
  } else if (responds(record)) {
    WIRE(wire, 32, record->status);
    WIRE(wire, 8, record->rails);
  }
}

size_t rdma_pack(const struct rdma_record *record, uint8_t bytes[RDMA_RECORD]) {
  struct rdma_record copy = *record;
  uint32_t magic = MAGIC;
  memset(bytes, 0, RDMA_RECORD);
  struct wire wire = wire_over(bytes, RDMA_RECORD);
  fields(&wire, &copy, &magic);
  return RDMA_RECORD - wire_left(&wire);
}

static bool is_end(const struct rdma_end *end) {
  return end->ethernet <= 1 && end->mtu >= 1 && end->mtu <= 5 && end->atomics <= 2 &&
         end->queue_pair <= BITS24 && end->packet <= BITS24;
}

static bool is_hello(const struct rdma_record *record) {
  if (record->rails > RDMA_ENDS || record->rails + record->more > RDMA_RAILS_MAX)
    return false;
  for (size_t i = 0; i < record->rails; i++)
    if (!is_end(&record->ends[i]))
      return false;
  return record->rails > 0 || record->more == 0;
}

static bool are_spans(const struct rdma_record *record) {
  if (record->span_count == 0 || record->span_count > RDMA_SPANS)
    return false;
  for (size_t i = 0; i < record->span_count; i++)
    if (record->spans[i].length == 0) /* no segment is empty */
      return false;
  return true;
}

/* HAUL_EPATH and HAUL_ENOPATH are for this side to set: a work that ends with one is posted again,
 * and a peer could repeat that for ever. */
static bool is_valid(const struct rdma_record *record) {
  uint64_t end;
  if (record->type < RDMA_HELLO || record->type > RDMA_FENCED || record->status > 0 ||
      record->status < HAUL_EPATH || record->rails > RDMA_RAILS_MAX)
    return false;
  if (responds(record))
    return record->status != HAUL_EPATH && record->status != HAUL_ENOPATH;
  return (record->type != RDMA_HELLO || is_hello(record)) &&
         (!has_spans(record) || are_spans(record)) &&
         !__builtin_add_overflow(record->address, record->length, &end);
}

int rdma_parse(const uint8_t bytes[RDMA_RECORD], struct rdma_record *record) {
  struct wire wire = wire_from(bytes, RDMA_RECORD);
  uint32_t magic = 0;
  memset(record, 0, sizeof *record);
  fields(&wire, record, &magic);
  return magic == MAGIC && !wire.failed && is_valid(record) ? 0 : HAUL_EPROTO;
}
